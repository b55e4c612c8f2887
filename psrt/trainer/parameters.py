"""The parameters that a loop trains, as one flat vector: a numpy vector, or a tree of arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from psrt.arrays import Vector
from psrt.codec.matrices import Matrix
from psrt.errors import ConfigError
from psrt.partition import Span


class Parameters(Protocol):
    """What a ``Trainer`` asks of the parameters it was given."""

    def initial(self) -> Vector:
        """Return the (n,) float32 parameters to start from."""
        ...

    def matrices(self) -> Sequence[Matrix]:
        """Return the matrices among them."""
        ...

    def bind(self, theta: Vector) -> Any:
        """Return the parameters as they were given, with the values of ``theta`` (n,)."""
        ...

    def release(self) -> None:
        """At the end, let what the user has given have memory of its own."""
        ...

    def writer(self, gradients: Any) -> Callable[[Vector], None]:
        """Return what writes a step's gradients into a vector (n,).

        Raises:
            ConfigError: if they are not those of these parameters.
        """
        ...


def parameters_of(given: Any) -> Parameters:
    """Return the parameters in what the user has given.

    Args:
        given: a flat float32 array; a tree of float32 arrays, numpy's or JAX's: lists, tuples and
            dictionaries of them, and whatever JAX knows for one; a torch module; or torch
            parameters.

    Raises:
        ConfigError: if it is none of these.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        from psrt.trainer.torch_parameters import TorchParameters

        if isinstance(given, torch.nn.Module):
            return TorchParameters(given)
        if isinstance(given, torch.nn.Parameter):
            return TorchParameters([given])
        if isinstance(given, Iterator):
            given = list(given)
        is_list = isinstance(given, list | tuple) and bool(given)
        if is_list and all(isinstance(it, torch.nn.Parameter) for it in given):
            return TorchParameters(given)
    return TreeParameters(given)


class Place(NamedTuple):
    """An array's place in the flat vector."""

    #: How it is called in messages.
    name: str
    #: Its elements.
    span: Span
    #: Its shape.
    shape: tuple[int, ...]

    def of(self, vector: Vector) -> np.ndarray[Any, Any]:
        """Return the view of its elements."""
        return self.span.of(vector).reshape(self.shape)


def matrices_at(places: Sequence[Place]) -> Sequence[Matrix]:
    """Return the matrices among arrays: those of two axes, and of more, by the first one.

    >>> matrices_at([Place("w", Span(0, 12), (2, 3, 2)), Place("b", Span(12, 14), (2,))])
    (Matrix(start=0, rows=2, columns=6),)
    """
    return tuple(
        Matrix(it.span.start, it.shape[0], it.span.size // it.shape[0])
        for it in places
        if len(it.shape) > 1 and it.span.size
    )


def placed(names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Sequence[Place]:
    """Return the places of arrays that lie one behind the other."""
    found, at = [], 0
    for name, shape in zip(names, shapes, strict=True):
        size = int(np.prod(shape, dtype=np.int64))
        found.append(Place(name, Span(at, at + size), shape))
        at += size
    return found


class TreeParameters:
    """A tree of float32 arrays; a single array is the smallest one."""

    def __init__(self, tree: Any) -> None:
        """Look at ``tree``.

        Raises:
            ConfigError: if its leaves are no float32 arrays, or there are none.
        """
        #: JAX, if it was there: it says what is a tree, and what a leaf.
        self._jax = sys.modules.get("jax")
        try:
            named, self._structure = _flat(tree, self._jax)
        except (TypeError, ValueError) as error:  # names that have no order
            raise ConfigError(f"the parameters are no tree: {error}") from None
        for name, leaf in named:
            if getattr(leaf, "dtype", None) != np.float32:
                kind = getattr(leaf, "dtype", type(leaf).__name__)
                raise ConfigError(f"the parameters{name} are {kind}, expected float32 arrays")
        if not named:
            raise ConfigError("there are no parameters")
        self._leaves: Sequence[Any] | None = [leaf for _, leaf in named]
        self._places = placed([name for name, _ in named], [it.shape for it in self._leaves])

    def initial(self) -> Vector:
        """Return them one behind the other, in the order of the tree."""
        assert self._leaves is not None, "asked for once, as a run begins"
        whole = np.concatenate([np.asarray(it).reshape(-1) for it in self._leaves])
        self._leaves = None
        return whole

    def matrices(self) -> Sequence[Matrix]:
        """Return those of two or more axes."""
        return matrices_at(self._places)

    def bind(self, theta: Vector) -> Any:
        """Return the tree with views of ``theta``, which must not be written."""
        whole = theta.view()
        whole.flags.writeable = False
        return self._structure([it.of(whole) for it in self._places])

    def release(self) -> None:
        """Do nothing: the views are of memory that stays."""

    def writer(self, gradients: Any) -> Callable[[Vector], None]:
        """Return what writes a tree of the same shapes; nothing is copied before."""
        try:
            named, _ = _flat(gradients, self._jax)
        except (TypeError, ValueError):
            named = []
        if [name for name, _ in named] != [it.name for it in self._places]:
            raise ConfigError("the gradients are no tree like that of the parameters")
        found = [np.asarray(it) for _, it in named]
        for place, it in zip(self._places, found, strict=True):
            if it.shape != place.shape:
                raise ConfigError(
                    f"the gradients{place.name} are of shape {it.shape}, expected {place.shape}"
                )
            if not np.can_cast(it.dtype, np.float32, "same_kind"):
                raise ConfigError(f"the gradients{place.name} are {it.dtype}, expected float32")

        def write(out: Vector) -> None:
            for place, it in zip(self._places, found, strict=True):
                np.copyto(place.of(out), it, casting="same_kind")

        return write


def _flat(tree: Any, jax: Any) -> tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], Any]]:
    """Return the leaves of a tree with their paths, and what makes such a tree of other leaves."""
    if jax is not None:
        named, structure = jax.tree_util.tree_flatten_with_path(tree)
        names = [(jax.tree_util.keystr(path), leaf) for path, leaf in named]
        return names, lambda leaves: jax.tree_util.tree_unflatten(structure, leaves)
    containers = tree_of(tree)
    return list(_leaves(tree)), lambda leaves: _rebuilt(containers, iter(leaves))


def tree_of(tree: Any) -> Any:
    """Return a tree without its leaves: the containers alone, so that nothing is held on to."""
    if isinstance(tree, Mapping):
        return {key: tree_of(tree[key]) for key in sorted(tree)}
    if isinstance(tree, list | tuple):
        items = [tree_of(it) for it in tree]
        if isinstance(tree, tuple) and hasattr(tree, "_fields"):
            return type(tree)(*items)
        return type(tree)(items)
    return None


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key in sorted(tree):
            yield from _leaves(tree[key], f"{path}[{key!r}]")
    elif isinstance(tree, list | tuple):
        for i, it in enumerate(tree):
            yield from _leaves(it, f"{path}[{i}]")
    else:
        yield path, tree


def _rebuilt(shape: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(shape, dict):
        return {key: _rebuilt(it, leaves) for key, it in shape.items()}
    if isinstance(shape, list | tuple):
        items = [_rebuilt(it, leaves) for it in shape]
        if isinstance(shape, tuple) and hasattr(shape, "_fields"):
            return type(shape)(*items)
        return type(shape)(items)
    return next(leaves)
