"""Sums by which a history shows that nothing is lost. Pure: arrays in, numbers out.

With error feedback p = v + e is sent as C(p), and e becomes p − C(p). So input plus old residual
equals decoded frame plus new residual, except for rounding. A history cannot hold the vectors. A
sum over the elements of each is one number, and the same equation must hold for the sums. The sums
have random signs, drawn once for all: some gradients sum to zero by their nature, such as that of a
softmax's bias. With signs that are independent of the vector almost any change shows.

**The bound.** Each of the n elements of p, and each of the new e, is rounded once to float32, by at
most u = 2⁻²⁴ of its magnitude. As |p| ≤ |C(p)| + |e|, the sums differ by less than
u·Σ(|C(p)| + 2|e|); and Σ|x| ≤ √n·‖x‖, which is cheaper to compute. An element of e that is scaled
and then subnormal is rounded by at most u times the smallest normal number. The sums are in double
precision, whose roundings are negligible.

**Averages.** The same sums verify x_i + Σ_j M_ij (x_j − x_i): the sum over its elements is that of
x_i plus M_ij times those of the differences. With k neighbours each element has k differences, k
products, k factors and k sums, each rounded once, by u of a number that is at most
|x_i| + Σ_j M_ij (|x_i| + |x_j|). The total is (k + 3)·u·√n (2‖x_i‖ + Σ_j M_ij ‖x_j‖), up to terms
in u². Computed as Σ_j M_ij x_j it has no larger error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from psrt.core.arrays import AnyVector, Vector
from psrt.runtime.checksum import digest

#: The largest float32; larger sums are recorded as infinity, and show nothing.
_LARGEST = float(np.finfo(np.float32).max)
#: The smallest normal number: smaller ones are rounded by as much as it is.
_SMALLEST = float(np.finfo(np.float32).tiny)
#: Elements that are summed at a time: their copies in double precision stay in the cache, and they
#: are too few for BLAS to use threads, which are slow to synchronize when cores are busy.
_BLOCK = 1 << 13
_SIGNS = np.unpackbits(np.random.PCG64(_BLOCK).random_raw(_BLOCK // 64).view(np.uint8)) * 2.0 - 1.0


class Conserved(NamedTuple):
    """The signed sums of one vector's encoding."""

    #: Of the input, of the decoded frame, and of the new residual.
    given: float = 0.0
    decoded: float = 0.0
    kept: float = 0.0
    #: At least Σ(|decoded| + 2·|kept|), without signs, and the smallest normal number of each.
    most: float = 0.0


class Content(NamedTuple):
    """What a history holds of an averaged vector."""

    #: 31 bits of its CRC-32.
    digest: int = 0
    #: The sum of its elements, with signs, and the root of their mean square.
    total: float = 0.0
    rms: float = 0.0


def content_of(vector: Vector) -> Content:
    """Return what a history holds of a vector (n,); infinite if too large for a float32."""
    with np.errstate(all="ignore"):
        total, norm = signed_sum(vector)
    return Content(
        digest(vector), *map(within_float32, (total, norm / math.sqrt(max(1, vector.size))))
    )


def conserved(given: Vector, decoded: Vector, kept: Vector) -> Conserved:
    """Return the sums of vectors (n,) each; infinite if too large for a float32."""
    with np.errstate(all="ignore"):
        (sent, sent_norm), (left, left_norm) = signed_sum(decoded), signed_sum(kept)
        most = math.sqrt(given.size) * (sent_norm + 2 * left_norm) + given.size * _SMALLEST
        found = signed_sum(given)[0], sent, left, most
    return Conserved(*map(within_float32, found))


def within_float32(number: float) -> float:
    """Return a number, or infinity if it is too large for a float32 or nan."""
    return number if abs(number) <= _LARGEST else math.inf


def signed_sum(vector: AnyVector) -> tuple[float, float]:
    """Return the signed sum, with the same signs for each block, and the l2 norm.

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
