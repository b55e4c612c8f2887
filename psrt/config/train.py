"""TrainConfig: every knob of a run, declared once. Knobs not given are ``None`` until `resolve`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any

from psrt.codec.table import CODECS, CodecRow
from psrt.config import names
from psrt.config.axes import (
    AXES,
    PIPELINE_SCHEDULE,
    STAGES,
    Axes,
    Given,
    axes_of,
)
from psrt.config.checks import check
from psrt.config.dealing import IID, PARTITION
from psrt.config.former import now_of
from psrt.config.injection import INJECTIONS, Injection
from psrt.config.knobs import Condition, knob, knobs_of, synonyms_of
from psrt.config.modes import MODES, Mode
from psrt.core.errors import ConfigError
from psrt.optim.table import (
    OPTIMIZERS,
    SCHEDULES,
    STALENESS_RATES,
    Always,
    Constant,
    OptimizerRow,
    RateRow,
    ScheduleRow,
    Sgd,
)
from psrt.pipeline.registry import PIPELINES
from psrt.rows.knobs import accept, dashed
from psrt.rows.row import Row
from psrt.rows.suggest import did_you_mean
from psrt.rows.values import INTERVAL, LARGEST, REAL, SWITCH, TEXT, WHOLE, WHOLE_OR_AUTO, WIDTHS

_MODE = "mode"
_CUT = "model parallelism"
_CODEC = "compression"
_OPTIMIZER = "optimizer"
_DATA = "data and model"
_RUN = "run"

#: Where an all-reduce takes the place of servers.
_NO_SERVERS = Condition("servers", range(1))
#: Where workers, or the ranks of one, sum.
_SUMS = _NO_SERVERS._replace(otherwise=Condition("mode", MODES.where(lambda row: row.has_teams)))
_SERVERS = Condition("servers", range(1, LARGEST))
#: Where a worker gets parameters or means back.
_ANSWERED = _SERVERS._replace(
    otherwise=Condition("mode", MODES.where(lambda row: row.codecs and row.sums))
)
#: Where every worker has all parameters after an update, and the same ones.
_ALIKE = Condition(
    "mode",
    MODES.where(
        lambda row: (
            row.has_teams or (row.sums and not row.streams and row.shard != names.PARAMETERS)
        )
    ),
)
#: Where a frame can be decoded alone: it is not added to what its receivers know.
_ALONE = Condition("mode", MODES.where(lambda row: row.codecs and not row.mixes))
_PARALLEL = (Condition("parallel", Given(["pipeline:2"])),)
#: Where gradients are stale because of the mode or, in any mode, because of the pipeline.
_NO_DRAINS = Condition("pipeline_schedule", PIPELINES.where(lambda row: row.asynchronous))


_CODED = Condition("codec", CODECS.where(lambda row: True))
#: Codecs whose error may be added to what is sent next.
_FED_BACK = CODECS.where(lambda row: row.feeds_back is not None)


#: A row as text; a type checker cannot know that it is turned into a row.
Spelled = Any


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainConfig:
    """The configuration that the user asked for. Frozen; values are checked alone and together.

    Values are converted to their canonical types: a whole number given for a float becomes a
    float, and lists become tuples. A knob that only some modes, optimizers, schedules or rates use
    is ``None`` when not given; giving it where it would be ignored is an error. Each field's
    meaning, unit and range stand in its `RunKnob`, from which flags and their help are made.

    Raises:
        ConfigError: one line that names the knob.
    """

    # A table that is easy to scan: the formatter would put each argument on a line of its own.
    # fmt: off
    mode: Mode | Spelled | None = knob(  # noqa: RUF009
        None, MODES.kind, _MODE, "synchronization scheme; --help mode lists their knobs",
        rows=MODES,
        default_text="serial on one rank, else sync",
        synonyms=("sync", "scheme"),
        usual=True,
    )
    servers: int | None = knob(
        None, WHOLE, _MODE, "number of ranks that are servers, each with a share of the parameters",
        min=0,
        default_text="1 in modes that need servers, else 0",
        drawn=True,
        synonyms=("num-servers", "parameter-servers"),
        usual=True,
    )
    shards_per_server: int | str | None = knob(
        None, WHOLE_OR_AUTO, _MODE,
        "split the share of each server into K shards, each pushed, updated and read by itself; "
        "auto picks K by the predicted time of a step",
        metavar="K|auto", min=1, max=names.MOST_SHARDS, requires=(_SERVERS,), fallback=names.AUTO,
        drawn=True,
        synonyms=("shards",),
    )
    placement: str | None = knob(
        None, TEXT, _MODE, "which ranks are servers: spread over the hosts, the first, or the last",
        choices=names.PLACEMENTS, requires=(_SERVERS,), fallback="first", numeric=False,
    )
    allreduce: str | None = knob(
        None, TEXT, _MODE,
        "all-reduce algorithm: auto, node (shared memory), mpi (the library's), a schedule such as "
        "ring, or node+ring (ring between hosts)",
        metavar="NAME", choices=names.ALLREDUCE_NAMES, requires=(_SUMS,), fallback="auto",
        drawn=True,
        synonyms=("all-reduce", "algorithm"),
    )
    tune: bool | None = knob(
        None, SWITCH, _MODE,
        "rehearse some steps of the run, and use what is fastest here: bucket-bytes of allreduce, "
        "local-steps of local-sgd up to those given, --shards-per-server with servers",
        default_text="no",
        synonyms=("autotune", "auto-tune"),
    )
    machine_costs: str | None = knob(
        None, TEXT, _MODE,
        "read the communication costs that auto uses from this file, which psrt bench allreduce "
        "--fit writes",
        metavar="FILE", requires=(_SUMS, Condition("allreduce", ("auto",))),
        default_text="those of a common machine", numeric=False, of_run=False,
        synonyms=("costs",),
    )
    check_every: int | None = knob(
        None, WHOLE, _MODE, "compare the parameters of all ranks every K updates; "
        "0: only at the end", metavar="K", min=0,
        requires=(_SUMS, _ALIKE), fallback=100,
        numeric=False,
    )

    consensus_every: int | None = knob(
        None, WHOLE, _MODE,
        "measure how far apart the workers' models are, at each logged line and every K steps; "
        "0: only at the end",
        metavar="K", min=0, fallback=100, numeric=False,
        synonyms=("consensus", "consensus-distance"),
    )
    parallel: str | None = knob(
        None, AXES, _CUT,
        "split the model across ranks: data:D copies, pipeline:P stages of layers, tensor:T slices "
        "of each layer; without data:D, as many copies as the ranks allow",
        requires=(Condition("mode", MODES.where(lambda row: not row.single)),),
        default_text="each worker has the whole model",
        synonyms=("parallelism", "mesh", "pipeline-parallel", "tensor-parallel"),
        usual=True,
    )
    pipeline_schedule: str | None = knob(
        None, PIPELINE_SCHEDULE, _CUT,
        f"order in which stages work: {', '.join(PIPELINES.own)} (interleaved:V has V chunks per "
        "stage); psrt explain pipeline draws it",
        requires=_PARALLEL, fallback=names.DEFAULT_PIPELINE,
    )
    micro_batches: int | None = knob(
        None, WHOLE, _CUT, "split a batch into M parts, which stages work on at the same time",
        metavar="M", min=1, requires=_PARALLEL,
        default_text="4 per stage, at most one per sample; 1 if there is one stage",
        synonyms=("microbatches", "accumulate", "gradient-accumulation-steps"),
    )
    defer_weights: bool | None = knob(
        None, SWITCH, _CUT,
        "compute the weight gradients of all micro-batches in one product, at the end",
        requires=_PARALLEL, fallback=False,
    )
    recompute: bool | None = knob(
        None, SWITCH, _CUT,
        "keep only the inputs of a stage, and recompute its activations before the backward pass",
        requires=_PARALLEL, fallback=False,
        synonyms=("activation-checkpointing", "remat", "checkpoint-activations"),
    )
    stages: str | None = knob(
        None, STAGES, _CUT,
        "number of layers of each stage",
        requires=_PARALLEL, default_text="parameters split evenly", numeric=False,
    )

    staleness_rate: RateRow | Spelled | None = knob(  # noqa: RUF009
        None, STALENESS_RATES.kind, _OPTIMIZER,
        "scale the learning rate of a gradient by its staleness tau",
        rows=STALENESS_RATES, otherwise=_NO_DRAINS, fallback=Constant(),
    )

    codec: CodecRow | Spelled | None = knob(  # noqa: RUF009
        None, CODECS.kind, _CODEC,
        "compress the vectors that are sent; psrt explain codec NAME shows how",
        rows=CODECS, default_text="uncompressed",
        requires=(
            Condition("mode", MODES.where(lambda row: row.codecs and row.variant == names.PLAIN)),
        ),
        synonyms=("compression", "compressor", "compress", "quantize"),
        usual=True,
    )
    codec_reply: CodecRow | Spelled | None = knob(  # noqa: RUF009
        None, CODECS.kind, _CODEC, "also compress what comes back: the changes of parameters, or "
        "the means of an all-reduce",
        rows=CODECS, default_text="parameters uncompressed; means by --codec",
        requires=(_CODED, _ANSWERED),
    )
    codec_everywhere: bool | None = knob(
        None, SWITCH, _CODEC, "use the codec even on one host, where it only costs time",
        requires=(_CODED,), fallback=False,
    )
    error_feedback: bool | None = knob(
        None, SWITCH, _CODEC, "add what the codec lost of one vector to the next",
        requires=(Condition("codec", _FED_BACK), _ALONE),
        default_text="the codec's own; off for differences to a centre",
    )

    optimizer: OptimizerRow | Spelled = knob(  # noqa: RUF009
        Sgd(), OPTIMIZERS.kind, _OPTIMIZER, "rule that turns gradients into steps",
        rows=OPTIMIZERS,
        synonyms=("optim",),
        usual=True,
    )
    lr: float | None = knob(
        None, REAL, _OPTIMIZER, "learning rate", exclusive_min=0, max=1e6,
        default_text="the optimizer's own; --help optimizer lists them",
        synonyms=("learning-rate", "rate", "eta"),
        usual=True,
    )
    weight_decay: float = knob(
        0.0, REAL, _OPTIMIZER,
        "coefficient of L2 regularization; decoupled in adamw, sign-sgd and demo",
        min=0, max=1e6,
        synonyms=("wd", "l2"),
    )
    clip_norm: float | None = knob(
        None, REAL, _OPTIMIZER, "scale gradients with an L2 norm above X down to X",
        exclusive_min=0, max=1e30,
        default_text="no clipping",
        synonyms=("clip", "grad-clip", "max-grad-norm"),
    )
    schedule: ScheduleRow | Spelled = knob(  # noqa: RUF009
        Always(), SCHEDULES.kind, _OPTIMIZER,
        "how the learning rate warms up and changes over time",
        rows=SCHEDULES,
        synonyms=("scheduler", "lr-schedule"),
    )

    dataset: str = knob(
        "digits", TEXT, _DATA,
        "digits, synthetic[:SAMPLESxFEATURESxCLASSES], a folder of IDX files, or an .npz file with "
        "x_train, y_train, x_test and y_test",
        metavar="NAME|PATH",
        synonyms=("data",),
        usual=True,
    )
    hidden: tuple[int, ...] = knob(
        (128, 64), WIDTHS, _DATA, "widths of the hidden layers; none: a linear model",
        synonyms=("layers", "hidden-sizes", "hidden-units"),
        usual=True,
    )
    activation: str = knob(
        "relu", TEXT, _DATA, "activation function between the layers",
        choices=names.ACTIVATION_NAMES
    )
    loss: str = knob(
        "cross-entropy", TEXT, _DATA, "loss function; squared also does regression",
        choices=names.LOSS_NAMES
    )
    batch_size: int = knob(
        32, WHOLE, _DATA, "number of samples per worker and step", min=1,
        synonyms=("batch", "bs", "minibatch"),
        usual=True,
    )
    partition: str = knob(
        IID, PARTITION, _DATA,
        "how samples are split among workers: iid, or non-IID by-label:K (K labels per worker) or "
        "dirichlet:A (the smaller A, the less even)",
        synonyms=("non-iid", "split", "heterogeneity"),
    )

    epochs: float | None = knob(
        None, REAL, _RUN, "number of passes over the training data", exclusive_min=0, max=1e9,
        default_text="10",
        synonyms=("num-epochs", "max-epochs"),
        usual=True,
    )
    steps: int | None = knob(
        None, WHOLE, _RUN, "number of steps of each worker, instead of --epochs", min=1,
        default_text="what --epochs gives",
        synonyms=("max-steps", "num-steps", "iterations", "iters"),
    )
    seed: int = knob(
        0, WHOLE, _RUN, "seed of the initial model, the order of the data and random delays", min=0,
        synonyms=("random-seed",),
        usual=True,
    )
    out: str | None = knob(
        None, TEXT, _RUN, "write config, metrics, model and summary to this folder", metavar="DIR",
        default_text="nothing is written", numeric=False, of_run=False,
        synonyms=("output", "output-dir", "out-dir", "save"),
        usual=True,
    )
    record: bool = knob(
        False, SWITCH, _RUN,
        "record every read, push and update in --out, for psrt check and --replay",
        numeric=False, of_run=False,
        synonyms=("history",),
        usual=True,
    )
    last_events: int | None = knob(
        None, WHOLE, _RUN,
        "without --record, keep the last N events of each rank in memory, 64 bytes each, and write "
        "them if the job fails; 0: none",
        min=0, max=1 << 24, default_text="65536", numeric=False, of_run=False, real_time=True,
    )
    gather: bool | None = knob(
        None, SWITCH, _RUN,
        "at the end of the run, send the history of ranks that do not see --out to rank 0",
        default_text="yes; with --no-gather all ranks must see --out",
        numeric=False, of_run=False, real_time=True,
    )
    replay: str | None = knob(
        None, TEXT, _RUN, "repeat a run that was made with --record, bit for bit",
        metavar="DIR", default_text="a new run", numeric=False, of_run=False,
    )
    checkpoint_every: int | str | None = knob(
        None, INTERVAL, _RUN,
        "write a checkpoint to --out every N steps, or every N seconds (30s), for --resume; auto: "
        "at the interval that costs least",
        metavar="N|Ns|auto", default_text="never", numeric=False, of_run=False,
        synonyms=("checkpoint", "save-every", "save-steps", "checkpoint-interval"),
        usual=True,
    )
    mtbf: float | None = knob(
        None, REAL, _RUN,
        "mean time between failures of the job, in seconds, for --checkpoint-every auto",
        metavar="SECONDS", exclusive_min=0, max=1e9,
        requires=(Condition("checkpoint_every", ("auto",)),), fallback=86400.0,
        numeric=False, of_run=False, real_time=True,
        synonyms=("mean-time-between-failures", "failure-rate"),
    )
    keep: int | None = knob(
        None, WHOLE, _RUN, "number of checkpoints to keep; older ones are deleted",
        metavar="K", min=1,
        requires=(Condition("checkpoint_every", Given(["100"])),), fallback=2,
        numeric=False, of_run=False,
        synonyms=("keep-last", "save-total-limit", "max-checkpoints"),
    )
    resume: str | None = knob(
        None, TEXT, _RUN,
        "resume from the newest checkpoint of a run, or from the checkpoint that is named; auto: "
        "from the newest one in --out, or start from scratch if there is none",
        metavar="DIR|auto", default_text="a new run", numeric=False, of_run=False,
        synonyms=("resume-from", "restart", "load", "continue", "resume-from-checkpoint"),
        usual=True,
    )
    survive: bool | None = knob(
        None, SWITCH, _RUN,
        "continue without workers whose processes die; needs Open MPI under mpirun --with-ft ulfm, "
        "as psrt launch starts it",
        requires=(_SERVERS,), fallback=False, numeric=False, of_run=False,
        synonyms=("fault-tolerant", "fault-tolerance", "ulfm"),
    )
    overwrite: bool = knob(
        False, SWITCH, _RUN, "replace the run that --out holds",
        numeric=False, of_run=False,
        synonyms=("force",),
    )
    log_every: int | None = knob(
        None, WHOLE, _RUN, "log a line every N steps", min=1, default_text="every epoch",
        numeric=False,
        synonyms=("log-interval", "log-steps"),
    )
    inject: tuple[Injection, ...] = knob(
        (), INJECTIONS, _RUN,
        "slow down a worker (*: all of them) by delay:S, jitter:S, tail:S:SHAPE, pause:STEP:S or "
        "slow:FACTOR[:STEP]; may be repeated",
        default_text="none", numeric=False, of_run=False,
        synonyms=("straggler", "jitter", "slow", "delay"),
    )
    timeout_s: float = knob(
        60.0, REAL, _RUN, "end the job if a rank waits this long for another", metavar="SECONDS",
        exclusive_min=0, max=1e6, numeric=False, real_time=True,
        synonyms=("timeout",),
    )
    busy_timeout_s: float = knob(
        3600.0, REAL, _RUN, "end the job if a busy rank makes no progress for this long",
        metavar="SECONDS", exclusive_min=0, max=1e6, numeric=False, real_time=True,
    )
    shared_memory: bool = knob(
        True, SWITCH, _RUN, "use shared memory between the ranks of a host", numeric=False
    )
    bind_cores: bool | None = knob(
        None, SWITCH, _RUN, "bind each worker to cores of its own if there are more ranks than "
        "cores",
        requires=(_SERVERS,), fallback=True, numeric=False, real_time=True,
    )

    # fmt: on

    def __post_init__(self) -> None:
        for name, it in knobs_of(self).items():
            value, default = getattr(self, name), self.__dataclass_fields__[name].default
            if value is not default:  # which is in its canonical type
                object.__setattr__(self, name, accept(name, it, value))
        check(self)

    def __repr__(self) -> str:
        """Return the call that makes it: only the knobs that differ from the defaults."""
        given = {it.name: (getattr(self, it.name), it.default) for it in fields(self)}
        said = (f"{name}={it!r}" for name, (it, default) in given.items() if it != default)
        return f"TrainConfig({', '.join(said)})"

    @property
    def codecs(self) -> dict[str, CodecRow]:
        """Field → codec, for what workers send and for replies, where a codec is set."""
        both = {"codec": self.codec, "codec_reply": self.codec_reply}
        return {field: row for field, row in both.items() if row is not None}

    def plain(self) -> dict[str, Any]:
        """Return knob → value for JSON: a row becomes its text, from which it can be read back."""
        values = {it.name: getattr(self, it.name) for it in fields(self)}
        return {name: it.text if isinstance(it, Row) else it for name, it in values.items()}

    @property
    def axes(self) -> Axes:
        """How the model is split; not at all without ``--parallel``."""
        return Axes() if self.parallel is None else axes_of(self.parallel)

    @property
    def has_whole_servers(self) -> bool:
        """Whether servers have the whole of a model that is split, whose copies are learners.

        Otherwise each part has servers of its own, if there are any. Only of a resolved config.
        """
        return self.parallel is not None and self.scheme.quorum is not None

    @property
    def scheme(self) -> Mode:
        """The mode. Only a resolved config is sure to have one."""
        assert isinstance(self.mode, Mode), "not resolved: the mode is not known yet"
        return self.mode


if not TYPE_CHECKING:  # which knows the names
    _make = TrainConfig.__init__

    @wraps(_make)
    def _checked(self: TrainConfig, *values: Any, **given: Any) -> None:
        known = knobs_of(TrainConfig)
        for name in given:
            if name not in known:
                if now := now_of(name):
                    flag, _, text = now.partition(" ")
                    knob = flag.removeprefix("--").replace("-", "_")
                    raise ConfigError(f"there is no knob {name}: it is now {knob}={text!r}")
                hint = did_you_mean(dashed(name), map(dashed, known), synonyms_of(TrainConfig))
                raise ConfigError(f"there is no knob {name}{hint.replace('-', '_')}")
        _make(self, *values, **given)

    TrainConfig.__init__ = _checked
