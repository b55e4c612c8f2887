"""Trees of state as in a file: arrays by path, and everything else as JSON. Pure.

A *tree* is a dict of names to arrays, numbers, texts, truth values, None, lists of these, and
further trees. JSON has no nan and no infinity: such a number is written as {"float": "nan"}. No
name in a tree is "float", so this is unambiguous.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from psrt.core.errors import CheckpointError

Tree: TypeAlias = dict[str, Any]

#: Joins the names of a path.
SEPARATOR = "/"
_FLOAT = "float"
#: The deepest nesting of names.
_DEPTH = 32


def flatten(tree: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], Tree]:
    """Return the arrays of a tree by path, and the rest of it as values for JSON.

    Raises:
        CheckpointError: if something in it is neither.
    """
    arrays: dict[str, np.ndarray] = {}
    rest: Tree = _taken_apart(tree, "", arrays)
    return arrays, rest


def unflatten(arrays: Mapping[str, np.ndarray], rest: Mapping[str, Any]) -> Tree:
    """Return the tree of ``flatten``.

    Raises:
        CheckpointError: if an array is where something else is.
    """
    tree: Tree = _put_together(rest, 0)
    if not isinstance(tree, dict):
        raise CheckpointError("a number is where the tree should be")
    for path, array in arrays.items():
        *names, last = path.split(SEPARATOR)
        at = tree
        for name in names:
            at = at.setdefault(name, {})
            if not isinstance(at, dict):
                raise CheckpointError(f"array {path!r} is below something that has no names")
        if last in at:
            raise CheckpointError(f"two things are called {path!r}")
        at[last] = array
    return tree


def _taken_apart(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return None
    if isinstance(value, Mapping):
        found = {}
        for name, it in value.items():
            if not isinstance(name, str) or not name or SEPARATOR in name or name == _FLOAT:
                raise CheckpointError(f"{name!r} below {path!r} cannot be a name in a checkpoint")
            below = f"{path}{SEPARATOR}{name}" if path else name
            rest = _taken_apart(it, below, arrays)
            if not isinstance(it, np.ndarray):
                found[name] = rest
        return found
    if isinstance(value, list | tuple):
        return [_plain(it, path) for it in value]
    return _plain(value, path)


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    if isinstance(value, list | tuple):
        return [_plain(it, path) for it in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"{path}: a checkpoint cannot hold a {type(value).__name__}")


def _put_together(value: Any, depth: int) -> Any:
    if depth > _DEPTH:
        raise CheckpointError(f"names are nested more than {_DEPTH} deep")
    if isinstance(value, Mapping):
        if set(value) == {_FLOAT}:
            try:
                return float(value[_FLOAT])
            except (TypeError, ValueError):
                raise CheckpointError(f"not a number: {value[_FLOAT]!r}") from None
        return {name: _put_together(it, depth + 1) for name, it in value.items()}
    if isinstance(value, list):
        return [_put_together(it, depth + 1) for it in value]
    return value
