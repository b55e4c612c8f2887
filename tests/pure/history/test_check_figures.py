"""Rates, batches, ends, sums and summaries of runs on data: what is told must follow from the rest.

Each way to go wrong leaves a history that contradicts itself nowhere else.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.history import Kind, read_history
from psrt.history.check import Findings, check, contract_of
from psrt.history.check import run as order_of_rules
from psrt.history.check.metrics import KEYS as LINE_KEYS
from psrt.history.check.run import check_run
from psrt.history.check.summary import KEYS, SummaryCheck
from psrt.history.check.trust import METRICS, SUMMARY, on_trust
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.optim import Schedule
from psrt.optim.schedule import SCHEDULES
from psrt.optim.staleness import Exponential, Inverse, Power
from psrt.report.summary import FIELDS
from psrt.runtime.worker import Worker
from support.cases import pairs, some

#: Modes by name: knobs beyond the usual, and whether there are servers.
MODES = {
    "serial": {"mode": "serial"},
    "allreduce": {"mode": "allreduce"},
    "allreduce, one bucket": {"mode": "allreduce", "overlap": False},
    "local-sgd": {"mode": "local-sgd", "local_steps": 2},
    "outer": {"mode": "local-sgd", "local_steps": 2, "outer_lr": 0.7, "outer_momentum": 0.9},
    "fragments": {
        "mode": "local-sgd", "local_steps": 4, "fragments": 2, "sync_delay": 1, "hidden": (6, 4),
    },
    "eager": {
        "mode": "local-sgd", "local_steps": 4, "fragments": 2, "fragment_order": "sequential",
        "eager": True, "hidden": (6, 4), "allreduce": "butterfly",
    },
    "outer over servers": {
        "mode": "local-sgd", "local_steps": 2, "outer_lr": 0.7, "outer_momentum": 0.9,
        "servers": 2,
    },
    "easgd": {"mode": "easgd", "local_steps": 2, "servers": 2},
    "easgd, asynchronous": {
        "mode": "easgd", "local_steps": 3, "servers": 1, "asynchronous": True,
    },
    "gossip": {"mode": "gossip", "consensus_every": 2},
    "gossip, adapt first": {
        "mode": "gossip", "topology": "one-peer-exponential", "order": "adapt-then-combine",
    },
    "push-sum": {"mode": "gossip", "topology": "exponential", "push_sum": True},
    "sync": {"mode": "sync", "servers": 2},
    "backup": {"mode": "sync", "servers": 2, "backup": 1},
    "async": {"mode": "async", "servers": 2},
    "ssp, 3 shards each": {"mode": "ssp", "servers": 2, "staleness": 1, "shards_per_server": 3},
    "inverse": {"mode": "async", "servers": 1, "staleness_rate": "inverse"},
    "ssp, exponential": {
        "mode": "ssp", "servers": 1, "staleness": 2, "staleness_rate": "exponential",
    },
    "softsync, power": {
        "mode": "softsync", "servers": 1, "softsync": 2, "staleness_rate": "power",
    },
    "gap-aware": {"mode": "async", "servers": 1, "staleness_rate": "gap-aware"},
}  # fmt: skip
#: What a schedule may look like over two and a half epochs.
CURVES = {
    "constant": {},
    "warm-up": {"warmup_epochs": 1.0},
    "step": {"schedule": "step", "decay_epochs": 0.5, "decay_factor": 0.5},
    "cosine": {"schedule": "cosine", "warmup_epochs": 0.5},
}


@pytest.fixture
def run(tmp_path):
    """Record a run on data in virtual time, of batches of which the last is smaller."""

    def made(name, folder="run", *, workers=3, costs=None, **more):
        knobs = {"servers": 0, "epochs": 2.5, "batch_size": 4, "lr": 0.1, "hidden": ()}
        knobs |= {"dataset": "synthetic:70x3x2"} | MODES[name] | more
        out = tmp_path / folder
        config = TrainConfig(record=True, out=str(out), overwrite=True, **knobs)
        run_in_virtual_time(config, Scenario(1 if name == "serial" else workers))
        return out

    return made


def violated(outcome, rule):
    assert not outcome.ok, "nothing was found"
    assert outcome.violation.rule == rule, "\n".join(outcome.lines())
    return outcome.violation.text


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", MODES)
def test_a_sound_run_is_sound(run, name):
    for curve, knobs in CURVES.items():
        outcome = check_run(run(name, **knobs))
        assert outcome.ok, (curve, *outcome.lines())
        assert outcome.checked["batches"] > 0
        assert outcome.checked["rates"] > 0
        assert outcome.checked["digests"] == 1
    assert {knobs.get("schedule", "constant") for knobs in CURVES.values()} == set(SCHEDULES)


# --- rates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "curve"), pairs(MODES, CURVES, one_in=4))
def test_another_rate_than_the_schedule_says(run, monkeypatch, name, curve):
    rate = Schedule.rate
    monkeypatch.setattr(Schedule, "rate", lambda self, progress: 1.01 * rate(self, progress))
    assert "had rate" in violated(check_run(run(name, **CURVES[curve])), "rates")


@pytest.mark.parametrize("name", ["serial", "allreduce", "local-sgd", "sync", "async", "gap-aware"])
def test_a_warm_up_that_is_left_out(run, monkeypatch, name):
    monkeypatch.setattr(Schedule, "rate", lambda self, progress: self.peak)
    violated(check_run(run(name, warmup_epochs=1.0)), "rates")


@pytest.mark.parametrize("name", ["inverse", "ssp, exponential", "softsync, power"])
def test_staleness_that_nobody_heeds_while_a_schedule_moves_on(run, monkeypatch, name):
    for kind in (Inverse, Power, Exponential):
        monkeypatch.setattr(kind, "scale", lambda self, staleness: 1.0)
    violated(check_run(run(name, **CURVES["cosine"])), "rates")


@pytest.mark.parametrize("name", ["outer", "outer over servers"])
def test_an_outer_rate_that_is_none(run, name):
    out = run(name)
    history = read_history(out)
    for events in (*history.workers, *history.shards):
        kind = Kind.APPLY if history.shards else Kind.REDUCED
        events["rate"][(events["kind"] == kind) & (events["rate"] > 0)] = 1.0
    assert "expected 0.7" in violated(check(history), "rates")


# --- steps and batches --------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODES)
def test_all_workers_leave_an_epoch_early(run, monkeypatch, name):
    finished = Worker._finished
    monkeypatch.setattr(Worker, "_finished", lambda self, at: finished(self, at + 1))
    expected = 45 if name == "serial" else 15
    assert f"expected {expected}" in violated(check_run(run(name)), "steps")


@pytest.mark.parametrize("name", ["serial", "allreduce", "local-sgd", "sync", "backup", "async"])
def test_workers_that_leave_before_the_number_of_steps(run, monkeypatch, name):
    finished = Worker._finished
    monkeypatch.setattr(Worker, "_finished", lambda self, at: finished(self, at) or self.clock >= 7)
    assert "expected 9" in violated(check_run(run(name, epochs=None, steps=9)), "steps")


@pytest.mark.parametrize("name", ["local-sgd", "sync", "async", "allreduce", "outer over servers"])
def test_a_worker_that_never_brings_a_sample(run, monkeypatch, name):
    step = Worker._step

    async def idle(self, batch, progress):
        await step(self, tuple(it[:0] for it in batch) if self.number == 1 else batch, progress)

    monkeypatch.setattr(Worker, "_step", idle)
    assert "worker 1 has 0 samples" in violated(check_run(run(name)), "batches")


@pytest.mark.parametrize("name", ["serial", "sync", "async", "softsync, power"])
def test_a_hundred_times_the_samples(run, monkeypatch, name):
    step = Worker._step

    async def more(self, batch, progress):
        self._samples_in = lambda batch: 100 * len(batch[0])
        await step(self, batch, progress)

    monkeypatch.setattr(Worker, "_step", more)
    assert "has 400 samples" in violated(check_run(run(name)), "batches")


@pytest.mark.parametrize("name", MODES)
def test_progress_that_stands_still(run, monkeypatch, name):
    epoch = Worker._epoch

    async def without_length(self, number, batches):
        return await epoch(self, number, iter(batches))

    monkeypatch.setattr(Worker, "_epoch", without_length)
    violated(check_run(run(name, epochs=2)), "batches")


@pytest.mark.parametrize("name", ["sync", "local-sgd", "async"])
def test_without_a_plan_an_epoch_must_come_to_its_end(run, name):
    """A problem may cut its data by itself; what it has counted is asked even so."""
    history = read_history(run(name, epochs=2))
    made = {item: getattr(history.header, item) for item in history.header.__slots__}
    header = type(history.header)(**made | {"batches": None})
    history = type(history)(header, history.workers, history.shards, history.finals)
    assert check(history).ok
    for events in (*history.workers, *history.shards):
        steps = np.isin(events["kind"], (Kind.PUSH, Kind.STEP, Kind.RECEIVE, Kind.APPLY))
        reduces = np.isin(events["kind"], (Kind.REDUCE, Kind.DROP))
        for at in (steps, reduces):  # the last batch of the first epoch belongs to the second one
            late = at & (events["progress"] > 0.8) & (events["progress"] < 1)
            events["progress"][late] = 1.0
    assert "the last one of an epoch that has more" in violated(check(history), "steps")


# --- sums, gaps, order --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["allreduce", "allreduce, one bucket", "local-sgd", "outer"])
def test_a_sum_that_is_over_before_all_have_come(run, name):
    history = read_history(run(name))
    parts = [np.flatnonzero(events["kind"] == Kind.REDUCE) for events in history.workers]
    for number in range(len(parts[0])):
        came = [
            events["time"][at[number]] for events, at in zip(history.workers, parts, strict=True)
        ]
        first = int(np.argmin(came))
        if max(came) - came[first] < 1e-5:
            continue
        events, end = history.workers[first], parts[first][number] + 1
        early = events["time"][end] - came[first]
        events["time"][end] -= early
        events["seconds"][end + 1 : end + 2] += early  # its next step begins as early
        last = int(np.argmax(came))
        text = violated(check(history), "causality")
        assert text == f"worker {first} took sum {number} before worker {last} had brought its part"
        return
    pytest.fail("all came at once")


@pytest.mark.parametrize("name", ["sync", "async", "softsync, power"])
def test_a_gap_where_nothing_has_moved(run, name):
    history = read_history(run(name))
    assert check(history).ok
    (events,) = history.shards[:1]
    fresh = np.flatnonzero((events["kind"] == Kind.APPLY) & (events["tau"] == 0))
    events["gap"][fresh[0]] = 0.25
    assert "measured a gap of 0.25" in violated(check(history), "gaps")


def test_a_gap_beyond_a_float32_is_null_in_the_summary(run):
    """It is infinite in the history, and JSON has no infinity."""
    out = run("async")
    history, summary = read_history(out), told(out)
    gap = summary["staleness"]["gap"]
    events = history.shards[0]
    stale = np.flatnonzero((events["kind"] == Kind.APPLY) & (events["gap"] > 0))
    events["gap"][stale[0]] = np.inf
    assert "the summary says" in violated(check(history, summary=summary), "summary")
    gap["mean"] = gap["max"] = None
    assert check(history, summary=summary).ok


# --- what lies beside the history ---------------------------------------------------------------


def told(out, name="summary.json"):
    return json.loads((out / name).read_text())


def changed(value):
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    return 0.5 if value is None else value * 1.5 + 1


def changes_of(values):
    """Yield (path, values) for every figure inside: changed there, or left out."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in items:
        if isinstance(values, dict):
            yield (key,), {name: it for name, it in values.items() if name != key}
        if isinstance(value, (dict, list)):
            for path, inside in changes_of(value):
                yield (key, *path), replaced(values, key, inside)
        else:
            yield (key,), replaced(values, key, changed(value))


def replaced(values, key, value):
    if isinstance(values, dict):
        return values | {key: value}
    return [*values[:key], value, *values[key + 1 :]]


def take_events_as_checked(monkeypatch):
    """Ask no more what is asked of each event alone: of this history it was, and all was well."""
    for rule in ("check_times", "check_events", "check_frames", "check_sum_frames"):
        monkeypatch.setattr(order_of_rules, rule, lambda *_: None)


#: What follows from no event, and from no other figure; it must be there, whatever it is.
FREE = {
    "test_loss", "test_accuracy", "parameters_sha256", "allreduce_why", "shards_why", "buckets",
    "bytes_sent", "bytes_received", "memory", "test_figures", "environment",
}  # fmt: skip


def test_what_is_free_is_said_to_be_on_trust():
    assert on_trust(SUMMARY) >= FREE
    assert on_trust(METRICS) >= FREE_OF_LINES


@pytest.mark.parametrize("name", some(MODES, one_in=3))
@pytest.mark.one_in(3)
def test_every_figure_of_a_summary(run, monkeypatch, name):
    out = run(name)
    summary = told(out)
    assert set(KEYS) == set(summary) == set(FIELDS)
    history, metrics = read_history(out), lines_of(out)
    assert check(history, summary=summary, metrics=metrics).ok
    take_events_as_checked(monkeypatch)
    for path, forged in changes_of(summary):
        outcome = check(history, summary=forged, metrics=metrics)
        mixes = MODES[name]["mode"] == "gossip" and path[0].startswith("bytes")
        streams = "fragments" in MODES[name] and path[0].startswith("bytes")  # then they follow
        if path[0] in FREE and path[0] in forged and not streams and not mixes:
            continue
        if name == "push-sum" and path[-1] == "consensus_distance":  # it has bounds only
            continue
        assert not outcome.ok, path
        violated(outcome, "summary")
    shown = next(iter(MODES[name].values()))
    assert f"mode: the summary says {shown}x, the history {shown}" in violated(
        check(history, summary=summary | {"mode": f"{shown}x"}), "summary"
    )


@pytest.mark.parametrize("name", ["serial", "allreduce", "local-sgd", "sync", "backup", "async"])
def test_figures_of_a_summary_that_follow_from_the_metrics(run, name):
    out = run(name)
    history, summary, metrics = read_history(out), told(out), lines_of(out)
    for figure, column in (("train_loss", "loss"), ("bytes_sent",) * 2, ("bytes_received",) * 2):
        forged = summary | {figure: metrics[-1][column] - 1}
        text = violated(check(history, summary=forged, metrics=metrics), "summary")
        assert text.startswith(f"{figure}: the summary says {forged[figure]}, the last of metrics")
    (out / "metrics.jsonl").write_text("{")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 1: not JSON"):
        check_run(out)


# --- metrics ------------------------------------------------------------------------------------


def lines_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


#: Of a line, what no event has: it is bounded by the line before, or by nothing.
FREE_OF_LINES = {
    "loss", "test_loss", "accuracy", "evaluated_seconds", "gap_mean", "bytes_sent",
    "bytes_received",
}  # fmt: skip


@pytest.mark.parametrize(
    "log_every", [4, *(pytest.param(it, marks=pytest.mark.exhaustive) for it in (None, 1))]
)
@pytest.mark.parametrize("name", some(MODES, one_in=3))
@pytest.mark.one_in(3)
def test_every_figure_of_every_line_of_the_metrics(run, monkeypatch, name, log_every):
    out = run(name, log_every=log_every)
    history, metrics = read_history(out), lines_of(out)
    assert set(LINE_KEYS) == set(metrics[0])
    epoch, end = (18, 45) if name == "serial" else (6, 15)
    steps = {*range(epoch, end, epoch), end, *(range(0, end, log_every) if log_every else ())}
    if name != "backup":  # whose workers may leave out a step
        assert [line["step"] for line in metrics] == sorted(steps - {0})
    assert check(history, metrics=metrics).ok
    take_events_as_checked(monkeypatch)
    for i, line in enumerate(metrics):
        for path, forged in changes_of(line):
            if path[0] in FREE_OF_LINES and path[0] in forged:
                continue
            # Nothing is sent after the last step, and sums say little of what weights divide.
            vague = name == "push-sum" or (name == "gossip" and i == len(metrics) - 1)
            if vague and path == ("consensus_distance",) and path[0] in forged:
                continue
            forged = [*metrics[:i], forged, *metrics[i + 1 :]]
            outcome = check(history, metrics=forged)
            assert not outcome.ok, (i, path, line, forged[i])
            violated(outcome, "metrics")
        left = [*metrics[:i], *metrics[i + 1 :]]
        text = violated(check(history, metrics=left), "metrics")
    assert f"has {len(left)} lines, the history makes {len(metrics)}" in text  # without the last
    assert violated(check(history, metrics=[*metrics, metrics[-1]]), "metrics")


@pytest.mark.parametrize("name", ["serial", "allreduce", "sync", "async", "local-sgd"])
def test_lines_of_metrics_that_contradict_each_other(run, name):
    """All that is known where a problem cuts the data by itself, or a worker has died."""
    out = run(name, log_every=4)
    history, metrics = read_history(out), lines_of(out)
    made = {item: getattr(history.header, item) for item in history.header.__slots__}
    history = replace(history, header=type(history.header)(**made | {"batches": None}))
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


@pytest.mark.parametrize("name", ["serial", "allreduce", "sync", "local-sgd"])
def test_by_a_real_clock_the_seconds_of_a_line_have_bounds(run, name):
    out = run(name, log_every=4)
    history, metrics = read_history(out), lines_of(out)
    made = {item: getattr(history.header, item) for item in history.header.__slots__}
    history = replace(history, header=type(history.header)(**made | {"simulated": False}))
    for factor, holds in ((1.0, True), (0.9, False), (1.9, False)):
        forged = [
            line
            | {
                "seconds": line["seconds"] * factor,
                "samples_per_second": line["samples_per_second"] / factor,
                "waiting_share": line["waiting_share"] / factor,
            }
            for line in metrics
        ]
        assert check(history, metrics=forged).ok is holds, factor


def test_a_model_that_is_not_that_of_the_run(run):
    out, other = run("sync"), run("sync", "other", seed=1)
    assert check_run(out).ok
    model = out / "model.safetensors"
    whole = bytearray(model.read_bytes())
    whole[-1] ^= 1
    model.write_bytes(whole)
    assert "model.safetensors have SHA-256" in violated(check_run(out), "digests")
    model.write_bytes((other / "model.safetensors").read_bytes())
    violated(check_run(out), "digests")
    model.unlink()
    assert check_run(out).ok


def test_parameters_that_moved_without_an_update(run):
    out = run("sync")
    header, summary = read_history(out).header, json.loads((out / "summary.json").read_text())
    for digest, moved in ((header.initial_sha256, False), (summary["parameters_sha256"], True)):
        findings = Findings()
        told = summary | {"parameters_sha256": digest}
        SummaryCheck(told, contract_of(header), header, findings).digests(None, 0)
        assert (findings.first is not None) == moved


@pytest.mark.parametrize("name", ["sync", "async", "local-sgd", "allreduce"])
def test_nobody_dies_unless_a_crash_was_scheduled(run, name):
    """Without ``simulation.json`` the header says who may have died."""
    out = run(name)
    (out / "simulation.json").unlink()
    history = read_history(out)
    assert check_run(out).ok
    events = history.workers[1]
    workers = (history.workers[0], events[events["kind"] != Kind.LEAVE], history.workers[2])
    forged = type(history)(history.header, workers, history.shards, history.finals)
    assert "worker 1 never said that it leaves" in violated(check(forged), "membership")


@pytest.mark.parametrize("name", ["serial", "allreduce", "local-sgd"])
def test_by_a_real_clock_a_gradient_takes_time_and_the_end_may_come_late(run, name):
    """Only in virtual time is it known when a step began, and when the run was over."""
    history = read_history(run(name))
    made = {item: getattr(history.header, item) for item in history.header.__slots__}
    real = replace(history, header=type(history.header)(**made | {"simulated": False}))
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
