"""Ranks that stand still, from the start on or while others die."""

from __future__ import annotations

import json

import pytest

from psrt.config.faults import EVENT, SECONDS, Fault
from support.faults import MODES, WORKERS, ranks_of, run

LASTS = 0.5


def pause(ranks, lasts=LASTS, event=1):
    return Fault("pause", tuple(("rank", rank) for rank in ranks), EVENT, event, lasts)


@pytest.mark.parametrize("name", MODES)
def test_time_is_counted_from_the_start_of_the_job(name, tmp_path):
    """The history is checked, in which the waiting of each is a share of that time."""
    last, every = ranks_of(name) - 1, range(ranks_of(name))
    for ranks in ([last], every, range(ranks_of(name) - WORKERS, ranks_of(name))):
        found = run(name, tmp_path, (pause(ranks),), record=True)
        assert found.error is None
        assert json.loads((tmp_path / "summary.json").read_text())["seconds"] > LASTS


def test_who_pauses_twice_goes_on_when_both_are_over(tmp_path):
    faults = pause([1], 0.25, 20), pause([1], LASTS, 21), pause([1], 0.125, 22)
    run("ring", tmp_path, faults, record=True)
    assert json.loads((tmp_path / "summary.json").read_text())["seconds"] > LASTS


def test_who_dies_while_it_is_stopped_has_not_read_the_answer(tmp_path):
    """One shard stands still, so that it answers the dead worker after all others had stopped."""
    faults = (
        Fault("pause", (("rank", 4),), SECONDS, 0.0002, 0.1),
        Fault("crash", (("rank", 3),), EVENT, 66, 0.001),
    )
    more = {"checkpoint_every": 1, "resume": "auto", "record": True}
    found = run("elastic, async", tmp_path, faults, restarts=9, **more)
    assert found.error is None
    assert found.crashed == (3,)
