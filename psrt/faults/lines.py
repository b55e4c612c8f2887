"""Lines between the ranks of a job that work while MPI is stuck: sockets, each with its thread.

Rank 0 has the ``Hub``, every other rank a ``Line`` to it. A rank tells at each beat what it does;
the hub tells that it is there, and in the end why the job is over. A process that dies closes its
socket, whatever it was doing, so its end is known at once; one that is stopped falls silent. The
threads call no MPI and need the interpreter for some 50 µs a beat.

Ranks of the hub's host use a Unix socket, so a job on one host listens on no network. Who connects
must know the job's secret, which travels by MPI.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import resource
import selectors
import socket
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from psrt.errors import JobOverError
from psrt.faults.connection import MOST_TEXT, Address, Connection, addresses, not_for_children
from psrt.faults.detector import Busy, Condition, Detector, Paused, Verdict, Waiting
from psrt.faults.roster import Roster, how_it_ended
from psrt.faults.vitals import Vitals

#: Seconds from one sign of life to the next at most; shorter where the time-out is.
BEAT_S = 1.0
#: With more ranks than this the beat is slower in proportion: rank 0 must read all of them.
_FAST_RANKS = 100
#: A rank is looked up by its neighbours when it has missed this many beats.
_MISSED = 2.5
#: Who has missed this many beats itself was stopped.
_AWAY = 4
#: How long a rank is given to end by itself once the job is over, in seconds: its files are worth
#: closing. Then its thread ends the process, whatever the main one is doing. Rank 0's comes first:
#: the status that the launcher returns is that of the first process to end.
_ENDS_WITHIN_S, _LATER_ENDS_WITHIN_S = 1.0, 3.0
#: How long the hub waits for a lower rank to have failed, too, before it tells the first one's
#: error: where all fail alike, always the same one speaks.
_GRACE_S = 0.1
#: How long ranks of other hosts leave it to those of rank 0's to tell that it has died.
_LATER_S = 0.4
#: How long the last messages are given to leave, in seconds.
_LAST_S = 1.0
#: Descriptors of the process that are not the hub's.
_OTHER_FILES = 512
#: Place of the exit code among the fields of ``/proc/PID/stat``, counted from the state on.
_EXIT_CODE = 49
_KINDS: Mapping[str, type[Condition]] = {"busy": Busy, "waiting": Waiting, "paused": Paused}


@dataclass(frozen=True, slots=True)
class End:
    """Why a job is over."""

    status: int
    #: What was told; empty at ranks that do not tell it.
    text: str = ""


class _Watcher:
    """What hub and line have in common: a thread with a beat, and the end of this process."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        vitals: Vitals,
        timeout_s: float,
        tell: Callable[[str], None],
    ) -> None:
        self.rank = rank
        self._ranks = ranks
        self.vitals = vitals
        self._tell = tell
        #: Seconds from the end of the job to that of this process, at most.
        self.ends_within_s = _LATER_ENDS_WITHIN_S if rank else _ENDS_WITHIN_S
        self._due = time.monotonic()
        self._set_beat(timeout_s)
        #: Why the job is over; None while it is not.
        self.over: End | None = None
        #: Whether that has been told, by rank 0 at least.
        self.told = False
        self._over_at = 0.0
        self._stopped = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        # Not select(), which knows no more than 1,024 descriptors.
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="psrt-watch", daemon=True)
        vitals.over = None  # of an earlier job

    @property
    def watches(self) -> bool:
        """Whether rank 0 judges, so that waits may leave their deadline to it."""
        return self._thread.is_alive()

    def _set_beat(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.beat_s = min(BEAT_S * max(1.0, self._ranks / _FAST_RANKS), timeout_s / 8)

    def _start(self) -> None:
        self._thread.start()

    def _stop(self) -> None:
        self._stopped = True
        self._prod()
        self._thread.join()
        self._selector.close()
        os.close(self._woken)
        os.close(self._wake)

    def _prod(self) -> None:
        """Have the thread look at what has changed."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"!")

    def _beat_now(self) -> None:
        self._due = 0.0
        self._prod()

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
        if now >= self._deadline():
            self._at_deadline(now)
        ends = float("inf") if self.over is None else self._over_at + self.ends_within_s
        if self.over is not None and now >= ends:
            leave(self.over.status)
        wait = max(0.0, min(self._due, ends, self._deadline()) - now)
        ready = self._selector.select(wait)
        if time.monotonic() > now + wait + _AWAY * self.beat_s:
            self._came_back(time.monotonic())
        for key, _ in ready:
            if key.fd == self._woken:
                os.read(self._woken, 4096)
            else:
                self._take(key)
        self._taken()

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
        """Act on the ends of processes, after everything that they had told before was read."""

    @abstractmethod
    def _beat(self, now: float) -> None: ...

    @abstractmethod
    def _broke(self, why: str) -> None:
        """See that nobody counts on this thread, which has failed."""


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection at the hub."""

    connection: Connection
    rank: int = -1
    said_goodbye: bool = False


class Hub(_Watcher):
    """Rank 0's end: hears all ranks, decides, and tells."""

    def __init__(
        self,
        roster: Roster,
        vitals: Vitals,
        detector: Detector,
        *,
        tell: Callable[[str], None],
    ) -> None:
        """Listen to this host; nobody is watched yet.

        Args:
            roster: the members as far as they are known; may grow.
            vitals: of this process.
            detector: decides.
            tell: called with text for the user, ready to print; from another thread.
        """
        super().__init__(0, roster.size, vitals, detector.timeout_s, tell)
        self.roster = roster
        self._detector = detector
        self._listeners: list[socket.socket] = []
        self._callers: set[_Caller] = set()
        #: Ranks whose processes have ended, and how, as far as it is known.
        self._ended: dict[int, int | None] = {}
        #: Errors that ranks have told, and when the first came.
        self._failed: dict[int, End] = {}
        self._failed_at = float("inf")
        #: Called with the ranks of a verdict ``silent`` or ``dead``; returns whether the job goes
        #: on without them.
        self.goes_on_without: Callable[[tuple[int, ...]], bool] = lambda ranks: False
        name, secret = f"psrt-{os.urandom(8).hex()}", os.urandom(16).hex()
        #: Where the others find this hub.
        self.address = Address(name, socket.gethostname(), secret)
        _allow_files(roster.size + _OTHER_FILES)
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.bind(f"\0{name}")
        self._listen(local)
        self._start()

    def listen_on_network(self) -> None:
        """Listen to other hosts as well, from the first rank on that is on one."""
        if not self.address.port:
            wide = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            wide.bind(("", 0))
            self._listen(wide)
            port = int(wide.getsockname()[1])
            self.address = replace(self.address, addresses=tuple(addresses()), port=port)

    def _listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        listener.listen(1024)
        self._listeners.append(not_for_children(listener))
        self._selector.register(listener, selectors.EVENT_READ, listener)

    def watch(self, ranks: Iterable[int]) -> None:
        """Begin to watch over ranks that have connected, and rank 0."""
        with self._lock:
            self._detector.watch([0, *ranks], time.monotonic())

    def set_timeouts(self, timeout_s: float, busy_s: float, stall_s: float) -> None:
        """Set what the job's config says; see ``Detector``."""
        with self._lock:
            detector = self._detector
            detector.timeout_s, detector.busy_s, detector.stall_s = timeout_s, busy_s, stall_s
        self._set_beat(timeout_s)
        self._beat_now()

    def fail(self, text: str, status: int) -> None:
        """Tell rank 0's own error."""
        with self._lock:
            self._note_failure(0, End(status, text))
        if self._thread.is_alive():
            self._prod()
        else:
            self._tell(text)
            self.told = True

    def close(self) -> None:
        """Stop watching; every rank has done its part."""
        self._send({"done": 1})
        self._stop()
        deadline = time.monotonic() + _LAST_S
        for caller in self._callers:
            caller.connection.finish(deadline)
            caller.connection.close()
        for listener in self._listeners:
            listener.close()

    @property
    def lines(self) -> int:
        """The number of ranks that are connected and have not said that their part is done."""
        return sum(caller.rank > 0 and not caller.said_goodbye for caller in list(self._callers))

    def _deadline(self) -> float:
        return self._failed_at + _GRACE_S if self.over is None else float("inf")

    def _at_deadline(self, now: float) -> None:
        self._tell_failure(now)

    def _take(self, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, _Caller):
            self._hear(key.data)
            return
        listener = key.data
        try:
            connected, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # Whoever comes now is refused, and not watched over.
                self._selector.unregister(listener)
                listener.close()
            return
        caller = _Caller(Connection(connected))
        self._callers.add(caller)
        self._selector.register(caller.connection, selectors.EVENT_READ, caller)

    def _hear(self, caller: _Caller) -> None:
        for message in caller.connection.receive():
            if message is None or not self._heard(caller, message):
                self._selector.unregister(caller.connection)
                self._callers.discard(caller)
                caller.connection.close()
                if caller.rank > 0 and not caller.said_goodbye:
                    self._ended.setdefault(caller.rank, None)
                return

    def _heard(self, caller: _Caller, message: Mapping[str, Any]) -> bool:
        """Take one message; return whether the connection goes on."""
        if caller.rank < 0:
            secret, rank = str(message.get("secret")), message.get("rank")
            if not hmac.compare_digest(secret, self.address.secret) or not isinstance(rank, int):
                return False  # nobody of this job
            if not 0 < rank < self.roster.size:
                return False
            caller.rank = rank
            return caller.connection.send({"beat": 1})
        now = time.monotonic()
        with self._lock:
            if "is" in message:
                self._detector.heard(caller.rank, _condition(message), now)
            for rank, state in message.get("processes", {}).items():
                self._detector.looked_up(int(rank), str(state))
            if "failed" in message:
                self._note_failure(caller.rank, End(*message["failed"]))
        if "died" in message:
            rank, code = message["died"]
            if self._ended.get(int(rank)) is None:
                self._ended[int(rank)] = code
        if "gave up" in message:
            # This process was stopped; the others have told so, and are ending.
            self._finish(End(int(message["gave up"])))
        if "bye" in message or "unwatched" in message:
            caller.said_goodbye = True
            self._detector.ended(caller.rank)
        return True

    def _taken(self) -> None:
        ended, self._ended = self._ended, {}
        for rank, code in ended.items():
            if self.over is None:  # else ranks end because the job does
                self._died(rank, code)
        self._tell_failure(time.monotonic())

    def _died(self, rank: int, code: int | None) -> None:
        member = self.roster[rank]
        if code is None and member is not None and 0 in self.roster.on_host_of(rank):
            code = exit_code(member.pid)
        verdict = self._detector.died(rank, code)
        if verdict is not None:
            self._act(verdict)

    def _beat(self, now: float) -> None:
        self._send({"beat": 1}, droppable=True)
        if self.over is not None:
            return
        with self._lock:
            self._detector.heard(0, self.vitals.condition(now), now)
            self._look_up(now)
            verdict = self._detector.judge(now)
        if verdict is not None:
            self._act(verdict)

    def _came_back(self, now: float) -> None:
        with self._lock:
            self._detector.excuse(now)

    def _look_up(self, now: float) -> None:
        """Find out what has become of the processes that are silent."""
        for rank in self._detector.quiet(now, _MISSED * self.beat_s):
            member, neighbours = self.roster[rank], self.roster.on_host_of(rank)
            if member is None:
                continue
            if 0 in neighbours:
                self._detector.looked_up(rank, state_of(member.pid))
            else:
                self._send({"look up": {rank: member.pid}}, neighbours, droppable=True)

    def _act(self, verdict: Verdict) -> None:
        if verdict.kind == "stall":
            self._tell(f"psrt: {verdict.text}\n")
            return
        if verdict.ranks and self.goes_on_without(verdict.ranks):
            self._tell(f"psrt: {verdict.text}; the others go on\n")
            self._send({"gone": verdict.ranks})
            return
        if verdict.kind == "dead":
            self._finish(End(JobOverError.DIED, f"psrt: error: {verdict.text}\n"))
        else:
            self._finish(End(JobOverError.LATE, f"psrt: error: {verdict.text}\n"))

    def _note_failure(self, rank: int, end: End) -> None:
        if not self._failed:
            self._failed_at = time.monotonic()
        self._failed.setdefault(rank, end)

    def _tell_failure(self, now: float) -> None:
        """Tell the error of the lowest rank that has failed, once all have had time to."""
        with self._lock:
            if not self._failed or self.over is not None:
                return
            lowest = min(self._failed)
            end = self._failed[lowest]
        if lowest == 0 or now >= self._failed_at + _GRACE_S:
            self._finish(end)

    def _finish(self, end: End) -> None:
        """Tell why the job is over, and end it on every rank."""
        if self.over is None:
            # First: being told may take until the launcher begins to end the ranks, and none is to
            # be blamed for that.
            self._send({"over": end.status})
            self._end(end)
            self._tell(end.text)
            self.told = True

    def _broke(self, why: str) -> None:
        self._send({"unwatched": 1})
        self._tell(f"psrt: the ranks are watched no longer ({why}): each wait has its deadline\n")

    def _send(
        self,
        message: Mapping[str, Any],
        ranks: Iterable[int] | None = None,
        *,
        droppable: bool = False,
    ) -> None:
        for caller in list(self._callers):
            if caller.rank > 0 and (ranks is None or caller.rank in ranks):
                caller.connection.send(message, droppable=droppable)  # closed: read next


class Line(_Watcher):
    """Another rank's end."""

    def __init__(
        self,
        rank: int,
        address: Address,
        vitals: Vitals,
        *,
        timeout_s: float,
        roster: Roster,
        neighbours: Mapping[int, int],
        tell: Callable[[str], None],
    ) -> None:
        """Connect, and begin to watch.

        Args:
            rank: of this process.
            address: of the hub.
            vitals: of this process.
            timeout_s: seconds that rank 0 may be silent.
            roster: has rank 0's entry.
            neighbours: the processes of this host that this one can look up, by rank.
            tell: as for the hub; called only if rank 0 cannot tell.

        Raises:
            OSError: if the hub cannot be reached, or does not answer.
        """
        connection = address.connect(timeout_s)
        connection.send({"secret": address.secret, "rank": rank})
        # It may have more callers than it can have files.
        first = list(connection.receive()) if connection.wait(timeout_s) else [None]
        if None in first:
            connection.close()
            raise ConnectionRefusedError("it does not answer")
        super().__init__(rank, roster.size, vitals, timeout_s, tell)
        self._connection = connection
        self._address = address
        self._roster = roster
        #: Seconds that rank 0 may be silent while its process runs.
        self._busy_s = float("inf")
        self._first_is_done = self._is_unwatched = False
        self._heard_at = time.monotonic()
        self._lost_at = float("inf")
        self._pids = dict(neighbours)
        #: Processes that have ended: their ranks.
        self._ended: list[int] = []
        self._pidfds = _pidfds(neighbours)
        #: Called with the ranks that the others go on without.
        self.on_gone: Callable[[tuple[int, ...]], None] = lambda ranks: None
        self._selector.register(connection, selectors.EVENT_READ)
        for descriptor in self._pidfds:
            self._selector.register(descriptor, selectors.EVENT_READ)
        for message in first:
            self._heard(message or {})
        self._start()

    @property
    def watches(self) -> bool:
        """Whether rank 0 judges, so that waits may leave their deadline to it."""
        is_there = self._lost_at == float("inf") and not self._first_is_done
        return is_there and not self._is_unwatched and self._thread.is_alive()

    def set_timeouts(self, timeout_s: float, busy_s: float, stall_s: float) -> None:
        """Set what the job's config says; see ``Detector``."""
        self._busy_s = busy_s
        self._set_beat(timeout_s)
        self._beat_now()

    def fail(self, text: str, status: int) -> None:
        """Tell this rank's error, by rank 0 if it is there."""
        if not self.watches or not self._say({"failed": [status, text[-MOST_TEXT:]]}):
            self._tell(text)
            self._end(End(status))

    def say_goodbye(self) -> None:
        """Tell that this rank has done its part."""
        self._say({"bye": 1})

    def close(self) -> None:
        """Stop watching: this rank has done its part."""
        self.say_goodbye()
        self._stop()
        self._connection.finish(time.monotonic() + _LAST_S)
        self._connection.close()
        for descriptor in self._pidfds:
            os.close(descriptor)

    def _deadline(self) -> float:
        if self.over is not None or self._first_is_done:
            return float("inf")
        return self._lost_at + _LATER_S * (0 not in self._pids)

    def _at_deadline(self, now: float) -> None:
        # Here only if nothing has told how rank 0's process has ended: it cannot be seen.
        self._tell_of_the_first(how=exit_code(self._pids[0]) if 0 in self._pids else None)

    def _take(self, key: selectors.SelectorKey) -> None:
        if key.fd in self._pidfds:
            self._ended.append(self._pidfds.pop(key.fd))
            self._selector.unregister(key.fd)
            os.close(key.fd)
            return
        for message in self._connection.receive():
            if message is None:
                self._lost_at = time.monotonic()
                if 0 in self._pids:  # at once: some launchers leave it a millisecond
                    self._at_deadline(self._lost_at)
                self._selector.unregister(self._connection)
                return
            self._heard(message)

    def _taken(self) -> None:
        ended, self._ended = self._ended, []
        for rank in ended:
            if rank:
                self._say({"died": [rank, exit_code(self._pids[rank])]})
            else:  # its socket may live on in a process that it has forked
                self._lost_at = min(self._lost_at, time.monotonic())

    def _heard(self, message: Mapping[str, Any]) -> None:
        self._heard_at = time.monotonic()
        if "look up" in message:
            states = {rank: state_of(int(pid)) for rank, pid in message["look up"].items()}
            self._say({"processes": states})
        if "gone" in message:
            gone = tuple(map(int, message["gone"]))
            if self.rank in gone:  # the others have given this rank up
                leave(JobOverError.LATE)
            self.on_gone(gone)
        if "done" in message:
            self._first_is_done = True
        if "unwatched" in message:
            self._is_unwatched = True
        if "over" in message:
            self._end(End(int(message["over"])))

    def _beat(self, now: float) -> None:
        if self.over is not None or self._first_is_done or self._is_unwatched:
            return
        silent_s = now - self._heard_at
        if silent_s > self.timeout_s:
            state = state_of(self._pids[0]) if 0 in self._pids else ""
            if state not in ("R", "S", "D") or silent_s > self._busy_s:
                self._tell_of_the_first(silent=True)
        condition = self.vitals.condition(now)
        kind = next(name for name, kind in _KINDS.items() if isinstance(condition, kind))
        told: dict[str, Any] = {"is": kind, "s": condition.seconds, "at": condition.where}
        if isinstance(condition, Waiting):
            told["what"] = condition.waiting_for
        elif isinstance(condition, Busy):
            told["what"] = condition.doing
        self._say(told, droppable=True)

    def _came_back(self, now: float) -> None:
        self._heard_at = now

    def _tell_of_the_first(self, *, how: int | None = None, silent: bool = False) -> None:
        """Tell that rank 0 is dead or silent; one rank of each host does."""
        if self.over is not None or self._first_is_done or self._is_unwatched:
            return
        first = self._roster.name(0)
        status = JobOverError.LATE if silent else JobOverError.DIED
        text = (
            f"no sign of life within {self.timeout_s:g} s (--timeout-s): {first} is silent"
            if silent
            else f"{first} {how_it_ended(how)}"
        )
        if silent:
            self._say({"gave up": status})
        # The name of a socket can be taken only once, and goes with its process.
        self._claim = not_for_children(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        with contextlib.suppress(OSError):
            self._claim.bind(f"\0{self._address.name}-told")
            self._tell(f"psrt: error: {text}\n")
        self.ends_within_s = _ENDS_WITHIN_S
        self._end(End(status))

    def _broke(self, why: str) -> None:
        self._say({"unwatched": 1})
        self._tell(f"psrt: rank {self.rank} is watched no longer ({why})\n")

    def _say(self, message: Mapping[str, Any], *, droppable: bool = False) -> bool:
        """Send a message to the hub; return whether it was there."""
        is_open = self._connection.send(message, droppable=droppable)
        return is_open and self._lost_at == float("inf")


def _allow_files(number: int) -> None:
    """Let this process have so many files open, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        allowed = number if hard == resource.RLIM_INFINITY else min(number, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))


def leave(status: int) -> None:
    """End this process at once, whatever its main thread is doing."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def state_of(pid: int) -> str:
    """Return the state of a process as in ``/proc/PID/stat``; ``X`` if there is none."""
    fields = _stat(pid)
    return fields[0] if fields else "X"


def exit_code(pid: int) -> int | None:
    """Return how a process ended, as ``waitpid`` gives it; None if it cannot be told any more.

    It can until its parent, the launcher, has asked for it: some milliseconds.
    """
    deadline = time.monotonic() + 0.01
    # The code is there from the beginning of the end on, before sockets are closed.
    while fields := _stat(pid):
        code = int(fields[_EXIT_CODE]) if len(fields) > _EXIT_CODE else 0
        if code or fields[0] in "ZX":
            return code
        if time.monotonic() > deadline:
            break
        time.sleep(2e-4)
    return None


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            # The name of the program is in parentheses, and may have any in it.
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _pidfds(processes: Mapping[int, int]) -> dict[int, int]:
    found = {}
    for rank, pid in processes.items():
        with contextlib.suppress(OSError, AttributeError):
            found[os.pidfd_open(pid)] = rank
    return found


def _condition(message: Mapping[str, Any]) -> Condition:
    """Return what a rank has told of itself.

    Raises:
        KeyError, TypeError, ValueError: if it is no such message.
    """
    kind = _KINDS[message["is"]]
    seconds, where = float(message["s"]), str(message["at"])
    return kind(seconds, where, *([str(message["what"])] if "what" in message else []))
