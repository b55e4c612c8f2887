"""The parameters of a torch module in the user's own loop: views of psrt's vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from psrt.codec.matrices import Matrix
from psrt.core.arrays import AnyArray, Vector
from psrt.core.errors import ConfigError
from psrt.optim.optimizer import OwnOptimizer
from psrt.runtime.named_arrays import NamedShape
from psrt.runtime.own_loop import Held, Writer
from psrt.torch.buffers import LOCAL, Buffers
from psrt.torch.optimizer import own_optimizer
from psrt.torch.parameters import Parameters
from psrt.torch.problem import modes_kept


class TorchParameters:
    """The trainable parameters of a module, or of a list."""

    in_place = True

    def __init__(
        self,
        given: torch.nn.Module | Sequence[torch.nn.Parameter],
        buffers: str = LOCAL,
        **own: Any,
    ) -> None:
        """Find the parameters.

        Args:
            given: the module, or the list.
            buffers: of a module, as in ``psrt.torch.Problem``.
            own: ``optimizer``, ``scheduler`` and ``schedule_every``, as there.

        Raises:
            ConfigError: if there are none, one is not float32, or they are on several devices.
        """
        self._given = given
        is_module = isinstance(given, torch.nn.Module)
        self._module = given if is_module else torch.nn.ParameterList(given)
        self._parameters = Parameters(self._module)
        self._gradients = self._parameters.parts_of("gradients")
        self.own_optimizer: OwnOptimizer | None = own_optimizer(self._parameters, **own)
        self._buffers = Buffers(self._module, buffers)
        self._buffers.hold()  # until the end: no other worker shares the module
        self.held: Held | None = self._buffers if is_module else None
        self._is_checked = False
        self._versions: list[int] = []

    def initial(self) -> Vector:
        """Return a copy of the parameters, concatenated."""
        return self._parameters.values()

    def matrices(self) -> Sequence[Matrix]:
        """Return the parameters with two or more axes."""
        return self._parameters.matrices()

    def arrays(self) -> Sequence[NamedShape]:
        """Return the name and the shape of each parameter."""
        parameters = self._parameters
        shapes = (tuple(it.shape) for it in parameters.tensors)
        found = list(zip(parameters.names, shapes, strict=True))
        return found + [(f"buffer {name}", ()) for name in self._buffers.names]

    def tensors(self, theta: Vector) -> Mapping[str, AnyArray]:
        """Return the contents of the module's ``state_dict`` with the values of ``theta`` (n,)."""
        return self._parameters.named(theta)

    def bind(self, theta: Vector) -> Any:
        """Make the parameters views of ``theta`` and return them; gradients are dropped."""
        self._parameters.bind(theta)
        for it in self._parameters.tensors:
            it.grad = None
        self._versions = self._parameters.versions()
        return self._given

    def gather(self, theta: Vector, *, whole: bool) -> bool:
        """Copy a replaced ``data`` of a parameter back into ``theta`` (n,).

        Torch counts writes to a parameter, but not writes to its ``data``. From a device, all is
        copied where any write was seen, or if ``whole``.
        """
        self._parameters.check()
        is_written = self._parameters.gather() or self._parameters.versions() != self._versions
        if whole or is_written:
            self._parameters.bring(theta)
        return is_written

    def evaluating(self) -> AbstractContextManager[None]:
        """Restore the module's training or evaluation mode at the end of the block."""
        return modes_kept(self._module)

    def release(self) -> None:
        """Give the parameters memory of their own again."""
        self._parameters.release()
        self._gradients.forget()

    def writer(self, gradients: Any) -> Writer:
        """Return what writes the gradients that backward passes have left in the parameters.

        Raises:
            ConfigError: if gradients are given, or a parameter was replaced.
        """
        if gradients is not None:
            raise ConfigError(
                "gradients of torch parameters are taken from them: call backward(), then "
                "step(samples=…)"
            )
        if all(it.grad is None for it in self._parameters.tensors):
            raise ConfigError(
                "no parameter has a gradient: call backward() before step(), without "
                "optimizer.step() or zero_grad() between: step() takes and clears the gradients"
            )
        if not self._is_checked:  # the first forward pass may have made buffers
            self._buffers.check()
            self._is_checked = True
        for name, it in zip(self._parameters.names, self._parameters.tensors, strict=True):
            if it.grad is not None and it.grad.layout != torch.strided:
                raise ConfigError(
                    f"the gradient of {name} is {it.grad.layout}, expected a dense one, as of "
                    "Embedding(sparse=False)"
                )
        return self._write

    def _write(self, out: Vector) -> Sequence[str]:
        of, without = self._parameters, []
        self._gradients.lie_on(out)
        for name, it, part in zip(of.names, of.tensors, self._gradients.parts, strict=True):
            if it.grad is None:  # not used by this step's loss
                part.zero_()
                without.append(name)
            else:
                part.copy_(it.grad.detach())
        self._gradients.bring(out)
        return without
