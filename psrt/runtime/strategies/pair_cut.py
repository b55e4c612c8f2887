"""Checkpoints of gossip by pairs: no part has half an average, no message is in flight. Pure.

Each worker saves at its own step, when it learns of a checkpoint or a neighbour sends ``Park``:

1. A worker that asks waits until its open offer is answered, or void. Its neighbours answer even
   if they have sent ``Park`` already.
2. It sends ``Park`` to all neighbours that still train: it has no offer in flight then.
3. It takes messages until each of them has sent ``Park``, too, or has left. A message after a
   neighbour's ``Park`` belongs to the time after the checkpoint, and is deferred.
4. It is saved, and takes the deferred messages after its next step.

So for any two neighbours, everything that one sent before its ``Park`` has been taken, and nothing
that it sent after: an average is in both parts of the checkpoint, or in neither. A worker passes 3
only once its neighbours have passed 2. So neighbours are at most one checkpoint apart, and at most
one message of each is deferred: an offer, which is not answered until 4, the next ``Park``, or
``Leave``. There is no deadlock: a worker in 1 waits for one that answers in any state, and a worker
in 3 waits for others to reach 2.

Source: K. M. Chandy and L. Lamport, "Distributed Snapshots: Determining Global States of
Distributed Systems", ACM TOCS 3(1), 1985, with markers in both directions, and channels that are
empty by 1 and 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from psrt.core.errors import ProtocolError
from psrt.core.messages import Leave, Mix, Park
from psrt.core.units import numbered


class PairCut:
    """One worker's part in the next checkpoint.

    >>> cut = PairCut()
    >>> cut.hear(Park(worker=1, clock=3, cut=4)), cut.due
    (None, 4)
    >>> cut.begin(4), cut.is_complete((1, 2))
    (None, False)
    >>> cut.puts_aside(Mix(2, 5, 0)), cut.puts_aside(Mix(1, 5, 0))
    (False, True)
    >>> cut.awaited((1, 2))
    'worker 2 to stop for a checkpoint'
    >>> cut.hear(Park(worker=2, clock=6, cut=4)), cut.is_complete((1, 2))
    (None, True)
    >>> cut.end()
    [Mix(worker=1, clock=5, version=0, weight=1.0, shard=0)]
    """

    def __init__(self) -> None:
        #: The step of the checkpoint that is next, as ``Params.cut``; 0 for none.
        self.due = 0
        #: Whether this worker has said ``Park``.
        self._has_begun = False
        #: The neighbours that have.
        self._parked: set[int] = set()
        #: What they have sent since.
        self.aside: list[Mix | Leave | Park] = []

    def hear(self, park: Park) -> None:
        """Note that a neighbour has said ``Park``.

        Raises:
            ProtocolError: if that is of another checkpoint, or was said before.
        """
        if park.worker in self._parked or (self.due and park.cut != self.due):
            raise ProtocolError(f"worker {park.worker} sent {park}, expected cut {self.due}")
        self.due = park.cut
        self._parked.add(park.worker)

    def begin(self, cut: int) -> None:
        """Note that this worker says so."""
        assert self.due in (0, cut), "neighbours have said so of another checkpoint"
        self.due, self._has_begun = cut, True

    def puts_aside(self, message: Mix | Leave | Park) -> bool:
        """Return whether a message is of the time after the checkpoint, and if so keep it."""
        is_later = self._has_begun and message.worker in self._parked
        if is_later:
            self.aside.append(message)
        return is_later

    def is_complete(self, training: Sequence[int]) -> bool:
        """Return whether all neighbours that train have said ``Park``."""
        return self._parked.issuperset(training)

    def awaited(self, training: Sequence[int]) -> str:
        """Describe who is waited for; empty where this worker has not said ``Park``."""
        missing = [it for it in training if it not in self._parked] if self._has_begun else []
        return f"{numbered('worker', missing)} to stop for a checkpoint" if missing else ""

    def end(self) -> list[Mix | Leave | Park]:
        """Return what was deferred; this worker is saved, and continues."""
        aside, self.aside = self.aside, []
        self.due, self._has_begun = 0, False
        self._parked.clear()
        return aside
