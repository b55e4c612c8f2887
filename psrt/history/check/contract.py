"""What a mode promises, as numbers, out of a history's header: written down here for itself.

A mode's row declares what it promises (`psrt.config.modes`); what that means is written down here
anew. Nothing is taken from what decides in a run, or a mistake there would be repeated here.

==================  =============  ======  ====================  ==========================
mode                quorum         gate    late: staler than     update
==================  =============  ======  ====================  ==========================
sync                W              round   –                     all live workers' pushes
sync, b backups     W − b          round   0                     whoever came first
async               1              none    the drop limit, if    the push
ssp(s)              1              s       the drop limit, if    the push
softsync(k)         ⌊W/k⌋, ≥ 1     none    the drop limit, if    whoever came first
local-sgd, servers  W              round   –                     all live workers' averages
easgd               W              round   –                     all live workers' forces
easgd, asynchronous 1              none    –                     the force
==================  =============  ======  ====================  ==========================

W counts the workers that a shard has not seen leave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psrt.config.modes import Mode
from psrt.config.names import BY_HOST, PAIRS
from psrt.core.errors import ConfigError
from psrt.history.check.data_plan import DataPlan
from psrt.history.check.table import Ints
from psrt.history.header import MOST, Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The numbers that a history is held against."""

    mode: Mode
    #: W, and the numbers of shards and of servers.
    workers: int
    shards: int
    servers: int
    #: Whether an update is a round that all workers share.
    rounds: bool
    #: Workers that a round does not wait for.
    backup: int = 0
    #: k, where 1/k of the workers make an update; 0 where it is one of them, or all.
    share: int = 0
    #: How far ahead of the slowest a worker may be; None where nobody ever waits.
    gate: int | None = None
    #: A push staler than this when it is received is dropped; None where none is.
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
    #: Gradient steps of a worker and passes over the data at most.
    steps: float = math.inf
    epochs: float = math.inf
    #: The mode with its number, as a user would say it.
    described: str = ""
    #: How the data is cut; None where the problem cuts it by itself.
    plan: DataPlan | None = None
    #: Steps between two lines of the metrics; 0 for the ends of epochs only.
    log_every: int = 0
    #: Whether the loop was the user's own, see ``Header``.
    own_loop: bool = False
    #: Whether it was a run in virtual time, and workers that were made to die in it, unless they
    #: had left by then; in real time, those that went missing, whose own events nobody knows.
    simulated: bool = False
    crashes: tuple[int, ...] = ()
    #: Whether a fault may hold a worker up after its last event, in virtual time: while parts of a
    #: model that is cut are brought together.
    ends_late: bool = False
    #: When the run went on from a checkpoint, each time, in seconds since it began.
    resumed: tuple[float, ...] = ()
    #: Whether all ranks had one clock, so that their times can be compared.
    one_clock: bool = False
    #: Whether a worker's part of a sum may be under way before it is written down as ready: sums
    #: overlap with computing, and time passes between the end of that and the event; in virtual
    #: time, that of frames or of an injected delay.
    ahead: bool = False
    #: Whether neighbours average in pairs, and not in rounds; and whether hosts are what mixes.
    pairs: bool = False
    by_host: bool = False
    #: Whether a codec is in effect.
    framed: bool = False
    #: Whether the model is cut, so that stages tell what they did.
    cut: bool = False
    #: How many reads older than the newest the parameters of a gradient are, but in the first steps
    #: of an epoch: where a stage never waits for updates.
    behind: int = 0
    #: Whether a worker reads a version as it is; a codec of replies loses some of it.
    exact_reads: bool = True

    @property
    def total_steps(self) -> float:
        """Steps of every worker, where that is known: the clock that it leaves with."""
        assert self.plan is not None, "only the plan knows how long an epoch is"
        return min(self.steps, self.plan.steps_until(self.epochs))

    @property
    def streams(self) -> bool:
        """Whether averages are of fragments, or arrive later than they are begun."""
        return self.fragments > 1 or self.delay > 0 or self.eager

    @property
    def sends_frames(self) -> bool:
        """Whether sums over workers travel in frames, which one worker sends none of."""
        return self.framed and self.workers > 1 and not self.shards

    @property
    def exact_times(self) -> bool:
        """Whether what a worker does next begins with the event before, in virtual time.

        Not where it encodes and decodes between its steps.
        """
        is_exact = self.simulated and not self.resumed and not self.ends_late
        return is_exact and not (self.sends_frames and self.streams)

    @property
    def settles(self) -> int:
        """Sums at the end of workers whose parameters differ until then: one for each fragment."""
        return self.fragments if self.eager and self.workers > 1 else 0

    def quorum(self, live: Ints) -> Ints:
        """Return the number of pushes that make an update with that many live workers."""
        if self.rounds:
            return np.maximum(live - self.backup, 1)
        return np.maximum(live // self.share, 1) if self.share else np.ones_like(live)

    @property
    def unreported(self) -> tuple[int, ...]:
        """The workers of whose own events nothing is known."""
        return () if self.simulated else self.crashes

    @property
    def reads_its_writes(self) -> bool:
        """Whether a worker's gradient is part of the parameters of its next step."""
        return not self.share

    def __str__(self) -> str:
        """Return the mode with its number, as a user would say it."""
        return self.described


def contract_of(header: Header) -> Contract:
    """Return what the run of this header promised.

    Raises:
        ConfigError: if the header cannot be that of a run of psrt.
    """
    mode, workers, shards = header.mode, len(header.workers), len(header.servers)
    if (mode.needs_servers and not shards) or (shards and not mode.may_have_servers):
        raise ConfigError(
            f"the history is of mode {mode.name} with {shards} servers, which cannot be"
        )
    if mode.single and workers != 1:
        raise ConfigError(f"the history is of mode {mode.name} with {workers} workers, expected 1")
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
        cut=header.knob("parallel") is not None,
        exact_reads=not (header.knob("codec_reply") and header.knob("codec_everywhere")),
        ahead=bool(mode.overlap)
        and (not header.simulated or bool(header.knob("inject")) or header.way is not None),
    )


def _data_plan(header: Header) -> DataPlan | None:
    """Return how the data is cut; None where the problem cuts it by itself."""
    if header.batches is None:
        return None
    samples, size = header.batches
    dealt = tuple(own for own, _ in header.deal)
    if dealt and sum(dealt) != samples:
        raise ConfigError(
            f"the history's header has {samples} samples, of which {sum(dealt)} are dealt out"
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
    """Return a real number out of a header.

    Args:
        header: of the run.
        name: of the knob.
        otherwise: returned if the mode does not use it.

    Raises:
        ConfigError: if it is none, or negative, or too large to compute with.
    """
    value = header.knob(name, otherwise)
    if type(value) not in (int, float) or not (0 <= value <= MOST or value == math.inf):
        raise ConfigError(f"the history's header has {name} {value!r}, expected up to {MOST}")
    return float(value)


def _check_ranks(header: Header) -> None:
    """Raise if ranks are taken twice, or the spans do not tile the parameters."""
    # One server owns several shards, each server as many, and they are dealt out in turn.
    servers = header.server_ranks
    each = _whole(header, "shards_per_server", 1, least=1)
    ranks = (*header.workers, *servers)
    if len(set(ranks)) < len(ranks):
        raise ConfigError("the history's header gives one rank to two roles")
    if header.crashes and max(header.crashes) >= len(header.workers):
        raise ConfigError("the history's header has crashes of workers that it does not have")
    before: tuple[int, tuple[int, ...]] = (-1, ())
    for epoch, gone in header.left_out:
        grows = set(before[1]) < set(gone) <= set(header.crashes)
        if epoch <= before[0] or not grows or len(gone) >= len(header.workers):
            raise ConfigError("the history's header leaves workers out that did not die")
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
            f"config {each} a server, in turn"
        )
