"""Runs collectives: keeps the ranks' calls in step, waits, and diagnoses failures.

All ranks make the same calls in the same order. From its call's *signature* (what is reduced, how,
by which algorithm) every rank derives the same *context* without communication: a slot of the
shared memory, a checksum, an MPI tag (``contexts``). Each rank binds what differs between ranks,
such as the address of an array, separately (``compiler``).
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections import deque
from collections.abc import Callable
from functools import partial
from os import sched_yield
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from psrt.core.arrays import AnyVector
from psrt.core.errors import ProtocolError, PsrtError
from psrt.faults.vitals import never
from psrt.mpi.collectives.compiler import Compiler
from psrt.mpi.collectives.contexts import ContextTable
from psrt.mpi.collectives.matcher import CallMatcher
from psrt.mpi.collectives.plans.one_shot import OneShot
from psrt.mpi.collectives.plans.plan import Plan, name_ranks
from psrt.mpi.collectives.plans.vendor import VendorAccess
from psrt.mpi.collectives.slots import (
    QUICK_YIELDS,
    OtherCallError,
    Ready,
    clear_words,
)
from psrt.mpi.fabric import Fabric
from psrt.mpi.point_to_point import PointToPoint

#: Polls before a wait sets up its state, with a core for every rank: most collectives of a few
#: kilobytes end within them.
_QUICK_POLLS = 60
#: Seconds that a yield may take. Here the rank that gets the core is one that this rank waits for,
#: so yielding is always right.
_BUSY_S = math.inf
#: The largest tag that every MPI allows, and the most tags that are needed to separate calls.
_LEAST_TAGS, _MOST_TAGS = 32767, (1 << 24) - 1

#: Open executors. A wait in one of them makes progress on the calls of all: ranks may wait for the
#: works of two communicators in different orders, and would deadlock otherwise.
_open: list[CollectiveExecutor] = []
#: Executors that have failed: MPI may still write to buffers of their calls, which must stay alive.
_wrecks: list[CollectiveExecutor] = []


class CollectiveExecutor:
    """One rank's collectives. Collective to make and to close."""

    def __init__(
        self,
        fabric: Fabric,
        *,
        timeout_s: float,
        while_idle: Callable[[], None] = lambda: None,
        busy_until: Callable[[], float] = never,
        busy_timeout_s: float = math.inf,
        knob: str = "timeout_s",
        lost: Callable[[], str] = str,
    ) -> None:
        """Set up.

        Args:
            fabric: of the ranks, with ``FLOATS`` numbers per rank; closed by the caller.
            timeout_s: the deadline of every wait.
            while_idle: called now and then during a long wait.
            busy_until: see ``Backoff``.
            busy_timeout_s: see ``Backoff``.
            knob: see ``Backoff``.
            lost: returns in words which ranks are dead or silent; called at the deadline.
        """
        self._comm = fabric.comm
        # A rank with a wrong call may be in a library collective that the others never enter. On
        # the same communicator it would be matched with their next ``meet``.
        self._library = fabric.comm.Dup()
        self.layout = fabric.layout
        # Each rank clears its own words; the fence orders the zeros before the barrier, after which
        # peers may read them.
        clear_words(fabric.memory, fabric.node.rank)
        fabric.memory.fence()
        fabric.node.Barrier()
        self._wakes = fabric.wakeup.works
        self._names = fabric.names
        #: This rank's number in messages.
        self.name = fabric.names[fabric.comm.rank]
        self.matcher = CallMatcher(self._comm, self._names)
        # Collectives of the library never meet messages on the same communicator.
        #: The messages between two ranks.
        self.messages = PointToPoint(self._library, self.matcher, self._names)
        #: What this rank waits for, or has waited for last.
        self._plan: Plan | _Meet | None = None
        self._while_idle, self._lost = while_idle, lost
        self._oversubscribed = self.layout.oversubscribed
        self._backoff = fabric.backoff(
            timeout_s=timeout_s,
            busy_s=_BUSY_S,
            while_idle=self._idle,
            busy_until=busy_until,
            busy_timeout_s=busy_timeout_s,
            knob=knob,
        )
        self.segments = fabric.segments
        tags = self._comm.Get_attr(MPI.TAG_UB)
        #: What all ranks derive from signatures.
        self.contexts = ContextTable(
            fabric,
            tags=min(int(tags or _LEAST_TAGS), _MOST_TAGS),
            meet=self.meet,
        )
        #: Makes the plans.
        self.compiler = Compiler(
            fabric, VendorAccess(self._comm, self._library, deque()), self.contexts
        )
        self._active: list[Work] = []
        #: Other executors that had calls in progress when this one last began to wait.
        self._helped: list[CollectiveExecutor] = []
        #: The calls in progress at the time of a failure.
        self._left: list[Work] = []
        #: The numbers that MPI reads and writes in the newest ``meet``, kept alive for it.
        self._barrier: tuple[AnyVector, ...] = ()
        #: Why this executor has failed; empty while it works.
        self.broken = ""
        #: Called when it fails.
        self.on_broken: Callable[[], None] = lambda: None
        self._sent = 0
        self._received = 0
        #: Plans that count their own runs.
        self._one_shots: list[OneShot] = []
        _open.append(self)

    def call(self, signature: str) -> None:
        """Start a call; every collective starts with this.

        Raises:
            ProtocolError: if an earlier call has failed, or other ranks are in another call.
        """
        self.check()
        self.matcher.begin(signature)

    def check(self) -> None:
        """Raise a ``ProtocolError`` if an earlier call has failed."""
        if self.broken:
            raise ProtocolError(f"the communicator cannot be used after an error: {self.broken}")

    def runner(self, signature: str, plan: Plan) -> Callable[[], None]:
        """Return a function that makes a call and runs its plan."""
        if isinstance(plan, OneShot):
            self._one_shots.append(plan)
            return plan.quick(self.matcher, signature, self._wait_here)
        return partial(self._call_and_run, signature, plan)

    def release(self, plan: Plan) -> None:
        """Free a plan that will not run again."""
        if isinstance(plan, OneShot) and plan in self._one_shots:
            self._one_shots.remove(plan)
            self.count(plan, plan.runs)
        plan.free()

    @property
    def bytes_sent(self) -> int:
        """Bytes sent to other ranks so far."""
        return self._sent + sum(plan.runs * plan.bytes_sent for plan in self._one_shots)

    @property
    def bytes_received(self) -> int:
        """Bytes received from other ranks so far."""
        return self._received + sum(plan.runs * plan.bytes_received for plan in self._one_shots)

    def count(self, plan: Plan, runs: int = 1) -> None:
        """Count the bytes that runs of a plan have moved."""
        self._sent += runs * plan.bytes_sent
        self._received += runs * plan.bytes_received

    def _call_and_run(self, signature: str, plan: Plan) -> None:
        self.call(signature)
        self.run(plan)

    def _wait_here(self, plan: Plan) -> None:
        """Wait until all node-local ranks have arrived at the barrier of a plan."""
        assert isinstance(plan, OneShot), "other plans wait inside their runs"
        try:
            self._wait(plan.is_complete, plan)
        except BaseException as error:
            self._fail(error)

    def run(self, plan: Plan) -> None:
        """Run a plan.

        Raises:
            ProtocolError: if the ranks turn out to be in different calls.
            TransportError: at the deadline.
        """
        try:
            for ready in plan.run():
                self._wait(ready, plan)
        except BaseException as error:
            self._fail(error)
        self.count(plan)

    def start(self, plan: Plan, result: Any = None) -> Work:
        """Start running a plan; ``result`` becomes that of the ``Work``."""
        handle = Work(self, plan, result)
        try:
            if not handle.advance():
                self._active.append(handle)
        except BaseException as error:
            self._fail(error)
        return handle

    def meet(self, signature: str) -> None:
        """Wait until all ranks make this call, so that MPI's blocking collectives are safe.

        Raises:
            ProtocolError, TransportError: as ``run``.
        """
        self.call(signature)
        # The call's number is part of the checksum: the same signature in another call is another
        # meeting. MAX over (c, −c) gives (max c, −min c), which are opposite only if all have one
        # c.
        checksum = zlib.crc32(f"{self.matcher.number} {signature}".encode())
        mine, most = np.array([checksum, -checksum], np.int64), np.empty(2, np.int64)
        request = self._comm.Iallreduce(mine, most, MPI.MAX)
        self._barrier = mine, most
        try:
            self._wait(request.Test, _Meet(signature))
            if most[0] != -most[1]:
                raise OtherCallError(signature)
        except BaseException as error:
            self._fail(error)

    def finish(self, handle: Work) -> None:
        """Wait for a handle."""
        self.check()
        try:
            while not handle.done:
                self._wait(handle.advance, handle.plan)
        except BaseException as error:
            self._fail(error)

    def poll(self, handle: Work) -> None:
        """Make progress on a handle, and on all others."""
        self.check()
        try:
            self.poll_active()
            for other in self._others():
                other.help()
            if not handle.done:
                self._while_idle()
                self.matcher.while_waiting()
        except BaseException as error:
            self._fail(error)

    def poll_active(self) -> None:
        """Make progress on all calls."""
        self._active = [handle for handle in self._active if not handle.advance()]

    def _others(self) -> list[CollectiveExecutor]:
        """Return the other executors of this process that have calls in progress."""
        return [executor for executor in _open if executor._active and executor is not self]

    def help(self, *, idle: bool = False) -> None:
        """Make progress on calls here while this rank waits for another executor's work.

        A failure here breaks this executor and is raised by its own next call, not by the wait in
        the other one.

        Args:
            idle: whether to look for signatures of other ranks as well.
        """
        try:
            self.poll_active()
            if idle and self._active:
                self.matcher.while_waiting()
        except PsrtError as error:
            with contextlib.suppress(PsrtError):
                self._fail(error)

    def _wait(self, ready: Ready, plan: Plan | _Meet) -> None:
        if self._oversubscribed:
            # A late rank most likely waits for this core, and arrives while this rank yields it.
            for _ in range(QUICK_YIELDS):
                sched_yield()
                if ready():
                    return
        else:
            for _ in range(_QUICK_POLLS):
                if ready():
                    return
        self._plan = plan
        self.matcher.wait_begins()
        backoff = self._backoff
        # This rank starts no other call while it waits, so one look-up is enough.
        self._helped = others = self._others()
        backoff.must_poll = plan.polls or bool(self._active) or bool(others) or not self._wakes
        # The MPI library progresses only while it is called: a sleep would delay all ranks.
        pause = backoff.spin if plan.spins else backoff.pause
        backoff.begin()
        try:
            while not ready():
                if self._active:
                    self.poll_active()
                for other in others:
                    other.help()
                pause(lambda: self._waiting_for(plan))
        finally:
            backoff.end()  # after an error, too: this rank is not waiting any more, and may compute

    def _waiting_for(self, plan: Plan | _Meet) -> str:
        """Name the ranks waited for, and those that may be the cause."""
        call = f" in {self.matcher.latest()}" if plan.is_call else ""
        text = f"{plan.waiting_for()}{call}"
        if lost := self._lost():
            return f"{text}; {lost}"
        if not plan.is_call:
            return text
        silent = [self._names[rank] for rank in self.matcher.silent()]
        return f"{text}; {name_ranks(silent)} did not announce this call" if silent else text

    def doing(self) -> str:
        """Say what this rank waits for, in words that follow "waits"."""
        plan = self._plan
        if plan is None or plan.is_call:
            return f"in {self.matcher.latest()}"
        return f"for {plan.waiting_for()}"

    def _idle(self) -> None:
        self._while_idle()
        self.matcher.while_waiting()
        for other in self._helped:
            other.help(idle=True)

    def _fail(self, error: BaseException) -> NoReturn:
        """Find out which rank is in which call, if they differ, and refuse every later call.

        An interruption such as Ctrl-C breaks the executor, too: the other ranks are ahead of this
        one in the call.
        """
        if not self.broken:
            _wrecks.append(self)
            _open.remove(self)
        self._left, self._active = self._active, []
        if isinstance(error, OtherCallError):
            try:
                self.matcher.disagree(lambda ready: self._wait(ready, _Meet("another call")))
            except PsrtError as better:
                error = better
        self.broken = str(error) or f"{type(error).__name__} in {self.matcher.latest()}"
        self.on_broken()
        raise error

    def leave(self, error: BaseException | None) -> None:
        """Tell the other ranks, which may wait for this one, that it makes no more calls.

        Args:
            error: what ended the calls of this rank; None for the end of the program. A mismatch
                between the ranks is known to all and not sent.
        """
        if self.broken and isinstance(error, ProtocolError):
            return
        # A call that failed here was not completed, and calls in progress never will be.
        since = 0 if self._active else self.matcher.number + (not self.broken)
        words = "the end of its program"
        if error is not None:
            text = " ".join(str(error).split())
            words = f"{type(error).__name__}{': ' if text else ''}{text}"
        self.matcher.leave(words, since=since)
        if error is not None and not self.broken:
            trace = error.__traceback__
            with contextlib.suppress(type(error)):
                self._fail(error)
            error.__traceback__ = trace  # the caller's, without this function's frame

    def close(self, *, met: bool = False) -> None:
        """Free all resources; collective, unless something has failed before.

        Args:
            met: whether the ranks have already met for it.
        """
        if self.broken:
            return  # the others may not come to free the communicator
        if not met:
            self.meet("close()")
        self.matcher.drain()
        _open.remove(self)
        self.poll_active()
        if self._active:  # a send that nobody has received: MPI may still read its array
            _wrecks.append(self)
        self._library.Free()


class Work:
    """A collective in progress."""

    def __init__(self, executor: CollectiveExecutor, plan: Plan, result: Any) -> None:
        self._executor = executor
        self.plan = plan
        #: The result of the blocking call; not valid before the end.
        self.result = result
        self._run = plan.run()
        self._ready: Ready = lambda: True
        #: Whether the collective is complete.
        self.done = False

    def test(self) -> bool:
        """Make progress without waiting; return whether the collective is done.

        Raises:
            ProtocolError: if the ranks turn out to be in different calls.
        """
        if not self.done:
            self._executor.poll(self)
        return self.done

    def wait(self) -> None:
        """Wait until the collective is done.

        Raises:
            ProtocolError: as ``test``.
            TransportError: at the deadline.
        """
        if not self.done:
            self._executor.finish(self)

    def advance(self) -> bool:
        """Make progress without waiting; return whether it is done."""
        while not self.done and self._ready():
            try:
                self._ready = next(self._run)
            except StopIteration as end:
                self.done = True
                self.result = self.result if end.value is None else end.value
                self._executor.count(self.plan)
        return self.done


class _Meet:
    """A wait without a plan."""

    polls = True
    spins = False
    is_call = True

    def __init__(self, signature: str) -> None:
        self._signature = signature

    def waiting_for(self) -> str:
        """Name the call."""
        return f"the other ranks ({self._signature})"
