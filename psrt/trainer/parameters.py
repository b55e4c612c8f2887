"""The parameters that a loop trains, as one flat vector: a numpy vector or a tree of arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from psrt.codec.matrices import Matrix
from psrt.core.arrays import AnyArray, Vector
from psrt.core.errors import ConfigError
from psrt.optim.optimizer import OwnOptimizer
from psrt.runtime.array_tree import ArrayTree, LastViews
from psrt.runtime.checksum import digest
from psrt.runtime.named_arrays import NamedShape
from psrt.runtime.own_loop import Held, Writer

_FLOAT32 = {np.dtype(np.float32)}
#: How often the given arrays are compared: when an epoch begins, and around two steps.
_LOOKS = 4


class Parameters(Protocol):
    """What a ``Trainer`` needs from the parameters it was given."""

    #: Whether the user's own objects are trained in place; else the loop must ask for the trained.
    in_place: bool
    #: State that is trained besides the parameters, such as running means; None if there is none.
    held: Held | None
    #: What makes the updates; None if the config's optimizer does.
    own_optimizer: OwnOptimizer | None

    def initial(self) -> Vector:
        """Return the (n,) float32 parameters to start from."""
        ...

    def matrices(self) -> Sequence[Matrix]:
        """Return the matrices among them."""
        ...

    def arrays(self) -> Sequence[NamedShape]:
        """Return the arrays that make up the vector, in its order."""
        ...

    def tensors(self, theta: Vector) -> Mapping[str, AnyArray]:
        """Return what a file stores: the values of ``theta`` (n,) and the other state."""
        ...

    def bind(self, theta: Vector) -> Any:
        """Return the parameters in the form they were given, with the values of ``theta`` (n,)."""
        ...

    def gather(self, theta: Vector, *, whole: bool) -> bool:
        """Copy what the loop wrote, or put in their place, into ``theta`` (n,), that of ``bind``.

        Args:
            theta: as ``bind`` was given it.
            whole: whether also writes that nothing reports must be in ``theta`` afterwards.

        Returns:
            Whether a write or a replacement since ``bind`` was seen.

        Raises:
            ConfigError: if the loop put something there that cannot be trained, or trains the
                objects that it gave instead.
        """
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """Keep what an evaluation may change, such as whether the module trains."""
        ...

    def release(self) -> None:
        """At the end, give the user's objects memory of their own again."""
        ...

    def writer(self, gradients: Any) -> Writer:
        """Return what writes a step's gradients into a vector (n,).

        Raises:
            ConfigError: if they do not match these parameters.
        """
        ...


def parameters_of(given: Any, buffers: str | None = None, **own: Any) -> Parameters:
    """Return the parameters in what the user has given.

    Args:
        given: a flat float32 array; a tree of float32 arrays, numpy's or JAX's: lists, tuples and
            dictionaries of them, and anything else that JAX treats as a tree; a torch module; or
            torch parameters.
        buffers: ``local`` or ``mean``, of a torch module; None takes ``local``.
        own: the optimizer of torch that makes the updates, as ``psrt.torch.Problem`` takes it.

    Raises:
        ConfigError: if it is anything else, or such an optimizer is given for it.
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
            return TorchParameters(given, "local" if buffers is None else buffers, **own)
        if isinstance(given, torch.nn.Parameter):
            return TorchParameters([given], **own)
        if isinstance(given, Iterator):
            given = list(given)
        is_list = isinstance(given, list | tuple) and bool(given)
        if is_list and all(isinstance(it, torch.nn.Parameter) for it in given):
            return TorchParameters(given, **own)
    if any(it is not None for it in own.values()):
        raise ConfigError(f"optimizer= is for torch parameters, got {type(given).__name__}")
    return TreeParameters(given)


class TreeParameters:
    """A tree of float32 arrays; a single array is the smallest tree."""

    in_place = False
    held: Held | None = None
    own_optimizer: OwnOptimizer | None = None

    def __init__(self, tree: Any) -> None:
        """Read the leaves of ``tree``.

        Raises:
            ConfigError: if its leaves are no float32 arrays, or there are none.
        """
        self._tree = ArrayTree(tree, called="the parameters")
        self._given: Any = tree
        #: The given arrays and their digests, while they are compared, and how often they still
        #: will be.
        self._untouched: list[tuple[AnyArray | None, int]] = []
        self._looks = _LOOKS
        #: The tree that the loop has.
        self._bound: Any = None
        self._read, self._written = LastViews(self._tree, writeable=False), LastViews(self._tree)

    def initial(self) -> Vector:
        """Return the leaves, concatenated in the order of the tree."""
        leaves = self._tree.leaves(self._given)
        assert leaves is not None, "the tree that was looked at"
        arrays = (it if isinstance(it, np.ndarray) else None for it in leaves)
        self._untouched = [(it, 0 if it is None else _digest(it)) for it in arrays]
        whole = self._tree.flat(self._given)
        self._given = None  # asked for once, as a run begins
        return whole

    def matrices(self) -> Sequence[Matrix]:
        """Return the arrays with two or more axes, as matrices with the last axis as columns."""
        return self._tree.matrices()

    def arrays(self) -> Sequence[NamedShape]:
        """Return the path of each leaf, and its shape."""
        return self._tree.arrays()

    def tensors(self, theta: Vector) -> Mapping[str, AnyArray]:
        """Return the leaves by their paths; ``theta`` for a single flat vector."""
        return self._tree.named_or(theta, "theta")

    def bind(self, theta: Vector) -> Any:
        """Return the tree with read-only views of ``theta``."""
        self._bound = self._tree.made(self._read.of(theta))
        return self._bound

    def gather(self, theta: Vector, *, whole: bool) -> bool:
        """Copy leaves that replaced others back into ``theta`` (n,).

        In the first steps, check that the loop does not train the arrays that it gave.
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
                continue  # unchanged, or already copied
            raise ConfigError(
                f"the loop wrote to the parameters{name} that it gave: psrt trains a copy, the "
                "attribute parameters of the trainer, and step() updates that"
            )
        return is_other

    def evaluating(self) -> AbstractContextManager[None]:
        """Keep nothing: arrays have no modes."""
        return nullcontext()

    def release(self) -> None:
        """Drop psrt's memory; views of the parameters refer to memory that stays."""
        self._written.forget()

    def writer(self, gradients: Any) -> Writer:
        """Return what writes a tree of the same shapes; nothing is copied before."""
        leaves = self._tree.leaves(gradients)
        if leaves is None:
            raise ConfigError("the gradients have another tree structure than the parameters")
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
            ConfigError: if one has another shape, or its type is not real numbers.
        """
        for name, shape, it in zip(self._tree.names, self._tree.shapes, found, strict=True):
            if it.shape != shape:
                raise ConfigError(f"the gradients{name} are of shape {it.shape}, expected {shape}")
            if not np.can_cast(it.dtype, np.float32, "same_kind"):
                raise ConfigError(f"the gradients{name} are {it.dtype}, expected float32")


def _digest(array: AnyArray) -> int:
    return digest(np.ascontiguousarray(array).reshape(-1))
