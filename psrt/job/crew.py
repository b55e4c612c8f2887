"""Maps old workers to new ones, if a run resumes with another number of workers. Pure.

If there is room for all, each keeps its number. Otherwise workers that still train have priority
over those that have done all their steps. A worker that stays keeps its state. One that joins, such
as in place of a dead worker, starts at the slowest worker's step.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Crew(NamedTuple):
    """The present workers, in terms of the former ones.

    >>> crew = Crew.of({0, 2, 3}, before=4, now=2)
    >>> crew.stays, crew.gone, crew.heirs
    ((0, 2), (3, 1), (0, 1))
    >>> Crew.of({0, 1}, before=2, now=3).stays
    (0, 1, None)
    >>> Crew.of({0, 2}, before=3, now=3, absent={1}).stays
    (0, None, 2)
    """

    #: By worker, the former worker whose state it takes; None if it joins.
    stays: tuple[int | None, ...]
    #: The former numbers of those that are gone, and the worker that inherits what each had left.
    gone: tuple[int, ...]
    heirs: tuple[int, ...]

    @classmethod
    def of(
        cls, training: Collection[int], *, before: int, now: int, absent: Collection[int] = ()
    ) -> Crew:
        """Return the crew.

        Args:
            training: the numbers of the workers that had steps left.
            before: the former number of workers.
            now: the present number of workers.
            absent: the numbers of the dead workers, which do not stay.
        """
        order = [worker for worker in range(before) if worker not in absent]
        stays: list[int | None] = [it if it in order else None for it in range(now)]
        if now < before:
            order.sort(key=lambda worker: worker not in training)
            stays = [*order[:now], *[None] * (now - len(order))]
        gone = [*(it for it in order if it not in stays), *sorted(absent)]
        return cls(tuple(stays), tuple(gone), tuple(i % now for i in range(len(gone))))

    @property
    def first(self) -> int:
        """The former number of the first worker that stays; there is one."""
        return next(it for it in self.stays if it is not None)

    def number(self, worker: int) -> int:
        """Return the present number of a former worker, or of its heir."""
        if worker in self.gone:
            return self.heirs[self.gone.index(worker)]
        return self.stays.index(worker)

    def before(self, worker: int) -> tuple[int, ...]:
        """Return the former numbers of the workers that a present one continues or inherits."""
        own = self.stays[worker]
        left = [it for it, heir in zip(self.gone, self.heirs, strict=True) if heir == worker]
        return (*(() if own is None else (own,)), *left)
