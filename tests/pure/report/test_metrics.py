"""Lines of metrics: what reports of workers come to, over which window of time, and the files."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from contextlib import closing

import numpy as np
import pytest

from psrt.core.errors import ProtocolError
from psrt.core.stats import Sketch
from psrt.history.check.metrics import SaidWindows
from psrt.report import MetricsAggregator, MetricsFile, read_metrics, seconds_to_accuracy
from psrt.report.progress import ProgressFile
from support.cases import each
from support.reports import make_report


def feed(aggregator, *reports):
    """Add reports, of a worker and a step each, and fields; return the records."""
    return [
        record
        for worker, step, *fields in reports
        for record in aggregator.add(make_report(worker, step, **dict(*fields)))
    ]


def figures(records, *names):
    return [tuple(getattr(record, name) for name in names) for record in records]


# --- what a record adds up ----------------------------------------------------------------------


@each(
    ("fields", "due"),
    [
        # Of both workers, each in the order of its steps; a record waits for the last one.
        ([{"loss": 1.0, "samples": 30}, {"loss": 5.0, "samples": 10}], {"loss": 2.0}),
        ([{"loss": math.nan, "samples": 0}, {"loss": 3.0}], {"loss": 3.0}),
        ([{"loss": math.nan, "samples": 0}] * 2, {"loss": math.nan}),
        ([{"loss": math.inf}, {"loss": 3.0}], {"loss": math.inf}),
        ([{"seconds": 0.0}] * 2, {"samples_per_second": None, "samples": 16}),
        (
            [
                {"staleness_sum": 10, "staleness_count": 4, "staleness_max": 7},
                {"staleness_sum": 2, "staleness_count": 2, "staleness_max": 1},
            ],
            {"staleness_mean": 2.0, "staleness_max": 7},
        ),
        ([{}, {}], {"staleness_mean": None, "staleness_max": None, "accuracy": None}),
        (
            [{"test_loss": 0.5, "test_accuracy": 0.75, "epoch": 1, "epoch_end": True},
             {"epoch": 1, "epoch_end": True}],
            {"test_loss": 0.5, "accuracy": 0.75, "epoch": 1, "epoch_end": True},
        ),
        ([{"test_loss": 0.5}, {}], {"test_loss": 0.5, "accuracy": None, "epoch_end": False}),
        # Whose evaluation it was, and when that was.
        ([{"seconds": 1.0, "test_accuracy": 0.75}, {"seconds": 9.0}],
         {"seconds": 9.0, "evaluated_seconds": 1.0}),
        ([{"columns": (100, 1)}, {"columns": (110, 3)}], {"bytes_sent": 210, "bytes_received": 4}),
    ],
)  # fmt: skip
def test_a_record_is_of_all_workers_and_what_they_said_since_the_one_before(fields, due):
    aggregator = MetricsAggregator(2, log_every=5)
    for step in (5, 10):
        assert feed(aggregator, (0, step, fields[0])) == []
        [record] = feed(aggregator, (1, step, fields[1]))
        assert record.step == step
        if step == 5:
            np.testing.assert_equal({name: getattr(record, name) for name in due}, due)
        fields = [it | {"test_accuracy": math.nan, "test_loss": math.nan} for it in fields]
    assert (record.test_loss, record.accuracy, record.evaluated_seconds) == (None, None, None)


def test_a_slow_worker_completes_several_records_at_once_and_one_that_leaves_none():
    aggregator = MetricsAggregator(2, log_every=5)
    assert feed(aggregator, (0, 5), (0, 10), (0, 15)) == []
    assert figures(feed(aggregator, (1, 5)), "step") == [(5,)]
    records = feed(aggregator, (1, 15))  # over 10
    assert figures(records, "step", "samples") == [(10, 24), (15, 40)]
    assert feed(aggregator, (0, 20)) == []
    [record] = feed(aggregator, (1, 18, {"last": True}))
    assert (record.step, record.samples) == (20, 56)
    assert figures(feed(aggregator, (0, 25)), "step", "samples") == [(25, 64)]
    assert not aggregator.finished
    assert figures(feed(aggregator, (0, 30, {"last": True})), "step") == [(30,)]
    assert aggregator.finished


def test_records_are_of_logged_steps_of_ends_of_epochs_and_of_the_end():
    aggregator = MetricsAggregator(1, log_every=5)
    assert feed(aggregator, (0, 4)) == []
    assert figures(feed(aggregator, (0, 10)), "step", "samples") == [(10, 16)]
    aggregator = MetricsAggregator(1)
    assert feed(aggregator, (0, 5)) == []
    end = {"epoch_end": True}
    assert figures(feed(aggregator, (0, 9, end)), "step", "samples") == [(9, 16)]
    aggregator = MetricsAggregator(2)
    assert feed(aggregator, (0, 3), (0, 5, end)) == []
    assert figures(feed(aggregator, (1, 5, end)), "step", "samples") == [(5, 24)]
    # The rest makes one record, unless there is none; a late evaluation is not lost.
    assert feed(aggregator, (0, 7, {"last": True})) == []
    assert figures(feed(aggregator, (1, 8, {"last": True})), "step", "samples") == [(8, 40)]
    for more, due in (({}, []), ({"test_loss": 0.5}, [(5, 0.5)])):
        aggregator = MetricsAggregator(1, log_every=5)
        feed(aggregator, (0, 5))
        last = {"samples": 0, "loss": math.nan, "last": True} | more
        assert figures(feed(aggregator, (0, 5, last)), "step", "test_loss") == due
        assert aggregator.finished


def test_whoever_has_died_is_waited_for_no_more_but_what_it_said_counts():
    aggregator = MetricsAggregator(3, log_every=5)
    feed(aggregator, (0, 5), (2, 5), (1, 5, {"samples": 3}), (0, 10), (2, 10))
    feed(aggregator, (1, 9, {"samples": 2}))
    assert figures(aggregator.gone(1), "step", "samples") == [(10, 8 * 4 + 5)]
    with pytest.raises(ProtocolError, match="after its last report"):
        feed(aggregator, (1, 15))
    assert feed(aggregator, (0, 15)) == []
    assert figures(feed(aggregator, (2, 15, {"last": True})), "step") == [(15,)]
    assert aggregator.gone(2) == [], "it had left"
    feed(aggregator, (0, 17))
    assert not aggregator.finished
    assert figures(aggregator.gone(0), "step") == [(17,)]
    assert aggregator.finished


# --- how far workers are apart ------------------------------------------------------------------


def look(aggregator, clock, *numbers):
    """Let workers sketch a number each at a clock; None where one does not."""
    for worker, number in enumerate(numbers):
        if number is not None:
            aggregator.look(Sketch(worker, clock, np.array([number]).tobytes()))


def test_workers_are_compared_where_all_of_them_are():
    aggregator = MetricsAggregator(3, log_every=5)
    look(aggregator, 5, 1.0, 2.0)
    look(aggregator, 6, 9.0, 9.0)
    look(aggregator, 5, None, None, 3.0)
    [record] = feed(aggregator, (0, 5), (1, 5), (2, 5))
    assert record.consensus_distance == pytest.approx(math.sqrt(2 / 3))
    [record] = feed(aggregator, (0, 10), (1, 10), (2, 10))
    assert record.consensus_distance is None  # worker 2 has nothing of clock 6


def test_who_has_left_or_died_is_compared_no_more():
    aggregator = MetricsAggregator(4, log_every=5)
    feed(aggregator, (3, 2, {"last": True}))
    look(aggregator, 4, 0.0, 2.0, 7.0)
    look(aggregator, 5, 0.0, 4.0)
    aggregator.gone(2)
    [record] = feed(aggregator, (0, 5), (1, 5))
    assert record.consensus_distance == 2.0  # the newest, of the two that there are


# --- windows of time ----------------------------------------------------------------------------


def test_a_wait_is_in_each_window_by_its_part_and_a_resumed_run_counts_none_twice():
    aggregator, again = MetricsAggregator(2, log_every=1), MetricsAggregator(2, log_every=1)
    before = [
        (0, 1, {"since": 0.0, "seconds": 1.0, "samples": 10}),
        (1, 1, {"since": 0.0, "seconds": 2.0, "samples": 30, "waited": 1.5}),
    ]
    [first] = feed(aggregator, *before)
    assert (first.seconds, first.measured_seconds) == (2.0, 1.0)
    assert (first.samples_per_second, first.waiting_share) == (10 + 15, 0.75 / 2)
    # Worker 0 is far ahead, which no more than the time that both have told of is counted for.
    ahead = [(0, step, {"since": step - 1.0, "seconds": step, "samples": 10})
             for step in range(2, 7)]  # fmt: skip
    [second] = feed(
        aggregator, *ahead, (1, 2, {"since": 2.0, "seconds": 5.0, "samples": 30, "waited": 3.0})
    )
    assert (second.seconds, second.measured_seconds) == (5.0, 5.0)
    assert second.samples_per_second == pytest.approx((40 + 15 + 30) / 4)
    assert second.waiting_share == pytest.approx((0.75 + 3.0) / 8)
    [third] = feed(aggregator, (1, 3, {"since": 5.0, "seconds": 9.0, "samples": 30, "waited": 2.0}))
    assert (third.seconds, third.measured_seconds) == (9.0, 6.0)
    assert third.samples_per_second == pytest.approx(10 + 30 / 4)
    assert third.waiting_share == pytest.approx(2.0 / 4 / 2)
    # A report that is in a record reaches beyond its window; the other one does not.
    again.go_on(first)
    last = {"seconds": 4.0, "last": True}
    [second] = feed(
        again, *before, (0, 2, last | {"since": 1.0, "samples": 10}),
        (1, 2, last | {"since": 2.0, "samples": 30}),
    )  # fmt: skip
    assert (second.measured_seconds, second.samples_per_second) == (4.0, (10 + 15 + 30) / 3)
    assert (second.step, second.samples) == (2, 80)


# --- files --------------------------------------------------------------------------------------


def test_records_come_back_from_the_file_each_at_once(tmp_path, record):
    path = tmp_path / "metrics.jsonl"
    others = [
        dataclasses.replace(record, step=np.int64(140), loss=it)
        for it in (np.float32(0.5), math.nan, math.inf, -math.inf, np.float32("nan"))
    ]
    with closing(MetricsFile(path)) as metrics:
        for count, it in enumerate([record, *others], start=1):
            metrics.write(it)
            assert len(read_metrics(path)) == count
    fields = dataclasses.asdict(record)
    first, *found = read_metrics(path)
    assert first == fields | fields.pop("more")
    assert [(it["step"], it["loss"]) for it in found] == [(140, 0.5), *[(140, None)] * 4]


def test_seconds_to_an_accuracy_are_those_of_the_evaluation():
    accuracies = [None, 0.5, 0.95, None, 0.99]
    run = [{"seconds": i, "accuracy": accuracy} for i, accuracy in enumerate(accuracies)]
    assert [seconds_to_accuracy(run, it) for it in (0.95, 0.96, 1.0)] == [2.0, 4.0, None]
    run[2]["evaluated_seconds"] = 1.5
    assert seconds_to_accuracy(run, 0.95) == 1.5


def test_progress_is_written_at_most_once_a_second_and_at_the_last_report():
    written, now = [], [0.0]
    progress = ProgressFile(lambda text: written.append(json.loads(text)), now=lambda: now[0])
    for at, step in ((0.0, 1), (0.5, 2), (0.9, 3), (1.1, 4)):
        now[0] = at
        progress.add(make_report(0, step, loss=0.5, seconds=at))
    progress.add(make_report(1, 2, samples=0, last=True))
    assert [(one["clock"], one["seconds"]) for one in written] == [(1, 0.0), (4, 1.1), (4, 2.0)]
    assert [one["loss"] for one in written] == [0.5, 0.5, None]


def test_the_slowest_worker_is_the_one_that_computes_longest_for_a_step():
    written, now = [], [0.0]
    progress = ProgressFile(lambda text: written.append(json.loads(text)), now=lambda: now[0])

    def add(step, seconds, *waited):
        for worker, it in enumerate(waited):
            now[0] += 1.0
            progress.add(make_report(worker, step, seconds=seconds, since=0.0, waited=it))

    add(10, 1.0, 0.5, 0.5, 0.5)
    assert all("slowest" not in one for one in written)  # where it went on from is not known
    add(20, 3.0, 1.5, 0.0, 1.0)  # worker 1 computes all the time, and the others wait for it
    named = ("slowest", "slowest_step_s", "median_step_s")
    assert [tuple(one[name] for name in named) for one in written[-2:]] == [
        (1, 0.2, 0.125), (1, 0.2, 0.1),
    ]  # fmt: skip


# --- reports of one time ------------------------------------------------------------------------


def test_windows_are_found_again_whatever_came_first_of_what_was_reported_at_one_time():
    """Of reports of one time a history has no order; a line says where its window ended."""
    reported = [
        make_report(worker, step, seconds=float(seconds), since=float(since), last=step == 3)
        for worker, times in enumerate([(3, 4, 5), (1, 3, 5), (2, 3, 6)])
        for step, since, seconds in zip((1, 2, 3), (0, *times), times, strict=False)
    ]
    ends = set()
    for order in itertools.permutations(range(3)):
        came = sorted(reported, key=lambda it: (it.seconds, order[it.worker]))
        records = records_of(MetricsAggregator(3, log_every=1), came)
        said = [it.measured_seconds for it in records]
        ends.add(tuple(said))
        windows = SaidWindows(3, said)
        found = []
        aggregator = MetricsAggregator(3, log_every=1, windows=windows)
        for seconds in sorted({it.seconds for it in reported}):
            at_once = [it for it in reported if it.seconds == seconds]
            windows.take(at_once)
            found += records_of(aggregator, at_once)
        assert found == records
    assert len(ends) > 1, "the order made no difference"


def records_of(aggregator, reports):
    return [record for report in reports for record in aggregator.add(report)]
