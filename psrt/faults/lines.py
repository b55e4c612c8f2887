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
import fcntl
import hmac
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from psrt.errors import JobOverError
from psrt.faults.detector import Busy, Condition, Detector, Paused, Verdict, Waiting
from psrt.faults.roster import Roster, how_it_ended
from psrt.faults.vitals import Vitals

#: Seconds from one sign of life to the next at most; shorter where the time-out is.
BEAT_S = 1.0
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
#: Largest message; a longer one is not ours.
_MOST = 1 << 20
_SIOCGIFADDR = 0x8915
#: Place of the exit code among the fields of ``/proc/PID/stat``, counted from the state on.
_EXIT_CODE = 49
_KINDS: Mapping[str, type[Condition]] = {"busy": Busy, "waiting": Waiting, "paused": Paused}


@dataclass(frozen=True, slots=True)
class Address:
    """Where the hub listens."""

    #: Name of the Unix socket, in the abstract name space of the host.
    name: str
    #: Host name of the hub.
    host: str
    #: Hex digits that a caller must know.
    secret: str
    #: Addresses of the host, and the port; 0: it does not listen on a network.
    addresses: tuple[str, ...] = ()
    port: int = 0

    def to_text(self) -> str:
        """Return the fields as one line."""
        return json.dumps([self.name, self.host, self.secret, self.addresses, self.port])

    @classmethod
    def from_text(cls, text: str) -> Address:
        """Return the address that ``to_text`` has written."""
        name, host, secret, addresses, port = json.loads(text)
        return cls(name, host, secret, tuple(addresses), port)


@dataclass(frozen=True, slots=True)
class End:
    """Why a job is over."""

    status: int
    #: What was told; empty at ranks that do not tell it.
    text: str = ""


class _Watcher:
    """What hub and line have in common: a thread with a beat, and the end of this process."""

    def __init__(self, rank: int, vitals: Vitals, timeout_s: float) -> None:
        self.rank = rank
        self.vitals = vitals
        #: Seconds from the end of the job to that of this process, at most.
        self.ends_within_s = _LATER_ENDS_WITHIN_S if rank else _ENDS_WITHIN_S
        self._set_beat(timeout_s)
        #: Why the job is over; None while it is not.
        self.over: End | None = None
        #: Whether that has been told, by rank 0 at least.
        self.told = False
        self._over_at = 0.0
        #: When this process went on after having been stopped, as a laptop is that is closed.
        self._back_at = -float("inf")
        self._stopped = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="psrt-watch", daemon=True)

    @property
    def watches(self) -> bool:
        """Whether the thread runs, so that waits may leave their deadline to it."""
        return self._thread.is_alive()

    def _set_beat(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.beat_s = min(BEAT_S, timeout_s / 8)

    def _start(self) -> None:
        self._thread.start()

    def _stop(self) -> None:
        self._stopped = True
        self._prod()
        self._thread.join()
        os.close(self._woken)
        os.close(self._wake)

    def _prod(self) -> None:
        """Have the thread look at what has changed."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"!")

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopped:
            now = time.monotonic()
            if now >= due:
                self._beat(now)
                due = max(due + self.beat_s, now)
            ends = self._over_at + self.ends_within_s if self.over is not None else due
            wait = max(0.0, min(due, ends, self._deadline()) - now)
            ready = select.select([self._woken, *self._files()], [], [], wait)[0]
            if time.monotonic() > now + wait + _AWAY * self.beat_s:
                self._back_at = time.monotonic()
                self._came_back(self._back_at)
            if self._woken in ready:
                os.read(self._woken, 4096)
            for file in ready:
                if file != self._woken:
                    self._take(file)
            if self.over is not None and time.monotonic() >= self._over_at + self.ends_within_s:
                leave(self.over.status)

    def _end(self, end: End) -> None:
        """End this rank's part: its next wait raises, and if there is none, the process ends."""
        if self.over is None:
            self._over_at = time.monotonic()
            self.told = self.rank > 0
            self.vitals.over = JobOverError(end.status)
            self.over = end

    def _deadline(self) -> float:
        return float("inf")

    @abstractmethod
    def _came_back(self, now: float) -> None: ...

    @abstractmethod
    def _files(self) -> Iterable[Any]: ...

    @abstractmethod
    def _take(self, file: Any) -> None: ...

    @abstractmethod
    def _beat(self, now: float) -> None: ...


@dataclass(slots=True)
class _Caller:
    """A connection at the hub."""

    socket: socket.socket
    rank: int = -1
    buffer: bytearray = field(default_factory=bytearray)
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
        super().__init__(0, vitals, detector.timeout_s)
        self.roster = roster
        self._detector = detector
        self._tell = tell
        self._listeners: list[socket.socket] = []
        self._callers: dict[socket.socket, _Caller] = {}
        #: Errors that ranks have told, and when the first came.
        self._failed: dict[int, End] = {}
        self._failed_at = float("inf")
        #: Called with the ranks of a verdict ``silent`` or ``dead``; returns whether the job goes
        #: on without them.
        self.goes_on_without: Callable[[tuple[int, ...]], bool] = lambda ranks: False
        name, secret = f"psrt-{os.urandom(8).hex()}", os.urandom(16).hex()
        #: Where the others find this hub.
        self.address = Address(name, socket.gethostname(), secret)
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
            self._prod()

    def _listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        listener.listen(1024)
        self._listeners.append(listener)

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

    def fail(self, text: str, status: int) -> None:
        """Tell rank 0's own error."""
        with self._lock:
            self._note_failure(0, End(status, text))
        self._prod()

    def close(self) -> None:
        """Stop watching; every rank has done its part."""
        self._send({"done": 1})
        self._stop()
        for caller in list(self._callers):
            caller.close()
        for listener in self._listeners:
            listener.close()

    @property
    def lines(self) -> int:
        """The number of ranks that are connected and have not said that their part is done."""
        return sum(
            caller.rank > 0 and not caller.said_goodbye for caller in list(self._callers.values())
        )

    def _files(self) -> Iterable[Any]:
        return [*self._listeners, *self._callers]

    def _deadline(self) -> float:
        return self._failed_at + _GRACE_S

    def _take(self, file: Any) -> None:
        if file in self._listeners:
            connection, _ = file.accept()
            connection.setblocking(False)
            self._callers[connection] = _Caller(connection)
            return
        caller = self._callers[file]
        alive = True
        for message in _messages(caller.socket, caller.buffer):
            if message is None:
                alive = False
            elif not self._heard(caller, message):
                alive = False
                break
        if not alive:
            del self._callers[file]
            file.close()
            if caller.rank > 0 and not caller.said_goodbye:
                self._died(caller.rank, None)
        self._tell_failure(time.monotonic())

    def _heard(self, caller: _Caller, message: Mapping[str, Any]) -> bool:
        """Take one message; return whether the connection goes on."""
        if caller.rank < 0:
            secret, rank = str(message.get("secret")), message.get("rank")
            if not hmac.compare_digest(secret, self.address.secret) or not isinstance(rank, int):
                return False  # nobody of this job
            caller.rank = rank
            return 0 < rank < self.roster.size
        now = time.monotonic()
        with self._lock:
            if "is" in message:
                self._detector.heard(caller.rank, _condition(message), now)
            for rank, state in message.get("processes", {}).items():
                self._detector.looked_up(int(rank), str(state))
        if "died" in message:
            rank, code = message["died"]
            self._died(int(rank), code)
        if "failed" in message:
            self._note_failure(caller.rank, End(*message["failed"]))
        if "bye" in message:
            caller.said_goodbye = True
            self._detector.ended(caller.rank)
        return True

    def _died(self, rank: int, code: int | None) -> None:
        if self.over is not None:
            return  # ranks end because the job does
        if time.monotonic() - self._back_at < _LATER_S:
            # The others have given this one up, have told so, and end the job.
            self._end(End(JobOverError.LATE))
            return
        member = self.roster[rank]
        if code is None and member is not None and self.roster.on_host_of(rank).count(0):
            code = exit_code(member.pid)
        verdict = self._detector.died(rank, code)
        if verdict is not None:
            self._act(verdict)

    def _beat(self, now: float) -> None:
        self._send({"beat": 1})
        if self.over is not None:
            return
        with self._lock:
            self._detector.heard(0, self.vitals.condition(now), now)
            self._look_up(now)
            verdict = self._detector.judge(now)
        self._tell_failure(now)
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
                self._send({"look up": {rank: member.pid}}, neighbours)

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
            if self._failed and self.over is None:
                lowest = min(self._failed)
                if lowest == 0 or now >= self._failed_at + _GRACE_S:
                    self._finish(self._failed[lowest])

    def _finish(self, end: End) -> None:
        """Tell why the job is over, and end it on every rank."""
        if self.over is None:
            # First: being told may take until the launcher begins to end the ranks, and none is to
            # be blamed for that.
            self._send({"over": end.status})
            self._end(end)
            self._tell(end.text)
            self.told = True

    def _send(self, message: Mapping[str, Any], ranks: Iterable[int] | None = None) -> None:
        data = _packed(message)
        for caller in list(self._callers.values()):
            if caller.rank > 0 and (ranks is None or caller.rank in ranks):
                # Full: it is stopped, and will be told to be silent. Closed: read next.
                with contextlib.suppress(OSError):
                    caller.socket.send(data)


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
            OSError: if the hub cannot be reached.
        """
        super().__init__(rank, vitals, timeout_s)
        self._address = address
        self._roster = roster
        self._first_is_done = False
        self._tell = tell
        self._socket = _connected(address)
        self._socket.sendall(_packed({"secret": address.secret, "rank": rank}))
        self._socket.setblocking(False)
        self._buffer = bytearray()
        self._heard_at = time.monotonic()
        self._lost_at = float("inf")
        #: Watched processes: descriptor → rank. They become readable when the process ends.
        self._pidfds = _pidfds(neighbours)
        self._pids = dict(neighbours)
        #: Called with the ranks that the others go on without.
        self.on_gone: Callable[[tuple[int, ...]], None] = lambda ranks: None
        self._start()

    def set_timeouts(self, timeout_s: float, busy_s: float, stall_s: float) -> None:
        """Set what the job's config says; only the first matters to a line."""
        self._set_beat(timeout_s)

    def fail(self, text: str, status: int) -> None:
        """Tell this rank's error, by rank 0 if it is there."""
        if not self._say({"failed": [status, text]}):
            self._tell(text)
            self._end(End(status))

    def say_goodbye(self) -> None:
        """Tell that this rank has done its part."""
        self._say({"bye": 1})

    def close(self) -> None:
        """Stop watching: this rank has done its part."""
        self.say_goodbye()
        self._stop()
        self._socket.close()
        for descriptor in self._pidfds:
            os.close(descriptor)

    def _files(self) -> Iterable[Any]:
        files: list[Any] = list(self._pidfds)
        return [*files, self._socket] if self._lost_at == float("inf") else files

    def _deadline(self) -> float:
        return self._lost_at + _LATER_S * (0 not in self._pids)

    def _take(self, file: Any) -> None:
        if isinstance(file, int):
            rank = self._pidfds.pop(file)
            code = exit_code(self._pids[rank])
            os.close(file)
            if rank:
                self._say({"died": [rank, code]})
            else:  # its socket may live on in a process that it has forked
                self._lost_at = time.monotonic()
                self._tell_of_the_first(how=code)
            return
        for message in _messages(self._socket, self._buffer):
            if message is None:
                self._lost_at = time.monotonic()
                break
            self._heard(message)
        if self._lost_at <= time.monotonic() and 0 in self._pids:
            self._tell_of_the_first(how=exit_code(self._pids[0]))

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
        if "over" in message:
            self._end(End(int(message["over"])))

    def _beat(self, now: float) -> None:
        if self.over is not None or self._first_is_done:
            return
        if now >= self._lost_at + _LATER_S:
            self._tell_of_the_first(how=None)
        elif now - self._heard_at > self.timeout_s:
            state = state_of(self._pids[0]) if 0 in self._pids else ""
            if state not in ("R", "S", "D"):
                self._tell_of_the_first(silent=True)
        condition = self.vitals.condition(now)
        kind = next(name for name, kind in _KINDS.items() if isinstance(condition, kind))
        told: dict[str, Any] = {"is": kind, "s": condition.seconds, "at": condition.where}
        if isinstance(condition, Waiting):
            told["what"] = condition.waiting_for
        elif isinstance(condition, Busy):
            told["what"] = condition.doing
        self._say(told)

    def _came_back(self, now: float) -> None:
        self._heard_at = now

    def _tell_of_the_first(self, *, how: int | None = None, silent: bool = False) -> None:
        """Tell that rank 0 is dead or silent; one rank of each host does."""
        if self.over is not None or self._first_is_done:
            return
        first = self._roster.name(0)
        status = JobOverError.LATE if silent else JobOverError.DIED
        text = (
            f"no sign of life within {self.timeout_s:g} s (--timeout-s): {first} is silent"
            if silent
            else f"{first} {how_it_ended(how)}"
        )
        # The name of a socket can be taken only once, and goes with its process.
        self._claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            self._claim.bind(f"\0{self._address.name}-told")
            self._tell(f"psrt: error: {text}\n")
        self.ends_within_s = _ENDS_WITHIN_S
        self._end(End(status))

    def _say(self, message: Mapping[str, Any]) -> bool:
        """Send a message to the hub; return whether it was there."""
        with self._lock:
            try:
                self._socket.send(_packed(message))
            except BlockingIOError:
                return True  # it has not read for long, and this is not worth waiting for
            except OSError:
                return False
        return self._lost_at == float("inf")


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


def addresses() -> list[str]:
    """Return the IPv4 addresses of this host's interfaces, loopback last."""
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
                found.append(socket.inet_ntoa(answer[20:24]))
    return sorted(dict.fromkeys(found), key=lambda address: address.startswith("127."))


def _connected(address: Address) -> socket.socket:
    """Connect to the hub.

    Raises:
        OSError: if it cannot be reached.
    """
    if socket.gethostname() == address.host:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.connect(f"\0{address.name}")
            return local
        except OSError:  # hosts of one name
            local.close()
    failed: OSError = ConnectionRefusedError("it listens on no network")
    for place in address.addresses:
        try:
            return socket.create_connection((place, address.port), timeout=2.0)
        except OSError as error:
            failed = error
    raise failed


def _packed(message: Mapping[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack("!I", len(data)) + data


def _messages(connection: socket.socket, buffer: bytearray) -> Iterable[Mapping[str, Any] | None]:
    """Read what has come; yields whole messages, and None at the end of the connection."""
    try:
        data = connection.recv(1 << 16)
    except BlockingIOError:
        return
    except OSError:
        data = b""
    buffer += data
    while len(buffer) >= 4:
        (length,) = struct.unpack_from("!I", buffer)
        if length > _MOST:
            yield None
            return
        if len(buffer) < 4 + length:
            break
        try:
            message = json.loads(bytes(buffer[4 : 4 + length]))
        except ValueError:
            yield None
            return
        del buffer[: 4 + length]
        yield message if isinstance(message, dict) else None
    if not data:
        yield None


def _condition(message: Mapping[str, Any]) -> Condition:
    """Return what a rank has told of itself.

    Raises:
        KeyError, TypeError, ValueError: if it is no such message.
    """
    kind = _KINDS[message["is"]]
    seconds, where = float(message["s"]), str(message["at"])
    return kind(seconds, where, *([str(message["what"])] if "what" in message else []))
