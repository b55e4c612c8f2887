"""Buffers of a module, such as running means: each worker has its own, though they share a module.

Buffers may have any type. One that is created or grows during training counts from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from psrt.checkpoint import Tree
from psrt.checkpoint.tree import SEPARATOR
from psrt.core.arrays import AnyArray
from psrt.core.errors import CheckpointError, ConfigError
from psrt.torch.agreement import bytes_of
from psrt.torch.names import plain_name
from psrt.torch.parameters import as_array
from psrt.torch.rules import check_dense, check_stored
from psrt.torch.staging import to_host

#: Which buffers a trained module has: those of the first worker, or the mean over all workers.
LOCAL, MEAN = RULES = ("local", "mean")
_BUFFERS = "buffers"
#: Stands for ``SEPARATOR`` in a tree, whose names may not contain that. Unambiguous, since no part
#: of a name is empty.
_ESCAPED = ".."
#: The types that a tree stores as arrays.
_NUMPYS = frozenset(torch.from_numpy(np.zeros(0, kind)).dtype for kind in "?bhilBefd")


class _Buffer(NamedTuple):
    """One buffer of one worker."""

    #: A copy of its numbers; None if the module has not made it yet.
    tensor: Any
    #: Whether ``state_dict`` contains it.
    persistent: bool = True


@dataclass(eq=False)
class Buffers:
    """The buffers of one worker. If several share a module, it holds those of one at a time.

    Raises:
        ConfigError: if a checkpoint or ``model.safetensors`` could not hold one of its tensors,
            or the rule is unknown.
    """

    #: The module.
    module: Any
    #: ``local`` or ``mean``, see ``conclude``.
    rule: str = LOCAL

    def __post_init__(self) -> None:
        """Start from the module's buffers."""
        if self.rule not in RULES:
            raise ConfigError(f"buffers must be {' or '.join(RULES)}, got {self.rule!r}")
        self.check()
        self._kept = self._current()
        self._first = frozenset(self._kept)
        #: The worker whose buffers are in the module now; one object for all that share the module.
        self._holder: list[Buffers | None] = [None]

    def copy(self) -> Buffers:
        """Return the buffers of another worker, which starts with the same ones."""
        found = object.__new__(Buffers)
        found.module, found.rule, found._first = self.module, self.rule, self._first
        found._holder, found._kept = self._holder, dict(self._kept)  # the copies are never written
        return found

    def check(self) -> None:
        """Check that the module's current tensors can be saved.

        Raises:
            ConfigError: naming a tensor that cannot.
        """
        for name, it in self.module.named_buffers():
            check_dense(it, f"buffer {plain_name(self.module, name)}")
        for name, it in self.module.state_dict().items():
            if isinstance(it, torch.Tensor):
                check_stored(it, plain_name(self.module, name))

    @property
    def names(self) -> list[str]:
        """The names of the buffers that the module had at first, made or not."""
        return sorted(self._first)

    def hold(self) -> None:
        """Put them into the module, after saving what is in it for the worker it belongs to."""
        [holder] = self._holder
        if holder is self:
            return
        if holder is not None:
            holder._kept = holder._current()
        self._put()

    def state(self) -> Tree:
        """Return them in the form that a checkpoint stores."""
        now = self._current() if self._holder[0] is self else self._kept
        # A buffer registered in training that ``state_dict`` leaves out: the module makes it again.
        kept = {name: it for name, it in now.items() if it.persistent or name in self._first}
        return _tree_of({name: it.tensor for name, it in kept.items()})

    def load_state(self, tree: Tree) -> None:
        """Take back what ``state`` returned.

        Raises:
            CheckpointError: if it is of a module with other buffers.
        """
        given, places = tensors_of(tree), dict(buffer_places(self.module))
        owners = {name: _owner_of(name, places, self.module) for name in given}
        if self._first - given.keys() or None in owners.values():
            has = {name: it.tensor for name, it in self._kept.items()}
            raise CheckpointError(
                f"the checkpoint has buffers {_listed(given)}, the module {_listed(has)}"
            )
        persistent = {name: it.persistent for name, it in self._kept.items()}
        self._kept = {name: _Buffer(it, persistent.get(name, True)) for name, it in given.items()}
        if self._holder[0] is self:
            self._put()

    def conclude(self, states: Mapping[int, Tree]) -> None:
        """Put the buffers of the trained module into it.

        Args:
            states: of the workers, by their numbers; without any nothing changes.
        """
        if states:
            each = [states[number] for number in sorted(states)]
            self.load_state(brought_together(self.rule, each))
            self.hold()

    def arrays(self) -> Iterator[tuple[str, AnyArray]]:
        """Yield name and numbers of each buffer that has been made."""
        for name, it in self.state()[_BUFFERS].items():
            if it is not None:
                yield name, it["bytes"] if isinstance(it, dict) else it

    def _current(self) -> dict[str, _Buffer]:
        found = {}
        for name, (owner, local) in buffer_places(self.module):
            it = owner._buffers[local]
            persistent = local not in owner._non_persistent_buffers_set
            found[name] = _Buffer(None if it is None else it.detach().clone(), persistent)
        return found

    def _put(self) -> None:
        places = dict(buffer_places(self.module))
        for name, (tensor, persistent) in self._kept.items():
            owner = _owner_of(name, places, self.module)
            local = name.rpartition(".")[2]
            before = owner._buffers.get(local)
            if tensor is None or before is None:
                made = None if tensor is None else tensor.clone().to(device_of_module(self.module))
                owner.register_buffer(local, made, persistent)
            elif _kind(before) == _kind(tensor) and before.is_contiguous():
                with torch.no_grad():
                    before.copy_(tensor)
            else:  # its size has changed, or its elements share memory
                before.data = tensor.clone().to(before.device)
        for name in places.keys() - self._kept.keys():  # made by another worker only
            owner, local = places[name]
            delattr(owner, local)
        self._holder[0] = self


def tensors_of(tree: Tree) -> dict[str, Any]:
    """Return the tensors of a worker's state by name; None for one that was not made yet.

    Raises:
        CheckpointError: if the state is not of buffers.
    """
    found = tree.get(_BUFFERS)
    if not isinstance(found, dict):
        raise CheckpointError("the checkpoint has no buffers of a module")
    return {name.replace(_ESCAPED, SEPARATOR): _decoded(it) for name, it in found.items()}


def brought_together(rule: str, states: Sequence[Tree]) -> Tree:
    """Return the buffers of a trained module.

    Args:
        rule: ``local`` or ``mean``.
        states: of the workers, by their numbers; at least one.

    Returns:
        Each buffer of the first worker that has made it. With ``mean``, buffers of real numbers
        that all workers have in one shape are means over all, summed in float64.
    """
    each = list(map(tensors_of, states))
    found: dict[str, Any] = {}
    for name, it in (pair for one in each for pair in one.items()):
        if found.get(name) is None:
            found[name] = it
    for name, it in found.items() if rule == MEAN else ():
        if it is None or not (it.is_floating_point() or it.is_complex()):
            continue
        rows: list[Any] = [one.get(name) for one in each]
        if all(row is not None and _kind(row) == _kind(it) for row in rows):
            wide = torch.complex128 if it.is_complex() else torch.float64
            total: Any = sum(row.to(wide) for row in rows)
            found[name] = (total / len(rows)).to(it.dtype)
    return _tree_of(found)


def _tree_of(tensors: Mapping[str, Any]) -> Tree:
    named = {name.replace(SEPARATOR, _ESCAPED): it for name, it in tensors.items()}
    return {_BUFFERS: {name: _encoded(it) for name, it in named.items()}}


def buffer_places(module: Any) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield each buffer's name, the submodule it belongs to, and its name there; made or not."""
    for path, owner in module.named_modules():
        for local in owner._buffers:
            yield plain_name(module, f"{path}.{local}" if path else local), (owner, local)


def _owner_of(name: str, places: Mapping[str, tuple[Any, str]], module: Any) -> Any:
    """Return the submodule that a buffer belongs to; None if there is none.

    A submodule that another process registered in training is not known here yet.
    """
    if name in places:
        return places[name][0]
    path = name.rpartition(".")[0]
    plain = {plain_name(module, it): part for it, part in module.named_modules()}
    return plain.get(path)


def device_of_module(module: Any) -> Any:
    """Return the device of a module, by its first parameter."""
    return next((it.device for it in module.parameters()), "cpu")


def _kind(tensor: Any) -> tuple[Any, Any]:
    return tensor.shape, tensor.dtype


def _encoded(tensor: Any) -> Any:
    """Return a tensor as a tree stores it: an array, or its bytes if numpy lacks the type."""
    if tensor is None:
        return None
    if tensor.dtype in _NUMPYS:
        return as_array(tensor)
    flat = bytes_of(to_host(tensor))
    kind = str(tensor.dtype).removeprefix("torch.")
    return {"type": kind, "shape": list(tensor.shape), "bytes": flat.numpy()}


def _decoded(it: Any) -> Any:
    """Return the tensor that ``_encoded`` stored, in new memory.

    Raises:
        CheckpointError: if it is no stored tensor.
    """
    try:
        if isinstance(it, dict):
            flat = torch.from_numpy(np.array(it["bytes"]))
            return flat.view(getattr(torch, it["type"])).reshape(it["shape"])
        return None if it is None else torch.from_numpy(np.array(it))
    except (TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint's buffer cannot be read: {error}") from None


def _listed(named: Mapping[str, Any]) -> str:
    """Return names and shapes, for a message."""
    shown = (f"{name} {tuple(it.shape) if it is not None else None}" for name, it in named.items())
    return ", ".join(shown) or "none"
