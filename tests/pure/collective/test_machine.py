"""What is known of a machine: shared memory, what was measured, and its file."""

import json
from dataclasses import replace

import pytest

from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts, NodeCosts
from psrt.collective.costs import LinkCosts
from psrt.errors import ConfigError
from support.cases import each

TIMES = (
    ("mpi", (4,), 1 << 20, 1e-3),
    ("mpi", (2,), 1 << 10, 2e-5),
    ("mpi", (2,), 1 << 20, 7e-4),
    ("node+ring", (2, 1), 1 << 20, 3e-3),
)
MEASURED = MachineCosts(
    inside=LinkCosts(1.1e-6, 1.3e-10, 0.0),
    between=LinkCosts(1e-5, 1 / 3e9, 1e-10),
    node=NodeCosts(1 / 3 * 1e-6, 1e-10),
    cores=8,
    measured=TIMES,
)


class TestNode:
    NODE = NodeCosts(sync_s=1e-3, byte_s=1.0)

    @each(("ranks", "rounds"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
    def test_two_barriers_of_lg_rounds(self, ranks, rounds):
        barriers = self.NODE.seconds(ranks, 100, cores=64) - 100
        assert barriers == pytest.approx(2 * rounds * 1e-3)

    def test_the_bytes_are_passed_over_once_whatever_the_ranks(self):
        node = NodeCosts(sync_s=0.0, byte_s=2.0)
        assert {node.seconds(ranks, 100, cores=8) for ranks in range(2, 9)} == {200}

    def test_ranks_beyond_the_cores_queue_up(self):
        node = NodeCosts(sync_s=0.0, byte_s=1.0)
        assert [node.seconds(ranks, 100, cores=2) for ranks in (2, 3, 4, 8)] == [100, 150, 200, 400]

    def test_nothing_to_do(self):
        assert self.NODE.seconds(1, 100, cores=2) == 0
        assert self.NODE.seconds(4, 0, cores=2) == 0


class TestMeasured:
    @each(
        ("nbytes", "seconds"),
        [
            (0, 2e-5),
            (1, 2e-5),
            (1 << 10, 2e-5),
            (1 << 15, (2e-5 * 7e-4) ** 0.5),  # half of the way on log-log paper
            (1 << 20, 7e-4),
            (1 << 22, 4 * 7e-4),
        ],
    )
    def test_between_and_beyond_what_was_measured(self, nbytes, seconds):
        assert MEASURED.measured_seconds("mpi", [2], nbytes) == pytest.approx(seconds)

    def test_one_measurement_is_enough(self):
        assert MEASURED.measured_seconds("mpi", [4], 1 << 19) == 1e-3
        assert MEASURED.measured_seconds("mpi", [4], 1 << 21) == 2e-3

    def test_other_ranks_other_hosts_and_other_names_are_not_known(self):
        assert MEASURED.measured_seconds("node+ring", (2, 1), 1 << 20) == 3e-3
        assert MEASURED.measured_seconds("node+ring", (1, 2), 1 << 20) is None
        assert MEASURED.measured_seconds("ring", (2, 1), 1 << 20) is None
        assert MEASURED.measured_seconds("mpi", [3], 1 << 20) is None
        assert DEFAULT_COSTS.measured_seconds("mpi", [2], 1 << 20) is None


def at(path):
    """Return the document of a machine, and the part of it and the key that a path leads to."""
    document = part = json.loads(MEASURED.to_json())
    *parents, last = path
    for key in parents:
        part = part[key]
    return document, part, last


class TestJson:
    @each("costs", [MEASURED, DEFAULT_COSTS])
    def test_there_and_back_without_loss(self, costs):
        assert MachineCosts.from_json(costs.to_json()) == costs

    def test_whole_numbers_are_times_too(self):
        document = json.loads(MEASURED.to_json())
        document["inside"]["alpha"] = 0
        found = MachineCosts.from_json(json.dumps(document))
        assert found == replace(MEASURED, inside=replace(MEASURED.inside, alpha=0.0))

    @each(
        ("path", "value", "message"),
        [
            (["inside"], 3, "inside: 3, expected an object"),
            (["inside", "alpha"], "1", "inside.alpha: '1', expected seconds"),
            (["inside", "alpha"], True, "inside.alpha: True, expected seconds"),
            (["between", "beta"], -1e-9, r"between.beta: -1e-09, expected 0 to 1e\+09 seconds"),
            (["between", "beta"], float("nan"), "between.beta: nan, expected 0 to"),
            (["between", "beta"], float("inf"), "between.beta: inf, expected 0 to"),
            (["between", "beta"], 10**400, "between.beta: 1000.*, expected 0 to"),
            (["between", "delta"], 1.0, "between: unknown 'delta', expected alpha, beta, gamma"),
            (["node", "byte_s"], None, "node.byte_s: None, expected seconds"),
            (["cores"], 0, "cores: 0, expected a whole number of at least 1"),
            (["cores"], 1 << 63, "cores: a number of 64 bits, expected at most 63"),
            (["cores"], 2.0, "cores: 2.0, expected a whole number of at least 1"),
            (["cores"], True, "cores: True, expected a whole number of at least 1"),
            (["speed"], 1, "costs of a machine: unknown 'speed', expected between, cores, "),
            (["measured"], {}, "measured: {}, expected a list of "),
            (["measured", 1], [2, 1], r"measured\[1\]: \[2, 1\], expected \[algorithm, ranks of "),
            (["measured", 1], 7, r"measured\[1\]: 7, expected "),
            (["measured", 0, 0], 3, r"measured\[0\]: 3, expected the name of an algorithm"),
            (["measured", 0, 1], 4, r"measured\[0\]: 4, expected the ranks of each host"),
            (["measured", 0, 1], [], r"measured\[0\]: \[\], expected the ranks of each host"),
            (["measured", 0, 1], [0], r"measured\[0\], ranks: 0, expected a whole number"),
            (["measured", 0, 2], 1.5, r"measured\[0\], bytes: 1.5, expected a whole number"),
            (["measured", 0, 3], "x", r"measured\[0\], seconds: 'x', expected seconds"),
            (["measured", 0, 3], 0, r"measured\[0\], seconds: 0, expected more"),
            (
                ["measured", 1],
                ["mpi", [4], 1 << 20, 2.0],
                r"measured\[1\]: mpi on \[4\] with 1048576 bytes again",
            ),
        ],
    )
    def test_what_is_wrong_is_named(self, path, value, message):
        document, part, last = at(path)
        part[last] = value
        with pytest.raises(ConfigError, match=message):
            MachineCosts.from_json(json.dumps(document))

    @each("path", [["measured"], ["node"], ["inside", "gamma"]])
    def test_what_is_missing_is_named(self, path):
        document, part, last = at(path)
        del part[last]
        with pytest.raises(ConfigError, match=f"no '{last}'"):
            MachineCosts.from_json(json.dumps(document))

    @each("text", ["", "{", "inside: 3", "[" * 100_000])
    def test_no_json(self, text):
        with pytest.raises(ConfigError, match="costs of a machine: not JSON"):
            MachineCosts.from_json(text)

    def test_no_object(self):
        with pytest.raises(ConfigError, match="costs of a machine: 3, expected an object"):
            MachineCosts.from_json("3")
