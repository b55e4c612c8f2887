"""Which knobs go together, with each other and with the data. Pure: a config in, or an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from psrt.codec.table import CODECS, CodecRow
from psrt.config.axes import Given, axes_of
from psrt.config.dealing import IID
from psrt.config.knobs import Condition, RunKnob, knobs_of
from psrt.config.modes import Mode
from psrt.config.names import (
    BY_HOST,
    DEFAULT_PIPELINE,
    OPTIMIZER,
    PAIRS,
    PARAMETERS,
    SHARDING_NAMES,
    by_hosts,
)
from psrt.config.tuning import check_tuning
from psrt.core.errors import ConfigError
from psrt.core.units import plural
from psrt.pipeline.registry import ScheduleName, schedule_of
from psrt.rows.knobs import dashed, shown
from psrt.rows.row import Row

if TYPE_CHECKING:
    from psrt.config.train import TrainConfig


#: Fields that may follow from the number of ranks, which only `resolve` knows.
_LATE = ("mode", "servers")


def check(config: TrainConfig) -> None:
    """Check the knobs against each other.

    While the mode is not known, checks that depend on it are left to `resolve`, which sets it.

    Raises:
        ConfigError: one line that names the flags.
    """
    brought = config.optimizer.codec

    def value_of(name: str) -> Any:
        value = getattr(config, name)
        return CODECS[brought] if name == "codec" and value is None and brought else value

    knobs = knobs_of(config)
    for name, knob in knobs.items():
        value = getattr(config, name)
        if knob.requires and value is not None and (miss := first_miss(knobs, name, value_of)):
            raise _meaningless(name, value, miss, value_of)
    _check_length(config)
    _check_injections(config)
    if config.record and config.out is None:
        raise ConfigError("--record has no effect without --out DIR, where the history goes")
    if config.last_events is not None and config.record:
        raise ConfigError(
            f"--last-events {config.last_events} has no effect with --record, which keeps them all"
        )
    if config.gather is not None and not config.record:
        raise ConfigError(f"{flag('gather', config.gather)} has no effect without --record")
    _check_saving(config)
    _check_surviving(config)
    _check_cut(config)
    _check_codec(config)
    if not config.shared_memory and by_hosts(config.allreduce):
        raise ConfigError(
            f"--allreduce {config.allreduce} uses shared memory, got --no-shared-memory"
        )
    if config.mode is not None:
        _check_servers(config, config.scheme)
        _check_overlap(config, config.scheme)
        _check_shard(config, config.scheme)
        if config.tune:
            check_tuning(config)


def first_miss(
    knobs: Mapping[str, RunKnob], name: str, value_of: Callable[[str], Any]
) -> Condition | None:
    """Return the first condition of a knob that certainly does not hold.

    Args:
        knobs: all of them.
        name: of the knob.
        value_of: returns the value of a knob by its name. ``None`` counts as the default: the
            fallback, or the mode's own number of servers. As long as the mode is not resolved, its
            number of servers is not known, and the condition may hold.
    """

    def may_hold(condition: Condition) -> bool:
        current = value_of(condition.field)
        if current is None and condition.field == "servers" and value_of("mode") is not None:
            current = value_of("mode").default_servers
        if current is None:
            current = knobs[condition.field].fallback
        if current is None and condition.field in _LATE:
            return True
        return current in condition.values or (
            condition.otherwise is not None and may_hold(condition.otherwise)
        )

    return next((it for it in knobs[name].requires if not may_hold(it)), None)


def check_data(
    config: TrainConfig, *, samples: int, parameters: int, workers: int, classes: int | None = None
) -> None:
    """Check a resolved config against the data and the model.

    Args:
        config: as `resolve` returned it.
        samples: training samples.
        parameters: of the whole model.
        workers: number of ranks that compute gradients.
        classes: number of classes, 0 for a regression; ``None`` for a problem of the user's own.

    Raises:
        ConfigError: if a global batch needs more samples than there are, a shard would own no
            parameter, or the loss is not defined for these targets.
    """
    batch = config.batch_size * workers
    if config.partition == IID and batch > samples:
        of_all = f" of all {workers} workers" if workers > 1 else ""
        raise ConfigError(
            f"--batch-size {config.batch_size}: a step{of_all} takes {batch} samples, "
            f"the data has {samples}"
            + (f"; expected at most {samples // workers}" if samples >= workers else "")
        )
    asked = config.shards_per_server
    each = asked if isinstance(asked, int) else 1
    if (config.servers or 0) * each > parameters:
        with_each = f" --shards-per-server {each}" if each > 1 else ""
        raise ConfigError(
            f"--servers {config.servers}{with_each}: {parameters} parameters cannot be split into "
            "that many shards"
        )
    if classes == 0 and config.loss != "squared":
        raise ConfigError(
            f"--loss {config.loss} needs class labels, {config.dataset} has floats as y, the "
            "targets of a regression: use --loss squared, or save classes as integers, "
            "y.astype(int)"
        )


def check_matrices(config: TrainConfig, shapes: Iterable[tuple[int, int]]) -> None:
    """Check the codecs against the matrices of a model.

    Args:
        config: resolved.
        shapes: of the matrices that the problem names.

    Raises:
        ConfigError: if they are not as a codec needs them.
    """
    shapes = tuple(shapes)
    for field, row in config.codecs.items():
        try:
            row.check_matrices(shapes)
        except ConfigError as error:
            raise ConfigError(f"--{dashed(field)} {error}") from None


def flag(name: str, value: Any) -> str:
    """Return the flag that gives this value, as a user would type it."""
    if isinstance(value, bool):
        return f"--{dashed(name)}" if value else f"--no-{dashed(name)}"
    return f"--{dashed(name)} {value if isinstance(value, str) else shown(value)}"


def _meaningless(
    name: str, value: Any, condition: Condition, value_of: Callable[[str], Any]
) -> ConfigError:
    other, current = dashed(condition.field), value_of(condition.field)
    mode = value_of("mode")
    if other == "servers" and not current and mode is not None and mode.needs_servers:
        return ConfigError(  # --servers 0 would be refused
            f"{flag(name, value)} has no effect with --mode {mode}, which needs servers; "
            "it belongs to learners of several ranks (learner-ranks)"
        )
    now = f"without --{other}" if current is None else f"with {flag(condition.field, current)}"
    where = f"; it belongs to --{other} {_any(condition.values)}" if condition.values else ""
    if isinstance(current, Row) and current.name in condition.values:
        where = f"; it has one with other knobs of {current.name}"
    if isinstance(condition.values, Given):
        where = f"; it needs --{other}, such as {_any(condition.values)}"
    either = condition.otherwise
    if either is not None and value_of(either.field) is not None:
        named = flag(either.field, value_of(either.field))
        now = f"with {named} {now}" if current is None else f"{now} and {named}"
    return ConfigError(f"{flag(name, value)} has no effect {now}{where}")


def _any(values: Collection[Any]) -> str:
    """Return ``a, b or c``."""
    if isinstance(values, range) and len(values) > 1:
        return f"{values.start} or more"
    names = [str(value) for value in values if value is not None]
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _check_length(config: TrainConfig) -> None:
    """Check the knobs that set the length of the run."""
    if config.epochs is not None and config.steps is not None:
        raise ConfigError("give --epochs or --steps, not both")
    if config.epochs is not None and config.schedule.warmup > config.epochs:
        raise ConfigError(
            f"--schedule {config.schedule}: its warm-up is longer than "
            f"the run of {shown(config.epochs)} epochs"
        )


def _check_injections(config: TrainConfig) -> None:
    """Check that no injection begins after the last step."""
    for injection in config.inject:
        if config.steps is not None and injection.first_step >= config.steps:
            raise ConfigError(
                f"--inject {injection} begins at step {injection.first_step}, "
                f"the run has {config.steps} from 0 on"
            )


def _check_saving(config: TrainConfig) -> None:
    """Check what goes with checkpoints."""
    given = [
        flag(name, value)
        for name in ("checkpoint_every", "resume")
        if (value := getattr(config, name)) is not None
    ]
    if not given:
        return
    if config.out is None and config.checkpoint_every is not None:
        raise ConfigError(f"{given[0]} has no effect without --out DIR, where checkpoints go")
    if config.replay is not None:
        raise ConfigError(f"{given[0]} cannot be combined with --replay {config.replay}")
    schedule = schedule_of(config.pipeline_schedule or DEFAULT_PIPELINE)
    if schedule.row.asynchronous and config.partition != "iid":
        raise ConfigError(
            f"{given[0]} is not possible with --pipeline-schedule {schedule} and --partition "
            f"{config.partition}: only at the end of an epoch is no batch in flight, and copies "
            "end their epochs at different steps"
        )
    if config.mode is None:
        return
    mode = config.scheme
    if not mode.saves:
        raise ConfigError(f"{given[0]} is not possible with --mode {mode.name}")
    if config.parallel is not None and mode.parks and mode.quorum is None:
        raise ConfigError(
            f"{given[0]} is not possible with --parallel {config.parallel} and --mode {mode.name}, "
            "whose workers save different steps: the parts of a copy would not match"
        )
    in_flight = mode.sync_delay * mode.fragments >= mode.local_steps and not config.servers
    if mode.eager or in_flight:
        raise ConfigError(
            f"{given[0]} is not possible with --mode {mode}: after each step an average is in "
            "flight, which no worker could save"
        )


def _check_surviving(config: TrainConfig) -> None:
    """Check what goes with workers that may die."""
    if not config.survive:
        return
    if config.parallel is not None:
        raise ConfigError(
            f"--survive is not possible with --parallel {config.parallel}: the parts of a copy "
            "need each other"
        )
    if config.replay is not None:
        raise ConfigError(f"--survive cannot be combined with --replay {config.replay}")


def _check_overlap(config: TrainConfig, mode: Mode) -> None:
    """Check the knobs that set how an all-reduce is split into buckets."""
    if config.clip_norm is None:
        return
    if mode.overlap:
        raise ConfigError(
            f"--mode {mode} cannot be combined with --clip-norm {shown(config.clip_norm)}, which "
            "needs the norm of the whole gradient before it is summed; use overlap=false"
        )
    if mode.bucket_bytes is not None:
        raise ConfigError(
            f"--mode {mode}: bucket-bytes has no effect with --clip-norm, which sums the gradient "
            "as a whole"
        )


def _check_cut(config: TrainConfig) -> None:
    """Check what goes with model parallelism."""
    if config.parallel is None:
        return
    axes, given = axes_of(config.parallel), config.pipeline_schedule
    schedule = schedule_of(given or DEFAULT_PIPELINE)
    # One stage of pipedream is serial: batches as a whole, and fresh gradients.
    is_idle = schedule.row.chunked or not schedule.row.sends_first
    if given is not None and axes.pipeline == 1 and is_idle:
        raise ConfigError(f"--pipeline-schedule {given} has no effect with one stage")
    if schedule.row.asynchronous and (config.micro_batches or 1) > 1:
        raise ConfigError(
            f"--micro-batches {config.micro_batches} has no effect with --pipeline-schedule "
            f"{schedule}, which does not split batches"
        )
    if config.micro_batches is not None and config.micro_batches > config.batch_size:
        raise ConfigError(
            f"--micro-batches {config.micro_batches} is more than a batch has samples, "
            f"--batch-size {config.batch_size}"
        )
    if config.micro_batches == 1 and not schedule.row.asynchronous:
        for name in ("defer_weights", "recompute"):
            if value := getattr(config, name):
                raise ConfigError(
                    f"{flag(name, value)} has no effect with one micro-batch; --micro-batches M "
                    "splits a batch into M"
                )
    if schedule.row.asynchronous and config.defer_weights:
        raise ConfigError(
            f"--defer-weights has no effect with --pipeline-schedule {schedule}, which does not "
            "split batches"
        )
    if not schedule.row.defers and config.defer_weights:
        raise ConfigError(
            f"--defer-weights is not possible with --pipeline-schedule {schedule}, which keeps the "
            "activations of only one micro-batch"
        )
    late = "--defer-weights" if config.defer_weights else f"--pipeline-schedule {schedule}"
    if config.recompute and (config.defer_weights or schedule.row.splits):
        raise ConfigError(
            f"--recompute is not possible with {late}, whose weight gradients need the activations "
            "later"
        )
    mode = config.mode and config.scheme
    if mode and mode.backup and axes.cells > 1:
        raise ConfigError(
            f"--mode {mode} is not possible with --parallel {config.parallel}: the parts of a copy "
            "would drop gradients of different steps"
        )
    if mode and mode.variant == PAIRS:
        raise ConfigError(
            f"--mode {mode} is not possible with --parallel {config.parallel}: each part of a copy "
            "would average with others in its own order"
        )
    if mode and mode.variant == BY_HOST:
        raise ConfigError(
            f"--mode {mode} is not possible with --parallel {config.parallel}: the parts of a copy "
            "may be on hosts with different neighbours"
        )
    if schedule.row.asynchronous:
        _check_pipedream(config, schedule)
    if config.consensus_every:
        raise ConfigError(
            f"--consensus-every {config.consensus_every} needs whole models, but --parallel "
            f"{config.parallel} splits them; the summary has the distance at the end"
        )
    counts = [] if config.stages is None else config.stages.split(",")
    chunks = axes.pipeline * schedule.chunks
    if counts and len(counts) != chunks:
        of_chunks = f" of {schedule.chunks} chunks" if schedule.chunks > 1 else ""
        raise ConfigError(
            f"--stages {config.stages} has {plural(len(counts), 'number')}, --parallel "
            f"{config.parallel} has {plural(axes.pipeline, 'stage')}{of_chunks}"
        )


def _check_pipedream(config: TrainConfig, schedule: ScheduleName) -> None:
    """Check what goes with gradients that are stale because of the pipeline."""
    if config.mode and config.scheme.shard == PARAMETERS:
        raise ConfigError(
            f"--mode {config.mode} is not possible with --pipeline-schedule {schedule}: batches "
            "in flight need older parameters, which can no longer be gathered"
        )
    if config.clip_norm is not None and config.axes.pipeline > 1:
        raise ConfigError(
            f"--clip-norm {shown(config.clip_norm)} is not possible with --pipeline-schedule "
            f"{schedule}: a stage updates before earlier stages have their gradients, so the norm "
            "of the whole gradient is not known"
        )
    rate, mode = config.staleness_rate, config.mode and config.scheme
    served = bool(mode and mode.is_stale)
    if rate is None:
        return
    if not rate.is_usual and mode and not served and config.axes.pipeline == 1:
        raise ConfigError(
            f"--staleness-rate {rate} has no effect with one stage, whose gradients are fresh"
        )
    why = rate.not_served if served else rate.not_alone
    if why and (mode or rate.not_served):
        of_mode = f" and --mode {mode.name}" if mode else ""
        raise ConfigError(
            f"--staleness-rate {rate} is not possible with --pipeline-schedule {schedule}{of_mode}:"
            f" {why}"
        )


def _check_shard(config: TrainConfig, mode: Mode) -> None:
    """Check what goes with a mode that shards something over the workers."""
    if mode.shard is None:
        return
    if config.allreduce is not None and config.allreduce not in SHARDING_NAMES:
        raise ConfigError(
            f"--mode {mode} cannot be combined with --allreduce {config.allreduce}, which gives "
            f"every worker all sums; use one of {', '.join(SHARDING_NAMES)}"
        )
    codec = config.codec.name if config.codec else config.optimizer.codec
    if codec is not None:
        raise ConfigError(
            f"--mode {mode} cannot be combined with --codec {codec}: owners send parameters, which "
            "no codec compresses"
        )
    if mode.shard == OPTIMIZER:
        return
    if config.clip_norm is not None:
        raise ConfigError(
            f"--mode {mode} cannot be combined with --clip-norm {shown(config.clip_norm)}, which "
            "needs the norm of the whole gradient: no worker ever has all of it"
        )
    if mode.overlap is False:
        raise ConfigError(
            f"--mode {mode}: shard={mode.shard} needs overlap=true; without it every worker holds "
            "the whole gradient"
        )
    if (config.micro_batches or 1) > 1 and not config.defer_weights:
        raise ConfigError(
            f"--mode {mode} sends each gradient to its owner at once, but gradients of "
            f"{config.micro_batches} micro-batches are added up first; use --defer-weights or "
            f"shard={OPTIMIZER}"
        )
    if mode.shard == PARAMETERS and by_hosts(config.allreduce):
        raise ConfigError(
            f"--mode {mode} cannot be combined with --allreduce {config.allreduce}, which keeps "
            "parameters once per host; use --allreduce ring"
        )


def _check_codec(config: TrainConfig) -> None:
    """Check what goes with codecs."""
    codec, mode = config.codec, None if config.mode is None else config.scheme
    if config.error_feedback and codec and not codec.settled(scales=False).can_feed_back:
        raise ConfigError(
            f"--error-feedback cannot be combined with --codec {codec}: the scaled sum of what is "
            "sent and what is kept back would grow from step to step"
        )
    if mode is not None and mode.mixes and codec is not None:
        _check_differences(mode, codec)
    if mode is not None and mode.consensus_rate is not None and codec is None:
        raise ConfigError(f"--mode {mode}: consensus-rate has no effect without --codec")
    if mode is not None and mode.elastic is not None:
        for field, row in config.codecs.items():
            if "momentum" in row.knobs:
                raise ConfigError(
                    f"{flag(field, row.name)} keeps a momentum, which would multiply the force of "
                    f"--mode {mode.name}: workers and centre would not settle"
                )
    replies = config.codec_reply
    if replies is not None and not replies.sends_differences:
        raise ConfigError(
            f"--codec-reply {replies.name} cannot send changes of parameters; use one of {_able()}"
        )
    for field, row in config.codecs.items():
        for knob, value in row.differences.items():
            differs = field == "codec_reply" or (mode is not None and mode.mixes)
            if differs and row.knobs[knob] not in (None, value):
                raise ConfigError(
                    f"--{dashed(field)} {row}: for changes of parameters {knob} is always "
                    f"{shown(value)}"
                )


def _able() -> str:
    """Return the codecs that can send differences."""
    return ", ".join(CODECS.where(lambda row: row.sends_differences))


def _check_differences(mode: Mode, codec: CodecRow) -> None:
    """Check the codec of the differences between parameters and what neighbours know of them."""
    if not codec.sends_differences:
        raise ConfigError(
            f"--codec {codec.name} cannot send changes of parameters, as --mode {mode.name} does; "
            f"use one of {_able()}"
        )
    if codec.contraction is None and mode.consensus_rate is None:
        raise ConfigError(
            f"--codec {codec.name} needs --mode {mode.name}:consensus-rate=G, which depends on the "
            "model; begin with the share of the model's numbers that a frame holds"
        )


def _check_servers(config: TrainConfig, mode: Mode) -> None:
    """Check the mode's number of servers and its use of shared memory."""
    if mode.needs_servers and config.servers == 0:
        raise ConfigError(f"--mode {mode} needs at least 1 server, got --servers 0")
    if config.servers and not mode.may_have_servers:
        raise ConfigError(
            f"--servers {config.servers} has no effect with --mode {mode.name}, which has none"
        )
    for name in mode.alone:
        if config.servers and name in mode.given:
            raise ConfigError(
                f"--mode {mode}: {dashed(name)} has no effect with --servers {config.servers}"
            )
    if mode.single and not config.shared_memory:
        raise ConfigError(f"--no-shared-memory has no effect with --mode {mode.name}")
