"""Which all-reduce a user's word for it comes to, on these hosts and at these costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psrt.collective.choose import Choice, choose
from psrt.collective.machine import MachineCosts

#: Leaves the choice to the costs.
AUTO = "auto"
#: Folds in shared memory inside a host, and between hosts by whatever is best there.
NODE = "node"
#: What joins the part inside a host and the schedule between hosts in an algorithm's name.
PLUS = "node+"
#: The MPI library's own.
LIBRARY = "mpi"


def library_reduces(dtype: np.dtype[Any]) -> bool:
    """Tell whether MPI has a reduction for a type; it has none for float16."""
    return dtype != np.float16


def pick(
    algorithm: str, hosts: Sequence[int], nbytes: int, kind: np.dtype[Any], costs: MachineCosts
) -> Choice:
    """Return what ``algorithm`` comes to, with the reason.

    Args:
        algorithm: ``auto``, ``node``, or anything else, which is left as it is.
        hosts: ranks on each host.
        nbytes: of the vector.
        kind: type of its elements.
        costs: of the machine; the same on every rank, so that all pick the same.
    """
    if algorithm not in (AUTO, NODE) or (algorithm == NODE and len(hosts) == 1):
        return Choice(algorithm, 0.0, "as asked")
    best = choose(hosts, nbytes, kind.itemsize, costs, dtype_ok_for_library=library_reduces(kind))
    if algorithm == AUTO or best.algorithm.startswith(PLUS):
        return best
    return Choice(PLUS + "ring", best.seconds, f"node was asked for; {best.why}")
