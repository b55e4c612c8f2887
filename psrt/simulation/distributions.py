"""The distributions of the time of a gradient, as ``--compute`` writes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from psrt.core.errors import ConfigError
from psrt.history import Kind, read_history
from psrt.rows.suggest import did_you_mean
from psrt.rows.values import Number, form, read_numbers

#: Seconds of one gradient of a worker, by its number.
Compute = Callable[[int, np.random.Generator], float]
Draw = Callable[[np.random.Generator], float]

#: The longest time that a user may ask for.
LONGEST = 1e6


class Distribution(NamedTuple):
    """A distribution of seconds as the command line writes it, and how to draw from it."""

    #: Its numbers, in order.
    numbers: tuple[Number, ...]
    #: Returns, for those numbers, a function that draws seconds.
    make: Callable[..., Draw]


def _seconds(name: str) -> Number:
    return Number(name, 0.0, LONGEST)


#: By name.
DISTRIBUTIONS = {
    "constant": Distribution((_seconds("SECONDS"),), lambda seconds: lambda rng: seconds),
    "normal": Distribution(
        (_seconds("MEAN"), _seconds("SD")),
        lambda mean, sd: lambda rng: max(0.0, rng.normal(mean, sd)),
    ),
    # Larger sigmas and smaller shapes would overflow.
    "lognormal": Distribution(
        (_seconds("MEDIAN"), Number("SIGMA", 0.0, 20.0)),
        lambda median, sigma: lambda rng: median * math.exp(sigma * rng.standard_normal()),
    ),
    "pareto": Distribution(
        (_seconds("SCALE"), Number("SHAPE", 0.1, LONGEST)),
        lambda scale, shape: lambda rng: scale * (1.0 + rng.pareto(shape)),
    ),
    "exponential": Distribution(
        (_seconds("MEAN"),), lambda mean: lambda rng: mean * rng.standard_exponential()
    ),
}
#: The forms of ``compute``.
FORMS = (*(f"{name}:{form(it.numbers)}" for name, it in DISTRIBUTIONS.items()), "run:DIR")


def read_compute(text: str) -> Compute:
    """Return a function that draws the time of a gradient.

    >>> rng = np.random.default_rng(0)
    >>> read_compute("constant:0.01")(0, rng)
    0.01
    >>> read_compute("normal:0.001:0.1")(0, np.random.default_rng(3)) >= 0  # never negative
    True

    Raises:
        ConfigError: for an unknown distribution, or numbers out of range.
    """
    kind, _, rest = text.partition(":")
    if kind == "run":
        return resampled(rest)
    if kind not in DISTRIBUTIONS:
        guess = did_you_mean(kind, (*DISTRIBUTIONS, "run"))
        raise ConfigError(f"compute must be one of {', '.join(FORMS)}, got {text!r}{guess}")
    distribution = DISTRIBUTIONS[kind]
    try:
        draw = distribution.make(*read_numbers(distribution.numbers, rest, before=f"{kind}:"))
    except ValueError as error:
        raise ConfigError(f"compute {error}, got {text!r}") from None
    return lambda worker, rng: draw(rng)


def resampled(run: str) -> Compute:
    """Return a function that draws from the gradient times of a recorded run.

    Worker i of the simulation draws from those of worker i of the run, modulo the run's workers,
    with replacement. They include injected delays.

    Args:
        run: the folder of a run with a history.

    Raises:
        ConfigError: if the run cannot be read, or no gradient was computed in it.
    """
    if not run:
        raise ConfigError("compute run:DIR names the folder of a run that was made with --record")
    known = [_computing(events) for events in read_history(run).workers]
    everybody = [second for seconds in known for second in seconds]
    if not everybody:
        raise ConfigError(f"{run}: no gradient was computed in this run")
    pools = [seconds or everybody for seconds in known]

    def draw(worker: int, rng: np.random.Generator) -> float:
        pool = pools[worker % len(pools)]
        return pool[int(rng.random() * len(pool))]

    return draw


def _computing(events: np.ndarray[Any, Any]) -> list[float]:
    """Return the time of each gradient of a worker, injected delays included."""
    steps = events[(events["kind"] == Kind.STEP) & (events["samples"] > 0)]
    if not len(steps):  # the same gradient goes to every shard
        pushed = (events["kind"] == Kind.PUSH) & (events["shard"] == 0)
        steps = events[pushed & (events["samples"] > 0)]
    return [float(second) for second in steps["seconds"]]
