"""The registry of phases: the collectives that an all-reduce is made of, each by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from psrt.collective.schedules.all_gather import all_gather_steps
from psrt.collective.schedules.all_to_all import all_to_all_steps, block_of
from psrt.collective.schedules.broadcast import broadcast_steps
from psrt.collective.schedules.gather import gather_steps
from psrt.collective.schedules.reduce import reduce_steps
from psrt.collective.schedules.reduce_scatter import reduce_scatter_steps
from psrt.collective.schedules.scatter import scatter_steps
from psrt.collective.step import Step
from psrt.collective.task import Owed, Task
from psrt.errors import ConfigError
from psrt.partition import Span, even_spans

#: ``(size, n, root)`` → for each rank, the spans that its own numbers are in at the start.
Has = Callable[[int, int, int], tuple[tuple[Span, ...], ...]]
#: ``(size, n, root)`` → for each rank, what it must end with.
Owes = Callable[[int, int, int], tuple[tuple[Owed, ...], ...]]


@dataclass(frozen=True, slots=True)
class Phase:
    """A collective other than an all-reduce: its schedule, and what it starts from and ends with.

    Calling it yields the steps of one rank, whether it has a root or not.

    >>> [step.receive_from for step in PHASES["reduce"](1, 3, 10, root=1)]
    [2, 0]
    """

    #: Its key in ``PHASES``.
    name: str
    #: ``(rank, size, n)``, and ``root`` behind it if ``rooted`` → what ``rank`` does, in order.
    steps: Callable[..., Iterator[Step]]
    #: Whether one rank, any, is the only source or destination.
    rooted: bool
    #: One line for people.
    summary: str
    #: What every rank starts with.
    starts: Has
    #: What every rank must end with.
    owes: Owes

    def __call__(self, rank: int, size: int, n: int, root: int = 0) -> Iterator[Step]:
        """Yield what ``rank`` of ``size`` does, in order, on ``n`` elements.

        Raises:
            ConfigError: if ``root`` is no rank, or given to a phase that has none.
        """
        self._check(size, root)
        return self.steps(rank, size, n, root) if self.rooted else self.steps(rank, size, n)

    def plan(self, size: int, n: int, root: int = 0) -> list[list[Step]]:
        """Return the steps of all ranks."""
        return [list(self(rank, size, n, root)) for rank in range(size)]

    def task(self, size: int, n: int, root: int = 0) -> Task:
        """Return what the plan must do."""
        self._check(size, root)
        return Task(n, 0, self.starts(size, n, root), self.owes(size, n, root))

    def has(self, rank: int, size: int, n: int, root: int = 0) -> tuple[Span, ...]:
        """Return the spans that the numbers of ``rank`` are in at the start."""
        self._check(size, root)
        return self.starts(size, n, root)[rank]

    def _check(self, size: int, root: int) -> None:
        if root and not self.rooted:
            raise ConfigError(f"{self.name} has no root, got rank {root}")
        if not 0 <= root < size:
            raise ConfigError(f"root {root} of {self.name} is none of {size} ranks")


def _whole(size: int, n: int, root: int) -> tuple[tuple[Span, ...], ...]:
    return ((Span(0, n),),) * size


def _whole_at_root(size: int, n: int, root: int) -> tuple[tuple[Span, ...], ...]:
    return tuple((Span(0, n),) if rank == root else () for rank in range(size))


def _own_chunk(size: int, n: int, root: int) -> tuple[tuple[Span, ...], ...]:
    return tuple((chunk,) for chunk in even_spans(n, size))


def _fold_of_own_chunk(size: int, n: int, root: int) -> tuple[tuple[Owed, ...], ...]:
    return tuple((Owed(chunk, None),) for chunk in even_spans(n, size))


def _chunk_of_each(size: int, n: int, root: int) -> tuple[tuple[Owed, ...], ...]:
    return (tuple(Owed(chunk, i) for i, chunk in enumerate(even_spans(n, size))),) * size


def _chunk_of_each_at_root(size: int, n: int, root: int) -> tuple[tuple[Owed, ...], ...]:
    everything = _chunk_of_each(size, n, root)[0]
    return tuple(everything if rank == root else () for rank in range(size))


def _vector_of_root(size: int, n: int, root: int) -> tuple[tuple[Owed, ...], ...]:
    return ((Owed(Span(0, n), root),),) * size


def _fold_at_root(size: int, n: int, root: int) -> tuple[tuple[Owed, ...], ...]:
    return tuple((Owed(Span(0, n), None),) if rank == root else () for rank in range(size))


def _chunk_of_root(size: int, n: int, root: int) -> tuple[tuple[Owed, ...], ...]:
    return tuple((Owed(chunk, root),) for chunk in even_spans(n, size))


def _own_column(size: int, n: int, root: int) -> tuple[tuple[Owed, ...], ...]:
    ranks = range(size)
    return tuple(tuple(Owed(block_of(n, size, i, rank), i) for i in ranks) for rank in ranks)


#: By name; a new phase is one file and one row here.
PHASES: dict[str, Phase] = {
    phase.name: phase
    for phase in (
        Phase(
            "reduce-scatter",
            reduce_scatter_steps,
            rooted=False,
            summary="rank r ends with the fold of chunk r; around a ring",
            starts=_whole,
            owes=_fold_of_own_chunk,
        ),
        Phase(
            "all-gather",
            all_gather_steps,
            rooted=False,
            summary="rank r starts with chunk r, all end with all; around a ring",
            starts=_own_chunk,
            owes=_chunk_of_each,
        ),
        Phase(
            "broadcast",
            broadcast_steps,
            rooted=True,
            summary="all end with the root's vector; down a binomial tree",
            starts=_whole_at_root,
            owes=_vector_of_root,
        ),
        Phase(
            "reduce",
            reduce_steps,
            rooted=True,
            summary="the root ends with the fold; up a binomial tree",
            starts=_whole,
            owes=_fold_at_root,
        ),
        Phase(
            "scatter",
            scatter_steps,
            rooted=True,
            summary="rank r ends with chunk r of the root's vector; down a binomial tree",
            starts=_whole_at_root,
            owes=_chunk_of_root,
        ),
        Phase(
            "gather",
            gather_steps,
            rooted=True,
            summary="the root ends with chunk r of each rank r; up a binomial tree",
            starts=_own_chunk,
            owes=_chunk_of_each_at_root,
        ),
        Phase(
            "all-to-all",
            all_to_all_steps,
            rooted=False,
            summary="rank r starts with row r and ends with column r; pairwise exchange",
            starts=_own_chunk,
            owes=_own_column,
        ),
    )
}
