"""How a rank waits: with low latency under dense traffic, and otherwise without burning a core.

MPI's blocking calls spin, and a spinning rank takes its core from a worker that shares it. So
every wait of psrt is a loop of polls around ``Backoff.pause``: first spin, then yield the core,
then sleep until a peer wakes it; at the deadline, raise an error that names the peers waited for.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Protocol

from psrt.core.errors import TransportError
from psrt.faults.vitals import HERE, Vitals, never

#: Polls before the first yield, with a core for every rank: about 15 µs. No more: the kernel may
#: still have put two ranks on one core, and then each would spin while the other needs it.
SPINS = 60
#: Yields before the first sleep: about 200 µs if nothing else wants the core. Longer than a wake-up
#: takes; otherwise two ranks that answer each other would fall asleep in turn.
YIELDS = 400
#: A yield longer than this gave the core to a rank that computes and will not return it in time;
#: then the next ``WAITS_WITHOUT_YIELDS`` waits sleep without yielding.
BUSY_S = 200e-6
WAITS_WITHOUT_YIELDS = 50
#: A wait sleeps after this many seconds, however few yields it made: if others want all cores, each
#: yield takes a time slice, and 400 of them would pass the deadline.
LONGEST_AWAKE_S = 20e-3
#: A sleep is this share of the time waited so far, so it adds at most that share of latency.
SHARE = 1 / 16
#: Bounds of a sleep that only a timer ends, in seconds. The kernel adds about 50 µs.
SHORTEST_S, LONGEST_S = 20e-6, 250e-6
#: After a second of silence latency no longer matters: longer sleeps.
IDLE_AFTER_S, IDLE_S = 1.0, 2e-3
#: Bounds of a sleep that a wake-up ends, in seconds.
WOKEN_SHORTEST_S, WOKEN_LONGEST_S = 1e-3, 20e-3


class Sleeper(Protocol):
    """A rank that peers can wake: see ``psrt.mpi.links.wakeup``."""

    def raise_flag(self) -> None:
        """Announce that this rank is about to sleep."""

    def lower_flag(self) -> None:
        """Announce that this rank is awake."""

    def sleep(self, seconds: float) -> bool:
        """Sleep for at most ``seconds``; return whether a peer woke this rank."""


@dataclass(eq=False, kw_only=True)
class Backoff:
    """The state of one wait. One object serves all waits of a rank, one after another."""

    #: Whether the host has more ranks than cores; then nobody spins.
    oversubscribed: InitVar[bool]
    #: The deadline of a wait, in seconds.
    timeout_s: float
    #: Ends a sleep when a peer has sent something; None: only the timer does.
    wakeup: Sleeper | None = None
    #: The seconds from which on a yield is not worth repeating: see ``BUSY_S``.
    busy_s: float = BUSY_S
    #: The number of yields before the first sleep.
    yields: int = YIELDS
    #: Called now and then during a long wait.
    while_idle: Callable[[], None] = lambda: None
    #: Called at the deadline; returns the last time, by ``time.monotonic``, at which a peer was
    #: known to be computing, so not late; the deadline moves to ``timeout_s`` after that.
    busy_until: Callable[[], float] = never
    #: The most seconds of one wait for which ``busy_until`` excuses peers.
    busy_timeout_s: float = math.inf
    #: The user's name for the deadline, for the error.
    knob: str = "timeout_s"
    #: Is notified of long waits; ends a wait when the job is over.
    vitals: Vitals = HERE
    _polls: int = field(default=0, init=False)
    _since: float = field(default=0.0, init=False)
    _flag_is_up: bool = field(default=False, init=False)
    #: Whether ``vitals`` knows of this wait, and what it waited for before.
    _is_long: bool = field(default=False, init=False)
    #: The number of further waits without yields.
    _without_yields: int = field(default=0, init=False)

    def __post_init__(self, oversubscribed: bool) -> None:
        self._spins = 0 if oversubscribed else SPINS
        #: Whether some of the awaited traffic wakes no sleeper, so that it must be polled.
        self.must_poll = self.wakeup is None
        self._before: tuple[Callable[[], str] | None, Callable[[], float]] = (None, never)
        #: Polls before the first sleep, of this wait.
        self._awake = self._spins + self.yields

    def begin(self) -> None:
        """Start a wait."""
        # The clock is read only once spinning is over: most waits end before.
        self._polls = 0
        if self._without_yields:
            self._without_yields -= 1
            self._awake = self._spins + self.yields * (not self._without_yields)

    def end(self) -> None:
        """End a successful wait."""
        # After an error, too: otherwise peers would write to the pipe of a rank that never sleeps.
        if self._flag_is_up:
            self._lower_flag()
        if self._is_long:
            self.vitals.waiting_for, self.vitals.busy_until = self._before
            self._is_long = False

    def pause(self, waiting_for: Callable[[], str]) -> None:
        """Spin, yield or sleep after an unsuccessful poll.

        Args:
            waiting_for: describes the peers and the message waited for; called at the deadline.

        Raises:
            TransportError: at the deadline.
            JobOverError: if another rank has failed.
        """
        now = self._poll(waiting_for)
        if now is None:
            return
        if self._polls <= self._awake and now - self._since < LONGEST_AWAKE_S:
            os.sched_yield()
            # The rank that took the core computes, and will do so in the next waits, too.
            if time.monotonic() - now > self.busy_s:
                self._awake, self._without_yields = 0, WAITS_WITHOUT_YIELDS
            return
        if self.wakeup is not None and not self._flag_is_up:
            self.wakeup.raise_flag()
            self._flag_is_up = True
            # Poll once more before sleeping: a message sent before the flag was up brought no
            # wake-up. A peer that sends from now on sees the flag and wakes this rank.
            return
        if not self._is_long:
            self._tell(waiting_for)
        self.while_idle()
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
        """Yield but never sleep, for traffic that progresses only while it is polled.

        Raises:
            TransportError: at the deadline.
        """
        now = self._poll(waiting_for)
        if now is None:
            return
        if not self._is_long and now - self._since > IDLE_AFTER_S:
            self._tell(waiting_for)
        self.while_idle()
        os.sched_yield()

    def _poll(self, waiting_for: Callable[[], str]) -> float | None:
        """Count an unsuccessful poll; return the time, or None while spinning."""
        self._polls += 1
        if self._polls <= self._spins:
            return None
        now = time.monotonic()
        if self._polls == self._spins + 1:
            self._since = now
        if self.vitals.over is not None:
            self.end()
            raise self.vitals.over
        # The cheap comparison first: ``busy_until`` is not asked at each poll.
        if (
            now - self._since > self.timeout_s
            and now - max(self._since, self._excused_until()) > self.timeout_s
        ):
            self.end()
            raise TransportError(
                f"no answer within {self.timeout_s:g} s ({self.knob}): waiting for {waiting_for()}"
            )
        return now

    def _excused_until(self) -> float:
        # Bounded: a peer that computes for ever must not excuse a wait for ever.
        return min(self.busy_until(), self._since + self.busy_timeout_s)

    def _tell(self, waiting_for: Callable[[], str]) -> None:
        # Restored at the end: this wait may be nested in that of another object of this class.
        vitals = self.vitals
        self._before, self._is_long = (vitals.waiting_for, vitals.busy_until), True
        vitals.waits += 1
        vitals.busy_until = self.busy_until
        vitals.waiting_for = waiting_for

    def _sleep(self, waited: float) -> None:
        """Sleep for a share of the time waited so far."""
        if self.must_poll:
            longest = LONGEST_S if waited < IDLE_AFTER_S else IDLE_S
            seconds = min(longest, max(SHORTEST_S, waited * SHARE))
        else:
            seconds = min(WOKEN_LONGEST_S, max(WOKEN_SHORTEST_S, waited * SHARE))
        if self.wakeup is None:
            time.sleep(seconds)
            return
        if self.wakeup.sleep(seconds):
            self._polls = 0  # a message has arrived, and more may follow at once: spin again
        self._lower_flag()

    def _lower_flag(self) -> None:
        if self._flag_is_up and self.wakeup is not None:
            self.wakeup.lower_flag()
            self._flag_is_up = False
