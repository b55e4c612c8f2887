"""How the mean of a fragment is used in streaming local SGD: mixed averages, or eager steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from psrt.optim import BLOCK
from psrt.runtime.strategies.fragment import Block
from psrt.runtime.updater import Updater
from psrt.transport.port import Port, gradient_of


class OuterRule(Protocol):
    """What a fragment brings to the sum, and what becomes of the mean."""

    #: Turns means into the next parameters.
    updater: Updater

    def bring(self, blocks: Sequence[Block], weight: float) -> None:
        """Write this worker's numbers, weighted, to where they are summed; 0 without a weight."""
        ...

    def take(self, blocks: Sequence[Block], scale: float, *, newer: bool) -> None:
        """Take the sums, or the means, where a codec has divided.

        Args:
            blocks: of the fragment.
            scale: what makes means of them, 1 over the total weight.
            newer: whether this worker has made steps since it sent the fragment.
        """
        ...


class MixedAverages:
    """θ_f ← outer(θ_f, θ_f − mean θ_i,f), the same for all; then θ_i,f ← A·θ_i,f + (1 − A)·θ_f.

    Without a step since the fragment was sent there is nothing newer to keep, and θ_i,f ← θ_f.

    Source: Douillard et al. 2025, arXiv:2501.18512.
    """

    saved = ("updater", "_base")
    by_element = ("_base",)

    def __init__(self, port: Port, updater: Updater, mixing: float) -> None:
        """Set up.

        Args:
            port: holds the parameters that all workers start from.
            updater: makes the next θ_f out of the last one and the mean of the θ_i,f.
            mixing: A, in [0, 1).
        """
        self.updater = updater
        self._theta, self._wire = port.theta, gradient_of(port)
        #: θ_f of each fragment as of its last mean, equal to the bit on all workers.
        self._base = port.theta.copy()
        self._kept, self._taken = np.float32(mixing), np.float32(1 - mixing)
        self._part = np.empty(min(BLOCK, port.theta.size), np.float32)

    def bring(self, blocks: Sequence[Block], weight: float) -> None:
        """Write the parameters, weighted."""
        factor = np.float32(weight)
        for at, there in blocks:
            if weight:
                np.multiply(at.of(self._theta), factor, out=there.of(self._wire))
            else:
                there.of(self._wire)[:] = 0.0

    def take(self, blocks: Sequence[Block], scale: float, *, newer: bool) -> None:
        """Step towards the mean, and mix it in."""
        factor = np.float32(scale)
        for at, there in blocks:
            mean, base, theta = there.of(self._wire), at.of(self._base), at.of(self._theta)
            if factor != 1.0:
                np.multiply(mean, factor, out=mean)
            self.updater.block(at, base, mean, base)
            if newer and self._kept:
                np.multiply(theta, self._kept, out=theta)
                part = np.multiply(base, self._taken, out=self._part[: base.size])
                np.add(theta, part, out=theta)
            else:
                np.copyto(theta, base)


class MixedDifferences(MixedAverages):
    """The same by differences, for codecs: θ_f ← outer(θ_f, mean Δ_i,f) with Δ_i,f = θ_f − θ_i,f.

    What a frame loses of a difference is a part of what has changed; of θ_i,f it would be a part
    of the parameters.
    """

    def bring(self, blocks: Sequence[Block], weight: float) -> None:
        """Write the differences, weighted."""
        super().bring(blocks, weight)
        factor = np.float32(weight)
        for at, there in blocks if weight else ():
            wire = np.subtract(at.of(self._base), at.of(self._theta), out=there.of(self._wire))
            np.multiply(wire, factor, out=wire)


class EagerSteps:
    """Each worker's own outer step, at once, with its own Δ_i and the others' of the period before.

    Worker i, whose local steps of period t went from θ_i to θ_i − Δ_i,t, steps from θ_i along
    Δ_i,t/W + (mean Δ_{t−1} − Δ_i,{t−1}/W). Where weights are not equal, the share 1/W of its own
    Δ_i is made right a period later, with the others'. Parameters and the outer optimizer's state
    differ between workers until the end: there each takes what is left of the others' part, and
    then the mean of all workers' parameters.

    Source: Kale, Douillard & Donchev, "Eager Updates for Overlapped Communication and Computation
    in DiLoCo", 2025, arXiv:2502.12996.
    """

    def __init__(self, port: Port, updater: Updater) -> None:
        """Set up.

        Args:
            port: holds the parameters that all workers start from.
            updater: steps along a given direction.
        """
        self.updater = updater
        self._theta, self._wire = port.theta, gradient_of(port)
        #: θ_i as of this worker's last outer step of each fragment.
        self._base = port.theta.copy()
        #: Δ_i/W while a fragment is in flight, then mean Δ − Δ_i/W, the others' part.
        self._rest = np.zeros_like(self._base)
        self._share = np.float32(1.0 / len(port.role_map.workers))
        self._delta, self._step = np.empty((2, min(BLOCK, port.theta.size)), np.float32)

    def bring(self, blocks: Sequence[Block], weight: float) -> None:
        """Write Δ_i, weighted, and take the outer step."""
        factor = np.float32(weight)
        self.updater.begin(0.0)  # an outer rate is constant
        for at, there in blocks:
            theta, base, rest = (at.of(it) for it in (self._theta, self._base, self._rest))
            delta = np.subtract(base, theta, out=self._delta[: theta.size])
            np.multiply(delta, factor, out=there.of(self._wire))
            np.multiply(delta, self._share, out=delta)
            step = np.add(delta, rest, out=self._step[: theta.size])
            np.copyto(rest, delta)
            self.updater.block(at, base, step, base)
            np.copyto(theta, base)

    def take(self, blocks: Sequence[Block], scale: float, *, newer: bool) -> None:
        """Keep the others' part for the next step."""
        factor = np.float32(scale)
        for at, there in blocks:
            mean, rest = there.of(self._wire), at.of(self._rest)
            np.multiply(mean, factor, out=mean)
            np.subtract(mean, rest, out=rest)

    def settle(self, blocks: Sequence[Block]) -> None:
        """Step along what is left of the others' part, and write the parameters to be summed."""
        self.updater.begin(0.0)
        for at, there in blocks:
            base = at.of(self._base)
            self.updater.block(at, base, at.of(self._rest), base)
            np.copyto(there.of(self._wire), base)

    def take_settled(self, blocks: Sequence[Block]) -> None:
        """Take the mean of all workers' parameters, each with the same weight."""
        for at, there in blocks:
            np.multiply(there.of(self._wire), self._share, out=at.of(self._theta))
