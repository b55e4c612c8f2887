"""What an object is made of, as a tree, and back. Pure.

A class says in one line what a checkpoint keeps of it, the names of attributes::

    saved = ("state", "updates")

Everything else follows from its arguments. Lines of base classes add up. An attribute may be an
array, which is filled in place; a number, text, truth value or None; a generator of random
numbers; a list, tuple or dict of these; or an object that says itself what it is made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from psrt.errors import CheckpointError

_PLAIN = (bool, int, float, str, type(None), np.generic)


def saved_names(kind: type) -> tuple[str, ...]:
    """Return the attributes that a class and its bases say they are made of."""
    found = (name for base in reversed(kind.__mro__) for name in vars(base).get("saved", ()))
    return tuple(dict.fromkeys(found))


def state_of(value: Any) -> Any:
    """Return a value as a tree; arrays are those in use.

    Raises:
        CheckpointError: if it says nothing of itself.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, _PLAIN):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.random.Generator):
        return dict(value.bit_generator.state)
    if isinstance(value, Mapping):
        return {_key(key): state_of(it) for key, it in value.items()}
    if names := saved_names(type(value)):
        return {name.lstrip("_"): state_of(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        if all(isinstance(it, _PLAIN) for it in value):
            return list(value)
        return {str(i): state_of(it) for i, it in enumerate(value)}
    raise CheckpointError(f"a {type(value).__name__} does not say what it is made of")


def restore(value: Any, tree: Any) -> Any:
    """Give a value back what it was; return it, or what takes its place.

    Raises:
        CheckpointError: if the tree is not that of such a value.
    """
    if isinstance(value, np.ndarray):
        if not isinstance(tree, np.ndarray) or (tree.shape, tree.dtype) != (
            value.shape,
            value.dtype,
        ):
            raise CheckpointError(f"expected {_shape(value)}, got {_shape(tree)}")
        np.copyto(value, tree)
        return value
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = tree
        return value
    if isinstance(value, Mapping):
        return _restored_dict(value, tree)
    if names := saved_names(type(value)):
        _named(tree, {name.lstrip("_") for name in names}, type(value).__name__)
        for name in names:
            before = getattr(value, name)
            after = restore(before, tree[name.lstrip("_")])
            if after is not before:
                setattr(value, name, after)
        return value
    if isinstance(value, list | tuple):
        return _restored_list(value, tree)
    if isinstance(tree, np.ndarray):
        return tree.copy()  # of an array that is made when it is needed
    if isinstance(tree, Mapping):
        raise CheckpointError(f"expected a {type(value).__name__}, got something with names")
    return tree


def _restored_dict(value: Mapping[Any, Any], tree: Any) -> Any:
    if not isinstance(tree, Mapping):
        raise CheckpointError("expected something with names")
    by_key = {_key(key): key for key in value}
    if any(isinstance(it, np.ndarray) or saved_names(type(it)) for it in value.values()):
        _named(tree, set(by_key), "a table")
        for name, key in by_key.items():
            restore(value[key], tree[name])
        return value
    # A count by number, or the like: it has the keys that came up.
    assert isinstance(value, dict)
    found = {_number(name): it for name, it in tree.items()}
    value.clear()
    value.update(found)
    return value


def _restored_list(value: list[Any] | tuple[Any, ...], tree: Any) -> Any:
    if isinstance(tree, list):
        if isinstance(value, tuple):
            return type(value)(*tree) if hasattr(value, "_fields") else tuple(tree)
        value[:] = tree
        return value
    _named(tree, {str(i) for i in range(len(value))}, "a list")
    after = [restore(it, tree[str(i)]) for i, it in enumerate(value)]
    if isinstance(value, tuple):
        return value if all(a is b for a, b in zip(after, value, strict=True)) else tuple(after)
    value[:] = after
    return value


def _named(tree: Any, names: set[str], what: str) -> None:
    if not isinstance(tree, Mapping) or set(tree) != names:
        got = sorted(tree) if isinstance(tree, Mapping) else type(tree).__name__
        raise CheckpointError(f"{what} has {sorted(names)}, the checkpoint has {got}")


def _key(key: Any) -> str:
    return key if isinstance(key, str) else repr(key)


def _number(name: str) -> Any:
    return int(name) if name.lstrip("-").isdigit() else name


def _shape(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.shape} {value.dtype}"
    return f"a {type(value).__name__}"
