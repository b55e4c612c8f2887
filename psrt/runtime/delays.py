"""Delays: what slows one worker down on purpose, step by step. Pure: sleeps for nobody.

A delay is a function of the step, of how long its gradient took, and of random numbers; the delays
of a worker add up. They are asked once a step, in the order of the steps, with the same generator
every time: the same seed is the same delays, over MPI and in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

#: Step, counted from 0; seconds that its gradient took; random numbers → seconds of delay.
Delay = Callable[[int, float, np.random.Generator], float]

#: The longest delay that is drawn: a tail has no end, a clock has one.
LONGEST_S = 86400.0


def constant(seconds: float) -> Delay:
    """Return the same delay at every step."""
    return lambda step, computed_s, rng: seconds


def jitter(mean_s: float) -> Delay:
    """Return an exponentially distributed delay: often short, never very long."""
    return lambda step, computed_s, rng: rng.exponential(mean_s)


def tail(scale_s: float, shape: float) -> Delay:
    """Return a delay with a heavy tail, as of machines that are shared: P(d > x) = (1 + x/s)^-a.

    A Pareto distribution that begins at 0 (Lomax), with scale s and shape a. Its median is
    s·(2^(1/a) − 1), its mean s/(a − 1) for a > 1 and infinite otherwise; its variance is finite
    for a > 2. No draw is longer than a day.

    Args:
        scale_s: s, at least 0.
        shape: a, at least 0.1, or a draw may not fit into a float.

    Source: Lomax, "Business failures: another example of the analysis of failure data", JASA
    49(268), 1954.
    """
    return lambda step, computed_s, rng: min(scale_s * rng.pareto(shape), LONGEST_S)


def slow(factor: float, first: int = 0) -> Delay:
    """Return what makes computing take ``factor`` times as long, from step ``first`` on."""
    return lambda step, computed_s, rng: (factor - 1) * computed_s if step >= first else 0.0


class Pause:
    """One delay at one step, or at the next that is taken: with backups some are not."""

    def __init__(self, step: int, seconds: float) -> None:
        self._step = step
        self._seconds = seconds
        self._is_over = False

    def __call__(self, step: int, computed_s: float, rng: np.random.Generator) -> float:
        """Return the delay at ``step``."""
        if self._is_over or step < self._step:
            return 0.0
        self._is_over = True
        return self._seconds


#: By the name that ``--inject`` knows them by.
DELAYS: dict[str, Callable[..., Delay]] = {
    "delay": constant,
    "jitter": jitter,
    "tail": tail,
    "pause": Pause,
    "slow": slow,
}


class Delays:
    """All that slows one worker down.

    >>> delays = Delays([("delay", (0.5,)), ("slow", (3.0, 10)), ("pause", (11, 60.0))])
    >>> rng = np.random.default_rng(0)
    >>> [delays.seconds(step, 0.25, rng) for step in (9, 10, 11, 12)]
    [0.5, 1.0, 61.0, 1.0]
    """

    def __init__(self, delays: Iterable[tuple[str, Sequence[float]]] = ()) -> None:
        """Make them.

        Args:
            delays: a key of ``DELAYS`` and its numbers, each in the order in which it draws.
        """
        given = list(delays)
        #: Whether ``seconds`` wants to know how long computing took.
        self.asks_for_computed = any(kind == "slow" for kind, _ in given)
        self._delays = [DELAYS[kind](*numbers) for kind, numbers in given]

    def seconds(self, step: int, computed_s: float, rng: np.random.Generator) -> float:
        """Return the delay of a step.

        Args:
            step: gradient steps finished before it; larger at every call.
            computed_s: what computing its gradient took; any number unless asked for.
            rng: draws the random ones.
        """
        return float(sum(delay(step, computed_s, rng) for delay in self._delays))
