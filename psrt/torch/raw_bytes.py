"""Tensors of any type, layout and device as bytes on the host, and back."""

from __future__ import annotations

from typing import Any

import torch

from psrt.core.errors import ConfigError
from psrt.torch.agreement import bytes_of
from psrt.torch.staging import to_host


def dense(tensor: Any, who: str) -> Any:
    """Return a tensor without its history.

    Args:
        tensor: on any device.
        who: the rank, in words.

    Raises:
        ConfigError: if it has no elements in memory, as a sparse or a meta tensor.
    """
    if tensor.layout != torch.strided or tensor.is_meta:
        kind = "meta" if tensor.is_meta else str(tensor.layout)
        raise ConfigError(f"{who}: got a {kind} tensor, expected a dense one, as of .to_dense()")
    return tensor.detach()


def on_host(tensor: Any, who: str) -> Any:
    """Return (nbytes,) uint8 with the bytes of a tensor; its own memory where that is possible.

    Args:
        tensor: see ``dense``.
        who: see ``dense``.

    Raises:
        ConfigError: see ``dense``.
    """
    return bytes_of(to_host(dense(tensor, who)))


def fill(tensor: Any, raw: Any) -> None:
    """Copy bytes into a tensor, unless they are its own memory."""
    if tensor.numel() and raw.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(raw.view(tensor.dtype).view(tensor.shape))
