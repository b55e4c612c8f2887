"""What an all-reduce may do to p numbers. Pure: numpy functions and names.

Every operation folds two values at a time and is associative and commutative in exact arithmetic;
in floating point only commutative, which is why the order of the schedule shows in the last bits
and why promise 2 of ``step.py`` needs its proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

#: A contiguous array of float16/32/64 or int32/64.
Numbers = np.ndarray[Any, np.dtype[Any]]


def _as_it_is(folded: Numbers, size: int) -> None:
    """Leave the fold as it is: it is the result."""


def _divide(folded: Numbers, size: int) -> None:
    """Turn a sum into a mean, in place."""
    if np.issubdtype(folded.dtype, np.integer):
        np.floor_divide(folded, size, out=folded)
    else:
        np.true_divide(folded, size, out=folded)


@dataclass(frozen=True, slots=True)
class Operation:
    """How two contributions become one, and what becomes of the last of them.

    >>> numbers = np.array([7, -7])
    >>> OPS["mean"].finish(numbers, 2)
    >>> numbers.tolist()
    [3, -4]
    """

    name: str
    #: Folds two arrays element by element; takes ``out``.
    ufunc: np.ufunc
    #: ``(folded, size)``: turns the fold of ``size`` contributions into the result, in place.
    #: Every element must be finished exactly once on every rank.
    finish: Callable[[Numbers, int], None]


#: By name. ``mean`` is the sum, then divided by p: integers by floor division, so that the result
#: is the same on every rank and of the same type; the sum itself must fit the type. ``min`` and
#: ``max`` hand a NaN on. Sums and products of integers wrap around, as numpy's do.
OPS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("sum", np.add, _as_it_is),
        Operation("mean", np.add, _divide),
        Operation("min", np.minimum, _as_it_is),
        Operation("max", np.maximum, _as_it_is),
        Operation("prod", np.multiply, _as_it_is),
    )
}
