"""One rank's part of an all-reduce schedule, run as far as spans have arrived.

Pure: it knows numbers and a link to other ranks, never time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from psrt.collective import ALGORITHMS, Step
from psrt.core.arrays import AnyVector, Vector


class SpanLink(Protocol):
    """The transport of the spans of a rank's steps."""

    def post(self, to: int, key: int, numbers: AnyVector | None, nbytes: int) -> None:
        """Send numbers to rank ``to``, for its run ``key``; they are copied."""

    def take_span(self, source: int, key: int) -> Sequence[AnyVector | None]:
        """Return the next numbers that rank ``source`` posted for ``key``, if they are here."""


class ScheduleRun:
    """One rank's steps of an all-reduce, repeated round after round.

    Arrivals are consumed only in ``advance``, so a role that polls in the middle of its work finds
    what a real one would: steps completed because other ranks were faster.
    """

    def __init__(
        self,
        link: SpanLink,
        algorithm: str,
        n: int,
        *,
        rank: int,
        size: int,
        key: int,
        numerics: bool = True,
        dtype: npt.DTypeLike = np.float32,
        half: int | None = None,
    ) -> None:
        """Compile this rank's steps.

        Args:
            link: carries the spans.
            algorithm: a key of ``ALGORITHMS``.
            n: elements to sum.
            rank: this rank, in [0, ``size``).
            size: the number of ranks, p.
            key: marks this run's spans; the same on all ranks, and unique.
            numerics: whether to compute; if not, only the messages are sent.
            dtype: type of the elements.
            half: 0 for the reduce-scatter to owners alone, 1 for the all-gather; None for both.
        """
        self._link, self._rank, self._key, self._n = link, rank, key, n
        row = ALGORITHMS[algorithm]
        # With thousands of ranks that sum three numbers, most steps are empty.
        steps = row(rank, size, n) if half is None else row.halves(rank, size, n)[half]
        self._steps = [s for s in steps if s.send.size or s.receive.size]
        # The gradient has no space behind a span for the workspace that some schedules need.
        self._values: AnyVector | None = (
            np.empty(n + row.workspace(size, n), dtype) if numerics else None
        )
        self._itemsize = np.dtype(dtype).itemsize
        #: Steps done, and whether the next one has sent its half.
        self._at, self._sent = 0, False

    @property
    def sums(self) -> AnyVector:
        """The sums, once all steps are done; only with numbers."""
        assert self._values is not None, "there are no numbers"
        return self._values[: self._n]

    def begin(self, mine: AnyVector | None) -> bool:
        """Copy this rank's numbers and run the first steps; return whether all are done."""
        if mine is not None:
            np.copyto(self.sums, mine)
        self._at, self._sent = 0, False
        return self.advance()

    def advance(self) -> bool:
        """Run every step whose span has arrived; return whether all are done."""
        while self._at < len(self._steps):
            if not self._do(self._steps[self._at]):
                return False
            self._at, self._sent = self._at + 1, False
        return True

    def _do(self, step: Step) -> bool:
        """Run one step as far as possible; return whether it is done."""
        send_to, send, source, receive, combine = step
        values = self._values
        if step.is_local(self._rank):
            if values is not None:
                _combine(receive.of(values), send.of(values), combine, given_first=False)
            return True
        if send_to is not None and send.size and not self._sent:
            numbers = None if values is None else send.of(values)
            self._link.post(send_to, self._key, numbers, self._itemsize * send.size)
        self._sent = True
        if source is not None and receive.size:
            arrived = self._link.take_span(source, self._key)
            if not arrived:
                return False
            [given] = arrived
            if values is not None and given is not None:
                _combine(receive.of(values), given, combine, given_first=source < self._rank)
        return True


def _combine(mine: AnyVector, given: AnyVector, combine: bool, *, given_first: bool) -> None:
    """Add or copy; the lower rank's operand comes first, as in every all-reduce of psrt."""
    if not combine:
        np.copyto(mine, given)
    elif given_first:
        np.add(given, mine, out=mine)
    else:
        np.add(mine, given, out=mine)


class _InProcessLink:
    """A rank's link where spans take no time."""

    def __init__(self, rank: int, posts: defaultdict[tuple[int, int], deque[Vector]]) -> None:
        self._rank, self._posts = rank, posts

    def post(self, to: int, key: int, numbers: Vector | None, nbytes: int) -> None:
        assert numbers is not None, "only numbers can be summed"
        self._posts[self._rank, to].append(numbers.copy())

    def take_span(self, source: int, key: int) -> Sequence[Vector]:
        waiting = self._posts[source, self._rank]
        return (waiting.popleft(),) if waiting else ()


def sum_by_schedule(algorithm: str, vectors: Sequence[Vector]) -> Vector:
    """Return the sum as a schedule folds it; all ranks would end with the same bits.

    Args:
        algorithm: a key of ``ALGORITHMS``.
        vectors: p × (n,) float32, by rank.
    """
    posts: defaultdict[tuple[int, int], deque[Vector]] = defaultdict(deque)
    size, n = len(vectors), vectors[0].size
    runs = [
        ScheduleRun(_InProcessLink(rank, posts), algorithm, n, rank=rank, size=size, key=0)
        for rank in range(size)
    ]
    left = [run for run, mine in zip(runs, vectors, strict=True) if not run.begin(mine)]
    while left:
        left = [run for run in left if not run.advance()]
    return runs[0].sums
