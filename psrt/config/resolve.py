"""Resolve a config for a number of ranks: fill in defaults and check counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from psrt.codec.table import CODECS
from psrt.config.axes import Axes
from psrt.config.checks import first_miss
from psrt.config.knobs import knobs_of
from psrt.config.modes import MODES, Mode, default_mode
from psrt.config.names import DEFAULT_PIPELINE
from psrt.config.train import TrainConfig
from psrt.core.errors import ConfigError
from psrt.core.units import plural
from psrt.pipeline.registry import schedule_of

_EPOCHS = 10.0


def resolve(config: TrainConfig, *, ranks: int) -> TrainConfig:
    """Fill in every default that depends on the mode and check against the number of ranks.

    Knobs without an effect stay ``None``. Resolving a resolved config changes nothing.

    Args:
        config: what the user asked for.
        ranks: number of processes of the job, servers and workers together, at least 1.

    Returns:
        A config whose mode, servers, lr and epochs-or-steps are set, and every knob of its mode.

    Raises:
        ConfigError: if the knobs do not fit each other, the mode or the ranks.
    """
    mode = mode_of(config, ranks)
    if config.parallel is not None and mode.has_teams:
        raise ConfigError(
            f"--mode {mode} is not possible with --parallel {config.parallel}, whose copies have "
            "several ranks already"
        )
    try:
        config = _with(config, mode=mode)
    except ConfigError as error:
        if config.mode is not None or not mode.single:
            raise
        hint = "without --mode 1 rank trains like that; start more with psrt launch -n N"
        raise ConfigError(f"{error}; {hint}") from None
    config = _with_codec_of_optimizer(config, mode)
    config = _with_axes(config, mode, ranks)
    config = _with(config, **_of_other_knobs(config, mode))
    workers = config.axes.data or ranks - (config.servers or 0)
    if workers > 0:
        # Copies of a split model stay as many.
        resumes = config.resume is not None and config.parallel is None
        mode = mode.among(workers, config.servers or 0, resumes=resumes)
        config = _with(config, mode=mode)
    rate = config.staleness_rate
    learners = workers // (mode.learner_ranks if isinstance(mode.learner_ranks, int) else 1)
    is_of_all = mode.quorum == learners and config.resume is None
    if is_of_all and rate is not None and not rate.is_usual:
        raise ConfigError(
            f"--staleness-rate {rate} has no effect with --mode {mode}, whose merges wait for all "
            "workers"
        )
    if config.parallel is not None:
        _check_copies(config, mode)
    config = _with(config, **_fallbacks(config))
    contraction = None if config.codec is None else config.codec.contraction
    mode = mode.settled(clips=config.clip_norm is not None, contraction=contraction)
    config = _with(config, mode=mode)
    if config.staleness_rate is not None:
        config = _with(config, staleness_rate=config.staleness_rate.settled())
    config = _with_codec(config)
    _check_ranks(config, mode, ranks)
    return config


def _with(config: TrainConfig, **changes: Any) -> TrainConfig:
    """Return the config with these values; unchanged if it has them, which saves another check."""
    new = {name: value for name, value in changes.items() if getattr(config, name) != value}
    return replace(config, **new) if new else config


def mode_of(config: TrainConfig, ranks: int) -> Mode:
    """Return the mode of a config, or the default mode for this number of ranks."""
    if config.mode is not None:
        return config.scheme
    if config.parallel is not None and not config.servers:
        return MODES["allreduce"]
    return default_mode(ranks)


def _with_axes(config: TrainConfig, mode: Mode, ranks: int) -> TrainConfig:
    """Fill in the number of copies of a model that is split.

    Raises:
        ConfigError: if the model cannot be split like that over these ranks.
    """
    if config.parallel is None:
        return config
    axes, servers = config.axes, config.servers
    if servers is None:
        least = mode.default_servers
        is_least = servers_of(mode, axes, ranks - least) == least
        servers = least if is_least else least * axes.cells
    workers = ranks - servers
    of_ranks = plural(ranks, "rank") + (
        f", of which {servers} {'is a server' if servers == 1 else 'are servers'}"
        if servers
        else ""
    )
    if not axes.data and (workers < 1 or workers % axes.cells):
        raise ConfigError(
            f"--parallel {config.parallel} needs {axes.cells} ranks or a multiple, got {of_ranks}"
        )
    axes = axes._replace(data=axes.data or workers // axes.cells)
    if axes.data * axes.cells != workers:
        needed = axes.data * axes.cells
        raise ConfigError(f"--parallel {axes} needs {needed} ranks, got {of_ranks}")
    if servers % axes.cells and not _merges_some(mode, axes.data):
        raise ConfigError(
            f"--servers {servers} must be a multiple of {axes.cells}: each of the {axes.cells} "
            f"parts of --parallel {axes} has servers of its own"
        )
    schedule = schedule_of(config.pipeline_schedule or DEFAULT_PIPELINE)
    has_one = axes.pipeline == 1 or not schedule.row.defers
    parts = 1 if has_one else 4 * axes.pipeline
    if mode.mixes and config.consensus_every is None:
        config = _with(config, consensus_every=0)
    return _with(
        config,
        parallel=str(axes),
        servers=servers,
        micro_batches=config.micro_batches or min(parts, config.batch_size),
    )


def servers_of(mode: Mode, axes: Axes, workers: int) -> int:
    """Return the default number of servers of a model that is split over that many workers.

    Each part has servers of its own, unless they merge some of the copies at a time: then parts
    must not choose different ones.
    """
    copies = axes.data or workers // axes.cells
    return mode.default_servers * (1 if _merges_some(mode, copies) else axes.cells)


def _merges_some(mode: Mode, copies: int) -> bool:
    """Return whether servers merge some of the copies of a model at a time."""
    return mode.quorum is not None and mode.quorum != copies


def _check_copies(config: TrainConfig, mode: Mode) -> None:
    """Check what copies of a split model can be as learners."""
    schedule, why = schedule_of(config.pipeline_schedule or DEFAULT_PIPELINE), ""
    if mode.quorum is not None and mode.streams:
        why = "servers average its copies as a whole"
    elif mode.quorum is not None and schedule.row.asynchronous:
        why = f"with --pipeline-schedule {schedule}, batches are in flight where a copy is merged"
    if why:
        raise ConfigError(f"--mode {mode} is not possible with --parallel {config.parallel}: {why}")


def _with_codec_of_optimizer(config: TrainConfig, mode: Mode) -> TrainConfig:
    """Turn on the codec that an optimizer is one half of, wherever the ranks are."""
    name, codec = config.optimizer.name, config.optimizer.codec
    if codec is None:
        return config
    if not mode.encodes_gradients:
        able = ", ".join(MODES.where(lambda row: row.encodes_gradients))
        raise ConfigError(
            f"--optimizer {name} is one half of a codec of gradients, which --mode {mode.name} "
            f"does not send; use one of {able}"
        )
    asked = config.codec
    if asked is not None and asked.name != codec:
        raise ConfigError(f"--optimizer {name} is one half of --codec {codec}, got {asked.name}")
    if config.codec_everywhere is False:
        raise ConfigError(
            f"--no-codec-everywhere is not possible with --optimizer {name}, which always needs "
            "its codec"
        )
    return replace(config, codec=asked or CODECS[codec], codec_everywhere=True)


def _of_other_knobs(config: TrainConfig, mode: Mode) -> dict[str, Any]:
    """Return the mode's servers, and the defaults that depend on another knob than the mode."""
    found: dict[str, Any] = {}
    if config.servers is None:
        found["servers"] = mode.default_servers
    if config.epochs is None and config.steps is None:
        found["epochs"] = _EPOCHS
    if config.lr is None:
        found["lr"] = config.optimizer.lr
    return found


def _fallbacks(config: TrainConfig) -> dict[str, Any]:
    """Return the fallbacks of knobs that have an effect; one may bring the next into effect."""
    knobs = knobs_of(config)
    found: dict[str, Any] = {}

    def value_of(name: str) -> Any:
        return found[name] if name in found else getattr(config, name)

    for name, knob in knobs.items():
        left_open = knob.fallback is not None and value_of(name) is None
        if left_open and first_miss(knobs, name, value_of) is None:
            found[name] = knob.fallback
    return found


def _with_codec(config: TrainConfig) -> TrainConfig:
    """Fill in what depends on the codec and the mode together."""
    row = config.codec
    if row is None or config.scheme.mixes or row.feeds_back is None:
        return config
    # A difference to the centre still holds what no frame has sent. Fed back, it would count twice
    # and drive both apart, as would a difference that is scaled by more than its force.
    elastic, feedback = config.scheme.elastic is not None, config.error_feedback
    if feedback is None:
        feedback = row.is_fed_back and not elastic
    row = row.settled(scales=not (feedback or elastic))
    return _with(config, codec=row, error_feedback=feedback)


def _check_ranks(config: TrainConfig, mode: Mode, ranks: int) -> None:
    """Check a config with all defaults against the number of ranks."""
    servers = config.servers or 0
    workers = ranks - servers
    if mode.single and ranks > 1:
        raise ConfigError(
            f"--mode {mode.name} is one process, got {ranks} ranks; choose another --mode"
        )
    if mode.needs_servers and ranks == 1:
        raise ConfigError(
            f"--mode {mode.name} needs a server and a worker, got 1 rank; "
            "start more with psrt launch -n N"
        )
    if servers > ranks:
        raise ConfigError(f"--servers {servers} is more than the {ranks} ranks of the job")
    if workers == 0:
        raise ConfigError(f"--servers {servers} leaves no worker among {ranks} ranks")
    workers = config.axes.data or workers
    if (mode.share or 1) > workers:
        least = plural(mode.share or 1, "worker")
        raise ConfigError(f"--mode {mode} needs at least {least}, got {workers}")
    if mode.backup >= workers:
        raise ConfigError(f"--mode {mode} leaves no worker to wait for, got {workers}")
    if mode.elastic is not None:
        _check_force(mode, mode.elastic, workers)
    for injection in config.inject:
        # With model parallelism each copy has several.
        if injection.worker is not None and injection.worker >= ranks - servers:
            raise ConfigError(
                f"--inject {injection} names a worker that does not exist; the last is "
                f"{ranks - servers - 1}"
            )


def _check_force(mode: Mode, beta: float, workers: int) -> None:
    """Check that the elastic force alone does not drive the workers and the centre apart.

    With α = β/W, an average of all workers multiplies the difference between their mean and the
    centre by 1 − α − β, and an average of one worker by 1 − 2α. Either difference grows if its
    factor is below −1, whatever the gradients are.
    """
    most = workers if mode.asynchronous else 2 * workers / (workers + 1)
    if beta > most:
        raise ConfigError(
            f"--mode {mode} drives {plural(workers, 'worker')} and the centre apart: elastic may "
            f"be at most {most:.4g}"
        )
