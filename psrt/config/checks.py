"""Which knobs go together, with each other and with the data. Pure: a config in, or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psrt.config.knobs import Knob, Only, dashed, knobs_of, shown
from psrt.config.modes import SERVER_MODES
from psrt.errors import ConfigError

#: Knobs of an all-reduce that local SGD has, where it averages over one.
REDUCE_KNOBS = ("allreduce", "costs", "check_every")

if TYPE_CHECKING:
    from psrt.config.train import TrainConfig


def check(config: TrainConfig) -> None:
    """Check the knobs against each other.

    While the mode is not known, what depends on it is left for `resolve`, which sets it.

    Raises:
        ConfigError: one line that names the flags.
    """
    for name, knob in knobs_of(config).items():
        value = getattr(config, name)
        if value is not None and (miss := first_miss(config, knob)):
            raise _meaningless(name, value, miss, getattr(config, miss.field))
    _check_length(config)
    _check_injections(config)
    if config.record and config.out is None:
        raise ConfigError("--record has no meaning without --out DIR, where the history goes")
    _check_overlap(config)
    if not config.shared_memory and (config.allreduce or "").startswith("node"):
        raise ConfigError(
            f"--allreduce {config.allreduce} is by shared memory, got --no-shared-memory"
        )
    if config.mode is not None:
        _check_servers(config, config.mode)


def first_miss(config: TrainConfig, knob: Knob) -> Only | None:
    """Return the first condition of a knob that ``config`` surely does not meet.

    A field that is ``None`` counts as its fallback; without one (the mode) it is not known yet.
    """
    knobs = knobs_of(config)
    for only in knob.only:
        current = getattr(config, only.field)
        if current is None:
            current = knobs[only.field].fallback
        if current is not None and current not in only.values:
            return only
    return None


def check_data(
    config: TrainConfig, *, samples: int, parameters: int, workers: int, classes: int | None = None
) -> None:
    """Check a resolved config against the data and the model.

    Args:
        config: as `resolve` returned it.
        samples: training samples.
        parameters: of the whole model.
        workers: ranks that compute gradients.
        classes: of the data, 0 for a regression; ``None`` where the problem is the user's own.

    Raises:
        ConfigError: if a global batch is larger than the data, a shard would own no parameter,
            or the loss cannot be taken of these targets.
    """
    batch = config.batch_size * workers
    if batch > samples:
        of_all = f" of {workers} workers together" if workers > 1 else ""
        raise ConfigError(
            f"--batch-size {config.batch_size}: a step{of_all} takes {batch} samples, "
            f"the data has {samples}"
        )
    if (config.servers or 0) > parameters:
        raise ConfigError(
            f"--servers {config.servers}: {parameters} parameters cannot be cut into so many shards"
        )
    if classes == 0 and config.loss != "squared":
        raise ConfigError(
            f"--loss {config.loss} needs class labels, {config.dataset} is a regression; "
            "use --loss squared"
        )


def flag(name: str, value: Any) -> str:
    """Return the flag that gives this value, as a user would type it."""
    if isinstance(value, bool):
        return f"--{dashed(name)}" if value else f"--no-{dashed(name)}"
    return f"--{dashed(name)} {value if isinstance(value, str) else shown(value)}"


def _meaningless(name: str, value: Any, only: Only, current: Any) -> ConfigError:
    other = dashed(only.field)
    now = f"without --{other}" if current is None else f"with --{other} {current}"
    return ConfigError(
        f"{flag(name, value)} has no meaning {now}; it belongs to --{other} {_any(only.values)}"
    )


def _any(names: tuple[str, ...]) -> str:
    """Return ``a, b or c``."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _check_length(config: TrainConfig) -> None:
    """Check what says how long the run is."""
    if config.epochs is not None and config.steps is not None:
        raise ConfigError("give --epochs or --steps, not both")
    if config.epochs is not None and config.warmup_epochs > config.epochs:
        raise ConfigError(
            f"--warmup-epochs {shown(config.warmup_epochs)} is longer than "
            f"the run of {shown(config.epochs)} epochs"
        )


def _check_injections(config: TrainConfig) -> None:
    """Check that what begins at a step begins within the run."""
    for injection in config.inject:
        if config.steps is not None and injection.first_step >= config.steps:
            raise ConfigError(
                f"--inject {injection} begins at step {injection.first_step}, "
                f"the run has {config.steps} from 0 on"
            )


def overlaps(config: TrainConfig) -> bool:
    """Tell whether an all-reduce begins before the gradient is there as a whole.

    A clipped gradient is multiplied by what the norm of all of it says, so it has to be.
    """
    return config.clip_norm is None if config.overlap is None else config.overlap


def _check_overlap(config: TrainConfig) -> None:
    """Check what says how an all-reduce is cut."""
    if config.overlap and config.clip_norm is not None:
        raise ConfigError(
            f"--overlap has no meaning with --clip-norm {shown(config.clip_norm)}: "
            "the norm is that of the whole gradient"
        )
    if config.bucket_bytes is not None and not overlaps(config):
        why = "--no-overlap" if config.overlap is False else "--clip-norm"
        raise ConfigError(
            f"--bucket-bytes {config.bucket_bytes} has no meaning with {why}, "
            "which sums the gradient as a whole"
        )


def _check_servers(config: TrainConfig, mode: str) -> None:
    """Check what only some modes do with servers and with shared memory."""
    if mode in SERVER_MODES and config.servers == 0:
        raise ConfigError(f"--mode {mode} needs at least 1 server, got --servers 0")
    if mode in ("serial", "allreduce") and config.servers:
        raise ConfigError(
            f"--servers {config.servers} has no meaning with --mode {mode}, which has none"
        )
    if mode == "serial" and not config.shared_memory:
        raise ConfigError("--no-shared-memory has no meaning with --mode serial")
    for name in REDUCE_KNOBS:
        value = getattr(config, name)
        if mode == "local-sgd" and config.servers and value is not None:
            raise ConfigError(
                f"{flag(name, value)} has no meaning with --servers {config.servers}: "
                "local-sgd averages over servers or over an all-reduce"
            )
    if mode == "local-sgd" and not config.servers and config.placement is not None:
        raise ConfigError(
            f"--placement {config.placement} has no meaning in local-sgd without --servers"
        )
