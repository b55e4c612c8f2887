"""Builders of strategies: one function for each kind of scheme, which the row of a mode names.

A builder takes the ``Ingredients`` of a worker. It is found by the row's ``builder``, so a new mode
needs a row and a file, and no change here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from psrt.config import TrainConfig
from psrt.config.modes import Mode
from psrt.config.names import (
    ADAPT_THEN_COMBINE,
    GRADIENT_TRACKING,
    PAIRS,
    PUSH_SUM,
    SEQUENTIAL,
)
from psrt.core.arrays import Vector
from psrt.core.partition import Span, fragments_of
from psrt.core.sharding import Sharing
from psrt.model.chain import chain_layers, layer_spans
from psrt.runtime.chain_work import ChainWork, LayerWork, NoWork
from psrt.runtime.cut_problem import CutProblem
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.job_codec import JobCodec
from psrt.runtime.pipedream import PipeDream
from psrt.runtime.problem import Problem, gradient_spans
from psrt.runtime.push_codec import PushEncoder
from psrt.runtime.reply_codec import ReplyDecoder
from psrt.runtime.strategies.all_reduce import AllReduce
from psrt.runtime.strategies.base import Serial, Strategy
from psrt.runtime.strategies.by_host import Leader, Member
from psrt.runtime.strategies.choco import Choco
from psrt.runtime.strategies.easgd import ElasticAverager
from psrt.runtime.strategies.gossip import Gossip
from psrt.runtime.strategies.layered import LayeredAllReduce
from psrt.runtime.strategies.local_sgd import (
    Averager,
    LocalSGD,
    ReduceAverager,
    ServerAverager,
    TeamAverager,
)
from psrt.runtime.strategies.neighbours import Neighbours
from psrt.runtime.strategies.outer_rules import (
    EagerSteps,
    MixedAverages,
    MixedDifferences,
    OuterRule,
)
from psrt.runtime.strategies.pair_gossip import PairGossip, Turns
from psrt.runtime.strategies.pairs import Pairs
from psrt.runtime.strategies.push_pull import PushPull
from psrt.runtime.strategies.push_sum import PushSum
from psrt.runtime.strategies.served_fragments import ServedFragments
from psrt.runtime.strategies.streaming import StreamingSGD
from psrt.runtime.strategies.team import Copy, Team
from psrt.runtime.strategies.tracking import Tracking
from psrt.runtime.sum_frames import RecordedFrames
from psrt.runtime.timing_only import TimingOnlyProblem
from psrt.runtime.updater import Updater
from psrt.sync import AveragingPeriod, FragmentPeriod
from psrt.topology import Topology
from psrt.topology.host_part import HostPart
from psrt.topology.part import Part
from psrt.transport.coded_sum import SumCodec
from psrt.transport.port import Port

#: Colour of who asks, without rounds; 1 of who answers.
ASKS = 0


class Outer(Protocol):
    """Makes the updater that moves θ to the mean of the θ_i."""

    def __call__(self, n: int, *, differences: bool) -> Updater:
        """Make that of n elements; ``differences``: it is given the mean of the θ − θ_i."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingredients:
    """What a worker's strategy may be built from."""

    #: At the worker's rank; its ``theta`` holds the initial parameters.
    port: Port
    #: Resolved.
    config: TrainConfig
    #: The model and data, or the worker's part of it.
    problem: Problem
    #: Returns what takes optimizer steps on spans of the parameters, side by side.
    updater: Callable[[Sequence[Span]], Updater]
    outer: Outer
    #: Of what is sent; None where it is sent as it is.
    codec: JobCodec | None = None
    #: Records events for the history; None keeps none.
    events: WorkerEventRecorder | None = None
    #: The all-reduce of the control values, where it is known; None leaves it to the config's.
    control_algorithm: str | None = None
    #: Among the ranks of this one's learner; if these have parts of a model, at their first one
    #: with the servers. None otherwise.
    team: Port | None = None
    #: The graph on which workers mix; None where they do not.
    topology: Topology | None = None
    #: What a worker that averages in pairs does when, in a replay.
    turns: Turns | None = None

    def updater_of_all(self) -> Updater:
        """Return what takes optimizer steps on all parameters, or on none without numerics."""
        return self.updater((Span(0, self.port.theta.size),))

    @property
    def worker(self) -> int:
        """The worker's number."""
        worker = self.port.role_map.worker_of(self.port.rank)
        assert worker is not None, "a worker's strategy is made at a worker's rank"
        return worker

    @property
    def push_codecs(self) -> dict[str, PushEncoder | ReplyDecoder | None]:
        """What encodes a worker's pushes and decodes the replies, as far as there are such."""
        codec, port = self.codec, self.port
        if codec is None:
            return {}
        worker = self.worker
        return {
            "encoder": codec.encoder(port, worker),
            "decoder": codec.reply_decoder(port, worker),
        }

    def sum_codec(self, codec: JobCodec | None) -> SumCodec | None:
        """Return what makes the frames of sums by a codec; None without one."""
        events = self.events
        if codec is None:
            return None
        watch: RecordedFrames | None = None
        if events is not None and events.is_exact:
            watch = RecordedFrames(events, self.port.now)
        return codec.of_sums(self.port.rank, watch, numerics=self.port.theta.size > 0)


def build(of: Ingredients) -> Strategy:
    """Return the strategy that the row of a worker's mode names the builder of.

    Raises:
        ConfigError: if the port cannot sum as the config says, or the problem's gradient spans
            are invalid.
    """
    module, _, name = of.config.scheme.builder.partition(":")
    builder: Callable[[Ingredients], Strategy] = getattr(import_module(module), name)
    return builder(of)


def serial(of: Ingredients) -> Strategy:
    """Build the strategy without communication."""
    # Not the role map's n: without numerics vectors are empty, and so is the optimizer's state.
    return Serial(of.port, of.updater_of_all(), events=of.events)


def pushing(of: Ingredients) -> PushPull:
    """Build the strategy that pushes gradients to servers."""
    config, problem, role_map = of.config, of.problem, of.port.role_map
    several = len(role_map.servers) > len(role_map.server_ranks)
    in_parts = several and config.clip_norm is None
    codecs: Any = of.push_codecs
    return PushPull(
        of.port,
        spans=gradient_spans(problem, role_map.n) if in_parts else (),
        late=problem if isinstance(problem, PipeDream) and config.scheme.weakens else None,
        parks=config.scheme.parks,
        events=of.events,
        **codecs,
    )


def summing(of: Ingredients) -> Strategy:
    """Build the strategy that sums gradients over all workers, with or without sharding."""
    config, port, n = of.config, of.port, of.port.role_map.n
    mode = config.scheme
    sharing = None if mode.shard is None else Sharing(mode.shard)
    common: dict[str, Any] = {
        "algorithm": config.allreduce or "auto",
        "batch_size": config.batch_size,
        "bucket_bytes": mode.bucket_bytes or 0,
        "check_every": 0 if sharing is Sharing.PARAMETERS else config.check_every or 0,
        "control_algorithm": of.control_algorithm,
        "events": of.events,
    }
    if sharing is not None and sharing is not Sharing.OPTIMIZER:
        return LayeredAllReduce(
            port,
            of.updater,
            _layer_work(of.problem, n, numerics=port.theta.size > 0),
            shard=sharing,
            spans=layers_apart(of.problem, n),
            **common,
        )
    return AllReduce(
        port,
        of.updater,
        spans=gradient_spans(of.problem, n) if mode.overlap else (),
        codec=of.sum_codec(of.codec),
        shard=sharing,
        **common,
    )


def layers_apart(problem: Problem, n: int) -> tuple[Span, ...]:
    """Return the spans of layers that can be computed one by one, the last one first.

    Raises:
        ConfigError: if the problem is no chain.
    """
    if isinstance(problem, TimingOnlyProblem | CutProblem):
        return gradient_spans(problem, n)
    return layer_spans(chain_layers(problem, n))[::-1]


def _layer_work(problem: Problem, n: int, *, numerics: bool) -> LayerWork | CutProblem:
    if isinstance(problem, CutProblem):
        return problem
    if not numerics:
        return NoWork()
    loss: Any = problem
    return ChainWork(chain_layers(problem, n), loss.loss)


def averaging(of: Ingredients) -> Strategy:
    """Build a strategy of local steps and averages: by servers, a centre, or a sum."""
    config, port, codec = of.config, of.port, of.codec
    if not port.role_map.servers and len(port.role_map.workers) == 1:
        codec = None  # nothing is sent, and differences would only add rounding
    if config.has_whole_servers:
        return _of_copy(of)
    team, updater = _team(of)
    if config.scheme.streams and port.role_map.servers:
        served: Any = of.push_codecs
        return ServedFragments(
            port,
            updater,
            fragment_period(config.scheme),
            mixing=config.scheme.mixing or 0.0,
            is_paced=config.scheme.paces,
            team=team,
            events=of.events,
            **served,
        )
    if config.scheme.streams:
        return _streaming(of, codec)
    averager: Averager | None = None
    if team is None or team.leads:
        averager = _averager(of, codec)
    if team is not None:
        landing = port.land_apart(team.theta)
        averager = _for_all(of, team, averager, landing if team.leads else None)
    assert averager is not None, "this rank averages, or another one of its team does"
    return LocalSGD(
        port,
        updater,
        averager,
        averaging_period(config.scheme),
        is_paced=config.scheme.paces,
        team=team,
        events=of.events,
    )


def _of_copy(of: Ingredients) -> LocalSGD:
    """Build local steps on a part of a model, the whole of which its first rank averages."""
    config, port, served = of.config, of.port, of.team
    assert isinstance(of.problem, CutProblem), "the model is split"
    own = None if served is None else _averager(replace(of, port=served), of.codec)
    landing = None if served is None else served.theta
    return LocalSGD(
        port,
        of.updater_of_all(),
        _for_all(of, Copy(port, of.problem.links, served), own, landing),
        averaging_period(config.scheme),
        is_paced=config.scheme.paces,
        events=of.events,
    )


def _for_all(
    of: Ingredients, team: Team | Copy, own: Averager | None, landing: Vector | None
) -> TeamAverager:
    """Return the averager of one of a learner's ranks; ``own`` is that of the first."""
    parks = of.config.scheme.parks
    return TeamAverager(of.port, team, own, landing, parks=parks, events=of.events)


def _team(of: Ingredients) -> tuple[Team | None, Updater]:
    """Return this rank's part in its learner, if that has several, and what takes local steps."""
    port, config, role_map = of.team, of.config, of.port.role_map
    if port is None:
        return None, of.updater_of_all()
    np.copyto(port.theta, of.port.theta)
    inner = AllReduce(
        port,
        of.updater,
        algorithm=config.allreduce or "auto",
        batch_size=config.batch_size,
        check_every=config.check_every or 0,
        control_algorithm=of.control_algorithm,
        events=of.events,
    )
    spans = role_map.spans if config.scheme.streams else (Span(0, role_map.n),)
    return Team(port, inner, spans, outer=of.port), inner.updater


def _averager(of: Ingredients, codec: JobCodec | None) -> Averager:
    """Return the averager of the workers' parameters: a centre, servers, or a sum."""
    config, port, mode = of.config, of.port, of.config.scheme
    codecs: Any = of.push_codecs
    if mode.elastic is not None:
        return ElasticAverager(
            port,
            elastic_alpha(mode, len(port.role_map.workers)),
            is_sent_met=answers_met(config, codec),
            parks=config.scheme.parks,
            events=of.events,
            **codecs,
        )
    if port.role_map.servers:
        return ServerAverager(
            port, differences=mode.merges, parks=mode.parks, events=of.events, **codecs
        )
    return ReduceAverager(
        port,
        of.outer(port.theta.size, differences=codec is not None),
        steps=mode.outer is not None,
        algorithm=config.allreduce or "auto",
        full=config.batch_size * mode.local_steps,
        check_every=config.check_every or 0,
        control_algorithm=of.control_algorithm,
        codec=of.sum_codec(codec),
        events=of.events,
    )


def answers_met(config: TrainConfig, codec: JobCodec | None) -> bool:
    """Return whether a worker gets the version on which its push arrived, not the newest."""
    mode = config.scheme
    return mode.elastic is not None and not mode.rounds and (codec is None or codec.reply is None)


def elastic_alpha(mode: Mode, workers: int) -> float:
    """Return α = β/W of a mode with a centre."""
    assert mode.elastic is not None, "it has a centre"
    return mode.elastic / workers


def averaging_period(mode: Mode) -> AveragingPeriod:
    """Return when workers that train alone average."""
    return AveragingPeriod(mode.local_steps, float(mode.post_local_epoch))


def _streaming(of: Ingredients, codec: JobCodec | None) -> StreamingSGD:
    """Return local SGD whose averages come in fragments, late, or eagerly."""
    config, port, n = of.config, of.port, of.port.theta.size
    mode = config.scheme
    outer = of.outer(n, differences=codec is not None or mode.eager)
    rule: OuterRule
    if mode.eager:
        rule = EagerSteps(port, outer)
    else:
        mixed = MixedAverages if codec is None else MixedDifferences
        rule = mixed(port, outer, mode.mixing or 0.0)
    fragments = fragments_for(mode, of.problem, port.role_map.n)
    codecs: list[SumCodec] = []
    if codec is not None:
        # What is summed has the fragments side by side, and so the matrices in them.
        framed = codec.side_by_side([span for spans in fragments for span in spans])
        codecs = [it for _ in fragments if (it := of.sum_codec(framed)) is not None]
    return StreamingSGD(
        port,
        of.updater_of_all(),
        rule,
        fragment_period(mode),
        fragments,
        algorithm=config.allreduce or "auto",
        full=config.batch_size * mode.local_steps,
        control_algorithm=of.control_algorithm,
        codecs=codecs,
        events=of.events,
    )


def fragment_period(mode: Mode) -> FragmentPeriod:
    """Return when the fragments of a mode are sent, and when they arrive."""
    return FragmentPeriod(
        mode.local_steps, mode.fragments, mode.sync_delay, float(mode.post_local_epoch)
    )


def fragments_for(mode: Mode, problem: Problem, n: int) -> tuple[tuple[Span, ...], ...]:
    """Return the spans of each fragment of a mode with fragments.

    Raises:
        ConfigError: if there are more than the problem has layers.
    """
    layers = gradient_spans(problem, n)
    return fragments_of(layers, mode.fragments, strided=mode.fragment_order != SEQUENTIAL)


def mixing(of: Ingredients) -> Gossip | PairGossip:
    """Build the strategy that mixes with neighbours on a graph."""
    config, port, codec, worker = of.config, of.port, of.codec, of.worker
    topology, updater, events = of.topology, of.updater_of_all(), of.events
    assert topology is not None, "a mode that mixes has one"
    mode = config.scheme
    if mode.variant == PAIRS:
        neighbours = Part(topology, worker).peers
        asks = topology.colours[worker] == ASKS
        pairs = Pairs(worker, neighbours, asks=asks, seed=config.seed)
        return PairGossip(port, updater, pairs, turns=of.turns, events=events)
    part = part_of(topology, worker)
    peers = Neighbours(port, part, framed=codec is not None)
    adapts_first = mode.order == ADAPT_THEN_COMBINE
    if codec is not None:
        span, rate = port.role_map.spans[0], mode.consensus_rate
        assert rate is not None, "a resolved config has one where there is a codec"
        encoder = codec.sender(span) if port.theta.size else codec.lengths(span)
        return Choco(
            port,
            updater,
            peers,
            codec=encoder,
            seed=codec.seed,
            rate=rate,
            adapts_first=adapts_first,
            events=events,
        )
    kind: type[Gossip] = Gossip
    if isinstance(part, HostPart):
        kind = Leader if part.leads else Member
    elif mode.variant == PUSH_SUM:
        kind = PushSum
    elif mode.variant == GRADIENT_TRACKING:
        kind = Tracking
    return kind(port, updater, peers, adapts_first=adapts_first, events=events)


def part_of(topology: Topology, worker: int) -> Part:
    """Return a worker's part in the rounds of a topology, of ranks or of hosts."""
    return (Part if topology.hosts is None else HostPart)(topology, worker)
