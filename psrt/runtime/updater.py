"""Computes the next parameters from the last ones and a sum of gradients, block by block.

The one place where an update is computed: a server does it on its span, a rank without servers
and a serial run on the whole vector, so they agree to the bit. Everything is element-wise, so
the split into shards and blocks does not show in the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span, block_spans
from psrt.optim import BLOCK, Optimizer, StalenessRate
from psrt.optim.merge import Merge
from psrt.optim.schedule import LearningRate


class Contribution(NamedTuple):
    """One term of the weighted sum of gradients in an update."""

    #: (n,) the gradient; read only.
    vector: Vector
    #: Its weight in the sum, all scalar factors included.
    weight: float = 1.0
    #: (n,) the parameters it was computed on, if the staleness rate needs them.
    read: Vector | None = None


class Updater:
    """An optimizer with its schedule over a vector of n elements, and scratch for the sums."""

    saved: tuple[str, ...] = ("optimizer", "lr")  # the rate is its shard's, too

    def __init__(
        self,
        n: int,
        optimizer: Optimizer,
        schedule: LearningRate,
        *,
        rate: StalenessRate | None = None,
        merge: Merge | None = None,
    ) -> None:
        """Set up.

        Args:
            n: elements of the vectors.
            optimizer: turns the sum into a step.
            schedule: gives the learning rate.
            rate: an element-wise staleness rate, applied to each gradient before the sum.
            merge: takes the place of the sum if there are several terms; None sums.
        """
        self.optimizer = optimizer
        self._schedule = schedule
        self._rate = rate
        self._merge = merge
        self._merged = np.empty(0 if merge is None else n, np.float32)
        #: Learning rate of the newest update.
        self.lr = 0.0
        self._spans = block_spans(n, BLOCK)
        self._sum = np.empty(min(n, BLOCK), np.float32)
        self._term = np.empty(min(n, BLOCK), np.float32)
        self._before = np.empty(0 if rate is None else min(n, BLOCK), np.float32)
        #: Block views of the vectors seen so far, by identity; each entry keeps its vector alive.
        self._views: dict[int, tuple[Vector, list[Vector]]] = {}

    def apply(
        self,
        theta: Vector,
        terms: Sequence[Contribution],
        out: Vector,
        *,
        progress: float,
    ) -> None:
        """Write one step from ``theta`` into ``out``; they may be the same vector.

        Args:
            theta: (n,) the last parameters.
            terms: the terms of the gradient, at least one, summed in this order.
            out: (n,) the next parameters.
            progress: of training, in epochs.
        """
        # The general way would give the same bits with one more pass over the gradient.
        if len(terms) == 1 and terms[0].weight == 1.0 and self._rate is None:
            self.step(theta, terms[0].vector, out, progress)
            return
        optimizer = self.optimizer
        self.lr = lr = self._schedule.rate(progress)
        optimizer.begin(lr)
        old, new = self._blocks(theta), self._blocks(out)
        blocks = [(term, self._blocks(term.vector)) for term in terms]
        merged: list[Vector] | None = None
        if self._merge is not None and len(terms) > 1:
            vectors = [self._scaled(term, theta) for term in terms]
            self._merge.merge(vectors, [term.weight for term in terms], self._merged)
            merged = self._blocks(self._merged)
        # Block by block through sum, rate, optimizer: each finds its operands in the cache. Nothing
        # may depend on how many blocks of this update were done before (see ``GapAware.observe``).
        for i, span in enumerate(self._spans):
            total = merged[i] if merged else self._weighted_sum(i, span, old[i], blocks)
            before = self._before[: span.size]
            if self._rate is not None:
                np.copyto(before, old[i])  # ``new`` may be ``old``
            optimizer.update(span, old[i], total, new[i])
            if self._rate is not None:
                self._rate.observe(span, before, new[i], lr)

    def rate_at(self, progress: float) -> float:
        """Return the learning rate of an update, before it is made."""
        return self._schedule.rate(progress)

    def begin(self, progress: float) -> None:
        """Begin an update whose blocks are given to ``block``; only without a staleness rate.

        Args:
            progress: of training, in epochs.
        """
        # Once an update and not once a block: it sets the rate, and counts for Adam's bias.
        assert self._rate is None, "a staleness rate is of whole gradients"
        self.lr = self._schedule.rate(progress)
        self.optimizer.begin(self.lr)

    def block(self, span: Span, theta: Vector, gradient: Vector, out: Vector) -> None:
        """Update one block; each block once, in any order.

        Every optimizer is element-wise, so ranks that divide the blocks get the same bits as
        one that updates them all. A rank touches only its own blocks of the optimizer's state, and
        the kernel never allocates pages that are not touched.

        Args:
            span: of the vector, at most ``BLOCK`` elements.
            theta: its last parameters.
            gradient: its gradient; not written.
            out: its next parameters; may be ``theta``.
        """
        self.optimizer.update(span, theta, gradient, out)

    def step(self, theta: Vector, gradient: Vector, out: Vector, progress: float) -> None:
        """Apply a single gradient of weight 1, without a sum.

        Args:
            theta: (n,) the last parameters.
            gradient: (n,) only read.
            out: (n,) the next parameters; may be ``theta``.
            progress: of training, in epochs.
        """
        optimizer = self.optimizer
        # ``begin`` once an update, not once a block: Adam's bias correction counts updates.
        self.lr = lr = self._schedule.rate(progress)
        optimizer.begin(lr)
        if len(self._spans) == 1:
            # The common small shard: no views to look up.
            optimizer.update(self._spans[0], theta, gradient, out)
            return
        old, given, new = self._blocks(theta), self._blocks(gradient), self._blocks(out)
        for i, span in enumerate(self._spans):
            optimizer.update(span, old[i], given[i], new[i])

    def accumulate(self, total: Vector, term: Contribution, theta: Vector) -> None:
        """Add a weighted term to a running sum, for an update that is yet to come.

        Args:
            total: (n,) the sum so far.
            term: its weight and staleness rate are applied here.
            theta: (n,) the present parameters, which the staleness rate may compare.
        """
        into, old, given = self._blocks(total), self._blocks(theta), self._blocks(term.vector)
        for i, span in enumerate(self._spans):
            into[i] += self._weighted(i, span, old[i], term, given, self._term)

    def _scaled(self, term: Contribution, theta: Vector) -> Vector:
        """Return a term's vector after its staleness rate, without its weight."""
        if self._rate is None or term.read is None:
            return term.vector
        scaled = np.empty_like(term.vector)
        for span in self._spans:
            given, old, read, out = (span.of(it) for it in (term.vector, theta, term.read, scaled))
            self._rate.block(span, given, old, read, out)
        return scaled

    def _weighted_sum(
        self, i: int, span: Span, old: Vector, blocks: list[tuple[Contribution, list[Vector]]]
    ) -> Vector:
        (first, given), *rest = blocks
        # Equal weights, as of full batches, are multiplied once, after the sum. Both ways sum in
        # the order of the terms; in a round all shards have the same weights and take the same way.
        if rest and self._rate is None and all(term.weight == first.weight for term, _ in rest):
            return self._sum_times(first.weight, [vectors[i] for _, vectors in blocks])
        # ``total`` may alias the first gradient, which belongs to its worker and is only read: so
        # sums are written to ``_sum``, never in place.
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
        """Return the block times its weight and rate; the block itself if both are 1."""
        block = given[i]
        product = scratch[: span.size]
        if self._rate is not None and term.read is not None:
            self._rate.block(span, block, old, term.read[span.start : span.stop], product)
            block = product
        # The same bits as multiplying by 1, and the gradient is read only once, by the optimizer.
        if term.weight == 1.0:
            return block
        return np.multiply(block, np.float32(term.weight), out=product)

    def _blocks(self, vector: Vector) -> list[Vector]:
        # The entry keeps its vector alive, so its id cannot be reused by another one.
        known = self._views.get(id(vector))
        if known is not None:
            return known[1]
        # Bounded, for callers that pass a new view at every call.
        if len(self._views) >= 256:
            self._views.clear()
        views = [span.of(vector) for span in self._spans]
        self._views[id(vector)] = (vector, views)
        return views
