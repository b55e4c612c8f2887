"""Checks a dataclass read from JSON against its annotations: files may contain anything. Pure."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from psrt.core.errors import ConfigError

#: No count or time of a run is larger; up to here floats keep enough precision.
_MOST = 1e300


def check_types(value: Any, where: str) -> None:
    """Check all fields of a dataclass, at any depth.

    Args:
        value: an instance; its floats may be None, as in JSON for nan and inf.
        where: its name in the message.

    Raises:
        ConfigError: naming the first field that does not have its type.
    """
    hints = typing.get_type_hints(type(value))
    for field in dataclasses.fields(value):
        path = f"{where}: {field.name}"
        if not _is(getattr(value, field.name), hints[field.name], path):
            got = repr(getattr(value, field.name))
            raise ConfigError(f"{path} cannot be {got if len(got) <= 40 else got[:39] + '…'}")


def _is(value: Any, hint: Any, where: str) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is types.UnionType:
        return any(_is(value, one, where) for one in inner)
    if origin is tuple and inner[-1] is not Ellipsis:
        known = isinstance(value, tuple) and len(value) == len(inner)
        return known and all(_is(it, one, where) for it, one in zip(value, inner, strict=True))
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(it, inner[0], where) for it in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _is(key, inner[0], where) and _is(it, inner[1], where) for key, it in value.items()
        )
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type, hint)):
            check_types(value, where)
            return True
        return False
    if hint in (int, float):
        if value is None:
            return hint is float
        known = type(value) is int or (hint is float and type(value) is float)
        return known and abs(value) <= _MOST
    return isinstance(value, hint)
