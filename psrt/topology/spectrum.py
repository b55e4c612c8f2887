"""How fast a period of mixing matrices makes ranks agree: bounds, and simulated rounds.

*Disagreement* is ‖θ_i − mean‖ over all ranks and elements. A doubly stochastic matrix multiplies it
by at most its second largest singular value σ, for any θ; for a period, σ is that of the product.
The *spectral gap* is 1 − σ. Under push-sum no σ bounds every θ. There the modulus of the second
largest eigenvalue is the rate in the long run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

import numpy as np

from psrt.topology.mixing import Weights

#: Disagreement that is only rounding.
_NOTHING = 1e-12
#: Periods after which a simulation gives up.
_MOST = 10_000


def contraction(matrices: Sequence[Weights], *, push_sum: bool = False) -> float:
    """Return σ of a period: the factor of the disagreement, in [0, 1].

    Args:
        matrices: (N, N) of each round of the period.
        push_sum: whether only columns add up to 1.
    """
    product = np.linalg.multi_dot([*matrices[::-1]]) if len(matrices) > 1 else matrices[0]
    if len(product) == 1:
        return 0.0
    if push_sum:
        values = np.sort(np.abs(np.linalg.eigvals(product)))
        found = float(values[-2])
    else:
        # The largest, 1, belongs to equal numbers on all ranks; subtracting their part removes it.
        found = float(np.linalg.norm(product - 1 / len(product), 2))
    return 0.0 if found < _NOTHING else min(found, 1.0)


def rounds_to(factor: float, period: int, share: float) -> int | None:
    """Return the rounds after which at most a share of the disagreement is left; None if never.

    Args:
        factor: σ of a period.
        period: its number of rounds.
        share: in (0, 1): with 0.5 disagreement has halved.

    >>> rounds_to(0.5, 1, 0.5), rounds_to(0.9, 2, 0.5), rounds_to(0.0, 3, 1e-6)
    (1, 14, 3)
    """
    if factor >= 1:
        return None
    if factor == 0:
        return period
    return period * max(1, math.ceil(math.log(share) / math.log(factor) - 1e-9))


def simulated_rounds(
    matrices: Sequence[Weights],
    share: float,
    *,
    push_sum: bool = False,
    seed: int = 0,
    elements: int = 64,
) -> int | None:
    """Return the rounds after which at most a share of random numbers' disagreement is left.

    The first rounds reduce it most, since random numbers of neighbours are as different as others.
    The remainder is smooth along the graph, and shrinks as slowly as the gap says.

    Args:
        matrices: (N, N) of each round of the period.
        share: in (0, 1): with 0.5 disagreement has halved.
        push_sum: whether ranks also mix a 1, and divide by what it has become.
        seed: of the numbers, normally distributed.
        elements: of each rank.

    Returns:
        The rounds, 0 where there is one rank; None if the simulation gives up.
    """
    start = None
    limit = _MOST * len(matrices)
    rounds = simulated(matrices, push_sum=push_sum, seed=seed, elements=elements)
    for turn, values in enumerate(islice(rounds, limit)):
        left = disagreement(values)
        start = left if start is None else start
        if left <= start * share:
            return turn
    return None


def simulated(
    matrices: Sequence[Weights], *, push_sum: bool = False, seed: int = 0, elements: int = 64
) -> Iterator[Weights]:
    """Yield the values of all ranks at the start and after each round: (N, elements), endlessly.

    Args:
        matrices: (N, N) of each round of the period.
        push_sum: whether ranks also mix a 1, and divide by what it has become.
        seed: of the numbers, normally distributed.
        elements: of each rank.
    """
    size = len(matrices[0])
    values = np.random.default_rng(seed).standard_normal((size, elements))
    weight = np.ones((size, 1))
    for matrix in cycle(matrices):
        yield values / weight
        values = matrix @ values
        if push_sum:
            weight = matrix @ weight


def disagreement(values: Weights) -> float:
    """Return ‖θ_i − mean‖ over all ranks and elements of ``values`` (N, n)."""
    return float(np.linalg.norm(values - values.mean(axis=0)))
