"""Indices of the elements that are sent: ascending, in the shortest of three forms, or no indices.

=====  =========================================================================
form   bytes of k indices below n
=====  =========================================================================
0      4·k: each index as a uint32
1      one to five per index: its distance from the previous one, minus one, as a
       variable-length integer: seven bits per byte, the lowest bits first; the
       highest bit of a byte says that another byte follows
2      ⌈n/8⌉: a bitmap, one bit per element, the first element in the lowest bit
3      0: dense, all n values are sent, zeros included; used where that is shorter
       than k values and their indices, which with a bitmap is above 31/32 of n
=====  =========================================================================

The switch to a dense vector follows Renggli et al., "SparCML: High-Performance Sparse Communication
for Machine Learning", SC 2019, arXiv:1802.08021, where it is at n/2 as indices have 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from psrt.codec.fields import Field, FieldReader, elements
from psrt.core.arrays import Bytes
from psrt.core.errors import CodecError

#: (k,) positions in a vector, ascending.
Indices = npt.NDArray[np.int64]
AS_THEY_ARE, GAPS, BITMAP, DENSE = range(4)
#: The smallest gaps that take two, three, four and five bytes: 7 bits of payload per byte.
_LIMITS = [1 << 7, 1 << 14, 1 << 21, 1 << 28]


def gap_bytes(gaps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many bytes each gap takes, 1 to 5."""
    # Most vectors have no gap above 2**14, so passes for longer ones are skipped.
    found, longest = np.ones(gaps.size, np.int64), int(gaps.max(initial=0))
    for limit in _LIMITS:
        if longest >= limit:
            found += gaps >= limit
    return found


def pack_indices(indices: Indices, n: int, out: Bytes) -> tuple[int, int]:
    """Write indices in their shortest form; return the form and its bytes, 0 for ``DENSE``.

    Args:
        indices: (k,) ascending, below n.
        n: elements of the vector.
        out: at least 4·k bytes, so that every form that may be chosen fits.

    >>> out = np.empty(16, np.uint8)
    >>> pack_indices(np.array([3, 4, 1000, 1001]), 10**6, out), out[:5].tolist()
    ((1, 5), [3, 0, 227, 7, 0])
    """
    # k values and their indices take at least 4k + min(k, ⌈n/8⌉) bytes, a byte per gap or a bitmap.
    # Only a k close to n makes that more than 4n, and there the bitmap is the shortest form: so the
    # lower bound is the exact length, and the test needs no gaps.
    if 4 * indices.size + min(indices.size, -(-n // 8)) > 4 * n:
        return DENSE, 0
    # Ascending indices differ by at least 1, so a gap is the difference minus 1. The first gap
    # counts from element -1, which makes it the first index itself.
    gaps = indices - 1
    gaps[1:] -= indices[:-1]
    gaps[:1] += 1
    lengths = gap_bytes(gaps)
    sizes = [4 * indices.size, int(lengths.sum()), -(-n // 8)]
    form = sizes.index(min(sizes))  # of equal lengths the first form
    into = out[: sizes[form]]
    if form == AS_THEY_ARE:
        into.view("<u4")[:] = indices
    elif form == BITMAP:
        chosen = np.zeros(n, np.bool_)
        chosen[indices] = True
        into[:] = np.packbits(chosen, bitorder="little")
    else:
        # Pass j writes byte j of all gaps that have one; places are where each gap's next byte
        # belongs. There are at most five passes, however many gaps there are.
        places = np.cumsum(lengths) - lengths
        while gaps.size:
            more = gaps > 0x7F
            into[places] = gaps & 0x7F | more.astype(np.int64) << 7
            left = more.nonzero()[0]
            gaps, places = gaps[left] >> 7, places[left] + 1
    return form, sizes[form]


def unpack_indices(form: int, packed: Bytes, k: int, n: int) -> Indices:
    """Return the k indices that ``pack_indices`` wrote, after checking all of them.

    Raises:
        CodecError: if the bytes are not k ascending indices below n in that form.
    """
    if form == AS_THEY_ARE:
        _need(packed.size == 4 * k, "4 bytes per index")
        found = packed.view("<u4").astype(np.int64)
        _need(k == 0 or bool((np.diff(found) > 0).all()), "ascending indices")
    elif form == GAPS:
        found = _of_gaps(packed, k)
    elif form == BITMAP:
        _need(packed.size == -(-n // 8), "a bit per element")
        found = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
    else:
        raise CodecError(f"indices in form {form}, expected 0 to 2")
    # Every form yields ascending indices here, so the last one is the largest. Callers index
    # with them and rely on this check: it is what catches damaged bytes of valid length.
    _need(found.size == k and (k == 0 or int(found[-1]) < n), f"{k} indices below {n}")
    return found


def _of_gaps(packed: Bytes, k: int) -> Indices:
    # A gap ends at a byte whose highest bit is 0. There must be k of these, and none after the
    # last: then the bytes divide into exactly k gaps.
    ends = np.flatnonzero(packed < 0x80)
    _need(ends.size == k and (k == 0 or int(ends[-1]) == packed.size - 1), f"{k} gaps")
    _need(k > 0 or packed.size == 0, "no gaps")
    if k == 0:
        return np.zeros(0, np.int64)
    lengths = ends.copy()
    lengths[1:] -= ends[:-1]
    lengths[0] += 1
    # Five bytes carry 35 bits, enough for any gap of a uint32. A longer run of bytes is damage,
    # and shifting it together could overflow an int64 into an index that seems valid.
    _need(int(lengths.max()) <= 5, "at most 5 bytes per gap")
    gaps = np.take(packed, ends, mode="clip").astype(np.int64)
    # The last byte holds the highest bits: the bytes before it are appended below, last to first.
    more, at = np.flatnonzero(lengths > 1), 1
    while more.size:
        gaps[more] = gaps[more] << 7 | packed[ends[more] - at] & 0x7F
        at += 1
        more = more[lengths[more] > at]
    gaps[1:] += 1  # all but the first: see ``pack_indices``
    return np.cumsum(gaps, out=gaps)


def _need(holds: bool, expected: str) -> None:
    if not holds:
        raise CodecError(f"damaged indices, expected {expected}")


def index_fields(reader: FieldReader, form: int, indices: Sequence[int], n: int) -> Iterator[Field]:
    """Yield the fields of packed indices, for display.

    Args:
        reader: of a frame, positioned at the indices.
        form: of the indices.
        indices: the unpacked ones.
        n: elements of the vector.
    """
    if form == AS_THEY_ARE:
        for _ in indices:
            yield reader.whole(4, "index")
    elif form == GAPS:
        last = -1
        for i in indices:
            size = 1
            while reader.data[reader.at // 8 + size - 1] & 0x80:
                size += 1
            yield reader.take([1, 7] * size, f"{i - last - 1} between [{last}] and [{i}]")
            last = i
    else:
        for at in range(0, n, 8):
            yield reader.take([1] * 8, f"which of {elements(at // 8, 8, n)}, the first one last")
