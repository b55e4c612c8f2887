"""Which all-reduce is chosen: by predictions, by what was measured, and by a user's word."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from psrt.collective import ALGORITHMS, OPS
from psrt.collective.analysis.choose import choose, fastest, predict
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts, NodeCosts
from psrt.collective.analysis.pick import pick
from psrt.collective.costs import LinkCosts
from psrt.core.errors import ConfigError
from support.cases import each

KB, MB = 1 << 10, 1 << 20


def with_library(*measured):
    """Return costs with times of the library on one host: ranks, bytes, seconds."""
    return with_measured(*(("mpi", (ranks,), nbytes, s) for ranks, nbytes, s in measured))


def with_measured(*measured):
    return replace(DEFAULT_COSTS, measured=measured)


class TestOneHost:
    @each(
        ("factor", "algorithm"),
        [(0.5, "mpi"), (0.90, "mpi"), (0.92, "node"), (1.0, "node"), (3.0, "node")],
    )
    def test_the_library_must_be_clearly_faster(self, factor, algorithm):
        node = DEFAULT_COSTS.node.seconds(2, MB, DEFAULT_COSTS.cores)
        choice = choose([2], MB, 4, with_library((2, MB, factor * node)))
        assert choice.algorithm == algorithm
        assert choice.seconds == (factor * node if algorithm == "mpi" else node)

    def test_a_library_that_does_not_know_the_type_is_no_candidate(self):
        costs = with_library((2, MB, 1e-9))
        assert choose([2], MB, 2, costs).algorithm == "mpi"
        choice = choose([2], MB, 2, costs, dtype_ok_for_library=False)
        assert choice.algorithm == "node"
        assert "mpi" not in choice.why

    def test_why_names_the_numbers(self):
        costs = replace(
            DEFAULT_COSTS, inside=LinkCosts(3e-6, 2.5e-10, 0.0), node=NodeCosts(0.0, 5e-11),
            cores=4, measured=(("mpi", (4,), 4 * MB, 0.66e-3),),
        )  # fmt: skip
        assert choose([4], 4 * MB, 4, costs).why == (
            "node: 210 µs predicted for 4 MiB on 4 ranks of 1 host; halving-doubling 1.58 ms; "
            "mpi 660 µs"
        )

    def test_what_is_predicted_to_be_faster_and_is_not_taken_says_why(self):
        """Messages are no candidates inside a host, and the library must be clearly faster."""
        costs = replace(
            DEFAULT_COSTS, inside=LinkCosts(3e-6, 2.5e-10, 1e-10), node=NodeCosts(2e-6, 1.5e-10),
            cores=4, measured=(("mpi", (3,), 72, 7.5e-6),),
        )  # fmt: skip
        assert choose([3], 72, 4, costs).why == (
            "node: 8.01 µs predicted for 72 B on 3 ranks of 1 host; "
            "naive 6.05 µs, but no messages inside a host; mpi 7.5 µs, but not 10 % faster"
        )

    @each("size", [2, 3, 4, 7, 8, 16])
    @each("nbytes", [4, KB, MB, 64 * MB])
    def test_where_nothing_was_measured_the_smallest_wins(self, size, nbytes):
        choice = choose([size], nbytes, 4, DEFAULT_COSTS)
        assert ", but" not in choice.why
        times = [predict(name, [size], nbytes, 4, DEFAULT_COSTS) for name in ALGORITHMS]
        assert choice.seconds <= min(times)


class TestSeveralHosts:
    @each("size", [2, 3, 8, 33])
    @each("nbytes", [0, 100, MB, 64 * MB])
    def test_one_rank_each_takes_the_best_schedule(self, size, nbytes):
        choice = choose([1] * size, nbytes, 4, DEFAULT_COSTS)
        forms = {n: ALGORITHMS[n].seconds(size, nbytes, DEFAULT_COSTS.between) for n in ALGORITHMS}
        assert choice.algorithm in ALGORITHMS
        assert choice.seconds == forms[choice.algorithm]
        assert choice.seconds == pytest.approx(min(forms.values()))

    def test_short_vectors_and_long_ones(self):
        names = [choose([1] * 12, n, 4, DEFAULT_COSTS).algorithm for n in (KB, 256 * KB, 256 * MB)]
        assert names == ["butterfly", "halving-doubling-blocks", "ring"]

    def test_why_names_the_runners_up_but_no_equals(self):
        """Among 4 hosts halving-doubling in blocks is halving-doubling itself."""
        assert choose([1] * 4, 64 * MB, 4, DEFAULT_COSTS).why == (
            "halving-doubling: 89 ms predicted for 64 MiB on 4 ranks of 4 hosts; "
            "ring 89.1 ms; segmented-ring 93.6 ms"
        )


class TestMeasuredBetweenHosts:
    NAMES = ("ring", "butterfly", "halving-doubling", "node+ring")

    @each("hosts", [(1, 1), (2, 2), (1, 2)])
    def test_the_fastest_of_what_was_measured_at_every_size(self, hosts):
        """All orders of four times at one size, another one at the other; and in between."""
        orders = list(permutations((1e-3, 1.1e-3, 2e-3, 5e-3)))
        names = self.NAMES if max(hosts) > 1 else self.NAMES[:3]
        for short, long in zip(orders, orders[5:] + orders[:5], strict=True):
            rows = [(name, hosts, KB, s) for name, s in zip(self.NAMES, short, strict=True)]
            rows += [
                (name, hosts, 4 * MB, 1e3 * s) for name, s in zip(self.NAMES, long, strict=True)
            ]
            costs = with_measured(*rows)
            for nbytes in (0, KB, 64 * KB, 4 * MB, 64 * MB):
                choice = choose(hosts, nbytes, 4, costs)
                times = {name: costs.measured_seconds(name, hosts, nbytes) for name in names}
                assert choice.seconds == times[choice.algorithm]
                assert choice.seconds <= 1.03 * min(times.values())
                if nbytes in (KB, 4 * MB):
                    assert choice.seconds == min(times.values())
            if max(hosts) > 1:
                asked = choose(hosts, KB, 4, costs, shared_memory=True)
                assert asked.algorithm == "node+ring"

    def test_what_was_not_measured_is_no_candidate(self):
        costs = with_measured(("root", (1, 1), MB, 10.0))
        why = "root: 10 s measured for 1 MiB on 2 ranks of 2 hosts"
        assert choose([1, 1], MB, 4, costs).why == why

    @each(("factor", "algorithm"), [(0.96, "ring"), (0.98, "butterfly")])
    def test_of_what_is_alike_the_first_one_whatever_the_noise(self, factor, algorithm):
        measured = (("ring", (1, 1), MB, factor * 1e-3), ("butterfly", (1, 1), MB, 1e-3))
        choice = choose([1, 1], MB, 4, with_measured(*measured))
        assert choice.algorithm == algorithm
        assert ("ring 980 µs, but not 3 % faster" in choice.why) == (algorithm == "butterfly")

    @each("hosts", [[1, 1, 1], [2, 2], [2]])
    def test_of_other_ranks_nothing_is_known(self, hosts):
        costs = with_measured(("root", (1, 1), MB, 1e-9))
        assert choose(hosts, MB, 4, costs) == choose(hosts, MB, 4, DEFAULT_COSTS)

    @each(("factor", "algorithm"), [(0.96, "mpi"), (0.98, "ring"), (2, "ring")])
    def test_the_library_must_be_clearly_faster(self, factor, algorithm):
        measured = (("ring", (1, 1), MB, 1e-3), ("mpi", (1, 1), MB, factor * 1e-3))
        assert choose([1, 1], MB, 4, with_measured(*measured)).algorithm == algorithm
        unknown = choose([1, 1], MB, 4, with_measured(*measured), dtype_ok_for_library=False)
        assert unknown.algorithm == "ring"
        asked = choose([1, 1], MB, 4, with_measured(*measured), shared_memory=True)
        assert asked.algorithm.startswith("node+")


class TestPredict:
    MACHINE = MachineCosts(
        LinkCosts(1.0, 0.1, 0.01), LinkCosts(100.0, 10.0, 1.0), NodeCosts(1000.0, 0.5), cores=2
    )

    def predicted(self, name, hosts, nbytes=64):
        return predict(name, hosts, nbytes, 4, self.MACHINE)

    def test_lanes_share_the_wire_and_the_cores(self):
        """Of 8 bytes each lane sends 2; four lanes on one wire, two on each core."""
        inside = self.MACHINE.node.seconds(4, 8, cores=2)
        across = 100 + 4 * 2 * 10 + 2 * 2 * 1
        assert self.predicted("node+butterfly", [4, 4], nbytes=8) == inside + across
        inside = self.MACHINE.node.seconds(7, 8, cores=2)  # as many as the smallest host has ranks
        assert self.predicted("node+butterfly", [2, 7], nbytes=8) == inside + 100 + 80 + 4

    def test_the_fold_inside_is_that_of_the_largest_host(self):
        assert self.predicted("node+ring", [1, 2]) > self.predicted("ring", [1, 1])
        more = self.predicted("node+ring", [1, 5]) - self.predicted("node+ring", [1, 2])
        node = self.MACHINE.node
        assert more == pytest.approx(node.seconds(5, 64, 2) - node.seconds(2, 64, 2))

    def test_crowded_schedules_share_the_wire(self):
        ring = ALGORITHMS["ring"].seconds(4, 64, self.MACHINE.between)
        assert self.predicted("ring", [2, 2]) == ring
        shared = LinkCosts(100.0, 20.0, 1.0)
        assert self.predicted("butterfly", [2, 2]) == ALGORITHMS["butterfly"].seconds(4, 64, shared)

    def test_inside_a_host(self):
        assert self.predicted("ring", [2]) == ALGORITHMS["ring"].seconds(2, 64, self.MACHINE.inside)
        assert self.predicted("node", [2]) == self.MACHINE.node.seconds(2, 64, cores=2)

    @each(("name", "hosts"), [("mpi", [2]), ("mpi", [1, 1]), ("node", [2, 2])])
    def test_what_is_not_known(self, name, hosts):
        assert self.predicted(name, hosts) is None

    @each("name", ["star", "node+star", "node+node"])
    def test_an_unknown_name(self, name):
        with pytest.raises(ConfigError, match=r"no all-reduce '(star|node)'"):
            self.predicted(name, [2, 2])


def test_one_rank_has_nothing_to_choose():
    choice = choose([1], MB, 4, with_library((1, MB, 1e-9)))
    assert choice.algorithm in ALGORITHMS
    assert (choice.seconds, choice.why) == (0, "1 rank: nothing to sum")


@each("hosts", [[], [2, 0], [-1]])
def test_hosts_without_ranks(hosts):
    with pytest.raises(ConfigError, match=r"ranks on each host .*, expected at least 1 each"):
        choose(hosts, MB, 4, DEFAULT_COSTS)


def test_of_equals_the_first_is_the_fastest():
    assert fastest({"a": 2.0, "b": 1.0 + 1e-12, "c": 1.0}) == "b"


# --- a user's word -----------------------------------------------------------------------------


def named(algorithm, hosts, nbytes=MB, kind="float32", costs=DEFAULT_COSTS, **more):
    return pick(algorithm, hosts, nbytes, np.dtype(kind), costs, **more)


@each("name", ["mpi", *ALGORITHMS, *(f"node+{name}" for name in ALGORITHMS)])
@each("hosts", [[1], [4], [2, 2]])
def test_a_name_is_left_as_it_is(name, hosts):
    choice = named(name, hosts)
    assert (choice.algorithm, choice.why) == (name, "as asked")


@each("hosts", [[2, 2], [4, 1], [1, 1, 1]])
@each("nbytes", [0, 1000, 1 << 28])
def test_node_on_several_hosts_gets_a_schedule_between_them(hosts, nbytes):
    choice = named("node", hosts, nbytes)
    assert choice.algorithm.startswith("node+")
    assert choice.algorithm.removeprefix("node+") in ALGORITHMS
    assert choice.why


def test_the_library_is_not_picked_for_what_it_cannot_reduce_or_need_not_agree_on():
    """MPI promises nothing of minima with NaN: there the ranks may end with different numbers."""
    quick = with_library((3, 8, 1e-12), (3, 1 << 20, 1e-12))
    for kind in ("float16", "float32", "float64", "int32", "int64"):
        for op in OPS:
            choice = named("auto", [3], 1000, kind, quick, op=op)
            unsure = kind == "float16" or (op in ("min", "max") and kind.startswith("float"))
            assert (choice.algorithm == "mpi") != unsure, (op, kind)
