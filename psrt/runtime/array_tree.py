"""A tree of arrays as one flat vector: the span of each leaf, and the tree as views of a vector.

If JAX is loaded, it decides what is a tree; otherwise lists, tuples and dictionaries are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from psrt.core.arrays import AnyArray, Vector
from psrt.core.errors import ConfigError
from psrt.runtime.named_arrays import NamedArrays


class ArrayTree(NamedArrays):
    """The leaves of a tree of float32 arrays, concatenated; a single array is a tree, too."""

    def __init__(self, tree: Any, *, called: str) -> None:
        """Read its structure; its values are not kept.

        Args:
            tree: of numpy's or JAX's arrays.
            called: its name in messages, in the plural.

        Raises:
            ConfigError: if it is not a tree, a leaf is not a float32 array, or there are no
                numbers.
        """
        try:
            named, flat, self._made = _looked_at(tree)
        except (TypeError, ValueError) as error:  # keys that have no order
            raise ConfigError(f"{called} are no tree: {error}") from None
        #: Returns the leaves of a tree of the same structure; None for another structure.
        self.leaves: Callable[[Any], Sequence[Any] | None] = flat
        for name, leaf in named:
            kind = getattr(leaf, "dtype", None)
            if kind != np.float32:
                found = type(leaf).__name__ if kind is None else kind
                raise ConfigError(f"{called}{name} are {found}, expected float32 arrays")
        super().__init__([(name, tuple(leaf.shape)) for name, leaf in named])
        if not self.n:
            raise ConfigError(f"{called} have no numbers, expected a tree of float32 arrays")

    def flat(self, tree: Any) -> Vector:
        """Return the leaves of such a tree, concatenated, (n,) float32, copied."""
        leaves = self.leaves(tree)
        assert leaves is not None, "a tree of the same structure"
        return np.concatenate([np.asarray(it).reshape(-1) for it in leaves])

    def named_or(self, vector: Vector, alone: str) -> dict[str, AnyArray]:
        """Return the leaves by their paths, or one by ``alone``, as views of a vector (n,)."""
        return dict(zip([it or alone for it in self.names], self.views(vector), strict=True))

    def on(self, vector: Vector) -> Any:
        """Return the tree whose leaves are views of a vector (n,).

        JAX uses the memory of aligned views directly, and copies the others: computations on them
        must be finished before the vector changes.
        """
        return self.made(self.views(vector))

    def made(self, leaves: Sequence[Any]) -> Any:
        """Return the tree with these leaves."""
        return self._made(leaves)


class LastViews:
    """The leaves as views of a vector, which is usually the same at every step."""

    def __init__(self, tree: ArrayTree, *, writeable: bool = True) -> None:
        """Set up; without ``writeable`` the views are read-only."""
        self._tree, self._writeable = tree, writeable
        self._vector: Vector | None = None
        self._views: Sequence[AnyArray] = ()

    def of(self, vector: Vector) -> Sequence[AnyArray]:
        """Return the leaves on a vector (n,)."""
        if vector is not self._vector:
            whole = vector.view()
            whole.flags.writeable = self._writeable
            self._vector, self._views = vector, self._tree.views(whole)
        return self._views

    def forget(self) -> None:
        """Drop the reference to the vector."""
        self._vector, self._views = None, ()


_Looked = tuple[
    Sequence[tuple[str, Any]],
    Callable[[Any], Sequence[Any] | None],
    Callable[[Sequence[Any]], Any],
]


def _looked_at(tree: Any) -> _Looked:
    """Return the leaves with their paths, a function that finds them, and one that makes a tree."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        containers = _containers(tree)
        return (
            list(_named(tree)),
            lambda other: _flat(containers, other),
            lambda leaves: _rebuilt(containers, iter(leaves)),
        )
    named, structure = jax.tree_util.tree_flatten_with_path(tree)
    paths = [path for path, _ in named]  # not the leaves, whose memory may be large

    def flat(other: Any) -> Sequence[Any] | None:
        leaves, its = jax.tree_util.tree_flatten(other)
        # Only names must agree: a tuple in place of a list is accepted.
        if its != structure and paths != [
            path for path, _ in jax.tree_util.tree_flatten_with_path(other)[0]
        ]:
            return None
        found: Sequence[Any] = leaves
        return found

    return (
        [(jax.tree_util.keystr(path), leaf) for path, leaf in named],
        flat,
        lambda leaves: jax.tree_util.tree_unflatten(structure, leaves),
    )


def _containers(tree: Any) -> Any:
    """Return a tree without its leaves, so that they are not kept alive."""
    if isinstance(tree, Mapping):
        return {key: _containers(tree[key]) for key in _in_order(tree)}
    if isinstance(tree, list | tuple):
        return _like(tree, [_containers(it) for it in tree])
    return None


def _in_order(tree: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(tree)
    except TypeError:
        kinds = " and ".join(sorted({type(key).__name__ for key in tree}))
        raise TypeError(f"keys beside each other are {kinds}, expected one type") from None


def _named(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key in _in_order(tree):
            yield from _named(tree[key], f"{path}[{key!r}]")
    elif isinstance(tree, list | tuple):
        for i, it in enumerate(tree):
            yield from _named(it, f"{path}[{i}]")
    else:
        yield path, tree


def _flat(shape: Any, tree: Any) -> Sequence[Any] | None:
    """Return the leaves of a tree with these containers; None if it has others."""
    found: list[Any] = []
    return found if _gathered(shape, tree, found) else None


def _gathered(shape: Any, tree: Any, found: list[Any]) -> bool:
    """Append the leaves; return whether the tree has these containers."""
    if shape is None:
        found.append(tree)
        # In this order, since the test for a mapping takes as long as all others together.
        return isinstance(tree, np.ndarray) or not isinstance(tree, Mapping | list | tuple)
    if isinstance(shape, dict):
        return (
            isinstance(tree, Mapping)
            and tree.keys() == shape.keys()
            and all(_gathered(it, tree[key], found) for key, it in shape.items())
        )
    return (
        isinstance(tree, list | tuple)
        and len(tree) == len(shape)
        and all(_gathered(it, other, found) for it, other in zip(shape, tree, strict=True))
    )


def _rebuilt(shape: Any, leaves: Iterator[Any]) -> Any:
    if shape is None:
        return next(leaves)
    if isinstance(shape, dict):
        return {key: _rebuilt(it, leaves) for key, it in shape.items()}
    return _like(shape, [_rebuilt(it, leaves) for it in shape])


def _like(container: Any, items: list[Any]) -> Any:
    """Return a list or tuple of that kind."""
    if isinstance(container, tuple) and hasattr(container, "_fields"):
        return type(container)(*items)
    return type(container)(items)
