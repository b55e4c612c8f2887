"""Small whole numbers packed into bits: 1 to 8 bits each, or five trits to a byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from psrt.core.arrays import Bytes, Vector

#: Numbers that are packed together: eight numbers of b bits fill exactly b bytes, so no number
#: of a group shares a byte with another group.
_GROUP = 8
#: A 1 in the lowest bit of every byte, of every 2 bytes, of every 4 and of every 8: times a mask,
#: it repeats that mask in all slots of that width.
_REPEATED = 0x0101010101010101, 0x0001000100010001, 0x0000000100000001, 1
#: Bits of a number → an item type by which packed groups can be copied faster than by bytes. Two
#: bits make a group of one uint16, four bits one of one uint32; other widths are copied as bytes.
_ITEMS = {2: "<u2", 4: "<u4"}
#: Trits in a byte: 3⁵ = 243 fit into 256; a sixth would not.
TRITS = 5
_POWERS = np.array([1, 3, 9, 27, 81], np.float32)
#: Packed bytes produced at a time: their 5 · 4096 float32 digits (80 KiB) stay in the cache.
_TRIT_BLOCK = 1 << 12
#: Byte → its five trits as numbers from -1 to 1. Bytes above 242 are never sent; they decode to
#: some trits as well, so that a damaged byte cannot index outside the table.
BALANCED = (np.arange(256)[:, np.newaxis] // [1, 3, 9, 27, 81] % 3 - 1).astype(np.float32)


def bits_bytes(n: int, bits: int) -> int:
    """Return how many bytes n numbers of ``bits`` bits take, rounded up."""
    return -(-n * bits // 8)


def pack_bits(numbers: Bytes, bits: int, out: Bytes) -> None:
    """Pack numbers below ``2**bits``, the first one into the lowest bits.

    >>> out = np.empty(2, np.uint8)
    >>> pack_bits(np.array([1, 2, 3], np.uint8), 4, out)
    >>> out.tolist()
    [33, 3]

    Args:
        numbers: (n,).
        bits: per number, 1 to 8.
        out: (``bits_bytes(n, bits)``,) bytes.
    """
    if bits == 8:
        out[:] = numbers
        return
    whole = numbers.size // _GROUP * _GROUP
    _pack_groups(numbers[:whole], bits, out[: whole * bits // 8])
    if whole < numbers.size:
        # The last group is padded with zeros; only the bytes that hold its numbers are copied.
        last, rest = np.zeros(_GROUP, np.uint8), np.empty(bits, np.uint8)
        last[: numbers.size - whole] = numbers[whole:]
        _pack_groups(last, bits, rest)
        given = out[whole * bits // 8 :]
        given[:] = rest[: given.size]


def _pack_groups(numbers: Bytes, bits: int, out: Bytes) -> None:
    """Pack eight numbers at a time, as the bytes of a uint64, by merging neighbours three times.

    Each number begins in a byte of its own. The first pass moves the second of every pair
    against the first, the next one does so with pairs, the last one with both halves of the
    word.
    """
    # "<" on any machine: the passes need the first number in the lowest byte.
    words = numbers.copy().view("<u8")
    other = np.empty_like(words)
    for shift, low, high in _merges(bits):
        np.right_shift(words, shift, out=other)
        np.bitwise_and(other, high, out=other)
        np.bitwise_and(words, low, out=words)
        np.bitwise_or(words, other, out=words)
    np.copyto(_rows(out, bits), _lowest(words, bits))


def _merges(bits: int) -> list[tuple[int, np.uint64, np.uint64]]:
    """Return the three passes of packing: a shift, and the masks of the lower and upper neighbour.

    In pass i, values of ``bits << i`` bits lie in slots of ``8 << i`` bits. The upper one of two
    slots moves down by the unused bits of the lower slot, ``(8 - bits) << i``, and both masks apply
    after that move. Unpacking takes the same passes in reverse order with left shifts.
    """
    found = []
    for i in range(3):
        low = ((1 << (bits << i)) - 1) * _REPEATED[i + 1]
        found.append(((8 - bits) << i, np.uint64(low), np.uint64(low << (bits << i))))
    return found


def _lowest(words: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[Any]:
    """Return a view of the lowest ``bits`` bytes of each word, which hold its eight numbers."""
    if bits in _ITEMS:
        return words.view(_ITEMS[bits])[:: _GROUP // bits]
    return words.view(np.uint8).reshape(-1, _GROUP)[:, :bits]


def _rows(packed: Bytes, bits: int) -> npt.NDArray[Any]:
    """Return a view of packed groups in the shape of ``_lowest``, to copy either way."""
    return packed.view(_ITEMS[bits]) if bits in _ITEMS else packed.reshape(-1, bits)


def unpack_bits(packed: Bytes, bits: int, out: Bytes) -> None:
    """Unpack the bytes of ``pack_bits`` into ``out``, (n,) bytes."""
    if bits == 8:
        out[:] = packed
        return
    whole = out.size // _GROUP * _GROUP
    _unpack_groups(packed[: whole * bits // 8], bits, out[:whole])
    if whole < out.size:
        rest, last = np.zeros(bits, np.uint8), np.empty(_GROUP, np.uint8)
        given = packed[whole * bits // 8 :]
        rest[: given.size] = given
        _unpack_groups(rest, bits, last)
        out[whole:] = last[: out.size - whole]


def _unpack_groups(packed: Bytes, bits: int, out: Bytes) -> None:
    # Zeros, since only the lowest bytes are overwritten and the passes move all bits of a word.
    words = np.zeros(out.size // _GROUP, "<u8")
    np.copyto(_lowest(words, bits), _rows(packed, bits))
    other = np.empty_like(words)
    for shift, low, high in reversed(_merges(bits)):
        np.bitwise_and(words, high, out=other)
        np.left_shift(other, shift, out=other)
        np.bitwise_and(words, low, out=words)
        np.bitwise_or(words, other, out=words)
    out[:] = words.view(np.uint8)


def trits_bytes(n: int) -> int:
    """Return how many bytes n trits take, rounded up."""
    return -(-n // TRITS)


def pack_trits(trits: Bytes, out: Bytes) -> None:
    """Pack numbers below 3, five to a byte, the first one as the lowest digit in base 3.

    >>> out = np.empty(2, np.uint8)
    >>> pack_trits(np.array([1, 2, 0, 0, 2, 1], np.uint8), out)
    >>> out.tolist()
    [169, 1]
    """
    whole = trits.size // TRITS
    for at in range(0, whole, _TRIT_BLOCK):
        stop = min(at + _TRIT_BLOCK, whole)
        # A matrix product is the fastest way, and exact: all its integers are below 2**24.
        digits = trits[at * TRITS : stop * TRITS].reshape(-1, TRITS).astype(np.float32)
        # OpenBLAS 0.3.31 (AVX-512) also multiplies leftovers of an earlier call in its registers
        # and discards the result: if one is a signaling NaN, numpy would warn of an invalid value.
        with np.errstate(invalid="ignore"):
            packed = digits @ _POWERS
        np.copyto(out[at:stop], packed, casting="unsafe")
    rest = trits[whole * TRITS :]
    if rest.size:
        out[whole] = rest @ _POWERS[: rest.size]


def unpack_trits(packed: Bytes, out: Vector) -> None:
    """Unpack the bytes of ``pack_trits``, minus one: numbers from -1 to 1 for any bytes."""
    whole = out.size // TRITS
    digits = out[: whole * TRITS].reshape(-1, TRITS)
    np.take(BALANCED, packed[:whole], axis=0, out=digits, mode="clip")
    if whole * TRITS < out.size:
        out[whole * TRITS :] = BALANCED[packed[whole]][: out.size - whole * TRITS]
