"""The thread with which a rank watches over its job while MPI, or its main thread, is stuck.

Rank 0 has the ``Hub``, every other rank a ``Line`` to it. A rank tells at each beat what it does;
the hub reports that it is there, and in the end why the job is over. A process that dies closes its
socket, whatever it was doing, so its end is known at once; one that is stopped reports no more. The
threads call no MPI and need the interpreter for some 50 µs a beat.

Ranks of the hub's host use a Unix socket, so a job on one host listens on no network. Who connects
must know the job's secret, which travels by MPI.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from psrt.core.errors import JobOverError
from psrt.faults.detector import Condition, Waiting
from psrt.faults.processes import leave
from psrt.faults.vitals import Vitals
from psrt.launch.environment import daemon

#: Seconds from one sign of life to the next at most; shorter where the time-out is.
BEAT_S = 1.0
#: With more ranks than this the beat is slower in proportion: rank 0 must read all of them.
_FAST_RANKS = 100
#: The process of a rank that has missed this many beats is looked at from outside.
MISSED = 2.5
#: Who has missed this many beats itself was stopped.
AWAY = 4
#: How long a rank is given to end by itself once the job is over, in seconds: its files are worth
#: closing. Then its thread ends the process, whatever the main one is doing. Rank 0's comes first:
#: the status that the launcher returns is that of the first process to end.
ENDS_WITHIN_S, _LATER_ENDS_WITHIN_S = 1.0, 3.0
#: After which part of that time a main thread that does not end by itself counts as stuck.
_LAST_WORDS_S = 0.2
#: How long the last messages are given to leave, in seconds.
LAST_S = 1.0


@dataclass(frozen=True, slots=True)
class End:
    """Why a job is over."""

    status: int
    #: What was reported; empty at ranks that do not report it.
    text: str = ""


class Tell(Protocol):
    """Tells the user something."""

    def __call__(self, text: str, status: int = 0) -> None:
        """Print it.

        Args:
            text: ready to print.
            status: that with which the job ends by it; 0 if it continues.
        """


class Watcher:
    """What hub and line have in common: a thread with a beat, and the end of this process."""

    #: Whether it ends processes, as that of a job does.
    ends = True

    def __init__(
        self,
        rank: int,
        ranks: int,
        vitals: Vitals,
        timeout_s: float,
        tell: Tell,
    ) -> None:
        self.rank = rank
        self._ranks = ranks
        self.vitals = vitals
        self._tell = tell
        #: Seconds from the end of the job to that of this process, at most.
        self.ends_within_s = _LATER_ENDS_WITHIN_S if rank else ENDS_WITHIN_S
        self._due = time.monotonic()
        self._set_beat(timeout_s)
        #: Why the job is over; None while it is not.
        self.over: End | None = None
        #: Whether that has been reported, by rank 0 at least.
        self.told = False
        self._over_at = 0.0
        self._stopped = self._has_spoken = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        # Not select(), which knows no more than 1,024 descriptors.
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="psrt-watch", daemon=True)
        #: When a rank was last known to be busy, or to make progress.
        self.got_on_at = time.monotonic()
        #: The daemon that has started this process; whether it was gone at the last beat.
        self._daemon, self._was_gone = daemon(), False
        #: What the job's processes tell each other beside, see ``talk``.
        self._hear: Callable[[Any], None] = lambda _: None
        self._look: Callable[[], None] = lambda: None
        if self.ends:  # an earlier job has ended otherwise
            vitals.over, vitals.gone, vitals.dead = None, frozenset(), frozenset()

    @property
    def watches(self) -> bool:
        """Whether rank 0 judges, so that waits may leave their deadline to it."""
        return self._thread.is_alive()

    def busy_until(self) -> float:
        """Return until when other ranks may have been busy: always, where rank 0 judges that."""
        return math.inf if self.watches else -math.inf

    def _condition(self, now: float) -> Condition:
        """Return what this rank does.

        A rank that waits for ranks of another watch waits until that watch finds none of them busy.
        What this one finds is not sent to it: it would hear its own news, late, for ever.
        """
        condition, busy_until = self.vitals.condition(now), self.vitals.busy_until
        if not isinstance(condition, Waiting) or busy_until == self.busy_until:
            return condition
        seconds = min(condition.seconds, max(0.0, now - busy_until()))
        return replace(condition, seconds=seconds)

    def _set_beat(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.beat_s = min(BEAT_S * max(1.0, self._ranks / _FAST_RANKS), timeout_s / 8)

    def _start(self) -> None:
        self._thread.start()

    def _stop(self) -> None:
        self._stopped = True
        self.prod()
        self._thread.join()
        self._selector.close()
        os.close(self._woken)
        os.close(self._wake)

    def talk(
        self,
        hear: Callable[[Any], None] = lambda _: None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what others ``say`` from now on; without arguments, no more.

        Args:
            hear: called by the thread with what one has said, in JSON's types.
            look: called there after whatever has come, each beat and each ``prod``.
        """
        self._hear, self._look = hear, look

    @abstractmethod
    def say(self, to: int | None, words: Any) -> None:
        """Have another process hear something, in the order of saying; by way of rank 0.

        Args:
            to: its rank; None has all others hear it.
            words: in JSON's types.
        """

    def prod(self) -> None:
        """Have the thread look at what has changed; a signal's handler may call it."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"!")

    def _beat_now(self) -> None:
        self._due = 0.0
        self.prod()

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._turn()
        except Exception as error:
            # Without this thread nobody judges; waits must not count on it any more.
            with contextlib.suppress(Exception):
                self._broke(f"{type(error).__name__}: {error}")

    def _turn(self) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = max(self._due + self.beat_s, now)
            self._beat(now)
            self._look_at_daemon()
        if now >= self._deadline():
            self._at_deadline(now)
        ends = float("inf") if self.over is None else self._over_at + self.ends_within_s
        words = float("inf")
        if self.over is not None and not self._has_spoken:
            words = self._over_at + _LAST_WORDS_S
        if now >= words:
            self._has_spoken, words = True, float("inf")
            with contextlib.suppress(Exception):
                self.vitals.last_words()
        if self.over is not None and now >= ends:
            leave(self.over.status)
        wait = max(0.0, min(self._due, ends, words, self._deadline()) - now)
        ready = self._selector.select(wait)
        if time.monotonic() > now + wait + AWAY * self.beat_s:
            self._came_back(time.monotonic())
        for key, _ in ready:
            if key.fd == self._woken:
                os.read(self._woken, 4096)
            else:
                self._take(key)
        self._taken()
        self._look()

    def _look_at_daemon(self) -> None:
        """Tell that it has died; at the second look, as at its own end it goes before its ranks."""
        is_gone = self._daemon not in (None, os.getppid())
        if is_gone and self._was_gone and self.ends and self.over is None:
            self._daemon = None
            who = f"rank {self.rank} ({socket.gethostname()})"
            text = f"{who} has lost the daemon of MPICH's mpirun (hydra_pmi_proxy), which has died"
            self.fail(f"psrt: error: {text}\n", JobOverError.DIED)
        self._was_gone = is_gone

    def _end(self, end: End) -> None:
        """End this rank's part: its next wait raises, and if there is none, the process ends."""
        if self.over is None:
            self._over_at = time.monotonic()
            self.told = self.rank > 0
            self.vitals.over = JobOverError(end.status)
            self.over = end

    @abstractmethod
    def fail(self, text: str, status: int) -> None:
        """Tell this rank's own error."""

    @abstractmethod
    def _deadline(self) -> float:
        """Return when ``_at_deadline`` is due."""

    @abstractmethod
    def _at_deadline(self, now: float) -> None: ...

    @abstractmethod
    def _came_back(self, now: float) -> None:
        """Take note that this process was stopped, as a laptop is that is closed."""

    @abstractmethod
    def _take(self, key: selectors.SelectorKey) -> None:
        """Read what has come."""

    @abstractmethod
    def _taken(self) -> None:
        """Act on the ends of processes, after everything that they reported before was read."""

    @abstractmethod
    def _beat(self, now: float) -> None: ...

    @abstractmethod
    def _broke(self, why: str) -> None:
        """See that nobody counts on this thread, which has failed."""
