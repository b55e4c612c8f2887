"""Checks of modules, tensors and the results of losses; each failure is one line."""

from __future__ import annotations

from typing import Any

import torch

from psrt.core.errors import ConfigError
from psrt.torch.staging import check_reachable


def check_module(module: Any) -> None:
    """Check that something is a module whose tensors psrt can reach.

    Raises:
        ConfigError: if it is no module, or a tensor is on an unknown device or not made yet.
    """
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"the module is {said(module)}, expected a torch.nn.Module")
    for kind, named in (
        ("parameter", module.named_parameters()),
        ("buffer", module.named_buffers()),
    ):
        for name, tensor in named:
            check_made(tensor, f"{kind} {name}")
            check_reachable(tensor, f"{kind} {name}")


def check_communicator(given: Any) -> None:
    """Check that something is a psrt.Communicator, rather than one of mpi4py.

    Raises:
        ConfigError: if it is not.
    """
    if not callable(getattr(given, "all_reduce_async", None)):
        raise ConfigError(
            f"the communicator is {said(given)}, expected a psrt.Communicator, as from "
            "with psrt.Communicator() as ranks"
        )


def check_made(tensor: Any, what: str) -> None:
    """Check that a tensor has a shape.

    Raises:
        ConfigError: if a lazy module has not made it yet.
    """
    if torch.nn.parameter.is_lazy(tensor):
        raise ConfigError(f"{what} has no shape yet: pass a batch through the module first")


def check_trainable(tensor: Any, name: str) -> None:
    """Check that a parameter can be part of a vector of float32.

    Raises:
        ConfigError: if it is of another type.
    """
    if tensor.dtype != torch.float32:
        raise ConfigError(
            f"parameter {name} is {tensor.dtype}, expected torch.float32, as after .float()"
        )


def check_dense(tensor: Any, what: str) -> None:
    """Check that a tensor stores a number for each element, so that it can be sent.

    Raises:
        ConfigError: if it is sparse or quantized.
    """
    if tensor.is_quantized or tensor.layout != torch.strided:
        kind, how = str(tensor.layout), "to_dense"
        if tensor.is_quantized:
            kind, how = "quantized", "dequantize"
        raise ConfigError(f"{what} is {kind}, expected a dense tensor, as after .{how}()")


def check_stored(tensor: Any, name: str) -> None:
    """Check that ``model.safetensors`` can hold a tensor of ``state_dict``.

    Raises:
        ConfigError: if it is not dense, or of complex numbers other than complex64.
    """
    check_dense(tensor, name)
    if tensor.is_complex() and tensor.dtype != torch.complex64:
        raise ConfigError(
            f"{name} is {tensor.dtype}, expected torch.complex64: model.safetensors has no other "
            "complex numbers"
        )


def check_loss(loss: Any) -> None:
    """Check that a gradient can be taken of what ``loss()`` returned.

    Raises:
        ConfigError: if it is no tensor or no scalar, or depends on no parameter.
    """
    if not isinstance(loss, torch.Tensor):
        raise ConfigError(
            f"loss() returned {said(loss)}, expected a scalar tensor with a gradient, without "
            ".item() or .detach()"
        )
    if loss.numel() != 1:
        raise ConfigError(
            f"loss() returned a tensor of shape {tuple(loss.shape)}, expected a scalar, as by "
            ".mean()"
        )
    if not loss.requires_grad:
        raise ConfigError(
            "loss() returned a tensor without a gradient: it does not depend on a trainable "
            "parameter, or was detached, or computed under torch.no_grad()"
        )


def said(value: object) -> str:
    """Return the name of a value's type, with its article."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
