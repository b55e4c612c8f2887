"""Where workers that average in pairs are saved: none with half an average, none under way. Pure.

Each comes to a checkpoint at a step of its own, when it learns of it or a neighbour says ``Park``:

1. One that asks waits until its open offer is answered, or void. Its neighbours answer although
   they may have said ``Park`` already.
2. It says ``Park`` to all neighbours that still train: no offer of its own is under way then.
3. It takes what comes until each of them has said so, too, or has left. What one sends after its
   ``Park`` is of the time after the checkpoint, and is put aside.
4. It is saved, and takes what was put aside after its next step.

So for each two neighbours all that either sent before its ``Park`` has been taken, and nothing of
what it sent after: an average of two is in both parts of the checkpoint, or in neither. A worker
passes 3 only once its neighbours have passed 2, so that neighbours are at most one checkpoint
apart, and at most one message of each is put aside: an offer, which nobody answers until 4, the
next ``Park``, or ``Leave``. Nobody waits in a circle: who waits in 1 waits for one that answers
whatever it does, and who waits in 3 for others to come to 2.

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
        """Return what was put aside; this worker is saved, and goes on."""
        aside, self.aside = self.aside, []
        self.due, self._has_begun = 0, False
        self._parked.clear()
        return aside
