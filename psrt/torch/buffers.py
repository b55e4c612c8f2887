"""Buffers of a module, such as running means: each worker's own, though they share the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from psrt.arrays import AnyArray
from psrt.checkpoint import Tree
from psrt.errors import CheckpointError, ConfigError
from psrt.torch.parameters import as_array

#: Whose buffers a trained module has: those of the first worker, or the mean over all.
LOCAL, MEAN = RULES = ("local", "mean")
_BUFFERS = "buffers"


class Buffers:
    """The buffers of one worker. Of several that share a module, one at a time has them in it."""

    def __init__(self, module: Any) -> None:
        """Begin with what the module holds.

        Raises:
            ConfigError: if a checkpoint could not hold one.
        """
        self._module = module
        self._kept = {name: it.detach().clone() for name, it in module.named_buffers()}
        for name, it in self._kept.items():
            if it.is_complex() or it.is_quantized or it.layout != torch.strided:
                raise ConfigError(f"buffer {name} is {it.dtype}, {it.layout}: a checkpoint cannot")
        #: Whose buffers are in the module; of all that share it.
        self._holder: list[Buffers | None] = [None]

    def copy(self) -> Buffers:
        """Return those of another worker, which begins with the same."""
        found = object.__new__(Buffers)
        found._module, found._holder = self._module, self._holder
        found._kept = {name: it.clone() for name, it in self._kept.items()}
        return found

    def hold(self) -> None:
        """Put them into the module, after what is in it was kept for whose it is."""
        [holder] = self._holder
        if holder is self:
            return
        if holder is not None:
            holder._kept = holder._current()
        self._put()

    def state(self) -> Tree:
        """Return them as a checkpoint has them."""
        now = self._current() if self._holder[0] is self else self._kept
        return {_BUFFERS: {name: as_array(it) for name, it in now.items()}}

    def load_state(self, tree: Tree) -> None:
        """Take back what ``state`` returned.

        Raises:
            CheckpointError: if it is of other buffers.
        """
        given = arrays_of(tree)
        shapes = {name: tuple(it.shape) for name, it in self._kept.items()}
        if {name: array.shape for name, array in given.items()} != shapes:
            raise CheckpointError(
                f"the checkpoint has buffers {_listed(given)}, the module {_listed(shapes)}"
            )
        for name, array in given.items():
            self._kept[name].copy_(torch.from_numpy(np.array(array)))
        if self._holder[0] is self:
            self._put()

    def _current(self) -> dict[str, Any]:
        return {name: it.detach().clone() for name, it in self._module.named_buffers()}

    def _put(self) -> None:
        with torch.no_grad():
            for name, it in self._module.named_buffers():
                if name in self._kept:
                    it.copy_(self._kept[name])
        self._holder[0] = self


def arrays_of(tree: Tree) -> Mapping[str, AnyArray]:
    """Return the arrays of a worker's state, by name."""
    found = tree.get(_BUFFERS)
    if not isinstance(found, dict):
        raise CheckpointError("the checkpoint has no buffers of a module")
    return found


def brought_together(rule: str, states: Sequence[Tree]) -> Tree:
    """Return the buffers of a trained module.

    Args:
        rule: ``local`` or ``mean``.
        states: of the workers, by their numbers; at least one.

    Returns:
        Those of the first worker; with ``mean`` whatever is no whole number is the mean over all,
        summed in float64.
    """
    first, *others = map(arrays_of, states)
    found = dict(first)
    for name, array in first.items() if rule == MEAN else ():
        if array.dtype.kind == "f":
            rows = [array, *(it[name] for it in others)]
            found[name] = np.mean(rows, axis=0, dtype=np.float64).astype(array.dtype)
    return {_BUFFERS: found}


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {getattr(it, 'shape', it)}" for name, it in names.items()) or "none"
