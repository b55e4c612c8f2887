"""The sum of p vectors in the order, and so to the bit, in which real ranks would fold them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from psrt.partition import Span, even_spans
from psrt.simulation.schedule_run import Rehearsal
from psrt.transport.port import Vector


def in_worker_order(vectors: Sequence[Vector]) -> Vector:
    """Return ((v0 + v1) + v2) and so on."""
    total = vectors[0].copy()
    for vector in vectors[1:]:
        np.add(total, vector, out=total)
    return total


def by_owners(vectors: Sequence[Vector]) -> Vector:
    """Return the sum as the ranks of one host fold it, each its own slice.

    A rank folds in place: its own numbers come first, then the others' in their order.
    """
    total = np.empty_like(vectors[0])
    for owner, own in enumerate(even_spans(total.size, len(vectors))):
        out = own.of(total)
        np.copyto(out, own.of(vectors[owner]))
        for rank, vector in enumerate(vectors):
            if rank != owner:
                np.add(out, own.of(vector), out=out)
    return total


class BySchedule:
    """The sum as a schedule of messages folds it; all ranks would end with the same bits."""

    def __init__(self, algorithm: str) -> None:
        """Compile nothing yet: how many vectors there are is known when they come.

        Args:
            algorithm: a key of ``ALGORITHMS``.
        """
        self._algorithm = algorithm

    def __call__(self, vectors: Sequence[Vector]) -> Vector:
        """Carry out the steps of all ranks in turn."""
        posts: dict[tuple[int, int], deque[Vector | None]] = {}
        span, size = Span(0, vectors[0].size), len(vectors)
        ranks = [
            Rehearsal(_Desk(rank, posts), mine, span, self._algorithm, None,
                      rank=rank, size=size, key=0)
            for rank, mine in enumerate(vectors)
        ]  # fmt: skip
        for rank in ranks:
            rank.begin()
        left = ranks
        while left:
            left = [rank for rank in left if not rank.advance()]
        return ranks[0].sums


class _Desk:
    """One rank's port where messages take no time."""

    computing = False

    def __init__(self, rank: int, posts: dict[tuple[int, int], deque[Vector | None]]) -> None:
        self._rank, self._posts = rank, posts

    def post(self, to: int, key: int, numbers: Vector | None, nbytes: int) -> None:
        copy = None if numbers is None else numbers.copy()
        self._posts.setdefault((self._rank, to), deque()).append(copy)

    def parcel(self, source: int, key: int) -> Sequence[Vector | None]:
        waiting = self._posts.get((source, self._rank))
        return (waiting.popleft(),) if waiting else ()

    async def arrival(self) -> None:
        raise AssertionError("whoever does not find a message goes on with the next rank")

    def soon(self, action: Callable[[], object]) -> None:
        action()
