"""The place of each step in the data, and its number of samples, by the plans of ``psrt.data``.

Those plans split an epoch into steps. When an epoch ends and how the next one begins, with fewer
workers if some have died, is derived independently here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np

from psrt.data import BatchPlan, Deal
from psrt.history.check.table import Bools, Floats, Ints
from psrt.history.header import MOST


class _Epochs:
    """Epochs that are split in the same way, among the same live workers."""

    def __init__(
        self, samples: int, batch_size: int, left: Sequence[int], workers: int, deal: Deal | None
    ) -> None:
        self._deal = None if deal is None else deal.among(left)
        plan = BatchPlan(samples, batch_size=batch_size, workers=len(left), seed=0)
        #: Steps of an epoch.
        self.steps = plan.steps_per_epoch if self._deal is None else self._deal.steps
        #: By worker, the samples of any step except the last, and of the last; 0 if it has left.
        self._full, self._last = np.zeros((2, workers), np.int64)
        self._full[list(left)] = batch_size
        self._last[list(left)] = [
            plan.share(plan.steps_per_epoch - 1, place).size for place in range(len(left))
        ]

    def batch(self, step: Ints, worker: Ints) -> Ints:
        """Return the number of samples of a worker's step of an epoch."""
        if self._deal is not None:
            found: Ints = self._deal.seen(step + 1, worker) - self._deal.seen(step, worker)
            return found
        return np.where(step == self.steps - 1, self._last[worker], self._full[worker])


class DataPlan:
    """All epochs. The clock of a step determines its place in the data.

    So a worker that a round did not wait for skips the batches of the clocks that it skips.
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        workers: int,
        dealt: tuple[int, ...] = (),
        left_out: Sequence[tuple[int, tuple[int, ...]]] = (),
    ) -> None:
        """Split the data into steps.

        Args:
            samples: of an epoch.
            batch_size: samples of a worker's full batch.
            workers: W.
            dealt: by worker, the number of its own samples; empty if all share all samples.
            left_out: pairs of an epoch and the workers that have died by then; ascending.
        """
        deal = Deal.sized([(own, 0) for own in dealt], batch_size) if dealt else None
        self._kinds: list[_Epochs] = []
        firsts, clocks = [0], [0]
        for epoch, gone in ((0, ()), *left_out):
            if self._kinds:
                clocks.append(clocks[-1] + (epoch - firsts[-1]) * self._kinds[-1].steps)
                firsts.append(epoch)
            members = tuple(it for it in range(workers) if it not in gone)
            self._kinds.append(_Epochs(samples, batch_size, members, workers, deal))
        self._first_worker = 0  #: the worker that batch counts from: of sets another
        #: By kind of epoch: the first epoch, the clock at which it begins, and its steps.
        self._firsts, self._clocks = np.array(firsts), np.array(clocks)
        self._steps = np.array([it.steps for it in self._kinds])

    def of(self, first: int) -> DataPlan:
        """Return the plan of some of the workers, which are counted from the first of them."""
        found = copy.copy(self)
        found._first_worker = first
        return found

    def _place(self, clock: Ints) -> tuple[Ints, Ints, Ints]:
        """Return a step's kind of epoch, its epoch, and its number within the epoch."""
        # The last kind that begins there: a kind without epochs begins where the next one does.
        kind = np.searchsorted(self._clocks, clock, side="right") - 1
        epoch, step = np.divmod(clock - self._clocks[kind], self._steps[kind])
        return kind, self._firsts[kind] + epoch, step

    def progress(self, clock: Ints) -> Floats:
        """Return the progress at which a step begins, in epochs."""
        kind, epoch, step = self._place(clock)
        found: Floats = epoch + step * (1.0 / self._steps[kind])
        return found

    def begins_epoch(self, clock: Ints) -> Bools:
        """Return whether a step is the first of its epoch."""
        found: Bools = self._place(clock)[2] == 0
        return found

    def epochs(self, clock: Ints) -> Ints:
        """Return the number of complete epochs after that many steps."""
        return self._place(clock)[1]

    def batch(self, clock: Ints, worker: Ints) -> Ints:
        """Return the number of samples of a worker's step."""
        kind, _, step = self._place(clock)
        found = np.zeros(len(clock), np.int64)
        for number, epochs in enumerate(self._kinds):
            its = kind == number
            found[its] = epochs.batch(step[its], worker[its] + self._first_worker)
        return found

    def steps_until(self, epochs: float) -> float:
        """Return the number of steps that begin before this many epochs are over."""
        if math.isinf(epochs):
            return epochs
        kind = int(np.searchsorted(self._firsts, epochs, side="right")) - 1
        begin, steps = int(self._clocks[kind]), int(self._steps[kind])
        due = (epochs - int(self._firsts[kind])) * steps
        if begin + due > MOST:
            return math.inf  # no run gets there
        # The first clock whose step would begin at the end or after it. Where a fraction of an
        # epoch ends on a step, rounding decides between two of them.
        clock = begin + max(0, math.ceil(due - 1e-6))
        begins = float(self.progress(np.array([clock]))[0])
        return clock + (begins < epochs)
