"""Resolve a user's name of an all-reduce, for given hosts and costs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from psrt.collective.analysis.choose import Choice, choose, choose_among
from psrt.collective.analysis.machine import MachineCosts
from psrt.collective.ops import OPS
from psrt.collective.registry import ALGORITHMS, AUTO, NODE, PLUS, schedules_for
from psrt.core.errors import ConfigError
from psrt.core.ways import Way


def library_reduces(dtype: np.dtype[Any]) -> bool:
    """Return whether MPI has a reduction for a type; it has none for float16."""
    return dtype != np.float16


def library_agrees(op: str, dtype: np.dtype[Any]) -> bool:
    """Return whether all ranks end with the same bits when the library reduces.

    They may not in minima and maxima of floating point numbers: if one rank has a NaN, ranks may
    end with different numbers.
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


class Coding(NamedTuple):
    """A codec that shortens a vector, and the ways in which its sum may then travel."""

    #: Its name.
    codec: str
    #: ``auto`` takes the fastest of these.
    ways: tuple[Way, ...]
    #: Further ways, only for a schedule that is asked for by name.
    ways_if_asked: tuple[Way, ...]
    #: Bytes of the coded vector; and of an element, where elements are summed.
    nbytes: int
    itemsize: int = 4


def way_of(algorithm: str, ways: Collection[Way]) -> Way | None:
    """Return the way in which an all-reduce sums a codec's frames; None if it has none.

    Args:
        algorithm: a name of ``ALL_REDUCES``.
        ways: the ways of the codec.

    >>> way_of("node+all-pairs", [Way.TWO_PHASES]), way_of("node", [Way.TWO_PHASES])
    (<Way.TWO_PHASES: 'in two phases'>, None)
    """
    row = ALGORITHMS.get(algorithm.removeprefix(PLUS))
    return next((way for way in row.ways if way in ways), None) if row else None


def pick_coded(
    algorithm: str,
    hosts: Sequence[int],
    coding: Coding,
    costs: MachineCosts,
    *,
    through_hosts: bool = True,
) -> Choice:
    """Return the all-reduce that ``algorithm`` stands for where a codec shortens the sum.

    If there are several hosts, sums inside hosts stay dense, in shared memory. Three hosts or more
    do not gather unless asked to, if the codec has another way: they would send p/2 times as much.
    Short frames may be faster to gather. But a codec is for links where bytes count, and the costs
    may be a guess that does not know how slow the links are.

    Args:
        algorithm: as in ``pick``.
        hosts: number of ranks on each host.
        coding: the codec, and the length of the largest vector.
        costs: of the machine; the same on every rank, so that all pick the same.
        through_hosts: whether ranks of a host can first sum in its memory.

    Raises:
        ConfigError: if it sums in no way that the codec has.

    >>> from psrt.collective.analysis.machine import DEFAULT_COSTS
    >>> sign = Coding("sign", (Way.TWO_PHASES, Way.GATHERED), (), 100)
    >>> cases = [1, 1], [1, 1, 1], [3, 3], [3, 3, 3], [3]
    >>> [pick_coded("auto", hosts, sign, DEFAULT_COSTS).algorithm for hosts in cases]
    ['naive', 'all-pairs', 'node+naive', 'node+all-pairs', 'all-pairs']
    >>> pick_coded("ring", [1, 1], sign, DEFAULT_COSTS)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    psrt...ConfigError: --allreduce ring does not sum what --codec sign makes; it has auto, all-...
    """
    several = through_hosts and len(hosts) > 1
    every = {*coding.ways, *coding.ways_if_asked}
    able = [name for name in schedules_for(algorithm) if way_of(name, every)]
    names = [*able, *(PLUS + name for name in able if several)]
    if algorithm in names:
        return Choice(algorithm, 0.0, "as asked")
    if algorithm != AUTO and not (several and algorithm == NODE):
        raise ConfigError(
            f"--allreduce {algorithm} does not sum what --codec {coding.codec} makes; it has "
            f"{', '.join([AUTO, *names])}"
        )
    inside = several and max(hosts) > 1
    size = len(hosts) if several else sum(hosts)
    sparing = [way for way in coding.ways if size == 2 or way is not Way.GATHERED]
    ways = sparing or coding.ways
    candidates = [PLUS * inside + name for name in able if way_of(name, ways)]
    if len(candidates) == 1:
        return Choice(candidates[0], 0.0, "others lose or send more")
    return choose_among(candidates, hosts, coding.nbytes, coding.itemsize, costs)


def pick_sharded(
    algorithm: str, hosts: Sequence[int], nbytes: int, costs: MachineCosts, *, alone: bool = False
) -> Choice:
    """Return the all-reduce that ``algorithm`` stands for where only owners take the sums.

    Args:
        algorithm: as in ``pick``.
        hosts: number of ranks on each host.
        nbytes: of the vector.
        costs: of the machine; the same on every rank, so that all pick the same.
        alone: whether each rank must own a part by itself, and not its host a part together.

    Raises:
        ConfigError: if it does not first give each rank its own part of the sums.

    >>> from psrt.collective.analysis.machine import DEFAULT_COSTS
    >>> cases = [4], [1, 1], [2, 2]
    >>> [pick_sharded("auto", hosts, 1 << 22, DEFAULT_COSTS).algorithm for hosts in cases]
    ['node', 'ring', 'node+ring']
    >>> pick_sharded("tree", [4], 100, DEFAULT_COSTS)
    Traceback (most recent call last):
    psrt.core.errors.ConfigError: --allreduce tree gives every worker all sums; with shard= \
there are auto, node, ring
    """
    several, size = len(hosts) > 1, sum(hosts)
    able = [name for name in schedules_for(algorithm) if ALGORITHMS[name].owned]
    inside = [] if alone else [PLUS + name for name in able] if several else [NODE]
    names = [*inside, *able]
    if algorithm in names:
        return Choice(algorithm, 0.0, "as asked")
    asked = algorithm == NODE and several and not alone
    if algorithm != AUTO and not asked:
        raise ConfigError(
            f"--allreduce {algorithm} gives every worker all sums; with shard= there are "
            f"{', '.join([AUTO, *names])}"
        )
    if size == 1 or alone or (max(hosts) == 1 and not asked):
        return Choice(able[0], 0.0, "its owners take their sums first")
    if not several:
        return Choice(NODE, 0.0, "the workers of a host share its memory")
    return choose_among(inside if asked else names, hosts, nbytes, 4, costs)
