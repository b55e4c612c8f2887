"""Sums by which a history shows that nothing is lost. Pure: arrays in, numbers out.

With error feedback p = v + e is sent as C(p), and e becomes p − C(p): what was given and what was
kept back before add up to what is decoded and what is kept back now, but for rounding. A history
cannot hold the vectors; a sum over the elements of each is a number, and the same must hold of
those. The elements have signs in it, drawn once for all: gradients have parts that sum to zero
whatever they are, such as that of a softmax's bias, and by signs that know nothing of the vector
any change of it shows but by a rare chance.

**How close.** Each of the n elements of p, and each of the new e, is rounded once to float32, by
u = 2⁻²⁴ of its magnitude at most. As |p| ≤ |C(p)| + |e| the sums differ by less than
u·Σ(|C(p)| + 2|e|), and Σ|x| ≤ √n·‖x‖, which is cheaper to have. An element of e that is scaled
and subnormal then is rounded by as much as the smallest normal number, by u of that. The sums are
in double precision: of these roundings nothing is left.

**Averages.** By the same sums x_i + Σ_j M_ij (x_j − x_i) shows: the sum over its elements is that
of x_i and M_ij times those of the differences. With k neighbours each element has k differences, k
products, k factors and k sums that are rounded once, by u of a number that is no larger than
|x_i| + Σ_j M_ij (|x_i| + |x_j|): by (k + 3)·u·√n (2‖x_i‖ + Σ_j M_ij ‖x_j‖) in all, but for what u²
adds. Summed as Σ_j M_ij x_j it is no further off.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from psrt.core.arrays import AnyVector, Vector
from psrt.runtime.checksum import digest

#: Above it is no float32; infinite sums say nothing.
_LARGEST = float(np.finfo(np.float32).max)
#: Below it numbers are rounded by no less than it is.
_SMALLEST = float(np.finfo(np.float32).tiny)
#: Elements that are summed at a time: their copies in double precision stay in the cache, and they
#: are too few for BLAS to share them out to threads, which are slow to meet where cores are busy.
_BLOCK = 1 << 13
_SIGNS = np.unpackbits(np.random.PCG64(_BLOCK).random_raw(_BLOCK // 64).view(np.uint8)) * 2.0 - 1.0


class Conserved(NamedTuple):
    """What becomes of one vector: sums over its elements, with signs."""

    #: Of what was given, what it decodes to, and what is kept back now.
    given: float = 0.0
    decoded: float = 0.0
    kept: float = 0.0
    #: At least Σ(|decoded| + 2·|kept|), without signs, and the smallest normal number of each.
    most: float = 0.0


class Content(NamedTuple):
    """What a history holds of a vector that is averaged."""

    #: 31 bits of its CRC-32.
    digest: int = 0
    #: The sum of its elements, with signs, and the root of their mean square.
    total: float = 0.0
    rms: float = 0.0


def content_of(vector: Vector) -> Content:
    """Return what a history holds of a vector (n,); infinite what a float32 does not hold."""
    with np.errstate(all="ignore"):
        total, norm = signed_sum(vector)
    return Content(digest(vector), *map(_within, (total, norm / math.sqrt(max(1, vector.size)))))


def conserved(given: Vector, decoded: Vector, kept: Vector) -> Conserved:
    """Return the sums of vectors (n,) each; infinite where a float32 does not hold them."""
    with np.errstate(all="ignore"):
        (sent, sent_norm), (left, left_norm) = signed_sum(decoded), signed_sum(kept)
        most = math.sqrt(given.size) * (sent_norm + 2 * left_norm) + given.size * _SMALLEST
        found = signed_sum(given)[0], sent, left, most
    return Conserved(*map(_within, found))


def _within(number: float) -> float:
    """Return a number, infinity for what is beyond a float32 or none at all."""
    return number if abs(number) <= _LARGEST else math.inf


def signed_sum(vector: AnyVector) -> tuple[float, float]:
    """Return the sum with signs, the same for each block, and the l2 norm.

    >>> total, norm = signed_sum(np.array([3, 0, 4], np.float32))
    >>> abs(total), norm
    (1.0, 5.0)
    """
    total, squares = 0.0, 0.0
    scratch = np.empty(min(_BLOCK, vector.size))
    for start in range(0, vector.size, _BLOCK):
        part = vector[start : start + _BLOCK]
        block = scratch[: part.size]
        np.copyto(block, part)
        total += float(np.dot(block, _SIGNS[: part.size]))
        squares += float(np.dot(block, block))
    return total, math.sqrt(squares)
