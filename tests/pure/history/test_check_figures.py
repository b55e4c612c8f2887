"""Runs on data: rates, batches, ends, and what lies beside a history, must follow from the rest.

Each way to go wrong leaves a history that contradicts itself nowhere else. That one figure is
changed in a summary or in a line of the metrics, where all are alive, is a law.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.core.errors import ConfigError
from psrt.history import Kind, read_history
from psrt.history.check import Findings, check, contract_of
from psrt.history.check.run import check_run
from psrt.history.check.summary import SummaryCheck
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.optim import Schedule
from psrt.optim.staleness import Exponential, Inverse, Power
from psrt.runtime.worker import Worker
from support.cases import each
from support.mutants import Mutants

#: Modes by name: knobs beyond the usual.
MODES = {
    "serial": {"mode": "serial"},
    "allreduce": {"mode": "allreduce"},
    "local-sgd": {"mode": "local-sgd:local-steps=2"},
    "outer": {"mode": "local-sgd:local-steps=2,outer=nesterov,outer.lr=0.7,outer.momentum=0.9"},
    "outer over servers": {
        "mode": "local-sgd:local-steps=2,outer=nesterov,outer.lr=0.7,outer.momentum=0.9",
        "servers": 2,
    },
    "fragments": {
        "mode": "local-sgd:local-steps=4,fragments=2,sync-delay=1", "hidden": (6, 4),
    },
    "easgd": {"mode": "easgd:local-steps=2", "servers": 2},
    "gossip": {"mode": "gossip", "consensus_every": 2},
    "pairs": {"mode": "gossip:variant=pairs,topology=star"},
    "push-sum": {"mode": "gossip:topology=exponential,variant=push-sum"},
    "sync": {"mode": "sync", "servers": 2},
    "backup": {"mode": "sync:backup=1", "servers": 2},
    "async": {"mode": "async", "servers": 2},
    "inverse": {"mode": "async", "servers": 1, "staleness_rate": "inverse"},
    "ssp, exponential": {
        "mode": "ssp:staleness=2", "servers": 1, "staleness_rate": "exponential",
    },
    "softsync, power": {
        "mode": "softsync:k=2", "servers": 1, "staleness_rate": "power",
    },
    "gap-aware": {"mode": "async", "servers": 1, "staleness_rate": "gap-aware"},
    "stages": {"mode": "allreduce", "parallel": "data:2,pipeline:2", "hidden": (6, 4)},
}  # fmt: skip
#: What a schedule may look like over two and a half epochs.
CURVES = {
    "constant": {},
    "warm-up": {"schedule": "constant:warmup=1.0"},
    "step": {"schedule": "step:epochs=0.5,factor=0.5"},
    "cosine": {"schedule": "cosine:warmup=0.5"},
}


@pytest.fixture
def run(tmp_path):
    """Record a run on data in virtual time, of batches of which the last is smaller."""

    def made(name, **more):
        knobs = {"servers": 0, "epochs": 2.5, "batch_size": 4, "lr": 0.1, "hidden": ()}
        knobs |= {"dataset": "synthetic:70x3x2"} | MODES[name] | more
        config = TrainConfig(record=True, out=str(tmp_path / "run"), overwrite=True, **knobs)
        run_in_virtual_time(config, Scenario({"serial": 1, "stages": 4}.get(name, 3)))
        return tmp_path / "run"

    return made


def violated(outcome, rule):
    assert not outcome.ok, "nothing was found"
    assert outcome.violation.rule == rule, "\n".join(outcome.lines())
    return outcome.violation.text


def summary_of(out):
    return json.loads((out / "summary.json").read_text())


def metrics_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def with_header(history, **changes):
    return replace(history, header=replace(history.header, **changes))


@pytest.mark.parametrize("curve", CURVES)
def test_a_sound_run_is_sound(run, curve):
    for name in ("serial", "outer over servers", "gap-aware"):
        outcome = check_run(run(name, **CURVES[curve]))
        assert outcome.ok, "\n".join(outcome.lines())
        assert outcome.checked["batches"] > 0
        assert outcome.checked["rates"] > 0
        assert outcome.checked["digests"] == 1


# --- workers and schedules that are broken ------------------------------------------------------

#: In some of the modes above; more has knobs beside those.
broken = Mutants()
SHARED = ["backup", "async", "allreduce", "local-sgd"]


# fmt: off
for modes, curve in ((["easgd", "softsync, power"], "constant"), (["inverse"], "warm-up"),
                     (["serial", "outer"], "step"), (["sync", "ssp, exponential"], "cosine")):
    broken.add("has another rate than the schedule", (Schedule, "rate"), modes, "rates",
               lambda rate, self, progress: 1.01 * rate(self, progress), **CURVES[curve])
broken.add("leaves out the warm-up", (Schedule, "rate"), ["serial", "gap-aware"], "rates",
           lambda _, self, progress: self.peak, schedule="constant:warmup=1.0")
broken.add("heeds no staleness", [(it, "scale") for it in (Inverse, Power, Exponential)],
           ["inverse", "ssp, exponential", "softsync, power"], "rates", lambda *_: 1.0,
           **CURVES["cosine"])
broken.add("leaves an epoch early", (Worker, "_finished"), ["gossip", "fragments", *SHARED],
           "steps", lambda finished, self, at: finished(self, at + 1))
broken.add("leaves before the number of steps", (Worker, "_finished"), ["serial", *SHARED],
           "steps", lambda finished, self, at: finished(self, at) or self.clock >= 7,
           epochs=None, steps=9)
broken.add("makes no progress", (Worker, "_epoch"), ["push-sum", *SHARED], "batches",
           lambda epoch, self, number, batches: epoch(self, number, iter(batches)), epochs=2)
# fmt: on


@broken((Worker, "_step"), ["outer over servers", "allreduce"], "batches")
async def never_brings_a_sample(step, self, batch, progress):
    await step(self, tuple(it[:0] for it in batch) if self.number == 1 else batch, progress)


@broken((Worker, "_step"), ["serial", "async"], "batches")
async def counts_a_hundred_times_the_samples(step, self, batch, progress):
    self.compute.samples_in = lambda batch: 100 * len(batch[0])
    await step(self, batch, progress)


@pytest.mark.parametrize("mutant", broken, ids=broken.names)
@pytest.mark.one_in(3)
def test_it_is_found(run, monkeypatch, mutant):
    with monkeypatch.context() as patch:
        mutant.breaks(patch)
        out = run(mutant.where, **mutant.more)
    assert mutant.is_named_by(check_run(out))


@each("name", ["outer", "outer over servers"])
def test_an_outer_rate_that_is_none(run, name):
    history = read_history(run(name))
    for events in (*history.workers, *history.shards):
        kind = Kind.APPLY if history.shards else Kind.REDUCED
        events["rate"][(events["kind"] == kind) & (events["rate"] > 0)] = 1.0
    assert "expected 0.7" in violated(check(history), "rates")


@each("name", ["local-sgd", "async"])
def test_without_a_plan_an_epoch_must_come_to_its_end(run, name):
    """A problem may cut its data by itself; what it has counted is asked even so."""
    history = with_header(read_history(run(name, epochs=2)), batches=None)
    assert check(history).ok
    for events in (*history.workers, *history.shards):
        steps = np.isin(events["kind"], (Kind.PUSH, Kind.STEP, Kind.RECEIVE, Kind.APPLY))
        reduces = np.isin(events["kind"], (Kind.REDUCE, Kind.DROP))
        for at in (steps, reduces):  # the last batch of the first epoch belongs to the second one
            late = at & (events["progress"] > 0.8) & (events["progress"] < 1)
            events["progress"][late] = 1.0
    assert "the last one of an epoch that has more" in violated(check(history), "steps")


# --- by a real clock, and without a plan --------------------------------------------------------


@each("name", ["serial", "local-sgd"])
def test_by_a_real_clock_a_gradient_takes_time_and_the_end_may_come_late(run, name):
    """Only in virtual time is it known when a step began, and when the run was over."""
    history = read_history(run(name))
    real = with_header(history, simulated=False)
    (steps,) = np.nonzero(history.workers[0]["kind"] == Kind.STEP)
    seconds, end = history.workers[0]["seconds"], history.finals["time"]
    seconds[steps[2]] *= 0.5
    end += 1.0
    assert check(real).ok
    violated(check(history), "durations")
    seconds[steps[2]] *= 2
    assert "expected" in violated(check(history), "final version")
    seconds[steps[2]] = 0.0
    assert "its gradient took no time" in violated(check(real), "durations")


def test_by_a_real_clock_others_may_leave_after_the_one_that_writes(run):
    """In a model that is cut the first worker of each part writes, and waits for none of them."""
    history = read_history(run("gossip"))
    real = with_header(history, simulated=False)
    history.workers[-1]["time"][-1] += 1.0
    assert check(real).ok
    history.finals["time"] = history.workers[0]["time"][-1] - 1e-6
    assert "or later" in violated(check(real), "final version")


def test_by_a_real_clock_the_seconds_of_a_line_have_bounds(run):
    out = run("sync", log_every=4)
    history = with_header(read_history(out), simulated=False)
    for factor, holds in ((1.0, True), (0.9, False), (1.9, False)):
        by = {"seconds": factor, "samples_per_second": 1 / factor, "waiting_share": 1 / factor}
        forged = [
            line | {name: line[name] * it for name, it in by.items()} for line in metrics_of(out)
        ]
        assert check(history, metrics=forged).ok is holds, factor


def test_lines_of_metrics_that_contradict_each_other(run):
    """All that is known where a problem cuts the data by itself, or a worker has died."""
    out = run("allreduce", log_every=4)
    history, metrics = with_header(read_history(out), batches=None), metrics_of(out)
    assert check(history, metrics=metrics).ok
    for i, changes in (
        (1, {"step": metrics[0]["step"]}),
        (1, {"epoch": -1}),
        (2, {"seconds": metrics[1]["seconds"] / 2}),
        (2, {"samples": metrics[1]["samples"] - 1}),
        (1, {"bytes_sent": metrics[0]["bytes_sent"] - 1}),
        (0, {"samples_per_second": metrics[0]["samples_per_second"] * 1.01}),
        (0, {"loss": None}),
        (0, {"waiting_share": 1.5}),
        (0, {"gap_mean": 1e6}),
        (0, {"test_loss": 0.5}),
        (1, {"evaluated_seconds": 2 * metrics[1]["seconds"]}),
    ):
        forged = [*metrics]
        forged[i] = metrics[i] | changes
        assert violated(check(history, metrics=forged), "metrics"), changes


# --- what lies beside the history ---------------------------------------------------------------


def test_a_summary_that_tells_otherwise(run):
    """In these words."""
    out = run("async")
    history, summary, metrics = read_history(out), summary_of(out), metrics_of(out)
    assert check(history, summary=summary).ok
    good = summary["staleness"]
    first, *rest = good["histogram"]
    for text, changes in (
        ("mode: the summary says ssp, the history async", {"mode": "ssp"}),
        ("dropped", {"dropped": None}),
        ("seed: the summary says False", {"seed": False}),
        ("staleness mean: the summary lacks it", {"staleness": []}),
        ("histogram at 0", {"staleness": good | {"histogram": [first + 1, *rest]}}),
        ("by_worker at 0", {"staleness": good | {"by_worker": good["by_worker"][::-1]}}),
        ("by_shard: the summary says 3, expected a list", {"staleness": good | {"by_shard": 3}}),
        ("train_loss: the summary says 9, the last of metrics", {"train_loss": 9}),
    ):
        outcome = check(history, summary=summary | changes, metrics=metrics)
        assert text in violated(outcome, "summary")
    lines = violated(check(history, metrics=metrics[:-1]), "metrics")
    assert f"has {len(metrics) - 1} lines, the history makes {len(metrics)}" in lines
    (out / "metrics.jsonl").write_text("{")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 1: not JSON"):
        check_run(out)


def test_a_gap_beyond_a_float32_is_null_in_the_summary(run):
    """It is infinite in the history, and JSON has no infinity."""
    out = run("async")
    history, summary = read_history(out), summary_of(out)
    gap, events = summary["staleness"]["gap"], history.shards[0]
    stale = np.flatnonzero((events["kind"] == Kind.APPLY) & (events["gap"] > 0))
    events["gap"][stale[0]] = np.inf
    assert "the summary says" in violated(check(history, summary=summary), "summary")
    gap["mean"] = gap["max"] = None
    assert check(history, summary=summary).ok


def test_the_parameters_are_those_of_the_run(run):
    out = run("sync")
    header, summary, model = read_history(out).header, summary_of(out), out / "model.safetensors"
    for digest, moved in ((header.initial_sha256, False), (summary["parameters_sha256"], True)):
        findings, told = Findings(), summary | {"parameters_sha256": digest}
        SummaryCheck(told, contract_of(header), header, findings).digests(None, 0)
        assert (findings.first is not None) == moved, "without an update they do not move"
    whole = bytearray(model.read_bytes())
    whole[-1] ^= 1
    model.write_bytes(whole)
    assert "model.safetensors have SHA-256" in violated(check_run(out), "digests")
    model.unlink()
    assert check_run(out).ok
