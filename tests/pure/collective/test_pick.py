"""What a user's word for an all-reduce comes to."""

from __future__ import annotations

import dataclasses

import numpy as np

from psrt.collective import ALGORITHMS, OPS
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.collective.analysis.pick import pick
from support.cases import each

FLOAT32 = np.dtype(np.float32)
NAMES = ["mpi", *ALGORITHMS, *(f"node+{name}" for name in ALGORITHMS)]


def named(algorithm, hosts, nbytes=1 << 20, kind=FLOAT32):
    return pick(algorithm, hosts, nbytes, kind, DEFAULT_COSTS)


@each("name", NAMES)
@each("hosts", [[1], [4], [2, 2], [1, 1, 1]])
def test_a_name_is_left_as_it_is(name, hosts):
    choice = named(name, hosts)
    assert (choice.algorithm, choice.why) == (name, "as asked")


def test_node_on_one_host_is_what_was_asked_for():
    assert named("node", [4]).algorithm == "node"


@each("hosts", [[2, 2], [4, 1], [1, 1, 1], [3, 3, 2]])
@each("nbytes", [0, 1000, 1 << 20, 1 << 28])
def test_node_on_several_hosts_gets_a_schedule_between_them(hosts, nbytes):
    choice = named("node", hosts, nbytes)
    assert choice.algorithm.removeprefix("node+") in ALGORITHMS
    assert choice.algorithm.startswith("node+")
    assert choice.why


@each("hosts", [[1], [2], [8], [2, 2], [1, 1, 1], [5, 1]])
@each("nbytes", [0, 4, 1000, 1 << 20, 1 << 28])
def test_auto_picks_something_that_there_is(hosts, nbytes):
    choice = named("auto", hosts, nbytes)
    assert choice.algorithm in ["node", *NAMES]
    assert choice.seconds >= 0
    assert choice.why


@each("hosts", [[2], [8], [2, 2]])
def test_the_library_is_not_picked_for_a_type_that_it_cannot_reduce(hosts):
    for nbytes in (8, 1 << 12, 1 << 24):
        assert named("auto", hosts, nbytes, np.dtype(np.float16)).algorithm != "mpi"


def test_the_library_is_not_picked_for_minima_that_it_need_not_agree_on():
    """MPI promises nothing of NaN: there the ranks may end with different numbers."""
    quick = dataclasses.replace(
        DEFAULT_COSTS, measured=(("mpi", (3,), 8, 1e-12), ("mpi", (3,), 1 << 20, 1e-12))
    )
    for kind in map(np.dtype, ("float32", "float64", "int32", "int64")):
        for op in OPS:
            choice = pick("auto", [3], 1000, kind, quick, op=op)
            unsure = op in ("min", "max") and kind.kind == "f"
            assert (choice.algorithm == "mpi") != unsure, (op, kind)
