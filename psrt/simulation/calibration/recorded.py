"""Costs of a simulation that replay the durations of a recorded run.

Step c of worker i takes as long as in the run, in every part; after the last recorded step the
first one follows again. So the run's order in time is kept. A slowdown over several steps stays
one, ranks delayed at the same time by a shared core are so again, and ranks that finish first leave
the machine to the others.
"""

from __future__ import annotations

import math

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.messages import Leave, Message, Params, Push, Relay, Tick
from psrt.simulation import SimulationCosts
from psrt.simulation.calibration.times import Calibration
from psrt.simulation.calibration.track import Receipts, Track
from psrt.simulation.calibration.wire import Wire
from psrt.transport import RoleMap


class RecordedCosts:
    """The costs of one simulated job. They count its steps, so another job needs new ones."""

    def __init__(self, times: Calibration, role_map: RoleMap) -> None:
        """Set up.

        Args:
            times: of the recorded run. Worker and shard i replay those of the same number, modulo
                the numbers of the run.
            role_map: of the simulated job.
        """
        self._times, self._role_map = times, role_map
        workers = len(role_map.workers)
        #: By rank; empty where all are on one.
        self._hosts = [] if times.wire is None else _hosts_of(times.wire, role_map)
        self._compute = Track(times.compute, workers=workers)
        self._reply = Track(times.reply, workers=workers)
        #: By shard of the job.
        self._receipts = [
            Receipts(times.shards[number % len(times.shards)], workers=workers)
            for number in range(len(role_map.servers) if times.shards else 0)
        ]
        #: By rank: gradients computed, and replies since the last one.
        self._computed = [0] * role_map.size
        self._replies = [0] * role_map.size
        #: By shard and number of gradients, the number of updates; and the number of sums.
        self._updates: dict[tuple[int, int], int] = {}
        self._sums = 0

    def costs(self) -> SimulationCosts:
        """Return the costs for a simulator.

        Raises:
            ConfigError: if the job needs servers or sums, and the run had none.
        """
        _check(self._times, self._role_map)
        served = bool(self._role_map.servers)
        # On one host latency is part of wake_up and reply.
        wire = self._times.wire if served else None
        return SimulationCosts(
            compute=self.compute,
            latency=lambda rng: 0.0 if wire is None else wire.latency,
            bandwidth=math.inf if wire is None else wire.bandwidth,
            hosts=self._hosts or None,
            receive=self.receive if served else None,
            apply=self.apply if served else None,
            last_sum=self._times.last_sum,
            reduce=self.reduce if self._times.sums.size and not served else None,
        )

    def compute(self, rank: int, rng: np.random.Generator) -> float:
        """Return how long a worker computes its next gradient."""
        step = self._computed[rank]
        self._computed[rank] += 1
        self._replies[rank] = 0
        return self._compute.at(self._worker(rank), step)

    def receive(self, rank: int, message: Message, idle: bool, rng: np.random.Generator) -> float:
        """Return how long a rank takes to receive a message, without its transfer between hosts."""
        if self._is_remote(message, rank):
            return 0.0
        if isinstance(message, Params):
            self._replies[rank] += 1
            if self._replies[rank] % len(self._role_map.servers):
                return 0.0  # a worker continues at the last of the replies
            return self._reply.at(self._worker(rank), message.clock - 1)
        receipts = self._receipts[message.shard]
        assert not isinstance(message, Tick), "no rank sends a tick"
        if isinstance(message, Relay):  # between servers, of which no times are recorded
            return receipts.usual(idle=idle)
        if isinstance(message, Push) and not message.samples and message.version < message.clock:
            # A shard that backups left behind is asked again. The recorded times of this clock
            # belong to the push that follows.
            return receipts.usual(idle=idle)
        # A worker's Leave has the number of its finished steps: one more than its last push.
        step = message.clock - isinstance(message, Leave)
        return receipts.at(message.worker, max(0, step), idle=idle)

    def _is_remote(self, message: Message, rank: int) -> bool:
        """Return whether a message came from another host."""
        if not self._hosts:
            return False
        role_map = self._role_map
        assert not isinstance(message, Tick), "no rank sends a tick"
        if isinstance(message, Relay):
            source = role_map.servers[0]
        elif isinstance(message, Params):
            source = role_map.servers[message.shard]
        else:
            source = role_map.workers[message.worker]
        return self._hosts[source] != self._hosts[rank]

    def apply(self, shard: int, nbytes: int, rng: np.random.Generator) -> float:
        """Return how long a server takes to apply gradients to a shard.

        If the run had no update of that many gradients, the nearest recorded number is scaled in
        proportion. So is an update of a span of another length.
        """
        recorded = self._times.shards[shard % len(self._times.shards)]
        if not recorded.update:
            return 0.0
        size = self._role_map.spans[shard].size
        gradients = max(1, round(nbytes / (4 * size)))
        nearest = min(recorded.update, key=lambda known: abs(math.log(known / gradients)))
        seconds, key = recorded.update[nearest], (shard, nearest)
        update = self._updates[key] = self._updates.get(key, -1) + 1
        scale = gradients / nearest * size / recorded.size
        return scale * float(seconds[update % len(seconds)])

    def reduce(self, rng: np.random.Generator) -> float:
        """Return how long the next sum takes after the last worker's arrival."""
        sums = self._times.sums
        self._sums += 1
        return float(sums[(self._sums - 1) % len(sums)])

    def _worker(self, rank: int) -> int:
        worker = self._role_map.worker_of(rank)
        assert worker is not None, "only workers compute and are replied to"
        return worker


def _hosts_of(wire: Wire, role_map: RoleMap) -> list[int]:
    """Return the host of each rank; extra ranks are on extra hosts, arranged as in the run."""
    hosts = [0] * role_map.size
    kinds = (role_map.workers, wire.workers), (role_map.server_ranks, wire.servers)
    for ranks, recorded in kinds if role_map.servers else ():
        for number, rank in enumerate(ranks):
            cycle, i = divmod(number, len(recorded))
            hosts[rank] = recorded[i] + cycle * wire.hosts
    return hosts


def _check(times: Calibration, role_map: RoleMap) -> None:
    """Raise if a job needs servers or sums, and the run had none."""
    if role_map.peers:
        raise ConfigError(
            "no recorded run has the times of averages among neighbours: expected --compute and "
            "--link instead of --like"
        )
    if role_map.servers and not times.shards:
        raise ConfigError("the run had no servers, so their times are unknown")
    if not role_map.servers and len(role_map.workers) > 1 and not times.sums.size:
        raise ConfigError("the run had no sums over all workers, so their times are unknown")
