"""The strategy of gossip by push-sum, where a worker need not receive as much as it sends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from psrt.core.arrays import Vector
from psrt.runtime.strategies.base import Step
from psrt.runtime.strategies.gossip import Gossip
from psrt.runtime.strategies.neighbours import Arrived


class PushSum(Gossip):
    """Mixes x_i, and a weight w_i that begins with 1, by shares of what each worker has.

    x_i ← Σ_j P_ij x_j and w_i ← Σ_j P_ij w_j, where the shares that worker j sends and keeps add up
    to 1, so that Σx and Σw stay. Gradients are those of θ_i = x_i / w_i, and move x_i.

    Source: Assran, Loizou, Ballas & Rabbat, "Stochastic Gradient Push for Distributed Deep
    Learning", ICML 2019 (arXiv:1811.10792).
    """

    saved = ("_weight",)
    owns_theta = False  # what is mixed is x

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Set up; see ``Gossip``."""
        super().__init__(*args, **kwargs)
        #: θ_i, which gradients are computed with; what is stepped and mixed is x_i.
        self._divided, self._theta = self._theta, self._theta.copy()
        #: w_i.
        self._weight = 1.0
        self._sum = 0.0

    @property
    def held(self) -> tuple[Vector, float]:
        """x_i and w_i."""
        return self._theta, self._weight

    def go_on(self, clock: int) -> None:
        """Divide x_i by w_i, as after the last round."""
        super().go_on(clock)
        self._divide()

    def begin(self, step: Step) -> None:
        """Say that this worker takes part in the round."""
        self._neighbours.say_ready(self.updates)
        super().begin(step)

    async def _combine(self, began: float) -> float:
        neighbours, at = self._neighbours, self.updates
        await neighbours.hear_ready(at)
        heard = self._port.now()
        self._send(heard, self._weight, heard - began)
        share = np.float32(neighbours.part.own(at))
        np.multiply(self._theta, share, out=self._theta)
        self._sum = float(share) * self._weight
        await neighbours.collect(at, self._mix_in)
        self._weight = self._sum
        self._divide()
        await self._free()
        return heard - began + self._note_mixed(heard)

    def _divide(self) -> None:
        np.divide(self._theta, np.float32(self._weight), out=self._divided)

    def _note_mixed(self, began: float) -> float:
        now, events = self._port.now(), self._events
        if events is not None:
            x, divided = events.content(self._theta), events.content(self._divided)
            note = now, self.updates, x, now - began, math.nan, self._weight, divided.total
            events.note((events.mixed, *note))
        return now - began

    def _mix_in(self, arrived: Arrived) -> None:
        share = self._note_taken(arrived)
        for span in self._blocks:
            theirs, x = span.of(arrived.vector), span.of(self._theta)
            np.add(x, np.multiply(theirs, share, out=self._scratch[: theirs.size]), out=x)
        # By the rounded share, as of x: what that lets Σx drift cancels in x / w.
        self._sum += float(share) * arrived.weight
