"""The parameters of a torch module in a loop of one's own: views of psrt's vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from psrt.codec.matrices import Matrix
from psrt.core.arrays import AnyArray, Vector
from psrt.core.errors import ConfigError
from psrt.runtime.own_loop import Held, NamedShape, Writer
from psrt.torch.buffers import LOCAL, Buffers
from psrt.torch.parameters import Parameters
from psrt.torch.problem import modes_kept


class TorchParameters:
    """Those of a module, or of a list, that are trained."""

    in_place = True

    def __init__(
        self, given: torch.nn.Module | Sequence[torch.nn.Parameter], buffers: str = LOCAL
    ) -> None:
        """Look at them.

        Args:
            given: whose they are.
            buffers: of a module, as of ``psrt.torch.Problem``.

        Raises:
            ConfigError: if there are none, or one is not float32 on the CPU.
        """
        self._given = given
        is_module = isinstance(given, torch.nn.Module)
        self._module = given if is_module else torch.nn.ParameterList(given)
        self._parameters = Parameters(self._module)
        self._buffers = Buffers(self._module, buffers)
        self._buffers.hold()  # for good: no other worker shares the module
        self.held: Held | None = self._buffers if is_module else None
        self._is_checked = False
        self._versions: list[int] = []

    def initial(self) -> Vector:
        """Return a copy of them, one behind the other."""
        return self._parameters.values()

    def matrices(self) -> Sequence[Matrix]:
        """Return those of two or more axes."""
        return self._parameters.matrices()

    def arrays(self) -> Sequence[NamedShape]:
        """Return the name of each, and its shape."""
        parameters = self._parameters
        shapes = (tuple(it.shape) for it in parameters.tensors)
        found = list(zip(parameters.names, shapes, strict=True))
        return found + [(f"buffer {name}", ()) for name in self._buffers.names]

    def tensors(self, theta: Vector) -> Mapping[str, AnyArray]:
        """Return what ``state_dict`` of the module has, with ``theta`` (n,)."""
        return self._parameters.named(theta)

    def bind(self, theta: Vector) -> Any:
        """Make the parameters views of ``theta`` and return them; gradients are forgotten."""
        self._parameters.bind(theta)
        for it in self._parameters.tensors:
            it.grad = None
        self._versions = self._parameters.versions()
        return self._given

    def gather(self, theta: Vector) -> bool:
        """Bring what was put in a parameter's ``data`` back into ``theta`` (n,).

        Torch counts what writes to a parameter, though not what writes to its ``data``.
        """
        self._parameters.check()
        return self._parameters.gather() or self._parameters.versions() != self._versions

    def evaluating(self) -> AbstractContextManager[None]:
        """Have the module train afterwards if it does now."""
        return modes_kept(self._module)

    def release(self) -> None:
        """Let the parameters have memory of their own, as before."""
        self._parameters.release()

    def writer(self, gradients: Any) -> Writer:
        """Return what writes the gradients that backward passes have left in the parameters.

        Raises:
            ConfigError: if others are given, or a parameter is another one now.
        """
        if gradients is not None:
            raise ConfigError(
                "gradients of torch parameters are taken from them: call backward(), then "
                "step(samples=…)"
            )
        if all(it.grad is None for it in self._parameters.tensors):
            raise ConfigError(
                "no parameter has a gradient: call backward() before step(), which takes the "
                "gradients and forgets them, without optimizer.step() and zero_grad() between"
            )
        if not self._is_checked:  # the first forward pass may have made buffers
            self._buffers.check()
            self._is_checked = True
        for name, it in zip(self._parameters.names, self._parameters.tensors, strict=True):
            if it.grad is not None and it.grad.layout != torch.strided:
                raise ConfigError(
                    f"the gradient of {name} is {it.grad.layout}, expected one with all elements, "
                    "as after Embedding(sparse=False)"
                )
        return self._write

    def _write(self, out: Vector) -> Sequence[str]:
        of, without = self._parameters, []
        for name, it, span in zip(of.names, of.tensors, of.spans, strict=True):
            if it.grad is None:  # no part in this step's loss
                span.of(out)[:] = 0
                without.append(name)
            else:
                np.copyto(span.of(out).reshape(it.shape), it.grad.numpy())
        return without
