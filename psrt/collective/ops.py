"""The operations of an all-reduce, one row each. Pure; numpy is imported on first use.

Every operation folds two values at a time and is associative and commutative in exact arithmetic.
In floating point it is only commutative: the order of the schedule shows in the last bits, and
promise 2 of ``step.py`` needs its proof. Bitwise operations are exact, and only for integers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from psrt.core.arrays import AnyArray

#: Products of integers are exact below this, and continue in float64 beyond.
_EXACT = 2**63


@dataclass(frozen=True, slots=True)
class Operation:
    """A fold of two contributions, and the last step from the fold to the result.

    >>> import numpy as np
    >>> numbers = np.array([7, -7])
    >>> OPS["mean"].finish(numbers, 2)
    >>> numbers.tolist()
    [3, -4]
    >>> int(OPS["xor"].ufunc(6, 3)), OPS["xor"].of_two(6, 3)
    (5, 5)
    """

    name: str
    #: Name of the numpy function that folds two arrays element by element.
    function: str
    #: The same for two numbers of Python.
    of_two: Callable[[Any, Any], Any]
    #: Infix sign in print; empty: the name is printed before the numbers.
    sign: str = ""
    #: Whether the fold is divided by the number of ranks.
    divides: bool = False
    #: Whether it is defined for integers only.
    integers: bool = False
    #: MPI's name of the fold.
    mpi: str = field(kw_only=True)
    #: Whether all ranks end with the same floating point numbers when MPI reduces. For minima and
    #: maxima, MPI specifies neither which operand a NaN gives, nor -0.0 against 0.0.
    mpi_agrees_on_floats: bool = field(default=True, kw_only=True)

    @property
    def ufunc(self) -> np.ufunc:
        """The numpy function that folds two arrays element by element; takes ``out``."""
        import numpy as np

        found: np.ufunc = getattr(np, self.function)
        return found

    def scale(self, dtype: npt.DTypeLike, size: int) -> float:
        """Return the factor for each of ``size`` contributions before they are folded.

        For a mean of floating point numbers it is a power of two, so that the sum stays in the
        range of its terms, and is rounded as without the factor. For all others it is 1.
        """
        import numpy as np

        is_scaled = self.divides and np.dtype(dtype).kind == "f"
        return 0.5 ** (size - 1).bit_length() if is_scaled else 1.0

    def finish(self, folded: AnyArray, size: int) -> None:
        """Turn the fold of ``size`` contributions, scaled, into the result, in place.

        Every element must be finished exactly once on every rank.
        """
        if self.divides:
            import numpy as np

            is_whole = folded.dtype.kind in "iu"
            divide = np.floor_divide if is_whole else np.true_divide
            divisor = size if is_whole else size * self.scale(folded.dtype, size)
            if divisor != 1:
                divide(folded, divisor, out=folded)

    def takes(self, dtype: npt.DTypeLike) -> bool:
        """Return whether it is defined for a type of elements."""
        import numpy as np

        return not self.integers or np.dtype(dtype).kind in "iu"


def _product(one: float, other: float) -> float:
    product = one * other
    return product if -_EXACT < product < _EXACT else float(product)


#: By name. ``mean`` is the sum, then divided by p: integers by floor division, so that the result
#: is the same on every rank and of the same type. ``min`` and
#: ``max`` propagate a NaN. Sums and products of integers wrap around, as numpy's do.
OPS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("sum", "add", operator.add, "+", mpi="SUM"),
        Operation("mean", "add", operator.add, "+", divides=True, mpi="SUM"),
        Operation("min", "minimum", min, mpi="MIN", mpi_agrees_on_floats=False),
        Operation("max", "maximum", max, mpi="MAX", mpi_agrees_on_floats=False),
        Operation("prod", "multiply", _product, "×", mpi="PROD"),
        Operation("and", "bitwise_and", operator.and_, integers=True, mpi="BAND"),
        Operation("or", "bitwise_or", operator.or_, integers=True, mpi="BOR"),
        Operation("xor", "bitwise_xor", operator.xor, integers=True, mpi="BXOR"),
    )
}
