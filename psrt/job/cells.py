"""Which ranks hold which part of a split model. Pure.

A worker has a place on three axes: its copy of the model, its stage and its slice. The workers with
the same stage and slice, one of each copy, are a *cell*: they train the same part of the
parameters, like a separate job whose gradient is computed together with the other cells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psrt.config.axes import Axes
from psrt.core.partition import Part
from psrt.transport.port import RoleMap


class Place(NamedTuple):
    """Where a worker is on the three axes."""

    #: Copy of the model, from 0.
    replica: int
    #: Stage, from 0.
    stage: int
    #: Slice, from 0.
    slice: int

    def words(self, axes: Axes) -> str:
        """Return it in words, without axes of size 1.

        >>> Place(1, 0, 0).words(Axes(2, 3, 1))
        'stage 0 of copy 1'
        """
        found = f"stage {self.stage}"
        found += f", slice {self.slice}" if axes.tensor > 1 else ""
        return found + (f" of copy {self.replica}" if axes.data > 1 else "")


@dataclass(frozen=True, slots=True)
class Cell:
    """The ranks that train one part of the parameters."""

    #: Its stage and slice.
    stage: int
    slice: int
    #: Its ranks in the job, by rank in the cell: servers and workers, ascending.
    ranks: tuple[int, ...]
    #: The roles of its ranks, as numbered in the cell.
    role_map: RoleMap
    #: Its part of the model's parameters.
    part: Part

    @property
    def first_worker(self) -> int:
        """The rank in the job of its worker of the first copy."""
        return self.ranks[self.role_map.workers[0]]


def in_order(workers: Sequence[int], hosts: Sequence[int], axes: Axes) -> tuple[int, ...]:
    """Return the ranks of the workers in the order of their places, slices changing fastest.

    Copies that fit into a host are placed there as a whole. Of the rest, slices share a host as far
    as hosts have enough ranks, since they exchange the most; then the stages of a copy.

    Args:
        workers: their ranks.
        hosts: of each rank of the job.
        axes: their sizes; the product is the number of workers.

    >>> in_order(range(6), [0, 0, 0, 1, 1, 1], Axes(1, 3, 2))
    (0, 1, 3, 4, 2, 5)
    """
    by_host: defaultdict[int, list[int]] = defaultdict(list)
    for rank in sorted(workers):
        by_host[hosts[rank]].append(rank)
    copies: list[int] = []
    stages: list[int] = []
    left: list[int] = []
    for ranks in by_host.values():
        of_copies = len(ranks) - len(ranks) % axes.cells
        of_stages = len(ranks) - len(ranks) % axes.tensor
        copies += ranks[:of_copies]
        stages += ranks[of_copies:of_stages]
        left += ranks[of_stages:]
    return (*copies, *stages, *left)


def place_of(worker: int, axes: Axes) -> Place:
    """Return the place of a worker, by its number.

    >>> place_of(5, Axes(2, 2, 2))
    Place(replica=1, stage=0, slice=1)
    """
    rest, slice_ = divmod(worker, axes.tensor)
    replica, stage = divmod(rest, axes.pipeline)
    return Place(replica, stage, slice_)


def number_of(place: Place, axes: Axes) -> int:
    """Return the number of the worker at a place."""
    return (place.replica * axes.pipeline + place.stage) * axes.tensor + place.slice


def ranks_of_cell(
    stage: int, slice_: int, axes: Axes, workers: Sequence[int], servers: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks of the servers and of the workers of a cell, in the job.

    Args:
        stage: of the cell.
        slice_: of the cell.
        axes: their sizes.
        workers: ranks of the job's workers, by number.
        servers: ranks of its servers; all cells have equally many.
    """
    own = tuple(
        workers[number_of(Place(replica, stage, slice_), axes)] for replica in range(axes.data)
    )
    return tuple(servers[stage * axes.tensor + slice_ :: axes.cells]), own


#: The most copies of a model whose layout is printed.
_SHOWN = 8


def layout_lines(axes: Axes, workers: Sequence[int], hosts: Sequence[int]) -> list[str]:
    """Return the ranks of each copy's stages, one line per copy.

    Args:
        axes: their sizes.
        workers: their ranks, by number.
        hosts: of each rank of the job.

    >>> layout_lines(Axes(1, 2, 2), (0, 1, 2, 3), [0, 0, 2, 2])
    ['copy 0: stage 0 on ranks 0, 1 (host 0), stage 1 on ranks 2, 3 (host 1)']
    """
    numbers = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    lines = []
    for replica in range(min(axes.data, _SHOWN)):
        stages = []
        for stage in range(axes.pipeline):
            first = number_of(Place(replica, stage, 0), axes)
            ranks = workers[first : first + axes.tensor]
            text = f"stage {stage} on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
            if len(numbers) > 1:
                there = sorted({numbers[hosts[rank]] for rank in ranks})
                text += f" (host {', '.join(map(str, there))})"
            stages.append(text)
        lines.append(f"copy {replica}: {', '.join(stages)}")
    if axes.data > _SHOWN:
        lines.append(f"and so on, to copy {axes.data - 1}")
    return lines
