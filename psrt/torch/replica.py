"""What each rank trains: a copy of rank 0's at the start, and compared with it from then on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from psrt.core.errors import ConfigError
from psrt.torch.agreement import Item, check_alike, item
from psrt.torch.broadcast import check_alike_in_shape, named_in, send
from psrt.torch.buckets import SUMMED_AS
from psrt.torch.communicator import Communicator
from psrt.torch.rules import check_made
from psrt.torch.staging import Device, device_of


class Replica:
    """This rank's optimizer, its parameters, and their module if it was given."""

    def __init__(self, optimizer: Any, module: Any) -> None:
        self._optimizer, self._module = optimizer, module
        #: Whether errors can name parameters by the module's names.
        self.has_names = module is not None
        #: The parameters that require a gradient, in the optimizer's order.
        self.tensors = trained_by(optimizer)
        named = [] if module is None else module.named_parameters(remove_duplicate=False)
        known = {id(it): name for name, it in reversed(list(named))}
        for i, it in enumerate(self.tensors):
            check_made(it, known.get(id(it), f"parameter {i}"))
        #: Their names in errors.
        self.names = [
            f"{known.get(id(it), f'parameter {i}')} {tuple(it.shape)}"
            for i, it in enumerate(self.tensors)
        ]

    def check(self, taken: Collection[int]) -> Device:
        """Check that there are gradients that can be summed; return their device.

        Raises:
            ConfigError: if there are none, one has another type or device, or one is already
                ``taken`` by another Gradients.
        """
        if not sum(it.numel() for it in self.tensors):
            raise ConfigError("the optimizer has no parameters that require a gradient")
        for name, it in zip(self.names, self.tensors, strict=True):
            if it.dtype not in SUMMED_AS:
                kinds = ", ".join(str(kind).removeprefix("torch.") for kind in SUMMED_AS)
                raise ConfigError(f"{name} is {it.dtype}, expected one of {kinds}")
            if id(it) in taken:
                raise ConfigError(f"{name} is under another Gradients already: close() that first")
        return device_of(list(zip(self.names, self.tensors, strict=True)))

    def begin_alike(self, communicator: Communicator, settings: tuple[object, ...]) -> None:
        """Give all ranks the values of rank 0's parameters and buffers; collective.

        Raises:
            ConfigError: on every rank, if they differ in anything else.
        """
        named = list(zip(self.names, self.tensors, strict=True))
        others = [
            (f"frozen parameter {tuple(it.shape)}", it)
            for group in self._optimizer.param_groups
            for it in group["params"]
        ]
        others = [*(named_in(self._module) if self._module is not None else ()), *others]
        seen = set(map(id, self.tensors))
        for name, it in others:
            if id(it) not in seen:
                seen.add(id(it))
                named.append((name, it))
        check_alike_in_shape(communicator, named)
        self._check_order(communicator)
        kind = item("the type of its optimizer", type(self._optimizer).__name__)
        given = item("what Gradients was given", *settings)
        check_alike(communicator, [kind, given, *self._rest()], "the same on every rank")
        send(communicator, [it for _, it in named])

    def _check_order(self, communicator: Communicator) -> None:
        """Check that no rank has rank 0's values in another order, as from a set.

        Raises:
            ConfigError: on every rank, if one has.
        """
        mine = np.array([it.digest for it in self._values()], np.int64)
        roots = mine.copy()
        communicator.broadcast(roots)
        first = np.zeros(communicator.size, np.int64)
        if (mine != roots).any() and (np.sort(mine) == np.sort(roots)).all():
            first[communicator.rank] = np.flatnonzero(mine != roots)[0] + 1
        communicator.all_reduce(first)
        for rank in np.flatnonzero(first).tolist():
            raise ConfigError(
                f"rank {rank} has the parameters of rank 0 in another order, from "
                f"{self.names[first[rank] - 1]} on; expected the same order on every rank, of a "
                "list, not of a set"
            )

    def now(self) -> list[Item]:
        """Return what must be the same on every rank: values, states, options."""
        return [*self._values(), *self._rest()]

    def _values(self) -> list[Item]:
        named = zip(self.names, self.tensors, strict=True)
        return [item(f"the values of {name}", it) for name, it in named]

    def _rest(self) -> list[Item]:
        state = self._optimizer.state
        found = [
            item(f"the optimizer's state of {name}", dict(state[it]) if it in state else {})
            for name, it in zip(self.names, self.tensors, strict=True)
        ]
        for number, group in enumerate(self._optimizer.param_groups):
            keys = sorted(set(group) - {"params", "param_names"})
            found += [item(f"{key} of the optimizer's group {number}", group[key]) for key in keys]
        return found


def trained_by(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer that require a gradient, in its order."""
    return [it for group in optimizer.param_groups for it in group["params"] if it.requires_grad]
