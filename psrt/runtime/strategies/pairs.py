"""The averages of pairs that a worker takes part in, without waiting. Pure.

The workers are the nodes of a bipartite graph, with two colours. Workers of colour 0 ask: one
offers its vector to a neighbour, and trains on until the answer arrives. Workers of colour 1
answer: one that finds an offer between two steps sends back its vector, and averages. So no worker
is asked while it waits for an answer, and no cycle of waits can form, even at the end, when an
asking worker waits for its last answer.

**At most two messages are in flight in each direction.** An asking worker has one open offer at a
time; it leaves once that is answered, or void. An answering one has answered before the next offer
arrives; then it may leave, too. So no worker waits for a message to be taken.

**Leaving.** ``Leave`` is the last message on a link. An answering worker that is done sends it, and
answers no more. An offer that crosses it is void on both sides: no answer can follow ``Leave``, and
an answer sent before it has been taken before. An asking worker that is done first waits until its
open offer is answered or void, and then sends ``Leave``.

**Resuming.** In a run that resumes from a checkpoint, a departed worker sends ``Leave`` again,
since its neighbours wait for it at their end; meanwhile no worker asks it.

Source: X. Lian, W. Zhang, C. Zhang and J. Liu, "Asynchronous Decentralized Parallel Stochastic
Gradient Descent", ICML 2018 (arXiv:1710.06952).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

from psrt.core.errors import ProtocolError
from psrt.core.messages import Leave, Mix
from psrt.core.units import numbered


class Offer(NamedTuple):
    """What a worker offered to a neighbour."""

    neighbour: int
    #: Counted by who asks, from 0.
    number: int
    #: Gradient steps that who asks had finished.
    clock: int


class Pairs:
    """One worker's part; it is saved while no offer of it is open.

    >>> asks, answers = (Pairs(i, (1 - i,), asks=not i, seed=0) for i in range(2))
    >>> asks.offer(asks.draw(), clock=5)
    Offer(neighbour=1, number=0, clock=5)
    >>> asks.draw()  # one at a time
    >>> answers.take(Mix(0, 5, 0))
    Offer(neighbour=0, number=0, clock=5)
    >>> asks.take(Mix(1, 3, 0)), asks.open
    (Offer(neighbour=1, number=0, clock=5), None)
    """

    saved = ("left", "made")

    def __init__(self, worker: int, neighbours: Sequence[int], *, asks: bool, seed: int) -> None:
        """Set up.

        Args:
            worker: its number.
            neighbours: that it has on the graph, ascending.
            asks: whether it does; else it answers.
            seed: of the run.
        """
        self.worker, self.neighbours, self.asks = worker, tuple(neighbours), asks
        self._seed = seed
        #: The neighbours that have left, and the clock that each left at.
        self.left: dict[int, int] = {}
        #: Those of them that have said so since this run began, or was resumed.
        self.gone: set[int] = set()
        #: The offer that is neither answered nor void.
        self.open: Offer | None = None
        #: Offers made so far.
        self.made = 0
        #: Whether it answers no more.
        self.is_done = False

    @property
    def training(self) -> tuple[int, ...]:
        """The neighbours that have not left, as far as is known, ascending."""
        return tuple(it for it in self.neighbours if it not in self.left)

    @property
    def staying(self) -> tuple[int, ...]:
        """The neighbours that are still to say that they leave, ascending."""
        return tuple(it for it in self.neighbours if it not in self.gone)

    def draw(self) -> int | None:
        """Return the neighbour to make an offer to next; None if there is none now.

        It is one of those that are still training, by seed, worker and number of the offer alone.
        """
        if not self.asks or self.open is not None or not (there := self.training):
            return None
        key = struct.pack("<3Q", self._seed, self.worker, self.made)
        drawn = hashlib.blake2b(key, digest_size=8, person=b"psrt pairs").digest()
        return there[int.from_bytes(drawn, "little") % len(there)]

    def offer(self, neighbour: int, clock: int) -> Offer:
        """Note that this worker makes an offer."""
        assert self.asks, "who answers does not ask"
        assert self.open is None, "an offer is open"
        self.open = Offer(neighbour, self.made, clock)
        self.made += 1
        return self.open

    def take(self, mix: Mix) -> Offer | None:
        """Take an offer, or the answer to one.

        Returns:
            At who asks its own offer, which is no longer open. At who answers the neighbour's, or
            None if it is void, since this worker is done.

        Raises:
            ProtocolError: if nobody asked for it.
        """
        if self.asks:
            offer, self.open = self.open, None
            if offer is None or (mix.worker, mix.version) != offer[:2]:
                raise ProtocolError(
                    f"worker {self.worker} received {mix}, expected an answer to {offer}"
                )
            return offer
        if mix.worker not in self.training:
            raise ProtocolError(f"worker {self.worker} received {mix} from one that has left")
        return None if self.is_done else Offer(mix.worker, mix.version, mix.clock)

    def leave(self, leave: Leave) -> bool:
        """Note that a neighbour has left; return whether the open offer is void by that."""
        self.left.setdefault(leave.worker, leave.clock)
        self.gone.add(leave.worker)
        if self.open is None or self.open.neighbour != leave.worker:
            return False
        self.open = None
        return True

    def awaited(self) -> str:
        """Describe who is waited for."""
        if self.open is not None:
            return f"worker {self.open.neighbour} to answer offer {self.open.number}"
        if not (staying := self.staying):
            return "nobody"
        return f"{numbered('worker', staying)} to finish"
