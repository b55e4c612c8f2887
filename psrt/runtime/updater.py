"""Makes the next parameters out of the last ones and some gradients, block by block.

The one place where an update is computed: a server does it on its span, a rank without servers
and a serial run on the whole vector, so they agree to the bit. Everything is element-wise, so
the cut into shards and blocks does not show in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from psrt.arrays import Vector
from psrt.optim import BLOCK, Optimizer, Schedule, StalenessRate
from psrt.partition import Span, block_spans


class Contribution(NamedTuple):
    """One term of the weighted sum that an update makes its step of."""

    #: (n,) the gradient; read only.
    vector: Vector
    #: Its weight in the sum, all scalar factors included.
    weight: float = 1.0
    #: (n,) the parameters it was computed on, where the staleness rate asks for them.
    read: Vector | None = None


class Updater:
    """An optimizer with its schedule over a vector of n elements, and room for the sums."""

    def __init__(
        self,
        n: int,
        optimizer: Optimizer,
        schedule: Schedule,
        *,
        rate: StalenessRate | None = None,
    ) -> None:
        """Set up.

        Args:
            n: elements of the vectors.
            optimizer: turns the sum into a step.
            schedule: gives the learning rate.
            rate: an element-wise staleness rate; it is applied to each gradient by itself.
        """
        self.optimizer = optimizer
        self._schedule = schedule
        self._rate = rate
        #: Of the newest update.
        self.lr = 0.0
        self._spans = block_spans(n, BLOCK)
        self._sum = np.empty(min(n, BLOCK), np.float32)
        self._term = np.empty(min(n, BLOCK), np.float32)
        self._before = np.empty(0 if rate is None else min(n, BLOCK), np.float32)
        #: Views of vectors that were met before, by identity; each entry holds them alive.
        self._views: dict[int, tuple[Vector, list[Vector]]] = {}

    def apply(
        self,
        theta: Vector,
        terms: Sequence[Contribution],
        out: Vector,
        *,
        progress: float,
        ready: Callable[[int], None] | None = None,
    ) -> None:
        """Write into ``out`` what one step from ``theta`` leads to; they may be the same.

        Args:
            theta: (n,) the last parameters.
            terms: what the step is made of, at least one, summed in this order.
            out: (n,) the next parameters.
            progress: where training stands, in epochs.
            ready: called with the number of elements that are there, as they come to be.
        """
        # Adding nothing to nothing and multiplying with 1 would give the same bits, one pass later.
        if len(terms) == 1 and terms[0].weight == 1.0 and self._rate is None:
            self.step(theta, terms[0].vector, out, progress, ready)
            return
        optimizer = self.optimizer
        self.lr = lr = self._schedule.rate(progress)
        optimizer.begin(lr)
        old, new = self._blocks(theta), self._blocks(out)
        blocks = [(term, self._blocks(term.vector)) for term in terms]
        # Block by block through sum, rate, optimizer: each finds its operands in the cache. Nothing
        # may depend on how many blocks of this update were done before (see ``GapAware.observe``).
        for i, span in enumerate(self._spans):
            total = self._weighted_sum(i, span, old[i], blocks)
            before = self._before[: span.size]
            if self._rate is not None:
                np.copyto(before, old[i])  # ``new`` may be ``old``
            optimizer.update(span, old[i], total, new[i])
            if self._rate is not None:
                self._rate.observe(span, before, new[i], lr)
            if ready is not None:
                ready(span.stop)

    def begin(self, progress: float) -> None:
        """Begin an update that comes in blocks; ``progress`` is where training stands, in epochs.

        Only without a staleness rate.
        """
        assert self._rate is None, "a staleness rate is of whole gradients"
        self.lr = self._schedule.rate(progress)
        self.optimizer.begin(self.lr)

    def block(self, span: Span, theta: Vector, gradient: Vector, out: Vector) -> None:
        """Update one block, in any order with the others and each once.

        Every optimizer is element-wise, so ranks that each do some of the blocks come to the bits
        of one that does them all; of the optimizer's state only the part of its own blocks is
        ever touched by a rank, and memory that is not touched is not there.

        Args:
            span: of the vector, at most ``BLOCK`` elements.
            theta: its last parameters.
            gradient: its gradient; not written.
            out: its next parameters; may be ``theta``.
        """
        self.optimizer.update(span, theta, gradient, out)

    def step(
        self,
        theta: Vector,
        gradient: Vector,
        out: Vector,
        progress: float,
        ready: Callable[[int], None] | None = None,
    ) -> None:
        """Do what ``apply`` does with one term of weight 1."""
        optimizer = self.optimizer
        # ``begin`` once an update, whatever the number of blocks: Adam's bias is of updates.
        self.lr = lr = self._schedule.rate(progress)
        optimizer.begin(lr)
        if len(self._spans) == 1:
            optimizer.update(self._spans[0], theta, gradient, out)
            return
        old, given, new = self._blocks(theta), self._blocks(gradient), self._blocks(out)
        for i, span in enumerate(self._spans):
            optimizer.update(span, old[i], given[i], new[i])
            if ready is not None:
                ready(span.stop)

    def accumulate(self, total: Vector, term: Contribution, theta: Vector) -> None:
        """Add ``term`` to the (n,) vector ``total``, as it is due at parameters ``theta``."""
        into, old, given = self._blocks(total), self._blocks(theta), self._blocks(term.vector)
        for i, span in enumerate(self._spans):
            into[i] += self._weighted(i, span, old[i], term, given, self._term)

    def _weighted_sum(
        self, i: int, span: Span, old: Vector, blocks: list[tuple[Contribution, list[Vector]]]
    ) -> Vector:
        (first, given), *rest = blocks
        # One multiplication for all where they weigh alike, as full batches do. The order of
        # summation is that of the terms in both ways, and so the same on every shard.
        if rest and self._rate is None and all(term.weight == first.weight for term, _ in rest):
            return self._sum_times(first.weight, [vectors[i] for _, vectors in blocks])
        # ``total`` may be the gradient itself, which is only read: sums go into ``_sum``, never
        # into the memory of the first term, which is its worker's.
        total = self._weighted(i, span, old, first, given, self._sum)
        for term, vectors in rest:
            weighted = self._weighted(i, span, old, term, vectors, self._term)
            total = np.add(total, weighted, out=self._sum[: span.size])
        return total

    def _sum_times(self, weight: float, given: list[Vector]) -> Vector:
        """Return the sum of at least two blocks, times the weight that they share."""
        first, second, *rest = given
        total = np.add(first, second, out=self._sum[: first.size])
        for vector in rest:
            np.add(total, vector, out=total)
        return np.multiply(total, np.float32(weight), out=total)

    def _weighted(
        self,
        i: int,
        span: Span,
        old: Vector,
        term: Contribution,
        given: list[Vector],
        scratch: Vector,
    ) -> Vector:
        """Return the block times its weight: the block itself where that changes nothing."""
        block = given[i]
        room = scratch[: span.size]
        if self._rate is not None and term.read is not None:
            self._rate.block(span, block, old, term.read[span.start : span.stop], room)
            block = room
        # To the bit the same as multiplying, and the gradient is read once, by the optimizer.
        if term.weight == 1.0:
            return block
        return np.multiply(block, np.float32(term.weight), out=room)

    def _blocks(self, vector: Vector) -> list[Vector]:
        # The entry holds its vector alive, so an id cannot come to mean another one.
        known = self._views.get(id(vector))
        if known is not None:
            return known[1]
        # A bound, for callers that make a new view at every call.
        if len(self._views) >= 256:
            self._views.clear()
        views = [span.of(vector) for span in self._spans]
        self._views[id(vector)] = (vector, views)
        return views
