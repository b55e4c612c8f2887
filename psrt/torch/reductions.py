"""How a tensor of any type is reduced: as which numbers, by which of psrt's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from psrt.core.errors import ConfigError

#: torch's operations by psrt's names; ``PREMUL_SUM`` is a sum of numbers times a factor.
_OPS = {"SUM": "sum", "AVG": "mean", "PRODUCT": "prod", "MIN": "min", "MAX": "max",
        "BAND": "and", "BOR": "or", "BXOR": "xor", "PREMUL_SUM": "sum"}  # fmt: skip
_LINEAR = ("SUM", "AVG", "PREMUL_SUM")
_BITWISE = ("BAND", "BOR", "BXOR")
#: Types by the one that they are reduced in, which has all their values. A sum of several 16-bit
#: numbers is rounded once, not at each of them. A sum of unsigned numbers has the bits of a signed
#: one, and so has one of bytes, once its upper bits are dropped.
_AS = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.complex64,
    torch.complex128: torch.complex128,
    **dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32), torch.int32),
    torch.int64: torch.int64,
}
#: The same, of types that not every torch has.
_LATER = {"uint16": torch.int32, "uint32": torch.int64, "uint64": torch.int64,
          "complex32": torch.complex64}  # fmt: skip
#: The numbers that psrt sees of a tensor.
_PARTS = {torch.complex64: "float32", torch.complex128: "float64"}
#: Turned round, the highest bit brings unsigned numbers into the order of signed ones.
_HIGHEST = -(1 << 63)


def _nothing(numbers: Any) -> None:
    """Leave numbers as they are."""


class Reduction(NamedTuple):
    """One operation on tensors of one type."""

    #: The name of psrt's operation.
    op: str
    #: The type of the tensor that is reduced.
    kind: Any
    #: The type of the array that is: complex numbers are pairs.
    dtype: np.dtype[Any]
    #: Change the numbers in place, before and after.
    before: Callable[[Any], object] = _nothing
    after: Callable[[Any], object] = _nothing


def reduction_of(kind: Any, operation: Any, who: str) -> Reduction:
    """Return how torch's operation reduces tensors of a type.

    Args:
        kind: the type of the tensors.
        operation: a ``torch.distributed.ReduceOp``, or one of its names.
        who: the rank, in words.

    Raises:
        ConfigError: if it cannot.
    """
    name = str(getattr(operation, "op", operation)).rpartition(".")[2]
    op, wide = _OPS.get(name), _widened(kind)
    if op is None or wide is None or not _suits(name, kind):
        raise ConfigError(f"{who}: {kind} cannot be reduced by {name}")
    found = Reduction(op, wide, np.dtype(_PARTS.get(wide, str(wide).removeprefix("torch."))))
    if name == "PREMUL_SUM":
        return found._replace(before=lambda numbers: numbers.mul_(operation.factor))
    if str(kind) == "torch.uint64" and name in ("MIN", "MAX"):
        return found._replace(before=_turned, after=_turned)
    return found


def _widened(kind: Any) -> Any:
    found = _AS.get(kind, _LATER.get(str(kind).removeprefix("torch.")))
    if found is None and kind.is_floating_point and not str(kind).endswith("_x2"):
        return torch.float32  # of 16 and 8 bits; two in a byte cannot be converted
    return found


def _suits(name: str, kind: Any) -> bool:
    if kind.is_complex:
        return name in _LINEAR
    if kind.is_floating_point:
        return name not in _BITWISE
    # A mean of truth values is none, and unsigned numbers of 64 bits have no wider type.
    has_mean = str(kind) not in ("torch.bool", "torch.uint64")
    return name != "PREMUL_SUM" and (name != "AVG" or has_mean)


def _turned(numbers: Any) -> None:
    numbers.bitwise_xor_(_HIGHEST)
