"""The registry of all-reduce algorithms: a new one is one file and one row here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from psrt.collective.schedules.binary_blocks import binary_block_steps
from psrt.collective.schedules.butterfly import butterfly_steps
from psrt.collective.schedules.double_tree import double_tree_steps
from psrt.collective.schedules.halving_doubling import halving_doubling_steps
from psrt.collective.schedules.naive import naive_steps, naive_workspace
from psrt.collective.schedules.ring import ring_steps
from psrt.collective.schedules.root import root_steps
from psrt.collective.schedules.segmented_ring import segmented_ring_steps
from psrt.collective.schedules.tree import tree_steps
from psrt.collective.step import Step
from psrt.collective.task import Task


def _no_workspace(size: int, n: int) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An all-reduce: its schedule, and what an executor must know to run it.

    Calling it is calling ``steps``.

    >>> len(list(ALGORITHMS["ring"](0, 4, 100)))
    6
    """

    #: Its key in ``ALGORITHMS``, and how users call it.
    name: str
    #: ``(rank, size, n)`` → what ``rank`` does, in order.
    steps: Callable[[int, int, int], Iterator[Step]]
    #: One line for people.
    summary: str
    #: ``(size, n)`` → elements that must be there behind the vector.
    workspace: Callable[[int, int], int] = _no_workspace
    #: Written so that an executor may fold one step's receipt while the next one's bytes travel.
    overlaps: bool = False

    def __call__(self, rank: int, size: int, n: int) -> Iterator[Step]:
        """Yield what ``rank`` of ``size`` does, in order, to all-reduce ``n`` elements."""
        return self.steps(rank, size, n)

    def plan(self, size: int, n: int) -> list[list[Step]]:
        """Return the steps of all ranks."""
        return [list(self.steps(rank, size, n)) for rank in range(size)]

    def task(self, size: int, n: int) -> Task:
        """Return what the plan must do."""
        return Task.all_reduce(size, n, self.workspace(size, n))


ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "naive",
            naive_steps,
            "all send all to all and fold in rank order; the yardstick",
            workspace=naive_workspace,
        ),
        Algorithm("root", root_steps, "rank 0 takes all, one by one, and sends the sum out"),
        Algorithm("ring", ring_steps, "chunks go around twice; sends the least; long vectors"),
        Algorithm(
            "segmented-ring",
            segmented_ring_steps,
            "a ring in segments, folded while others travel; very long vectors",
            overlaps=True,
        ),
        Algorithm("tree", tree_steps, "binomial reduce and broadcast; short vectors, any p"),
        Algorithm(
            "double-tree",
            double_tree_steps,
            "two binary trees at once, pipelined; long vectors on many ranks",
            overlaps=True,
        ),
        Algorithm("butterfly", butterfly_steps, "recursive doubling; fewest rounds; short vectors"),
        Algorithm(
            "halving-doubling",
            halving_doubling_steps,
            "sends the least in few rounds where p is a power of two; else folds to one first",
        ),
        Algorithm(
            "halving-doubling-blocks",
            binary_block_steps,
            "the same in blocks of powers of two; medium and long vectors, even p",
        ),
    )
}
