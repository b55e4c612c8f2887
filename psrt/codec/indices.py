"""The indices of sent elements: ascending, in the shortest of three forms, or none.

=====  =========================================================================
form   bytes of k of n indices
=====  =========================================================================
0      4·k: each as it is
1      one to five per index: its distance from the one before, minus one, seven
       bits per byte, the lowest first; the highest bit says that more follow
2      ⌈n/8⌉: a bit for each element, the first one in the lowest bit
3      0: all n values follow, including zeros; used where that is shorter than
       k values and indices, which with a bitmap is from 31/32 of n on
=====  =========================================================================

The switch to a dense vector is that of Renggli et al., "SparCML: High-Performance Sparse
Communication for Machine Learning", SC 2019, arXiv:1802.08021. With indices of 32 bits they switch
at half of n.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from psrt.codec.fields import Field, FieldReader, elements
from psrt.core.arrays import Bytes
from psrt.core.errors import CodecError

#: Ascending positions in a vector.
Indices = npt.NDArray[np.int64]
AS_THEY_ARE, GAPS, BITMAP, DENSE = range(4)
#: The smallest gaps of two, three, four and five bytes.
_LIMITS = [1 << 7, 1 << 14, 1 << 21, 1 << 28]


def gap_bytes(gaps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bytes of each gap."""
    found, longest = np.ones(gaps.size, np.int64), int(gaps.max(initial=0))
    for limit in _LIMITS:
        if longest >= limit:
            found += gaps >= limit
    return found


def pack_indices(indices: Indices, n: int, out: Bytes) -> tuple[int, int]:
    """Write indices in their shortest form; return the form and its bytes; ``DENSE`` needs none.

    Args:
        indices: (k,) ascending, below n.
        n: elements of the vector.
        out: long enough: 4·k bytes.

    >>> out = np.empty(16, np.uint8)
    >>> pack_indices(np.array([3, 4, 1000, 1001]), 10**6, out), out[:5].tolist()
    ((1, 5), [3, 0, 227, 7, 0])
    """
    # From k = n/8 on a bitmap is the shortest form. Below, even at a byte per index, DENSE is not.
    if 4 * indices.size + min(indices.size, -(-n // 8)) > 4 * n:
        return DENSE, 0
    gaps = indices - 1
    gaps[1:] -= indices[:-1]
    gaps[:1] += 1
    lengths = gap_bytes(gaps)
    sizes = [4 * indices.size, int(lengths.sum()), -(-n // 8)]
    form = sizes.index(min(sizes))
    into = out[: sizes[form]]
    if form == AS_THEY_ARE:
        into.view("<u4")[:] = indices
    elif form == BITMAP:
        chosen = np.zeros(n, np.bool_)
        chosen[indices] = True
        into[:] = np.packbits(chosen, bitorder="little")
    else:
        places = np.cumsum(lengths) - lengths
        while gaps.size:
            more = gaps > 0x7F
            into[places] = gaps & 0x7F | more.astype(np.int64) << 7
            left = more.nonzero()[0]
            gaps, places = gaps[left] >> 7, places[left] + 1
    return form, sizes[form]


def unpack_indices(form: int, packed: Bytes, k: int, n: int) -> Indices:
    """Return k indices.

    Raises:
        CodecError: if they are not ascending indices below n in that form.
    """
    if form == AS_THEY_ARE:
        _need(packed.size == 4 * k, "4 bytes an index")
        found = packed.view("<u4").astype(np.int64)
        _need(k == 0 or bool((np.diff(found) > 0).all()), "ascending indices")
    elif form == GAPS:
        found = _of_gaps(packed, k)
    elif form == BITMAP:
        _need(packed.size == -(-n // 8), "a bit for each element")
        found = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
    else:
        raise CodecError(f"indices in form {form}, expected 0 to 2")
    _need(found.size == k and (k == 0 or int(found[-1]) < n), f"{k} indices below {n}")
    return found


def _of_gaps(packed: Bytes, k: int) -> Indices:
    ends = np.flatnonzero(packed < 0x80)
    _need(ends.size == k and (k == 0 or int(ends[-1]) == packed.size - 1), f"{k} gaps")
    _need(k > 0 or packed.size == 0, "no gaps")
    if k == 0:
        return np.zeros(0, np.int64)
    lengths = ends.copy()
    lengths[1:] -= ends[:-1]
    lengths[0] += 1
    _need(int(lengths.max()) <= 5, "at most 5 bytes a gap")
    gaps = np.take(packed, ends, mode="clip").astype(np.int64)
    # The last byte is the highest: earlier bytes are shifted in below it, one by one.
    more, at = np.flatnonzero(lengths > 1), 1
    while more.size:
        gaps[more] = gaps[more] << 7 | packed[ends[more] - at] & 0x7F
        at += 1
        more = more[lengths[more] > at]
    gaps[1:] += 1
    return np.cumsum(gaps, out=gaps)


def _need(holds: bool, expected: str) -> None:
    if not holds:
        raise CodecError(f"indices that are damaged, expected {expected}")


def index_fields(reader: FieldReader, form: int, indices: Sequence[int], n: int) -> Iterator[Field]:
    """Yield the parts of packed indices, for people.

    Args:
        reader: of a frame, up to them.
        form: of the indices.
        indices: the indices.
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
