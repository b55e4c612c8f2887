"""How long is trained."""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Length:
    """The length of training: epochs or steps per worker, whichever ends first."""

    #: Passes over the training data; part of one counts if a problem's batches have a length.
    epochs: float = math.inf
    #: Gradient steps per worker.
    steps: float = math.inf

    def reached(self, clock: float, progress: float) -> bool:
        """Return whether no step is left after that many steps and epochs."""
        return progress >= self.epochs or clock >= self.steps

    @property
    def ends_within(self) -> bool:
        """Whether the last epoch is to be a part of one."""
        return self.epochs < math.inf and self.epochs % 1 > 0

    def passed(self, clock: float, epochs: int, batches: int, share: float) -> bool:
        """Return whether the end lies before the newest step.

        Args:
            clock: steps taken.
            epochs: finished.
            batches: of the next epoch that were taken.
            share: of an epoch that a batch is, 0 where nobody knows; of the last one where none of
                the next was taken.

        >>> [Length(epochs=2).passed(90, *at, 0.02) for at in ((1, 45), (2, 0), (2, 1), (3, 0))]
        [False, False, True, True]
        >>> [Length(epochs=1.9).passed(9, *at, 0.25) for at in ((1, 4), (2, 0), (2, 1), (3, 0))]
        [False, False, True, True]
        """
        if not batches:
            epochs, batches = epochs - 1, round(1 / share) if share else 1
        # As the worker reckons before each batch, to the bit.
        return clock > self.steps or epochs + (batches - 1) * share >= self.epochs


def share_of(batches: object) -> float:
    """Return the share of an epoch that a batch is; 0 where nobody knows how many there are.

    >>> share_of([1, 2, 3, 4]), share_of(iter([1]))
    (0.25, 0.0)
    """
    return 1.0 / len(batches) if isinstance(batches, Sized) and len(batches) else 0.0


class EpochEnds:
    """Says after which update an epoch is over, to who sees updates and no batches.

    >>> ends = EpochEnds()
    >>> [ends.after(clock, (clock - 1) / 4) for clock in range(1, 9)]
    [False, False, False, True, False, False, False, True]
    """

    def __init__(self, clock: int = 0) -> None:
        """Begin an epoch, after that many steps."""
        #: The first step of an epoch, or the newest one; how many epochs there were before it, nan
        #: where the next update says so; and the share of one that a step is: 0 until there were
        #: two, since nobody says how many steps there are.
        self._clock, self._progress, self._share = clock + 1, math.nan, 0.0

    def after(self, clock: int, progress: float) -> bool:
        """Take an update; return whether its last step is the last of an epoch.

        Args:
            clock: steps of a worker so far.
            progress: epochs before the last of them.
        """
        epoch, steps = math.floor(progress), clock - self._clock
        before = epoch if math.isnan(self._progress) else self._progress
        if steps:
            self._share = (progress - before) / steps
        is_last = epoch + 1 - progress < 1.5 * self._share
        self._clock, self._progress = (clock + 1, epoch + 1) if is_last else (clock, progress)
        return is_last
