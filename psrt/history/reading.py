"""Reads a run's ``history/`` folder: damaged, cut off or foreign, it is refused in one line."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from psrt.errors import ConfigError
from psrt.files import read_text
from psrt.history.events import EVENT, SERVER_KINDS, WORKER_KINDS, Kind
from psrt.history.header import Header

#: Folder of the history within that of a run, and its header.
FOLDER, HEADER = "history", "header.json"

Events = np.ndarray[tuple[int], np.dtype[np.void]]


@dataclass(frozen=True, slots=True)
class History:
    """All events of a run, in the order in which they happened at each worker and shard."""

    header: Header
    #: By worker number: its READ, PUSH, STEP, REDUCE, REDUCED, LEAVE events.
    workers: tuple[Events, ...]
    #: By shard: its TAKE, KEEP, APPLY, DROP, SERVE, LEFT events.
    shards: tuple[Events, ...]
    #: CHECKPOINT events.
    checkpoints: Events

    @property
    def events(self) -> int:
        """How many there are in all, without the ends of files."""
        return sum(map(len, (*self.workers, *self.shards, self.checkpoints)))


def read_history(run: str | PathLike[str]) -> History:
    """Read the history of a run.

    Args:
        run: the run's folder, as ``--out`` named it, or its ``history/``.

    Raises:
        ConfigError: if there is none, or it is damaged, cut off, or of another format.
    """
    folder = _folder_of(Path(run))
    try:
        header = Header.from_json(read_text(str(folder / HEADER)))
    except ConfigError as error:
        text = str(error)
        where = "" if text.startswith(str(folder)) else f"{folder / HEADER}: "
        raise ConfigError(where + text) from None
    parts = [_read_file(folder, name) for name in header.files]
    return assemble(header, parts, where=str(folder))


def assemble(header: Header, parts: Sequence[Events], *, where: str = "history") -> History:
    """Sort the events of all files by worker and shard.

    Args:
        header: of the run.
        parts: the events of each file, without END.
        where: what messages call the history.

    Raises:
        ConfigError: if an event is of no kind, worker or shard that the run had.
    """
    everything = np.concatenate(parts) if parts else np.zeros(0, EVENT)
    kinds, workers, shards = (everything[name] for name in ("kind", "worker", "shard"))
    of_workers = np.isin(kinds, WORKER_KINDS)
    of_servers = np.isin(kinds, SERVER_KINDS)
    of_neither = kinds == Kind.CHECKPOINT
    strange = ~(of_workers | of_servers | of_neither)
    strange |= of_workers & ((workers < 0) | (workers >= len(header.workers)))
    strange |= of_servers & ((shards < 0) | (shards >= len(header.servers)))
    strange |= of_servers & ((workers < -1) | (workers >= len(header.workers)))
    if strange.any():
        event = everything[int(np.flatnonzero(strange)[0])]
        raise ConfigError(
            f"{where}: an event of kind {event['kind']}, worker {event['worker']}, shard "
            f"{event['shard']} in a run of {len(header.workers)} workers and "
            f"{len(header.servers)} shards"
        )
    return History(
        header,
        tuple(_split(everything[of_workers], "worker", len(header.workers))),
        tuple(_split(everything[of_servers], "shard", len(header.servers))),
        everything[of_neither],
    )


def _split(events: Events, name: str, count: int) -> list[Events]:
    """Return the events of each worker or shard, in their order."""
    order = np.argsort(events[name], kind="stable")
    bounds = np.searchsorted(events[name][order], np.arange(1, count))
    return np.split(events[order], bounds) if count else []


def _folder_of(run: Path) -> Path:
    """Return the folder that holds the header."""
    for folder in (run / FOLDER, run):
        if (folder / HEADER).exists():
            return folder
    if not run.exists():
        raise ConfigError(f"no run at {run}")
    raise ConfigError(f"{run} holds no history; a run keeps one with --record")


def _read_file(folder: Path, name: str) -> Events:
    """Return the events of one file, without its END, after checking that it is whole."""
    path = folder / name
    if Path(name).name != name:
        raise ConfigError(f"{folder / HEADER}: names a file outside its folder: {name!r}")
    try:
        loaded: Any = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing") from None
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{path}: damaged: {str(error).splitlines()[0]}") from None
    if not isinstance(loaded, np.ndarray) or loaded.dtype != EVENT or loaded.ndim != 1:
        raise ConfigError(f"{path}: not a file of events")
    if not len(loaded):
        raise ConfigError(f"{path} has no end: the run was cut off before it could finish")
    events, end = loaded[:-1], loaded[-1]
    if end["kind"] != Kind.END or end["clock"] != len(events):
        raise ConfigError(f"{path}: damaged: it does not end as a history does")
    if zlib.crc32(events.tobytes()) != end["version"]:
        raise ConfigError(f"{path}: damaged: its check sum is not that of its events")
    return events
