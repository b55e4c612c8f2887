"""One worker's counters."""

from __future__ import annotations

import math

import pytest

from psrt.runtime.meter import Meter
from psrt.runtime.strategies.base import StepResult


class Port:
    bytes_sent, bytes_received, time = 100, 10, 5.0

    def __init__(self):
        self.reports = []

    def now(self):
        return self.time

    def report(self, report):
        self.reports.append(report)


@pytest.fixture
def port():
    return Port()


def test_its_clock_starts_when_training_does(port):
    """Setting up a job takes as long as a hundred steps of a small model."""
    meter = Meter(port, 3)
    port.time = 8.0
    meter.begin()
    port.time = 8.5
    assert meter.seconds == 0.5


def test_it_reports_what_happened_since(port):
    meter = Meter(port, 3)
    port.bytes_sent, port.bytes_received, port.time = 150, 25, 7.5
    meter.add(2.0, 4, StepResult(1, staleness_sum=5, staleness_count=2, staleness_max=4, skew=1))
    meter.add(1.0, 12, StepResult(2, staleness_sum=1, staleness_count=2, staleness_max=1, skew=3))
    meter.report(1, 2, {"loss": 0.5}, epoch_end=True)
    [report] = port.reports
    assert (report.worker, report.epoch, report.step) == (3, 1, 2)
    assert (report.loss, report.samples) == (1.25, 16)
    assert (report.staleness_sum, report.staleness_count, report.staleness_max) == (6, 4, 4)
    assert (report.columns, report.seconds) == ((50, 15), 2.5)
    assert (report.test_loss, report.epoch_end, report.last) == (0.5, True, False)
    assert math.isnan(report.test_accuracy)

    port.bytes_sent = 160
    meter.report(1, 2, {}, last=True)
    last = port.reports[-1]
    assert (last.samples, last.staleness_count, last.columns) == (0, 0, (60, 15))
    assert math.isnan(last.loss)
    assert (meter.stats.samples, meter.steps, max(meter.stats.skew), meter.seconds) == (
        16,
        2,
        3,
        2.5,
    )
    assert last.last


def test_an_empty_step_counts_as_a_step_only(port):
    meter = Meter(port, 0)
    meter.add(0.0, 0, StepResult(1))
    meter.report(0, 1, {})
    assert (meter.steps, meter.stats.samples, port.reports[0].samples) == (1, 0, 0)
    assert math.isnan(port.reports[0].loss)


@pytest.mark.parametrize(
    ("every", "reported", "clock", "due"),
    [
        (None, 0, 100, False),
        (5, 0, 4, False),
        (5, 0, 5, True),
        (5, 5, 5, False),
        (5, 5, 9, False),
        (5, 4, 5, True),
        (5, 7, 10, True),  # an epoch ended at 7; logged steps stay where they are
        (5, 3, 17, True),  # backups overtook the worker
    ],
)
def test_a_report_is_due_where_a_logged_step_was_reached(port, every, reported, clock, due):
    meter = Meter(port, 0, log_every=every)
    meter.report(0, reported, {})
    assert meter.due(clock) is due
