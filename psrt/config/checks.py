"""Which knobs go together, with each other and with the data. Pure: a config in, or an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from psrt.codec.table import TABLE
from psrt.config.dealing import IID
from psrt.config.knobs import Condition, Knob, dashed, knobs_of, shown
from psrt.config.modes import MODES, Mode
from psrt.config.names import OPTIMIZER_CODECS, by_hosts
from psrt.errors import ConfigError

if TYPE_CHECKING:
    from psrt.config.train import TrainConfig


#: What is given or follows from the number of ranks, which only `resolve` knows.
_LATE = ("mode", "servers")


def check(config: TrainConfig) -> None:
    """Check the knobs against each other.

    While the mode is not known, checks that depend on it are left to `resolve`, which sets it.

    Raises:
        ConfigError: one line that names the flags.
    """
    brought = OPTIMIZER_CODECS.get(config.optimizer)

    def value_of(name: str) -> Any:
        value = getattr(config, name)
        return brought if name == "codec" and value is None else value

    knobs = knobs_of(config)
    for name in knobs:
        value = getattr(config, name)
        if value is not None and (miss := first_miss(knobs, name, value_of)):
            raise _meaningless(name, value, miss, value_of)
    _check_length(config)
    _check_injections(config)
    if config.record and config.out is None:
        raise ConfigError("--record has no effect without --out DIR, where the history goes")
    if config.gather is not None and not config.record:
        raise ConfigError(f"{flag('gather', config.gather)} has no effect without --record")
    _check_overlap(config)
    _check_codec(config)
    _check_period(config)
    if not config.shared_memory and by_hosts(config.allreduce):
        raise ConfigError(
            f"--allreduce {config.allreduce} is by shared memory, got --no-shared-memory"
        )
    if config.mode is not None:
        _check_servers(config, MODES[config.mode])


def first_miss(
    knobs: Mapping[str, Knob], name: str, value_of: Callable[[str], Any]
) -> Condition | None:
    """Return the first condition of a knob that is surely not met.

    Args:
        knobs: all of them.
        name: of the knob.
        value_of: returns the value of a knob by its name. ``None`` counts as the default: the
            fallback, or the mode's own number of servers; while that is not known, because the mode
            is still to be resolved, the condition may hold.
    """

    def may_hold(condition: Condition) -> bool:
        current = value_of(condition.field)
        if current is None and condition.field == "servers" and value_of("mode") is not None:
            current = MODES[value_of("mode")].default_servers
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
        ConfigError: if a global batch is cut out of less data, a shard would own no parameter,
            or the loss is not defined for these targets.
    """
    batch = config.batch_size * workers
    if config.partition == IID and batch > samples:
        of_all = f" of {workers} workers together" if workers > 1 else ""
        raise ConfigError(
            f"--batch-size {config.batch_size}: a step{of_all} takes {batch} samples, "
            f"the data has {samples}"
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


def check_rank(config: TrainConfig, shapes: Iterable[tuple[int, int]]) -> None:
    """Check the rank of a low-rank codec against a model.

    Args:
        config: resolved.
        shapes: of the matrices that the problem names.

    Raises:
        ConfigError: if all of them have fewer rows or columns, or there is none.
    """
    if config.codec_rank is None:
        return
    most = max((min(shape) for shape in shapes), default=0)
    if not most:
        [whose, *_] = (flag(*it) for it in config.codecs.items() if "rank" in TABLE[it[1]].knobs)
        raise ConfigError(
            f"{whose} is for matrices, and the problem has no matrices() that names some"
        )
    if config.codec_rank > most:
        raise ConfigError(
            f"--codec-rank {config.codec_rank} is more than a matrix of the model can have, at "
            f"most {most}"
        )


def flag(name: str, value: Any) -> str:
    """Return the flag that gives this value, as a user would type it."""
    if isinstance(value, bool):
        return f"--{dashed(name)}" if value else f"--no-{dashed(name)}"
    return f"--{dashed(name)} {value if isinstance(value, str) else shown(value)}"


def _meaningless(
    name: str, value: Any, condition: Condition, value_of: Callable[[str], Any]
) -> ConfigError:
    other, current = dashed(condition.field), value_of(condition.field)
    now = f"without --{other}" if current is None else f"with {flag(condition.field, current)}"
    where = f"; it belongs to --{other} {_any(condition.values)}" if condition.values else ""
    if condition.values == (False,):
        where = f"; it belongs to {flag(condition.field, False)}"
    either = condition.otherwise
    if either is not None and value_of(either.field) is not None:
        named = flag(either.field, value_of(either.field))
        now = f"with {named} {now}" if current is None else f"{now} and {named}"
    return ConfigError(f"{flag(name, value)} has no effect {now}{where}")


def _any(values: Collection[Any]) -> str:
    """Return ``a, b or c``."""
    if isinstance(values, range) and len(values) > 1:
        return f"{values.start} or more"
    names = [str(value) for value in values]
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _check_length(config: TrainConfig) -> None:
    """Check the knobs that set the length of the run."""
    if config.epochs is not None and config.steps is not None:
        raise ConfigError("give --epochs or --steps, not both")
    if config.epochs is not None and config.warmup_epochs > config.epochs:
        raise ConfigError(
            f"--warmup-epochs {shown(config.warmup_epochs)} is longer than "
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


def overlaps(config: TrainConfig) -> bool:
    """Return whether an all-reduce begins before the whole gradient has been computed.

    Not where the gradient is clipped: the factor depends on the norm of all of it.
    """
    return config.clip_norm is None if config.overlap is None else config.overlap


def _check_overlap(config: TrainConfig) -> None:
    """Check the knobs that set how an all-reduce is cut into buckets."""
    if config.overlap and config.clip_norm is not None:
        raise ConfigError(
            f"--overlap cannot be combined with --clip-norm {shown(config.clip_norm)}: "
            "the norm is that of the whole gradient"
        )
    if config.bucket_bytes is not None and not overlaps(config):
        why = "--no-overlap" if config.overlap is False else "--clip-norm"
        raise ConfigError(
            f"--bucket-bytes {config.bucket_bytes} has no effect with {why}, "
            "which sums the gradient as a whole"
        )


def _check_codec(config: TrainConfig) -> None:
    """Check the knobs of a codec that do not go together."""
    if config.error_feedback and config.codec_scaled:
        raise ConfigError(
            "--error-feedback cannot be combined with --codec-scaled: the scaled sum of what is "
            "sent and what is kept back would grow from step to step"
        )
    for field, name in config.codecs.items():
        multiple = TABLE[name].bucket_multiple
        if config.codec_bucket is not None and config.codec_bucket % multiple:
            raise ConfigError(
                f"--codec-bucket {config.codec_bucket} must be a multiple of {multiple} with "
                f"{flag(field, name)}"
            )
    if config.codec_reply_shared:
        mode = MODES.get(config.mode or "")
        if config.backup or (mode is not None and not mode.rounds):
            what = f"--backup {config.backup}" if config.backup else f"--mode {config.mode}"
            raise ConfigError(
                "--codec-reply-shared is for workers who all read every version, as in sync, got "
                f"{what}"
            )
    chunk, kept = config.codec_chunk, config.codec_kept
    if kept is not None and chunk is not None and kept > chunk**2:
        raise ConfigError(f"--codec-kept {kept} is more than --codec-chunk {chunk} squared")


def _check_period(config: TrainConfig) -> None:
    """Check what has to fit into the period of local SGD."""
    steps = config.local_steps or knobs_of(config)["local_steps"].fallback
    if config.fragments is not None and config.fragments > steps:
        raise ConfigError(
            f"--fragments {config.fragments} is more than --local-steps {steps}: after each step "
            "of a period one is sent, or none"
        )
    if config.sync_delay is not None and config.sync_delay > steps:
        raise ConfigError(
            f"--sync-delay {config.sync_delay} is longer than the period, --local-steps {steps}: "
            "an average arrives before the next one begins"
        )


def _check_servers(config: TrainConfig, mode: Mode) -> None:
    """Check the mode's number of servers and its use of shared memory."""
    if mode.needs_servers and config.servers == 0:
        raise ConfigError(f"--mode {mode.name} needs at least 1 server, got --servers 0")
    if config.servers and not mode.may_have_servers:
        raise ConfigError(
            f"--servers {config.servers} has no effect with --mode {mode.name}, which has none"
        )
    if mode.single and not config.shared_memory:
        raise ConfigError(f"--no-shared-memory has no effect with --mode {mode.name}")
