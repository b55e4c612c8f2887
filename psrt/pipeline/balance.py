"""Split a chain of layers into stages so that the slowest stage is as cheap as possible. Pure.

A pipeline is as fast as its slowest stage. Stages are spans of layers, so L layers can be split in
(L − 1 choose P − 1) ways; dynamic programming finds the best one in P·L² steps. Let c(k, j) be the
cost of the slowest stage in the best split of the first j layers into k stages:

    c(k, j) = min over i < j of max(c(k − 1, i), cost of layers i to j − 1)

Several splits may have the same slowest stage. Of these, the one with the most even stages is
taken: the one with the least sum of squared costs. That is a second pass of the same kind, in which
no stage may cost more than the first pass found.

A layer without parameters alone in a stage is wasteful but allowed: the only limit is that there
are no more stages than layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from psrt.core.errors import ConfigError
from psrt.core.partition import Span


def balanced(costs: Sequence[float], stages: int) -> tuple[Span, ...]:
    """Return the layers of each stage, such that the slowest stage is as cheap as possible.

    Args:
        costs: of each layer, in any unit, ≥ 0.
        stages: P ≥ 1; with V chunks per stage, V·P.

    Raises:
        ConfigError: if there are fewer layers than stages.

    >>> balanced([1, 1, 1, 5, 1], 2)
    (Span(start=0, stop=3), Span(start=3, stop=5))
    """
    layers = len(costs)
    if not 1 <= stages <= layers:
        raise ConfigError(f"{layers} layers cannot be split into {stages} stages")
    until = [0.0, *accumulate(costs)]

    def cost(start: int, stop: int) -> float:
        return until[stop] - until[start]

    most, _ = _best(layers, stages, cost, max)
    # A stage that costs more than the first pass found is ruled out by an infinite cost.
    _, cuts = _best(
        layers,
        stages,
        lambda start, stop: it * it if (it := cost(start, stop)) <= most else float("inf"),
        lambda one, other: one + other,
    )
    return cuts


def _best(
    layers: int,
    stages: int,
    cost: Callable[[int, int], float],
    together: Callable[[float, float], float],
) -> tuple[float, tuple[Span, ...]]:
    """Return the least cost of all splits, and the first split that has it.

    Args:
        layers: the number of layers.
        stages: the number of stages, not more than layers.
        cost: (start, stop) → of a stage with these layers.
        together: combines the cost of several stages with that of one more.
    """
    best = [cost(0, stop) if stop else float("inf") for stop in range(layers + 1)]
    #: By number of stages from 2 on, then by ``stop``: where the last stage starts.
    starts = []
    for _ in range(stages - 1):
        choices = [
            min(
                ((together(best[start], cost(start, stop)), start) for start in range(1, stop)),
                default=(float("inf"), 0),
            )
            for stop in range(layers + 1)
        ]
        best = [least for least, _ in choices]
        starts.append([start for _, start in choices])
    cuts = [layers]
    for start in reversed(starts):
        cuts.append(start[cuts[-1]])
    bounds = [0, *reversed(cuts)]
    return best[layers], tuple(Span(a, b) for a, b in pairwise(bounds))


def imbalance(costs: Sequence[float], cut: Sequence[Span]) -> float:
    """Return the cost of the slowest stage over the mean of all: 1 where they are even.

    Args:
        costs: of each layer, not all 0.
        cut: the layers of each stage.

    >>> imbalance([1, 1, 1, 5, 1], balanced([1, 1, 1, 5, 1], 2))
    1.3333333333333333
    """
    stages = [sum(costs[start:stop]) for start, stop in cut]
    return max(stages) / (sum(stages) / len(stages))
