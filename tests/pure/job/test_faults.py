"""One fault before every event of small jobs, in every mode, and what the survivors do."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.config.faults import EVENT, KINDS, Fault
from psrt.core.errors import ConfigError, TransportError
from psrt.data import deal
from psrt.history.check.run import check_run
from psrt.history.header import sealed
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.simulation.cost_flags import VirtualCosts
from support.cases import each
from support.faults import (
    DESCENTS,
    MODES,
    SAME,
    TICKS,
    WORKERS,
    check_ticks,
    ranks_of,
    run,
    undisturbed,
)

#: Parts of a grid, each of which has every so-many-th event.
PARTS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


def at_every_event(test):
    """Try a test in all modes, and at all events; a few parts of that are for every day."""
    test = pytest.mark.parametrize("part", range(PARTS))(test)
    test = pytest.mark.parametrize("name", MODES)(test)
    return pytest.mark.one_in(1200)(pytest.mark.rest_one_in(5)(test))


def events_of(name, part, events):
    """Return a part's events: all of them, or every third of what has the messages of another."""
    stride = 3 if name in DESCENTS else 1
    return range(1 + stride * part, events + 1, stride * PARTS)


def crash(rank, event):
    return Fault("crash", (("rank", rank),), EVENT, event)


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


#: What befalls a rank, and for how long; the first three for less than makes others give it up.
BEFALLS = (
    *(("pause", 0.02), ("cut", 0.02), ("slow", 0.02), ("crash", None), ("suspect", None)),
    *(("pause", 9.0), ("cut", 9.0), ("cut", None)),
)


@at_every_event
def test_one_fault_before_any_event(name, part, folder):
    """What is late is not lost; of who is dead, or taken to be, nothing counts any more.

    The others go on without it, or the job is over and says who died.
    """
    before = undisturbed(name, folder)
    for event in events_of(name, part, before.events):
        kind, lasts = BEFALLS[(event + event // PARTS) % len(BEFALLS)]
        rank = event // len(BEFALLS) % ranks_of(name)
        more = 50.0 if kind == "slow" else 0.0
        fault = Fault(kind, (("rank", rank),), EVENT, event, lasts, more)
        found = run(name, folder / "run", (fault,), record=True)
        if lasts == 0.02:
            assert found.error is None, (fault, found.error)
            assert not found.crashed
            as_before = (found.steps, found.samples) == (before.steps, before.samples)
            assert as_before or name == "backups"
            assert name not in SAME or found.sha == before.sha, fault
        gone = {rank} if kind != "cut" or rank else {*range(1, ranks_of(name))}
        if found.error is not None:
            assert isinstance(found.error, TransportError), (fault, found.error)
            died = rf"\(rank {rank}\).* crashed at " if kind == "crash" else "is declared dead at "
            assert re.search(died, str(found.error)), (fault, found.error)
            workers = {*range(ranks_of(name) - WORKERS, ranks_of(name))}
            assert name not in TICKS or not workers >= gone or workers == gone, fault
            continue
        assert set(found.crashed) <= gone, fault
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


@each("name", ["gossip", "pairs"])
def test_who_has_parameters_of_its_own_is_missed_by_all_later_checkpoints(name, folder):
    fault = crash(2, undisturbed(name, folder).events // 2)
    found = run(name, folder / "alone", (fault,), checkpoint_every=1)
    assert found.crashed == (2,)
    (line,) = [it for it in found.said if "no more checkpoints" in it]
    assert "continues without a worker: no more checkpoints" in line
    assert not any("training continues without it" in it for it in found.said)


#: By kind, a fault of the middle of a job, and what it cannot but change.
STRIKES: dict[str, tuple[Fault, str]] = {
    "crash": (crash(2, 40), "crashed"),
    "pause": (Fault("pause", (("rank", 2),), EVENT, 40, 0.5), "seconds"),
    "cut": (Fault("cut", (("rank", 2),), EVENT, 40, 0.5), "seconds"),
    "slow": (Fault("slow", (("rank", 2),), EVENT, 40, None, 1e7), "seconds"),
    "suspect": (Fault("suspect", (("rank", 2),), EVENT, 40), "crashed"),
    "disk": (Fault("disk", (), "op", 3, how="full"), "said"),
}


@each("kind", KINDS)
def test_a_fault_of_each_kind_strikes(kind, folder):
    fault, changes = STRIKES[kind]
    config = {"checkpoint_every": 1, "record": True}
    plain, found = (run("sync", folder / "run", it, **config) for it in ((), (fault,)))
    if changes == "seconds":
        seconds = json.loads((folder / "run" / "summary.json").read_text())["seconds"]
        assert seconds > 0.3
    else:
        assert getattr(found, changes) != getattr(plain, changes)


def test_who_pauses_twice_goes_on_when_both_are_over(tmp_path):
    pauses = [(0.25, 20), (0.5, 21), (0.125, 22)]
    faults = [Fault("pause", (("rank", 1),), EVENT, event, lasts) for lasts, event in pauses]
    run("ring", tmp_path, tuple(faults), record=True)
    assert json.loads((tmp_path / "summary.json").read_text())["seconds"] > 0.5


# --- survivors, among whom samples are dealt out again --------------------------------------------

SURVIVING = {
    "dataset": "synthetic:18x6x3", "hidden": (4,), "batch_size": 3, "epochs": 5, "survive": True,
    "mode": "sync", "servers": 2,
}  # fmt: skip


def without_worker_1(out, at, **more):
    """Train with four workers, each of which takes a second a step, until one dies."""
    config = TrainConfig(**SURVIVING | {"out": str(out)} | more)
    scenario = Scenario(4, VirtualCosts(compute="constant:1.0"), crashes=((1, at),))
    run_in_virtual_time(config, scenario)


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
    path.write_text(sealed(header | {"left_out": [[epoch, [2]]]}))
    with pytest.raises(ConfigError, match="leaves out workers that did not die"):
        check_run(folder)


@each("gone", [(), (2,), (0, 1, 3)])
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
