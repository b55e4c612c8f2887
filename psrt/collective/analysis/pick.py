"""Resolve a user's name of an all-reduce, for given hosts and costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psrt.collective.analysis.choose import Choice, choose
from psrt.collective.analysis.machine import MachineCosts
from psrt.collective.ops import OPS
from psrt.collective.registry import ALGORITHMS, AUTO, NODE, PLUS
from psrt.errors import ConfigError


def library_reduces(dtype: np.dtype[Any]) -> bool:
    """Return whether MPI has a reduction for a type; it has none for float16."""
    return dtype != np.float16


def library_agrees(op: str, dtype: np.dtype[Any]) -> bool:
    """Return whether all ranks end with the same bits when the library reduces.

    Not so in minima and maxima of floating point numbers: if one rank has a NaN, ranks may end
    with different numbers.
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
    """Return the all-reduce that ``algorithm`` stands for, with the reason.

    Args:
        algorithm: ``auto``, ``node``, or any other name, which stands for itself.
        hosts: number of ranks on each host.
        nbytes: of the vector.
        kind: type of its elements.
        costs: of the machine; the same on every rank, so that all pick the same.
        op: a key of ``OPS``; ``auto`` takes the library only if all ranks are sure to end with the
            same bits.
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


def pick_coded(algorithm: str, hosts: Sequence[int]) -> Choice:
    """Return the all-reduce that ``algorithm`` stands for where a codec makes its messages.

    Inside hosts of several ranks sums stay dense, in shared memory, if there are several hosts.

    Args:
        algorithm: as in ``pick``.
        hosts: number of ranks on each host.

    Raises:
        ConfigError: if its messages are no codec's.

    >>> pick_coded("auto", [1, 1]).algorithm, pick_coded("auto", [2, 2]).algorithm
    ('all-pairs', 'node+all-pairs')
    >>> pick_coded("ring", [1, 1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    psrt...ConfigError: --allreduce ring sends no frames of a codec; with --codec there are auto...
    """
    coded = [row.name for row in ALGORITHMS.values() if row.coded]
    several = len(hosts) > 1
    names = [*coded, *(PLUS + name for name in coded if several)]
    if algorithm in names:
        return Choice(algorithm, 0.0, "as asked")
    if algorithm != AUTO and not (several and algorithm == NODE):
        raise ConfigError(
            f"--allreduce {algorithm} sends no frames of a codec; with --codec there are "
            f"{', '.join([AUTO, *names])}"
        )
    inside = several and max(hosts) > 1
    return Choice(PLUS * inside + coded[0], 0.0, "codecs need it")
