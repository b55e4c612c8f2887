"""The modes, one row each: everything about a mode that is data, and its knobs.

Policies (`psrt.sync`), job set-up, the checker of histories and `psrt explain` read these rows; no
other code compares a mode's name. A row declares a promise, such as "at most s steps ahead"; the
policy and, independently, the checker each have their own formula for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Final, Self

from psrt.config.names import (
    ADAPT_THEN_COMBINE,
    BUCKET_BYTES,
    COMBINE_THEN_ADAPT,
    EQUAL,
    FRAGMENT_ORDERS,
    MERGE_WEIGHTS,
    MIXING_ORDERS,
    PAIRS,
    PLAIN,
    PUSH_SUM,
    SAMPLES,
    SHARDS,
    STRIDED,
    VARIANTS,
)
from psrt.core.errors import ConfigError
from psrt.core.units import plural
from psrt.optim.table import MERGES, OUTER_STEPS, MergeRow, OuterRow
from psrt.rows.knobs import knob
from psrt.rows.row import Row, Rows
from psrt.rows.values import AUTO, REAL, REAL_OR_AUTO, SWITCH, TEXT, WHOLE, WHOLE_OR_HOST
from psrt.topology.names import DEFAULT


class Servers(Enum):
    """Whether servers apply the updates of a mode."""

    NEVER = "never"
    ALWAYS = "always"
    #: Without servers an all-reduce takes their place.
    OPTIONAL = "optional"


#: What a mode may promise about the parameters, the strongest first.
PROMISES: Final = {
    "same": "those that one process would get from the same batches, up to rounding",
    "bounded": "off by no more than a bound on staleness, dropped gradients or a codec's loss",
    "stale": "gradients of any staleness are applied",
    "local": "workers train alone for some steps, and average",
}


class Mode(Row):
    """One synchronization scheme.

    The attributes below are what jobs ask of any mode, with their defaults. A mode overrides them
    by a class attribute, a property, or a knob of its own with that name.
    """

    servers: ClassVar[Servers] = Servers.NEVER
    #: Whether it is a single process.
    single: ClassVar[bool] = False
    #: Whether its workers take steps of their own, and parameters are averaged, not gradients.
    averages: ClassVar[bool] = False
    #: Whether its workers take steps of their own, and each mixes its parameters with those of its
    #: neighbours on a graph.
    mixes: ClassVar[bool] = False
    #: Knobs of its own that have no effect with servers.
    alone: ClassVar[tuple[str, ...]] = ()
    #: Whether a codec may compress the vectors that are sent.
    codecs: ClassVar[bool] = False
    #: Whether it can write checkpoints.
    saves: ClassVar[bool] = False
    #: Whether it can resume with another number of workers.
    regroups: ClassVar[bool] = False
    #: Module and function that make its strategy at a worker, see ``runtime.strategies.builders``.
    builder: ClassVar[str] = "psrt.runtime.strategies.builders:pushing"
    #: Its first knob in words: ``{}`` is the value, ``{s}`` makes the plural.
    words: ClassVar[str] = ""
    #: Further knobs that ``described`` names where they are given.
    named: ClassVar[tuple[str, ...]] = ()

    #: b: a round is complete without the b slowest, whose gradients for it are dropped.
    backup: int = 0
    #: β: a worker and the centre are pulled towards each other by β/W of their difference.
    elastic: float | None = None
    #: Steps of a worker between two averages; before ``post_local_epoch`` there is one.
    local_steps: int = 1
    post_local_epoch: int = 0
    #: The outer step, the number of fragments, and how layers are assigned to them.
    outer: OuterRow | None = None
    fragments: int = 1
    fragment_order: str = STRIDED
    #: Whether a worker applies its own part of a mean at once; by how many steps means are late;
    #: and which share of its own parameters a worker then keeps.
    eager: bool = False
    sync_delay: int = 0
    mixing: float | None = None
    #: Whether sums begin before the whole gradient is computed, and bytes that are summed at once.
    overlap: bool | None = None
    bucket_bytes: int | None = None
    #: What is sharded: each worker keeps only its part.
    shard: str | None = None
    #: The graph, how neighbours average on it, before or after a step, and how far they move.
    topology: str | None = None
    variant: str = PLAIN
    order: str | None = None
    consensus_rate: float | None = None

    #: K: a merge of what workers have learnt waits for that number of them; None: for all.
    quorum: int | None = None
    #: Seconds for which a merge with its quorum waits for more, or ``AUTO``; None: it does not.
    grace: float | str | None = None
    #: Whether slower workers take fewer local steps than ``local_steps``.
    dynamic: bool = False
    #: How workers are merged, and by which weights.
    merge: MergeRow | None = None
    merge_weights: str | None = None
    #: R: the ranks of a worker that take a step together, or ``HOST``: those of each host.
    learner_ranks: int | str = 1

    @property
    def uses(self) -> tuple[str, ...]:
        """Knobs of the run that it uses and some other modes do not."""
        return ()

    @property
    def rounds(self) -> bool:
        """Whether updates are rounds.

        An update waits for the gradients of all live workers, and no worker begins the next round
        before it.
        """
        return False

    @property
    def asynchronous(self) -> bool:
        """Whether a mode that usually has rounds has none, so that no worker waits."""
        return False

    @property
    def lead(self) -> float:
        """s: how many steps a worker may run ahead of the slowest."""
        return math.inf

    @property
    def share(self) -> int | None:
        """k: an update waits for the first 1/k of the live workers."""
        return None

    @property
    def needs_servers(self) -> bool:
        """Whether servers are required."""
        return self.servers is Servers.ALWAYS

    @property
    def may_have_servers(self) -> bool:
        """Whether servers are possible."""
        return self.servers is not Servers.NEVER

    @property
    def sums(self) -> bool:
        """Whether workers without a server sum by an all-reduce."""
        return not self.single and not self.needs_servers and not self.mixes

    @property
    def sums_gradients(self) -> bool:
        """Whether that all-reduce sums gradients, in every step."""
        return self.sums and not self.averages

    @property
    def encodes_gradients(self) -> bool:
        """Whether a codec compresses gradients, rather than differences of parameters."""
        return self.codecs and not self.averages and not self.mixes

    @property
    def has_teams(self) -> bool:
        """Whether several ranks take each local step together."""
        return self.learner_ranks != 1

    @property
    def is_stale(self) -> bool:
        """Whether a gradient can be applied to parameters newer than those it was computed on."""
        return self.needs_servers and not self.rounds

    @property
    def weakens(self) -> bool:
        """Whether servers scale stale gradients down. Otherwise pushes are not gradients."""
        return self.is_stale and not self.averages

    @property
    def means_gradients(self) -> bool:
        """Whether an update uses the mean gradient of several workers, if there are several."""
        if self.single or self.averages or self.mixes:
            return False
        return not self.is_stale or self.share is not None

    @property
    def promise(self) -> str:
        """What it promises about the parameters, a key of ``PROMISES``.

        >>> [MODES[name].promise for name in ("sync", "ssp", "async", "gossip")]
        ['same', 'bounded', 'stale', 'local']
        """
        if self.averages or self.mixes:
            return "local"
        if self.backup or (self.is_stale and self.lead < math.inf):
            return "bounded"
        return "stale" if self.is_stale else "same"

    @property
    def paces(self) -> bool:
        """Whether servers must know how fast workers are."""
        return self.dynamic or self.grace == AUTO

    @property
    def merges(self) -> bool:
        """Whether servers merge what workers have learnt, other than by the plain mean of all."""
        is_usual = (self.merge or MERGES["mean"]).is_usual
        return self.quorum is not None or not is_usual or self.weights != SAMPLES

    @property
    def weights(self) -> str:
        """What weights are made of."""
        weighs = self.merge is None or self.merge.weighs
        return self.merge_weights or (SAMPLES if weighs else EQUAL)

    @property
    def streams(self) -> bool:
        """Whether parameters are averaged in fragments, late, or eagerly."""
        return self.fragments > 1 or self.sync_delay > 0 or self.eager

    @property
    def default_servers(self) -> int:
        """Default number of servers."""
        return int(self.needs_servers)

    @property
    def parks(self) -> bool:
        """Whether each worker stops for a checkpoint at its own clock.

        In other modes that write checkpoints, all workers save themselves after the same step.

        >>> Async().parks, Sync().parks, Sync(backup=1).parks
        (True, False, True)
        >>> [Gossip(variant=variant).parks for variant in ("pairs", "plain")]
        [True, False]
        """
        return self.asynchronous or (self.needs_servers and (not self.rounds or self.backup > 0))

    def among(self, workers: int, servers: int, *, resumes: bool = False) -> Self:
        """Return the row for these numbers of workers and servers.

        Args:
            workers: W.
            servers: S.
            resumes: whether there may have been more workers before.

        Raises:
            ConfigError: if that is not possible.
        """
        return self

    def settled(self, *, clips: bool, contraction: float | None) -> Self:
        """Return the row with the open knobs filled in.

        Args:
            clips: whether gradients are clipped by their norm.
            contraction: of the codec, see ``CodecRow``; None without a codec, or if it is unknown.
        """
        return self

    def described(self, algorithm: str | None = None) -> str:
        """Return the mode with its main knobs, as a user would say it.

        Args:
            algorithm: its all-reduce; None where there is none.

        >>> SSP().described(), Sync().described(), Sync(backup=1).described()
        ('ssp (staleness 3)', 'sync', 'sync (1 backup)')
        >>> EASGD(asynchronous=True).described()
        'easgd (elastic 0.9, asynchronous)'
        >>> AllReduce().described("ring"), LocalSGD().described("ring")
        ('allreduce (ring)', 'local-sgd (8 local steps)')
        >>> LocalSGD(quorum=2, grace=0.5, dynamic=True).described()
        'local-sgd (8 local steps, quorum 2, grace 0.5, dynamic)'
        """
        notes = [algorithm] if algorithm and self.sums_gradients else []
        value = next(iter(self.knobs.values())) if self.words else None
        if value is not None and (value or not self.rounds):  # "0 backups" is left out
            notes.append(self.words.format(value, s="" if value == 1 else "s"))
        for name, it in self.typed(*self.named).items():
            notes.append(name if it == "true" else f"{name} {it}")
        if self.asynchronous and self.quorum is None:
            notes.append("asynchronous")
        return f"{self.name} ({', '.join(notes)})" if notes else self.name


_SERVED = ("placement", "shards_per_server")
_SUMMED = ("allreduce", "machine_costs", "check_every")
_RATE = "staleness_rate"
_TUNE = "tune"


def _local_steps(default: int) -> Any:
    return knob(
        default, WHOLE, "average the parameters every H steps", metavar="H", min=1,
        synonyms=("sync-every", "period", "communication-period", "tau"),
    )  # fmt: skip


class Serial(Mode):
    """A single process."""

    name, summary = "serial", "one process, without communication"
    builder = "psrt.runtime.strategies.builders:serial"
    single = saves = True


@dataclass(frozen=True)
class Sync(Mode):
    """Synchronous rounds at servers."""

    name, synonyms = "sync", ("bsp",)
    summary = "every update averages the gradients of all workers, which wait for one another"
    servers = Servers.ALWAYS
    codecs = saves = regroups = True
    uses = (*_SERVED, _TUNE)
    words = "{} backup{s}"
    backup: int = knob(
        0, WHOLE, "do not wait for the N slowest workers of a step", min=0,
        synonyms=("backups", "backup-workers"),
    )  # fmt: skip

    @property
    def rounds(self) -> bool:
        """Each update is one."""
        return True


class _Stale(Mode):
    """The common part of modes whose servers apply gradients that may be stale."""

    servers = Servers.ALWAYS
    codecs = saves = regroups = True
    uses = (_RATE, *_SERVED, _TUNE)


class Async(_Stale):
    """Asynchronous SGD: no worker waits."""

    name, synonyms = "async", ("asp", "asgd", "hogwild")
    summary = "every gradient is applied as soon as it arrives; no worker waits for another"


@dataclass(frozen=True)
class SSP(_Stale):
    """Stale synchronous parallel."""

    name = "ssp"
    summary = "as async, but no worker runs more than a few steps ahead of the slowest"
    words = "staleness {}"
    staleness: int = knob(
        3, WHOLE,
        "a worker starts a step only when every worker has finished all but the last N before it; "
        "the staleness of gradients counts versions and may be larger",
        min=0, synonyms=("max-staleness", "slack"),
    )  # fmt: skip

    @property
    def lead(self) -> float:
        """The staleness."""
        return self.staleness


@dataclass(frozen=True)
class SoftSync(_Stale):
    """Updates of quorums that are smaller than a round."""

    name = "softsync"
    summary = "every update averages the next workers/K gradients to arrive; no worker waits"
    words = "k = {}"
    k: int = knob(
        1, WHOLE, "average workers/K gradients per update; from 1 to the number of workers", min=1,
        metavar="K",
    )  # fmt: skip

    @property
    def share(self) -> int:
        """K."""
        return self.k


@dataclass(frozen=True)
class LocalSGD(Mode):
    """Local steps, then means of parameters."""

    name, synonyms = "local-sgd", ("fedavg", "diloco")
    summary = "workers train alone for some steps, then average their parameters"
    builder = "psrt.runtime.strategies.builders:averaging"
    servers = Servers.OPTIONAL
    averages = codecs = saves = regroups = True
    alone = ("eager",)
    words = "{} local step{s}"
    named = (
        *("quorum", "learner_ranks", "grace", "dynamic", "fragments", "sync_delay", "eager"),
        *("merge", "merge_weights", "outer"),
    )
    # fmt: off
    local_steps: int = _local_steps(8)
    post_local_epoch: int = knob(
        0, WHOLE, "average after every step until epoch E, then every H steps",
        metavar="E", min=0, default_text="H from the start",
    )
    outer: OuterRow | Any | None = knob(  # noqa: RUF009
        None, OUTER_STEPS.kind, "take an outer optimizer step towards the average",
        rows=OUTER_STEPS,
        default_text="plain averaging", synonyms=("outer-optimizer",),
    )
    fragments: int = knob(
        1, WHOLE,
        "split the layers into F fragments and average one at a time, each once in H steps",
        metavar="F", min=1, synonyms=("num-fragments",),
    )
    fragment_order: str = knob(
        STRIDED, TEXT,
        "how layers are assigned to fragments: strided (every F-th) or sequential (consecutive)",
        choices=FRAGMENT_ORDERS,
    )
    eager: bool = knob(
        False, SWITCH,
        "apply a worker's own part of an average at once, and the others' parts a period later, "
        "when they have arrived; only without servers",
    )
    sync_delay: int = knob(
        0, WHOLE,
        "apply an average T local steps (at most H; with servers H/F) after it was begun, and sum "
        "it in the meantime", metavar="T", min=0,
    )
    mixing: float | None = knob(
        None, REAL,
        "share of its own parameters that a worker keeps when an average arrives with sync-delay",
        metavar="A", min=0, exclusive_max=1, is_open=True, default_text="0.5",
    )
    quorum: int | None = knob(
        None, WHOLE,
        "let servers merge as soon as K workers have pushed; a push that comes later is part of "
        "the next merge",
        metavar="K", min=1, is_open=True, default_text="all workers",
        synonyms=("minimum-quorum",),
    )
    grace: float | str | None = knob(
        None, REAL_OR_AUTO,
        "keep a merge open for SECONDS once K workers have pushed, for others that are nearly "
        "done; auto: as long as sync-delay hides it",
        metavar="SECONDS|auto", exclusive_min=0, max=86400, default_text="merge at once",
        synonyms=("grace-window", "window"),
    )
    dynamic: bool = knob(
        False, SWITCH,
        "with a quorum, let slower workers take fewer local steps, so that all push as often as "
        "the fastest",
        synonyms=("dylu", "dynamic-steps"),
    )
    merge: MergeRow | Any | None = knob(  # noqa: RUF009
        None, MERGES.kind, "how servers merge what workers have learnt", rows=MERGES,
        default_text="mean", synonyms=("aggregation",),
    )
    merge_weights: str | None = knob(
        None, TEXT,
        "weight of a worker in a merge: its samples since its last push; the same for all; or "
        "these samples times its samples per step (quality)",
        choices=MERGE_WEIGHTS, default_text="samples",
    )
    learner_ranks: int | str = knob(
        1, WHOLE_OR_HOST,
        "with servers, sum the gradients of R ranks in each local step, so that they learn as one "
        "worker of the averages; host: of all workers of a host",
        metavar="R|host", min=1, synonyms=("workers-per-learner", "team-size"),
    )
    # fmt: on

    @property
    def variants(self) -> tuple[Self]:
        """Itself with a quorum, which has other knobs of the run."""
        return (replace(self, quorum=2),)

    @property
    def uses(self) -> tuple[str, ...]:
        """A rate by staleness, too, where there is any."""
        return (*_SUMMED, *_SERVED, _TUNE, *([] if self.rounds else [_RATE]))

    @property
    def rounds(self) -> bool:
        """Each average is one, unless it has a quorum."""
        return self.quorum is None

    @property
    def asynchronous(self) -> bool:
        """Whether it has a quorum."""
        return self.quorum is not None

    @property
    def needs_servers(self) -> bool:
        """Whether it merges as only servers do, or sums among some of the workers."""
        return self.merges or self.has_teams

    @property
    def weakens(self) -> bool:
        """Whether pushes, which are differences, can be stale."""
        return self.is_stale

    def among(self, workers: int, servers: int, *, resumes: bool = False) -> Self:
        """Return the row without a quorum if that is all workers, unless servers have fragments."""
        ranks = self.learner_ranks
        if isinstance(ranks, str):
            return self  # until the hosts are known
        if workers % ranks:
            raise ConfigError(
                f"--mode {self}: {plural(workers, 'worker')} cannot be divided into learners of "
                f"{ranks} ranks"
            )
        workers, who = workers // ranks, "learners" if self.has_teams else "workers"
        if resumes and self.quorum is not None and self.quorum >= workers:
            return self  # a merge needs those that are left
        quorum = workers if self.quorum is None else self.quorum
        if quorum > workers:
            raise ConfigError(f"--mode {self} needs at least {quorum} {who}, got {workers}")
        if self.merge is not None and self.merge.least > quorum:
            raise ConfigError(
                f"--mode {self}: {self._merge} needs a quorum of at least {self.merge.least} "
                f"{who}, got {quorum}"
            )
        most = self.local_steps // self.fragments
        if servers and self.sync_delay > most:
            raise ConfigError(
                f"--mode {self}: with servers sync-delay may be at most {most}, the steps from one "
                "fragment to the next: a worker has one on its way at a time"
            )
        if quorum < workers:
            return self
        for name, given in (
            ("grace", self.grace is not None),
            ("dynamic", self.dynamic),
            ("outer delayed-nesterov", self.outer is not None and self.outer.is_delayed),
        ):
            if given:
                where = f"where a merge waits for all {workers} {who}; give a smaller quorum"
                if self.quorum is None:
                    where = f"without a quorum; give quorum=K, less than all {who}"
                raise ConfigError(f"--mode {self}: {name} has no effect {where}")
        return replace(self, quorum=workers if servers and self.streams else None)

    @property
    def _merge(self) -> str:
        return ",".join(f"{name}={it}" for name, it in self.typed("merge").items())

    def check(self) -> None:
        """Check what must fit into a period, and knobs that need another knob."""
        if self.merge is not None and not self.merge.weighs and self.merge_weights is not None:
            raise ConfigError(
                f"merge-weights {self.merge_weights} has no effect with {self._merge}, which "
                "gives all the same"
            )
        if self.grace == AUTO and not self.sync_delay:
            raise ConfigError(
                "grace auto needs sync-delay: without one no computing hides a window"
            )
        if self.dynamic and self.fragments > 1:
            raise ConfigError(f"dynamic is not possible with fragments {self.fragments}")
        if self.eager and self.merges:
            raise ConfigError("eager is not possible with a quorum, a merge or merge-weights")
        if self.merges and self.post_local_epoch:
            raise ConfigError(
                f"post-local-epoch {self.post_local_epoch} is not possible with a quorum, a merge "
                "or merge-weights"
            )
        if self.has_teams and self.post_local_epoch:
            raise ConfigError(
                f"post-local-epoch {self.post_local_epoch} is not possible with learner-ranks "
                f"{self.learner_ranks}"
            )
        if self.fragments > self.local_steps:
            raise ConfigError(
                f"fragments {self.fragments} is more than local-steps {self.local_steps}: at most "
                "one fragment is sent after each step"
            )
        if self.sync_delay > self.local_steps:
            raise ConfigError(
                f"sync-delay {self.sync_delay} is longer than the period, local-steps "
                f"{self.local_steps}: an average must arrive before the next one begins"
            )
        if self.sync_delay and self.eager:
            raise ConfigError(f"sync-delay {self.sync_delay} has no effect with eager true")
        if self.fragment_order != STRIDED and self.fragments == 1:
            raise ConfigError(
                f"fragment-order {self.fragment_order} has no effect with fragments 1"
            )
        if self.mixing is not None and not self.sync_delay:
            raise ConfigError(f"mixing {self.mixing:g} has no effect with sync-delay 0")

    def settled(self, *, clips: bool, contraction: float | None) -> Self:
        """Return the row with ``mixing`` set, where there is any."""
        return replace(self, mixing=0.5) if self.sync_delay and self.mixing is None else self


@dataclass(frozen=True)
class EASGD(Mode):
    """Elastic averaging with a shared centre."""

    name = "easgd"
    summary = "workers train alone; now and then each and a shared centre are pulled together"
    builder = "psrt.runtime.strategies.builders:averaging"
    servers = Servers.ALWAYS
    averages = codecs = saves = regroups = True
    uses = (*_SERVED, _TUNE)
    words = "elastic {}"
    elastic: float = knob(
        0.9, REAL,
        "elastic force of all W workers: each worker and the centre are pulled towards each other "
        "by BETA/W of their difference",
        metavar="BETA", min=0, max=1e6, synonyms=("beta", "moving-rate", "elasticity"),
    )  # fmt: skip
    local_steps: int = _local_steps(10)
    asynchronous: bool = knob(False, SWITCH, "let no worker wait for another")

    @property
    def rounds(self) -> bool:
        """All workers meet the centre together, unless they are asynchronous."""
        return not self.asynchronous


@dataclass(frozen=True)
class AllReduce(Mode):
    """Sums of gradients without servers."""

    name, synonyms = "allreduce", ("ddp",)
    summary = "as sync, but an all-reduce sums the gradients; there are no servers"
    builder = "psrt.runtime.strategies.builders:summing"
    codecs = saves = regroups = True
    uses = (*_SUMMED, _TUNE)
    # fmt: off
    overlap: bool | None = knob(
        None, SWITCH, "sum a layer's gradient while those of lower layers are computed",
        is_open=True, default_text="true, but not with --clip-norm",
    )
    bucket_bytes: int | None = knob(
        None, WHOLE, "sum layers together in buckets of at least this many bytes",
        metavar="BYTES", min=1, is_open=True, default_text=f"{BUCKET_BYTES}",
        synonyms=("bucket-size",),
    )
    shard: str | None = knob(
        None, TEXT,
        "what is sharded over the workers: the state of the optimizer; gradients as well; or "
        "parameters as well", choices=SHARDS, default_text="nothing: every worker has everything",
        synonyms=("zero", "fsdp", "zero-stage"),
    )
    # fmt: on

    def check(self) -> None:
        """Check that ``bucket_bytes`` has an effect."""
        if self.bucket_bytes is not None and self.overlap is False:
            raise ConfigError(
                f"bucket-bytes {self.bucket_bytes} has no effect with overlap false, which sums "
                "the gradient as a whole"
            )

    def settled(self, *, clips: bool, contraction: float | None) -> Self:
        """Return the row with ``overlap`` set: clipping needs the norm of the whole gradient."""
        overlap = not clips if self.overlap is None else self.overlap
        bucket_bytes = BUCKET_BYTES if self.bucket_bytes is None else self.bucket_bytes
        return replace(self, overlap=overlap, bucket_bytes=bucket_bytes if overlap else None)


@dataclass(frozen=True)
class Gossip(Mode):
    """Averaging with neighbours."""

    name, synonyms = "gossip", ("d-psgd", "dpsgd")
    summary = "workers average with their neighbours on a graph; nobody waits for all"
    builder = "psrt.runtime.strategies.builders:mixing"
    mixes = codecs = saves = True
    uses = ("consensus_every",)
    words = "{}"
    # fmt: off
    topology: str = knob(
        DEFAULT, TEXT,
        "graph of who averages with whom; psrt explain gossip draws it, and its --help lists the "
        "names",
        metavar="NAME|FILE", synonyms=("graph", "network"),
    )
    variant: str = knob(
        PLAIN, TEXT,
        "plain: average in rounds. pairs: average without rounds, and let no worker wait for "
        "another. push-sum: send shares and a weight to divide by, for graphs on which a worker "
        "receives less than it sends. gradient-tracking: step along an estimate of the mean "
        "gradient of all workers, for non-IID data. by-host: average inside each host in shared "
        "memory, and between hosts on the graph",
        metavar="NAME", choices=VARIANTS,
        synonyms=("asynchronous", "tracking", "diging", "track-gradients"),
    )
    order: str | None = knob(
        None, TEXT,
        "average with neighbours while the gradient is computed, and then step; or step first, and "
        "then average",
        choices=MIXING_ORDERS, is_open=True,
        default_text=f"{COMBINE_THEN_ADAPT}; of push-sum {ADAPT_THEN_COMBINE}",
    )
    consensus_rate: float | None = knob(
        None, REAL,
        "with --codec, how far a worker is pulled towards the average with its neighbours in a "
        "round; 1: all the way",
        metavar="G", exclusive_min=0, max=1, is_open=True,
        default_text="1; with sparse codecs the density, with qsgd 1/(1 + its variance); required "
        "with low-rank",
        synonyms=("consensus-step", "gamma"),
    )
    # fmt: on

    @property
    def asynchronous(self) -> bool:
        """Whether pairs average, without rounds."""
        return self.variant == PAIRS

    def check(self) -> None:
        """Check that the order is possible in this variant."""
        if self.order is not None and self.variant == PAIRS:
            raise ConfigError(f"order {self.order} has no effect with variant {PAIRS}")
        if self.order == COMBINE_THEN_ADAPT and self.variant == PUSH_SUM:
            raise ConfigError(
                f"order {self.order} is not possible with variant {PUSH_SUM}, which sends "
                f"parameters after the step; use order {ADAPT_THEN_COMBINE}"
            )

    def settled(self, *, clips: bool, contraction: float | None) -> Self:
        """Return the row with an order, if it has rounds, and with the codec's rate, if any."""
        usual = ADAPT_THEN_COMBINE if self.variant == PUSH_SUM else COMBINE_THEN_ADAPT
        order = None if self.variant == PAIRS else self.order or usual
        return replace(self, order=order, consensus_rate=self.consensus_rate or contraction)


#: Every mode by its name.
MODES: Final = Rows("mode", "psrt.modes", Mode, (
    Serial, Sync, Async, SSP, SoftSync, LocalSGD, EASGD, AllReduce, Gossip,
))  # fmt: skip


def default_mode(ranks: int) -> Mode:
    """Return the default mode of a job of that many ranks."""
    return MODES["serial" if ranks == 1 else "sync"]
