"""Watches over the ranks of a job: none waits for ever, and each failure is reported once.

Rank 0 has a hub, the others a line to it (``psrt.faults``). They are set up by messages between
rank 0 and each other rank, not by collectives: a rank that has stopped must not delay reports of
the others. A rank that cannot reach the hub, such as behind a firewall, is not watched; its waits
have their own deadlines.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import signal
import struct
import sys
import termios
import time
import traceback
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn, TextIO

from mpi4py import MPI

from psrt.core.errors import (
    JobOverError,
    ProtocolError,
    PsrtError,
    ReplayError,
    TransportError,
    line_of,
    status_of,
    users_traceback,
)
from psrt.faults import Detector, Hub, Line, Member, Roster
from psrt.faults.connection import Address
from psrt.faults.news import NewsHub, NewsLine
from psrt.faults.parent import parent_of_this
from psrt.faults.processes import leave
from psrt.faults.roster import names, this_process
from psrt.faults.vitals import HERE, never
from psrt.faults.watcher import End
from psrt.mpi.agreement import from_bytes, same_psrt, to_bytes
from psrt.mpi.lost import is_of_the_dead
from psrt.mpi.start import abort_status
from psrt.mpi.tags import ADDRESS, MEMBER, READY

#: The time-out until the job's own are known.
TIMEOUT_S, _BUSY_S = 60.0, 3600.0
#: Seconds after which a wait is reported at the latest.
_STALL_S = 30.0
#: Bytes of a message of the set-up.
_FRAME = 4096
_POLL_S = 2e-4
#: Processes of its host that each rank watches: enough that several may die at once.
_NEIGHBOURS = 4
#: Seconds that the launcher gets to read the last output of a failed rank. It may see the abort
#: first and then never read the rest.
_READ_S = 1.0
#: Seconds that the other ranks get to close their files before the job is aborted.
_CLOSE_S = 0.5
#: Seconds that a rank to which MPI reports a death waits for rank 0 to say whose it is.
_TOLD_S = 5.0
#: Seconds that the others wait longer in the set-up than rank 0, so that rank 0 reports first.
_LATER_S = 0.5
#: Seconds for MPICH's Abort, which waits for ever on a host that is cut off from the others.
_ABORT_S = 3
#: Seconds of one sleep of a rank that waits to be ended.
_LONG_S = 3600.0


class Monitor:
    """One rank's part in watching over a job. Collective to make and to close."""

    def __init__(self, comm: MPI.Comm, timeout_s: float, *, ends: bool = True) -> None:
        """Set up.

        Args:
            comm: the ranks.
            timeout_s: seconds that a rank may be silent, or wait while no rank is busy.
            ends: whether to end the job after a failure; else the ranks receive ``News``.

        Raises:
            TransportError: on rank 0, naming the ranks that are missing at the time-out; on the
                others, if rank 0 is missing.
        """
        self._comm = comm
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        #: The participants; complete on rank 0 only.
        self.roster = Roster(comm.size)
        self.roster.add(this_process(comm.rank))
        self._ends = ends
        self._parent = parent_of_this() if ends else None
        if self._parent is not None:
            self._parent.watch(self._own())
        self._line: Line | None = None
        self._hub: Hub | None = None
        #: On rank 0: the ranks that are not watched.
        self.unwatched: list[int] = []
        if comm.rank == 0:
            self._gather()
        else:
            self._call()

    def _gather(self) -> None:
        comm = self._comm
        others = range(1, comm.size)
        detector = Detector(
            self.roster,
            timeout_s=self._timeout_s,
            busy_s=_BUSY_S,
            stall_s=min(_STALL_S, self._timeout_s / 2),
        )
        parent = self._parent
        forgive = (lambda _: None) if parent is None else parent.forgive
        live = None if parent is None else parent.live
        kind = Hub if self._ends else NewsHub
        hub = self._hub = kind(self.roster, HERE, detector, tell=_tell, forgive=forgive, live=live)
        frames = [bytearray(_FRAME) for _ in others]
        arriving = {rank: comm.Irecv([frames[rank - 1], MPI.BYTE], rank, MEMBER) for rank in others}
        mine = json.dumps(self._own().to_json())
        sent: list[MPI.Request] = []

        def take() -> bool:
            for rank in [rank for rank, request in arriving.items() if request.Test()]:
                del arriving[rank]
                member = Member(**json.loads(_text(frames[rank - 1])))
                self.roster.add(member)
                if member.host != self._own().host:
                    hub.listen_on_network()
                address = _frame(hub.address.to_text() + "\n" + mine)
                sent.append(comm.Isend([address, MPI.BYTE], rank, ADDRESS))
            return not arriving and MPI.Request.Testall(sent)

        self._until(take, lambda: f"{names(self.roster, arriving)} to start")
        hosts = self.roster.hosts()
        pids = {rank: self._neighbours(rank, hosts[rank]) for rank in others}
        ready = [bytearray(1) for _ in others]
        answers = [comm.Irecv([ready[r - 1], MPI.BYTE], r, READY) for r in others]
        told = [
            comm.Isend([_frame(json.dumps(pids[rank])), MPI.BYTE], rank, ADDRESS) for rank in others
        ]
        self._until(
            lambda: MPI.Request.Testall(told) and MPI.Request.Testall(answers),
            lambda: "the other ranks to start",
        )
        self.unwatched = [rank for rank in others if ready[rank - 1] != b"\1"]
        hub.watch(set(others) - set(self.unwatched))

    def _call(self) -> None:
        comm = self._comm
        mine = _frame(json.dumps(self._own().to_json()))
        requests = [comm.Isend([mine, MPI.BYTE], 0, MEMBER)]
        frames = bytearray(_FRAME), bytearray(_FRAME)
        requests += [comm.Irecv([frame, MPI.BYTE], 0, ADDRESS) for frame in frames]
        self._until(lambda: MPI.Request.Testall(requests), lambda: "rank 0 to start")
        address, first = _text(frames[0]).split("\n")
        self.roster.add(Member(**json.loads(first)))
        neighbours = {int(rank): pid for rank, pid in json.loads(_text(frames[1])).items()}
        try:
            self._line = (Line if self._ends else NewsLine)(
                comm.rank,
                Address.from_text(address),
                HERE,
                timeout_s=self._timeout_s,
                roster=self.roster,
                neighbours=neighbours,
                tell=_tell,
            )
        except OSError:
            self._line = None
        answer = bytes([self._line is not None])
        request = comm.Isend([answer, MPI.BYTE], 0, READY)
        self._until(request.Test, lambda: "rank 0 to start")

    def _neighbours(self, rank: int, local: Sequence[int]) -> dict[int, int]:
        """Return the processes that a rank watches: rank 0's, and the next few of its host."""
        own = bisect(local, rank)
        after = [*local[own : own + _NEIGHBOURS], *local[: min(own - 1, _NEIGHBOURS)]]
        watched = dict.fromkeys([*after[:_NEIGHBOURS], *local[: local[0] == 0]])
        return {other: self.member(other).pid for other in watched}

    def _until(self, done: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
        # Rank 0 knows best which rank is missing, so it reports first.
        deadline = time.monotonic() + self._timeout_s + _LATER_S * (self._comm.rank > 0)
        while not done():
            if time.monotonic() > deadline:
                raise TransportError(
                    f"no answer within {self._timeout_s:g} s: waiting for {waiting_for()}"
                )
            time.sleep(_POLL_S)

    def _own(self) -> Member:
        return self.member(self._comm.rank)

    def member(self, rank: int) -> Member:
        """Return the entry of a rank that has registered."""
        member = self.roster[rank]
        assert member is not None, "the rank has registered"
        return member

    @property
    def watcher(self) -> Hub | Line | None:
        """This rank's end of the lines; None if it could not reach rank 0's."""
        return self._hub or self._line

    @property
    def busy_until(self) -> Callable[[], float]:
        """A function that returns until when other ranks may have been busy; see ``Watcher``."""
        return never if self.watcher is None else self.watcher.busy_until

    def job(
        self,
        servers: tuple[int, ...],
        workers: tuple[int, ...],
        *,
        timeout_s: float,
        busy_s: float,
        places: Sequence[str] = (),
    ) -> None:
        """Set what is known of the job by now: the roles of its ranks, and its time-outs."""
        self.roster.give_roles(servers, workers, places)
        if self._parent is not None:
            self._parent.watch(self._own())
        if self.watcher is not None:
            self.watcher.set_timeouts(timeout_s, busy_s, min(_STALL_S, timeout_s / 2))

    def spare(
        self,
        ranks: Iterable[int],
        *,
        survives: bool = False,
        together: Mapping[int, Collection[int]] | None = None,
    ) -> frozenset[int]:
        """Declare which ranks the others can continue without; see ``Hub.spare``. On rank 0.

        Never in a job in which some rank would not learn that another is gone.
        """
        assert self._hub is not None, "rank 0 decides"
        spared = () if self.unwatched else ranks
        return self._hub.spare(spared, survives=survives, together=together)

    @property
    def left_out_so_far(self) -> Mapping[int, frozenset[int]]:
        """By epoch, the ranks that got none of its samples; on rank 0."""
        return {} if self._hub is None else self._hub.left_out_so_far

    def left_out(self, epoch: int) -> Callable[[], frozenset[int] | None]:
        """Ask which ranks get no samples of an epoch, see ``Hub.left_out``.

        Returns:
            A function that returns the answer, or None before it has arrived.
        """
        line, hub = self._line, self._hub
        if line is None:
            return lambda: frozenset() if hub is None else hub.left_out(epoch)
        line.ask_who_is_left_out(epoch)

        def answer() -> frozenset[int] | None:
            found = line.left_out(epoch)
            # Once the watch has ended, no answer comes, but no rank is declared dead either.
            return HERE.gone if found is None and not line.watches else found

        return answer

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """End the job if the block raises anything that the ranks have not agreed on.

        A process forked by the user's code that reaches this point ends alone.
        """
        try:
            yield
            if HERE.over is not None:  # it came after the last wait, which would have raised it
                raise HERE.over
        except PsrtError as error:
            if error.agreed:
                raise
            self._end(error)
        except BaseException as error:
            self._end(error)

    def _end(self, error: BaseException) -> NoReturn:
        if os.getpid() != self._pid:
            _end_of_a_child(error)
        if isinstance(error, MPI.Exception) and is_of_the_dead(error):
            error = self._told_of_the_dead(error)
        status = status_of(error)
        sys.stdout.flush()
        watcher = self.watcher
        if self._line is not None and self._line.is_given_up:
            if self._comm.rank in HERE.dead:
                # Along with one that it needs: it ends as that one has, which MPI survives.
                os.kill(self._pid, signal.SIGKILL)
            wait_for_the_end()
        if not isinstance(error, JobOverError):
            text = describe(error, self._comm.rank)
            if watcher is None:
                _tell(text, status)
            else:
                watcher.fail(text, status)
                deadline = time.monotonic() + _READ_S
                while not watcher.told and time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                status = status if watcher.over is None else watcher.over.status
        if self._line is not None and self._line.over is not None:
            # Rank 0 ends the job as soon as all have closed their files.
            self._line.say_goodbye()
            time.sleep(self._line.ends_within_s)
        deadline = time.monotonic() + _CLOSE_S
        while self._hub is not None and self._hub.lines and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        abort(self._comm, status)

    def _told_of_the_dead(self, error: MPI.Exception) -> BaseException:
        """Return rank 0's report of a death that MPI has seen; or the error, if none comes."""
        deadline = time.monotonic() + _TOLD_S
        while HERE.over is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return HERE.over or error

    def close(self) -> None:
        """Stop watching."""
        if self._parent is not None:
            self._parent.bye()
        if self.watcher is None:
            return
        if HERE.gone == HERE.dead or not self._ends:
            self.watcher.close()
            if HERE.dead and self._ends:
                HERE.leaves = True
                atexit.register(_leave)
            return
        # MPI_Finalize would wait for the ranks that are gone. The program may still use the
        # survivors' results, so the job ends when rank 0 does, and no other rank may end before.
        if self._hub is not None:
            self._hub.rest()
        elif self._line is not None:
            self._line.say_goodbye()
        atexit.register(self._end_without_the_gone)

    def _end_without_the_gone(self) -> None:
        if self._hub is None:
            wait_for_the_end()
        sys.stdout.flush()
        wait_until_read(sys.stdout)
        wait_until_read(sys.stderr)
        self._hub.end(JobOverError.LATE)
        abort(self._comm, JobOverError.LATE)


def _leave() -> None:
    """End this process as it would end now, but without MPI_Finalize."""
    # A program's exit status cannot be asked for while it ends; whether it failed shows by the
    # traceback that was or was not printed.
    leave(abort_status() or int(hasattr(sys, "last_value")))


_watching: list[Monitor] = []


@contextlib.contextmanager
def watched(comm: MPI.Comm, timeout_s: float = TIMEOUT_S) -> Iterator[Monitor]:
    """Watch over the ranks of ``comm`` during a block; collective.

    Blocks may be nested: an inner block over the same ranks is already watched.

    Args:
        comm: the ranks.
        timeout_s: until the job's own is known; see ``Monitor``.
    """
    if HERE.leaves:
        raise TransportError(
            "workers of an earlier run have died, so this program cannot use MPI any more"
        )
    if _watching and MPI.Comm.Compare(comm, _watching[-1]._comm) in (MPI.IDENT, MPI.CONGRUENT):
        yield _watching[-1]
        return
    try:
        monitor = Monitor(comm, timeout_s)
    except TransportError as error:
        _tell(describe(error, comm.rank), status_of(error))
        abort(comm, status_of(error))
    _watching.append(monitor)
    try:
        with monitor.watch():
            same_psrt(comm)
            yield monitor
    finally:
        _watching.remove(monitor)
        monitor.close()


def wait_for_the_end() -> NoReturn:
    """Sleep until this process is ended, by its own thread or by the launcher."""
    while True:
        time.sleep(_LONG_S)


def abort(comm: MPI.Comm, status: int) -> NoReturn:
    """End the whole job now, with the given status."""
    sys.stderr.flush()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_ABORT_S)
    comm.Abort(status)
    # MPICH's Abort may return before the launcher has ended this process. The code after the
    # failure must not run.
    leave(status)


def _end_of_a_child(error: BaseException) -> NoReturn:
    """Exit without the interpreter's exit handlers: MPI belongs to the parent process."""
    if isinstance(error, SystemExit):
        leave(error.code if isinstance(error.code, int) else int(error.code is not None))
    traceback.print_exception(error)
    leave(1)


def _frame(text: str) -> bytes:
    data = to_bytes(text)
    assert len(data) <= _FRAME, "a member, an address, or the processes of a host"
    return data.ljust(_FRAME, b"\0")


def _text(frame: bytearray) -> str:
    return from_bytes(frame.rstrip(b"\0"))


def _tell(text: str, status: int = 0) -> None:
    """Report what ends the job: through ``psrt launch`` if that started this process, else here.

    On stderr, waiting until it has been read: this process may end next.
    """
    parent = parent_of_this()
    if status and parent is not None and parent.tell(End(status, text)):
        return
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, end="", flush=True)
    if status:
        HERE.note_end(text, status)
    with contextlib.suppress(OSError, ValueError):
        wait_until_read(sys.stderr)


def warn(text: str) -> None:
    """Print a line on stderr, and wait until it has been read: this process may end next."""
    _tell(f"{text}\n")


def wait_until_read(stream: TextIO) -> None:
    """Wait until the reader of ``stream`` has read all of it, if it is a pipe or terminal."""
    deadline = time.monotonic() + _READ_S
    with contextlib.suppress(OSError, ValueError):  # a file, or no descriptor
        while time.monotonic() < deadline:
            (unread,) = struct.unpack("i", fcntl.ioctl(stream, termios.FIONREAD, bytes(4)))
            if not unread:
                break
            time.sleep(1e-3)


def describe(error: BaseException, rank: int) -> str:
    """Return the text to print for an error: one line where that is enough, else a traceback."""
    if isinstance(error, SystemExit):  # in the user's code, while the others need this rank
        code = "" if error.code is None else repr(error.code)
        return f"psrt: error: rank {rank} called sys.exit({code})\n"
    is_bug = isinstance(error, ProtocolError) and not isinstance(error, ReplayError)
    text = users_traceback(error)
    line = None if is_bug or text is not None else line_of(error)
    if line is not None:
        return f"psrt: {line}\n"
    text = text or "".join(traceback.format_exception(error))
    return "".join(f"[rank {rank}] {line}\n" for line in text.rstrip().splitlines())
