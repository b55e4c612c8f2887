"""The distances of workers, and the step that all have reached, from their reports. Pure."""

from __future__ import annotations

import heapq
import math
from collections import Counter

import numpy as np

from psrt.core.stats import Sketch
from psrt.history.folds.sketch import distance


class Slowest:
    """The step that all of some workers have reached.

    The cost of a step does not grow with the number of workers.
    """

    def __init__(self, workers: int) -> None:
        #: Step of each worker; inf once it has departed.
        self.reached: list[float] = [-1.0] * workers
        #: The number of workers at each step, and a heap of these steps.
        self._at: Counter[float] = Counter({-1.0: workers})
        self._steps: list[float] = [-1.0]

    def reach(self, worker: int, step: float) -> None:
        """Note that a worker has reached a step; inf if it has departed."""
        before, self.reached[worker] = self.reached[worker], step
        self._at[before] -= 1
        if step not in self._at:
            heapq.heappush(self._steps, step)
        self._at[step] += 1

    @property
    def step(self) -> float:
        """The last step that every worker has reached; inf if all have departed."""
        while not self._at[self._steps[0]]:
            del self._at[heapq.heappop(self._steps)]
        return self._steps[0]


class Apart:
    """The distances of workers, from sketches that each makes at the same clocks.

    A clock counts once all workers that have not departed before have sketched there.
    """

    def __init__(self, workers: int) -> None:
        self._slowest = Slowest(workers)
        #: By worker, the clock of its newest sketch.
        self._last = [-1] * workers
        #: By clock and worker, the sketches at clocks that not all have reached.
        self._sketches: dict[int, dict[int, bytes]] = {}
        #: By complete clock, in order, the distances that are in no record yet.
        self._distances: dict[int, float | None] = {}

    def add(self, sketch: Sketch) -> None:
        """Keep a sketch until those of all workers have arrived."""
        self._sketches.setdefault(sketch.clock, {})[sketch.worker] = sketch.numbers
        self._last[sketch.worker] = sketch.clock
        self._reach(sketch.worker, sketch.clock)

    def gone(self, worker: int) -> None:
        """Stop waiting for a worker."""
        self._reach(worker, math.inf)

    def take(self, step: int) -> float | None:
        """Return the newest distance up to a step; None if there is none since the last call."""
        found = None
        for clock in [clock for clock in self._distances if clock <= step]:
            found = self._distances.pop(clock)
        return found

    def _reach(self, worker: int, step: float) -> None:
        before = self._slowest.step
        self._slowest.reach(worker, step)
        if (step := self._slowest.step) == before:
            return
        for clock in sorted(clock for clock in self._sketches if clock <= step):
            found = self._sketches.pop(clock)
            if len(found) == sum(last >= clock for last in self._last):
                # In worker order, so that the result does not depend on the order of arrival.
                sketches = [np.frombuffer(found[worker]) for worker in sorted(found)]
                self._distances[clock] = distance(sketches)
