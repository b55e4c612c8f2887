"""Rounds of a run that tries values of a knob: they are timed, and all workers change together.

A worker's time of a trial travels as control values of a set of its own, beside the sum that is due
anyway; so it delays nothing, and all workers know the mean of all at the end of the same round.

**Owners.** Where the workers of a host share the update, each keeps the optimizer's state of the
elements that it owns, and other buckets would give them other owners. So during trials every worker
updates every element, which takes some longer, but as long with any buckets. Then each has all of
the state, whatever it owns from the choice on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span, block_spans
from psrt.optim import BLOCK
from psrt.runtime.strategies.base import Step
from psrt.runtime.strategies.controls import ControlSum
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.weakly import weakly
from psrt.sync.tuning import Tuner
from psrt.transport.port import Port, Reduction, Take, gradient_of


class TunedReducer(Reducer):
    """One worker's part in rounds that a tuner follows."""

    saved = ("tuner",)

    def __init__(
        self,
        port: Port,
        *args: Any,
        tuner: Tuner,
        cut: Callable[[int], Sequence[Span]] | None = None,
        one_theta: bool = False,
        **more: Any,
    ) -> None:
        """Make the plans of the first trial; collective.

        Args:
            port: with a second set of control values.
            args: of a ``Reducer``.
            tuner: has the value of each round.
            cut: returns the buckets with a value; None where that is not about buckets.
            one_theta: as of a ``Reducer``, from the choice on.
            more: of a ``Reducer``.
        """
        self.tuner, self._cut, self._shares_theta = tuner, cut, one_theta
        #: What the plans are made for: the value, and whether it is tried.
        self._made = tuner.value, tuner.is_trying
        #: When the last round ended; None if that was not seen.
        self._ended: float | None = None
        is_last = one_theta and not tuner.is_trying
        super().__init__(port, *args, one_theta=is_last, **more)
        self._medians = ControlSum(port, self.control_algorithm, number=1)

    def _sums_of(self, buckets: Sequence[Span]) -> list[Reduction]:
        """Make the plans: of a trial without owners."""
        if self._cut is None or not self._made[1]:
            return super()._sums_of(buckets)
        return [SumForAll(self._port, span, self.chosen, weakly(self._take)) for span in buckets]

    def start(self, weight: float, step: Step, *, present: bool = True) -> None:
        """Begin a round, with the buckets that are next; collective where these are others."""
        now = self.tuner.value, self.tuner.is_trying
        if self._cut is not None and now != self._made:
            self._made = now
            if self._shares_theta and not self.tuner.is_trying and not self._alone:
                self._port.share_theta(self.chosen)
                self._theta = self._base = self._port.theta
            self._buckets = self._sums_of(self._cut(now[0]))
            self._taken.clear()
        self._beside = self._medians if self.tuner.asks else None
        if self._beside is not None:
            mine = self.tuner.median if present else 0.0
            self._beside.begin(mine, present=present, progress=0.0)
        super().start(weight, step, present=present)

    async def finish(self, *, empty: bool = False) -> bool:
        """Wait for the round as a ``Reducer``, and note what it took."""
        training = await super().finish(empty=empty)
        now, before = self._port.now(), self._ended
        self._ended = now
        if training:
            of_all, medians = 0.0, self._beside
            if medians is not None:
                # As float32, as which a history keeps it: a replay then chooses by the same number.
                of_all = float(np.float32((medians.total or 0.0) / max(medians.present, 1.0)))
            took = None if before is None else (now - before) / self._brought[0].steps
            self.tuner.passed(took, of_all)
        return training


def reducer_for(
    tuner: Tuner | None, cut: Callable[[int], Sequence[Span]] | None = None
) -> Callable[..., Reducer]:
    """Return what makes a ``Reducer``, or one that a tuner follows; see ``TunedReducer``."""
    return Reducer if tuner is None else partial(TunedReducer, tuner=tuner, cut=cut)


class SumForAll(Reduction):
    """A sum after which every worker updates all of its elements."""

    def __init__(self, port: Port, span: Span, algorithm: str, take: Take) -> None:
        """Make the plan; collective."""
        self._sum = port.reduction(span, algorithm, None)
        self._take = take
        # Without numerics there are none.
        blocks = block_spans(span.size, BLOCK) if port.theta.size else ()
        vector = gradient_of(port)
        self._blocks: list[tuple[Span, Vector]] = []
        for start, stop in blocks:
            block = Span(span.start + start, span.start + stop)
            self._blocks.append((block, block.of(vector)))
        self._is_over = True

    def begin(self) -> None:
        """Start the sum."""
        self._is_over = False
        self._sum.begin()

    def poll(self) -> bool:
        """Progress without waiting; once the sums are there, update."""
        if not self._is_over and self._sum.poll():
            self._is_over = True
            for block, sums in self._blocks:
                self._take(block, sums)
        return self._is_over

    async def finish(self) -> None:
        """Wait for the sums, and update."""
        await self._sum.finish()
        self.poll()
