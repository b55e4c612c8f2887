"""When a shard has workers park, and how the other processes ask it to."""

from __future__ import annotations

from pathlib import Path

from psrt.checkpoint import Checkpoints
from psrt.job.caller import Caller
from psrt.job.pace import FIRST_S, Pace
from support.disks import Memory


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
