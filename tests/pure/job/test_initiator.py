"""Who decides on checkpoints of workers that no server sees, and how the others learn of it."""

from __future__ import annotations

from pathlib import Path

from psrt.checkpoint import Checkpoints
from psrt.job.initiator import Initiator
from support.disks import Memory


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
    assert [one.call(14, 11), one.call(26, 11), one.call(30, 11), one.call(3, 26)] == [
        0,
        26,
        26,
        30,
    ]


def test_others_learn_of_all_of_them_in_order():
    disk = Memory()
    first, *others = initiators_of(disk, every=2)
    assert [first.call(step, 0) for step in (1, 2)] == [0, 2]
    assert first.call(4, 2) == 4
    assert first.call(6, 4) == 6
    assert others[0].call(1, 0) == 0
    look(first, *others)
    for other in others:
        assert [other.call(1, 0), other.call(1, 2), other.call(1, 4), other.call(1, 6)] == [
            2,
            4,
            6,
            0,
        ]


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


def test_an_announcement_stays_until_all_have_saved_themselves():
    disk = Memory()
    checkpoints = Checkpoints(disk, Path("run"))
    first, slow, _ = initiators_of(disk, every=1)
    saved = []
    first._checkpoints.listed = lambda: iter([(None, it) for it in saved])  # type: ignore[method-assign]
    for step in (1, 2, 3):
        first.call(step, step - 1)
        look(first)
    there = [bool(disk.names(checkpoints.cut(it, 0))) for it in (1, 2, 3)]
    assert there == [True] * 3
    look(slow)
    saved.append(type("Saved", (), {"step": 2}))
    first.call(4, 3)
    look(first)
    there = [bool(disk.names(checkpoints.cut(it, 0))) for it in (1, 2, 3, 4)]
    assert there == [False, False, True, True]
    look(slow)
    assert [slow.call(1, it) for it in range(5)] == [1, 2, 3, 4, 0]


def test_another_attempt_is_not_asked_by_what_is_left_of_one():
    disk = Memory()
    first, other, _ = initiators_of(disk, every=5)
    first.call(5, 0)
    other.ask(stop=True)
    look(first, other)
    again, another, _ = initiators_of(disk, every=5, attempt=1, step=5)
    look(again, another)
    assert again.call(6, 0) == another.call(6, 0) == 0
