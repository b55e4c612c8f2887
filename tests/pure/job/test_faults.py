"""One fault before every event of small jobs, in every mode, and what the survivors do."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from psrt.config import TrainConfig, resolve
from psrt.config.faults import EVENT, SECONDS, Fault, read_fault
from psrt.data import deal
from psrt.errors import ConfigError, TransportError
from psrt.faults import Member
from psrt.history import read_history
from psrt.history.check.run import check_run
from psrt.history.events import Kind
from psrt.history.header import sealed
from psrt.job.result import summarize
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.report.metrics_aggregator import Record
from psrt.simulation.cost_flags import VirtualCosts
from psrt.stats import Stats
from support.cases import each
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
from support.ticks import Ticks

#: Parts of a grid, each of which has every so-many-th event.
PARTS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


def at_every_event(test):
    """Try a test in all modes, and at all events; a few parts of that are for every day."""
    test = pytest.mark.parametrize("part", range(PARTS))(test)
    test = pytest.mark.parametrize("name", MODES)(test)
    return pytest.mark.one_in(250)(pytest.mark.rest_one_in(5)(test))


def events_of(name, part, events):
    """Return a part's events: all of them, or every third of what has the messages of another."""
    stride = 3 if name in DESCENTS else 1
    return range(1 + stride * part, events + 1, stride * PARTS)


def crash(rank, event):
    return Fault("crash", (("rank", rank),), EVENT, event)


def late(kind, rank, event, lasts):
    return Fault(kind, (("rank", rank),), EVENT, event, lasts, 50.0 if kind == "slow" else 0.0)


def workers_of(name, ranks):
    """Return the workers at ranks: servers come first."""
    return {rank - (ranks_of(name) - WORKERS) for rank in ranks}


def check_resumed(name, found, before, why, saved=None):
    """Hold a job that died and went on, with all its workers, against one that did not."""
    assert found.error is None, (why, found.error)
    lost = workers_of(name, found.crashed)
    if not lost and not found.replaced:
        assert (found.steps, found.samples) == (before.steps, before.samples), why
        if name in SAME:
            assert found.sha == before.sha, why
            assert saved is None or found.saved == saved, why
    if name in TICKS:
        check_ticks(name, found, lost)


@at_every_event
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


@at_every_event
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


@at_every_event
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
        assert name not in SAME or found.sha == before.sha, fault
        if name in TICKS:
            check_ticks(name, found, set())


@at_every_event
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


@at_every_event
def test_a_disk_that_fails_at_any_operation_costs_a_checkpoint_at_most(name, part, folder):
    """Or the job dies of it, and goes on from the one before, or even begins anew."""
    before = undisturbed(name, folder)
    for operation in range(1 + part, 8 * (ranks_of(name) + 4), PARTS):
        for how in ("full", "error", "torn"):
            fails = Fault("disk", (), "op", operation, how=how)
            faults = (fails,) if how == "torn" else (fails, crash(0, before.events * 2 // 3))
            saving = {"checkpoint_every": 1, "resume": "auto"}
            found = run(name, folder / "disk", faults, restarts=9, **saving)
            if isinstance(found.error, ConfigError):
                # As an attempt begins, the first or another: there is nowhere to save, or what is
                # left cannot be deleted.
                assert operation <= 2 or how != "torn", found.error
                assert str(found.error).startswith("--checkpoint-every: "), found.error
                continue
            check_resumed(name, found, before, faults)
            assert found.said or how == "full"


def test_a_step_that_some_shards_have_is_told(folder):
    """A shard dropped a push that was not answered, another one had made its update by then."""
    events = range(100, 110)
    found = [run("sync", folder / f"{it}", (crash(2, it),), record=True) for it in events]
    (torn,) = {it.torn for it in found} - {0}
    assert torn == 1
    for event, it in zip(events, found, strict=True):
        told = [line for line in it.said if "torn" in line]
        assert len(told) == (it.torn > 0)
        assert not told or "1 step of the dead, at some shards only" in told[0]
        path = folder / f"{event}" / "summary.json"
        summary = json.loads(path.read_text())
        assert summary["torn"] == it.torn
        path.write_text(json.dumps(summary | {"torn": 1 - it.torn}))
        assert "torn" in check_run(path.parent).violation.text


def test_what_a_worker_offered_in_two_rounds_may_be_lost_with_it(folder):
    """It has what worker 0 offered, and is one round ahead; what it sends no longer comes there."""
    faults = read_fault("cut:rank0@event41"), read_fault("crash:rank1@0.003844486620193236s+0.1s")
    assert run("gossip", folder / "two", faults, record=True).crashed == (1, 2)
    table = read_history(folder / "two").workers
    first, second = (table[worker] for worker in (0, 1))
    offered = second["clock"][second["kind"] == Kind.OFFER]
    taken = first["clock"][(first["kind"] == Kind.TAKE) & (first["shard"] == 1)]
    assert offered.max() - taken.max(initial=0) == 2


@each("name", ["gossip", "pairs"])
def test_who_has_parameters_of_its_own_is_missed_by_all_later_checkpoints(name, folder):
    fault = crash(2, undisturbed(name, folder).events // 2)
    found = run(name, folder / "alone", (fault,), checkpoint_every=1)
    assert found.crashed == (2,)
    (line,) = [it for it in found.said if "no more checkpoints" in it]
    assert "goes on without a worker: no more checkpoints" in line
    assert not any("training continues without it" in it for it in found.said)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("name", ["async", "backups", "ssp"])
def test_no_checkpoint_has_a_worker_that_shards_do_not_know(name, every, folder):
    """One that dies while workers park has saved its part, and is unknown to some of the shards."""
    before = undisturbed(name, folder)
    saving = {"checkpoint_every": every, "resume": "auto"}
    for event in range(before.events // 3, before.events, 20):
        faults = crash(2, event), crash(0, before.events - 15)
        check_resumed(name, run(name, folder / "lost", faults, restarts=9, **saving), before, event)


# --- ranks that stand still -----------------------------------------------------------------------

LASTS = 0.5


def pause(ranks, lasts=LASTS, event=1):
    return Fault("pause", tuple(("rank", rank) for rank in ranks), EVENT, event, lasts)


def seconds_of(out):
    return json.loads((out / "summary.json").read_text())["seconds"]


@pytest.mark.one_in(40)
@pytest.mark.parametrize("name", MODES)
def test_time_is_counted_from_the_start_of_the_job(name, folder):
    """The history is checked, in which the waiting of each is a share of that time."""
    last, every = ranks_of(name) - 1, range(ranks_of(name))
    for ranks in ([last], every, range(ranks_of(name) - WORKERS, ranks_of(name))):
        assert run(name, folder / "still", (pause(ranks),), record=True).error is None
        assert seconds_of(folder / "still") > LASTS


def test_who_pauses_twice_goes_on_when_both_are_over(tmp_path):
    faults = pause([1], 0.25, 20), pause([1], LASTS, 21), pause([1], 0.125, 22)
    run("ring", tmp_path, faults, record=True)
    assert seconds_of(tmp_path) > LASTS


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


# --- survivors, among whom samples are dealt out again --------------------------------------------

SURVIVING = {
    "dataset": "synthetic:18x6x3", "hidden": (4,), "batch_size": 3, "epochs": 5, "survive": True,
    "mode": "sync", "servers": 2,
}  # fmt: skip


def without_worker_1(out, at, said=None, **more):
    """Train with four workers, each of which takes a second a step, until one dies."""
    config = TrainConfig(**SURVIVING | {"out": str(out)} | more)
    scenario = Scenario(4, VirtualCosts(compute="constant:1.0"), crashes=((1, at),))
    run_in_virtual_time(config, scenario, say=[].append if said is None else said.append)


@each("mode", ["sync", "async"])
def test_who_is_left_of_four_is_dealt_all(tmp_path, mode):
    problem, out = Ticks(), tmp_path / mode
    config = TrainConfig(
        mode=mode, servers=2, survive=True, batch_size=1, epochs=2, lr=1.0, optimizer="sgd",
        out=str(out), record=True,
    )  # fmt: skip
    costs, deaths = VirtualCosts(compute="constant:1.0"), ((0, 1.5), (2, 3.5), (3, 4.5))
    run_in_virtual_time(config, Scenario(4, costs, crashes=deaths), problem)
    assert check_run(out).ok
    left_out = json.loads((out / "history" / "header.json").read_text())["left_out"]
    assert left_out == [[1, [0, 2, 3]]]
    assert [it for it in problem.asked if it[1] == 1] == [(0, 1, 0, 1)]
    assert [it for it in problem.computed if it[1] == 1] == [(0, 1, i) for i in range(30)]


@each("mode", ["sync", "async"])
def test_that_a_recorded_run_has_no_more_checkpoints_is_said_once(tmp_path, mode):
    said = []
    without_worker_1(tmp_path / mode, 5.5, said, mode=mode, checkpoint_every=2, record=True)
    assert [line for line in said if "checkpoint" in line] == [
        "shard-0-of-2 goes on without a worker, and --record has no one history with another in "
        "its place: no more checkpoints"
    ]


def test_a_run_that_resumes_without_the_dead_counts_what_they_had_done(tmp_path):
    without_worker_1(tmp_path / "run", 5.5, checkpoint_every=2, keep=50)
    again = TrainConfig(**SURVIVING, out=str(tmp_path / "again"), resume=str(tmp_path / "run"))
    found = run_in_virtual_time(again, Scenario(4, VirtualCosts(compute="constant:1.0")))
    assert found.summary.samples == found.records[-1].samples


def test_the_checker_holds_who_is_left_out_against_the_steps(tmp_path):
    folder = tmp_path / "run"
    without_worker_1(folder, 5.0, record=True)
    path = folder / "history" / "header.json"
    header = json.loads(path.read_text())
    ((epoch, gone),) = header["left_out"]
    assert gone == [1]
    assert check_run(folder).ok
    for changed in ([], [[epoch + 1, gone]], [[epoch - 1, gone]]):
        path.write_text(sealed(header | {"left_out": changed}))
        assert "batches" in str(check_run(folder)), changed
    none = [[epoch, [2]]], [[epoch, [1]], [epoch, [1]]], [[epoch, [0, 1, 2, 3]]]
    for wrong in (*none, [[epoch]], [epoch, gone], [["1", gone]], [[epoch, [-1]]], 3):
        path.write_text(sealed(header | {"left_out": wrong}))
        line = "leaves workers out that did not die" if wrong in none else None
        with pytest.raises(ConfigError, match=line):
            check_run(folder)


@each("gone", [(), (0,), (2,), (1, 3), (0, 1, 3), (0, 1, 2)])
def test_what_the_dead_were_dealt_goes_to_the_others_evenly(gone):
    labels = np.arange(101) % 7
    whole = deal(labels, workers=4, rule="dirichlet", number=0.3, batch_size=8, seed=3)
    members = [it for it in range(4) if it not in gone]
    found = whole.among(members)
    assert np.sort(np.concatenate(found.samples)).tolist() == list(range(101))
    assert all(len(found.samples[it]) == 0 for it in gone)
    assert all(set(whole.samples[it]) <= set(found.samples[it]) for it in members)
    more = [len(found.samples[it]) - len(whole.samples[it]) for it in members]
    assert max(more) - min(more) <= len(gone)
    for epoch in (0, 5):
        steps = [found.batches(worker, epoch) for worker in members]
        assert {len(it) for it in steps} == {found.steps}
        assert max(len(it) for its in steps for it in its) <= 8


@each(
    ("knobs", "words"),
    [
        ({"mode": "allreduce"}, "--survive has no effect without --servers; it belongs to"),
        ({"mode": "local-sgd"}, "--survive has no effect without --servers; it belongs to"),
        ({"mode": "sync", "parallel": "pipeline:2"}, "the parts of a copy need each other"),
        ({"mode": "sync", "replay": "run"}, "--survive cannot be combined with --replay run"),
    ],
)
def test_what_it_has_nothing_to_do_with(knobs, words):
    with pytest.raises(ConfigError, match=words):
        TrainConfig(survive=True, **knobs)


def test_who_is_left_may_have_done_less_than_one_that_died():
    config = resolve(TrainConfig(mode="async", epochs=3), ranks=4)
    waited = dict.fromkeys(("workers", "server", "messages", "reduce"), 0.0)
    none = "samples_per_second", "staleness_mean", "staleness_max", "test_loss", "accuracy"
    last = Record.read(
        {"epoch": 2, "step": 108, "loss": 1.0, "samples": 681, "seconds": 0.48, "epoch_end": False}
        | {"bytes_sent": 9, "bytes_received": 9}
        | dict.fromkeys(none)
    )
    found = summarize(
        config,
        [Stats(worker=0, steps=60, epochs=1, seconds=0.37, waited=waited), Stats(worker=1)],
        theta=np.zeros(2, np.float32),
        figures={},
        records=[last],
        plan=None,
        shards=None,
        parameters=2,
        hosts=1,
        library="",
        missing={1: Member(2, "worker 1", "node02", 9410)},
    )
    assert (found.steps, found.epochs, found.samples) == (108, 2, 681)
    assert (found.seconds, found.samples_per_second) == (0.48, 681 / 0.48)
