"""A worker's exchanges with its neighbours, round after round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from psrt.core.arrays import Bytes, Vector
from psrt.core.errors import ProtocolError
from psrt.core.messages import Leave, Mix
from psrt.core.units import numbered
from psrt.runtime.weakly import weakly
from psrt.topology.part import Part
from psrt.transport.port import NO_PAYLOAD, Port

_NO_VECTOR: Vector = np.zeros(0, np.float32)
_NO_FRAME: Bytes = np.zeros(0, np.uint8)


class Arrived(NamedTuple):
    """What a neighbour sent for a round."""

    #: Its number.
    worker: int
    #: (span,) its vector.
    vector: Vector
    #: Its w under push-sum, else 1.
    weight: float
    #: The frame of a codec, which comes in place of the vector.
    frame: Bytes = _NO_FRAME


class Neighbours:
    """Sends to the receivers of a round, and takes its senders' vectors, in worker order.

    Vectors arrive in any order, and a neighbour may be ahead. They are taken in worker order, so
    that the same numbers give the same bits; a vector that arrives out of order is kept.

    **Leaving.** The last message of a worker replaces its vector in that round and all later ones,
    so all its receivers learn of its departure in the same round. Under push-sum senders must know
    before they send, or what they send would be lost; so each receiver first announces that it is
    ready for a round.

    **No deadlock.** A worker that waits for a neighbour, to send or to take the last message, waits
    for one that is not ahead of it in rounds; so the worker that is furthest behind waits for
    nobody.
    """

    def __init__(self, port: Port, part: Part, *, framed: bool = False) -> None:
        """Set up.

        Args:
            port: of a worker with neighbours.
            part: its neighbours, and their weights.
            framed: whether they send frames of a codec.
        """
        self._port, self._framed = port, framed
        #: Its neighbours, as long as they are there.
        self.part = part
        self._worker = part.rank
        self._ranks = port.role_map.workers
        #: By round and worker, what has come before its turn.
        self._kept: dict[tuple[int, int], Arrived] = {}
        #: By worker, the first round that it has not said to be ready for.
        self._ready: dict[int, int] = {}
        #: By worker, the first round that no message of it has come for.
        self._next = dict.fromkeys(part.peers, 0)
        #: By round, the bytes that have come for it: of this one, and of later ones.
        self._bytes: dict[int, int] = {}
        #: By region, the neighbours that may not have taken it yet, and the round that it was for.
        self._readers: list[dict[int, int]] = [{} for _ in port.offers]
        #: The neighbour that was waited for last; −1 for none.
        self.waited_for = -1
        #: Who is waited for in ``receive``, and in which round.
        self._awaited: tuple[Sequence[int], int] = (self._worker,), 0
        port.waiting_for = weakly(self._waiting_for, "a message")
        port.leave_of = weakly(self._leave_of)

    def _waiting_for(self) -> str:
        workers, at = self._awaited
        return f"{numbered('worker', workers)} in round {at}"

    def go_on(self, at: int) -> None:
        """Begin with a round: all neighbours have taken part in those before it."""
        self._next = dict.fromkeys(self._next, at)

    def early(self, at: int) -> int:
        """Return the bytes that have come for a round, or later ones, before it began."""
        return sum(nbytes for clock, nbytes in self._bytes.items() if clock >= at)

    async def free(self, region: int) -> None:
        """Wait until a region may be written: all that it was sent to have taken it."""
        readers = self._readers[region]
        while readers:
            rank, port = self._ranks[worker := readers.popitem()[0]], self._port
            if port.in_flight(rank, 0):
                self.waited_for = worker
                await port.until(
                    partial(_is_taken, port, rank),
                    partial("worker {} (rank {}) to take what was sent".format, worker, rank),
                )

    def say_ready(self, at: int) -> None:
        """Tell the senders of a round that this worker takes part in it."""
        for worker in self.part.senders(at):
            self._send(worker, Mix(self._worker, at, 0, 0.0))

    async def hear_ready(self, at: int) -> None:
        """Wait until all receivers of a round have said that they are ready, or have left."""
        while absent := [it for it in self.part.receivers(at) if self._ready.get(it, 0) <= at]:
            await self._receive(at, absent)

    def send(self, at: int, region: int, weight: float = 1.0) -> int:
        """Send a region to the receivers of a round; return their number."""
        return self.send_to(self.part.receivers(at), at, region, weight)

    def send_to(self, receivers: Sequence[int], at: int, region: int, weight: float = 1.0) -> int:
        """Send a region to some neighbours; return their number."""
        for worker in receivers:
            self._send(worker, Mix(self._worker, at, 0, weight), region)
        return len(receivers)

    def send_framed(self, at: int, frame: Bytes) -> int:
        """Send a frame to the receivers of a round; return their number.

        It may change as soon as this returns.
        """
        receivers = self.part.receivers(at)
        for worker in receivers:
            self._port.send_framed(self._ranks[worker], Mix(self._worker, at), frame)
        return len(receivers)

    def _send(self, worker: int, mix: Mix, region: int = NO_PAYLOAD) -> None:
        self._port.send(self._ranks[worker], mix, region)
        if region != NO_PAYLOAD:
            self._readers[region][worker] = mix.clock

    async def collect(self, at: int, take: Callable[[Arrived], None]) -> None:
        """Take what the senders of a round have, in the order of their numbers.

        Args:
            at: the round.
            take: called with what each sent; the vector is valid during the call.

        Raises:
            TransportError: if one is silent until the deadline.
        """
        taken = -1
        while awaited := [it for it in self.part.senders(at) if it > taken]:
            taken = awaited[0]
            here = self._kept.pop((at, taken), None)
            while here is None and self.part.takes_part(taken, at):
                here = await self._receive(at, awaited, taken)
            if here is not None:
                take(here)

    async def hold(self, at: int, workers: Callable[[int], Sequence[int]]) -> None:
        """Wait until some of the neighbours have sent what they have for a round, or have left.

        Args:
            at: the round.
            workers: returns those of a round that have not left.
        """
        while absent := [it for it in workers(at) if (at, it) not in self._kept]:
            await self._receive(at, absent)

    def held(self, at: int, workers: Sequence[int]) -> list[Arrived] | None:
        """Return what some neighbours have sent for a round, once; None if it is not all there."""
        if any((at, it) not in self._kept for it in workers):
            return None
        return [self._kept.pop((at, it)) for it in workers]

    async def leave(self, clock: int) -> None:
        """Tell all neighbours that this worker has left, and wait until all of them have.

        Those that it has answered have left before.
        """
        peers = [it for it in self.part.peers if it not in self.part.answered]
        self.say_left(clock, peers)
        while training := [it for it in peers if it not in self.part.left]:
            await self._receive(clock, training)
        self._kept.clear()

    def say_left(self, clock: int, workers: Sequence[int]) -> None:
        """Tell some neighbours that this worker has left."""
        for worker in workers:
            self._port.send(self._ranks[worker], Leave(self._worker, clock))

    async def _receive(self, at: int, awaited: Sequence[int], turn: int = -1) -> Arrived | None:
        """Receive a message; return what it brings if that is of the worker whose turn it is.

        What another one sends, or for another round, is kept.
        """
        self._awaited = awaited, at
        before = self._port.bytes_received
        message = await self._port.receive()
        if isinstance(message, Leave | Mix):
            came = self._port.bytes_received - before
            if message.clock not in self._bytes:
                self._bytes = {it: of for it, of in self._bytes.items() if it >= at}
            self._bytes[message.clock] = self._bytes.get(message.clock, 0) + came
        if type(message) is Leave:
            self.waited_for = message.worker
            self.part.leave(message.worker, message.clock)
            return None
        if type(message) is not Mix:
            raise ProtocolError(f"worker {self._worker} received {message}, expected a neighbour's")
        worker, clock = message.worker, message.clock
        self.waited_for = worker
        for readers in self._readers:
            if readers.get(worker, clock) < clock:
                del readers[worker]  # a worker in a round has taken what was for earlier ones
        if not message.weight:
            self._ready[worker] = clock + 1
            return None
        self._next[worker] = clock + 1
        if self._framed:
            arrived = Arrived(worker, _NO_VECTOR, message.weight, self._port.frame(0, worker))
        else:
            arrived = Arrived(worker, self._port.payload(0, worker), message.weight)
        if worker == turn and clock == at:
            return arrived
        if worker not in self.part.answered:  # else nothing follows it in the same place
            vector, frame = arrived.vector.copy(), arrived.frame.copy()
            arrived = arrived._replace(vector=vector, frame=frame)
        self._kept[clock, worker] = arrived
        return None

    def _leave_of(self, shard: int, worker: int) -> Leave | None:
        return None if worker in self.part.left else Leave(worker, self._next[worker], shard)


def _is_taken(port: Port, rank: int) -> bool:
    return not port.in_flight(rank, 0)
