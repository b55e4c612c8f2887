"""The last events of a process, written to a file when its job ends with an error.

A run without ``--record`` keeps them in memory. No messages are needed: each process writes its own
file, and the header if no other process of its host has. So the files of a job on several hosts may
be in one folder per host.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from psrt.config import to_toml
from psrt.core.errors import ConfigError, PsrtError
from psrt.core.files import is_own_folder, read_text
from psrt.core.version import __version__
from psrt.history import EventLog, Header
from psrt.history.folder import HEADER, LAST_EVENTS
from psrt.history.header import OF_CELL
from psrt.history.log import Events
from psrt.history.ring import LAST, EventRing
from psrt.job.cells import Cell
from psrt.job.launcher import Launcher
from psrt.job.setup import Setup
from psrt.report.files import CONFIG

#: The prefix of their temporary folders' names, and the number of folders to keep.
_LEFT, _KEPT = f"psrt-{LAST_EVENTS}-", 8
#: The most seconds for writing: a disk that hangs must not keep a job from ending.
_WRITE_S = 2.0
#: Readings of two clocks side by side.
_READINGS = 5


class LastEvents:
    """The ring of a process's last events, which is written to a file once."""

    def __init__(self, launcher: Launcher, setup: Setup, names: tuple[str, ...]) -> None:
        """Set up.

        Args:
            launcher: of a process that is one rank, in real time.
            setup: of the job.
            names: by rank, the name of the file with its events.
        """
        self._launcher, self._setup, self._names = launcher, setup, names
        most = setup.config.last_events
        (self._rank,) = launcher.here(len(setup.hosts))
        #: The run's folder, absolute, since the user's code may change directory; None if none.
        self._out: Path | None = None
        if setup.config.out is not None:
            with contextlib.suppress(OSError):  # the current folder is gone
                self._out = Path(setup.config.out).absolute()
        #: The events.
        self.ring = EventRing(LAST if most is None else most)
        self._lock, self._pid = threading.Lock(), os.getpid()
        #: Writes them.
        self._thread: threading.Thread | None = None

    def write(self) -> None:
        """Write them and print where, unless there are none; never raises, and never takes long."""
        self.begin()
        if self._thread is not None:
            self._thread.join(_WRITE_S)

    def begin(self) -> None:
        """Start to write them, once; from any thread, since a rank's main thread may be stuck.

        A process forked by the user's code has none of its own.
        """
        if os.getpid() != self._pid:
            return
        with self._lock, contextlib.suppress(RuntimeError):  # raised while the interpreter ends
            if self._thread is None:
                thread = threading.Thread(target=self._write, daemon=True)
                thread.start()
                self._thread = thread

    def _write(self) -> None:
        why: object = "there is no folder for them"
        try:
            events = self.ring.last()
            if not len(events):
                return
            events["time"] += _wall_ahead_s() - self._setup.plan.began
            for folder in self._folders():
                try:
                    self._write_into(folder, events)
                except (OSError, PsrtError) as error:
                    why = getattr(error, "strerror", None) or error
                    continue
                self._say(folder)
                return
        except Exception as error:  # it must not hide the error that ends the job
            why = error
        self._launcher.warn(f"psrt: the last events of rank {self._rank} are lost: {why}")

    def _folders(self) -> list[Path]:
        """Return the folder to use: in the run's, if this process sees it, else a temporary one.

        A folder of the same name on another host does not belong to this run.
        """
        found, config = [], self._setup.config
        if self._out is not None:
            with contextlib.suppress(PsrtError):
                if read_text(str(self._out / CONFIG)) == to_toml(config):
                    found.append(self._out / LAST_EVENTS)
        began = self._setup.plan.began
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(began))
        name = f"{_LEFT}{stamp}-{int(began * 1e6) % 1_000_000:06d}"
        return [*found, Path(tempfile.gettempdir()) / name]

    def _write_into(self, folder: Path, events: Events) -> None:
        folder.mkdir(mode=0o755, exist_ok=True)
        if not is_own_folder(folder):
            raise ConfigError(f"{folder} is not a folder of your own")
        path = folder / self._names[self._rank]
        try:
            with EventLog(path) as log:
                log.keep(events, (False, self._rank))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        part = folder / f".{HEADER}-{self._rank}"
        part.write_text(self._header().to_json(), encoding="utf-8")
        part.replace(folder / HEADER)  # atomic; all processes write the same header

    def _header(self) -> Header:
        """Return the header that a trace needs, without the digests for repeating the run."""
        setup, launcher = self._setup, self._launcher
        role_map, cut, names = setup.role_map, setup.cut, self._names
        return Header(
            config=setup.config.plain(),
            n=role_map.n,
            workers=role_map.workers,
            servers=role_map.servers,
            spans=tuple((span.start, span.stop) for span in role_map.spans if role_map.servers),
            initial_sha256="",
            data_sha256="",
            code_sha256="",
            psrt=__version__,
            numpy=np.__version__,
            files=tuple(dict.fromkeys(names)),
            hosts=setup.hosts,
            numerics=launcher.numerics,
            cells=() if cut is None else tuple(_cell(it, names) for it in cut.cells),
            is_end=True,
        )

    def _say(self, folder: Path) -> None:
        """Print where they are: on the first rank, and on the lowest rank of each other host."""
        hosts, rank = self._setup.hosts, self._rank
        if rank not in (0, hosts.index(hosts[rank])):
            return
        is_in_run = folder.parent == self._out
        if not is_in_run:
            drop_old(folder.parent)
        if is_in_run and rank:
            return
        shown = Path(self._setup.config.out or "") / LAST_EVENTS if is_in_run else folder
        where = f" on {socket.gethostname()}" if len(set(hosts)) > 1 and not is_in_run else ""
        line = f"psrt: last events saved; inspect them with: psrt trace {shown}{where}"
        self._launcher.warn(line)


def drop_old(folder: Path) -> None:
    """Remove this user's older folders of last events, except for the newest."""
    found = sorted(it for it in folder.glob(f"{_LEFT}*") if it.lstat().st_uid == os.geteuid())
    for old in found[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)  # which follows no link


def _cell(cell: Cell, names: tuple[str, ...]) -> dict[str, object]:
    """Return the header fields of a cell of a split model; see ``OF_CELL``."""
    role_map = cell.role_map
    fields: dict[str, object] = dict.fromkeys(OF_CELL)
    return fields | {
        "n": role_map.n,
        "workers": [cell.ranks[rank] for rank in role_map.workers],
        "servers": [cell.ranks[rank] for rank in role_map.servers],
        "spans": [[*span] for span in role_map.spans if role_map.servers],
        "initial_sha256": "",
        "files": [*dict.fromkeys(names[rank] for rank in cell.ranks)],
        "matrices": [],
        "layers": [],
    }


def _wall_ahead_s() -> float:
    """Return the offset of the time of day, which all hosts share, from the ports' clock."""
    readings = []
    for _ in range(_READINGS):
        before, wall, after = time.perf_counter(), time.time(), time.perf_counter()
        readings.append((after - before, wall - (before + after) / 2))
    return min(readings)[1]
