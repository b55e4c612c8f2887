"""The events of all ranks of a run in order of time; only a few are in memory at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.progress import PROGRESS
from psrt.history.kinds import KINDS
from psrt.history.log import Events
from psrt.history.reading import folder_of, owners, read_header
from psrt.history.stream import Extent, blocks_of, extent_of
from psrt.views.trace.clocks import HostClocks

#: Events in memory at a time, of all files, and the fewest of one.
_HELD, _FEWEST = 1 << 16, 64
#: No run takes that long, in seconds: nanoseconds are counted in 64 bits.
_LONGEST_S = 1e9
#: Kinds with a bound of rounding errors in the column where others have a duration.
_BOUNDS = [kind for kind, it in KINDS.items() if it.columns() - it.fields.keys() >= {"seconds"}]


class Event(NamedTuple):
    """An event: the columns of ``EVENT``, whose fields ``history.kinds`` names, and its rank."""

    kind: int
    flag: int
    shard: int
    worker: int
    clock: int
    version: int
    progress: float
    #: Seconds since the run began, by the clock of the first host.
    time: float
    tau: int
    samples: int
    rate: float
    gap: float
    weight: float
    seconds: float
    #: Number of the part of the model; 0 without model parallelism.
    cell: int
    rank: int


def times_are_sound(events: Events) -> bool:
    """Return whether all times and durations are possible in a run."""
    spans = events["seconds"][~np.isin(events["kind"], _BOUNDS)]
    return all(
        bool(np.isfinite(it).all() and (np.abs(it) < _LONGEST_S).all())
        for it in (events["time"], spans)
    )


class Source:
    """The events of a run."""

    def __init__(self, run: str | PathLike[str], look: Callable[[Events], None] | None) -> None:
        """Read all files once, and verify their checksums.

        Args:
            run: the run's folder, or its ``history/``.
            look: called with all events, in no order.

        Raises:
            ConfigError: if there is no history, or it is damaged.
        """
        self.header = read_header(run)
        self.folder: Path = folder_of(run)
        self.clocks = HostClocks(self.header)
        #: The job, or the parts of its model, each with its own files.
        self.cells = self.header.parts
        files = [(number, it) for number, cell in enumerate(self.cells) for it in cell.files]
        #: For the last events of a run, the missing files of ranks that could not write.
        self.missing: list[str] = []
        if self.header.is_end:
            self.missing = [it for _, it in files if not (self.folder / it).exists()]
            files = [it for it in files if it[1] not in self.missing]
        self._files = [
            (number, extent_of(self.folder, name, look))
            for number, name in PROGRESS.each(files, "reading", "file")
        ]
        #: Events of all files, and files without an end.
        self.events = sum(it.count for _, it in self._files)
        self.cut = sum(not it.whole for _, it in self._files)

    def __iter__(self) -> Iterator[Event]:
        """Yield all events, sorted as far as those of each file are.

        Raises:
            ConfigError: if an event has a kind, worker or shard that the run did not have.
        """
        each = max(_FEWEST, _HELD // max(1, len(self._files)))
        streams = [self._stream(cell, extent, each) for cell, extent in self._files]
        return heapq.merge(*streams, key=lambda event: event.time)

    def _stream(self, number: int, extent: Extent, events: int) -> Iterator[Event]:
        # Servers that are in no cell know the workers of the first one.
        cell, count = self.cells[number], max(1, len(self.header.cells))
        # Events without a number belong to the first worker.
        ranks = np.array([*cell.workers, *cell.servers, cell.workers[0]])
        servers = np.array(cell.servers, int)
        for block in blocks_of(extent, events):
            rank = ranks[owners(cell, block, str(self.folder))]
            if not times_are_sound(block):
                raise ConfigError(f"{extent.path}: an event has an invalid time or duration")
            final = (block["worker"] < 0) & (block["shard"] >= 0)  # a shard's last event
            if (block["shard"][final] >= len(cell.servers)).any():
                raise ConfigError(f"{extent.path}: the end of a shard that the run did not have")
            rank[final] = servers[block["shard"][final]]
            self._correct(block, rank)
            # ``tolist`` turns a whole block into Python numbers at once.
            yield from (
                Event._make((*event, number % count, at))
                for event, at in zip(block.tolist(), rank.tolist(), strict=True)
            )

    def _correct(self, block: Events, ranks: np.ndarray) -> None:
        """Put the times of a block on the clock of the first host."""
        if self.clocks.clocks < 2:
            return
        hosts = np.array(self.header.hosts)[ranks]
        for host in set(hosts.tolist()):
            block["time"][hosts == host] = self.clocks.corrected(host, block["time"][hosts == host])
