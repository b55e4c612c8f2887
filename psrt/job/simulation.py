"""A whole job in one process and in virtual time: the same roles, over virtual ports.

Without numerics the roles are still the same; what they carry is not. Gradients and parameters are
empty, a batch is the number of its samples, and bytes are counted as if all of it were there. Who
waits and how stale a gradient is never depends on the numbers, so times, staleness and histories
are those of a run that has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from psrt.config import TrainConfig
from psrt.history import EventLog
from psrt.history.replay import Sequencer
from psrt.job.build import server_role, worker_role
from psrt.job.stage import Crashes, Stage, set_up
from psrt.messages import Report
from psrt.runtime.meter import Meter
from psrt.runtime.problem import Problem
from psrt.runtime.server import Server
from psrt.runtime.worker import Worker
from psrt.simulation import Costs, VirtualWorld
from psrt.transport import Wiring
from psrt.transport.port import Vector


@dataclass(slots=True)
class SimulatedRun:
    """What came out, and the parts for those who look closer."""

    #: (n,) the final parameters: the servers' spans, or worker 0's where there are none; empty
    #: without numerics.
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
    #: Where it happened: ports by rank, and how busy each server was.
    world: VirtualWorld
    #: What was played.
    stage: Stage
    #: In order of arrival at rank 0.
    reports: list[Report] = field(default_factory=list)


def simulate(
    config: TrainConfig,
    problem: Problem | None = None,
    *,
    workers: int,
    seed: int = 0,
    costs: Costs | Callable[[Wiring], Costs] | None = None,
    world: type[VirtualWorld] = VirtualWorld,
    numerics: bool = True,
    parameters: int | None = None,
    crashes: Crashes = (),
    log: EventLog | None = None,
) -> SimulatedRun:
    """Train in virtual time.

    Args:
        config: need not be resolved; its ``servers`` come on top of ``workers``.
        problem: what is trained, by all workers in turn; None makes the config's own MLP and data.
        workers: W, at least 1.
        seed: of the delays: the order of events. The training's own seed is the config's.
        costs: what computing and sending take, or what tells it of a wiring.
        world: makes the scheduler; a test may bring its own.
        numerics: whether to compute; if not, ``problem`` is a ``NoNumbers``, or None.
        parameters: n, only without numerics; None is that of the config's model.
        crashes: (worker, seconds) each: when it dies, without a word.
        log: takes the events of all ranks, for the history; the caller closes it.

    Raises:
        ConfigError: as for a real run.
        TransportError: if the roles deadlock, as they do when others wait for one that crashed.
        ReplayError: if a replay does not come to what the recorded run did.
    """
    stage = set_up(
        config,
        problem,
        workers=workers,
        numerics=numerics,
        parameters=parameters,
        crashes=crashes,
    )
    costs = costs(stage.wiring) if callable(costs) else costs
    return play(stage, seed=seed, costs=costs, world=world, log=log)


def play(
    stage: Stage,
    *,
    seed: int,
    costs: Costs | None = None,
    world: type[VirtualWorld] = VirtualWorld,
    log: EventLog | None = None,
    prepared: Callable[[VirtualWorld, list[Worker]], None] = lambda *_: None,
) -> SimulatedRun:
    """Train in virtual time what has been set up.

    Args:
        stage: the job.
        seed: of the delays: the order of events.
        costs: what computing and sending take.
        world: makes the scheduler.
        log: takes the events of all ranks; the caller closes it.
        prepared: is called before the first event, with the world and the workers by number.

    Raises:
        TransportError, ReplayError: as ``simulate``.
    """
    wiring, replay = stage.wiring, stage.replay
    live = world(
        wiring,
        seed=seed,
        costs=costs,
        shared_memory=stage.config.shared_memory,
        machine=stage.machine,
        **({} if stage.numerics else {"numerics": False}),
    )
    reports: list[Report] = []
    live.on_report = reports.append
    servers, sequencers = _servers(stage, live, log)
    workers = _workers(stage, live, log)
    for worker, seconds in stage.crashes:
        live.crash_at(wiring.workers[worker], seconds)
    prepared(live, workers)
    roles: list[tuple[int, Server | Worker]] = [
        *zip(wiring.servers, servers, strict=True),
        *zip(wiring.workers, workers, strict=True),
    ]
    live.run({rank: role.run() for rank, role in roles})
    for sequencer in sequencers:
        sequencer.finish()
    theta = _final_theta(live, servers)
    if replay is not None:
        replay.verdict(theta)
    return SimulatedRun(
        theta=theta,
        servers=servers,
        workers=workers,
        meters=[worker.meter for worker in workers],
        seconds=live.time,
        events=live.events,
        world=live,
        stage=stage,
        reports=reports,
    )


def _servers(
    stage: Stage, live: VirtualWorld, log: EventLog | None
) -> tuple[list[Server], list[Sequencer]]:
    """Make the servers by shard and, for a replay, what puts their messages in order."""
    servers: list[Server] = []
    sequencers: list[Sequencer] = []
    for shard, (rank, span) in enumerate(zip(live.wiring.servers, live.wiring.spans, strict=True)):
        port, receive = live.ports[rank], None
        if stage.replay is not None:
            sequencers.append(Sequencer(port.receive, stage.replay.scripts[shard]))
            receive = sequencers[-1].receive
        given = span.of(stage.initial) if stage.numerics else stage.initial
        servers.append(server_role(port, stage.config, given, log=log, receive=receive))
        if stage.replay is not None:
            port.whom = sequencers[-1].whom
    return servers, sequencers


def _workers(stage: Stage, live: VirtualWorld, log: EventLog | None) -> list[Worker]:
    """Make the workers by number."""
    extras = None if stage.replay is None else stage.replay.extras
    workers: list[Worker] = []
    for rank in live.wiring.workers:
        port = live.ports[rank]
        np.copyto(port.theta, stage.initial)
        workers.append(worker_role(port, stage.config, stage.problem, log=log, extras=extras))
    return workers


def _final_theta(live: VirtualWorld, servers: list[Server]) -> Vector:
    """Return the parameters at the end, in memory of their own."""
    if servers:
        return np.concatenate([server.shard.theta for server in servers])
    return live.ports[live.wiring.workers[0]].theta.copy()
