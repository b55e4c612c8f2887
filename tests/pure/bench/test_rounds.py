"""Who has a turn in which round, and what is read off them."""

import pytest

from psrt.bench.rounds import Entry, has_turn, pairs, plan, readings


@pytest.mark.parametrize("rounds", [1, 2, 5, 9])
@pytest.mark.parametrize("turns", range(1, 10))
def test_as_many_turns_as_planned_and_never_far_apart(turns, rounds):
    turns = min(turns, rounds)
    taken = [number for number in range(rounds) if has_turn(number, turns, rounds)]
    assert len(taken) == turns
    gaps = [b - a for a, b in zip([-1, *taken], taken, strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_a_plan_keeps_to_the_budget_but_for_the_least():
    for seconds in (1e-7, 1e-5, 1e-3, 0.02, 0.3, 5.0):
        calls, turns = plan(seconds, Entry(print, budget_s=0.5, least=2), 9)
        assert 2 <= turns <= 9
        assert calls >= 1
        if turns > 2:
            assert calls * turns * seconds <= 0.5 + 1e-9
    assert plan(5.0, Entry(print, budget_s=0.5, least=4), 3) == (1, 3)
    assert plan(1e-7, Entry(print), 9)[0] == 2000
    assert plan(0.0, Entry(print), 9) == (2000, 9)


def test_only_readings_of_one_round_are_held_against_each_other():
    rounds = [{"a": 1.0, "b": 10.0}, {"a": 2.0}, {"a": 3.0, "b": 30.0}]
    assert readings(rounds, "a") == [1.0, 2.0, 3.0]
    assert readings(rounds, "b") == [10.0, 30.0]
    assert pairs(rounds, "b", "a") == [(10.0, 1.0), (30.0, 3.0)]
    assert pairs(rounds, "a", "c") == []
