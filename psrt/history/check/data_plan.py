"""How the samples of every epoch are cut into the steps of the workers, written down here anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from psrt.history.check.table import Bools, Floats, Ints
from psrt.history.header import MOST


@dataclass(frozen=True)
class Epochs:
    """Epochs that are all cut alike: global batches of B samples of each of M workers.

    The last global batch may be smaller; what is left is then shared evenly, and where that does
    not divide, the first workers get one more. Where samples are dealt out to the workers, whoever
    has most takes steps of at most B, and the others spread theirs evenly over as many.
    """

    #: Samples of an epoch, and of a worker's full batch.
    samples: int
    batch_size: int
    #: The numbers of the M workers, ascending, and that of all in the job.
    members: tuple[int, ...]
    workers: int
    #: By worker of the job, the number of its own samples; empty where all are cut for all.
    dealt: tuple[int, ...] = ()

    @cached_property
    def own(self) -> Ints:
        """By worker, the number of its samples where they are dealt out, what others left too."""
        own, left = np.array(self.dealt), np.ones(self.workers, bool)
        left[list(self.members)] = False
        for samples in own[left]:
            share, more = divmod(int(samples), len(self.members))
            own[list(self.members)] += share + (np.arange(len(self.members)) < more)
        own[left] = 0
        return own

    @cached_property
    def steps(self) -> int:
        """Steps of an epoch."""
        if self.dealt:
            return -(-int(self.own.max()) // self.batch_size)
        return -(-self.samples // (self.batch_size * len(self.members)))

    def batch(self, step: Ints, worker: Ints) -> Ints:
        """Return the number of samples of a worker's step of an epoch; 0 for who is no member."""
        place = np.full(self.workers, -1)
        place[list(self.members)] = np.arange(len(self.members))
        if self.dealt:
            own, shift = self.own[worker], worker * self.steps // self.workers
            found = ((step + 1) * own + shift) // self.steps - (step * own + shift) // self.steps
        else:
            left = self.samples - (self.steps - 1) * self.batch_size * len(self.members)
            share, more = divmod(left, len(self.members))
            last = step == self.steps - 1
            found = np.where(last, share + (place[worker] < more), self.batch_size)
        return np.where(place[worker] >= 0, found, 0)


class DataPlan:
    """All epochs. The clock of a step alone says where in the data it is.

    So backups that are overtaken leave out the batches of the clocks that they leave out.
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        workers: int,
        dealt: tuple[int, ...] = (),
        left_out: Sequence[tuple[int, tuple[int, ...]]] = (),
    ) -> None:
        """Cut.

        Args:
            samples: of an epoch.
            batch_size: samples of a worker's full batch.
            workers: W.
            dealt: by worker, the number of its own samples; empty where all are cut for all.
            left_out: the workers that have died by then, from an epoch on, each time; ascending.
        """
        self._kinds: list[Epochs] = []
        firsts, clocks = [0], [0]
        for epoch, gone in ((0, ()), *left_out):
            if self._kinds:
                clocks.append(clocks[-1] + (epoch - firsts[-1]) * self._kinds[-1].steps)
                firsts.append(epoch)
            members = tuple(it for it in range(workers) if it not in gone)
            self._kinds.append(Epochs(samples, batch_size, members, workers, dealt))
        #: By kind of epoch, the first one, the clock that it begins at, and its steps.
        self._firsts, self._clocks = np.array(firsts), np.array(clocks)
        self._steps = np.array([it.steps for it in self._kinds])

    def _place(self, clock: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the kind of the epoch that a step is of, the epoch, and its step there."""
        # The last kind that begins there: one that no epoch was of begins where the next one does.
        kind = np.searchsorted(self._clocks, clock, side="right") - 1
        epoch, step = np.divmod(clock - self._clocks[kind], self._steps[kind])
        return kind, self._firsts[kind] + epoch, step

    def progress(self, clock: Ints) -> Floats:
        """Return where a step begins, in epochs."""
        kind, epoch, step = self._place(clock)
        found: Floats = epoch + step * (1.0 / self._steps[kind])
        return found

    def begins_epoch(self, clock: Ints) -> Bools:
        """Return whether a step is the first one of its epoch."""
        found: Bools = self._place(clock)[2] == 0
        return found

    def epochs(self, clock: Ints) -> Ints:
        """Return the number of epochs that are over after that many steps."""
        return self._place(clock)[1]

    def batch(self, clock: Ints, worker: Ints) -> Ints:
        """Return the number of samples of a worker's step."""
        kind, _, step = self._place(clock)
        found = np.zeros(len(clock), np.int64)
        for number, epochs in enumerate(self._kinds):
            its = kind == number
            found[its] = epochs.batch(step[its], worker[its])
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
        # The first clock whose step would begin at the end or after it; which of two it is where
        # a fraction of an epoch ends on a step is a matter of rounding.
        clock = begin + max(0, math.ceil(due - 1e-6))
        begins = float(self.progress(np.array([clock]))[0])
        return clock + (begins < epochs)
