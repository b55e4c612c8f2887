"""Reads a run's ``history/`` folder; refuses one that is damaged, unfinished or foreign."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.files import read_text
from psrt.core.progress import PROGRESS
from psrt.core.units import plural
from psrt.history.events import EVENT, EVENT_BYTES, PARKED, Kind
from psrt.history.folder import ANY_RANK_FILE, EVENTS, FOLDER, HEADER, LAST_EVENTS
from psrt.history.header import Header
from psrt.history.kinds import SERVER_KINDS, WORKER_KINDS
from psrt.history.log import Events, Owner
from psrt.history.stream import blocks_of, events_file, extent_of, said_in

#: Events that are read at once where a run is resumed.
_BLOCK = 1 << 16

#: Kind → whose events those are.
_NOWHERE, _AT_WORKER, _AT_SERVER, _ANYWHERE = range(4)
_PLACES = np.full(256, _NOWHERE, np.uint8)
_PLACES[list(WORKER_KINDS)] = _AT_WORKER
_PLACES[list(SERVER_KINDS)] = _AT_SERVER
_PLACES[Kind.FINAL] = _ANYWHERE


@dataclass(frozen=True, slots=True)
class History:
    """All events of a run, in the order in which they happened at each worker and shard."""

    header: Header
    #: By worker number: its READ, PUSH, STEP, REDUCE, REDUCED, LEAVE events.
    workers: tuple[Events, ...]
    #: By shard: its RECEIVE, SAVE, APPLY, DROP, REPLY, LEFT events.
    shards: tuple[Events, ...]
    #: FINAL events.
    finals: Events

    @property
    def events(self) -> int:
        """The number of events of all files, without END."""
        return sum(map(len, (*self.workers, *self.shards, self.finals)))

    @property
    def has_stops(self) -> bool:
        """Whether workers stopped for checkpoints, and continued with the state at the stop."""
        return any(
            ((it["kind"] == Kind.RECEIVE) & (it["flag"] == PARKED)).any() for it in self.shards
        )


def read_history(run: str | PathLike[str]) -> History:
    """Read the history of a run.

    Args:
        run: the run's folder, as ``--out`` named it, or its ``history/``.

    Raises:
        ConfigError: if there is none, or it is damaged, unfinished, or of another format; or if
            the model was split, so that each cell has a history.
    """
    header, (history, *more) = read_cells(run)
    if header.cells:
        raise ConfigError(f"{run}: of a model that was split into {1 + len(more)} parts")
    return history


def read_cells(run: str | PathLike[str]) -> tuple[Header, list[History]]:
    """Read the histories of the cells of a split model; a single one for any other run.

    Args:
        run: the run's folder, as ``--out`` named it, or its ``history/``.

    Returns:
        The header of the job, and the history of each cell, which is like that of a separate job.
        Behind them that of servers which are in no cell, if there are any, with all events of the
        workers that speak for a copy: those of the first cell.

    Raises:
        ConfigError: if there is none, or it is damaged, unfinished, or of another format.
    """
    folder, header = folder_of(run), read_header(run)
    if header.is_end:
        raise ConfigError(
            f"{folder}: only the end of a history, the last events before an error; psrt trace "
            "draws it, everything else needs a run with --record"
        )
    names = PROGRESS.each(header.files, "reading", "file")
    files = {name: _read_file(folder, name) for name in names}
    if not all(whole for _, whole in files.values()):
        raise ConfigError(_unfinished(folder, list(files.values())))
    found = [
        assemble(part, [files[name][0] for name in part.files], where=str(folder))
        for part in header.parts
    ]
    if len(found) > len(header.cells) > 0:
        found[-1] = replace(found[-1], workers=found[0].workers)
    return header, found


def _unfinished(folder: Path, files: Sequence[tuple[Events, bool]]) -> str:
    """Describe how much of an unfinished run was recorded."""
    times = [float(events["time"][-1]) for events, _ in files if len(events)]
    cut = sum(not whole for _, whole in files)
    there = plural(sum(len(events) for events, _ in files), "event")
    until = f" up to {max(times):.3f} s" if times else ""
    return (
        f"{folder}: unfinished run: {cut} of {plural(len(files), 'file')} without an end; {there}"
        f"{until} were recorded"
    )


def read_header(run: str | PathLike[str]) -> Header:
    """Read the header of a run's history.

    Raises:
        ConfigError: as ``read_history``, except for faults of the events.
    """
    folder = folder_of(run)
    try:
        return Header.from_json(read_text(str(folder / HEADER)))
    except ConfigError as error:
        text = str(error)
        where = "" if text.startswith(str(folder)) else f"{folder / HEADER}: "
        raise ConfigError(where + text) from None


def assemble(header: Header, parts: Sequence[Events], *, where: str = "history") -> History:
    """Sort the events of all files by worker and shard.

    Args:
        header: of the run.
        parts: the events of each file, without END.
        where: names the history in error messages.

    Raises:
        ConfigError: if an event has a kind, worker or shard that the run did not have.
    """
    everything = np.concatenate(parts) if parts else np.zeros(0, EVENT)
    count, shard_count = len(header.workers), len(header.servers)
    # Workers first, then shards, then the rest: one sort, and one copy, for all.
    split = _split(everything, owners(header, everything, where), count + shard_count + 1)
    return History(header, tuple(split[:count]), tuple(split[count:-1]), split[-1])


def owners(header: Header, events: Events, where: str) -> np.ndarray:
    """Return the owner of each event: a worker's number, W plus a shard's, or one for none.

    Args:
        header: of the run, or of the events' cell.
        events: without END.
        where: names the history in error messages.

    Raises:
        ConfigError: if an event has a kind, worker or shard that the run did not have.
    """
    count, shard_count = len(header.workers), len(header.servers)
    place = _PLACES[events["kind"]]
    workers, shards = (events[name].astype(np.int64) for name in ("worker", "shard"))
    of_workers, of_servers = place == _AT_WORKER, place == _AT_SERVER
    strange = place == _NOWHERE
    strange |= of_workers & ((workers < 0) | (workers >= count))
    strange |= of_servers & ((shards < 0) | (shards >= shard_count))
    strange |= of_servers & ((workers < -1) | (workers >= count))
    if strange.any():
        event = events[int(np.flatnonzero(strange)[0])]
        raise ConfigError(
            f"{where}: an event of kind {event['kind']}, worker {event['worker']}, shard "
            f"{event['shard']} in a run of {count} workers and {shard_count} shards"
        )
    return np.select([of_workers, of_servers], [workers, count + shards], count + shard_count)


def _split(events: Events, owner: np.ndarray, count: int) -> list[Events]:
    """Return the events of each owner, in their order."""
    if count <= np.iinfo(np.int16).max:
        owner = owner.astype(np.int16)  # sorted by radix, in a tenth of the time
    order = np.argsort(owner, kind="stable")
    # Moved whole, not field by field.
    moved = events.view(f"V{EVENT_BYTES}")[order].view(EVENT)
    return np.split(moved, np.searchsorted(owner[order], np.arange(1, count)))


def folder_of(run: str | PathLike[str]) -> Path:
    """Return the folder that holds the header.

    Raises:
        ConfigError: if there is none.
    """
    run = Path(run)
    for folder in (run / FOLDER, run, run / LAST_EVENTS):
        if (folder / HEADER).exists():
            return folder
        if (folder / EVENTS).exists() or any(folder.glob(ANY_RANK_FILE)):
            raise ConfigError(f"{folder}: unfinished run: it ended before its header was written")
    if not run.exists():
        raise ConfigError(f"no run at {run}")
    raise ConfigError(f"{run} holds no history; a run keeps one with --record")


def kept_of(path: Path, most: Mapping[Owner, int]) -> Iterator[tuple[Owner, Events]]:
    """Yield the first events of each owner in a file, which may be of an unfinished run.

    Args:
        path: of the file.
        most: by owner, the number of its events.

    Yields:
        Owners and their events, in the order of the file.

    Raises:
        ConfigError: if the file has fewer, or is invalid.
    """
    left = dict(most)
    with events_file(path) as file:
        said_in(path, file)
        while any(left.values()):
            block = np.fromfile(file, EVENT, _BLOCK)
            if not len(block):
                raise ConfigError(f"{path}: {sum(left.values())} events are missing")
            place = _PLACES[block["kind"]]
            for owner, count in left.items():
                is_shard, number = owner
                mine = (place == (_AT_SERVER if is_shard else _AT_WORKER)) & (
                    block["shard" if is_shard else "worker"] == number
                )
                kept = block[mine][:count]
                left[owner] -= len(kept)
                yield owner, kept


def _read_file(folder: Path, name: str) -> tuple[Events, bool]:
    """Return the events of one file, without its END, and whether it is whole."""
    extent = extent_of(folder, name)
    every = blocks_of(extent, max(extent.count, 1))
    return next(every, np.zeros(0, EVENT)), extent.whole
