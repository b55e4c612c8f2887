"""Who has a turn in which round of a race, on which ranks, and what becomes of what was read."""

import math

import pytest

from psrt.bench.figures import Summary
from psrt.bench.race import (
    Candidate,
    Layout,
    Pace,
    Readings,
    has_turn,
    layout,
    plan,
    race,
    repeated,
    trial,
)
from support.cases import each


class Clock:
    """Seconds that pass only where a candidate says so."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("psrt.bench.race.perf_counter", lambda: self.now)

    def spend(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def spending(clock):
    """Makes candidates that take that long, and says who was called."""
    calls = []

    def candidate(name, seconds, **options):
        def call():
            calls.append(name)
            clock.spend(seconds)

        return Candidate(repeated(call), **options)

    return candidate, calls


def test_candidates_take_turns_and_every_other_round_goes_backwards(spending):
    candidate, calls = spending
    candidates = {name: candidate(name, s) for name, s in (("a", 1.0), ("b", 2.0), ("c", 4.0))}
    found = race(candidates, 3, calls=1, warmup=1)
    assert found.rounds == [{"a": 1.0, "b": 2.0, "c": 4.0}] * 3
    assert [calls[i : i + 3] for i in range(0, 12, 3)] == [
        ["c", "b", "a"],  # the warm-up
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["a", "b", "c"],
    ]


def test_a_turn_is_as_many_calls_as_fill_it_and_a_reading_is_of_one(spending):
    candidate, calls = spending
    found = race({"short": candidate("short", 0.25e-3), "long": candidate("long", 0.5)}, 1)
    assert found.rounds == [pytest.approx({"short": 0.25e-3, "long": 0.5})]
    assert calls[-17:] == ["short"] * 16 + ["long"]


def test_who_has_spent_its_budget_has_fewer_turns(spending):
    candidate, calls = spending
    candidates = {"a": candidate("a", 0.1, budget_s=0.3), "b": candidate("b", 0.1, budget_s=9)}
    found = race(candidates, 9)
    assert (len(found.of("a")), len(found.of("b"))) == (3, 9)
    assert len(found.pairs("a", "b")) == 3
    assert calls.count("a") == 3 + 1


def test_the_slowest_rank_counts_and_all_meet_before_each_turn(spending):
    candidate, calls = spending

    class TwoRanks:
        def meet(self):
            calls.append("meet")

        def slowest(self, seconds):
            return [max(s, 3.0) for s in seconds]

    assert race({"a": candidate("a", 1.0)}, 2, track=TwoRanks(), calls=1).of("a") == [3.0, 3.0]
    assert calls == ["meet", "a", "meet", "a"]
    # A rank without a part comes to the meetings only.
    assert race({"a": Candidate(None)}, 2, calls=1).rounds == [{}, {}]
    assert trial(None) == 0.0


def test_what_a_call_takes_is_not_read_off_one_that_waited_for_a_core(clock):
    calls = []

    def call():
        calls.append(0)
        clock.spend(5e-3 if len(calls) == 1 else 20e-6)

    assert trial(repeated(call)) == pytest.approx(20e-6)


@each("rounds", [1, 2, 5, 9])
@each("turns", range(1, 10))
def test_as_many_turns_as_planned_and_never_far_apart(turns, rounds):
    turns = min(turns, rounds)
    taken = [number for number in range(rounds) if has_turn(number, turns, rounds)]
    assert len(taken) == turns
    gaps = [b - a for a, b in zip([-1, *taken], taken, strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_a_trial_is_no_reading_of_who_has_turns(spending):
    candidate, calls = spending
    found = race({"a": candidate("a", 1.0, budget_s=1.0, least=2)}, 9)
    assert found.of("a") == [1.0, 1.0]
    assert calls.count("a") == 1 + 2
    assert plan(1e-7, Candidate(None), 9, Pace(most=2000))[0] == 2000
    assert plan(0.0, Candidate(None, budget_s=math.inf), 9, Pace(most=7)) == (7, 9)
    assert plan(5.0, Candidate(None), 9, Pace(fewest=4)) == (4, 9)


def test_only_readings_of_one_round_are_held_against_each_other():
    # The machine is ten times slower in the last round.
    found = Readings([{"a": 1.0, "b": 2.0}, {"a": 2.0}, {"a": 10.0, "b": 20.0}])
    assert found.of("a") == [1.0, 2.0, 10.0]
    assert found.pairs("b", "a") == [(2.0, 1.0), (20.0, 10.0)]
    assert found.ratio("b", "a").median == 2.0
    assert found.ratio("b", "a", 2.0, 2.0).median == pytest.approx((2 / 4 + 20 / 22) / 2)
    assert found.ratio("a", "c") is None
    assert found.summary("b", 1e3).median == 11000.0


# --- on which ranks -----------------------------------------------------------------------------

HERE = [[0, 1, 2, 3]]
TWO_HOSTS = [[0, 1, 2], [3, 4]]


@each(
    ("present", "ranks", "hosts", "expected"),
    [
        (HERE, 2, 1, Layout(((0, 1),), pretended=False)),
        (HERE, 4, 4, Layout(((0,), (1,), (2,), (3,)), pretended=True)),
        (HERE, 4, 2, Layout(((0, 1), (2, 3)), pretended=True)),
        (HERE, 5, 1, None),
        (HERE, 2, 4, None),
        (TWO_HOSTS, 4, 2, Layout(((0, 1), (3, 4)), pretended=False)),
        (TWO_HOSTS, 4, 1, None),
        ([[0], [1, 2, 3]], 2, 1, None),
    ],
)
def test_layout(present, ranks, hosts, expected):
    assert layout(present, ranks, hosts) == expected


# --- figures ------------------------------------------------------------------------------------


def test_a_summary_is_median_and_quartiles():
    assert Summary.of([9.0, 1.0, 5.0, 3.0, 7.0]) == Summary(5.0, 3.0, 7.0, 5)
    assert Summary.of([2.0]) == Summary(2.0, 2.0, 2.0, 1)
