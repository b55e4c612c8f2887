"""Builds the roles of a run, servers and workers, from a resolved ``TrainConfig`` and a port.

With ``problems`` this is the one place that knows both the config and the parts. Nothing here
communicates, so the same roles run over MPI, in simulation, and alone.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from psrt.config import TrainConfig
from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError
from psrt.core.messages import Message
from psrt.core.partition import ShardPlan, Span
from psrt.core.sharding import Sharing
from psrt.data import Deal
from psrt.history import EventLog
from psrt.optim import Optimizer, Schedule, StalenessRate
from psrt.optim.table import Always, Sgd
from psrt.runtime.delays import Delays
from psrt.runtime.elastic import CentreUpdater
from psrt.runtime.event_recorder import ShardEventRecorder, WorkerEventRecorder
from psrt.runtime.job_codec import JobCodec
from psrt.runtime.length import Length
from psrt.runtime.meter import Meter
from psrt.runtime.no_gradient import NoGradient
from psrt.runtime.problem import Problem, problem_of_worker
from psrt.runtime.server import Server
from psrt.runtime.shard import Shard
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.strategies.averaging import OuterStep, PlainAverage
from psrt.runtime.strategies.buckets import buckets_of
from psrt.runtime.strategies.builders import (
    Ingredients,
    answers_met,
    averaging_period,
    build,
    elastic_alpha,
    layers_apart,
)
from psrt.runtime.strategies.pair_gossip import Turns
from psrt.runtime.strategies.shares import most_owned, room_of
from psrt.runtime.updater import Updater
from psrt.runtime.worker import Worker
from psrt.sync import Policy, policy_for
from psrt.topology import Topology
from psrt.transport.port import Port, RoleMap, ThetaMemory


def role_map_for(
    n: int,
    servers: tuple[int, ...],
    workers: tuple[int, ...],
    *,
    shards_per_server: int = 1,
    layers: Sequence[Span] = (),
    controls: int = 1,
) -> RoleMap:
    """Split n parameters into shards and assign them to the servers in turn.

    Consecutive shards are at different servers, so that the last layers, whose gradient is known
    first, keep all of them busy.

    Args:
        n: number of parameters.
        servers: ranks of the servers; empty if workers sum without them.
        workers: ranks of the workers, worker 0 first.
        shards_per_server: with one, shards are of equal size; several are split between layers
            if that balances.
        layers: the spans of the layers, in any order.
        controls: sums over all workers that may be in flight at a time, without servers.

    Raises:
        ConfigError: if a shard would own nothing.
    """
    if not servers:
        return RoleMap(n, workers=workers, controls=controls)
    count = len(servers) * shards_per_server
    plan = ShardPlan.layered(n, count, layers) if count > len(servers) else ShardPlan.even(n, count)
    return RoleMap(n, workers=workers, servers=servers * shards_per_server, spans=plan.spans)


def theta_memory(config: TrainConfig) -> ThetaMemory:
    """Return what the ``theta`` of a worker may be on a host with its servers.

    Args:
        config: resolved.
    """
    mode = config.scheme
    if mode.averages:
        return ThetaMemory.OWN  # a worker takes local steps
    if config.codec_reply is not None and config.codec_everywhere:
        return ThetaMemory.OWN  # a worker accumulates what it receives
    if mode.rounds and not mode.backup:
        return ThetaMemory.SHARED  # all have pushed before a version is made
    return ThetaMemory.LANDING


def server_role(
    port: Port,
    config: TrainConfig,
    initial: Vector,
    *,
    log: EventLog | None = None,
    receive: Callable[[], Awaitable[Message]] | None = None,
    codec: JobCodec | None = None,
) -> Server:
    """Build the server at ``port``.

    Args:
        port: at a server's rank.
        config: resolved.
        initial: (n,) float32, the initial parameters; empty without numerics.
        log: records events for the history; None keeps none.
        receive: returns the next message, in another order; None asks the port.
        codec: of the pushes; None if gradients are pushed uncompressed.
    """
    role_map = port.role_map
    shards = [
        _shard_server(port, config, number, role_map.spans[number].of(initial), log, codec)
        for number in role_map.shards_of(port.rank)
    ]
    return Server(port, shards, receive=receive)


def _shard_server(
    port: Port,
    config: TrainConfig,
    number: int,
    initial: Vector,
    log: EventLog | None,
    codec: JobCodec | None,
) -> ShardServer:
    """Build the server of one shard; ``initial`` is its span of the initial parameters."""
    workers = len(port.role_map.workers)
    mode = config.scheme
    rate = rate_of(config, initial.size) if mode.weakens else None
    meets = answers_met(config, codec)
    decoder = None if codec is None or not initial.size else codec.decoder(port, number)
    shard = Shard(
        port.versions[number],
        initial,
        _shared_updater(
            config, initial.size, workers, rate, codec, watched=log is not None and log.is_exact
        ),
        payload=partial(port.payload, number) if decoder is None else decoder.gradient,
        workers=workers,
        by_samples=mode.rounds,
        whole=mode.elastic is not None,
        # A frame has a worker's difference to what it read, which may be an older centre.
        keeps_reads=meets and codec is not None,
        rate=rate,
        gaps=mode.is_stale and initial.size > 0,
    )
    events = None if log is None else ShardEventRecorder(log, number)
    policy = policy_of(config, workers)
    replies = None if codec is None else codec.reply_encoder(port, number, initial)
    return ShardServer(
        port,
        number,
        shard,
        policy,
        decoder=decoder,
        replies=replies,
        answers_met=meets,
        steps=averaging_period(mode).steps if mode.averages else None,
        events=events,
    )


def _shared_updater(
    config: TrainConfig,
    n: int,
    workers: int,
    rate: StalenessRate | None,
    codec: JobCodec | None,
    *,
    watched: bool,
) -> Updater:
    """Return the updater that makes a shard's next version from pushes."""
    mode = config.scheme
    if mode.elastic is not None:
        alpha = elastic_alpha(mode, workers)
        centre = CentreUpdater(n, alpha, differences=codec is not None)
        centre.watches = watched and n > 0
        return centre
    if mode.averages:
        return _outer_updater(config, n, differences=codec is not None)
    return _updater(config, n, rate)


def worker_role(
    port: Port,
    config: TrainConfig,
    problem: Problem,
    *,
    number: int | None = None,
    log: EventLog | None = None,
    control_algorithm: str | None = None,
    codec: JobCodec | None = None,
    deal: Deal | None = None,
    topology: Topology | None = None,
    turns: Turns | None = None,
    members: Callable[[int], Awaitable[Sequence[int]]] | None = None,
) -> Worker:
    """Build the worker at ``port``, whose ``theta`` holds the initial parameters.

    Collective over the workers of modes without servers, which agree on how to sum.

    Args:
        port: at a worker's rank.
        config: resolved.
        problem: the model and data to train.
        number: of the worker in the job, if it differs from that of its port.
        log: records events for the history; None keeps none.
        control_algorithm: the all-reduce of the control values, if a replay prescribes it; None
            derives it from the config's all-reduce.
        codec: of the pushes; None if gradients are pushed uncompressed.
        deal: the samples of each worker; None if the problem makes batches of all samples.
        topology: the neighbours of workers; None without.
        turns: in a replay of gossip by pairs, when the worker did what.
        members: returns the workers that share an epoch's samples; None for always all.

    Raises:
        ConfigError: if the port cannot sum as the config says, or the problem's gradient spans
            are invalid.
    """
    worker = port.role_map.worker_of(port.rank)
    assert worker is not None, "only worker ranks have a worker's role"
    number = worker if number is None else number
    problem = problem_of_worker(problem, number)
    return Worker(
        port,
        problem,
        build(
            Ingredients(
                port=port,
                config=config,
                problem=problem,
                updater=partial(_updater, config),
                outer=partial(_outer_updater, config),
                codec=codec,
                events=None if log is None else WorkerEventRecorder(log, worker),
                control_algorithm=control_algorithm,
                topology=topology,
                turns=turns,
            )
        ),
        Meter(port, number, log_every=config.log_every, sketch_every=config.consensus_every or 0),
        length=length_of(config),
        clip_norm=config.clip_norm,
        no_gradient=NoGradient(config, len(port.role_map.workers)),
        dealt=None if deal is None else partial(_dealt, deal, worker),
        members=members,
        delays=_delays(config, number),
        rng=np.random.default_rng((config.seed, port.rank if number == worker else number)),
    )


def _dealt(
    deal: Deal, worker: int, epoch: int, members: Sequence[int]
) -> Sequence[np.ndarray[Any, Any]]:
    return deal.among(members).batches(worker, epoch)


def length_of(config: TrainConfig) -> Length:
    """Return the length of a worker's training, by a resolved config."""
    return Length(
        math.inf if config.epochs is None else config.epochs,
        math.inf if config.steps is None else config.steps,
    )


def _delays(config: TrainConfig, worker: int) -> Delays | None:
    """Return the injected delays of a worker, None without any."""
    delays = [(it.kind, it.numbers) for it in config.inject if it.worker in (None, worker)]
    return Delays(delays) if delays else None


def policy_of(config: TrainConfig, workers: int) -> Policy:
    """Return the policy of one shard, by a resolved config."""
    most = None if config.staleness_rate is None else config.staleness_rate.most
    return policy_for(config.scheme, workers, late=math.inf if most is None else most)


def held_by_workers(config: TrainConfig, problem: Problem, role_map: RoleMap) -> RoleMap:
    """Return a role map with what a worker holds, if it does not hold everything.

    Raises:
        ConfigError: if sharded vectors are used layer by layer, and the problem is not a chain.
    """
    shard = config.scheme.shard
    if shard is None or shard == Sharing.OPTIMIZER.value:
        return role_map
    try:
        spans = layers_apart(problem, role_map.n)
    except ConfigError as error:
        raise ConfigError(f"--mode {config.scheme.name}:shard={shard}: {error}") from None
    return held_of_layers(config, spans, role_map)


def held_of_layers(config: TrainConfig, spans: Sequence[Span], role_map: RoleMap) -> RoleMap:
    """Return a role map with what a worker holds of layers, the last layer first."""
    mode = config.scheme
    if mode.shard is None or mode.shard == Sharing.OPTIMIZER.value:
        return role_map
    buckets = [bucket.span for bucket in buckets_of(spans, mode.bucket_bytes or 0)]
    room, theta = room_of(buckets), None
    if mode.shard == Sharing.PARAMETERS.value:
        theta = most_owned(buckets, len(role_map.workers)) + room
    return replace(role_map, held_gradient=room, held_theta=theta)


def _updater(config: TrainConfig, n: int, rate: StalenessRate | None = None) -> Updater:
    optimizer = config.optimizer.make(n, weight_decay=config.weight_decay)
    elementwise = rate if rate is not None and rate.elementwise else None
    return Updater(n, optimizer, _schedule(config), rate=elementwise)


def _outer_updater(config: TrainConfig, n: int, *, differences: bool) -> Updater:
    """Return the updater that moves θ to the mean of the θ_i, by the outer optimizer, if any.

    Args:
        config: resolved.
        n: elements of θ.
        differences: whether its input is the mean of Δ_i = θ − θ_i instead of that of the θ_i.
    """
    outer: Optimizer = Sgd().make(n) if differences else PlainAverage()
    rate = 1.0
    if (row := config.scheme.outer) is not None:
        rate, step = row.lr, row.make(n)
        outer = step if differences else OuterStep(step)
    return Updater(n, outer, Schedule(Always(), rate, epochs=1.0))


def _schedule(config: TrainConfig) -> Schedule:
    assert config.lr is not None, "a resolved config has a learning rate"
    return Schedule(
        config.schedule,
        config.lr,
        epochs=math.inf if config.epochs is None else config.epochs,
    )


def rate_of(config: TrainConfig, n: int) -> StalenessRate | None:
    """Return the staleness-aware rate of n parameters; None if r is always 1."""
    row = config.staleness_rate
    if row is None or row.never_scales:  # dropping is up to the policy
        return None
    rate: StalenessRate = row.make(n, max_lr=_schedule(config).peak)
    return rate
