"""Rates and waits are of windows of time: recomputed here from the events of histories alone."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from psrt.history import Kind
from psrt.report import MetricsAggregator
from support.histories import MODES, config_of, recorded
from support.recording import Ledger
from support.reports import make_report

STEPS, EPOCHS = (6, 4, 9, 3), 3
#: Modes in and out of step whose workers compute, then wait.
NAMES = (
    "allreduce", "sync", "async", "ssp 1", "softsync 2", "softsync 1", "async, drops",
    "easgd, asynchronous", "easgd", "local-sgd over servers",
)  # fmt: skip


def stretches(events, steps, log_every):
    """Return (since, until, samples, waited) between a worker's reports, by its events alone."""
    kind, time, seconds = events["kind"], events["time"], events["seconds"]
    computed = kind == (Kind.STEP if (kind == Kind.STEP).any() else Kind.PUSH)
    # A report follows what belongs to its step: it is made as the next one begins to be computed.
    step = np.maximum(np.cumsum(computed) - 1, 0)
    began = (time - seconds)[computed]
    clocks = [c for c in range(1, len(began)) if not c % steps or (log_every and not c % log_every)]
    stretch = np.searchsorted(clocks, step, side="right")
    waits = np.isin(kind, [Kind.READ, Kind.REDUCED]) & (seconds > 0)
    edges = np.array([0.0, *began[clocks], time[-1]])
    made = np.bincount(stretch, events["samples"] * computed)
    waited = np.bincount(stretch, seconds * waits)
    return edges[:-1], edges[1:], made, waited


def upto(at, pieces):
    """Return what was done until a time, each piece spread evenly over its stretch."""
    since, until, made, waited = pieces
    length = np.where(until > since, until - since, 1.0)
    share = np.clip((at - since) / length, 0.0, 1.0)
    share = np.where(until > since, share, at >= until)
    return np.array([(share * made).sum(), (share * waited).sum()])


@pytest.mark.parametrize("log_every", [None, 1])
def test_the_events_alone_say_what_was_done_in_each_window(log_every):
    for name, costs in product(NAMES, ("exponential", "now and then stuck")):
        servers = MODES[name][2][0]
        config = config_of(name, servers, epochs=EPOCHS, log_every=log_every)
        books = Ledger(STEPS, max(1, servers))
        history, run = recorded(config, books, workers=len(STEPS), costs=costs)
        every = [stretches(it, n, log_every) for it, n in zip(history.workers, STEPS, strict=True)]
        before, sums = 0.0, np.zeros(2)
        for record in run.records:
            end = record.measured_seconds
            assert before <= end <= record.seconds
            if end == before:
                assert record.samples_per_second is record.waiting_share is None
                continue
            due = sum(upto(end, it) - upto(before, it) for it in every)
            said = np.array([record.samples_per_second, len(STEPS) * record.waiting_share])
            np.testing.assert_allclose(said * (end - before), due, atol=1e-5, err_msg=name)
            assert 0.0 <= record.waiting_share <= 1.0 + 1e-12
            sums += said * (end - before)
            before = end
        assert before == run.records[-1].seconds == pytest.approx(run.summary.seconds, abs=1e-6)
        waited = sum(it.seconds for it in run.summary.waiting)
        np.testing.assert_allclose(sums, [run.summary.samples, waited])


def test_the_lines_count_the_gradients_that_the_summary_counts(monkeypatch):
    """What was dropped, or only asked for a newer version, has no staleness."""
    reports = []
    add = MetricsAggregator.add
    monkeypatch.setattr(
        MetricsAggregator, "add", lambda self, it: reports.append(it) or add(self, it)
    )
    dropped = 0
    for name, (_, _, servers) in MODES.items():
        for count in servers:
            reports.clear()
            steps = STEPS[:1] if name == "serial" else STEPS
            config = config_of(name, count, epochs=EPOCHS, log_every=2)
            books = Ledger(steps, max(1, count))
            _, run = recorded(config, books, workers=len(steps), costs="now and then stuck")
            tau = np.repeat(*np.array([*enumerate(run.summary.staleness.histogram)] or [(0, 0)]).T)
            found = np.array([it[5:8] for it in reports])
            said = found[:, 0].sum(), found[:, 1].sum(), found[:, 2].max()
            assert said == (tau.sum(), len(tau), tau.max(initial=0)), (name, count)
            largest = max((it.staleness_max or 0 for it in run.records), default=0)
            assert largest == run.summary.staleness.max, (name, count)
            dropped += run.summary.dropped
    assert dropped > 20


def test_a_wait_is_in_each_window_by_its_part():
    aggregator = MetricsAggregator(2, log_every=1)
    aggregator.add(make_report(0, 1, since=0.0, seconds=1.0, samples=10))
    [first] = aggregator.add(make_report(1, 1, since=0.0, seconds=2.0, samples=30, waited=1.5))
    assert (first.seconds, first.measured_seconds) == (2.0, 1.0)
    assert (first.samples_per_second, first.waiting_share) == (10 + 15, 0.75 / 2)
    # Worker 0 is far ahead, which no more than the time that both have told of is counted for.
    for step in range(2, 7):
        aggregator.add(make_report(0, step, since=step - 1.0, seconds=step, samples=10))
    [second] = aggregator.add(make_report(1, 2, since=2.0, seconds=5.0, samples=30, waited=3.0))
    assert (second.seconds, second.measured_seconds) == (5.0, 5.0)
    assert second.samples_per_second == pytest.approx((40 + 15 + 30) / 4)
    assert second.waiting_share == pytest.approx((0.75 + 3.0) / 8)


def test_a_run_that_is_resumed_counts_no_time_twice():
    aggregator = MetricsAggregator(2, log_every=1)
    aggregator.add(make_report(0, 1, since=0.0, seconds=1.0, samples=10))
    [first] = aggregator.add(make_report(1, 1, since=0.0, seconds=2.0, samples=30))
    again = MetricsAggregator(2, log_every=1)
    again.go_on(first)
    # A report that is in a record reaches beyond its window; the other one does not.
    again.add(make_report(0, 1, since=0.0, seconds=1.0, samples=10))
    again.add(make_report(1, 1, since=0.0, seconds=2.0, samples=30))
    again.add(make_report(0, 2, since=1.0, seconds=4.0, samples=10, last=True))
    [second] = again.add(make_report(1, 2, since=2.0, seconds=4.0, samples=30, last=True))
    assert (second.measured_seconds, second.samples_per_second) == (4.0, (10 + 15 + 30) / 3)
