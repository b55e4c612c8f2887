"""What a rank is doing, as its own watching thread may read it at any time.

Written by the rank's main thread with plain stores, which cost nothing that could be measured; the
watching thread may see them a moment late, and never waits for them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Iterator

from psrt.faults.detector import Busy, Condition, Paused, Waiting


def nothing() -> None:
    """Do nothing."""


def unnoted(text: str, status: int) -> None:
    """Note no end."""


def never() -> float:
    """Return a time before all others: nobody is known to have been busy."""
    return -math.inf


class Vitals:
    """One rank's signs of life."""

    def __init__(self) -> None:
        #: Why the job is over, said already; a wait raises it.
        self.over: BaseException | None = None
        #: Ranks that the others continue without.
        self.gone: frozenset[int] = frozenset()
        #: Those of them whose processes have ended.
        self.dead: frozenset[int] = frozenset()
        #: Whether this process must leave without MPI's own end, which may wait for dead ranks.
        self.leaves = False
        #: Long waits so far; each is something new.
        self.waits = 0
        #: Called by any thread with what the user sees when the job ends, and its exit status.
        #: It outlives the job, whose error ends the process.
        self.note_end: Callable[[str, int], None] = unnoted
        self._last: Hashable = None
        self._since = time.monotonic()
        self.reset("starts")

    def reset(self, doing: str) -> None:
        """Start again, with another job."""
        #: Describes what the rank waits for; None while it does not wait for other ranks.
        self.waiting_for: Callable[[], str] | None = None
        #: What the wait asks until when others were busy, by ``time.monotonic``.
        self.busy_until: Callable[[], float] = never
        #: Whether it does nothing on purpose, as an injected delay does.
        self.paused = False
        #: What it does, in words that follow its name, such as ``sets up``.
        self.doing = doing
        #: Returns how far it is, such as ``clock 412``.
        self.where: Callable[[], str] = lambda: ""
        #: Called by the watching thread when the job is over and the main one may be stuck.
        self.last_words: Callable[[], None] = nothing
        #: Returns something that changes whenever the rank makes progress.
        self.pulse: Callable[[], Hashable] = lambda: self.waits

    @contextlib.contextmanager
    def blocked(self, waiting_for: str) -> Iterator[None]:
        """Declare that the block returns only when other ranks do their part."""
        before, self.waiting_for = self.waiting_for, lambda: waiting_for
        try:
            yield
        finally:
            self.waiting_for = before

    def condition(self, now: float) -> Condition:
        """Return what the rank does; called by the watching thread at regular intervals.

        Args:
            now: by ``time.monotonic``.
        """
        waiting_for, where = self.waiting_for, _text_of(self.where)
        # One thing that takes long is busy for long; several, one after the other, are not.
        pulse = self.paused, waiting_for is not None, self.doing, where, _value_of(self.pulse)
        if pulse != self._last:
            self._last, self._since = pulse, now
        seconds = now - self._since
        if waiting_for is not None:
            return Waiting(seconds, where, _text_of(waiting_for))
        if self.paused:
            return Paused(seconds, where)
        return Busy(seconds, where, self.doing)


#: Those of this process: it has one main thread.
HERE = Vitals()


def _value_of(read: Callable[[], Hashable]) -> Hashable:
    # The main thread may be changing what is read, such as a dict that is iterated over.
    try:
        return read()
    except Exception:
        return None


def _text_of(read: Callable[[], str]) -> str:
    value = _value_of(read)
    return value if isinstance(value, str) else ""
