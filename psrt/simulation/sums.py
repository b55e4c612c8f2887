"""Sums over all workers of a virtual world: by a schedule's messages, or at a rendezvous.

A schedule sends messages through the network, unless ``costs.reduce`` gives the time of its sums;
then it is summed at a rendezvous, like ``node`` and ``mpi``, with the bits and the byte counts of a
real run. The frames of a codec are always sent. If that time was measured with them
(``costs.framed``), their sum is over at such a rendezvous; else it is not theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from psrt.arrays import Vector
from psrt.collective import ALGORITHMS
from psrt.collective.registry import LIBRARY, ONE_SHOT_BYTES
from psrt.optim import BLOCK
from psrt.partition import Span, block_spans, even_spans
from psrt.simulation.rendezvous import Fold, Rendezvous
from psrt.simulation.schedule_run import ScheduleRun, sum_by_schedule
from psrt.simulation.straight_run import StraightRun
from psrt.transport.coded_sum import CodedSum, SumCodec
from psrt.transport.port import Take
from psrt.transport.sums_in_frames import sum_in_frames
from psrt.ways import Way

if TYPE_CHECKING:
    from psrt.simulation.collective_port import CollectivePort


class Sum:
    """One worker's part in the sums of one span of ``gradient``; see ``port.Reduction``."""

    def __init__(self, port: CollectivePort, span: Span, take: Take | None) -> None:
        """Set up.

        Args:
            port: of this worker.
            span: of the gradient.
            take: see ``port.Take``; every rank owns every element.
        """
        self._port, self._span, self._take = port, span, take
        #: This worker's numbers; None moves their bytes only.
        self._mine = port.numbers(span)
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

    def _hand_over(self, mine: Vector) -> None:
        """Pass the sums to ``take``, or write them over this worker's numbers."""
        sums, span = self._sums(), self._span
        if self._take is None:
            np.copyto(mine, sums)
            return
        for block in block_spans(span.size, BLOCK):
            self._take(Span(span.start + block.start, span.start + block.stop), block.of(sums))


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
            key: marks the reduction, the same on all workers and no other's.
            codec: makes frames of the messages; None sends numbers as they are.
        """
        super().__init__(port, span, take)
        size, numerics = len(port.role_map.workers), self._mine is not None
        self._run: ScheduleRun | CodedSum | StraightRun
        if codec is None:
            self._run = ScheduleRun(
                port, algorithm, span.size, rank=port.rank, size=size, key=key, numerics=numerics
            )
        elif codec.way(algorithm, span) is Way.STRAIGHT:
            self._run = StraightRun(
                port, codec, span, algorithm,
                rank=port.worker, size=size, key=key, numerics=numerics,
            )  # fmt: skip
        else:
            self._run = sum_in_frames(
                algorithm, port, codec, span,
                rank=port.worker, size=size, key=key, numerics=numerics,
            )  # fmt: skip
        world = port.world
        #: Where the sum's recorded time passes; None where that of its messages does.
        self._timer: Rendezvous | None = None
        if codec is not None and world.costs.framed and world.costs.reduce is not None:
            self._timer = world.rendezvous.at(key, _nothing, 0.0, along=False)
        self._has_passed = True

    def _start(self) -> None:
        if self._timer is not None:
            self._has_passed = False
            self._timer.arrive(self._port.worker, None, self._on_time)
        if not self._run.begin(self._mine):
            self._port.under_way.append(self._run)

    def _on_time(self, _: None) -> None:
        self._has_passed = True
        self._port.world.wake(self._port.rank)

    def _advance(self) -> bool:
        self._port.move_on()
        return self._has_passed and self._run not in self._port.under_way

    def _sums(self) -> Vector:
        return self._run.sums


class RendezvousSum(Sum):
    """A sum at a rendezvous of all workers."""

    def __init__(
        self, port: CollectivePort, span: Span, algorithm: str, take: Take | None, *, key: int
    ) -> None:
        """Set up; ``key`` marks the reduction, the same on all workers and no other's."""
        super().__init__(port, span, take)
        ranks = len(port.role_map.workers)
        # Few numbers that all ranks need are summed by each of them; else each sums its slice.
        whole = take is None and 4 * span.size <= ONE_SHOT_BYTES
        self._moves = _moved_bytes(algorithm, port.worker, ranks, span.size, whole=whole)
        fold = _nothing if self._mine is None else _fold(algorithm, whole=whole)
        moved = 4 * span.size * (ranks - 1) / ranks
        along = span.start >= port.role_map.n  # control values, summed beside a gradient
        self._rendezvous = port.world.rendezvous.at(key, fold, moved, along=along)
        self._has_result = False
        self._result: Any = None

    def _start(self) -> None:
        port = self._port
        port.bytes_sent += self._moves
        if port.behind:
            port.world.after(port.behind, self._arrive)
        else:
            self._arrive()

    def _arrive(self, _: object = None) -> None:
        self._rendezvous.arrive(self._port.worker, self._mine, self._on_result)

    def _on_result(self, sums: Any) -> None:
        self._port.bytes_received += self._moves
        self._has_result, self._result = True, sums
        self._port.world.wake(self._port.rank)

    def _advance(self) -> bool:
        there, self._has_result = self._has_result, False
        return there

    def _sums(self) -> Vector:
        sums: Vector = self._result
        # All workers share one array, and ``take`` may overwrite its sums.
        return sums if self._take is None else sums.copy()


def _fold(algorithm: str, *, whole: bool) -> Fold:
    """Return the function that sums the workers' numbers.

    Args:
        algorithm: name of an all-reduce.
        whole: whether every rank computes all sums; else each those of its own slice.
    """
    if algorithm in ALGORITHMS:
        return partial(sum_by_schedule, algorithm)
    return _in_worker_order if whole or algorithm == LIBRARY else _by_owners


def _in_worker_order(vectors: Sequence[Vector]) -> Vector:
    """Return ((v0 + v1) + v2) and so on."""
    total = vectors[0].copy()
    for vector in vectors[1:]:
        np.add(total, vector, out=total)
    return total


def _by_owners(vectors: Sequence[Vector]) -> Vector:
    """Return the sum as the ranks of one host compute it, each its own slice.

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


def _moved_bytes(algorithm: str, rank: int, ranks: int, n: int, *, whole: bool) -> int:
    """Return the bytes that a rank sends in a sum of n elements, as counted in a real run."""
    if algorithm in ALGORITHMS:
        steps = ALGORITHMS[algorithm](rank, ranks, n)
        return 4 * sum(s.send.size for s in steps if s.send_to not in (None, rank))
    if algorithm == LIBRARY:
        return 4 * n
    own = n if whole else even_spans(n, ranks)[rank].size
    return 4 * own * (ranks - 1)
