"""``--quiet`` and ``--verbose``, and the thread that shows on stderr how far a command is.

On a terminal one line is drawn again and again, and removed at the end; elsewhere lines are printed
at growing intervals. Nothing is written to stdout.
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
#: Width of a terminal that does not report it.
_COLUMNS = 80
#: Seconds after which a blocked stderr no longer keeps a command from ending.
_JOIN_S = 1.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags about progress, for every command that may take long."""
    group = parser.add_argument_group("progress").add_mutually_exclusive_group()
    group.add_argument(
        "--quiet",
        action="store_true",
        help="print only errors and warnings on stderr (default: also progress, after 2 s)",
    )
    group.add_argument(
        "--verbose", action="store_true", help="print progress from the start, and more often"
    )


class Shown:
    """Shows the progress of this process on stderr, from ``begin`` to the end of the context."""

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
            write: takes the output; None writes to stderr.
            live: whether it is a terminal with one line; None: if stderr is one that can erase.
        """
        self._progress, self._write = progress, write or _write
        self._live = _is_drawn_on() if live is None else live
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        #: Held while printing.
        self._lock = threading.Lock()
        self._drawn = False

    def begin(self, given: argparse.Namespace) -> None:
        """Begin, on the first process only, unless ``--quiet`` is given."""
        if getattr(given, "quiet", False) or started_rank() != 0 or self._thread is not None:
            return
        self._progress.begin(live=self._live, verbose=getattr(given, "verbose", False))
        if self._live:
            self._progress.above = self.above
        self._thread = threading.Thread(target=self._run, name="psrt-progress", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def above(self) -> Iterator[None]:
        """Make room for other output in place of the line."""
        with self._lock:
            self._clear()
            yield

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed pipe, or a full disk
            while not self._stop.wait(self._progress.due_s()):
                if not self._progress.due_s():  # still due after the wait
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
    """Show the progress of the block, as the flags ask for."""
    with Shown() as it:
        it.begin(given)
        yield


def _is_drawn_on() -> bool:
    """Return whether stderr is a terminal that knows how to erase a line; a dumb one does not."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _columns() -> int:
    """Return the width of stderr's terminal; stdout may be a file, or closed.

    A longer line would wrap, and nothing would erase its second row.
    """
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
    return _COLUMNS


def _write(text: str) -> None:
    """Write to stderr without its buffer: a thread in it would keep the process from ending."""
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError):  # a test's own
        sys.stderr.write(text)
        return
    os.write(descriptor, text.encode(sys.stderr.encoding, sys.stderr.errors or "strict"))
