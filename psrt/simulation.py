"""A whole job in one process and in virtual time: the same roles, over virtual ports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psrt.build import machine_costs, server_role, supervised_problem, wiring_for, worker_role
from psrt.config import TrainConfig, resolve
from psrt.messages import Report
from psrt.runtime.meter import Meter
from psrt.runtime.problem import Problem
from psrt.runtime.roles import assign_roles
from psrt.runtime.server import Server
from psrt.runtime.worker import Worker
from psrt.transport import Costs, VirtualWorld
from psrt.transport.port import Vector


@dataclass(slots=True)
class SimulatedRun:
    """What came out, and the parts for those who look closer."""

    #: (n,) the final parameters: the servers' spans, or worker 0's where there are none.
    theta: Vector
    #: By shard.
    servers: list[Server]
    #: By worker number.
    workers: list[Worker]
    #: By worker number.
    meters: list[Meter]
    #: Virtual time at the end, in seconds.
    seconds: float
    #: Scheduler events.
    events: int
    #: In order of arrival at rank 0.
    reports: list[Report] = field(default_factory=list)


def simulate(
    config: TrainConfig,
    problem: Problem | None = None,
    *,
    workers: int,
    seed: int = 0,
    costs: Costs | None = None,
    world: type[VirtualWorld] = VirtualWorld,
) -> SimulatedRun:
    """Train in virtual time.

    Args:
        config: need not be resolved; its ``servers`` come on top of ``workers``.
        problem: what is trained; None makes the config's own MLP and data.
        workers: W.
        seed: of the delays: the order of events. The training's own seed is the config's.
        costs: what computing and sending take.
        world: makes the scheduler; a test may bring its own.

    Raises:
        ConfigError: as for a real run.
        TransportError: if the roles deadlock.
    """
    extra = 0 if config.mode == "serial" else config.servers or 1
    mode_servers = resolve(config, ranks=workers + extra).servers or 0
    config = resolve(config, ranks=workers + mode_servers)
    servers, ranks = assign_roles(
        [0] * (workers + mode_servers), mode_servers, config.placement or "first"
    )

    def made() -> Problem:
        return problem or supervised_problem(config, workers=workers)

    initial = np.asarray(made().initial(), np.float32)
    wiring = wiring_for(initial.size, servers, ranks)
    live = world(
        wiring,
        seed=seed,
        costs=costs,
        shared_memory=config.shared_memory,
        machine=machine_costs(config),
    )
    reports: list[Report] = []
    live.on_report = reports.append
    roles: dict[int, Any] = {}
    for rank, span in zip(servers, wiring.spans, strict=True):
        roles[rank] = server_role(live.ports[rank], config, span.of(initial))
    for rank in ranks:
        np.copyto(live.ports[rank].theta, initial)
        roles[rank] = worker_role(live.ports[rank], config, made())
    results = live.run({rank: role.run() for rank, role in roles.items()})
    theta = live.ports[ranks[0]].theta
    if servers:
        theta = np.concatenate([results[rank].theta for rank in servers])
    return SimulatedRun(
        theta=theta.copy(),
        servers=[roles[rank] for rank in servers],
        workers=[roles[rank] for rank in ranks],
        meters=[results[rank] for rank in ranks],
        seconds=live.time,
        events=live.events,
        reports=reports,
    )
