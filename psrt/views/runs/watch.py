"""Follows a run by its files until it ends. It polls them: NFS does not notify of changes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from psrt.core.errors import ConfigError, plain
from psrt.report.console import final_table
from psrt.report.files import CONFIG, END, METRICS, PROGRESS, ROSTER, SUMMARY
from psrt.views.runs.folder import RunFolder, as_written, read_run
from psrt.views.runs.state import State, state_of

#: Exit statuses: the run is over, or has ended without its summary.
OVER, GONE = 0, 1
#: Seconds without processes after which a run counts as ended: it may be restarted before that.
_GRACE_S = 10.0
_WATCHED = (CONFIG, METRICS, PROGRESS, ROSTER, SUMMARY, END)


class Display(Protocol):
    """Shows the state of a run."""

    def show(self, state: State, note: str) -> None:
        """Show a state, and what is wrong, if anything."""

    def say(self, text: str) -> None:
        """Print a line that stays, after everything shown."""


@dataclass(slots=True)
class Surroundings:
    """Functions of the machine that a watcher needs; tests replace them."""

    #: Seconds on a monotonic clock; and the time of day, as in files.
    now: Callable[[], float] = time.monotonic
    today: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    #: Name of this machine; and whether a process of it exists.
    host: Callable[[], str] = socket.gethostname
    is_there: Callable[[int], bool] = lambda pid: _is_there(pid)


def watch(
    path: str | Path,
    display: Display,
    *,
    interval_s: float,
    silent_s: float,
    around: Surroundings | None = None,
) -> int:
    """Show the state of a run until it ends.

    Args:
        path: its folder.
        display: shows it.
        interval_s: seconds from one look to the next.
        silent_s: seconds without any change of its files after which that is reported.
        around: the machine.

    Returns:
        ``OVER`` if the run has ended with its summary, ``GONE`` if its processes are gone without
        one.

    Raises:
        ConfigError: if there is no such run.
    """
    around = around or Surroundings()
    run = read_run(path)
    changes = _Changes(Path(path), around)
    gone_since: float | None = None
    while True:
        with as_written(run.path):
            state = state_of(run)
            mode = run.config.scheme if run.config.mode else None
            found = run.summary
            table = None if found is None else final_table(found, run.path, mode=mode)
        if table is not None:
            display.show(state, "")
            display.say(table)
            return OVER
        quiet, now = changes.quiet_s(), around.now()
        if run.end is None and not _is_gone(run, around):
            gone_since = None
        elif gone_since is None:
            gone_since = now
        elif now - gone_since >= _GRACE_S:
            display.show(state, "")
            why = "not finished: its processes are gone, and it has no summary"
            display.say(f"{run.path}: {why if run.end is None else run.end}")
            return GONE
        display.show(state, f"silent for {quiet:.0f} s" if quiet >= silent_s else "")
        around.sleep(interval_s)
        try:
            run = read_run(path)
        except ConfigError:  # replaced at this moment, or an unavailable file system
            if not Path(path).exists():
                raise


class _Changes:
    """When the files of a run were last changed, by this machine's clock."""

    def __init__(self, path: Path, around: Surroundings) -> None:
        self._path, self._around = path, around
        self._seen = self._look()
        # Another machine's clock sets the time of a file, so the first value is a guess.
        newest = max((at for _, at, _ in self._seen), default=0) / 1e9
        self._at = around.now() - max(0.0, around.today() - newest)

    def quiet_s(self) -> float:
        """Return the seconds since the last observed change."""
        found = self._look()
        if found != self._seen:
            self._seen, self._at = found, self._around.now()
        return self._around.now() - self._at

    def _look(self) -> list[tuple[str, int, int]]:
        return list(self._stats())

    def _stats(self) -> Iterator[tuple[str, int, int]]:
        for name in _WATCHED:
            try:
                found = os.stat(self._path / name)
            except OSError:
                continue
            yield name, found.st_mtime_ns, found.st_size


def _is_gone(run: RunFolder, around: Surroundings) -> bool:
    """Return whether all processes that a run had on this machine are gone."""
    here = [row for row in run.roster if row.get("host") == around.host()]
    return bool(here) and not any(around.is_there(int(row.get("pid", 0))) for row in here)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        return True
    return True


class Lines:
    """A line for each change, without a terminal or without the package that draws on it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last = ""

    def show(self, state: State, note: str) -> None:
        """Print the state if it has changed."""
        # A longer silence alone is not a change.
        line = state.line() + ("  silent" if note else "")
        if line != self._last:
            self._last = line
            self._say(f"{state.line()}  {note}".rstrip())

    def say(self, text: str) -> None:
        """Print a text."""
        self._say(text)

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class Panel:
    """A few lines of a terminal that are redrawn by the package ``rich``."""

    def __init__(self, name: str, console: Any = None) -> None:
        from rich.live import Live

        self._name = name
        self._live = Live(console=console, auto_refresh=False)

    def show(self, state: State, note: str) -> None:
        """Draw the state."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=1.0, completed=state.fraction or 0.0, width=40)
        table.add_row(Text(plain(self._name), style="bold"), bar)
        for name, value in state.rows():
            table.add_row(name, Text(plain(value)))
        if note:
            table.add_row("", Text(plain(note), style="bold red"))
        self._live.update(table, refresh=True)

    def say(self, text: str) -> None:
        """Print a text below."""
        from rich.text import Text

        self._live.stop()
        self._live.console.print(Text(plain(text)))

    def __enter__(self) -> Panel:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
