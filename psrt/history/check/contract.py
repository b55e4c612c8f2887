"""What a mode promises, as numbers, from a history's header: derived independently here.

A mode's row declares what it promises (`psrt.config.modes`); this file derives again what that
means. It uses nothing of the code that decides in a run, whose mistakes it would repeat.

==================  =============  ======  ====================  ==========================
mode                quorum         gate    late: staler than     update
==================  =============  ======  ====================  ==========================
sync                W              round   –                     all live workers' pushes
sync, b backups     W − b          round   0                     the first pushes to arrive
async               1              none    the drop limit, if    the push
ssp(s)              1              s       the drop limit, if    the push
softsync(k)         ⌊W/k⌋, ≥ 1     none    the drop limit, if    the first pushes to arrive
local-sgd, servers  W              round   –                     all live workers' averages
easgd               W              round   –                     all live workers' forces
easgd, asynchronous 1              none    –                     the force
local-sgd, quorum   K              none    the drop limit, if    the merge of what came
==================  =============  ======  ====================  ==========================

W is the number of workers that have not left the shard. With a quorum one shard of each fragment
decides, and the others do the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psrt.config.modes import Mode
from psrt.config.names import BY_HOST, PAIRS, SEQUENTIAL
from psrt.core.errors import ConfigError
from psrt.core.partition import Span, fragments_of
from psrt.history.check.data_plan import DataPlan
from psrt.history.check.table import Ints
from psrt.history.header import MOST, Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The numbers that a history is checked against."""

    mode: Mode
    #: W, and the numbers of shards and of servers.
    workers: int
    shards: int
    servers: int
    #: Whether an update is a round that all workers share.
    rounds: bool
    #: The number of workers that a round does not wait for.
    backup: int = 0
    #: k, if 1/k of the workers make an update; 0 if it is one of them, or all.
    share: int = 0
    #: K: the learners of a merge, unless fewer can still come; None without a quorum.
    learners: int | None = None
    #: Seconds for which a merge with its quorum waits for more: any number with ``auto``, None if
    #: it does not wait.
    grace: float | None = None
    #: By worker, the clock at which it left, if the run was stopped early; else empty.
    stopped: tuple[int, ...] = ()
    #: Whether each worker may stop for a checkpoint at a clock of its own.
    stops: bool = False
    #: By shard, the one that decides for it, where merges have a quorum.
    deciders: tuple[int, ...] = ()
    #: How far ahead of the slowest a worker may be; None if no worker ever waits.
    gate: int | None = None
    #: A push that is staler than this on arrival is dropped; None if none is.
    late: int | None = None
    #: H, and the epoch until which it is 1, of local-sgd.
    local_steps: int = 1
    post_local_epoch: float = 0.0
    #: F and T of local-sgd, and whether workers take their own part at once.
    fragments: int = 1
    delay: int = 0
    eager: bool = False
    #: Samples of a full batch.
    batch_size: int = 1
    #: The most gradient steps of a worker, and passes over the data.
    steps: float = math.inf
    epochs: float = math.inf
    #: The mode with its number, as a user would say it.
    described: str = ""
    #: How the data is split into steps; None if the problem does it.
    plan: DataPlan | None = None
    #: Steps between two lines of the metrics; 0 for only the ends of epochs.
    log_every: int = 0
    #: Whether the loop was the user's own, see ``Header``.
    own_loop: bool = False
    #: Whether it was a run in virtual time, and the workers that were made to die in it, unless
    #: they had left before; in real time, those that went missing, whose own events are unknown.
    simulated: bool = False
    crashes: tuple[int, ...] = ()
    #: Whether, in virtual time, a fault may delay a worker after its last event, while the parts of
    #: a split model are gathered.
    ends_late: bool = False
    #: The times at which the run resumed from a checkpoint, in seconds since its start.
    resumed: tuple[float, ...] = ()
    #: Whether all ranks had one clock, so that their times can be compared.
    one_clock: bool = False
    #: Whether a worker's part of a sum may be in flight before it is recorded as ready. Sums
    #: overlap with computation, and time passes between the end of that and the event: in virtual
    #: time, that of frames or of an injected delay.
    ahead: bool = False
    #: Whether neighbours average in pairs rather than rounds; and whether hosts mix.
    pairs: bool = False
    by_host: bool = False
    #: Whether a codec is in effect.
    framed: bool = False
    #: Whether a codec makes frames of pushes, or of replies.
    codes: bool = False
    #: Whether the model is split, so that stages record their passes.
    cut: bool = False
    #: The number of reads by which a gradient's parameters are older than the newest, after the
    #: first steps of an epoch, if a stage never waits for updates.
    behind: int = 0
    #: Whether a worker reads exactly a version; a codec of replies loses some of it.
    exact_reads: bool = True
    #: The problem's scheduler of learning rates, of which a history has only the name.
    scheduler: str | None = None

    @property
    def total_steps(self) -> float:
        """Steps of every worker, if known: the clock at which it leaves."""
        assert self.plan is not None, "only the plan knows the length of an epoch"
        return min(self.steps, self.plan.steps_until(self.epochs))

    @property
    def streams(self) -> bool:
        """Whether averages are of fragments, or arrive later than they start."""
        return self.fragments > 1 or self.delay > 0 or self.eager

    @property
    def sends_frames(self) -> bool:
        """Whether sums over workers travel in frames, which a single worker does not send."""
        return self.framed and self.workers > 1 and not self.shards

    @property
    def exact_times(self) -> bool:
        """Whether, in virtual time, a worker's next action starts at the event before.

        Not if it encodes and decodes between its steps, or shares what it has read with the other
        ranks of its learner: no event tells of that.
        """
        is_exact = self.simulated and not self.resumed and not self.ends_late
        is_exact &= not self.mode.has_teams and not (self.cut and self.learners is not None)
        return is_exact and not (self.streams and (self.sends_frames or self.codes))

    @property
    def settles(self) -> int:
        """The number of final sums, one per fragment, if workers' parameters differ until then."""
        return self.fragments if self.eager and self.workers > 1 else 0

    def follows(self, shard: int) -> bool:
        """Return whether another shard decides what this one merges."""
        return self.learners is not None and self.deciders[shard] != shard

    def together(self) -> list[list[int]]:
        """Return the shards that a worker pushes and reads at a time."""
        if self.fragments == 1:
            return [list(range(self.shards))]
        return [
            [it for it, of in enumerate(self.deciders) if of == first]
            for first in sorted(set(self.deciders))
        ]

    def quorum(self, live: Ints) -> Ints:
        """Return the number of pushes that make an update with ``live`` workers."""
        if self.learners is not None:
            return np.full_like(live, self.learners)
        if self.rounds:
            return np.maximum(live - self.backup, 1)
        return np.maximum(live // self.share, 1) if self.share else np.ones_like(live)

    @property
    def unreported(self) -> tuple[int, ...]:
        """The workers whose own events are unknown."""
        return () if self.simulated else self.crashes

    @property
    def reads_its_writes(self) -> bool:
        """Whether a worker's gradient is part of the parameters of its next step."""
        return not self.share

    def __str__(self) -> str:
        """Return the mode with its number, as a user would say it."""
        return self.described


def contract_of(header: Header) -> Contract:
    """Return what a run with this header promised.

    Raises:
        ConfigError: if the header cannot be that of a run of psrt.
    """
    mode, workers, shards = header.mode, len(header.workers), len(header.servers)
    if (mode.needs_servers and not shards) or (shards and not mode.may_have_servers):
        raise ConfigError(
            f"the history has mode {mode.name} with {shards} servers, which is impossible"
        )
    if mode.single and workers != 1:
        raise ConfigError(f"the history has mode {mode.name} with {workers} workers, expected 1")
    _check_ranks(header)
    rate = header.chosen("staleness_rate") if mode.is_stale else None
    most = None if rate is None else rate.most
    return Contract(
        mode=mode,
        workers=workers,
        shards=shards,
        servers=len(header.server_ranks),
        rounds=mode.rounds,
        backup=mode.backup,
        share=mode.share or 0,
        learners=mode.quorum,
        grace=math.inf if isinstance(mode.grace, str) else mode.grace,
        stopped=header.stopped,
        stops=mode.parks and header.knob("checkpoint_every") is not None,
        deciders=_deciders(header),
        gate=None if mode.lead == math.inf else int(mode.lead),
        late=0 if most is None and mode.backup else most,
        local_steps=mode.local_steps,
        post_local_epoch=mode.post_local_epoch,
        fragments=mode.fragments,
        delay=mode.sync_delay,
        eager=mode.eager,
        batch_size=_whole(header, "batch_size", 1, least=1),
        steps=math.inf if header.knob("steps") is None else _whole(header, "steps", 0),
        epochs=real_knob(header, "epochs", math.inf),
        described=mode.described(header.knob("allreduce")),
        plan=_data_plan(header),
        log_every=_whole(header, "log_every", 0),
        own_loop=header.own_loop,
        simulated=header.simulated,
        crashes=header.crashes,
        ends_late=header.disturbed and header.knob("parallel") is not None,
        resumed=header.resumed,
        one_clock=header.simulated or len(set(header.hosts)) == 1,
        by_host=mode.variant == BY_HOST,
        pairs=mode.variant == PAIRS,
        framed=bool(header.knob("codec") and header.knob("codec_everywhere")),
        codes=bool(header.servers and (header.knob("codec") or header.knob("codec_reply"))),
        cut=header.knob("parallel") is not None,
        scheduler=header.chosen("optimizer").scheduler,
        exact_reads=not (header.knob("codec_reply") and header.knob("codec_everywhere")),
        ahead=bool(mode.overlap)
        and (not header.simulated or bool(header.knob("inject")) or header.way is not None),
    )


def _deciders(header: Header) -> tuple[int, ...]:
    """Return by shard the one that decides for it: the first of those with the same fragment."""
    mode, layers = header.mode, [Span(*it) for it in header.layers]
    if mode.quorum is None or mode.fragments == 1:
        return (0,) * len(header.servers)
    strided = mode.fragment_order != SEQUENTIAL
    fragments = fragments_of(layers, mode.fragments, strided=strided)
    of = [
        next((f for f, spans in enumerate(fragments) if any(_within(span, it) for it in spans)), -1)
        for span in header.spans
    ]
    if -1 in of:
        raise ConfigError("the history's header has a shard that is part of no fragment")
    return tuple(of.index(it) for it in of)


def _within(span: tuple[int, int], of: Span) -> bool:
    return of.start <= span[0] and span[1] <= of.stop


def _data_plan(header: Header) -> DataPlan | None:
    """Return how the data is split into steps; None if the problem does it."""
    if header.batches is None:
        return None
    samples, size = header.batches
    dealt = tuple(own for own, _ in header.deal)
    if dealt and sum(dealt) != samples:
        raise ConfigError(
            f"the history's header has {samples} samples, of which {sum(dealt)} are assigned"
        )
    return DataPlan(samples, size, len(header.workers), dealt, header.left_out)


def _whole(header: Header, name: str, otherwise: int, *, least: int = 0) -> int:
    value = header.knob(name, otherwise)
    if type(value) is not int or not least <= value <= MOST:
        raise ConfigError(
            f"the history's header has {name} {value!r}, expected a whole number from {least} to "
            f"{MOST}"
        )
    return value


def real_knob(header: Header, name: str, otherwise: float) -> float:
    """Return a real number of a header.

    Args:
        header: of the run.
        name: of the knob.
        otherwise: returned if the mode does not use it.

    Raises:
        ConfigError: if it is not a number, negative, or too large to compute with.
    """
    value = header.knob(name, otherwise)
    if type(value) not in (int, float) or not (0 <= value <= MOST or value == math.inf):
        raise ConfigError(f"the history's header has {name} {value!r}, expected up to {MOST}")
    return float(value)


def _check_ranks(header: Header) -> None:
    """Raise if a rank has two roles, or the spans do not tile the parameters."""
    # All servers own equally many shards, which are assigned to them in turn.
    servers = header.server_ranks
    each = _whole(header, "shards_per_server", 1, least=1)
    ranks = (*header.workers, *servers)
    if len(set(ranks)) < len(ranks):
        raise ConfigError("the history's header gives one rank to two roles")
    if header.crashes and max(header.crashes) >= len(header.workers):
        raise ConfigError("the history's header has crashes of unknown workers")
    before: tuple[int, tuple[int, ...]] = (-1, ())
    for epoch, gone in header.left_out:
        grows = set(before[1]) < set(gone) <= set(header.crashes)
        if epoch <= before[0] or not grows or len(gone) >= len(header.workers):
            raise ConfigError("the history's header leaves out workers that did not die")
        before = (epoch, gone)
    spans = header.spans
    starts, stops = [span[0] for span in spans], [span[1] for span in spans]
    if spans and (starts != [0, *stops[:-1]] or stops[-1] != header.n):
        raise ConfigError(f"the history's shards do not make up its {header.n} parameters")
    told = header.knob("servers", len(servers))
    if told != len(servers):
        raise ConfigError(f"the history's header has {len(servers)} servers, its config {told!r}")
    if header.servers != servers * each:
        raise ConfigError(
            f"the history's header has {len(header.servers)} shards at {len(servers)} servers, its "
            f"config {each} per server, in turn"
        )
