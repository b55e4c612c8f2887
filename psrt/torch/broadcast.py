"""The parameters and buffers of one rank, for all."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from psrt.errors import ConfigError
from psrt.torch.communicator import Communicator
from psrt.torch.rules import check_module

#: Numbers of eight bytes in a digest.
_DIGEST = 4


def broadcast(module: Any, communicator: Communicator, root: int = 0) -> None:
    """Give every rank the parameters and buffers of rank ``root``; collective.

    They are of any type and go in one message, with a digest of their names, types and shapes.

    Args:
        module: alike on all ranks, on the CPU.
        communicator: of the ranks.
        root: the same on every rank.

    Raises:
        ConfigError: if the module has other parameters or buffers than that of rank ``root``; also
            if a tensor is not on the CPU.
        ProtocolError: on every rank, if they differ in size.
    """
    check_module(module)
    named = [*module.named_parameters(), *module.named_buffers()]
    parts = [_bytes_of(it) for _, it in named]
    words = -(-sum(part.numel() for part in parts) // 8)
    message = np.zeros(_DIGEST + words, np.int64)
    mine = np.frombuffer(_digest(named), np.int64)
    message[:_DIGEST] = mine
    flat = torch.from_numpy(message[_DIGEST:].view(np.uint8))
    if parts:
        torch.cat(parts, out=flat[: sum(part.numel() for part in parts)])
    communicator.broadcast(message, root=root)
    if (message[:_DIGEST] != mine).any():
        raise ConfigError(
            f"the module has other parameters or buffers than that of rank {root}; expected the "
            "same names, types and shapes"
        )
    with torch.no_grad():
        at = 0
        for (_, tensor), part in zip(named, parts, strict=True):
            own = flat[at : at + part.numel()].clone()  # where any type may begin
            tensor.copy_(own.view(tensor.dtype).reshape(tensor.shape))
            at += part.numel()


def _bytes_of(tensor: Any) -> Any:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _digest(named: list[tuple[str, Any]]) -> bytes:
    text = "\n".join(f"{name} {it.dtype} {tuple(it.shape)}" for name, it in named)
    return hashlib.sha256(text.encode()).digest()
