"""A job in virtual time: all its ranks in one process, their ports, and the time they live in.

The seed decides every delay and every tie, so the same seed gives the same run, event for event
and to the bit, and another seed another interleaving. What an event costs does not depend on how
many ranks there are, so thousands may take part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from heapq import heappop
from typing import Any

import numpy as np

from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts
from psrt.errors import ConfigError, TransportError
from psrt.messages import Leave, Report
from psrt.simulation.costs import Costs
from psrt.simulation.event_queue import Agenda, little_garbage
from psrt.simulation.gathering import Gatherings
from psrt.simulation.network import Links
from psrt.simulation.port import VirtualPort
from psrt.transport.port import NO_PAYLOAD, Wiring

#: Ranks that a report of a deadlock tells of; thousands would bury the first.
_TOLD = 8


class _Task:
    """A role that runs: its coroutine and, at the end, its result."""

    __slots__ = ("done", "result", "role")

    def __init__(self, role: Coroutine[Any, Any, Any]) -> None:
        self.role = role
        self.result: Any = None
        self.done = False


class VirtualWorld(Agenda):
    """All ranks of a job, and the scheduler of their roles."""

    def __init__(
        self,
        wiring: Wiring,
        *,
        seed: int,
        costs: Costs | None = None,
        shared_memory: bool = True,
        machine: MachineCosts = DEFAULT_COSTS,
        numerics: bool = True,
    ) -> None:
        """Make a port for every rank.

        Args:
            wiring: who is who.
            seed: decides every delay and every tie.
            costs: what things take.
            shared_memory: whether a server reads gradients where the workers have them; if not
                they are copied when a push arrives, as between hosts.
            machine: what ``auto`` picks an all-reduce by; it need not agree with ``costs``.
            numerics: whether there are any numbers; without them vectors are empty, and messages
                are as long as they would be.
        """
        super().__init__(seed)
        self.wiring = wiring
        self.costs = costs or Costs()
        self.rng = np.random.default_rng(seed)
        self.shared_memory = shared_memory
        self.machine = machine
        self.numerics = numerics
        #: By rank of a server, the seconds that it spent working gradients in.
        self.busy = dict.fromkeys(wiring.servers, 0.0)
        #: By rank, when its role crashed.
        self.crashed: dict[int, float] = {}
        #: Is told the rank of a role that has crashed.
        self.on_crash: Callable[[int], None] = lambda _: None
        #: Takes the reports that reach rank 0.
        self.on_report: Callable[[Report], None] = lambda _: None
        #: What all workers come to: sums without messages.
        self.gatherings = Gatherings(self)
        #: Carries messages.
        self.links = Links(self, self.costs, self.rng, ranks=wiring.size)
        self.ports = [VirtualPort(self, rank) for rank in range(wiring.size)]
        self._tasks: dict[int, _Task] = {}
        #: Roles that have not come to their end.
        self._open = 0
        #: Roles that wait for something to become true: by rank, what asks whether it has.
        self._watches: dict[int, Callable[[], bool]] = {}
        #: Ranks whose watch may be over by what has just happened.
        self._touched: list[int] = []

    def run(self, roles: dict[int, Coroutine[Any, Any, Any]]) -> dict[int, Any]:
        """Run a role at each rank to its end and return their results by rank.

        The result of a role that crashed is None.

        Raises:
            TransportError: if nothing can happen any more and a role is not at its end.
            ConfigError: if a cost is not a time.
        """
        self._tasks = {rank: _Task(role) for rank, role in roles.items()}
        self._open = len(roles)
        for rank in roles:
            self.after(0.0, self.resume, rank)
        try:
            # The loss tells of a run that diverges.
            with little_garbage(), np.errstate(all="ignore"):
                self._go_on()
        finally:
            for task in self._tasks.values():
                task.role.close()
        return {rank: task.result for rank, task in self._tasks.items()}

    def _go_on(self) -> None:
        """Do one thing after the other until every role is at its end."""
        queue, touched = self._queue, self._touched
        while self._open:
            if not queue:
                self._ask_all()
                continue
            self.time, _, _, action, argument = heappop(queue)
            self.events += 1
            action(argument)
            if touched:
                self._look_again()

    def resume(self, rank: int) -> None:
        """Run a role on to its next await that takes time; nothing happens if it has crashed."""
        task = self._tasks[rank]
        if task.done:
            return
        try:
            task.role.send(None)
        except StopIteration as stop:
            task.result, task.done = stop.value, True
            self._open -= 1

    def wake(self, rank: int) -> None:
        """Resume a role that waits for something to arrive."""
        port = self.ports[rank]
        if port.waiting:
            port.waiting = False
            self.resume(rank)

    def watch(self, rank: int, done: Callable[[], bool]) -> None:
        """Resume a role as soon as ``done()``, which is asked when its port is touched."""
        self._watches[rank] = done

    def touch(self, rank: int) -> None:
        """Note that something has changed at a port: a peer has read all that it was sent."""
        if rank in self._watches:
            self._touched.append(rank)

    def _look_again(self) -> None:
        """Resume the roles whose watch is over, and those that this sets free in turn."""
        touched, watches = self._touched, self._watches
        while touched:
            rank = touched.pop()
            if rank in watches and watches[rank]():
                del watches[rank]
                self.resume(rank)

    def _ask_all(self) -> None:
        """Look at every watch, before it is said that nothing can happen any more."""
        watched = len(self._watches)
        self._touched.extend(self._watches)
        self._look_again()
        if self._open and not self._queue and len(self._watches) == watched:
            raise TransportError(self._deadlock())

    def _deadlock(self) -> str:
        dead = [f"{self._name(rank)} crashed at {at:g} s" for rank, at in self.crashed.items()]
        stuck = [rank for rank, task in self._tasks.items() if not task.done]
        waits = [f"rank {rank} waits for {self.ports[rank].whom()}" for rank in stuck[:_TOLD]]
        if len(stuck) > _TOLD:
            waits.append(f"{len(stuck) - _TOLD} other ranks wait, too")
        return f"deadlock at {self.time:.6f} s of virtual time: {'; '.join(dead + waits)}"

    def _name(self, rank: int) -> str:
        worker, shard = self.wiring.worker_of(rank), self.wiring.shard_of(rank)
        return (
            f"server {shard} (rank {rank})" if worker is None else f"worker {worker} (rank {rank})"
        )

    def crash_at(self, rank: int, seconds: float, *, notice_s: float = 0.0) -> None:
        """Let the role at a rank end at a time, wherever it is then; to be asked before ``run``.

        What it has sent arrives. Of a worker's death each server is told ``notice_s`` seconds
        later, and after all that it had sent there, by a ``Leave``; nobody else is. A role that
        is at its end by then does not crash.

        Args:
            rank: of any role.
            seconds: of virtual time.
            notice_s: until the death is noticed.

        Raises:
            ConfigError: if there is no such rank, or that is no time.
        """
        if not 0 <= rank < self.wiring.size:
            raise ConfigError(f"rank {rank} cannot crash, the last is {self.wiring.size - 1}")
        if not (self.time <= seconds < math.inf and 0.0 <= notice_s < math.inf):
            raise ConfigError(
                f"rank {rank} cannot crash at {seconds} s and be missed after {notice_s} s, "
                "expected finite seconds, 0 or more"
            )
        self.after(seconds - self.time, self._crash, (rank, notice_s))

    def _crash(self, what: tuple[int, float]) -> None:
        rank, notice_s = what
        task = self._tasks.get(rank)
        if task is None or task.done:
            return
        task.role.close()
        task.done = True
        self._open -= 1
        self.crashed[rank] = self.time
        self.on_crash(rank)
        for port in self.ports:
            port.forget(rank)
        if self.wiring.worker_of(rank) is not None:
            self.after(notice_s, self._give_notice, rank)

    def _give_notice(self, rank: int) -> None:
        """Tell the servers of a worker's death."""
        port, worker = self.ports[rank], self.wiring.worker_of(rank)
        assert worker is not None, "a server is not missed"
        for server in self.wiring.servers:
            leave = Leave(worker, port.pushed)
            lane = port.lane(server)
            self.links.tell(lane, self.ports[server].deliver, (lane, leave, NO_PAYLOAD, 0))
