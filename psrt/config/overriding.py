"""Knobs that replace those of a config, as ``psrt launch --knobs`` does. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from psrt.config.checks import first_miss
from psrt.config.knobs import knobs_of
from psrt.config.modes import Mode, Servers
from psrt.config.toml import read_values
from psrt.config.train import TrainConfig
from psrt.core.errors import ConfigError

#: Both set the length of the run, so either replaces the other.
LENGTHS = ("epochs", "steps")


def replaced(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given``, and those of ``values`` that have an effect together with it.

    >>> replaced({"epochs": 5.0, "codec": "int8"}, {"steps": 9})
    {'codec': 'int8', 'steps': 9}
    """
    if any(name in given for name in LENGTHS):
        values = {name: value for name, value in values.items() if name not in LENGTHS}
    kept = {**values, **given}
    mode: Mode | None = kept.get("mode")
    if (
        mode is not None
        and mode.servers is not Servers.OPTIONAL
        and "servers" not in given
        and bool(kept.get("servers")) != mode.needs_servers
    ):
        kept.pop("servers", None)
    # In the order of declaration: a knob is dropped after the one that it depends on.
    knobs = knobs_of(TrainConfig)
    for name in knobs:
        if name in kept and name not in given and first_miss(knobs, name, kept.get):
            del kept[name]
    return kept


def to_text(values: Mapping[str, Any]) -> str:
    """Return values as one line of TOML, which ``overridden`` reads.

    >>> to_text({"epochs": 2.0, "shared_memory": False})
    '{epochs = 2.0, shared_memory = false}'
    """
    knobs = knobs_of(TrainConfig)
    return (
        f"{{{', '.join(f'{it} = {knobs[it].kind.write(value)}' for it, value in values.items())}}}"
    )


def overridden(config: TrainConfig, text: str, *, source: str) -> TrainConfig:
    """Return a config with the knobs of a text in place of its own.

    Own knobs that have no effect together with those are dropped.

    Args:
        config: need not be resolved.
        text: as ``to_text`` writes it; empty for none.
        source: its name in messages.

    Raises:
        ConfigError: for anything else, or knobs that do not go together; it names ``source``.
    """
    if not text:
        return config
    try:
        found = tomllib.loads(f"knobs = {text}")["knobs"]
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{source}: expected {{knob = value, ...}} in TOML, got {text!r}")
    own = {it.name: getattr(config, it.name) for it in fields(config)}
    set_here = {it.name: own[it.name] for it in fields(config) if own[it.name] != it.default}
    given = read_values(found, source=source)
    try:
        return TrainConfig(**replaced(set_here, given))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
