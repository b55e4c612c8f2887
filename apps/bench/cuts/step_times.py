"""What the parts of a step take, turn by turn with the ways to compute it.

The first rank has each part to itself; but layers are timed by all ranks at once, too: two cores
that share memory and a clock are slower than one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from cuts.chain import FixedChain
from cuts.cut_scheme import LR
from cuts.layer_times import LayerTimes, PassCosts
from cuts.prediction import Predictor
from psrt.bench.race import Readings, Run
from psrt.core.arrays import ITEMSIZE
from psrt.optim import OPTIMIZERS, Schedule
from psrt.optim.table import Always
from psrt.runtime.updater import Contribution, Updater

#: Elements that are copied to see how fast that is: more than caches hold.
_COPIED = 4 << 20


class StepTimes:
    """Layers in products of all rows and of few, the former on all ranks, an update, a copy."""

    #: Layers by the first rank, and by all ranks at once.
    ALONE, AT_ONCE = "layers, all rows", "layers, all rows, on all ranks"
    #: Of its ``runs``, on ranks that have none, too.
    NAMES = (ALONE, AT_ONCE, "layers, micro-batches", "update", "copy")

    def __init__(
        self,
        problem: FixedChain,
        *,
        micro_batches: int,
        optimizer: str = "sgd",
        **state: float,
    ) -> None:
        """Reserve the memory.

        Args:
            problem: the model and a batch.
            micro_batches: parts of a batch.
            optimizer: that updates the parameters.
            state: its knobs.
        """
        self._problem, self._theta = problem, problem.initial()
        own: Any = problem.layers(), problem.loss, problem.batch, self._theta
        self._whole = LayerTimes(*own, micro_batches=1)
        self._small = LayerTimes(*own, micro_batches=micro_batches)
        self._at_once = LayerTimes(*own, micro_batches=1)
        n = self._theta.size
        self._gradient = np.ones(n, np.float32)
        made = replace(OPTIMIZERS[optimizer], **state).make(n)
        self._updater = Updater(n, made, Schedule(Always(), LR, epochs=1.0))
        self._from, self._to = np.ones(_COPIED, np.float32), np.zeros(_COPIED, np.float32)
        #: Seconds of one update and of one copy, turn by turn.
        self._updates: list[float] = []
        self._copies: list[float] = []

    @property
    def runs(self) -> dict[str, Run]:
        """What takes turns."""
        layers = (self._whole.run, self._at_once.run, self._small.run)
        moves = (self._timed(self._update, self._updates), self._timed(self._copy, self._copies))
        return dict(zip(self.NAMES, (*layers, *moves), strict=True))

    def _timed(self, call: Callable[[], None], turns: list[float]) -> Run:
        def run(steps: int) -> float:
            start = perf_counter()
            for _ in range(steps):
                call()
            seconds = perf_counter() - start
            turns.append(seconds / steps)
            return seconds

        return run

    def _update(self) -> None:
        term = Contribution(self._gradient, 1.0)
        self._updater.apply(self._theta, [term], self._theta, progress=0.0)

    def _copy(self) -> None:
        np.copyto(self._to, self._from)

    @property
    def layers(self) -> PassCosts:
        """What layers cost so far."""
        rows = self._problem.rows
        return PassCosts(self._whole.costs(), self._small.costs(), self._small.rows, rows)

    def predictor(self, found: Readings[str]) -> Predictor:
        """Return by what steps of this model are predicted.

        Args:
            found: the race, in which all ranks had their turns.
        """
        slower = found.ratio(self.AT_ONCE, self.ALONE)
        assert slower is not None, "they have all rounds in common"
        return Predictor(
            self._problem.model.sizes,
            self._problem.rows,
            self.layers,
            slower.median,
            update_rate=ITEMSIZE * self._theta.size / median(self._updates),
            copy_rate=ITEMSIZE * _COPIED / median(self._copies),
        )
