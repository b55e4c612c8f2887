"""The simulator of a job: all ranks in one process, their ports, and the network between them.

The seed decides every delay and every tie. The same seed gives the same run, event for event and
bit-identically; another seed gives another interleaving. The cost of an event does not depend on
the number of ranks, so thousands can be simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from psrt.codec.times import FrameTimes
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts
from psrt.core.errors import ConfigError
from psrt.core.messages import Leave
from psrt.core.stats import Sent
from psrt.simulation.cell import SimulatedCell
from psrt.simulation.cores import Cores
from psrt.simulation.costs import SimulationCosts
from psrt.simulation.event_queue import Action
from psrt.simulation.network import Carrier, Channel, Network
from psrt.simulation.port import VirtualPort
from psrt.simulation.rendezvous import RendezvousTable
from psrt.simulation.scheduler import Scheduler
from psrt.simulation.shared_links import SharedLinks
from psrt.transport.port import NO_PAYLOAD, RoleMap

if TYPE_CHECKING:
    from psrt.simulation.stage_links import VirtualStageLinks

#: Ranks named in a report of a deadlock: thousands would bury the first.
_NAMED = 8


class Simulator(Scheduler):
    """All ranks of a job, and the scheduler of their roles."""

    def __init__(
        self,
        role_map: RoleMap,
        *,
        seed: int,
        costs: SimulationCosts | None = None,
        shared_memory: bool = True,
        machine: MachineCosts = DEFAULT_COSTS,
        numerics: bool = True,
        cells: Sequence[tuple[RoleMap, Sequence[int]]] = (),
    ) -> None:
        """Make a port for every rank.

        Args:
            role_map: the ranks of workers and servers, and the spans of the shards.
            seed: decides every delay and every tie.
            costs: the durations of computing, sending and updating.
            shared_memory: whether a server reads gradients in the workers' memory; if not, they
                are copied when a push arrives, as between hosts.
            machine: the costs by which ``auto`` picks an all-reduce; may differ from ``costs``.
                Times of a host's shared memory always come from here, since ``costs`` has none.
            numerics: whether to compute; if not, vectors are empty, and messages keep the length
                that they would have.
            cells: of a split model: for each cell, its role map, and for each of its ranks the
                rank of the job.
        """
        super().__init__(seed)
        self.role_map = role_map
        self.costs = costs or SimulationCosts()
        self.rng = np.random.default_rng(seed)
        self.shared_memory = shared_memory
        self.machine = machine
        self.numerics = numerics
        #: By rank of a part of the job, the rank in the job: None, as this is the job.
        self.ranks: Sequence[int] | None = None
        #: By rank, the time at which its role crashed, in seconds.
        self.crashed: dict[int, float] = {}
        #: Ranks that were declared dead, because no rank had heard from them for too long.
        self.suspected: set[int] = set()
        #: Called with the rank of a role that has crashed, and again when its absence is noticed.
        self.on_crash: Callable[[int], None] = lambda _: None
        self.on_missed: Callable[[int], None] = lambda _: None
        #: Called with every report that reaches rank 0.
        self.on_report: Callable[[Sent], None] = lambda _: None
        #: The costs of frames; None where no frames are sent, or where they take no time.
        self.frames: FrameTimes | None = None
        #: By rank, the cores that it shares; None: each rank has a core of its own.
        self.cores: Sequence[Cores] | None = None
        if self.costs.cores is not None:
            made = {it: Cores(self, number) for it, number in dict(self.costs.cores).items()}
            self.cores = [made[machine] for machine, _ in self.costs.cores]
        #: The sums without messages, by key.
        self.rendezvous = RendezvousTable(self)
        #: Carries messages.
        shared = self.costs.hosts is not None
        links: type[Network | SharedLinks] = SharedLinks if shared else Network
        self.network: Carrier = links(self, self.costs, self.rng, ranks=role_map.size)
        #: Of a split model: by rank of a worker, its links to other stages.
        self.links: Mapping[int, VirtualStageLinks] = {}
        #: By rank of the job.
        self.ports: list[VirtualPort]
        if cells:
            parts = [SimulatedCell(self, *it) for it in cells]
            found = {
                rank: port
                for part in parts
                for rank, port in zip(part.ranks, part.ports, strict=True)
            }
            self.ports = [found[rank] for rank in range(role_map.size)]
        else:
            self.ports = [VirtualPort(self, rank) for rank in range(role_map.size)]

    @property
    def busy(self) -> dict[int, float]:
        """By rank of a server, the seconds that it has spent applying gradients."""
        return {rank: self.ports[rank].busy_s for rank in self.role_map.server_ranks}

    def wake(self, rank: int) -> None:
        """Resume a role that waits for an arrival."""
        port = self.ports[rank]
        if port.waiting:
            port.waiting = False
            self.resume(rank)

    def give_up(self, waiting: Sequence[int]) -> bool:
        """End ranks that were declared dead and came back after all others had ended."""
        found = [rank for rank in waiting if rank in self.suspected]
        for rank in found:
            self.end(rank)
            self.fenced(rank)
        return bool(found)

    def deadlock(self, waiting: Sequence[int]) -> str:
        """Describe the ranks that wait, and those that have crashed."""
        parts = [f"{self.name(rank)} crashed at {at:g} s" for rank, at in self.crashed.items()]
        parts += [
            f"rank {rank} waits for {self.ports[rank].waiting_for()}" for rank in waiting[:_NAMED]
        ]
        if len(waiting) > _NAMED:
            parts.append(f"{len(waiting) - _NAMED} other ranks wait, too")
        return f"deadlock at {self.time:.6f} s of virtual time: {'; '.join(parts)}"

    def name(self, rank: int) -> str:
        """Return the role and number of a rank, for messages."""
        worker = self.role_map.worker_of(rank)
        if worker is None:
            return f"server {self.role_map.server_ranks.index(rank)} (rank {rank})"
        return f"worker {worker} (rank {rank})"

    def crash_at(self, rank: int, seconds: float, *, notice_s: float = 0.0) -> None:
        """Schedule the crash of a role; must be called before ``run``.

        Messages that it has sent still arrive. If a worker crashes, each shard gets a ``Leave`` of
        it ``notice_s`` later, after everything that the worker sent there. No other rank is
        notified, but ``on_missed`` may then end the job.
        A role that has ended by then does not crash.

        Args:
            rank: of any role.
            seconds: the virtual time of the crash.
            notice_s: the delay until the servers notice, in seconds.

        Raises:
            ConfigError: if there is no such rank, or a time is negative or not finite.
        """
        if not 0 <= rank < self.role_map.size:
            raise ConfigError(f"rank {rank} cannot crash, the last is {self.role_map.size - 1}")
        if not (self.time <= seconds < math.inf and 0.0 <= notice_s < math.inf):
            raise ConfigError(
                f"rank {rank} cannot crash at {seconds} s and be missed after {notice_s} s, "
                "expected finite seconds, 0 or more"
            )
        self.after(seconds - self.time, lambda _: self.crash(rank, notice_s))

    def crash(self, rank: int, notice_s: float = 0.0) -> None:
        """Crash a role now, see ``crash_at``."""
        if not self.end(rank):
            return
        self.crashed[rank] = self.time
        self.on_crash(rank)
        if self.ports[rank].world is self:  # a crash in a split model ends the job
            for port in self.ports:
                port.forget(rank)
        self.after(notice_s, self._give_notice, rank)

    def suspect(self, rank: int, *, for_ever: bool = False) -> None:
        """Declare a role dead, which may still be alive.

        With servers it runs until a server tells it so. Its neighbours in gossip ignore it from
        now on, so without servers it ends at once.

        Args:
            rank: of any role.
            for_ever: whether no rank will ever hear from it again.
        """
        self.suspected.add(rank)
        if self.is_running(rank) and (for_ever or not self.role_map.servers):
            self.crash(rank)
        else:  # the role may have ended by itself, and its Leave may be held up for ever
            self._give_notice(rank)

    def fenced(self, rank: int) -> None:
        """Note that a role has learned that the others continue without it, and has ended."""
        self.crashed[rank] = self.time
        self.on_crash(rank)
        for port in self.ports:
            port.forget(rank)

    def _give_notice(self, rank: int) -> None:
        """Send the ``Leave`` of a crashed worker to the servers, or to its neighbours."""
        self.on_missed(rank)
        self._tell(rank)

    def _tell(self, rank: int) -> None:
        port, role_map = self.ports[rank], self.role_map
        worker = role_map.worker_of(rank)
        if worker is None:
            return
        missed = [(to, it, port.pushed.get(it, 0)) for it, to in enumerate(role_map.servers)]
        for peer in role_map.peers[worker] if role_map.peers else ():
            to = role_map.workers[peer]
            missed.append((to, 0, port.mixed.get(to, 0)))
        for to, shard, clock in missed:
            leave = Leave(worker, clock, shard, missed=True)
            channel, deliver = port.channel(to, shard), self.ports[to].deliver
            notice = channel, deliver, (channel, leave, NO_PAYLOAD, 0)
            if port.left < self.time:
                self._follow(notice)
            else:  # frames that it was encoding when it crashed are still sent
                self.at(port.left, self._follow, notice, not_before=port.left)

    def _follow(self, notice: tuple[Channel, Action, Any]) -> None:
        self.network.follow(*notice)
