"""The distance of the workers' parameters, from a few thousand numbers of each. Pure.

The distance of N vectors of n elements, the root mean square of ‖θ_i − mean‖/√n, would need a sum
of all vectors: a barrier, even in modes that have none, and as many bytes as an all-reduce. Instead
each worker sends its *sketch* S θ_i to rank 0 when it reaches the clock; workers that have departed
are just missing. S is linear and the same for all, so the sketches are as far apart as the vectors.

**Accuracy.** Up to ``SIZE`` elements the sketch is the vector. Above, each element is added, with a
random sign, to one number of the sketch. The squared distance is then right on average, with a
relative standard deviation of at most √(2/SIZE), for the distance itself 1.1 %; if N workers differ
independently, √(N − 1) times less. The place of an element is drawn at random row by row, so two
elements collide with probability 1/``SIZE``, whatever the shapes of the layers.

Source: M. Charikar, K. Chen and M. Farach-Colton, "Finding frequent items in data streams", ICALP
2002; for distances M. Thorup and Y. Zhang, SIAM Journal on Computing 41(2), 2012.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from psrt.core.arrays import Vector

#: The most numbers of a sketch.
SIZE = 4096
#: Signs that rows begin to read at a place drawn at random; each row has one of its own besides, so
#: that of two rows that read the same ones nothing shows.
_SIGNS = 1.0 - 2.0 * np.unpackbits(np.random.PCG64(SIZE).random_raw(1 << 10).view(np.uint8))
_SIGNS = _SIGNS.astype(np.float32)
_PLACES = _SIGNS.size - SIZE


def sketch(theta: Vector) -> NDArray[np.float64]:
    """Return the sketch of a vector, divided by √n: (min(n, SIZE),) float64.

    Args:
        theta: (n,), n ≥ 1.

    >>> sketch(np.array([1, 2, 3, 4], np.float32)).tolist()
    [0.5, 1.0, 1.5, 2.0]
    """
    n = theta.size
    if n <= SIZE:
        return np.divide(theta, math.sqrt(n), dtype=np.float64)
    # Raw numbers of a bit generator are the same in every version of numpy.
    raw = np.random.PCG64(n).random_raw(-(-n // SIZE))
    draws = zip(raw % SIZE, (raw >> 16) % _PLACES, raw >> 63, strict=True)
    found = np.zeros(SIZE)
    for start, (shift, place, is_minus) in zip(range(0, n, SIZE), draws, strict=True):
        row = theta[start : start + SIZE]
        row = row * _SIGNS[place : place + row.size]
        add, cut = np.subtract if is_minus else np.add, SIZE - int(shift)
        for part, out in ((row[:cut], found[shift:]), (row[cut:], found)):
            add(out[: part.size], part, out=out[: part.size])
    return found / math.sqrt(n)


def distance(sketches: Sequence[NDArray[np.float64]]) -> float | None:
    """Return the distance of the sketched vectors; None for fewer than two.

    >>> distance([sketch(np.full(9, x, np.float32)) for x in (1, 3)])
    1.0
    """
    if len(sketches) < 2:
        return None
    # Relative to the first one, so that the distance of equal ones is exactly 0.
    apart = np.stack(sketches) - sketches[0]
    apart -= apart.mean(axis=0)
    return math.sqrt(float(np.vdot(apart, apart)) / len(sketches))
