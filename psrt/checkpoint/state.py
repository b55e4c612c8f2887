"""The state of an object as a tree, and back. Pure: knows no files, and nothing of training.

A class lists in one line which of its attributes are its state; those of its bases add up::

    saved = ("state", "updates")
    by_element = ("state",)

All else follows from the arguments it is made with. An attribute may be a number, a text, a truth
value, None, an array, a generator of random numbers, an object with such a list itself, or a list,
tuple or dictionary of these. In the tree (see ``tree.py``) names have no leading underscores.

State with an element for each parameter, in the order of its owner's parameters, is *by element*:
another sharding of the parameters splits it the same way. The rest of the state of several shards
of one vector is either equal at a consistent cut, or counts what only one of them did.

Further lists say what to do with it where a run resumes with other ranks (``job.regroup``):

- ``of_worker``: state of a single worker; a worker that joins begins without it;
- ``kept_back``: of that, values that must still reach the parameters, and add up over workers;
- ``per_worker``: at a server, one for each worker, in the order of their numbers, and at a worker
  the entry that servers have of it;
- ``per_shard``: at a worker, one for each shard, in the order of the parameters;
- ``of_span``: belongs to one sharding, and starts from scratch with another.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from psrt.core.errors import CheckpointError

#: Largest count, up to which floating-point numbers are exact.
_MOST = 1 << 53
#: Largest number that counts are kept by, as a worker or a staleness: reports make rows of it.
_MOST_KEY = 1 << 24
_SCALARS = (bool, int, float, str, type(None))


def state_of(value: Any) -> Any:
    """Return an object's state as a tree, or the value itself where that is an array or a scalar.

    Arrays are those in use: a caller that keeps the tree must copy them. Nothing else is shared.

    >>> class Counter:
    ...     saved = ("_count", "seen")
    ...     def __init__(self):
    ...         self._count, self.seen = 3, {7: 0.5}
    >>> state_of(Counter())
    {'count': 3, 'seen': {'7': 0.5}}

    Raises:
        CheckpointError: if something in it does not list its state.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, np.random.Generator):
        return _copied(value.bit_generator.state)
    if isinstance(value, random.Random):
        version, words, spare = value.getstate()
        return {"version": version, "words": list(words), "spare": spare}
    if isinstance(value, Mapping):
        return {str(key): state_of(it) for key, it in value.items()}
    if (names := _names(type(value), "saved")) is not None:
        return {_shown(name): state_of(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        parts = [state_of(it) for it in value]
        is_flat = all(isinstance(it, _SCALARS) for it in parts)
        return parts if is_flat else {str(i): it for i, it in enumerate(parts)}
    raise CheckpointError(f"a {type(value).__name__} does not list its state")


def restore(value: Any, tree: Any) -> Any:
    """Give an object the state that ``state_of`` returned, of it or of one made the same way.

    Arrays are filled, and dictionaries and lists are changed, in place, so all who share them see
    the change. Nothing of the tree is kept.

    Returns:
        The object, or the value that replaces it if it cannot be changed, such as a number.

    Raises:
        CheckpointError: if the tree is of something else; part of it may be restored by then.
    """
    return _restored(value, tree, type(value).__name__)


def paths_by_element(value: Any) -> frozenset[str]:
    """Return the paths, names with slashes between, of arrays that are by element.

    Args:
        value: the object; an attribute that is None instead of an array counts as one.
    """
    return frozenset("/".join(path) for path in _by_element(value, (), False))


def marked(value: Any, mark: str) -> frozenset[str]:
    """Return the paths of what a class lists under another name than ``saved``, outermost only.

    >>> class Sender:
    ...     saved, of_worker = ("kept", "seen"), ("kept",)
    ...     kept, seen = (1.0, 2.0), 3
    >>> marked({"first": Sender()}, "of_worker")
    frozenset({'first/kept'})

    Args:
        value: as in ``paths_by_element``.
        mark: the name of the list, such as ``of_worker``.
    """
    return frozenset("/".join(path) for path in _marked(value, (), mark))


def _names(kind: type, which: str) -> tuple[str, ...] | None:
    """Return what a class and its bases list, bases first; None if none of them has a list."""
    lists = [vars(base)[which] for base in reversed(kind.__mro__) if which in vars(base)]
    return tuple(dict.fromkeys(name for names in lists for name in names)) if lists else None


def _shown(name: str) -> str:
    return name.lstrip("_")


def _marked(value: Any, path: tuple[str, ...], mark: str) -> Iterator[tuple[str, ...]]:
    if isinstance(value, Mapping):
        for key, it in value.items():
            yield from _marked(it, (*path, str(key)), mark)
    elif (names := _names(type(value), "saved")) is not None:
        own = _names(type(value), mark) or ()
        for name in names:
            below = (*path, _shown(name))
            if name in own:
                yield below
            else:
                yield from _marked(getattr(value, name), below, mark)
    elif isinstance(value, list | tuple):
        for i, it in enumerate(value):
            yield from _marked(it, (*path, str(i)), mark)


def _by_element(value: Any, path: tuple[str, ...], is_within: bool) -> Iterator[tuple[str, ...]]:
    if isinstance(value, np.ndarray) or value is None:  # None: an array that is made when needed
        if is_within:
            yield path
    elif isinstance(value, Mapping):
        for key, it in value.items():
            yield from _by_element(it, (*path, str(key)), is_within)
    elif (names := _names(type(value), "saved")) is not None:
        own = _names(type(value), "by_element") or ()
        for name in names:
            below = (*path, _shown(name))
            yield from _by_element(getattr(value, name), below, is_within or name in own)
    elif isinstance(value, list | tuple):
        for i, it in enumerate(value):
            yield from _by_element(it, (*path, str(i)), is_within)


def _restored(value: Any, tree: Any, path: str) -> Any:
    """Return a value with the state of a tree; ``path`` is for errors."""
    if isinstance(value, np.ndarray):
        found = (tree.shape, tree.dtype) if isinstance(tree, np.ndarray) else type(tree).__name__
        if found != (value.shape, value.dtype):
            raise CheckpointError(
                f"{path} of the checkpoint is {found}, expected {(value.shape, value.dtype)}"
            )
        np.copyto(value, tree)
        return value
    if isinstance(value, np.random.Generator | random.Random):
        _restore_generator(value, tree, path)
        return value
    if isinstance(value, MutableMapping):
        return _restored_mapping(value, tree, path)
    if (names := _names(type(value), "saved")) is not None:
        _check_names(tree, [_shown(name) for name in names], path)
        for name in names:
            before = getattr(value, name)
            after = _restored(before, tree[_shown(name)], f"{path}.{_shown(name)}")
            if after is not before:
                setattr(value, name, after)
        return value
    if isinstance(value, list | tuple):
        return _restored_sequence(value, tree, path)
    if value is not None and not isinstance(value, (*_SCALARS, np.generic)):
        raise CheckpointError(f"{path} is a {type(value).__name__} without a state")
    return _scalar(value, tree, path)


def _scalar(value: Any, tree: Any, path: str) -> Any:
    """Return the value that replaces a scalar, or None."""
    if value is None:  # an array that is made when needed
        if tree is not None and not isinstance(tree, np.ndarray):
            raise CheckpointError(f"{path} of the checkpoint is a {type(tree).__name__}")
        return None if tree is None else tree.copy()
    if not _is_like(value, tree):
        raise CheckpointError(
            f"{path} of the checkpoint is a {type(tree).__name__}, "
            f"expected a {type(value).__name__}"
        )
    if type(tree) is int and not (-_MOST if value < 0 else 0) <= tree <= _MOST:
        raise CheckpointError(f"{path} of the checkpoint is {tree}, which it cannot be")
    return type(value)(tree) if isinstance(value, np.generic) else tree


def _number(tree: Any, path: str) -> Any:
    """Return one number of a collection whose entries are made as needed."""
    if type(tree) is float and math.isfinite(tree):
        return tree
    return _scalar(-1, tree, path)


def _is_like(value: Any, tree: Any) -> bool:
    """Whether a scalar may replace another: a count must not become a text or a half."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is float:
        return type(tree) in (int, float)
    return type(tree) is type(value)


def _restored_mapping(value: MutableMapping[Any, Any], tree: Any, path: str) -> Any:
    """Fill a mapping: one of objects keeps its keys, one of scalars gets the checkpoint's."""
    if any(not isinstance(it, _SCALARS) for it in value.values()):
        by_name = {str(key): key for key in value}
        _check_names(tree, list(by_name), path)
        for name, key in by_name.items():
            value[key] = _restored(value[key], tree[name], f"{path}.{name}")
        return value
    if not isinstance(tree, Mapping):
        raise CheckpointError(f"{path} of the checkpoint has no names")
    numbers = {_key(name): _number(it, f"{path}.{name}") for name, it in tree.items()}
    if any(isinstance(key, str) for key in value):
        _check_names(tree, list(value), path)
    else:
        for key in numbers:
            if not isinstance(key, int) or abs(key) > _MOST_KEY:
                raise CheckpointError(f"{path} of the checkpoint has the key {key}")
    value.clear()
    value.update(numbers)
    return value


def _restored_sequence(value: Sequence[Any], tree: Any, path: str) -> Any:
    if isinstance(tree, list) and all(isinstance(it, _SCALARS) for it in value):
        after = [_number(it, path) for it in tree]
        if value and len(tree) != len(value):
            raise CheckpointError(f"{path} of the checkpoint has {len(tree)} numbers")
    else:
        _check_names(tree, [str(i) for i in range(len(value))], path)
        after = [_restored(it, tree[str(i)], f"{path}.{i}") for i, it in enumerate(value)]
    if isinstance(value, list):
        value[:] = after
        return value
    if all(a is b for a, b in zip(after, value, strict=False)) and len(after) == len(value):
        return value
    return type(value)(*after) if hasattr(value, "_fields") else tuple(after)


def _restore_generator(value: np.random.Generator | random.Random, tree: Any, path: str) -> None:
    try:
        if isinstance(value, random.Random):
            value.setstate((tree["version"], tuple(tree["words"]), tree["spare"]))
        else:
            value.bit_generator.state = tree
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise CheckpointError(f"{path} of the checkpoint is not a generator's: {error}") from error


def _check_names(tree: Any, names: Sequence[str], path: str) -> None:
    if not isinstance(tree, Mapping):
        raise CheckpointError(
            f"{path} of the checkpoint is a {type(tree).__name__}, expected "
            f"{', '.join(names) or 'nothing'}"
        )
    for found, what in ((set(tree) - set(names), "has"), (set(names) - set(tree), "has no")):
        if found:
            raise CheckpointError(f"{path} of the checkpoint {what} {', '.join(sorted(found))}")


def _key(name: str) -> int | str:
    # Only digits as Python writes them: int() refuses others, such as ².
    return int(name) if re.fullmatch("-?[0-9]{1,12}", name) else name


def _copied(tree: Any) -> Any:
    """Return a copy of a tree, with copies of its lists and arrays."""
    if isinstance(tree, Mapping):
        return {name: _copied(it) for name, it in tree.items()}
    if isinstance(tree, np.ndarray):
        return tree.copy()
    return list(tree) if isinstance(tree, list) else tree
