"""The strategy of gossip with gradient tracking, for workers with non-IID data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import block_spans
from psrt.history.events import TRACKED
from psrt.optim import BLOCK
from psrt.runtime.strategies.base import Step
from psrt.runtime.strategies.gossip import Gossip
from psrt.runtime.updater import Contribution


class Tracking(Gossip):
    """Steps along y_i, which tracks the mean gradient of all workers, instead of G_i.

    y_i ← Σ_j M_ij y_j + G_i − G_i,before, from 0 on, so that Σy is ΣG at every step. Where the mean
    gradient is zero, y is, and workers whose own gradients are not stay there; by their own ones
    they would not at a constant rate.

    Combine-then-adapt takes θ_i ← opt(Σ_j M_ij θ_j, y_i): DIGing. Adapt-then-combine takes
    θ_i ← Σ_j M_ij opt(θ_j, y_j): NEXT. (Aug-DGM steps along what y is after mixing, which takes
    two messages a round.) θ and y travel as one vector, [θ; y].

    A step without samples has no gradient: G_i stays what it was, and no optimizer step is taken.
    What is clipped is G_i, not y.

    Sources: Nedić, Olshevsky & Shi, "Achieving Geometric Convergence for Distributed Optimization
    over Time-Varying Graphs", SIAM J. Optim. 27(4), 2017 (arXiv:1607.03218); Di Lorenzo & Scutari,
    "NEXT: In-Network Nonconvex Optimization", IEEE Trans. Signal Inf. Process. Netw. 2(2), 2016
    (arXiv:1602.00591); Xu, Zhu, Soh & Xie, "Augmented Distributed Gradient Methods for Multi-Agent
    Optimization under Uncoordinated Constant Stepsizes", CDC 2015.
    """

    saved = by_element = ("_tracked", "_own")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Set up; see ``Gossip``."""
        super().__init__(*args, **kwargs)
        n = self._theta.size
        #: [θ; y], with y = 0: what is mixed. θ is where it is mixed, so that it need not be copied.
        self._theta = np.concatenate([self._theta, np.zeros_like(self._theta)])
        self._parameters, self._tracked = self._theta[:n], self._theta[n:]
        self._port.theta = self._parameters
        #: G_i of the last step with samples; 0 before any.
        self._own = np.zeros_like(self._parameters)
        self._own_blocks, self._blocks = block_spans(n, BLOCK), block_spans(2 * n, BLOCK)
        self._scratch = np.empty(min(2 * n, BLOCK), np.float32)

    @property
    def held(self) -> tuple[Vector, float]:
        """θ, which all workers bring with the same weight."""
        return self._parameters, 1.0

    def _adapt(self, step: Step) -> None:
        """Track the gradient of a step, and take an optimizer step along what is tracked."""
        if step.samples:
            self._track()
        if (events := self._events) is not None:
            now, y, own = self._port.now(), events.content(self._tracked), events.content(self._own)
            events.note((events.tracked, now, step.clock, y, own))
        if step.samples:
            term = Contribution(self._tracked)
            parameters = self._parameters
            self._updater.apply(parameters, [term], parameters, progress=step.progress)

    def _track(self) -> None:
        """Add G_i − G_i,before to y_i, and keep G_i."""
        for span in self._own_blocks:
            gradient, own = span.of(self._gradient), span.of(self._own)
            # The difference by itself: near an optimum it is small, and so is its rounding.
            np.subtract(gradient, own, out=own)
            tracked = span.of(self._tracked)
            np.add(tracked, own, out=tracked)
            np.copyto(own, gradient)

    def _vectors(self, whole: Vector) -> Sequence[tuple[Vector, int]]:
        n = self._own.size
        return ((whole[:n], 0), (whole[n:], TRACKED))
