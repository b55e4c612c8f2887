"""What a run has trained, into a module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from psrt.arrays import Vector
from psrt.errors import ConfigError
from psrt.torch.parameters import Parameters

_MODEL = "model.safetensors"


def load(module: Any, source: Vector | str | os.PathLike[str]) -> None:
    """Copy trained parameters into a module like the one that was trained.

    Args:
        module: on the CPU.
        source: ``run.theta``, the trainable parameters alone; or the folder of a run, or its
            ``model.safetensors``, which has frozen parameters and buffers, too.

    Raises:
        ConfigError: if they are not those of such a module, or cannot be read.
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
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = path / _MODEL if path.is_dir() else path
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if set(found) == {"theta"}:
        load(module, found["theta"])
        return
    own = {name: it for name, it in module.state_dict().items() if isinstance(it, torch.Tensor)}
    shapes = {name: tuple(it.shape) for name, it in own.items()}
    for name in sorted({*found, *own}):
        there = found[name].shape if name in found else None
        if there != shapes.get(name):
            raise ConfigError(
                f"{path}: {name} is {_said(there)}, expected {_said(shapes.get(name))}"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(found[name]))


def _said(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else f"of shape {shape}"
