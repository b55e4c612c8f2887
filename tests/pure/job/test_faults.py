"""One fault before every event of small jobs, in every mode, and what may come of it."""

from __future__ import annotations

import json
import re

import pytest

from psrt.config.faults import EVENT, Fault, read_fault
from psrt.errors import ConfigError, TransportError
from psrt.history import read_history
from psrt.history.check.run import check_run
from psrt.history.events import Kind
from psrt.runtime.shard_server import ShardServer
from support.faults import (
    DESCENTS,
    MODES,
    SAME,
    TICKS,
    WORKERS,
    check_ticks,
    ended_by_a_death,
    ranks_of,
    run,
    undisturbed,
)

pytestmark = pytest.mark.rest_one_in(3)

#: Parts of a grid, each of which has every so-many-th event.
PARTS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


def events_of(name, part, events):
    """Return a part's events: all of them, or every third of what has the messages of another."""
    stride = 3 if name in DESCENTS else 1
    return range(1 + stride * part, events + 1, stride * PARTS)


def crash(rank, event):
    return Fault("crash", (("rank", rank),), EVENT, event)


def late(kind, rank, event, lasts):
    return Fault(kind, (("rank", rank),), EVENT, event, lasts, 50.0 if kind == "slow" else 0.0)


def check_resumed(name, found, before, why, saved=None):
    """Hold a job that died and went on, with all its workers, against one that did not."""
    assert found.error is None, (why, found.error)
    lost = workers_of(name, found.crashed)
    is_whole = not lost and not found.replaced
    if is_whole and name in SAME:
        assert found.sha == before.sha, why
    if is_whole:
        assert (found.steps, found.samples) == (before.steps, before.samples), why
    if saved is not None and is_whole and name in SAME:
        assert found.saved == saved, why
    if name in TICKS:
        check_ticks(name, found, lost)


def workers_of(name, ranks):
    """Return the workers at ranks: servers come first."""
    return {rank - (ranks_of(name) - WORKERS) for rank in ranks}


@pytest.mark.one_in(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", MODES)
def test_a_rank_dies_before_any_event(name, part, folder):
    """The others go on without it, or the job is over and says who died."""
    before = undisturbed(name, folder)
    for event in events_of(name, part, before.events):
        rank = event % ranks_of(name)
        found = run(name, folder / "run", (crash(rank, event),), record=True)
        if found.error is not None:
            assert ended_by_a_death(found.error), (event, rank, found.error)
            assert re.search(rf"\(rank {rank}\)", str(found.error))
            assert name == "stages" or rank < ranks_of(name) - WORKERS or name not in TICKS
            continue
        assert set(found.crashed) <= {rank}
        if name in TICKS:
            check_ticks(name, found, workers_of(name, found.crashed))


@pytest.mark.rest_one_in(3)
@pytest.mark.one_in(3 * PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", MODES)
def test_a_job_that_died_goes_on_from_its_last_checkpoint(name, part, folder):
    """To the same bits, where these are promised; else each push counts once all the same."""
    before = undisturbed(name, folder)
    ranks = ranks_of(name)
    for event in events_of(name, part, before.events):
        # Twice, the second time perhaps before the first event after the restart.
        faults = crash(event % ranks, event), crash(event % 2, event + 1 + event % 7)
        saving = {"checkpoint_every": 1 + event % 2, "resume": "auto"}
        found = run(name, folder / "again", faults, restarts=9, **saving)
        saved = undisturbed(name, folder, 1 + event % 2).saved
        check_resumed(name, found, before, faults, saved)


@pytest.mark.rest_one_in(3)
@pytest.mark.one_in(3 * PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", MODES)
def test_what_is_late_is_not_lost(name, part, folder):
    """A rank stands still, is cut off or slow, for less than makes others give it up."""
    before = undisturbed(name, folder)
    for event in events_of(name, part, before.events):
        kind = ("pause", "cut", "slow")[event % 3]
        fault = late(kind, event // 3 % ranks_of(name), event, 0.02)
        found = run(name, folder / "late", (fault,), record=True)
        assert found.error is None, (fault, found.error)
        assert not found.crashed
        assert (found.steps, found.samples) == (before.steps, before.samples) or name == "backups"
        if name in SAME:
            assert found.sha == before.sha, fault
        if name in TICKS:
            check_ticks(name, found, set())


@pytest.mark.one_in(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", MODES)
def test_who_is_taken_to_be_dead_is_out(name, part, folder):
    """Whether it lives, comes back, or never does: nothing that it does then counts any more."""
    before = undisturbed(name, folder)
    for event in events_of(name, part, before.events):
        kind, lasts = (("suspect", None), ("pause", 9.0), ("cut", 9.0), ("cut", None))[event % 4]
        rank = event // 4 % ranks_of(name)
        fault = late(kind, rank, event, lasts)
        found = run(name, folder / "out", (fault,), record=True)
        gone = {rank} if kind != "cut" or rank else {*range(1, ranks_of(name))}
        if found.error is not None:
            assert isinstance(found.error, TransportError), (fault, found.error)
            assert "is taken to be dead at " in str(found.error), (fault, found.error)
            workers = {*range(ranks_of(name) - WORKERS, ranks_of(name))}
            assert name not in TICKS or not workers >= gone or workers == gone, fault
            continue
        assert set(found.crashed) <= gone, fault
        if name in TICKS:
            check_ticks(name, found, workers_of(name, found.crashed))


def test_a_step_that_some_shards_have_is_told(folder):
    """A shard dropped a push that was not answered, another one had made its update by then."""
    events = range(100, 110)
    found = [run("sync", folder / f"{it}", (crash(2, it),), record=True) for it in events]
    (torn,) = {it.torn for it in found} - {0}
    assert torn == 1
    for event, it in zip(events, found, strict=True):
        told = [line for line in it.said if "torn" in line]
        assert len(told) == (it.torn > 0)
        path = folder / f"{event}" / "summary.json"
        summary = json.loads(path.read_text())
        assert summary["torn"] == it.torn
        path.write_text(json.dumps(summary | {"torn": 1 - it.torn}))
        assert "torn" in check_run(path.parent).violation.text
    assert "1 step of the dead, at some shards only" in "".join(
        map("".join, (f.said for f in found))
    )


def test_what_a_worker_offered_in_two_rounds_may_be_lost_with_it(folder):
    """It has what worker 0 offered, and is one round ahead; what it sends no longer comes there."""
    faults = read_fault("cut:rank0@event41"), read_fault("crash:rank1@0.003844486620193236s+0.1s")
    assert run("gossip", folder / "two", faults, record=True).crashed == (1, 2)
    table = read_history(folder / "two").workers
    first, second = (table[worker] for worker in (0, 1))
    offered = second["clock"][second["kind"] == Kind.OFFER]
    taken = first["clock"][(first["kind"] == Kind.TAKE) & (first["shard"] == 1)]
    assert offered.max() - taken.max(initial=0) == 2


def test_a_step_that_no_shard_notes_is_missed(folder, monkeypatch):
    monkeypatch.setattr(ShardServer, "_note_reached", lambda self, worker, steps: None)
    with pytest.raises(AssertionError):
        test_a_step_that_some_shards_have_is_told(folder)


@pytest.mark.parametrize("name", ["gossip", "push-sum", "tracked", "pairs"])
def test_who_has_parameters_of_its_own_is_missed_by_all_later_checkpoints(name, folder):
    before = undisturbed(name, folder)
    fault = crash(2, before.events // 2)
    found = run(name, folder / "alone", (fault,), checkpoint_every=1)
    assert found.crashed == (2,)
    (line,) = [it for it in found.said if "no more checkpoints" in it]
    assert "goes on without a worker: no more checkpoints" in line
    assert not any("training continues without it" in it for it in found.said)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("name", ["backups", "async", "ssp"])
def test_no_checkpoint_has_a_worker_that_shards_do_not_know(name, every, folder):
    """One that dies while workers park has saved its part, and is unknown to some of the shards."""
    before = undisturbed(name, folder)
    saving = {"checkpoint_every": every, "resume": "auto"}
    for event in range(before.events // 3, before.events, 3):
        faults = crash(2, event), crash(0, before.events - 15)
        check_resumed(name, run(name, folder / "lost", faults, restarts=9, **saving), before, event)


@pytest.mark.rest_one_in(4)
@pytest.mark.one_in(60)
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("how", ["full", "error", "torn"])
@pytest.mark.parametrize("name", MODES)
def test_a_disk_that_fails_at_any_operation_costs_a_checkpoint_at_most(name, how, part, folder):
    """Or the job dies of it, and goes on from the one before, or even begins anew."""
    before = undisturbed(name, folder)
    for operation in range(1 + part, 8 * (ranks_of(name) + 4), 8):
        fails = Fault("disk", (), "op", operation, how=how)
        faults = (fails,) if how == "torn" else (fails, crash(0, before.events * 2 // 3))
        saving = {"checkpoint_every": 1, "resume": "auto"}
        found = run(name, folder / "disk", faults, restarts=9, **saving)
        if isinstance(found.error, ConfigError):
            # As an attempt begins, the first or another: there is nowhere to save, or what is left
            # cannot be deleted.
            assert operation <= 2 or how != "torn", found.error
            assert str(found.error).startswith("--checkpoint-every: "), found.error
            continue
        check_resumed(name, found, before, faults)
        assert found.said or how == "full"
