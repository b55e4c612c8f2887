"""``load``: copies the parameters of a run into a module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError
from psrt.report.files import MODEL
from psrt.report.model_file import load as load_arrays
from psrt.torch.buffers import buffer_places, device_of_module
from psrt.torch.names import plain_name
from psrt.torch.parameters import Parameters


def load(module: Any, source: Vector | str | os.PathLike[str]) -> None:
    """Copy trained parameters into a module of the same structure as the trained one.

    Args:
        module: on any device; either of the two modules may be compiled.
        source: ``run.theta``, which has only the trainable parameters; or the folder of a run
            or its ``model.safetensors``, which also have frozen parameters and buffers.

    Raises:
        ConfigError: if they do not fit the module, or cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        _load_file(module, Path(source))
        return
    parameters = Parameters(module)
    theta = np.asarray(source)
    if theta.shape != (parameters.n,):
        raise ConfigError(
            f"theta has shape {theta.shape}, expected ({parameters.n},): the module has "
            f"{parameters.n} trainable parameters"
        )
    parameters.load(np.ascontiguousarray(theta, np.float32))


def _load_file(module: Any, path: Path) -> None:
    path = path / MODEL if path.is_dir() else path
    found = load_arrays(path)
    own = {
        plain_name(module, name): it
        for name, it in module.state_dict().items()
        if isinstance(it, torch.Tensor)
    }
    if set(found) == {"theta"} and "theta" not in own:
        load(module, found["theta"])
        return
    # A buffer that the trained module made in training does not exist here yet.
    unmade = {
        name: place
        for name, place in buffer_places(module)
        if name in found and name not in own and place[0]._buffers[place[1]] is None
    }
    shapes = {name: tuple(it.shape) for name, it in own.items()}
    for name in sorted({*found, *own} - unmade.keys()):
        there = found[name].shape if name in found else None
        if there != shapes.get(name):
            raise ConfigError(
                f"{path}: {name} is {_said(there)}, expected {_said(shapes.get(name))}"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(found[name]))
    for name, (part, local) in unmade.items():
        part._buffers[local] = torch.from_numpy(found[name]).to(device_of_module(module))


def _said(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else f"of shape {shape}"
