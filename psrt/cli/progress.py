"""``--quiet`` and ``--verbose``, and the thread that says on stderr how far a command is.

A terminal has one line, which is drawn again and again, and goes at the end; elsewhere each line
stays, at growing intervals. stdout is left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from psrt.core.errors import plain
from psrt.core.progress import PROGRESS, Progress
from psrt.launch import started_rank

#: Back to the first column, and erase from there on.
_CLEAR = "\r\x1b[K"
#: Of a terminal that does not say how wide it is.
_COLUMNS = 80
#: A blocked stderr must not keep a command from ending, in seconds.
_JOIN_S = 1.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags about progress, which every command has that may take long."""
    group = parser.add_argument_group("progress").add_mutually_exclusive_group()
    group.add_argument(
        "--quiet",
        action="store_true",
        help="say nothing on stderr but errors and warnings (default: how far it is, from 2 s on)",
    )
    group.add_argument(
        "--verbose", action="store_true", help="say from the start on how far it is, and more often"
    )


class Shown:
    """Shows on stderr how far this process is, from ``begin`` to the end of the context."""

    def __init__(
        self,
        progress: Progress = PROGRESS,
        *,
        write: Callable[[str], None] | None = None,
        live: bool | None = None,
    ) -> None:
        """Set up.

        Args:
            progress: what is shown.
            write: takes what is to be printed; None writes to stderr.
            live: whether it is a terminal, with one line; None: if stderr is one that can erase.
        """
        self._progress, self._write = progress, write or _write
        self._live = _is_drawn_on() if live is None else live
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        #: Held while something is printed.
        self._lock = threading.Lock()
        self._drawn = False

    def begin(self, given: argparse.Namespace) -> None:
        """Begin, at the first process, unless the flags say ``--quiet``."""
        if getattr(given, "quiet", False) or started_rank() != 0 or self._thread is not None:
            return
        self._progress.begin(live=self._live, verbose=getattr(given, "verbose", False))
        if self._live:
            self._progress.above = self.above
        self._thread = threading.Thread(target=self._run, name="psrt-progress", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def above(self) -> Iterator[None]:
        """Let something else be printed, where the line is now."""
        with self._lock:
            self._clear()
            yield

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it, or the disk is full
            while not self._stop.wait(self._progress.due_s()):
                if not self._progress.due_s():  # still, after what was done in that time
                    self._show(plain(self._progress.line()))

    def _show(self, line: str) -> None:
        with self._lock:
            if self._stop.is_set():
                return
            if self._live:
                self._write(_CLEAR + line[: _columns() - 1])
                self._drawn = True
            else:
                self._write(f"psrt: {line}\n")

    def _clear(self) -> None:
        if self._drawn:
            self._drawn = False
            with contextlib.suppress(OSError, ValueError):
                self._write(_CLEAR)

    def __enter__(self) -> Shown:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._clear()
        self._progress.above = contextlib.nullcontext


@contextlib.contextmanager
def shown(given: argparse.Namespace) -> Iterator[None]:
    """Show how far the block is, as the flags say."""
    with Shown() as it:
        it.begin(given)
        yield


def _is_drawn_on() -> bool:
    """Return whether stderr is a terminal that knows how to erase a line; a dumb one does not."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _columns() -> int:
    """Return the width of the terminal that is drawn on: stdout may be a file, or none.

    A line that is longer than it would go on in the next one, where nothing erases it.
    """
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
    return _COLUMNS


def _write(text: str) -> None:
    """Write to stderr, past its buffer: a thread in it would keep the process from its end."""
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError):  # a test's own
        sys.stderr.write(text)
        return
    os.write(descriptor, text.encode(sys.stderr.encoding, sys.stderr.errors or "strict"))
