"""Split a chain of layers into stages, so that the slowest stage is as fast as possible. Pure.

A pipeline is as fast as its slowest stage. Stages are spans of layers, so there are (L − 1 choose
P − 1) ways to split L layers; dynamic programming finds the best in P·L² steps. Let c(k, j) be the
cost of the slowest of k stages that have the first j layers, split best:

    c(k, j) = min over i < j of max(c(k − 1, i), cost of layers i to j − 1)

Among the splits with that cost, the one with the most even stages is taken: the sum of the squares
of their costs is the least. That is a second pass of the same kind, in which no stage may cost more
than the first pass found.

A layer without parameters may be a stage of its own; there are no more stages than layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from psrt.core.errors import ConfigError
from psrt.core.partition import Span


def balanced(costs: Sequence[float], stages: int) -> tuple[Span, ...]:
    """Return the layers of each stage, so that the slowest stage is as fast as possible.

    Args:
        costs: of each layer, in any unit, ≥ 0.
        stages: P ≥ 1; with V chunks a stage, V·P.

    Raises:
        ConfigError: if there are fewer layers than stages.

    >>> balanced([1, 1, 1, 5, 1], 2)
    (Span(start=0, stop=3), Span(start=3, stop=5))
    """
    layers = len(costs)
    if not 1 <= stages <= layers:
        raise ConfigError(f"{layers} layers cannot be cut into {stages} stages")
    until = [0.0, *accumulate(costs)]

    def cost(start: int, stop: int) -> float:
        return until[stop] - until[start]

    most, _ = _best(layers, stages, cost, max)
    # A stage that is dearer than it need be counts as infinitely dear.
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
    """Return the least cost of all cuts, and the first cut that has it.

    Args:
        layers: number of them.
        stages: number of them, not more.
        cost: (start, stop) → of a stage with these layers.
        together: the cost of some stages and that of another → of all of them.
    """
    best = [cost(0, stop) if stop else float("inf") for stop in range(layers + 1)]
    #: Of each number of stages but one, by ``stop``: where the last of them starts.
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
