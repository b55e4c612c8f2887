"""Which all-reduce a user's word for it comes to, on these hosts and at these costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psrt.collective.analysis.choose import Choice, choose
from psrt.collective.analysis.machine import MachineCosts
from psrt.collective.ops import OPS
from psrt.collective.registry import AUTO, NODE


def library_reduces(dtype: np.dtype[Any]) -> bool:
    """Tell whether MPI has a reduction for a type; it has none for float16."""
    return dtype != np.float16


def library_agrees(op: str, dtype: np.dtype[Any]) -> bool:
    """Tell whether the library leaves all ranks with the same bits.

    In minima and maxima of floating point numbers it need not: where one rank has a NaN the
    others may end with different numbers.
    """
    return OPS[op].mpi_agrees_on_floats or not np.issubdtype(dtype, np.floating)


def pick(
    algorithm: str,
    hosts: Sequence[int],
    nbytes: int,
    kind: np.dtype[Any],
    costs: MachineCosts,
    *,
    op: str = "sum",
) -> Choice:
    """Return what ``algorithm`` comes to, with the reason.

    Args:
        algorithm: ``auto``, ``node``, or anything else, which is left as it is.
        hosts: ranks on each host.
        nbytes: of the vector.
        kind: type of its elements.
        costs: of the machine; the same on every rank, so that all pick the same.
        op: what is done to the numbers; ``auto`` takes the library only where all ranks are sure
            to end with the same bits.
    """
    if algorithm not in (AUTO, NODE) or (algorithm == NODE and len(hosts) == 1):
        return Choice(algorithm, 0.0, "as asked")
    library = library_reduces(kind) and library_agrees(op, kind)
    asked = algorithm == NODE
    best = choose(
        hosts, nbytes, kind.itemsize, costs, dtype_ok_for_library=library, shared_memory=asked
    )
    if not asked:
        return best
    return Choice(best.algorithm, best.seconds, f"{NODE} was asked for; {best.why}")
