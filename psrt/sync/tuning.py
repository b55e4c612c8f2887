"""Which value of a knob a run uses when, if it tries several in its first rounds. Pure.

A *round* is a sum over all workers: an update of an all-reduce, or an average of local SGD. A run
takes ``ROUNDS`` rounds with each candidate, and then stays with the one that it chooses. Times come
from outside; all workers must be given the same ones, so that all change at the same round.

- The first round of a trial is not measured: buffers and plans are new.
- In the last one the workers' times travel, beside the sum that is due anyway.
- Of the others a worker takes the median: evaluating or a checkpoint may fall on one of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

#: Rounds with each candidate.
ROUNDS: Final = 8
#: Local steps between averages of the second trial: enough to tell an average from a step.
PERIOD: Final = 4
#: The first candidate, the usual value, stays if no other is better by more than this fraction.
_WORTH = 0.02
#: The largest share of a step that averages may take.
_MOST_SHARE = 0.1


class Use(NamedTuple):
    """A value that a run has used, or uses to its end."""

    #: Rounds before the first one with it.
    since: int
    value: int
    #: Mean over the workers of the seconds of a gradient step with it; None of the choice.
    seconds: float | None


class Tuner:
    """Tries candidates, each for some rounds, and chooses."""

    saved = ("_own", "_rounds", "_seconds")

    def __init__(
        self,
        values: Sequence[int],
        choose: Callable[[Sequence[int], Sequence[float]], int],
        recorded: Sequence[Use] = (),
    ) -> None:
        """Start with the first candidate.

        Args:
            values: the candidates, at least one; a single one is chosen at once.
            choose: returns the choice by the candidates and their seconds.
            recorded: what a run has used that this one repeats, without measuring.
        """
        self._values, self._choose = tuple(values), choose
        #: Seconds of each candidate that the run repeats.
        self._given = [it.seconds for it in recorded if it.seconds is not None]
        #: Rounds so far, up to the choice.
        self._rounds = 0
        #: Of this trial, the seconds of each measured round here.
        self._own: list[float] = []
        #: Of each trial that is over, the mean of all workers.
        self._seconds: list[float] = []

    @property
    def is_trying(self) -> bool:
        """Whether it has yet to choose."""
        return len(self._seconds) < len(self._values) > 1

    @property
    def value(self) -> int:
        """The value of the next round."""
        if self.is_trying:
            return self._values[len(self._seconds)]
        return self._choose(self._values, self._seconds) if self._seconds else self._values[0]

    @property
    def asks(self) -> bool:
        """Whether the workers' times must be known after the next round, and are not."""
        is_last = self._rounds % ROUNDS == ROUNDS - 1
        return self.is_trying and is_last and len(self._seconds) >= len(self._given)

    @property
    def median(self) -> float:
        """Seconds of this worker's rounds of the trial; 0 if it has measured none."""
        return statistics.median(self._own) if self._own else 0.0

    def passed(self, seconds: float | None, of_all: float) -> None:
        """Note that a round is over; nothing changes once it has chosen.

        Args:
            seconds: of a gradient step of it, at this worker; None if it is not known.
            of_all: the mean of all workers' medians, where ``asks`` was true before the round.
        """
        if not self.is_trying:
            return
        asked, place = self.asks, self._rounds % ROUNDS
        self._rounds += 1
        if seconds is not None and 0 < place < ROUNDS - 1:
            self._own.append(seconds)
        if place == ROUNDS - 1:
            self._seconds.append(of_all if asked else self._given[len(self._seconds)])
            self._own.clear()

    @property
    def uses(self) -> tuple[Use, ...]:
        """What was tried, as far as it was measured, and then the choice, if it is made."""
        both = zip(self._values, self._seconds, strict=False)
        found = [Use(i * ROUNDS, value, it) for i, (value, it) in enumerate(both)]
        if found and not self.is_trying:
            found.append(Use(len(found) * ROUNDS, self.value, None))
        return tuple(found)


def fastest(values: Sequence[int], seconds: Sequence[float]) -> int:
    """Return the value with the shortest step, or the first one if that is hardly longer.

    >>> fastest([4, 1, 2], [1.0, 0.99, 1.2]), fastest([4, 1, 2], [1.0, 0.9, 1.2])
    (4, 1)
    """
    at = min(range(len(values)), key=seconds.__getitem__)
    return values[at] if seconds[at] < (1 - _WORTH) * seconds[0] else values[0]


def fewest_averages(values: Sequence[int], seconds: Sequence[float], *, most: int) -> int:
    """Return the smallest period H with which averages take at most a tenth of a step.

    A step takes c + a/H, a share a/H of an average included; two trials give c and a. Waiting for
    a worker that is always slower is part of c, as no H makes it shorter.

    Args:
        values: two periods, the shorter one first.
        seconds: of a step with each.
        most: the largest H that is allowed; returned if no smaller one is long enough.

    >>> [fewest_averages([1, 8], it, most=64) for it in ([2.0, 1.125], [1.0, 1.0], [9.0, 1.1])]
    [9, 1, 64]
    """
    (first, other), (whole, part) = values, seconds
    average = (whole - part) / (1 / first - 1 / other)
    step = whole - average / first
    if average <= 0:
        return first
    enough = average * (1 - _MOST_SHARE) / _MOST_SHARE
    return most if step * most <= enough else max(1, math.ceil(enough / step))


def buckets_to_try(sizes: Callable[[int], int], n_bytes: int, usual: int, most: int) -> list[int]:
    """Return sizes of buckets that are worth a trial, in bytes: the usual one first.

    Args:
        sizes: number of bytes → number of buckets of at least that size.
        n_bytes: of the gradient.
        usual: the size that a run has if nothing is tried.
        most: buckets of all candidates together.
    """
    found: dict[int, int] = {}
    for nbytes in (usual, n_bytes, *(1 << i for i in range(28, 15, -2))):
        found.setdefault(sizes(nbytes), nbytes)
    kept = dict[int, int]()
    for count in sorted(found):
        if not kept or sum(kept) + count <= most:
            kept[count] = found[count]
    values = list(kept.values())
    return sorted(values, key=lambda it: it != usual)
