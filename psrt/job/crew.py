"""Who goes on in whose place, where a run goes on with another number of workers. Pure.

Where there is room for all, each keeps its number. Else workers that have done all their steps come
last: whoever still trains stays, as far as there is room. A worker that stays has what it had. One
that joins, such as for one that had died, begins at the place of the slowest.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Crew(NamedTuple):
    """The workers that there are now, of those that there were.

    >>> crew = Crew.of({0, 2, 3}, before=4, now=2)
    >>> crew.stays, crew.gone, crew.heirs
    ((0, 2), (3, 1), (0, 1))
    >>> Crew.of({0, 1}, before=2, now=3).stays
    (0, 1, None)
    >>> Crew.of({0, 2}, before=3, now=3, absent={1}).stays
    (0, None, 2)
    """

    #: By worker, whose place it takes; None joins.
    stays: tuple[int | None, ...]
    #: The numbers, then, of those that are gone, and who takes over what each had left.
    gone: tuple[int, ...]
    heirs: tuple[int, ...]

    @classmethod
    def of(
        cls, training: Collection[int], *, before: int, now: int, absent: Collection[int] = ()
    ) -> Crew:
        """Return who goes on.

        Args:
            training: the numbers of those that had steps left.
            before: workers that there were.
            now: workers that there are.
            absent: the numbers of those that had died, who do not stay.
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
        """The number, then, of the first one that stays; there is one."""
        return next(it for it in self.stays if it is not None)

    def number(self, worker: int) -> int:
        """Return the number, now, of a worker, or of who took over what it had left."""
        if worker in self.gone:
            return self.heirs[self.gone.index(worker)]
        return self.stays.index(worker)

    def before(self, worker: int) -> tuple[int, ...]:
        """Return the numbers, then, of those whose place and remains a worker has."""
        own = self.stays[worker]
        left = [it for it, heir in zip(self.gone, self.heirs, strict=True) if heir == worker]
        return (*(() if own is None else (own,)), *left)
