"""Processes that agree on a step to be saved, in every order of their looks and steps."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from psrt.checkpoint import Checkpoints
from psrt.errors import OutputError
from psrt.job.meeting import Agreed, Meeting
from psrt.job.pace import FIRST_S, Pace
from support.disks import Memory


def meetings_of(processes, disk, **more):
    checkpoints = Checkpoints(disk, Path("run"))
    return [
        Meeting(checkpoints, disk, process=it, processes=processes, timeout_s=0.0, **more)
        for it in range(processes)
    ]


class Walk:
    """Processes that step and look in a random order; no two are more than a step apart."""

    def __init__(self, seed, processes, *, lockstep):
        self.draws, self.lockstep = random.Random(seed), lockstep
        self.disk = Memory()
        #: Processes that have died, as all know.
        self.gone = set()
        self.meetings = meetings_of(processes, self.disk, gone=lambda: self.gone)
        self.steps = [0] * processes
        #: By process, the steps at which it has saved, and whether it stops there.
        self.saved = [[] for _ in self.meetings]

    def act(self):
        it = self.draws.choice([it for it in range(len(self.meetings)) if it not in self.gone])
        meeting = self.meetings[it]
        if self.draws.random() < 0.3:
            meeting.look()
            return
        others = [step for at, step in enumerate(self.steps) if at not in self.gone]
        if self.lockstep and self.steps[it] > min(others):
            return
        step = self.steps[it] + 1
        before = self.saved[it][-1][0] if self.saved[it] else 0
        try:
            agreed = meeting.at(step, before)
        except OutputError:
            return  # waits there
        self.steps[it] = step
        if agreed is not None:
            self.saved[it].append((step, agreed.stops))


@pytest.mark.parametrize("acts", [0, 5, 20, 60])
def test_those_that_are_left_agree_without_the_dead(acts):
    """Whatever they had asked for or promised when they died."""
    for seed in range(20):
        walk = Walk(seed, 4, lockstep=seed % 2 == 0)
        walk.meetings[3].ask()
        for _ in range(acts):
            walk.act()
        walk.gone |= {2, 3}
        saved = len(walk.saved[0])
        walk.meetings[1].ask()
        for _ in range(3000):
            walk.act()
            if all(len(walk.saved[it]) > saved for it in (0, 1)):
                break
        first, second = walk.saved[0], walk.saved[1]
        assert len(first) > saved
        both = min(len(first), len(second))
        assert first[:both] == second[:both]


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_all_save_the_same_steps(processes, lockstep):
    for seed in range(20):
        walk = Walk(seed, processes, lockstep=lockstep)
        while not all(walk.saved) or len(walk.saved[0]) < 3:
            if walk.draws.random() < 0.02:
                walk.meetings[walk.draws.randrange(processes)].ask()
            walk.act()
        most = min(map(len, walk.saved))
        assert len({tuple(it[:most]) for it in walk.saved}) == 1, seed
        assert not any(stops for it in walk.saved for _, stops in it)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_who_asks_for_a_stop_gets_one_whenever_it_asks(processes):
    for seed in range(30):
        walk = Walk(seed, processes, lockstep=True)
        for _ in range(walk.draws.randrange(40)):
            if walk.draws.random() < 0.1:
                walk.meetings[0].ask()
            walk.act()
        walk.meetings[-1].ask(stop=True)
        for _ in range(100_000):
            walk.act()
            if all(it and it[-1][1] for it in walk.saved):
                break
        ends = [next(step for step, stops in it if stops) for it in walk.saved]
        assert len(set(ends)) == 1, seed


def test_nothing_is_written_until_somebody_asks():
    disk = Memory()
    (meeting,) = meetings_of(1, disk)
    for step in range(1, 100):
        meeting.look()
        meeting.at(step, 0)
    assert not disk.files
    meeting.ask()
    meeting.look()
    assert [meeting.at(it, 0) for it in (100, 103, 104)] == [None, None, (104, False)]


def test_a_role_that_waits_in_vain_says_why():
    disk = Memory()
    first, second = meetings_of(2, disk)
    first.ask()
    first.look()
    with pytest.raises(OutputError, match=r"no agreement on a step to be saved within 0 s$"):
        first.at(1, 0)
    disk.full = True
    second.look()
    second.at(10, 0)  # promised nothing, since nobody could see it
    disk.full = False
    second.look()
    first.look()
    assert first.at(1, 0) is None
    assert first.at(60, 0) == Agreed(51, stops=False)
    assert first.at(61, 60) is None


def test_a_full_disk_is_told_once_a_question():
    disk, told = Memory(), []
    (meeting,) = meetings_of(1, disk)
    meeting.failed = told.append
    disk.full = True
    meeting.ask()
    for _ in range(5):
        meeting.look()
    assert told == ["No space left on device"]
    meeting.ask()
    meeting.look()
    assert len(told) == 2


def test_what_is_no_note_is_none():
    disk = Memory()
    (meeting,) = meetings_of(1, disk)
    meeting.ask()
    folder = Checkpoints(disk, Path("run")).cut(0, 0)
    disk.files[folder / "cut.json"] = b"[1]"
    meeting.look()
    assert meeting.trouble == "not a note of psrt's: [1]"
    with pytest.raises(OutputError, match=r"within 0 s: not a note of psrt's"):
        meeting.at(10, 0)


def test_a_thread_looks():
    (meeting,) = meetings_of(1, Memory())
    meeting._timeout_s = 60.0
    meeting.start()
    meeting.ask(stop=True)
    step = 0
    while (agreed := meeting.at(step, 0)) is None:
        step += 1
    meeting.close()
    assert agreed.stops
    assert meeting.stops
    assert agreed.step == step


def test_pace():
    clock = iter([0.0, 0.9, 1.0, 1.0, 9.0, 61.0, 61.0, 66.0])
    pace = Pace(None, mtbf_s=3600.0, now=lambda: next(clock))
    assert FIRST_S == 1.0
    assert not pace.is_due()
    assert pace.is_due()
    pace.cost_s = 0.5
    assert pace.interval_s == 60.0
    assert not pace.is_due()
    assert pace.is_due()
    assert not pace.is_due()
