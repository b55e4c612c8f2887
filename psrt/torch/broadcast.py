"""``broadcast``: gives all ranks the parameters and buffers of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from psrt.torch.agreement import bytes_of, check_alike, item
from psrt.torch.communicator import Communicator
from psrt.torch.rules import check_communicator, check_dense, check_module
from psrt.torch.staging import to_host


def broadcast(module: Any, communicator: Communicator, root: int = 0) -> None:
    """Give every rank the parameters and buffers of rank ``root``; collective.

    Tensors may have any type; all of them travel in one message.

    Args:
        module: with the same tensors on all ranks, each on a device of its rank.
        communicator: of the ranks.
        root: the same on every rank.

    Raises:
        ConfigError: on every rank, if one differs from rank 0 in the name, type or shape of a
            parameter or buffer; also if psrt cannot reach a tensor.
    """
    check_module(module)
    check_communicator(communicator)
    named = named_in(module)
    check_alike_in_shape(communicator, named)
    send(communicator, [it for _, it in named], root)


def named_in(module: Any) -> list[tuple[str, Any]]:
    """Return the parameters and buffers of a module, and how an error names each."""
    parameters = [(f"parameter {name}", it) for name, it in module.named_parameters()]
    return parameters + [(f"buffer {name}", it) for name, it in module.named_buffers()]


def check_alike_in_shape(communicator: Communicator, named: Sequence[tuple[str, Any]]) -> None:
    """Check that every rank has the same tensors in the same order, whatever their values.

    Raises:
        ConfigError: on every rank, if not; or if a tensor cannot be sent.
    """
    for name, it in named:
        check_dense(it, name)
    items = [
        item(f"{name}, {it.dtype} {tuple(it.shape)}", name, str(it.dtype), tuple(it.shape))
        for name, it in named
    ]
    check_alike(
        communicator, items, "the same names, types and shapes in the same order on every rank"
    )


def send(communicator: Communicator, tensors: Sequence[Any], root: int = 0) -> None:
    """Give every rank the values of rank ``root``, in tensors that agree in all but values."""
    parts = [bytes_of(it) for it in tensors]
    nbytes = sum(part.numel() for part in parts)
    if not nbytes:
        return
    message = np.zeros(-(-nbytes // 8), np.int64)
    flat = torch.from_numpy(message.view(np.uint8))
    torch.cat([to_host(part) for part in parts], out=flat[:nbytes])
    communicator.broadcast(message, root=root)
    if communicator.rank == root:  # the root's own tensors are not written
        return
    with torch.no_grad():
        at = 0
        for tensor, part in zip(tensors, parts, strict=True):
            own = flat[at : at + part.numel()].clone()  # a copy is aligned for every type
            own = own.view(tensor.dtype).reshape(tensor.shape)
            if 0 in tensor.stride():  # made by expand(): its elements share memory
                tensor.data = own.to(tensor.device)
            else:
                tensor.copy_(own)
            at += part.numel()
