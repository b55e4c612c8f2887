"""Sums over all workers of a virtual world: by a schedule's messages, or at a rendezvous.

A schedule sends messages through the network, unless ``costs.reduce`` gives the time of its sums;
then it is summed at a rendezvous, like ``node`` and ``mpi``, with the bits and the byte counts of a
real run. The frames of a codec are always sent. If that time was measured with them
(``costs.framed``), their sum is over at such a rendezvous; else it is not theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from psrt.collective import ALGORITHMS
from psrt.collective.registry import LIBRARY, NODE, ONE_SHOT_BYTES
from psrt.core.arrays import ITEMSIZE, Vector
from psrt.core.partition import Span, block_spans, even_span, even_spans
from psrt.core.ways import Way
from psrt.optim import BLOCK
from psrt.simulation.rendezvous import Fold, Rendezvous
from psrt.simulation.schedule_run import ScheduleRun, sum_by_schedule
from psrt.simulation.straight_run import StraightRun
from psrt.transport.coded_sum import CodedSum, SumCodec
from psrt.transport.port import Held, Take
from psrt.transport.sums_in_frames import sum_in_frames

if TYPE_CHECKING:
    from psrt.simulation.collective_port import CollectivePort


class Sum:
    """One worker's part in the sums of one span of ``gradient``; see ``port.Reduction``."""

    def __init__(
        self, port: CollectivePort, span: Span, take: Take | None, held: Held | None = None
    ) -> None:
        """Set up.

        Args:
            port: of this worker.
            span: of the gradient.
            take: see ``port.Take``.
            held: see ``port.Held``; None: every rank owns every element.
        """
        self._port, self._span, self._take = port, span, take
        at = span if held is None else Span(held.at, held.at + span.size)
        #: This worker's numbers; None moves their bytes only.
        self._mine = port.numbers(at)
        self._over = True

    def begin(self) -> None:
        """Begin a round, or, from within ``compute``, at the end of its computing time."""
        assert self._over, "a round begins when the last one is over"
        self._over = False
        self._port.after_compute(self._start)

    def poll(self) -> bool:
        """Progress, except within ``compute``: its time has yet to pass for the role."""
        if not self._over and not self._port.computing and self._advance():
            self._over = True
            if self._take is not None and self._port.apply_s is not None:
                self._port.behind += self._port.apply_s(0, ITEMSIZE * self._updates)
            if self._mine is not None:
                self._hand_over(self._mine)
        return self._over

    async def finish(self) -> None:
        """Poll after every arrival until the round is over."""
        while not self.poll():
            await self._port.arrival()

    def _start(self) -> None:
        raise NotImplementedError

    def _advance(self) -> bool:
        """Progress without waiting; return whether the sums are complete."""
        raise NotImplementedError

    def _sums(self) -> Vector:
        """Return the complete sums; only with numerics."""
        raise NotImplementedError

    @property
    def _updates(self) -> int:
        """Elements that ``take`` updates here, when all sums are there."""
        return self._span.size

    def _hand_over(self, mine: Vector) -> None:
        """Pass the sums to ``take``, or write them over this worker's numbers."""
        if self._take is None:
            np.copyto(mine, self._sums())
            return
        self._give(self._take, self._span.start, self._sums())

    def _give(self, take: Take, first: int, sums: Vector) -> None:
        """Pass sums, which begin at element ``first``, on block by block."""
        for block in block_spans(sums.size, BLOCK):
            take(Span(first + block.start, first + block.stop), block.of(sums))


class Carrier(Protocol):
    """Moves the numbers of a sum, or of half of a sum, round after round."""

    @property
    def result(self) -> Vector:
        """This rank's sums, or the gathered values, at their places in the span."""

    def begin(self, mine: Vector | None) -> None:
        """Begin a round with this rank's numbers; None moves only their bytes."""

    def is_over(self) -> bool:
        """Progress without waiting; return whether the round is over."""


@dataclass(eq=False, slots=True)
class ByMessages:
    """Uses the messages of a schedule, or frames."""

    port: CollectivePort
    run: ScheduleRun | CodedSum | StraightRun

    @property
    def result(self) -> Vector:
        """The result of the steps."""
        return self.run.sums

    def begin(self, mine: Vector | None) -> None:
        """Send what can be sent."""
        if not self.run.begin(mine):
            self.port.under_way.append(self.run)

    def is_over(self) -> bool:
        """Run the steps of all schedules whose spans have arrived."""
        self.port.move_on()
        return self.run not in self.port.under_way


@dataclass(eq=False, slots=True)
class AtRendezvous:
    """Uses a rendezvous of all workers."""

    port: CollectivePort
    place: Rendezvous
    #: Bytes that this rank sends, and receives, as counted in a real run.
    moves: int
    _is_over: bool = field(default=True, init=False)
    _result: Any = field(default=None, init=False)

    @property
    def result(self) -> Vector:
        """The result of the rendezvous; all workers share one array, whose owners may write it."""
        result: Vector = self._result
        return result

    def begin(self, mine: Vector | None, *, after: float = 0.0) -> None:
        """Arrive, after that many seconds."""
        port = self.port
        self._is_over = False
        port.bytes_sent += self.moves
        if after:
            port.world.after(after, lambda _: self._arrive(mine))
        else:
            self._arrive(mine)

    def _arrive(self, mine: Vector | None) -> None:
        self.place.arrive(self.port.worker, mine, self._on_result)

    def _on_result(self, result: Any) -> None:
        self.port.bytes_received += self.moves
        self._is_over, self._result = True, result
        self.port.world.wake(self.port.rank)

    def is_over(self) -> bool:
        """Return whether the result has arrived."""
        return self._is_over


class MessageSum(Sum):
    """A sum by messages: those of a schedule, or frames."""

    def __init__(
        self,
        port: CollectivePort,
        span: Span,
        algorithm: str,
        take: Take | None,
        *,
        key: int,
        codec: SumCodec | None = None,
    ) -> None:
        """Set up.

        Args:
            port: of this worker.
            span: of the gradient.
            algorithm: whose messages are sent.
            take: see ``port.Take``.
            key: identifies the reduction: the same on all workers, and used by no other.
            codec: makes frames of the messages; None sends numbers as they are.
        """
        super().__init__(port, span, take)
        size, numerics = len(port.role_map.workers), self._mine is not None
        run: ScheduleRun | CodedSum | StraightRun
        if codec is None:
            run = ScheduleRun(
                port, algorithm, span.size, rank=port.rank, size=size, key=key, numerics=numerics
            )
        elif codec.way(algorithm, span) is Way.STRAIGHT:
            run = StraightRun(
                port, codec, span, algorithm,
                rank=port.worker, size=size, key=key, numerics=numerics,
            )  # fmt: skip
        else:
            run = sum_in_frames(
                algorithm, port, codec, span,
                rank=port.worker, size=size, key=key, numerics=numerics,
            )  # fmt: skip
        self._carrier = ByMessages(port, run)
        world = port.world
        #: Where the sum's recorded time passes; None: its messages take their own time.
        self._timer: Rendezvous | None = None
        if codec is not None and world.costs.framed and world.costs.reduce is not None:
            self._timer = world.rendezvous.at(key, _nothing, 0.0, along=False)
        self._has_passed = True

    def _start(self) -> None:
        if self._timer is not None:
            self._has_passed = False
            self._timer.arrive(self._port.worker, None, self._on_time)
        self._carrier.begin(self._mine)

    def _on_time(self, _: None) -> None:
        self._has_passed = True
        self._port.world.wake(self._port.rank)

    def _advance(self) -> bool:
        # Even if the timer is not over: arrived spans are processed, as over MPI.
        return self._carrier.is_over() and self._has_passed

    def _sums(self) -> Vector:
        return self._carrier.result


class RendezvousSum(Sum):
    """A sum at a rendezvous of all workers."""

    def __init__(
        self, port: CollectivePort, span: Span, algorithm: str, take: Take | None, *, key: int
    ) -> None:
        """Set up; ``key`` is the same on all workers, and used by no other reduction."""
        super().__init__(port, span, take)
        ranks = len(port.role_map.workers)
        # If all ranks need a few numbers, each rank sums all of them; else each sums its slice.
        whole = take is None and 4 * span.size <= ONE_SHOT_BYTES
        #: Elements that this rank updates: inside a host its slice.
        self._own = span.size
        if algorithm == NODE:
            self._own = even_span(span.size, ranks, port.worker).size
        fold = _nothing if self._mine is None else fold_of(algorithm, whole=whole)
        moved = 4 * span.size * (ranks - 1) / ranks
        # Control values are summed beside a gradient.
        along = span.start >= port.role_map.gradient_size
        self._carrier = AtRendezvous(
            port,
            port.world.rendezvous.at(key, fold, moved, along=along),
            moved_bytes(algorithm, port.worker, ranks, span.size, whole=whole),
        )

    @property
    def _updates(self) -> int:
        return self._own

    def _start(self) -> None:
        self._carrier.begin(self._mine, after=self._port.behind)

    def _advance(self) -> bool:
        return self._carrier.is_over()

    def _sums(self) -> Vector:
        # All workers share one array, and ``take`` may overwrite its sums.
        return self._carrier.result if self._take is None else self._carrier.result.copy()


class ShardedSum(Sum):
    """A sum whose owners take their parts, and share the results with all."""

    def __init__(
        self,
        port: CollectivePort,
        span: Span,
        algorithm: str,
        take: Take,
        held: Held,
        *,
        keys: tuple[int, int],
    ) -> None:
        """Set up.

        Args:
            port: of this worker.
            span: of the gradient.
            algorithm: of ``SHARDING``, after ``auto``.
            take: see ``port.Take``.
            held: see ``port.Held``.
            keys: identify the halves of the reduction: the same on all workers, used by no other.
        """
        super().__init__(port, span, take, held)
        self._give_to, self._spreads = take, held.spreads
        self._own = port.owned(span, algorithm)
        self._theta: Vector | None = span.of(port.theta) if held.spreads else None
        if self._mine is None:
            self._theta = None
        #: Whether the owners have taken their parts in this round.
        self._has_taken = False
        self._scatter: Carrier = _half(
            port, algorithm, span.size, keys[0], 0, self._mine is not None
        )
        self._gather: Carrier | None = None
        if held.spreads:
            self._gather = _half(port, algorithm, span.size, keys[1], 1, self._mine is not None)

    @property
    def _updates(self) -> int:
        return self._own.size

    def _start(self) -> None:
        self._has_taken = False
        self._scatter.begin(self._mine)

    def _advance(self) -> bool:
        if not self._has_taken:
            if not self._scatter.is_over():
                return False
            self._has_taken = True
            if self._mine is not None:
                first = self._own.start - self._span.start
                sums = self._scatter.result[first : first + self._own.size]
                self._give(self._give_to, self._own.start, sums)
            if self._gather is not None:
                self._gather.begin(self._theta)
        return self._gather is None or self._gather.is_over()

    def _hand_over(self, mine: Vector) -> None:
        """Take the results of the other owners."""
        if self._gather is not None and self._theta is not None:
            np.copyto(self._theta, self._gather.result)


class Gathering(Sum):
    """Gathers each worker's own part of a span at all workers."""

    def __init__(
        self, port: CollectivePort, span: Span, algorithm: str, at: int, *, key: int
    ) -> None:
        """Set up; see ``Port.gather``. ``key`` identifies it, as in ``ShardedSum``."""
        super().__init__(port, Span(0, 0), None)
        self._vector: Vector | None = None
        if port.world.numerics:
            self._vector = port.theta[at : at + span.size]
        numerics = self._vector is not None
        self._half = _half(port, algorithm, span.size, key, 1, numerics)

    def _start(self) -> None:
        self._half.begin(self._vector)

    def _advance(self) -> bool:
        if not self._half.is_over():
            return False
        if self._vector is not None:
            np.copyto(self._vector, self._half.result)
        return True

    def _hand_over(self, mine: Vector) -> None:
        """Do nothing: the gathered values are in place."""


def _half(
    port: CollectivePort, algorithm: str, n: int, key: int, half: int, numerics: bool
) -> Carrier:
    """Return the carrier of one half of a sum: a reduce-scatter to owners, or an all-gather.

    At a rendezvous the first half takes the time of the whole sum.
    """
    ranks, worker, table = len(port.role_map.workers), port.worker, port.world.rendezvous
    if algorithm in ALGORITHMS and port.world.costs.reduce is None:
        run = ScheduleRun(
            port, algorithm, n, rank=port.rank, size=ranks, key=key, numerics=numerics, half=half
        )
        return ByMessages(port, run)
    moves = 0
    if algorithm in ALGORITHMS:
        steps = ALGORITHMS[algorithm].halves(worker, ranks, n)[half]
        moves = 4 * sum(step.send.size for step in steps)
    elif half == 0:
        moves = 4 * even_spans(n, ranks)[worker].size * (ranks - 1)
    if half == 0:
        fold = fold_of(algorithm, whole=False) if numerics else _nothing
        return AtRendezvous(
            port, table.at(key, fold, 4 * n * (ranks - 1) / ranks, along=False), moves
        )
    owners = [port.owned(Span(0, n), algorithm, worker=i) for i in range(ranks)]
    fold = partial(_joined, owners) if numerics else _nothing
    return AtRendezvous(port, table.free(key, fold), moves)


def _joined(owners: Sequence[Span], vectors: Sequence[Vector]) -> Vector:
    """Return the owners' parts of their vectors, joined."""
    whole = np.empty_like(vectors[0])
    for own, vector in zip(owners, vectors, strict=True):
        np.copyto(own.of(whole), own.of(vector))
    return whole


def fold_of(algorithm: str, *, whole: bool) -> Fold:
    """Return the function that sums the workers' numbers.

    Args:
        algorithm: name of an all-reduce.
        whole: whether every rank computes all sums; else each computes its own slice.
    """
    if algorithm in ALGORITHMS:
        return partial(sum_by_schedule, algorithm)
    return _in_worker_order if whole or algorithm == LIBRARY else _by_owners


def _in_worker_order(vectors: Sequence[Vector]) -> Vector:
    """Return ((v0 + v1) + v2) + … in worker order."""
    total = vectors[0].copy()
    for vector in vectors[1:]:
        np.add(total, vector, out=total)
    return total


def _by_owners(vectors: Sequence[Vector]) -> Vector:
    """Return the sum as the ranks of one host compute it, each one its own slice.

    A rank sums in place: its own numbers come first, then the others' in their order.
    """
    total = np.empty_like(vectors[0])
    for owner, own in enumerate(even_spans(total.size, len(vectors))):
        out = own.of(total)
        np.copyto(out, own.of(vectors[owner]))
        for rank, vector in enumerate(vectors):
            if rank != owner:
                np.add(out, own.of(vector), out=out)
    return total


def _nothing(brought: Sequence[Any]) -> None:
    """Return nothing: without numerics there are no numbers to sum."""


def moved_bytes(algorithm: str, rank: int, ranks: int, n: int, *, whole: bool) -> int:
    """Return the bytes that a rank sends in a sum of n elements, as counted in a real run."""
    if algorithm in ALGORITHMS:
        steps = ALGORITHMS[algorithm](rank, ranks, n)
        return 4 * sum(s.send.size for s in steps if s.send_to not in (None, rank))
    if algorithm == LIBRARY:
        return 4 * n
    own = n if whole else even_spans(n, ranks)[rank].size
    return 4 * own * (ranks - 1)
