"""The mean of what workers end with, where they end with different parameters. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Part


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of what workers hold, and how far apart they are."""

    #: (n,) the sum of the vectors over that of their weights.
    theta: Vector
    #: The number of workers.
    models: int
    #: ‖θ_i − mean‖/√n, the root of its mean square over the workers; None without numbers.
    distance: float | None


def mean_of(held: Iterable[tuple[Vector, float]]) -> Mean:
    """Return the sum of vectors over that of their weights, rounded once, and the distance.

    Args:
        held: at least one vector (n,) and its weight, in the order in which they are summed; each
            is looked at before the next one is asked for. θ_i is the vector over its weight.

    >>> mean = mean_of([(np.ones(1, np.float32), 1.0), (np.full(1, 4, np.float32), 1.5)])
    >>> mean.theta.tolist(), round(mean.distance, 3)
    ([2.0], 0.85)
    """
    models, weights, squares = 0, 0.0, 0.0
    for vector, weight in held:
        if models == 0:
            total = vector.astype(np.float64)
            # All are compared with the first one: so what is common to them costs no digits.
            first, apart = total / weight, np.zeros(vector.size)
        else:
            np.add(total, vector, out=total)
            one = np.divide(vector, weight, dtype=np.float64)
            np.subtract(one, first, out=one)
            np.add(apart, one, out=apart)
            squares += float(np.vdot(one, one))
        weights += weight
        models += 1
    assert models, "somebody ended the job"
    np.divide(total, weights, out=total)
    theta = total.astype(np.float32)
    if not theta.size:
        return Mean(theta, models, None)
    np.subtract(total, first, out=total)
    squares += models * float(np.vdot(total, total)) - 2.0 * float(np.vdot(total, apart))
    return Mean(theta, models, math.sqrt(max(squares, 0.0) / models / theta.size))


def mean_of_parts(parts: Sequence[Part], means: Sequence[Mean]) -> Mean:
    """Combine the means of the parts of split models; squares of distances add up.

    Args:
        parts: the part of the model that each mean is of; together they are the whole model.
        means: of each part, all over the same number of workers.
    """
    theta = np.empty(sum(it.theta.size for it in means), np.float32)
    squares = 0.0
    for part, mean in zip(parts, means, strict=True):
        if mean.distance is not None:
            part.put(mean.theta, theta)
            squares += mean.distance**2 * part.size
    distance = math.sqrt(squares / theta.size) if theta.size else None
    return Mean(theta, means[0].models, distance)
