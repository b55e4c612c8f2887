"""TrainConfig as TOML: a flat file with a line per knob. The library reads, this writes."""

from __future__ import annotations

import tomllib
from typing import Any

from psrt.config.former import as_spelled_now, now_of
from psrt.config.knobs import knobs_of, synonyms_of
from psrt.config.train import TrainConfig
from psrt.core.errors import ConfigError
from psrt.rows.knobs import accept
from psrt.rows.suggest import did_you_mean


def to_toml(config: TrainConfig) -> str:
    """Return the config as TOML, without the knobs that are ``None``.

    `from_toml` reads back an equal config: floats are written with all the digits they need.
    """
    lines: list[str] = []
    group = ""
    for name, knob in knobs_of(config).items():
        value = getattr(config, name)
        if value is None:
            continue
        if knob.group != group:
            group = knob.group
            lines += ["", f"# {group}"]
        lines.append(f"{name} = {knob.kind.write(value)}")
    return "\n".join(lines).lstrip() + "\n"


def read_toml(text: str, *, source: str) -> dict[str, Any]:
    """Return the values that a TOML text gives, each checked alone.

    They are not checked against each other yet, because flags may still override some of them.

    Args:
        text: the content.
        source: its name in messages, a path.

    Raises:
        ConfigError: for bad TOML, an unknown key, or a value out of range.
    """
    try:
        values = tomllib.loads(text)
    # Numbers of thousands of digits and absurd nesting raise errors other than TOMLDecodeError.
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: not TOML: {str(error).splitlines()[0]}") from None
    return read_values(values, source=source)


def read_values(values: dict[str, Any], *, source: str) -> dict[str, Any]:
    """Return the values of a TOML text as ``read_toml`` does, once the text has been parsed."""
    knobs = knobs_of(TrainConfig)
    try:
        values = as_spelled_now(values)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    for key in values:
        if key not in knobs:
            raise ConfigError(f"{source}: unknown key {key!r}{_meant(key)}")
    try:
        return {key: accept(key, knobs[key], value) for key, value in values.items()}
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _meant(key: str) -> str:
    """Return a guess at the key that was meant, spelled as in the file."""
    if now := now_of(key):
        return f" (it is now {now})"
    synonyms = {
        word.replace("-", "_"): name.replace("-", "_")
        for word, name in synonyms_of(TrainConfig).items()
    }
    return did_you_mean(key.replace("-", "_"), knobs_of(TrainConfig), synonyms)


def from_toml(text: str, *, source: str = "config") -> TrainConfig:
    """Return the config that a TOML text describes.

    Args:
        text: the content; see `to_toml`.
        source: its name in messages, a path.

    Raises:
        ConfigError: one line that begins with ``source``.
    """
    values = read_toml(text, source=source)
    try:
        return TrainConfig(**values)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
