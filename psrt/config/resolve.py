"""Resolve a config for a number of ranks: fill in defaults and check counts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from psrt.codec.table import TABLE
from psrt.config.checks import first_miss, overlaps
from psrt.config.knobs import knobs_of
from psrt.config.modes import MODES, Mode, default_mode, modes_with
from psrt.config.names import BUCKET_BYTES, DEFAULT_LR, OPTIMIZER_CODECS
from psrt.config.train import TrainConfig
from psrt.errors import ConfigError

#: Outer rate and momentum of DiLoCo (Douillard et al. 2023, arXiv 2311.08105).
_OUTER_LR, _OUTER_MOMENTUM = 0.7, 0.9
#: Strengths of delay compensation, plain and adaptive (Zheng et al. 2017, arXiv 1609.08326).
_DC_LAMBDA, _DC_LAMBDA_ADAPTIVE = 0.04, 2.0
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
    mode = MODES[config.mode] if config.mode is not None else default_mode(ranks)
    config = replace(config, mode=mode.name)
    config = _with_codec_of_optimizer(config, mode)
    if config.servers is None:
        config = replace(config, servers=mode.default_servers)
    config = _with_lengths_and_rates(config)
    knobs = knobs_of(config)
    for name, knob in knobs.items():
        used = first_miss(knobs, name, partial(getattr, config)) is None
        if getattr(config, name) is None and knob.fallback is not None and used:
            config = _with(config, **{name: knob.fallback})
    if mode.sums_gradients and config.overlap is None:
        config = replace(config, overlap=overlaps(config))
    if config.overlap and config.bucket_bytes is None:
        config = replace(config, bucket_bytes=BUCKET_BYTES)
    if config.dc_adaptive is not None and config.dc_lambda is None:
        strength = _DC_LAMBDA_ADAPTIVE if config.dc_adaptive else _DC_LAMBDA
        config = replace(config, dc_lambda=strength)
    config = _with_codec(config)
    _check_ranks(config, mode, ranks)
    return config


def _with(config: TrainConfig, **changes: Any) -> TrainConfig:
    return replace(config, **changes)


def _with_codec_of_optimizer(config: TrainConfig, mode: Mode) -> TrainConfig:
    """Have the codec that an optimizer is one half of in effect, wherever the ranks are."""
    name, codec = config.optimizer, OPTIMIZER_CODECS.get(config.optimizer)
    if codec is None:
        return config
    if not mode.encodes_gradients:
        able = ", ".join(modes_with(lambda row: row.encodes_gradients))
        raise ConfigError(
            f"--optimizer {name} is one half of a codec of gradients, which --mode {mode.name} "
            f"does not send; those that do: {able}"
        )
    if config.codec not in (None, codec):
        raise ConfigError(f"--optimizer {name} is one half of --codec {codec}, got {config.codec}")
    if config.codec_everywhere is False:
        raise ConfigError(f"--optimizer {name} cannot do without its codec anywhere")
    return replace(config, codec=codec, codec_everywhere=True)


def _with_lengths_and_rates(config: TrainConfig) -> TrainConfig:
    """Fill in defaults that depend on a knob other than the mode."""
    if config.epochs is None and config.steps is None:
        config = replace(config, epochs=_EPOCHS)
    if config.lr is None:
        config = replace(config, lr=DEFAULT_LR[config.optimizer])
    if config.outer_lr is None and config.outer_momentum is not None:
        config = replace(config, outer_lr=_OUTER_LR)
    if config.outer_momentum is None and config.outer_lr is not None:
        config = replace(config, outer_momentum=_OUTER_MOMENTUM)
    return config


def _with_codec(config: TrainConfig) -> TrainConfig:
    """Fill in the knobs of the codecs, as far as these agree: a knob that is set holds for all."""
    if config.codec is None:
        return config
    row = TABLE[config.codec]
    if config.error_feedback and "scaled" in row.knobs and config.codec_scaled is None:
        config = _with(config, codec_scaled=False)
    if config.error_feedback is None and row.feeds_back is not None:
        config = _with(config, error_feedback=row.feeds_back_with(config.codec_knobs))
    knobs = config.codec_knobs
    for name, value in config.reply_knobs.items():
        if name not in TABLE[str(config.codec_reply)].differences:
            knobs[name] = value if knobs.get(name, value) == value else None
    return _with(config, **{f"codec_{name}": value for name, value in knobs.items()})


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
            f"--mode {config.mode} needs a server and a worker, got 1 rank; "
            "start more with psrt launch -n N"
        )
    if servers > ranks:
        raise ConfigError(f"--servers {servers} are more than the {ranks} ranks of the job")
    if workers == 0:
        raise ConfigError(f"--servers {servers} leaves no worker among {ranks} ranks")
    if config.softsync is not None and config.softsync > workers:
        raise ConfigError(f"--softsync {config.softsync} is more than the {workers} workers")
    if config.backup is not None and config.backup >= workers:
        raise ConfigError(
            f"--backup {config.backup} leaves no worker to wait for, there are {workers}"
        )
    for injection in config.inject:
        if injection.worker is not None and injection.worker >= workers:
            raise ConfigError(
                f"--inject {injection} names a worker that does not exist, "
                f"the last is {workers - 1}"
            )
