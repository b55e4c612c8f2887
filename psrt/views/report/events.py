"""Figures that only a history has: when workers waited or were stale, how long stages computed.

Events are read in blocks, so that any number fits into memory, even those of a killed run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from psrt.core.errors import ConfigError
from psrt.history import Header, Kind
from psrt.history.log import Events
from psrt.history.stream import Extent, blocks_of, extent_of
from psrt.views.page.thin import Floats

#: Events that are read at once.
_BLOCK = 1 << 16
#: Equal parts of a run, for each of which its events are added up.
_PARTS = 48
#: Higher staleness counts as this.
_MOST_TAU = 4096
#: Events that end a wait of ``seconds``.
_WAITS = (Kind.READ, Kind.REDUCED, Kind.MIXED, Kind.OFFER, Kind.LEAVE)
#: Events whose τ is a staleness: updates of servers, and averages in pairs.
_STALE = (Kind.APPLY, Kind.TAKE)
#: Workers up to which a table of them is kept.
_MOST_WORKERS = 20_000


@dataclass(slots=True)
class EventFigures:
    """The events of a run, added up."""

    #: Number of events, and the times of the first and the last one, in seconds.
    events: int
    began: float
    ended: float
    #: (W, c) seconds waited by each worker in each of c equal parts of the run.
    waited: Floats
    #: (W, c) sums of τ over the gradients of each, and their number.
    tau: Floats
    stale: Floats
    #: By worker: how often its gradients met each τ; those of a killed run, as far as they go.
    histogram: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)
    #: (W,) seconds in which each computed micro-batches; all 0 without model parallelism.
    computed: Floats = field(default_factory=lambda: np.zeros(0))
    #: (W,) seconds from the first of its micro-batches to the last.
    spanned: Floats = field(default_factory=lambda: np.zeros(0))


def read_figures(folder: Path, header: Header) -> EventFigures:
    """Add up the events of a history.

    Args:
        folder: folder of the history.
        header: its header.

    Raises:
        ConfigError: if a file is missing or damaged.
    """
    cells = _cells(header)
    workers = len(header.workers)
    if not 0 < workers <= _MOST_WORKERS:
        raise ConfigError(f"{folder}: {workers:,} workers are too many to draw their events")
    figures = EventFigures(0, math.inf, 0.0, *_nothing(workers))
    figures.computed, figures.spanned = np.zeros(workers), np.zeros(workers)

    def look(block: Events) -> None:
        figures.events += len(block)
        times = block["time"][np.isfinite(block["time"])]
        figures.began = min(figures.began, float(times.min(initial=math.inf)))
        figures.ended = max(figures.ended, float(times.max(initial=0.0)))

    extents = [
        (number, extent_of(folder, name, look))
        for number, names in enumerate(cells)
        for name in names
    ]
    figures.began = min(figures.began, figures.ended)
    shards = [max(1, len(it)) for it in header.pushed_to]
    count = len(shards)
    for number, block in _blocks(extents):
        number %= count  # servers that are in no cell know the workers of the first one
        worker = block["worker"].astype(np.int64) * count + number
        known = (block["worker"] >= 0) & (worker < workers) & np.isfinite(block["time"])
        block, worker = block[known], worker[known]
        _add_waits(figures, block, worker, shards[number])
        _add_staleness(figures, block, worker)
    for number, extent in extents if header.cells else ():
        _add_passes(figures, extent, number % count, count)
    return figures


def _nothing(workers: int) -> tuple[Floats, Floats, Floats]:
    return tuple(np.zeros((workers, _PARTS)) for _ in range(3))  # type: ignore[return-value]


def _length(figures: EventFigures) -> float:
    return figures.ended - figures.began or 1.0


def _cells(header: Header) -> list[tuple[str, ...]]:
    """Return the files of each cell; without model parallelism there is one cell."""
    return [it.files for it in header.parts]


def _blocks(extents: Iterable[tuple[int, Extent]]) -> Iterator[tuple[int, Events]]:
    """Yield blocks of events of all files, each with its cell."""
    for number, extent in extents:
        for block in blocks_of(extent, _BLOCK):
            yield number, block


def _add_waits(
    figures: EventFigures, block: Events, worker: npt.NDArray[np.int64], shards: int
) -> None:
    """Divide the waits among the parts of the run in which they happened.

    A worker waits for several shards at once, so each shard has a share of the wait.
    """
    mine = np.isin(block["kind"], _WAITS) & np.isfinite(block["seconds"])
    end, length = block["time"][mine], block["seconds"][mine].astype(float)
    start, who, count = end - length, worker[mine], len(figures.waited)
    edges = np.linspace(figures.began, figures.began + _length(figures), _PARTS + 1)
    # By edge between parts, the time that each worker had waited until then.
    until = [np.bincount(who, np.clip(edge - start, 0.0, length), count) for edge in edges]
    waited: Floats = np.diff(np.array(until, np.float64), axis=0).T
    figures.waited += waited / shards


def _add_staleness(figures: EventFigures, block: Events, worker: npt.NDArray[np.int64]) -> None:
    mine = np.isin(block["kind"], _STALE)
    # Averages of synchronous rounds have no τ, and events without pushes no worker.
    mine &= (block["kind"] == Kind.APPLY) | (block["tau"] > 0)
    tau, who = np.clip(block["tau"][mine], 0, _MOST_TAU), worker[mine]
    share = (block["time"][mine] - figures.began) / _length(figures)
    part = np.clip((share * _PARTS).astype(np.int64), 0, _PARTS - 1)
    np.add.at(figures.tau, (who, part), tau)
    np.add.at(figures.stale, (who, part), 1)
    for one in np.unique(who):
        counts = np.bincount(tau[who == one])
        held = figures.histogram.get(int(one), np.zeros(0, np.int64))
        longer = np.zeros(max(len(held), len(counts)), np.int64)
        longer[: len(held)] += held
        longer[: len(counts)] += counts
        figures.histogram[int(one)] = longer


def _add_passes(figures: EventFigures, extent: Extent, number: int, cells: int) -> None:
    """Add up how long the workers of a file computed micro-batches.

    An event is written at the end of its pass, and a worker does one thing at a time. So a pass
    lasted from the event before it, which is a pass or the arrival of a message.
    """
    last: dict[int, float] = {}
    first: dict[int, float] = {}
    for block in blocks_of(extent, _BLOCK):
        for worker in np.unique(block["worker"][np.isin(block["kind"], (Kind.PASS, Kind.MESSAGE))]):
            mine = block[block["worker"] == worker]
            who = int(worker) * cells + number
            if not 0 <= who < len(figures.computed):
                continue
            times = mine["time"].astype(float)
            before = np.concatenate(([last.get(who, times[0])], times[:-1]))
            passes = mine["kind"] == Kind.PASS
            took = np.clip((times - before)[passes], 0.0, None)
            figures.computed[who] += float(took.sum())
            last[who] = float(times[-1])
            first.setdefault(who, float(times[0]))
    for who, start in first.items():
        figures.spanned[who] = last[who] - start
