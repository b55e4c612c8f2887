"""How far a command is: the lines for a user who waits, and when they are due.

Pure: it reads a given clock, and prints nothing. Code that works declares what it does, in nested
parts, to ``PROGRESS``: plain stores. Code that prints, if any, reads them from its own thread and
asks how far each part is. So working code neither counts time nor waits.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

#: Seconds before the first line of a command.
SILENT_S = 2.0
#: Seconds from one line to the next: on a terminal, with ``--verbose``, and at most.
_LIVE_S, _VERBOSE_S, _MOST_S = 0.25, 1.0, 600.0
#: When the first lines are printed if each stays, in seconds; after the last one the time doubles.
_FIRST_S = (SILENT_S, 5.0, 10.0)

T = TypeVar("T")


class Amount(NamedTuple):
    """How much of something is done."""

    done: float
    #: None if it is not known.
    total: float | None
    #: What is counted, in the singular.
    noun: str
    #: What else is worth knowing, and what only ``--verbose`` shows.
    note: str = ""
    detail: str = ""


def amount_text(done: float, total: float | None) -> str:
    """Format how much is done of how much.

    >>> amount_text(12, None), amount_text(135, 4500000), amount_text(2.26, 10.0)
    ('12', '135 of 4500000 (0 %)', '2.3 of 10 (22 %)')
    """
    shown = f"{done:.1f}" if isinstance(done, float) else f"{done}"
    if not total:
        return shown
    whole = f"{total:g}" if isinstance(total, float) else f"{total}"
    return f"{shown} of {whole} ({math.floor(100 * min(1.0, done / total))} %)"


def seconds_left(done: float, total: float | None, seconds: float) -> float | None:
    """Return how long the rest will take, if ``done`` of ``total`` took ``seconds``.

    >>> seconds_left(1, 4, 10.0), seconds_left(4, 4, 10.0), seconds_left(0, 4, 10.0)
    (30.0, 0.0, None)
    """
    return seconds * max(0.0, total - done) / done if total and done > 0 else None


def hours(seconds: float) -> str:
    """Format a time as hours, minutes and seconds.

    >>> hours(7.4), hours(125), hours(3725)
    ('0:07', '2:05', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    whole, minutes = divmod(minutes, 60)
    return f"{whole}:{minutes:02d}:{rest:02d}" if whole else f"{minutes}:{rest:02d}"


class _Part(NamedTuple):
    """Something that a command does, possibly as a part of something else."""

    what: str
    look: Callable[[], Amount | None]
    #: When it began, and how much was done by then.
    began: float
    before: float


class Progress:
    """What a command is doing, and the next line about it."""

    def __init__(self, now: Callable[[], float], *, live: bool = False, verbose: bool = False):
        """Begin.

        Args:
            now: returns the time in seconds.
            live: whether a line replaces the one before.
            verbose: whether to begin at once and to show more.
        """
        self._now = now
        #: Parts in progress, the outermost first; replaced, never changed: another thread reads it.
        self._parts: tuple[_Part, ...] = ()
        #: Makes room on a terminal for other output.
        self.above: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        #: What to show between parts, and since when, if a part is done already.
        self._otherwise, self._idle_since = "starting", -math.inf
        self.begin(live=live, verbose=verbose)

    def begin(self, *, live: bool = False, verbose: bool = False) -> None:
        """Begin again, see above."""
        self._live, self._verbose = live, verbose
        self._began = self._now()
        self._due = 0.0 if verbose else SILENT_S

    @contextlib.contextmanager
    def doing(self, what: str, look: Callable[[], Amount | None] = lambda: None) -> Iterator[None]:
        """Declare what the block does.

        Args:
            what: in words that begin with a verb, such as ``checking``.
            look: returns how far it is; called by another thread.
        """
        found = _look(look)
        part = _Part(what, look, self._now(), found.done if found else 0.0)
        self._parts, self._otherwise = (*self._parts, part), "finishing"
        try:
            yield
        finally:
            # Do not restore the old tuple: a loop that an error has left may be closed much later.
            self._parts = tuple(it for it in self._parts if it is not part)
            self._idle_since = self._now()

    def each(self, items: Sequence[T], what: str, noun: str) -> Iterator[T]:
        """Yield items, and count those that are done.

        Args:
            items: to work through, one after the other.
            what: as in ``doing``.
            noun: of an item.
        """
        done = 0
        with self.doing(what, lambda: Amount(done, len(items), noun)):
            for item in items:
                yield item
                done += 1

    def due_s(self) -> float:
        """Return the seconds until the next line is due, at least 0.

        After each part none is due for a while: the next part, or the end, usually follows.
        """
        due = self._began + self._due
        if not self._parts:
            due = max(due, self._idle_since + SILENT_S)
        return max(0.0, due - self._now())

    def line(self) -> str:
        """Return the current line, and schedule the next one."""
        seconds = self._now() - self._began
        self._due = self._next(seconds)
        parts = self._parts
        found = [amount for it in parts if (amount := _look(it.look)) is not None]
        text = parts[0].what if parts else self._otherwise
        if found:
            counts = (f"{it.noun} {amount_text(it.done, it.total)}" for it in found)
            text += f": {', '.join(counts)}"
        shown = [text, *(it.note for it in found if it.note)]
        shown += [it.detail for it in found if it.detail and self._verbose]
        shown += self._pace(parts, found)
        return "  ".join([*shown, f"time {hours(seconds)}", *self._left(parts, found)])

    def _next(self, seconds: float) -> float:
        """Return when the line after one at ``seconds`` is due, on the same clock.

        >>> progress = Progress(lambda: 0.0)
        >>> [progress._next(seconds) for seconds in (0.5, 2.0, 5.1, 10.0, 40.0, 3600.0)]
        [2.0, 5.0, 10.0, 20.0, 80.0, 4200.0]
        """
        if self._live or self._verbose:
            return seconds + (_LIVE_S if self._live else _VERBOSE_S)
        for at in _FIRST_S:
            if seconds < at:
                return at
        return seconds + min(seconds, _MOST_S)

    def _pace(self, parts: Sequence[_Part], found: Sequence[Amount]) -> list[str]:
        """Return how many whole things are done per second, if they are whole."""
        if not found or not isinstance(found[0].done, int):
            return []
        seconds, done = self._now() - parts[0].began, found[0].done - parts[0].before
        return [f"{done / seconds:.3g} {found[0].noun}s/s"] if done > 0 and seconds > 0 else []

    def _left(self, parts: Sequence[_Part], found: Sequence[Amount]) -> list[str]:
        """Return how long the rest will take at the speed so far."""
        if not found or not found[0].total:
            return []
        done, share = 0.0, 1.0
        for amount in found:
            if not amount.total:
                break
            done += share * min(1.0, amount.done / amount.total)
            share /= amount.total  # the inner part counts within one item of this one
        before = parts[0].before / found[0].total
        left = seconds_left(done - before, 1.0 - before, self._now() - parts[0].began)
        return [] if left is None else [f"left {hours(left)}"]


def _look(look: Callable[[], Amount | None]) -> Amount | None:
    # The main thread may be changing what is read, such as a dict that is iterated over.
    try:
        return look()
    except Exception:
        return None


#: That of this process: it has one main thread.
PROGRESS = Progress(time.monotonic)
