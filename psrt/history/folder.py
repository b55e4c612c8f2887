"""The layout of a run's ``history/`` folder: its files, and how they are made and cleared."""

from __future__ import annotations

import secrets
from pathlib import Path

from psrt.core.errors import ConfigError
from psrt.history.header import Header

#: Folder of the history within that of a run, and its header.
FOLDER, HEADER = "history", "header.json"
#: The folder of the last events of a run without a history, within that of the run.
LAST_EVENTS = "last-events"
#: The one file of events of a run that is a single process.
EVENTS = "events.npy"
#: Matches those of an MPI job, one for each rank.
ANY_RANK_FILE = "rank-*.npy"
#: Begins the name of an empty file by which ranks on other hosts know the folder.
_MARK = ".seen-"


def rank_file(rank: int) -> str:
    """Return the name of the file that a rank of an MPI job writes.

    >>> rank_file(3)
    'rank-00003.npy'
    """
    return f"rank-{rank:05d}.npy"


def prepare(folder: Path) -> None:
    """Make an empty ``history/``, without what an earlier run left there.

    Args:
        folder: ``history/`` itself.

    Raises:
        ConfigError: if it cannot be made or cleared.
    """
    clear(folder)
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error


def files(folder: Path) -> tuple[Path, ...]:
    """Return the paths of all that psrt may have written into ``history/``."""
    return (folder / HEADER, folder / EVENTS, *folder.glob(ANY_RANK_FILE))


def mark_of(folder: Path) -> Path:
    """Make an empty file in ``history/`` whose name is in no other folder, and return its path.

    Raises:
        ConfigError: if it cannot be made.
    """
    mark = folder / f"{_MARK}{secrets.token_hex(8)}"
    try:
        mark.touch(exist_ok=False)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error
    return mark


def clear(folder: Path) -> None:
    """Delete what psrt writes into ``history/``, and the folder if nothing else is in it.

    Raises:
        ConfigError: if something cannot be deleted.
    """
    if not folder.is_dir():
        return
    try:
        for path in (*files(folder), *folder.glob(f"{_MARK}*")):
            path.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()
    except OSError as error:
        raise ConfigError(f"cannot clear {folder}: {error.strerror}") from error


def write_header(folder: Path, header: Header) -> None:
    """Write ``header.json`` into ``history/``.

    Raises:
        ConfigError: if it cannot be written.
    """
    try:
        (folder / HEADER).unlink(missing_ok=True)
        with open(folder / HEADER, "x", encoding="utf-8") as file:
            file.write(header.to_json())
    except OSError as error:
        raise ConfigError(f"cannot write {folder / HEADER}: {error.strerror}") from error
