"""The parameters that a loop trains, as one flat vector: a numpy vector, or a tree of arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from psrt.codec.matrices import Matrix
from psrt.core.arrays import AnyArray, Vector
from psrt.core.errors import ConfigError
from psrt.runtime.array_tree import ArrayTree, LastViews
from psrt.runtime.checksum import digest
from psrt.runtime.own_loop import Held, NamedShape, Writer

_FLOAT32 = {np.dtype(np.float32)}
#: How often the arrays that were given are looked at: as an epoch begins, and around two steps.
_LOOKS = 4


class Parameters(Protocol):
    """What a ``Trainer`` asks of the parameters it was given."""

    #: Whether what the user has given is trained itself; else the loop asks for what is.
    in_place: bool
    #: What is trained beside them; None: nothing.
    held: Held | None

    def initial(self) -> Vector:
        """Return the (n,) float32 parameters to start from."""
        ...

    def matrices(self) -> Sequence[Matrix]:
        """Return the matrices among them."""
        ...

    def arrays(self) -> Sequence[NamedShape]:
        """Return what they are made of, in the order in which they lie."""
        ...

    def tensors(self, theta: Vector) -> Mapping[str, AnyArray]:
        """Return what a file has of the values of ``theta`` (n,), and what is held beside it."""
        ...

    def bind(self, theta: Vector) -> Any:
        """Return the parameters as they were given, with the values of ``theta`` (n,)."""
        ...

    def gather(self, theta: Vector) -> bool:
        """Bring what the loop has put in their place back into ``theta`` (n,), that of ``bind``.

        Returns:
            Whether something is seen to have been put there, or written, since ``bind``.

        Raises:
            ConfigError: if the loop has put something there that cannot be trained, or trains what
                it has given instead.
        """
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """Keep what an evaluation may change, such as whether the module trains."""
        ...

    def release(self) -> None:
        """At the end, let what the user has given have memory of its own."""
        ...

    def writer(self, gradients: Any) -> Writer:
        """Return what writes a step's gradients into a vector (n,).

        Raises:
            ConfigError: if they are not those of these parameters.
        """
        ...


def parameters_of(given: Any, buffers: str | None = None) -> Parameters:
    """Return the parameters in what the user has given.

    Args:
        given: a flat float32 array; a tree of float32 arrays, numpy's or JAX's: lists, tuples and
            dictionaries of them, and whatever JAX knows for one; a torch module; or torch
            parameters.
        buffers: ``local`` or ``mean``, of a torch module; None takes ``local``.

    Raises:
        ConfigError: if it is none of these.
    """
    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(given, torch.nn.Module)
    if buffers is not None and not is_module:
        raise ConfigError(
            f"buffers={buffers!r} is for a torch module, got {type(given).__name__} as parameters"
        )
    if torch is not None:
        from psrt.trainer.torch_parameters import TorchParameters

        if is_module:
            return TorchParameters(given, "local" if buffers is None else buffers)
        if isinstance(given, torch.nn.Parameter):
            return TorchParameters([given])
        if isinstance(given, Iterator):
            given = list(given)
        is_list = isinstance(given, list | tuple) and bool(given)
        if is_list and all(isinstance(it, torch.nn.Parameter) for it in given):
            return TorchParameters(given)
    return TreeParameters(given)


class TreeParameters:
    """A tree of float32 arrays; a single array is the smallest one."""

    in_place = False
    held: Held | None = None

    def __init__(self, tree: Any) -> None:
        """Look at ``tree``.

        Raises:
            ConfigError: if its leaves are no float32 arrays, or there are none.
        """
        self._tree = ArrayTree(tree, called="the parameters")
        self._given: Any = tree
        #: The arrays that were given and their digests, while these are looked at, and how often
        #: they still are.
        self._untouched: list[tuple[AnyArray | None, int]] = []
        self._looks = _LOOKS
        #: The tree that the loop has.
        self._bound: Any = None
        self._read, self._written = LastViews(self._tree, writeable=False), LastViews(self._tree)

    def initial(self) -> Vector:
        """Return them one behind the other, in the order of the tree."""
        leaves = self._tree.leaves(self._given)
        assert leaves is not None, "the tree that was looked at"
        arrays = (it if isinstance(it, np.ndarray) else None for it in leaves)
        self._untouched = [(it, 0 if it is None else _digest(it)) for it in arrays]
        whole = self._tree.flat(self._given)
        self._given = None  # asked for once, as a run begins
        return whole

    def matrices(self) -> Sequence[Matrix]:
        """Return those of two or more axes, by the last one."""
        return self._tree.matrices()

    def arrays(self) -> Sequence[NamedShape]:
        """Return the path of each leaf, and its shape."""
        return list(zip(self._tree.names, self._tree.shapes, strict=True))

    def tensors(self, theta: Vector) -> Mapping[str, AnyArray]:
        """Return the leaves by their paths; of a flat vector alone, ``theta``."""
        return self._tree.named(theta, "theta")

    def bind(self, theta: Vector) -> Any:
        """Return the tree with views of ``theta``, which must not be written."""
        self._bound = self._tree.made(self._read.of(theta))
        return self._bound

    def gather(self, theta: Vector) -> bool:
        """Bring leaves that were put in the place of others back into ``theta`` (n,).

        In the first steps, see that the loop does not train the arrays that it has given.
        """
        views, leaves = self._read.of(theta), self._tree.leaves(self._bound)
        is_other = leaves is None or any(a is not b for a, b in zip(views, leaves, strict=True))
        if is_other:
            self.writer(self._bound)(theta)
        if not self._looks:
            self._untouched = []
            return is_other
        self._looks -= 1
        named = zip(self._untouched, views, self._tree.names, strict=True)
        for (given, before), view, name in named if self._untouched else ():
            if given is None or _digest(given) == before or np.array_equal(given, view):
                continue  # as it was, or what there is now was copied there
            raise ConfigError(
                f"the loop wrote to the parameters{name} that it gave: psrt trains a copy, which "
                "the attribute parameters has; step() updates it"
            )
        return is_other

    def evaluating(self) -> AbstractContextManager[None]:
        """Keep nothing: arrays have no modes."""
        return nullcontext()

    def release(self) -> None:
        """Let go of psrt's memory; the views of parameters are of memory that stays."""
        self._written.forget()

    def writer(self, gradients: Any) -> Writer:
        """Return what writes a tree of the same shapes; nothing is copied before."""
        leaves = self._tree.leaves(gradients)
        if leaves is None:
            raise ConfigError("the gradients are no tree like that of the parameters")
        found = [np.asarray(it) for it in leaves]
        if {it.dtype for it in found} != _FLOAT32 or [
            it.shape for it in found
        ] != self._tree.shapes:
            self._check(found)

        def write(out: Vector) -> Sequence[str]:
            for view, it in zip(self._written.of(out), found, strict=True):
                np.copyto(view, it, casting="same_kind")
            return ()

        return write

    def _check(self, found: Sequence[AnyArray]) -> None:
        """Check, leaf by leaf, that gradients can be written.

        Raises:
            ConfigError: if one is of another shape, or no real number.
        """
        for name, shape, it in zip(self._tree.names, self._tree.shapes, found, strict=True):
            if it.shape != shape:
                raise ConfigError(f"the gradients{name} are of shape {it.shape}, expected {shape}")
            if not np.can_cast(it.dtype, np.float32, "same_kind"):
                raise ConfigError(f"the gradients{name} are {it.dtype}, expected float32")


def _digest(array: AnyArray) -> int:
    return digest(np.ascontiguousarray(array).reshape(-1))
