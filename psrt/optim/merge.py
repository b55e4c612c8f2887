"""One vector of what several learners have learnt, where that is not their weighted mean.

The mean is a sum, which servers and all-reduces have anyway (``runtime.updater``). These need all
vectors at once, or their norms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span, block_spans
from psrt.optim.clip import square_sum
from psrt.optim.optimizer import BLOCK

#: The length of a mean of unit vectors below which it is rounding and has no direction.
_VANISHES = 1e-6
#: A shorter vector has no direction: its inverse is beyond float32.
_SHORTEST = float(np.finfo(np.float32).tiny)


class Merge(Protocol):
    """Merges vectors of a shard."""

    def merge(self, vectors: Sequence[Vector], weights: Sequence[float], out: Vector) -> None:
        """Write the merge.

        Args:
            vectors: (n,) each, of at least one learner; only read.
            weights: of each, at least 0. They add up to 1, unless staleness has scaled some down.
            out: (n,) receives it; none of ``vectors``.
        """


class Radial:
    """Per tensor (Σ wᵢ‖xᵢ‖) · φ(Σ wᵢ φ(xᵢ)), φ(x) = x/‖x‖, φ(0) = 0.

    The mean of W orthogonal vectors is shorter than they are by √W; this is not. Where the mean
    direction vanishes, it is the mean. A tensor that is split between shards counts as one for
    each.

    >>> out = np.empty(2, np.float32)
    >>> east, north = np.array([3, 0], np.float32), np.array([0, 4], np.float32)
    >>> Radial([Span(0, 2)]).merge([east, north], [0.5, 0.5], out)
    >>> out.round(3), float(np.linalg.norm(out))
    (array([2.475, 2.475], dtype=float32), 3.5)

    Source: Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training", 2026,
    arXiv:2604.21428.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        """Set up for the tensors of a shard, which make it up."""
        self._spans = tuple(spans)

    def merge(self, vectors: Sequence[Vector], weights: Sequence[float], out: Vector) -> None:
        """Write the merge; see ``Merge``."""
        for span in self._spans:
            parts, into = [span.of(it) for it in vectors], span.of(out)
            norms = [math.sqrt(square_sum(it)) for it in parts]
            total = math.fsum(weights)
            shares = [
                w / (total * norm) if norm > _SHORTEST else 0.0
                for w, norm in zip(weights, norms, strict=True)
            ]
            _weighted_sum(parts, shares, into)
            length = math.sqrt(square_sum(into))
            if length < _VANISHES:
                _weighted_sum(parts, weights, into)
                continue
            mean = math.fsum(w * norm for w, norm in zip(weights, norms, strict=True))
            np.multiply(into, np.float32(mean / length), out=into)


class Trimmed:
    """Per element the mean without the b largest and the b smallest.

    Weights that staleness has scaled down scale vectors; all that are left count the same. Of fewer
    than 2b + 1 vectors it leaves out as many as it can.

    >>> out, given = np.empty(1, np.float32), [np.array([it], np.float32) for it in (1, 2, 900)]
    >>> Trimmed([], trim=1).merge(given, [1 / 3] * 3, out)
    >>> out
    array([2.], dtype=float32)

    Source: Yin, Chen, Ramchandran & Bartlett, ICML 2018 (arXiv:1803.01498).
    """

    def __init__(self, spans: Sequence[Span], *, trim: int) -> None:
        """Set up; ``spans`` do not matter."""
        self._trim = trim

    def merge(self, vectors: Sequence[Vector], weights: Sequence[float], out: Vector) -> None:
        """Write the merge; see ``Merge``."""
        count = len(vectors)
        trim = min(self._trim, (count - 1) // 2)
        for rows, into in _stacks(vectors, weights, out):
            if trim:
                rows.sort(axis=0)
            np.add.reduce(rows[trim : count - trim], axis=0, out=into)
            np.multiply(into, np.float32(1.0 / (count - 2 * trim)), out=into)


class Median:
    """Per element the median, of an even number the mean of the two in the middle.

    Source: Yin, Chen, Ramchandran & Bartlett, ICML 2018 (arXiv:1803.01498).
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        """Set up; ``spans`` do not matter."""

    def merge(self, vectors: Sequence[Vector], weights: Sequence[float], out: Vector) -> None:
        """Write the merge; see ``Merge``."""
        below, above = (len(vectors) - 1) // 2, len(vectors) // 2
        for rows, into in _stacks(vectors, weights, out):
            rows.sort(axis=0)
            np.add(rows[below], rows[above], out=into)
            np.multiply(into, np.float32(0.5), out=into)


def _weighted_sum(vectors: Sequence[Vector], weights: Sequence[float], out: Vector) -> None:
    out.fill(0.0)
    for vector, weight in zip(vectors, weights, strict=True):
        out += np.float32(weight) * vector


def _stacks(
    vectors: Sequence[Vector], weights: Sequence[float], out: Vector
) -> Iterator[tuple[np.ndarray[tuple[int, int], np.dtype[np.float32]], Vector]]:
    """Yield block by block the vectors, (learners, block), and the block of ``out``.

    A vector is scaled by what its weight is of that of a learner in a mean of equal ones.
    """
    rows = np.empty((len(vectors), min(BLOCK, out.size)), np.float32)
    for span in block_spans(out.size, BLOCK):
        these = rows[:, : span.size]
        for row, vector, weight in zip(these, vectors, weights, strict=True):
            np.multiply(span.of(vector), np.float32(weight * len(vectors)), out=row)
        yield these, span.of(out)
