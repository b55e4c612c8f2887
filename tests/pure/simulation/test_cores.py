"""Cores in virtual time, beside many short turns of the ranks at work."""

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.simulation.cores import Cores
from psrt.simulation.event_queue import EventQueue


class Clock(EventQueue):
    def run(self):
        while self._queue:
            self.time, _, _, action, argument = self._queue.pop(
                min(range(len(self._queue)), key=lambda i: self._queue[i][:3])
            )
            action(argument)


def by_turns(cores, jobs, turn=1e-4):
    """Return when each job (begins, seconds) ends if all at work get short turns, in order."""
    left = [seconds for _, seconds in jobs]
    ends, now = [None] * len(jobs), 0.0
    while any(end is None for end in ends):
        here = [i for i, (begins, _) in enumerate(jobs) if begins <= now and ends[i] is None]
        for i in here:
            left[i] -= turn * min(1.0, cores / len(here))
            if left[i] <= 1e-12:
                ends[i] = now + turn
        now += turn
    return ends


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_work_ends_as_with_short_turns(cores, seed):
    rng = np.random.default_rng(seed)
    jobs = [(rng.uniform(0, 0.3), rng.uniform(0.01, 0.2)) for _ in range(7)]
    clock, ends = Clock(0), {}
    made = Cores(clock, cores)
    for number, (begins, seconds) in enumerate(jobs):
        clock.after(
            begins,
            lambda it: made.work(it[1], lambda i: ends.setdefault(i, clock.time), it[0]),
            (number, seconds),
        )
    clock.run()
    np.testing.assert_allclose([ends[i] for i in range(7)], by_turns(cores, jobs), atol=2e-3)


def test_work_of_a_negative_time_is_refused():
    with pytest.raises(ConfigError, match="costs must be finite"):
        Cores(Clock(0), 1).work(-1.0, print, None)
