"""The parameters of a torch module, which become views of psrt's vector."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from psrt.arrays import Vector
from psrt.codec.matrices import Matrix
from psrt.errors import ConfigError
from psrt.trainer.parameters import matrices_at, placed


class TorchParameters:
    """Those of a list that are trained, each once."""

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        """Look at them.

        Raises:
            ConfigError: if one is not of float32 or not in a CPU's memory, or none is trained.
        """
        self._given = [it for it in dict.fromkeys(given) if it.requires_grad]
        if not self._given:
            raise ConfigError("none of the parameters is trained: all have requires_grad=False")
        for i, it in enumerate(self._given):
            if it.dtype != torch.float32 or it.device.type != "cpu":
                raise ConfigError(
                    f"parameter {i} is {str(it.dtype).removeprefix('torch.')} on {it.device}, "
                    "expected float32 on cpu: module.float().cpu()"
                )
            if not it.is_leaf:
                raise ConfigError(f"parameter {i} is computed from others: train those")
        self._places = placed(
            [f"[{i}]" for i in range(len(self._given))], [tuple(it.shape) for it in self._given]
        )
        #: Where θ is that they are views of.
        self._address = 0

    def initial(self) -> Vector:
        """Return a copy of them, one behind the other."""
        return np.concatenate([it.detach().numpy().reshape(-1) for it in self._given])

    def matrices(self) -> Sequence[Matrix]:
        """Return those of two or more axes."""
        return matrices_at(self._places)

    def bind(self, theta: Vector) -> Any:
        """Make the parameters views of ``theta`` and return them; gradients are forgotten."""
        address = theta.__array_interface__["data"][0]
        if address != self._address:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # where θ is for reading only, nobody writes to it
                whole = torch.from_numpy(theta)
            for it, place in zip(self._given, self._places, strict=True):
                it.data = place.span.of(whole).view(place.shape)
            self._address = address
        for it in self._given:
            it.grad = None
        return self._given

    def writer(self, gradients: Any) -> Callable[[Vector], None]:
        """Return what writes the gradients that backward passes have left in the parameters."""
        if gradients is not None:
            raise ConfigError(
                "gradients of torch parameters are taken from them: call backward() and "
                "step(samples=…)"
            )
        for it, place in zip(self._given, self._places, strict=True):
            if tuple(it.shape) != place.shape:
                raise ConfigError(
                    f"parameter {place.name} is of shape {tuple(it.shape)} now, it was "
                    f"{place.shape}"
                )
        return self._write

    def _write(self, out: Vector) -> None:
        for it, place in zip(self._given, self._places, strict=True):
            if it.grad is None:  # no part in this step's loss
                place.span.of(out)[:] = 0
            else:
                np.copyto(place.of(out), it.grad.numpy())
