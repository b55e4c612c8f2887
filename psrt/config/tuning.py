"""Which knob ``--tune`` finds the value of, and where it cannot. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from psrt.config.modes import MODES, Mode
from psrt.core.errors import ConfigError

if TYPE_CHECKING:
    from psrt.config.train import TrainConfig

SHARDS: Final = "shards_per_server"
PERIOD: Final = "local_steps"
BUCKETS: Final = "bucket_bytes"


def tuned_knob(mode: Mode, servers: int | None) -> str:
    """Return the knob that a run tunes: by servers, averages or sums."""
    if servers or mode.needs_servers:
        return SHARDS
    return PERIOD if mode.averages else BUCKETS


def with_tuned(mode: Mode, servers: int | None, value: Any) -> dict[str, Any]:
    """Return the knobs of a run whose knob to tune has that value.

    >>> with_tuned(MODES["sync"], None, 4)
    {'tune': None, 'shards_per_server': 4}
    >>> str(with_tuned(MODES["local-sgd"], None, 5)["mode"])
    'local-sgd:local-steps=5'
    """
    name = tuned_knob(mode, servers)
    if name == SHARDS:
        return {"tune": None, name: value}
    return {"tune": None, "mode": replace(mode, **{name: value})}


def tuned_like(
    asked: Mode | str | None, servers: int | None, other: Mode, shards: Any
) -> dict[str, Any]:
    """Return the knobs of a run that has what another one found, with that mode and shards.

    Args:
        asked: its mode; None: that of the other one.
        servers: of both.
        other: the mode of the other one.
        shards: of each server there.
    """
    mode, name = MODES.accept(asked or other), tuned_knob(other, servers)
    return with_tuned(mode, servers, shards if name == SHARDS else getattr(other, name))


def check_tuning(config: TrainConfig) -> None:
    """Check that the knob to tune has an effect, and may change.

    Raises:
        ConfigError: if not.
    """
    mode, is_served = config.scheme, bool(config.servers) or config.scheme.needs_servers
    sums_whole = config.clip_norm is not None or mode.overlap is False
    for is_so, why in (
        (config.parallel is not None, f"--parallel {config.parallel}, whose parts differ"),
        (mode.fragments > 1, f"--mode {mode}, whose fragments are of a given size"),
        (
            not is_served and (mode.streams or mode.post_local_epoch > 0),
            f"--mode {mode}, whose averages have times of their own",
        ),
        (
            not is_served and mode.sums_gradients and sums_whole,
            f"--mode {mode} that sums the gradient as a whole, without buckets",
        ),
    ):
        if is_so:
            raise ConfigError(f"--tune is not possible with {why}")
