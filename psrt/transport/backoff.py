"""How a rank waits: fast when traffic is dense, without burning a core when it is not.

MPI's blocking calls spin, and a rank that spins takes its core from a worker that shares it. So
every wait of psrt is a loop of fruitless polls around ``Backoff.pause``: first spin, then yield
the core, then sleep until a peer rings; and at the deadline give up and say who was waited for.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Protocol

from psrt.errors import TransportError

#: Polls before the first yield, when there is a core for every rank: some 15 µs. No more, since
#: the kernel may have put two of them on one core all the same, and then each waits for the other
#: to get tired of spinning.
SPINS = 60
#: Yields before the first sleep, with a core for every rank: with the spins some 200 µs. Longer
#: than it takes to wake a sleeper, or two ranks that answer each other would take turns in falling
#: asleep.
YIELDS_WITH_A_CORE = 400
#: Yields before the first sleep, without. A yield that takes so many seconds gave the core to a
#: rank that computes, which would not give it back in time; the next so many waits do without.
YIELDS = 50
BUSY_S = 200e-6
WAITS_WITHOUT_YIELDS = 50
#: A sleep is this share of the time waited so far, so waiting costs at most so much latency.
SHARE = 1 / 16
#: Bounds of a sleep that nothing but time ends, in seconds. The kernel adds some 50 µs.
SHORTEST_S, LONGEST_S = 20e-6, 250e-6
#: After a second of silence nobody is in a hurry.
IDLE_AFTER_S, IDLE_S = 1.0, 2e-3
#: Bounds of a sleep that a bell ends.
BELL_SHORTEST_S, BELL_LONGEST_S = 1e-3, 20e-3


class Sleeper(Protocol):
    """What can be woken: see ``psrt.mpi.links.wakeup``."""

    def raise_flag(self) -> None:
        """Say that this rank is about to sleep."""

    def lower_flag(self) -> None:
        """Say that this rank is awake."""

    def sleep(self, seconds: float) -> bool:
        """Sleep so long at the most; tell whether something ended it before."""


class Backoff:
    """The state of one wait. One object serves all waits of a rank, one after another."""

    def __init__(
        self,
        *,
        oversubscribed: bool,
        timeout_s: float,
        wakeup: Sleeper | None = None,
        busy_s: float = BUSY_S,
        yields: int = YIELDS,
        while_idle: Callable[[], None] = lambda: None,
        busy_until: Callable[[], float] = lambda: -math.inf,
        knob: str = "timeout_s",
    ) -> None:
        """Set up.

        Args:
            oversubscribed: whether the host has more ranks than cores; then nobody spins.
            timeout_s: the deadline of a wait.
            wakeup: ends a sleep when there is something to see; None: only time does.
            busy_s: a yield that takes so long is not worth repeating: see ``BUSY_S``.
            yields: before the first sleep, with more ranks than cores.
            while_idle: called now and then during a long wait.
            busy_until: asked at the deadline until when, by ``time.monotonic``, somebody was known
                to be busy and not late; the deadline is ``timeout_s`` after that.
            knob: where the user sets the deadline, for the error.
        """
        self._spins = 0 if oversubscribed else SPINS
        self._yields = yields if oversubscribed else YIELDS_WITH_A_CORE
        self._timeout_s = timeout_s
        self._busy_s = busy_s
        self._wakeup = wakeup
        self._while_idle = while_idle
        self._busy_until = busy_until
        self._knob = knob
        #: Whether some of what is waited for rings no bell.
        self.must_poll = wakeup is None
        self._polls = 0
        self._since = 0.0
        self._flag_is_up = False
        #: Polls before the first sleep, of this wait.
        self._awake = self._spins + self._yields
        #: Waits that are to do without yields.
        self._hasty = 0

    def begin(self) -> None:
        """Start a wait."""
        self._polls = 0
        if self._hasty:
            self._hasty -= 1
            self._awake = self._spins + self._yields * (not self._hasty)

    def end(self) -> None:
        """End a wait that came to something."""
        if self._flag_is_up and self._wakeup is not None:
            self._wakeup.lower_flag()
            self._flag_is_up = False

    def pause(self, waiting_for: Callable[[], str]) -> None:
        """Let some time pass after a fruitless poll.

        Args:
            waiting_for: says who is waited for, and for what; called at the deadline only.

        Raises:
            TransportError: at the deadline.
        """
        now = self._poll(waiting_for)
        if now is None:
            return
        if self._polls <= self._awake:
            os.sched_yield()
            if time.monotonic() - now > self._busy_s:
                self._awake, self._hasty = 0, WAITS_WITHOUT_YIELDS
            return
        if self._wakeup is not None and not self._flag_is_up:
            self._wakeup.raise_flag()
            self._flag_is_up = True
            return  # for one more look, now that whoever comes will ring
        self._while_idle()
        self._sleep(now - self._since)

    def wait(self, done: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
        """Wait until ``done()``.

        Raises:
            TransportError: at the deadline.
        """
        self.begin()
        while not done():
            self.pause(waiting_for)
        self.end()

    def spin(self, waiting_for: Callable[[], str]) -> None:
        """Let as little time pass as can be, for what moves on only while it is polled.

        Raises:
            TransportError: at the deadline.
        """
        if self._poll(waiting_for) is not None:
            self._while_idle()
            os.sched_yield()

    def _poll(self, waiting_for: Callable[[], str]) -> float | None:
        """Count a fruitless poll; return the time when it is late enough not to spin any more."""
        self._polls += 1
        if self._polls <= self._spins:
            return None
        now = time.monotonic()
        if self._polls == self._spins + 1:
            self._since = now
        if now - self._since > self._timeout_s:
            self._since = max(self._since, self._busy_until())
            if now - self._since <= self._timeout_s:
                return now
            self.end()
            raise TransportError(
                f"no answer within {self._timeout_s:g} s ({self._knob}): "
                f"waiting for {waiting_for()}"
            )
        return now

    def _sleep(self, waited: float) -> None:
        """Sleep, the longer the longer it has been."""
        if self.must_poll:
            longest = LONGEST_S if waited < IDLE_AFTER_S else IDLE_S
            seconds = min(longest, max(SHORTEST_S, waited * SHARE))
        else:
            seconds = min(BELL_LONGEST_S, max(BELL_SHORTEST_S, waited * SHARE))
        if self._wakeup is None:
            time.sleep(seconds)
            return
        if self._wakeup.sleep(seconds):
            self._polls = 0  # something comes, and more may follow at once
        self.end()
