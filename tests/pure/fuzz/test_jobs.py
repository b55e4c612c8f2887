"""Random jobs, recorded: each keeps its contract and can be had again, to the bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from psrt import recorded_config
from psrt.errors import PsrtError, TransportError
from psrt.history import Kind, read_history
from psrt.history.check.run import check_run
from psrt.history.folder import EVENTS
from psrt.job.scenario import run_in_virtual_time
from support.fuzz import Draw, told


def run(job, out, *, costs=None, config=None):
    scenario = job.scenario if costs is None else dataclasses.replace(job.scenario, costs=costs)
    config = config or job.config(record=True, out=str(out))
    return run_in_virtual_time(config, scenario).summary


def test_a_job_keeps_its_contract_and_says_what_it_did(job, tmp_path):
    with told(job.seed):
        summary = run(job, tmp_path / "run")
        outcome = check_run(tmp_path / "run")
        assert outcome.ok, "\n".join(outcome.lines())
        check_summary(summary, read_history(tmp_path / "run"), job)


def test_a_job_can_be_had_again(job, tmp_path):
    if job.seed % 2:
        return  # the other half of them is enough
    with told(job.seed):
        first, again = (run(job, tmp_path / name) for name in ("run", "again"))
        bits = [(tmp_path / n / "history" / EVENTS).read_bytes() for n in ("run", "again")]
        assert bits[0] == bits[1]
        texts = [dataclasses.replace(it, environment={}).to_json() for it in (first, again)]
        assert texts[0] == texts[1]
        if job.scenario.numerics and not job.scenario.crashes:
            config = recorded_config(tmp_path / "run")
            replayed = run(job, None, costs=job.other_costs, config=config)
            assert replayed.parameters_sha256 == first.parameters_sha256
            assert replayed.staleness == first.staleness


def test_a_death_that_nobody_can_make_up_for_ends_the_job(job, tmp_path):
    """Without servers all wait for all: whoever is left says who has died."""
    if job.served or job.scenario.workers == 1:
        return
    with told(job.seed):
        crash = Draw(job.seed).crashes(job.scenario.workers)[:1]
        scenario = dataclasses.replace(job.scenario, crashes=crash)
        said = ""
        try:
            run_in_virtual_time(job.config(record=True, out=str(tmp_path / "run")), scenario)
        except TransportError as error:
            said = str(error)
        # Or it had done all that the others need: before the last sum was there for itself, or not.
        assert "crashed" in said or not unfinished(read_history(tmp_path / "run"), crash[0][0])


def unfinished(history, dead):
    """Tell whether anybody but the dead has not come to the end of all sums."""
    ends = [events[-1] for worker, events in enumerate(history.workers) if worker != dead]
    return not all(end["kind"] == Kind.REDUCED and not end["flag"] for end in ends)


def test_a_broken_policy_is_seen_by_its_history(broken, tmp_path):
    for seed in range(400):
        job = Draw(seed).job()
        if job.knobs["mode"] != broken:
            continue
        try:
            run(job, tmp_path / str(seed))
        except PsrtError:
            return  # it came to a standstill
        except AssertionError:
            return  # what runs checks itself, too
        if not check_run(tmp_path / str(seed)).ok:
            return
    pytest.fail("nothing was seen")


def check_summary(summary, history, job):
    """Hold a summary against the events, without what wrote or checks either."""
    mine = np.concatenate(history.workers)
    pushed = mine[(mine["kind"] == Kind.PUSH) & (mine["shard"] == 0)]
    stepped = mine[mine["kind"] == Kind.STEP]
    if not job.scenario.crashes:
        done = stepped if len(stepped) else pushed
        assert summary.samples == done["samples"].sum()
        if not job.knobs.get("backup"):
            assert summary.steps == done["clock"].max() + 1
    if job.served:
        events = np.concatenate(history.shards)
        applied = events[(events["kind"] == Kind.APPLY) & (events["worker"] >= 0)]
        assert list(summary.staleness.histogram) == np.bincount(applied["tau"]).tolist()
        assert summary.updates == max(events["version"][events["kind"] == Kind.APPLY], default=0)
