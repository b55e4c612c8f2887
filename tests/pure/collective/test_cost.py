"""The clocks, on schedules small enough to follow by hand, their bounds, and costs of a machine."""

import json
from dataclasses import replace

import pytest

from psrt.collective import ALGORITHMS, Step
from psrt.collective.analysis.cost import lower_bounds, price
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts, NodeCosts
from psrt.collective.costs import LinkCosts
from psrt.core.errors import ConfigError, ProtocolError
from psrt.core.partition import Span
from support.cases import each

#: A message of m elements takes 100 + 10 m seconds, to fold them m. Elements are of 1 byte here.
COSTS = LinkCosts(alpha=100.0, beta=10.0, gamma=1.0)
A, B, ALL = Span(0, 3), Span(3, 6), Span(0, 6)


def seconds(*schedules, overlap=False):
    return price(schedules, 1, COSTS, overlap=overlap).seconds


def exchange(peer, span, combine=True):
    return Step(peer, span, peer, span, combine)


def test_a_message_and_its_fold():
    assert seconds([Step.sending(1, A)], [Step.receiving(0, A, combine=False)]) == 130
    assert seconds([Step.sending(1, A)], [Step.receiving(0, A, combine=True)]) == 133


def test_both_halves_of_a_step_travel_at_once():
    assert seconds([exchange(1, A)], [exchange(0, A)]) == 133


def test_a_step_ends_with_the_later_of_its_halves():
    """Rank 1 sends 3 elements and receives 6, from different ranks."""
    schedules = [
        [Step.sending(1, ALL)],
        [Step(2, A, 0, ALL, False), Step.sending(2, A)],
        [Step.receiving(1, A, combine=False), Step.receiving(1, A, combine=False)],
    ]
    assert seconds(*schedules) == 160 + 130


def test_a_message_begins_when_both_ends_have_posted_it():
    """Rank 2 waits for rank 1, which is folding what rank 0 sent; rank 0 is long done."""
    schedules = [
        [Step.sending(1, A)],
        [Step.receiving(0, A, combine=True), Step.receiving(2, A, combine=True)],
        [Step.sending(1, A)],
    ]
    assert seconds(*schedules) == 133 + 133


def test_a_local_fold_takes_time_and_a_local_copy_none():
    assert seconds([Step.local(0, A, B, combine=True)]) == 3
    assert seconds([Step.local(0, A, B, combine=False)]) == 0
    found = price([[Step.local(0, A, B, combine=True)]], 1, COSTS)
    assert (found.messages, found.rounds, found.wires, found.combined) == (0, 0, 0, (3,))


def test_what_is_empty_is_left_out():
    nothing = Span(3, 3)
    schedules = [[Step(1, A, 1, nothing, True)], [Step(0, nothing, 0, A, True)]]
    found = price(schedules, 1, COSTS)
    assert (found.seconds, found.messages, found.sent) == (133, 1, (3, 0))
    found = price([[exchange(1, nothing)], [exchange(0, nothing)]], 4, COSTS)
    assert (found.seconds, found.messages, found.rounds, found.wires) == (0, 0, 0, 0)


def test_counts():
    schedules = [
        [Step.sending(1, A), Step.sending(1, A)],
        [Step.receiving(0, A, combine=True), Step.receiving(0, A, combine=False),
         Step.sending(2, ALL)],
        [Step.receiving(1, ALL, combine=True)],
    ]  # fmt: skip
    found = price(schedules, 4, COSTS)
    assert found.seconds == 3 * 100 + 4 * (130 - 100 + 3 + 30 + 60 + 6)
    assert (found.rounds, found.messages, found.wires) == (3, 3, 2)
    assert (found.sent, found.received, found.combined) == ((24, 24, 0), (0, 24, 24), (0, 12, 24))
    assert (found.sent_max, found.received_max, found.combined_max) == (24, 24, 24)


def test_wires_are_pairs_of_ranks_in_their_direction():
    to_2 = [Step.sending(2, A), Step.receiving(2, A, combine=False)]
    from_both = [Step.receiving(rank, A, combine=True) for rank in (0, 1)]
    schedules = [to_2, to_2, [*from_both, Step.sending(0, A), Step.sending(1, A)]]
    assert price(schedules, 4, COSTS).wires == 4


def test_no_ranks_and_no_steps_cost_nothing():
    assert seconds() == seconds([], []) == price([], 4, COSTS).sent_max == 0


class TestOverlap:
    def test_a_fold_runs_beside_the_next_message(self):
        """133 + 133 without; with it the first fold is hidden and the last one is not."""
        two = [exchange(1, A), exchange(1, B)], [exchange(0, A), exchange(0, B)]
        assert seconds(*two) == 266
        assert seconds(*two, overlap=True) == 130 + 130 + 3

    def test_what_is_being_folded_is_not_sent(self):
        two = [exchange(1, A), exchange(1, A)], [exchange(0, A), exchange(0, A)]
        assert seconds(*two, overlap=True) == 266

    def test_what_is_being_folded_is_not_overwritten(self):
        fill = Step.receiving(0, A, combine=False)
        schedules = [Step.sending(1, A)] * 2, [Step.receiving(0, A, combine=True), fill]
        assert seconds(*schedules, overlap=True) == 133 + 130

    def test_what_arrives_to_be_folded_may_be_on_its_way(self):
        schedules = [Step.sending(1, A)] * 2, [Step.receiving(0, A, combine=True)] * 2
        assert seconds(*schedules, overlap=True) == 130 + 130 + 3

    def test_a_step_waits_for_the_fold_beside_it(self):
        """A rank has one pair of hands: fold 1 (600 s) outlasts message 2 (101 s)."""
        slow = LinkCosts(alpha=100.0, beta=1.0, gamma=600.0)
        one = Span(0, 1), Span(1, 2), Span(2, 3)
        mine, theirs = ([exchange(peer, span) for span in one] for peer in (1, 0))
        assert price([mine, theirs], 1, slow, overlap=True).seconds == 101 + 3 * 600

    def test_a_local_fold_comes_after_what_is_left_over(self):
        """And neither runs beside the message that follows."""
        schedules = (
            [Step.sending(1, A), Step.sending(1, Span(6, 9))],
            [
                Step.receiving(0, A, combine=True),
                Step.local(1, B, A, combine=True),
                Step.receiving(0, Span(6, 9), combine=False),
            ],
        )
        assert seconds(*schedules, overlap=True) == 130 + 3 + 3 + 130

    def test_a_local_copy_waits_for_what_it_reads(self):
        copied, other = (Step.local(1, span, Span(9, 12), combine=False) for span in (A, B))
        then = Step.receiving(0, B, combine=False)
        for local, expected in ((copied, 133 + 130), (other, 130 + 130)):
            schedules = (
                [Step.sending(1, A)] * 2,
                [Step.receiving(0, A, combine=True), local, then],
            )
            assert seconds(*schedules, overlap=True) == expected

    @each("name", ALGORITHMS)
    def test_it_never_costs(self, name):
        for size in (2, 5, 8):
            plan = ALGORITHMS[name].plan(size, 1000)
            assert seconds(*plan, overlap=True) <= seconds(*plan)


class TestBroken:
    def test_two_that_wait_for_each_other(self):
        schedules = [Step.receiving(1, A, combine=True)], [Step.receiving(0, A, combine=True)]
        with pytest.raises(ProtocolError, match=r"rank 0, step 0 .*: deadlock"):
            seconds(*schedules)

    def test_two_ends_that_differ(self):
        with pytest.raises(
            ProtocolError, match=r"rank 1, step 0 .folds .*: 3 elements come from rank 0"
        ):
            seconds([Step.sending(1, A)], [Step.receiving(0, ALL, combine=True)])


@each("name", ALGORITHMS)
@each("size", [1, 2, 3, 8, 12])
@each("n", [0, 7, 100])
def test_lower_bounds_are_not_undercut(name, size, n):
    plan = ALGORITHMS[name].plan(size, n)
    for costs in (COSTS, LinkCosts(1.0, 0, 0), LinkCosts(0, 1.0, 0), LinkCosts(0, 0, 1.0)):
        for overlap in (False, True):
            least = lower_bounds(size, 4 * n, costs).seconds
            assert price(plan, 4, costs, overlap=overlap).seconds >= least * (1 - 1e-12)


def test_lower_bounds_are_met():
    """Each by the algorithm that is optimal in it, so none of them could be higher."""
    costs = LinkCosts(1.0, 1.0, 1.0)
    for size in (2, 4, 8, 16):
        least = lower_bounds(size, 4 * 160, costs)
        assert price(ALGORITHMS["butterfly"].plan(size, 160), 4, costs).rounds == least.latency
        ring = price(ALGORITHMS["ring"].plan(size, 160), 4, costs)
        assert (ring.sent_max, ring.combined_max) == (least.bandwidth, least.combining)


TIMES = (
    ("mpi", (4,), 1 << 20, 1e-3),
    ("mpi", (2,), 1 << 10, 2e-5),
    ("mpi", (2,), 1 << 20, 7e-4),
    ("node+ring", (2, 1), 1 << 20, 3e-3),
)
MEASURED = MachineCosts(
    inside=LinkCosts(1.1e-6, 1.3e-10, 0.0), between=LinkCosts(1e-5, 1 / 3e9, 1e-10),
    node=NodeCosts(1 / 3 * 1e-6, 1e-10), cores=8, measured=TIMES,
)  # fmt: skip


class TestNode:
    NODE = NodeCosts(sync_s=1e-3, byte_s=1.0)

    @each(("ranks", "rounds"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
    def test_two_barriers_of_lg_rounds(self, ranks, rounds):
        barriers = self.NODE.seconds(ranks, 100, cores=64) - 100
        assert barriers == pytest.approx(2 * rounds * 1e-3)

    def test_the_bytes_are_passed_over_once_by_as_many_as_there_are_cores(self):
        node = NodeCosts(sync_s=0.0, byte_s=2.0)
        assert {node.seconds(ranks, 100, cores=8) for ranks in range(2, 9)} == {200}
        assert [node.seconds(ranks, 100, cores=2) for ranks in (2, 3, 4, 8)] == [200, 300, 400, 800]

    def test_nothing_to_do(self):
        assert self.NODE.seconds(1, 100, cores=2) == self.NODE.seconds(4, 0, cores=2) == 0


class TestMeasured:
    @each(("nbytes", "seconds"), [
        (0, 2e-5),
        (1 << 10, 2e-5),
        (1 << 15, (2e-5 * 7e-4) ** 0.5),  # half of the way on log-log paper
        (1 << 20, 7e-4),
        (1 << 22, 4 * 7e-4),
    ])  # fmt: skip
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

    @each(("path", "value", "message"), [
        (["inside"], 3, "inside: 3, expected an object"),
        (["between", "beta"], -1e-9, r"between.beta: -1e-09, expected 0 to 1e\+09 seconds"),
        (["between", "beta"], float("nan"), "between.beta: nan, expected 0 to"),
        (["between", "delta"], 1.0, "between: unknown 'delta', expected alpha, beta, gamma"),
        (["cores"], 0, "cores: 0, expected a whole number of at least 1"),
        (["cores"], 1 << 63, "cores: a number of 64 bits, expected at most 63"),
        (["speed"], 1, "costs of a machine: unknown 'speed', expected between, cores, "),
        (["measured"], {}, "measured: {}, expected a list of "),
        (["measured", 1], [2, 1], r"measured\[1\]: \[2, 1\], expected \[algorithm, ranks of "),
        (["measured", 0, 0], 3, r"measured\[0\]: 3, expected the name of an algorithm"),
        (["measured", 0, 1], [], r"measured\[0\]: \[\], expected the ranks of each host"),
        (["measured", 0, 1], [0], r"measured\[0\], ranks: 0, expected a whole number"),
        (["measured", 0, 3], 0, r"measured\[0\], seconds: 0, expected more"),
        (["measured", 1], ["mpi", [4], 1 << 20, 2.0],
         r"measured\[1\]: mpi on \[4\] with 1048576 bytes again"),
    ])  # fmt: skip
    def test_what_is_wrong_is_named(self, path, value, message):
        document, part, last = at(path)
        part[last] = value
        with pytest.raises(ConfigError, match=message):
            MachineCosts.from_json(json.dumps(document))

    @each("path", [["measured"], ["inside", "gamma"]])
    def test_what_is_missing_is_named(self, path):
        document, part, last = at(path)
        del part[last]
        with pytest.raises(ConfigError, match=f"no '{last}'"):
            MachineCosts.from_json(json.dumps(document))

    @each(("text", "told"), [
        ("", "not JSON"), ("{", "not JSON"), ("[" * 100_000, "not JSON"), ("3", "3, expected an"),
    ])  # fmt: skip
    def test_no_json_and_no_object(self, text, told):
        with pytest.raises(ConfigError, match=f"costs of a machine: {told}"):
            MachineCosts.from_json(text)
