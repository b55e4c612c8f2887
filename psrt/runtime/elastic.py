"""The elastic force: a worker and the centre are pulled together by the same α(x − x̃).

Both sides compute it from the same numbers by the same operations, so it has the same bits on both:
what a worker loses the centre gains, except for the rounding of the two sums.

Source: Zhang, Choromanska & LeCun, NeurIPS 2015 (arXiv:1412.6651).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from psrt.core.arrays import Vector
from psrt.optim import Schedule
from psrt.optim.table import Always, Sgd
from psrt.runtime.conserved import signed_sum
from psrt.runtime.updater import Contribution, Updater


def force(x: Vector, centre: Vector, alpha: np.float32, out: Vector) -> Vector:
    """Write α(x − x̃) to ``out``, and return it.

    >>> force(np.array([3], np.float32), np.array([1], np.float32), np.float32(0.25), np.zeros(1))
    array([0.5])
    """
    np.subtract(x, centre, out=out)
    return np.multiply(out, alpha, out=out)


class ForceSums(NamedTuple):
    """What an update did, for the history: signed sums of vectors, and digests."""

    #: By term, the digest and the sum of its force, in the order of summation; in a merge also the
    #: norm and the weight of its vector.
    forces: Sequence[tuple[int, float] | tuple[int, float, float, float]]
    #: Digests of the centre that it moved, and of the one that the last update made; 0 for the
    #: latter at the first update.
    before: int
    made: int
    #: Of the centre after minus the centre before.
    moved: float
    #: The bound of the rounding, from norms.
    most: float
    #: Of what a merge has made of its terms the sum and the norm, and the norm of what it moved by.
    total: float = 0.0
    norm: float = math.nan
    length: float = 0.0


class Drawn(NamedTuple):
    """What the force did to a worker's span of a shard: digests, and sums with signs."""

    #: Digests of the force, and of the centre that made it.
    force: int
    centre: int
    #: Of the force, of x_i − x̃, and of the worker's parameters after minus those before.
    drew: float
    apart: float
    moved: float
    #: Bounds of the parameters after it and of the force, from norms.
    most: float
    most_drew: float


class CentreUpdater(Updater):
    """Moves the centre: x̃ ← x̃ + Σ α(x_i − x̃), summed in the order of the terms."""

    saved = ("_made",)

    def __init__(self, n: int, alpha: float, *, differences: bool = False) -> None:
        """Set up.

        Args:
            n: elements of the centre.
            alpha: β/W.
            differences: whether a term has x_i − x̃, with x̃ as its worker sees it, rather than
                x_i; a term with ``read`` has x_i − ``read``.
        """
        super().__init__(n, Sgd().make(n), Schedule(Always(), 1.0, epochs=1.0))
        self._alpha = np.float32(alpha)
        self._differences = differences
        self.lr = alpha
        #: Whether to keep ``sums``, and those of the last update.
        self.watches = False
        self.sums = ForceSums((), 0, 0, 0.0, 0.0)
        self._made = 0

    def step(self, theta: Vector, gradient: Vector, out: Vector, progress: float) -> None:
        """Apply the force of a single worker."""
        self.apply(theta, [Contribution(gradient)], out, progress=progress)

    def apply(
        self, theta: Vector, terms: Sequence[Contribution], out: Vector, *, progress: float
    ) -> None:
        """Write the next centre into ``out``, which may be ``theta``.

        Args:
            theta: (n,) the centre.
            terms: the workers' pushes, at least one.
            out: (n,) the next centre.
            progress: not used: α is constant.
        """
        old, new = self._blocks(theta), self._blocks(out)
        given = [self._blocks(term.vector) for term in terms]
        crcs, totals = [0] * len(terms), [0.0] * len(terms)
        before, after, moved, most = 0, 0, 0.0, 0.0
        for i, span in enumerate(self._spans):
            total, drawn = self._sum[: span.size], self._term[: span.size]
            was, partial = old[i].copy() if self.watches else old[i], 0.0
            for k, term in enumerate(terms):
                into = drawn if k else total
                read = None if term.read is None else span.of(term.read)
                self._force(given[k][i], read, was, into)
                if self.watches:
                    crcs[k] = zlib.crc32(into.data, crcs[k])
                    drew, norm = signed_sum(into)
                    totals[k] += drew
                    partial += (len(terms) - 1) * norm  # bounds each of the additions
                if k:
                    np.add(total, drawn, out=total)
            self._move(was, total, new[i])
            if self.watches:
                before, after = zlib.crc32(was.data, before), zlib.crc32(new[i].data, after)
                moved += signed_sum(np.subtract(new[i], was, dtype=np.float64))[0]
                most += math.sqrt(span.size) * (signed_sum(new[i])[1] + partial)
        if self.watches:
            forces = [(crc & _DIGEST, total) for crc, total in zip(crcs, totals, strict=True)]
            self.sums = ForceSums(forces, before & _DIGEST, self._made, moved, most)
            self._made = after & _DIGEST

    def _move(self, centre: Vector, total: Vector, out: Vector) -> None:
        np.add(centre, total, out=out)

    def _force(self, given: Vector, read: Vector | None, centre: Vector, out: Vector) -> None:
        if read is not None:
            force(np.add(read, given, out=out), centre, self._alpha, out)
        elif self._differences:
            np.multiply(given, self._alpha, out=out)
        else:
            force(given, centre, self._alpha, out)


_DIGEST = 0x7FFFFFFF
