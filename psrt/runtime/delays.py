"""Injected delays that slow one worker down, step by step. Pure: computes delays, never sleeps.

A delay is a function of the step, of the time of its gradient, and of random numbers; the delays
of a worker add up. They are drawn once a step, in the order of the steps, from one generator: the
same seed gives the same delays, over MPI and in simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

#: Step, from 0; time of its gradient in seconds; generator → delay in seconds.
Delay = Callable[[int, float, np.random.Generator], float]

#: The longest delay drawn: a heavy tail has no bound, a run needs one.
LONGEST_S = 86400.0


def constant(seconds: float) -> Delay:
    """Return the same delay at every step."""
    return lambda step, computed_s, rng: seconds


def jitter(mean_s: float) -> Delay:
    """Return an exponentially distributed delay: usually short, without a heavy tail."""
    return lambda step, computed_s, rng: rng.exponential(mean_s)


def tail(scale_s: float, shape: float) -> Delay:
    """Return a delay with a heavy tail, as on shared machines: P(d > x) = (1 + x/s)^-a.

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
    """Return a delay that makes computing ``factor`` times slower, from step ``first`` on."""
    return lambda step, computed_s, rng: (factor - 1) * computed_s if step >= first else 0.0


class Pause:
    """One delay at one step, or at the next one taken: with backups, steps may be skipped."""

    saved = ("_is_over",)

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


#: Delays by their name in ``--inject``.
DELAYS: dict[str, Callable[..., Delay]] = {
    "delay": constant,
    "jitter": jitter,
    "tail": tail,
    "pause": Pause,
    "slow": slow,
}


class Delays:
    """All delays of one worker.

    >>> delays = Delays([("delay", (0.5,)), ("slow", (3.0, 10)), ("pause", (11, 60.0))])
    >>> rng = np.random.default_rng(0)
    >>> [delays.seconds(step, 0.25, rng) for step in (9, 10, 11, 12)]
    [0.5, 1.0, 61.0, 1.0]
    """

    saved = ("_pauses",)

    def __init__(self, delays: Iterable[tuple[str, Sequence[float]]] = ()) -> None:
        """Set up.

        Args:
            delays: a key of ``DELAYS`` and its numbers, each; they draw in this order.
        """
        given = list(delays)
        #: Whether ``seconds`` needs ``computed_s``.
        self.asks_for_computed = any(kind == "slow" for kind, _ in given)
        self._delays = [DELAYS[kind](*numbers) for kind, numbers in given]
        self._pauses = [it for it in self._delays if isinstance(it, Pause)]

    def seconds(self, step: int, computed_s: float, rng: np.random.Generator) -> float:
        """Return the delay of a step.

        Args:
            step: gradient steps finished before it; larger at every call.
            computed_s: time of its gradient, in seconds; ignored unless ``asks_for_computed``.
            rng: the worker's generator of delays.
        """
        return float(sum(delay(step, computed_s, rng) for delay in self._delays))
