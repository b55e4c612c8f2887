"""What can be explained step by step: every all-reduce and every phase, asked in one way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from psrt.collective import ALGORITHMS, PHASES, Algorithm, Phase, Step
from psrt.collective.task import Task
from psrt.errors import ConfigError

#: Most steps of all ranks together; so many take seconds to tell.
MOST_STEPS = 200_000


@dataclass(frozen=True, slots=True)
class Subject:
    """One all-reduce or one phase."""

    #: A row of either registry.
    row: Algorithm | Phase

    @property
    def name(self) -> str:
        """Its key in the registry."""
        return self.row.name

    @property
    def kind(self) -> str:
        """What it does: ``all-reduce``, or the phase's own name."""
        return "all-reduce" if isinstance(self.row, Algorithm) else self.row.name

    @property
    def summary(self) -> str:
        """One line for people."""
        return self.row.summary

    @property
    def ordered(self) -> bool:
        """Whether its ranks stand in an order that may be chosen."""
        return "order" in inspect.signature(self.row.steps).parameters

    @property
    def rooted(self) -> bool:
        """Whether one of its ranks is the root."""
        return isinstance(self.row, Phase) and self.row.rooted

    @property
    def overlaps(self) -> bool:
        """Whether an executor may combine beside the next step."""
        return isinstance(self.row, Algorithm) and self.row.overlaps

    def plan(
        self, size: int, n: int, *, root: int = 0, order: Sequence[int] | None = None
    ) -> list[list[Step]]:
        """Return the steps of all ranks.

        Args:
            size: ranks.
            n: elements of the vector.
            root: the root where there is one.
            order: the ranks as they stand on the ring, where they do.

        Raises:
            ConfigError: for more steps than can be told.
        """
        steps: Callable[..., Iterator[Step]] = self.row.steps
        if order is not None:
            steps = partial(steps, order=order)
        last = (root,) if self.rooted else ()
        plan: list[list[Step]] = []
        left = MOST_STEPS
        for rank in range(size):
            # Not all of them first: there may be more than fit into memory.
            plan.append(list(islice(steps(rank, size, n, *last), left + 1)))
            left -= len(plan[-1])
            if left < 0:
                raise ConfigError(
                    f"{self.name} of {size} ranks and {n} elements takes more than {MOST_STEPS} "
                    "steps; explain it on fewer ranks or fewer bytes"
                )
        return plan

    def task(self, size: int, n: int, *, root: int = 0) -> Task:
        """Return what the plan must do."""
        if isinstance(self.row, Phase):
            return self.row.task(size, n, root)
        return self.row.task(size, n)


def subjects() -> dict[str, Subject]:
    """Return all of them by name."""
    rows: dict[str, Algorithm | Phase] = {**ALGORITHMS, **PHASES}
    return {name: Subject(row) for name, row in rows.items()}
