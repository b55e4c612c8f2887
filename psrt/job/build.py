"""Builds the roles of a run, servers and workers, from a resolved ``TrainConfig`` and a port.

With ``problems`` this is the one place that knows both the config and the parts. Nothing here
communicates, so the same roles run over MPI, in simulation, and alone.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from psrt.codec.matrices import Matrix
from psrt.config import TrainConfig
from psrt.config.modes import Mode
from psrt.config.names import EQUAL, QUALITY, SAMPLES
from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError
from psrt.core.messages import Push
from psrt.core.partition import ShardPlan, Span, even_spans
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
from psrt.runtime.paces import Paces, Slack
from psrt.runtime.problem import Problem, own_optimizer, problem_of_worker
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
from psrt.runtime.watched import WatchedUpdater
from psrt.runtime.worker import Worker
from psrt.sync import Policy, policy_for
from psrt.topology import Topology
from psrt.transport.port import MOST_VERSIONS, VERSIONS, Port, RoleMap, ThetaMemory


def role_map_for(
    n: int,
    servers: tuple[int, ...],
    workers: tuple[int, ...],
    *,
    shards_per_server: int = 1,
    layers: Sequence[Span] = (),
    controls: int = 1,
    fragments: Sequence[Sequence[Span]] = (),
    relays: bool = False,
    reads_late: bool = False,
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
        fragments: the spans of each, if shards are merged fragment by fragment: every server then
            has a part of each span.
        relays: whether the first shard, of each fragment, decides for the others.
        reads_late: whether others continue while a worker has an answer to read: for a step, or as
            long as it is silent.

    Raises:
        ConfigError: if a shard would own nothing.
    """
    if not servers:
        return RoleMap(n, workers=workers, controls=controls)
    # A version that somebody has yet to read is not overwritten. All may have different ones to
    # read; but memory for many would be in use only where many steps are as long as a merge.
    versions = min(len(workers) + 2, MOST_VERSIONS) if reads_late else VERSIONS
    if fragments:
        role_map = _map_of_fragments(n, servers, workers, fragments)
        return replace(role_map, versions=versions)
    count = len(servers) * shards_per_server
    plan = ShardPlan.layered(n, count, layers) if count > len(servers) else ShardPlan.even(n, count)
    owners = servers * shards_per_server
    deciders = (0,) * count if relays else ()
    return RoleMap(
        n,
        workers=workers,
        servers=owners,
        spans=plan.spans,
        deciders=deciders,
        versions=versions,
    )


def _map_of_fragments(
    n: int,
    servers: tuple[int, ...],
    workers: tuple[int, ...],
    fragments: Sequence[Sequence[Span]],
) -> RoleMap:
    """Return the role map of fragments; the first server has the first shard of each.

    Raises:
        ConfigError: if a server would own nothing of a fragment.
    """
    pieces = sorted((span, f) for f, spans in enumerate(fragments) for span in spans)
    spans: list[Span] = []
    first: dict[int, int] = {}
    deciders: list[int] = []
    for piece, fragment in pieces:
        first.setdefault(fragment, len(spans))
        parts = even_spans(piece.size, len(servers))
        if not parts[-1].size:
            raise ConfigError(
                f"a span of {piece.size} parameters cannot be split over {len(servers)} servers"
            )
        spans += [Span(piece.start + it.start, piece.start + it.stop) for it in parts]
        deciders += [first[fragment]] * len(servers)
    return RoleMap(
        n,
        workers=workers,
        servers=servers * len(pieces),
        spans=tuple(spans),
        deciders=tuple(deciders),
    )


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
    codec: JobCodec | None = None,
    matrices: Sequence[Matrix] = (),
    sync_s: float = 0.0,
    problem: Problem | None = None,
) -> Server:
    """Build the server at ``port``.

    Args:
        port: at a server's rank.
        config: resolved.
        initial: (n,) float32, the initial parameters; empty without numerics.
        log: records events for the history; None keeps none.
        codec: of the pushes; None if gradients are pushed uncompressed.
        matrices: among the parameters.
        sync_s: seconds of a push and its answer, as predicted.
        problem: makes the optimizer, if it brings one.
    """
    role_map = port.role_map
    updater = partial(_updater, config, problem)
    shards = [
        _shard_server(
            port,
            config,
            number,
            role_map.spans[number].of(initial),
            log,
            codec,
            matrices,
            sync_s,
            updater,
        )
        for number in role_map.shards_of(port.rank)
    ]
    return Server(port, shards)


def _shard_server(
    port: Port,
    config: TrainConfig,
    number: int,
    initial: Vector,
    log: EventLog | None,
    codec: JobCodec | None,
    matrices: Sequence[Matrix],
    sync_s: float,
    updater: Callable[[Sequence[Span], StalenessRate | None], Updater],
) -> ShardServer:
    """Build the server of one shard; ``initial`` is its span of the initial parameters."""
    workers = len(port.role_map.workers)
    mode, span = config.scheme, port.role_map.spans[number]
    rate = rate_of(config, initial.size) if mode.weakens else None
    meets = answers_met(config, codec)
    decoder = None if codec is None or not initial.size else codec.decoder(port, number)
    shard = Shard(
        port.versions[number],
        initial,
        _shared_updater(
            config,
            initial.size,
            workers,
            rate,
            codec,
            partial(updater, (span if initial.size else Span(0, 0),), rate),
            watched=log is not None and log.is_exact,
            tensors=tensors_in(span, matrices) if initial.size else (),
        ),
        payload=partial(port.payload, number) if decoder is None else decoder.gradient,
        workers=workers,
        by_samples=mode.rounds,
        whole=mode.elastic is not None,
        weigh=_WEIGHTS[mode.weights] if mode.merges else None,
        # A frame has a worker's difference to what it read, which may be an older centre.
        keeps_reads=meets and codec is not None,
        rate=rate,
        gaps=mode.is_stale and initial.size > 0,
    )
    events = None if log is None else ShardEventRecorder(log, number)
    deciders = port.role_map.deciders
    decider = deciders[number] if deciders else number
    policy = policy_of(config, workers, decides=decider == number)
    replies = None if codec is None else codec.reply_encoder(port, number, initial)
    return ShardServer(
        port,
        number,
        shard,
        policy,
        decoder=decoder,
        replies=replies,
        answers_met=meets,
        followers=[it for it, of in enumerate(deciders) if of == number != it],
        grace=_grace(mode, sync_s) if decider == number else 0.0,
        paces=Paces(mode.local_steps) if mode.paces and decider == number else None,
        is_dynamic=mode.dynamic,
        steps=averaging_period(mode).steps if mode.averages else None,
        events=events,
    )


def _shared_updater(
    config: TrainConfig,
    n: int,
    workers: int,
    rate: StalenessRate | None,
    codec: JobCodec | None,
    updater: Callable[[], Updater],
    *,
    watched: bool,
    tensors: Sequence[Span] = (),
) -> Updater:
    """Return the updater that makes a shard's next version from pushes."""
    mode = config.scheme
    if mode.elastic is not None:
        alpha = elastic_alpha(mode, workers)
        centre = CentreUpdater(n, alpha, differences=codec is not None)
        centre.watches = watched and n > 0
        return centre
    if mode.averages:
        return _outer_updater(
            config,
            n,
            differences=mode.merges or codec is not None,
            rate=rate,
            tensors=tensors,
            watched=watched and mode.merges and n > 0,
        )
    return updater()


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
    team: Port | None = None,
    steps: int | None = None,
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
        team: this worker's second port, if it has one; see ``Launcher.teams``.
        steps: after which a replay ends it, as a run that was stopped; None: by the config.

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
                updater=partial(_updater, config, problem),
                outer=partial(_outer_updater, config),
                codec=codec,
                events=None if log is None else WorkerEventRecorder(log, worker),
                control_algorithm=control_algorithm,
                topology=topology,
                turns=turns,
                team=team,
            )
        ),
        Meter(
            port,
            number,
            log_every=config.log_every,
            sketch_every=config.consensus_every or 0,
            beside=team,
        ),
        length=length_of(config, steps),
        clip_norm=config.clip_norm,
        no_gradient=NoGradient(config, len(port.role_map.workers)),
        dealt=None if deal is None else partial(_dealt, deal, worker),
        members=members,
        delays=_delays(config, number),
        rng=np.random.default_rng((config.seed, port.rank if number == worker else number)),
        servers=team.role_map.servers if team and config.has_whole_servers else None,
        is_served=bool(config.servers),
    )


def _dealt(
    deal: Deal, worker: int, epoch: int, members: Sequence[int]
) -> Sequence[np.ndarray[Any, Any]]:
    return deal.among(members).batches(worker, epoch)


def length_of(config: TrainConfig, steps: int | None = None) -> Length:
    """Return the length of a worker's training, by a resolved config, and the steps of a replay."""
    known = (math.inf if it is None else it for it in (config.steps, steps))
    return Length(math.inf if config.epochs is None else config.epochs, min(known))


def _delays(config: TrainConfig, worker: int) -> Delays | None:
    """Return the injected delays of a worker, None without any."""
    delays = [(it.kind, it.numbers) for it in config.inject if it.worker in (None, worker)]
    return Delays(delays) if delays else None


def policy_of(config: TrainConfig, workers: int, *, decides: bool = True) -> Policy:
    """Return the policy of one shard, by a resolved config; see ``policy_for``."""
    most = None if config.staleness_rate is None else config.staleness_rate.most
    late = math.inf if most is None else most
    return policy_for(config.scheme, workers, late=late, decides=decides)


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


def _updater(
    config: TrainConfig,
    problem: Problem | None,
    spans: Sequence[Span],
    rate: StalenessRate | None = None,
) -> Updater:
    """Return what takes optimizer steps on some spans of the parameters, side by side."""
    n = sum(span.size for span in spans)
    own = own_optimizer(problem)
    if own is not None:
        made = own.make(spans)
        return Updater(n, made, made, rate=_elementwise(rate))
    optimizer = config.optimizer.make(n, weight_decay=config.weight_decay)
    return Updater(n, optimizer, _schedule(config), rate=_elementwise(rate))


def _elementwise(rate: StalenessRate | None) -> StalenessRate | None:
    """Return a staleness rate if an updater has to apply it, element by element."""
    return rate if rate is not None and rate.elementwise else None


def _outer_updater(
    config: TrainConfig,
    n: int,
    *,
    differences: bool,
    rate: StalenessRate | None = None,
    tensors: Sequence[Span] = (),
    watched: bool = False,
) -> Updater:
    """Return the updater that moves θ to the mean of the θ_i, by the outer optimizer, if any.

    Args:
        config: resolved.
        n: elements of θ.
        differences: whether its input is the mean of Δ_i = θ − θ_i instead of that of the θ_i.
        rate: the staleness rate of the Δ_i.
        tensors: in the vectors, for a merge that takes them one by one.
        watched: whether it keeps what its updates do.
    """
    outer: Optimizer = Sgd().make(n) if differences else PlainAverage()
    lr, row, merge = 1.0, config.scheme.outer, config.scheme.merge
    if row is not None:
        lr, step = row.lr, row.make(n)
        outer = step if differences else OuterStep(step)
    kind = WatchedUpdater if watched else Updater
    return kind(
        n,
        outer,
        Schedule(Always(), lr, epochs=1.0),
        rate=_elementwise(rate),
        merge=None if merge is None else merge.make(tensors),
    )


def _grace(mode: Mode, sync_s: float) -> float | Slack:
    """Return for how long a merge with its quorum waits for more."""
    if isinstance(mode.grace, str):
        return Slack(mode.sync_delay, sync_s)
    return mode.grace or 0.0


#: The weight of a push in a merge; see ``Mode.weights``.
_WEIGHTS: Mapping[str, Callable[[Push], float]] = {
    SAMPLES: lambda push: push.samples,
    EQUAL: lambda push: 1.0,
    QUALITY: lambda push: push.samples * push.samples / push.steps,
}


def tensors_in(span: Span, matrices: Sequence[Matrix]) -> tuple[Span, ...]:
    """Return what a span has of each tensor, counted from its start.

    Args:
        span: of the parameters.
        matrices: among the parameters; what lies between two, such as a bias, is a tensor too.

    >>> tensors_in(Span(4, 20), [Matrix(0, 2, 3), Matrix(8, 5, 2)])
    (Span(start=0, stop=2), Span(start=2, stop=4), Span(start=4, stop=14), Span(start=14, stop=16))
    """
    ends = {span.start, span.stop}
    for it in matrices:
        ends |= {it.start, it.start + it.rows * it.columns}
    inside = sorted(it - span.start for it in ends if span.start <= it <= span.stop)
    return tuple(Span(*it) for it in pairwise(inside))


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
    mode = config.scheme
    # Of the steps that the shard takes: where workers average, along what they have learnt.
    outer_lr = 1.0 if mode.outer is None else mode.outer.lr
    peak = outer_lr if mode.averages else _schedule(config).peak
    rate: StalenessRate = row.make(n, max_lr=peak)
    return rate
