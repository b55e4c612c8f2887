"""Who decides when a job saves, how others learn of it, and how many workers it goes on with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from psrt.checkpoint import Checkpoints
from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.job.caller import Caller
from psrt.job.elastic import Elastic, Size
from psrt.job.initiator import Initiator
from psrt.job.pace import FIRST_S, Pace
from support.cases import each
from support.disks import Memory

# --- shards, at which workers park ---------------------------------------------------------------


def callers_of(disk, **more):
    """Return what calls workers to park, and a process that only asks."""
    checkpoints = Checkpoints(disk, Path("run"))
    one = Caller(checkpoints, disk, process=2, decides=True, **more)
    return one, Caller(checkpoints, disk, process=0, decides=False)


def test_steps_call_once_each():
    caller, _ = callers_of(Memory(), every=5, step=7)
    found = [caller.call(step) for step in (7, 8, 9, 9, 11, 11, 14, 26, 29, 30)]
    assert found == [0, 0, 0, 0, 11, 0, 0, 26, 0, 30]


def test_time_calls_and_what_one_costs_is_measured():
    now = 0.0
    pace = Pace(None, mtbf_s=1800.0, now=lambda: now)
    caller, _ = callers_of(Memory(), pace=pace, now=lambda: now)
    assert caller.call(0) == caller.call(1) == 0
    now = FIRST_S
    assert caller.call(2) == 2
    now += 1.0
    caller.saved()
    assert pace.interval_s == 60.0
    now = FIRST_S + 59.0
    assert caller.call(90) == 0
    now = FIRST_S + 60.0
    assert caller.call(2) == 0  # it would be the same one again
    assert caller.call(91) == 91  # it is still due


def test_who_is_asked_to_stop_tells_who_calls():
    disk = Memory()
    caller, other = callers_of(disk, every=100)
    for step in range(1, 4):
        other.look()
        caller.look()
        assert caller.call(step) == 0
    other.ask(stop=True)
    disk.full = True
    other.look()
    caller.look()
    assert caller.call(4) == 0
    disk.full = False
    other.look()
    caller.look()
    assert not caller.stops
    assert caller.call(0) == 0  # no step is done, so there is nothing to save
    assert caller.call(5) == -5
    assert caller.stops
    caller.look()
    assert [caller.call(step) for step in (6, 100, 200)] == [0, 0, 0]
    assert not other.stops


def test_another_attempt_is_not_asked_by_what_is_left_of_one():
    disk = Memory()
    caller, other = callers_of(disk, attempt=1)
    other.ask(stop=True)
    other.look()
    caller.look()
    assert caller.call(3) == 0


# --- workers that no server sees -----------------------------------------------------------------


def initiators_of(disk, *, processes=3, **more):
    """Return what decides, and the others."""
    checkpoints = Checkpoints(disk, Path("run"))
    return [
        Initiator(checkpoints, disk, process=it, decides=it == 0, **more) for it in range(processes)
    ]


def look(*initiators):
    for it in initiators:
        it.look()


def test_the_steps_of_the_fastest_name_a_checkpoint_each():
    (one,) = initiators_of(Memory(), processes=1, every=5, step=7)
    found = [one.call(step, 0) for step in (7, 8, 9)]
    assert found == [0, 0, 0]
    assert [one.call(11, 0), one.call(6, 0), one.call(12, 11)] == [11, 11, 0]
    calls = ((14, 11), (26, 11), (30, 11), (3, 26))
    assert [one.call(*it) for it in calls] == [0, 26, 26, 30]


def test_others_learn_of_all_of_them_in_order():
    disk = Memory()
    first, *others = initiators_of(disk, every=2)
    assert [first.call(step, 0) for step in (1, 2)] == [0, 2]
    assert first.call(4, 2) == 4
    assert first.call(6, 4) == 6
    assert others[0].call(1, 0) == 0
    look(first, *others)
    for other in others:
        assert [other.call(1, last) for last in (0, 2, 4, 6)] == [2, 4, 6, 0]


def test_one_that_is_faster_than_the_first_has_it_decide():
    disk = Memory()
    first, fast, other = initiators_of(disk, every=10)
    first.call(3, 0)
    assert fast.call(12, 0) == 0
    look(first, fast, other)
    assert first.call(4, 0) == 0
    look(first, fast, other)
    assert first.call(4, 0) == fast.call(13, 0) == other.call(1, 0) == 12
    assert first.call(11, 12) == 0
    # What it was told before is no reason for another one.
    fast.call(19, 12)
    look(fast, first, other, fast)
    assert fast.call(19, 12) == 0


def test_one_that_is_done_tells_nothing_any_more():
    disk = Memory()
    first, fast, _ = initiators_of(disk, every=10)
    fast.call(12, 0)
    fast.ended()
    look(fast, first)
    assert first.call(4, 0) == 0
    assert not disk.names(Path("run/checkpoints"))


def test_who_is_asked_to_stop_tells_who_decides_and_nothing_follows():
    disk = Memory()
    first, asked, other = initiators_of(disk, every=100)
    for it in (first, asked, other):
        it.call(5, 0)
    asked.ask(stop=True)
    disk.full = True
    look(asked, first)
    assert first.call(6, 0) == 0
    disk.full = False
    look(asked, first, asked, other)
    assert first.call(6, 0) == asked.call(5, 0) == other.call(3, 0) == -6
    assert [first.call(step, 6) for step in (7, 100, 300)] == [0, 0, 0]
    assert not first.stops  # nobody has come to it


def test_a_stop_after_a_checkpoint_of_a_faster_one_has_a_number_of_its_own():
    (one,) = initiators_of(Memory(), processes=1, every=10)
    assert one.call(10, 0) == 10
    one.ask(stop=True)
    assert one.call(4, 10) == -11


def test_nothing_is_saved_before_a_step_is_done():
    (one,) = initiators_of(Memory(), processes=1)
    one.ask()
    one.look()
    assert one.call(0, 0) == 0
    assert one.call(1, 0) == 1


def test_an_announcement_stays_until_all_have_saved_themselves(monkeypatch):
    disk = Memory()
    first, slow, _ = initiators_of(disk, every=1)
    saved, checkpoints = [], Checkpoints(disk, Path("run"))
    monkeypatch.setattr(first._checkpoints, "listed", lambda: iter([(None, it) for it in saved]))

    def announced():
        look(first)
        return [step for step in (1, 2, 3, 4) if disk.names(checkpoints.cut(step, 0))]

    for step in (1, 2, 3):
        first.call(step, step - 1)
        assert announced() == [*range(1, step + 1)]
    look(slow)
    saved.append(SimpleNamespace(step=2))
    first.call(4, 3)
    assert announced() == [3, 4]
    look(slow)
    assert [slow.call(1, it) for it in range(5)] == [1, 2, 3, 4, 0]


# --- other workers, but never another number of samples in a step --------------------------------

SYNC = TrainConfig(mode="sync", servers=1, batch_size=12)
ALL = TrainConfig(mode="allreduce", batch_size=6)


@each(
    ("config", "ranks", "slots", "wanted"),
    [
        # Four workers and a server on five hosts of one slot.
        (SYNC, 5, 5, {5: Size(5, 12), 4: Size(4, 16), 3: Size(3, 24), 2: Size(2, 48)}),
        # Three of the five would be 9.6 samples each: two go on.
        (SYNC, 6, 6, {6: Size(6, 12), 5: Size(5, 15), 4: Size(4, 20)}),
        (SYNC, 3, 6, {6: Size(3, 12), 4: Size(3, 12), 3: Size(3, 12), 2: Size(2, 24)}),
        # More ranks than cores.
        (ALL, 6, 3, {3: Size(6, 6), 2: Size(4, 9), 1: Size(2, 18)}),
        (ALL, 8, 8, {7: Size(6, 8), 5: Size(4, 12), 3: Size(3, 16), 1: Size(1, 48)}),
    ],
)
def test_the_samples_of_a_step_stay(config, ranks, slots, wanted):
    it = Elastic.of(config, ranks, slots, samples=0, least=1)
    assert {left: it.on(left) for left in wanted} == wanted


def test_no_fewer_than_are_wanted():
    it = Elastic.of(SYNC, ranks=5, slots=5, samples=0, least=3)
    assert it.on(4) == Size(4, 16)
    assert it.on(3) == "that leaves 2 workers, --min-workers is 3"
    with pytest.raises(ConfigError, match="--min-workers 5 are more than the 4 workers"):
        Elastic.of(SYNC, ranks=5, slots=5, samples=0, least=5)


def test_what_was_saved_says_the_samples():
    """It was saved with two workers of 24 while a host was away."""
    assert Elastic.of(SYNC, ranks=5, slots=5, samples=48, least=1).full == Size(5, 12)
    with pytest.raises(ConfigError, match="keeps the 50 samples of a step, which 4 workers"):
        Elastic.of(SYNC, ranks=5, slots=5, samples=50, least=1)


@each(
    ("knobs", "line"),
    [
        ({"mode": "gossip"}, "other workers, which --mode gossip cannot have"),
        (
            {"mode": "allreduce", "record": True, "out": "x"},
            "--record cannot have, since they make no one history",
        ),
    ],
)
def test_what_cannot_go_on_with_others_is_refused_at_once(knobs, line):
    with pytest.raises(ConfigError, match=line):
        Elastic.of(TrainConfig(**knobs), ranks=4, slots=4, samples=0, least=1)
