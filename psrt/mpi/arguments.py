"""Validates arguments of collective calls: arrays, operations, algorithms, roots. Knows no MPI."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from psrt.collective import OPS
from psrt.collective.analysis.pick import library_reduces
from psrt.collective.registry import ALL_REDUCES, AUTO, LIBRARY
from psrt.core.arrays import AnyArray

#: Element types that can be reduced.
DTYPES = ("float16", "float32", "float64", "int32", "int64")
#: The operation or root of a call that has none.
ABSENT: Any = object()


def fault_of(
    buf: AnyArray, op: Any, algorithm: Any, root: Any, *, size: int, in_place: bool = True
) -> str:
    """Return what is wrong with a call's arguments; empty if nothing is.

    Args:
        buf: the array, as the user passed it.
        op: the operation; ``ABSENT`` for a call that has none.
        algorithm: the all-reduce.
        root: the root; ``ABSENT`` for a call that has none.
        size: the number of ranks.
        in_place: whether the result is written to ``buf``.
    """
    if not isinstance(buf, np.ndarray) or isinstance(buf, np.ma.MaskedArray):
        own = ": pass its .detach().numpy(), which shares its memory"
        return f"a {type(buf).__name__} is no numpy array{own * hasattr(buf, 'detach')}"
    if not _can_be_sent(buf.dtype):
        return f"{buf.dtype} elements cannot be sent, only those of 1, 2, 4, 8 or 16 plain bytes"
    if op is not ABSENT and not (buf.dtype.name in DTYPES and buf.dtype.isnative):
        return f"{buf.dtype.str} numbers cannot be reduced, only native {', '.join(DTYPES)}"
    if not buf.flags.forc:
        return f"the array of shape {buf.shape} and strides {buf.strides} is not contiguous"
    if in_place and not buf.flags.writeable:
        return "the array is read-only"
    if isinstance(op, np.ndarray) or isinstance(root, np.ndarray):
        return "the call works in place, on one array, but got two"
    if op is not ABSENT and not (isinstance(op, str) and op in OPS):
        return f"unknown operation {op!r}, expected one of {', '.join(OPS)}"
    if op is not ABSENT and not OPS[op].takes(buf.dtype):
        return f"{op} is for integers, got {buf.dtype}"
    if root is not ABSENT and not _is_below(size, root):
        return f"root {root} is not a rank from 0 to {size - 1}"
    if not (isinstance(algorithm, str) and algorithm in ALL_REDUCES):
        return f"unknown algorithm {algorithm!r}, expected one of {', '.join(ALL_REDUCES)}"
    if algorithm == LIBRARY and not library_reduces(buf.dtype):
        return f"MPI has no reduction for {buf.dtype}; take another algorithm"
    return ""


def fault_of_blocks(buf: AnyArray, out: Any, *, size: int) -> str:
    """Return what is wrong with the arrays of an all-to-all; empty if nothing is.

    Args:
        buf: the array of blocks to send, otherwise valid.
        out: the array to receive into, as the user passed it; None for ``buf`` itself.
        size: the number of ranks, and of blocks.
    """
    if buf.size % size:
        return f"an array of {buf.size} elements is not {size} equal blocks, one for each rank"
    if not buf.flags.c_contiguous:
        return f"the blocks of an array of shape {buf.shape} stored columns first are scattered"
    if out is None:
        return ""
    wrong = fault_of(out, ABSENT, AUTO, ABSENT, size=size)
    if wrong:
        return f"out: {wrong}"
    if (out.size, out.dtype) != (buf.size, buf.dtype) or not out.flags.c_contiguous:
        return (
            f"out has {out.size} elements {out.dtype}, expected {buf.size} elements {buf.dtype}, "
            "rows first, as in the array to send"
        )
    return "out shares memory with the array to send" if np.may_share_memory(buf, out) else ""


def fault_of_message(
    buf: AnyArray, peer: Any, tag: Any, *, size: int, tags: int, sends: bool
) -> str:
    """Return what is wrong with the arguments of a message; empty if nothing is.

    Args:
        buf: the array, as the user passed it.
        peer: the other rank; None for any, where a message is received.
        tag: of the message.
        size: the number of ranks.
        tags: the number of tags.
        sends: whether the array is sent, and so only read.
    """
    wrong = fault_of(buf, ABSENT, AUTO, ABSENT, size=size, in_place=not sends)
    if wrong:
        return wrong
    if (peer is not None or sends) and not _is_below(size, peer):
        return f"{peer} is not a rank from 0 to {size - 1}"
    return "" if _is_below(tags, tag) else f"tag {tag} is not a number from 0 to {tags - 1}"


def fault_of_group(ranks: Sequence[Any], *, rank: int, size: int) -> str:
    """Return what is wrong with the ranks of a group; empty if nothing is.

    Args:
        ranks: the ranks, as the user passed them.
        rank: this rank.
        size: the number of ranks of the communicator.
    """
    wrong = next((it for it in ranks if not _is_below(size, it)), None)
    if wrong is not None:
        return f"{wrong} is not a rank from 0 to {size - 1}"
    if len(set(ranks)) < len(ranks):
        return "a rank is in it twice"
    return "" if rank in ranks else "only its members make it, and this rank is none"


def _is_below(end: int, number: Any) -> bool:
    return isinstance(number, int | np.integer) and bool(0 <= number < end)


def kind_and_lengths(
    shape: int | tuple[int, ...], dtype: npt.DTypeLike
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the element type and shape of a new array.

    Raises:
        TypeError, ValueError: if the array cannot be made, or cannot be sent.
    """
    kind = np.dtype(dtype)
    lengths = tuple(operator.index(n) for n in (shape if isinstance(shape, tuple) else (shape,)))
    if not _can_be_sent(kind) or min(lengths, default=0) < 0:
        raise ValueError(f"no array of {kind} and shape {shape} can be reduced or sent")
    return kind, lengths


def _can_be_sent(kind: np.dtype[Any]) -> bool:
    return kind.itemsize in (1, 2, 4, 8, 16) and not kind.hasobject


def overlap(one: AnyArray, other: object) -> bool:
    """Return whether two arrays share memory; non-contiguous ones are refused elsewhere."""
    return isinstance(other, np.ndarray) and np.may_share_memory(one, other)


def stored(buf: AnyArray) -> AnyArray:
    """Return the elements of a contiguous array in memory order, without a copy."""
    plain = np.asarray(buf)  # a subclass may redefine reshape
    return (plain if plain.flags.c_contiguous else plain.T).reshape(-1)
