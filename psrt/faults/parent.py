"""What passes between ranks and the ``psrt launch`` that started them, and outlives them all.

A launcher that ends a job may do so before the line that says why has left its rank: MPICH's kills
all ranks within 2 ms of a death. So each rank that is watched has a connection to ``psrt launch``,
its parent on whatever host. What ends the job is reported there. A connection that ends without a
goodbye is that of a process that has died: the kernel closes it, whatever the process was doing.
Of several the first is the cause.

Ranks find their parent by a variable. Programs that know nothing of psrt never look for it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psrt.core.errors import JobOverError
from psrt.faults.connection import MOST_TEXT, Address, Connection
from psrt.faults.listener import Listener
from psrt.faults.processes import Sight, exit_code, look, state_of
from psrt.faults.roster import Member, how_it_ended, this_process
from psrt.faults.watcher import LAST_S, End
from psrt.launch.environment import start_limit_s

#: The variable that ranks find their parent by.
PARENT = "PSRT_PARENT"
#: How long a rank tries to reach it, in seconds.
_CONNECT_S = 5.0
#: How long the connections of other hosts are given to end after the launcher has, in seconds.
_LAST_WORDS_S = 1.0
#: Seconds in which a launcher says that it has lost a host, for which it ends the other ranks.
_SAYS_S = 0.1
#: Seconds between two looks at ranks that end, and until those are named that do not.
_LOOK_S, _NAMED_S = 1.0, 10.0
#: What MPI's own end may take is a limit in the ranks, too: the launcher is to be first.
_BEFORE_THEM = 0.9
#: Ranks that one line names.
_SHOWN = 4
#: States of a process that a signal or a debugger has stopped, as the kernel calls them.
_STOPPED = ("T", "t")
#: Above this, the status of an interrupted process.
_SIGNALS = 128


@dataclass(slots=True, eq=False)
class _Child:
    """A rank's connection at its parent."""

    connection: Connection
    is_known: bool = False
    #: Who it is; None while it is not watched.
    member: Member | None = None
    #: Who it was when it was watched.
    who: Member | None = None
    #: Whether its program has ended, so that it is in MPI's end or past it.
    ends: bool = False
    #: What is seen of its process while it has not.
    sight: Sight = field(default_factory=Sight)

    @property
    def rank(self) -> int:
        """Its rank, 0 if it is not watched."""
        return 0 if self.member is None else self.member.rank


class Parent:
    """The end at ``psrt launch``: hears how the job of its ranks ended."""

    def __init__(self, ranks: int, tell: Callable[[str], None], *, several_hosts: bool) -> None:
        """Listen; nobody is heard before ``start``.

        Args:
            ranks: their number.
            tell: called with text for the user, ready to print; from another thread.
            several_hosts: whether ranks may be on other hosts.
        """
        self._tell = tell
        self._selector = selectors.DefaultSelector()
        self._listener = Listener(self._selector, ranks, _Child, self._heard)
        if several_hosts:
            self._listener.listen_on_network()
        #: Those whose processes have died while they were watched, in that order, and how.
        self._dead: list[tuple[Member, int | None]] = []
        #: Ranks that the others continue without.
        self._forgiven: set[int] = set()
        #: Whether the launcher has ended rank 0, without which no rank continues.
        self._first_was_ended = False
        self._here = this_process(-1)
        self._several_hosts = several_hosts
        #: Whether the process of a rank has ended, after its run.
        self._one_has_left = False
        #: Since when ranks are waited for that do not end; None while none is.
        self._late_since: float | None = None
        self._is_named = False
        self._ends_within_s = _BEFORE_THEM * start_limit_s()
        #: Whether the job is over since ranks do not end.
        self.is_late = False
        #: Hosts that the launcher has lost, as it tells itself; it then ends the ranks of all.
        self.lost: list[str] = []
        #: Why the job is over, as the first rank to know reported; None while it is not.
        self.over: End | None = None
        #: When a rank was heard last, by ``time.monotonic``; None before the first.
        self.heard_at: float | None = None
        #: Rank 0, which tells at each beat that it is there; None while it is not watched.
        self.first: Member | None = None
        #: The folder of the run of its ranks, and its configuration; None if it is not known.
        self.run: tuple[str, str] | None = None
        #: That ranks were interrupted, which is what a launcher does that has a reason of its own.
        self._interrupted: End | None = None
        self._ends_at = math.inf
        self._woken, self._wake = os.pipe()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="psrt-parent", daemon=True)

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of the environment by which ranks find their parent."""
        return {PARENT: self._listener.address.to_text()}

    @property
    def is_called(self) -> bool:
        """Whether a rank is connected."""
        return bool(self._listener.callers)

    @property
    def first_is_stopped(self) -> bool:
        """Whether the process of rank 0 is here, and stopped by a signal."""
        first = self.first
        return first is not None and self._is_here(first) and state_of(first.pid) in _STOPPED

    def start(self, on_over: Callable[[], None]) -> None:
        """Hear the ranks from now on, in a thread.

        Args:
            on_over: called there, once, when the job is over.
        """
        self._on_over = on_over
        self._thread.start()

    def close(self, *, blames: bool) -> End | None:
        """Hear the last words of ranks that have ended; return why the job was over, if known.

        Args:
            blames: whether a process that died silently is reported as the reason.
        """
        if self._ends_at < math.inf:
            return self.over
        self._ends_at = time.monotonic() + _LAST_WORDS_S
        os.write(self._wake, b"!")
        if self._thread.ident is not None:
            self._thread.join()
        reason = self._loss() or self._reason()
        if blames and self.over is None and reason is not None:
            self._end(reason)
        for child in self._listener.callers:
            child.connection.close()
        self._listener.close()
        self._selector.close()
        os.close(self._woken)
        os.close(self._wake)
        return self.over

    def _run(self) -> None:
        while True:
            wait = self._ends_at - time.monotonic()
            ends = wait < math.inf
            if ends and (self.over is not None or not self._is_watched()):
                wait = 0.0  # there is nothing to wait for, but perhaps to read
            ready = self._selector.select(max(0.0, wait) if ends else _LOOK_S)
            if ends and not ready:
                return
            if not ends and self.over is None:
                self._look_at_ends(time.monotonic())
            for key, _ in ready:
                if key.fd == self._woken:
                    self._selector.unregister(self._woken)
                    continue
                lost = self._listener.take(key)
                if lost is not None and lost.member is not None:
                    self._note_first(lost, None)
                    self._died(lost.member)
                elif lost is not None and lost.who is not None:
                    self._one_has_left = True

    def _look_at_ends(self, now: float) -> None:
        """Name the ranks that do not end after their runs have, and at last end the job.

        Those that are in MPI's end wait there for who has not come to it.
        """
        self._late_since, since = None, self._late_since
        if self._is_watched():
            return
        there = [(it, it.who) for it in self._listener.callers if it.who is not None]
        late = [it for it in there if not it[0].ends] or there
        for child, who in late:
            if self._is_here(who):
                child.sight.seen(*look(who.pid), now)
        stopped = [it for it in late if it[0].sight.state in _STOPPED]
        begun = self._one_has_left or stopped or any(child.ends for child, _ in there)
        # What a program does after its run is work, as long as it computes.
        at_work = any(not child.ends and child.sight.worked_at == now for child, _ in late)
        if not late or not begun or at_work:
            return
        self._late_since = since or now
        seconds = now - self._late_since
        names = _few(sorted(str(who) for _, who in stopped or late))
        if seconds > min(_NAMED_S, self._ends_within_s) and not self._is_named:
            self._is_named = True
            state = "is stopped" if stopped else "has not ended"
            self._tell(f"psrt: the runs are over; after {seconds:.0f} s {state}: {names}\n")
        # A program that has ended MPI itself may wait for something else, or work out of sight.
        at_end = stopped or all(
            it.ends or (self._is_here(who) and not self._one_has_left) for it, who in late
        )
        if seconds > self._ends_within_s and at_end:
            self.is_late = True
            text = f"no end of the process within {seconds:.0f} s of its run: {names}"
            self._end(End(JobOverError.LATE, f"psrt: error: {text}\n"))

    def _is_watched(self) -> bool:
        return any(child.member is not None for child in self._listener.callers)

    def _heard(self, child: _Child, message: Mapping[str, Any]) -> bool:
        """Take one message; return whether the connection stays open."""
        if not child.is_known:
            child.is_known = self._listener.knows(message)
            if child.is_known:
                self.heard_at = time.monotonic()
            return child.is_known
        self.heard_at = time.monotonic()
        if "watch" in message:
            child.member = child.who = Member(**message["watch"])
            self._note_first(child, child.member)
        if "bye" in message:
            self._note_first(child, None)
            child.member = None
        child.ends |= "ends" in message
        if "run" in message:
            out, config = message["run"]
            self.run = str(out), str(config)
        if "gone" in message:
            self._forgiven.update(map(int, message["gone"]))
        if "over" in message:
            status, text = message["over"]
            self._told(child, End(int(status), str(text)))
        return True

    def _note_first(self, child: _Child, member: Member | None) -> None:
        if child.member is not None and child.member.rank == 0:
            self.first = member

    def _died(self, member: Member) -> None:
        # The others end because of the first: how does not matter.
        code = exit_code(member.pid) if self._is_here(member) and not self._blamed else None
        by_launcher = _signal(code) == signal.SIGTERM
        self._first_was_ended |= by_launcher and member.rank == 0
        if not by_launcher and self._interrupted is None:
            self._dead.append((member, code))

    @property
    def _blamed(self) -> list[tuple[Member, int | None]]:
        """The dead ranks without which the others did not continue."""
        return [it for it in self._dead if it[0].rank not in self._forgiven]

    def _is_here(self, member: Member) -> bool:
        here = self._here
        return (member.host, member.namespace) == (here.host, here.namespace)

    def _loss(self) -> End | None:
        """Return that the launcher has lost hosts; None if none, or before their ranks had come."""
        ranks = [it for it, _ in self._dead]
        ranks += [it.member for it in self._listener.callers if it.member is not None]
        names = {host.partition(".")[0] for host in self.lost}
        there = sorted({str(it) for it in ranks if it.host.partition(".")[0] in names})
        if not there:
            return None
        text = f"mpirun has lost the host of {_few(there)}, and has ended all ranks"
        return End(JobOverError.LATE, f"psrt: error: {text}\n")

    def _reason(self) -> End | None:
        """Return why the job is over where its ranks did not report it."""
        callers = self._listener.callers
        watched = [child.member for child in callers if child.member is not None]
        silent = [str(member) for member in watched if not self._is_here(member)]
        # A launcher that has lost a host ends the other ranks, or leaves them alone, and that looks
        # like deaths; only a signal of somebody else's does not.
        if silent and not (self._blamed and _signal(self._blamed[0][1])):
            return End(JobOverError.LATE, f"psrt: error: out of reach: {_few(silent)}\n")
        # A launcher that has lost a host ends the others, or leaves them, as one of those that
        # would have continued: rank 0 forgives those that end before itself.
        if self._blamed or (self._dead and (self._first_was_ended or watched)):
            return self._death()
        return self._interrupted

    def _death(self) -> End:
        member, code = (self._blamed or self._dead)[0]
        return End(JobOverError.DIED, f"psrt: error: {member} {how_it_ended(code)}\n")

    def _told(self, child: _Child, end: End) -> None:
        """Take an end that a rank reported; one without a reason leaves that to another rank."""
        if self.over is not None:
            if self.over.status == end.status and not self.over.text:
                self._end(end)
            return
        if end.status > _SIGNALS:
            self._interrupted = self._interrupted or end
            return
        if end.status == JobOverError.DIED and self._several_hosts and not self.lost:
            time.sleep(_SAYS_S)
        first = self._blamed[0][0].rank if self._blamed else 0
        if end.status == JobOverError.DIED and (loss := self._loss()) is not None:
            end = loss
        elif end.status == JobOverError.DIED and child.rank and first:
            # Other ranks tell of the death of rank 0 only, which then was not the first.
            end = self._death()
        self._end(end)

    def _end(self, end: End) -> None:
        self.over = end
        if end.text:
            self._tell(end.text)
        self._on_over()


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _signal(code: int | None) -> int:
    """Return the signal that a process has died by, as ``waitpid`` gives it; 0 if by none."""
    return 0 if code is None else code & 0x7F


class ParentLine:
    """A rank's end."""

    def __init__(self, connection: Connection, secret: str) -> None:
        """Say who calls.

        Args:
            connection: to the parent.
            secret: of its address.
        """
        self._connection = connection
        connection.send({"secret": secret})

    def watch(self, member: Member) -> None:
        """Have the end of this process, which is ``member``, count as a death from now on."""
        self._connection.send({"watch": member.to_json()})

    def live(self) -> None:
        """Report that this process is alive."""
        self._connection.send({"lives": 1}, droppable=True)

    def bye(self) -> None:
        """Undo ``watch``."""
        self._connection.send({"bye": 1})

    def ends(self) -> None:
        """Tell that the program of this process has ended, and MPI's end comes next."""
        self._connection.send({"ends": 1}, droppable=True)

    def forgive(self, ranks: Iterable[int]) -> None:
        """Ignore the ends of ranks that the others continue without."""
        self._connection.send({"gone": list(ranks)})

    def runs(self, out: str, config: str) -> None:
        """Tell which run this is.

        Args:
            out: its folder.
            config: the text of the file of its configuration.
        """
        self._connection.send({"run": [out, config]})

    def tell(self, end: End) -> bool:
        """Tell why the job is over; return whether the parent is there to print it."""
        is_there = self._connection.send({"over": [end.status, end.text[-MOST_TEXT:]]})
        self._connection.finish(time.monotonic() + LAST_S)
        return is_there


@functools.cache
def parent_of_this() -> ParentLine | None:
    """Return the connection of this process to its parent; None without one."""
    text = os.environ.get(PARENT)
    if text is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        address = Address.from_text(text)
        return ParentLine(address.connect(_CONNECT_S), address.secret)
    return None
