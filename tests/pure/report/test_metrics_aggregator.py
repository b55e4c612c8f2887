import dataclasses
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrt.errors import ProtocolError
from psrt.messages import Sketch
from psrt.report import MetricsAggregator, Record
from psrt.report.metrics_aggregator import COLUMNS
from support.reports import make_report


def feed(aggregator, reports):
    return [record for report in reports for record in aggregator.add(report)]


def test_a_record_waits_for_the_last_worker():
    aggregator = MetricsAggregator(2, log_every=5)
    assert aggregator.add(make_report(0, 5)) == []
    [record] = aggregator.add(make_report(1, 5))
    assert record.step == 5
    assert record.samples == 16


def test_loss_is_weighted_by_samples():
    aggregator = MetricsAggregator(2, log_every=5)
    aggregator.add(make_report(0, 5, loss=1.0, samples=30))
    [record] = aggregator.add(make_report(1, 5, loss=5.0, samples=10))
    assert record.loss == 2.0


def test_a_worker_without_samples_has_no_say_in_the_loss():
    aggregator = MetricsAggregator(2, log_every=5)
    aggregator.add(make_report(0, 5, loss=math.nan, samples=0))
    [record] = aggregator.add(make_report(1, 5, loss=3.0))
    assert record.loss == 3.0
    aggregator.add(make_report(0, 10, loss=math.nan, samples=0))
    [record] = aggregator.add(make_report(1, 10, loss=math.nan, samples=0))
    assert math.isnan(record.loss)


def test_a_diverged_worker_shows_in_the_loss():
    aggregator = MetricsAggregator(2, log_every=5)
    aggregator.add(make_report(0, 5, loss=math.inf))
    [record] = aggregator.add(make_report(1, 5, loss=3.0))
    assert record.loss == math.inf


def test_totals_and_rates():
    aggregator = MetricsAggregator(2, log_every=5)
    feed(aggregator, [
        make_report(0, 5, samples=10, seconds=2.0, columns=(100, 1)),
        make_report(1, 5, samples=10, seconds=2.0, columns=(100, 1)),
        make_report(0, 10, samples=30, since=2.0, seconds=6.0, columns=(110, 3)),
    ])  # fmt: skip
    last = make_report(1, 10, samples=10, since=2.0, seconds=6.0, columns=(100, 3))
    [record] = aggregator.add(last)
    assert record.seconds == 6.0
    assert record.samples == 60
    assert record.samples_per_second == 40 / (6.0 - 2.0)
    assert (record.bytes_sent, record.bytes_received) == (210, 6)


def test_no_rate_without_time():
    aggregator = MetricsAggregator(1, log_every=1)
    [record] = aggregator.add(make_report(0, 1, seconds=0.0))
    assert record.samples_per_second is None


def test_staleness_of_the_interval():
    aggregator = MetricsAggregator(2, log_every=5)
    aggregator.add(make_report(0, 5, staleness_sum=10, staleness_count=4, staleness_max=7))
    [record] = aggregator.add(
        make_report(1, 5, staleness_sum=2, staleness_count=2, staleness_max=1)
    )
    assert record.staleness_mean == 2.0
    assert record.staleness_max == 7
    feed(aggregator, [make_report(0, 10)])
    [record] = aggregator.add(make_report(1, 10))
    assert record.staleness_mean is None
    assert record.staleness_max is None


def test_evaluation_by_one_worker():
    aggregator = MetricsAggregator(2, log_every=5)
    aggregator.add(make_report(0, 5, test_loss=0.5, test_accuracy=0.75, epoch=1, epoch_end=True))
    [record] = aggregator.add(make_report(1, 5, epoch=1, epoch_end=True))
    assert (record.test_loss, record.accuracy) == (0.5, 0.75)
    assert (record.epoch, record.epoch_end) == (1, True)
    aggregator.add(make_report(0, 10, epoch=1))
    [record] = aggregator.add(make_report(1, 10, epoch=1))
    assert (record.test_loss, record.accuracy, record.epoch_end) == (None, None, False)


def test_the_time_of_an_evaluation_does_not_wait_for_a_straggler():
    aggregator = MetricsAggregator(2)
    aggregator.add(make_report(0, 5, seconds=1.0, test_accuracy=0.75, epoch_end=True))
    [record] = aggregator.add(make_report(1, 5, seconds=9.0, epoch_end=True))
    assert (record.seconds, record.evaluated_seconds) == (9.0, 1.0)
    aggregator.add(make_report(0, 10, seconds=2.0, epoch_end=True))
    [record] = aggregator.add(make_report(1, 10, seconds=10.0, epoch_end=True))
    assert record.evaluated_seconds is None


def test_the_epoch_ends_where_one_reports_between_the_steps():
    aggregator = MetricsAggregator(2)
    feed(aggregator, [make_report(0, 3), make_report(0, 5, epoch_end=True)])
    [record] = aggregator.add(make_report(1, 5, epoch_end=True))
    assert (record.step, record.samples, record.epoch_end) == (5, 24, True)


def test_regression_has_a_test_loss_and_no_accuracy():
    [record] = MetricsAggregator(1).add(make_report(0, 5, test_loss=0.5, epoch_end=True))
    assert (record.test_loss, record.accuracy) == (0.5, None)


def test_a_slow_worker_completes_several_records_at_once():
    aggregator = MetricsAggregator(2, log_every=5)
    assert feed(aggregator, [make_report(0, step) for step in (5, 10, 15)]) == []
    [record] = aggregator.add(make_report(1, 5))
    assert record.step == 5
    records = aggregator.add(make_report(1, 15))  # over 10
    assert [(r.step, r.samples) for r in records] == [(10, 24), (15, 40)]


def test_a_worker_that_leaves_is_not_waited_for():
    aggregator = MetricsAggregator(2, log_every=5)
    aggregator.add(make_report(0, 5))
    [record] = aggregator.add(make_report(1, 3, last=True))
    assert (record.step, record.samples) == (5, 16)
    [record] = aggregator.add(make_report(0, 10))
    assert (record.step, record.samples) == (10, 24)
    assert not aggregator.finished
    [record] = aggregator.add(make_report(0, 15, last=True))
    assert record.step == 15
    assert aggregator.finished


def test_what_comes_between_logged_steps_counts_for_the_next():
    aggregator = MetricsAggregator(1, log_every=5)
    assert aggregator.add(make_report(0, 4)) == []
    [record] = aggregator.add(make_report(0, 10))
    assert (record.step, record.samples) == (10, 16)


def test_the_rest_makes_one_record_at_the_end():
    aggregator = MetricsAggregator(2, log_every=5)
    feed(aggregator, [make_report(w, 5) for w in (0, 1)])
    assert aggregator.add(make_report(0, 7, last=True)) == []
    [record] = aggregator.add(make_report(1, 8, last=True))
    assert (record.step, record.samples) == (8, 32)


def test_the_last_report_may_repeat_the_step_before():
    aggregator = MetricsAggregator(1, log_every=5)
    aggregator.add(make_report(0, 5))
    assert aggregator.add(make_report(0, 5, samples=0, loss=math.nan, last=True)) == []
    assert aggregator.finished


def test_a_late_evaluation_is_not_lost():
    aggregator = MetricsAggregator(1, log_every=5)
    aggregator.add(make_report(0, 5))
    [record] = aggregator.add(make_report(0, 5, samples=0, test_loss=0.5, last=True))
    assert (record.step, record.test_loss) == (5, 0.5)


def test_epochs_only():
    aggregator = MetricsAggregator(1)
    assert aggregator.add(make_report(0, 5)) == []
    [record] = aggregator.add(make_report(0, 9, epoch_end=True, epoch=1))
    assert (record.step, record.samples) == (9, 16)


@pytest.mark.parametrize("worker", [-1, 2])
def test_unknown_worker(worker):
    with pytest.raises(ProtocolError, match=f"worker {worker} reported, expected 0 to 1"):
        MetricsAggregator(2).add(make_report(worker, 1))


@pytest.mark.parametrize("step", [4, 5])
def test_steps_grow(step):
    aggregator = MetricsAggregator(1)
    aggregator.add(make_report(0, 5))
    with pytest.raises(ProtocolError, match=f"worker 0 reported step {step}, expected more"):
        aggregator.add(make_report(0, step))


def test_nothing_follows_the_last_report():
    aggregator = MetricsAggregator(1)
    aggregator.add(make_report(0, 5, last=True))
    with pytest.raises(ProtocolError, match="worker 0 reported step 6 after its last"):
        aggregator.add(make_report(0, 6))


class TestAWorkerThatDied:
    def test_what_the_others_have_said_is_told_at_once(self):
        aggregator = MetricsAggregator(3, log_every=5)
        feed(aggregator, [make_report(worker, step) for worker in (0, 2) for step in (5, 10)])
        assert [record.step for record in aggregator.gone(1)] == [5, 10]
        assert [record.step for record in aggregator.add(make_report(0, 15))] == []
        assert [record.step for record in aggregator.add(make_report(2, 15))] == [15]

    def test_what_it_had_said_itself_counts(self):
        aggregator = MetricsAggregator(2, log_every=5)
        feed(aggregator, [make_report(1, 5, samples=3), make_report(0, 5, samples=4)])
        aggregator.add(make_report(1, 10, samples=3))
        assert aggregator.gone(1) == []
        assert not aggregator.finished
        [record] = aggregator.add(make_report(0, 10, samples=4, last=True))
        assert record.samples == 14
        assert aggregator.finished

    def test_the_last_to_be_waited_for_ends_the_journal(self):
        aggregator = MetricsAggregator(2, log_every=5)
        aggregator.add(make_report(0, 7, last=True))
        [record] = aggregator.gone(1)
        assert (record.step, record.samples) == (7, 8)
        assert aggregator.finished

    def test_one_that_had_left_changes_nothing(self):
        aggregator = MetricsAggregator(2, log_every=5)
        aggregator.add(make_report(1, 5, last=True))
        assert aggregator.gone(1) == []
        assert [record.step for record in aggregator.add(make_report(0, 5))] == [5]

    def test_nobody_is_left(self):
        aggregator = MetricsAggregator(1)
        assert aggregator.gone(0) == []
        assert aggregator.finished

    def test_it_reports_no_more(self):
        aggregator = MetricsAggregator(1)
        aggregator.gone(0)
        with pytest.raises(ProtocolError, match="after its last report"):
            aggregator.add(make_report(0, 5))


def test_a_record_is_there_as_soon_as_the_slowest_has_come_to_it():
    rng = random.Random(5)
    aggregator, reached = MetricsAggregator(7, log_every=1), [0] * 7
    due: set[int] = set()
    for _ in range(500):
        worker = rng.randrange(7)
        reached[worker] += rng.randint(1, 3)
        due.add(reached[worker])
        records = aggregator.add(make_report(worker, reached[worker]))
        complete = sorted(step for step in due if step <= min(reached))
        assert [record.step for record in records] == complete
        due.difference_update(complete)
    assert min(reached) > 50


@st.composite
def runs(draw):
    """Several workers' reports, each in step order with gaps, the last one marked."""
    workers = []
    for worker in range(draw(st.integers(1, 4))):
        steps = sorted(draw(st.sets(st.integers(0, 12), min_size=1)))
        workers.append([
            (worker, step, {
                "loss": draw(st.floats(0.0, 9.0)),
                "samples": draw(st.integers(1, 9)),
                "seconds": draw(st.floats(0.0, 99.0)),
                "columns": (draw(st.integers(0, 9)), 0),
                "staleness_sum": draw(st.integers(0, 9)),
                "staleness_count": draw(st.integers(0, 3)),
                "epoch_end": step % 4 == 0,
                "last": step == steps[-1],
            })
            for step in steps
        ])  # fmt: skip
    return workers


@st.composite
def runs_in_two_orders(draw):
    workers = draw(runs())
    turns = [worker for worker, reports in enumerate(workers) for _ in reports]
    return workers, draw(st.permutations(turns)), draw(st.permutations(turns))


@settings(max_examples=200)
@given(case=runs_in_two_orders(), log_every=st.integers(0, 5))
def test_the_order_of_arrival_does_not_matter(case, log_every):
    workers, one, other = case

    def records(turns):
        aggregator = MetricsAggregator(len(workers), log_every=log_every)
        queues = [iter(reports) for reports in workers]
        got = []
        for turn in turns:
            worker, step, fields = next(queues[turn])
            got += aggregator.add(make_report(worker, step, **fields))
        assert aggregator.finished
        return got

    def but_for_windows(records):
        # These end where all workers have told, which is known as their reports arrive.
        none = dict.fromkeys(("samples_per_second", "waiting_share", "measured_seconds"))
        return [dataclasses.replace(record, **none) for record in records]

    got = records(one)
    assert but_for_windows(records(other)) == but_for_windows(got)
    reports = [fields for reports in workers for _, _, fields in reports]
    assert got[-1].samples == sum(fields["samples"] for fields in reports)
    assert got[-1].bytes_sent == sum(reports[-1][2]["columns"][0] for reports in workers)
    assert got[-1].step == max(step for reports in workers for _, step, _ in reports)
    steps = [record.step for record in got]
    assert steps == sorted(set(steps))
    seconds = [record.seconds for record in got]
    assert seconds == sorted(seconds)


def test_every_column_says_its_unit_and_how_it_follows():
    names = [it.name for it in dataclasses.fields(Record)]
    assert names == [*COLUMNS, "more"]
    assert all(
        callable(row["formula"]) and isinstance(row["unit"], str) for row in COLUMNS.values()
    )
    assert COLUMNS["samples_per_second"]["unit"] == "samples/s"


def sketches(clock, *numbers):
    """Return what workers sketch at a clock, by worker; None of one that does not."""
    pairs = [(i, number) for i, number in enumerate(numbers) if number is not None]
    return [Sketch(worker, clock, np.array([number]).tobytes()) for worker, number in pairs]


def test_workers_are_compared_where_all_of_them_are():
    aggregator = MetricsAggregator(3, log_every=5)
    for sketch in [*sketches(5, 1.0, 2.0), *sketches(6, 9.0, 9.0), *sketches(5, None, None, 3.0)]:
        aggregator.look(sketch)
    feed(aggregator, [make_report(0, 5), make_report(1, 5)])
    [record] = aggregator.add(make_report(2, 5))
    assert record.consensus_distance == pytest.approx(math.sqrt(2 / 3))
    feed(aggregator, [make_report(0, 10), make_report(1, 10)])
    [record] = aggregator.add(make_report(2, 10))
    assert record.consensus_distance is None  # worker 2 has nothing of clock 6


def test_who_has_left_or_died_is_compared_no_more():
    aggregator = MetricsAggregator(4, log_every=5)
    feed(aggregator, [make_report(3, 2, last=True)])
    for sketch in [*sketches(4, 0.0, 2.0, 7.0), *sketches(5, 0.0, 4.0)]:
        aggregator.look(sketch)
    aggregator.gone(2)
    feed(aggregator, [make_report(0, 5)])
    [record] = aggregator.add(make_report(1, 5))
    assert record.consensus_distance == 2.0  # the newest, of the two that there are


def test_sketches_of_a_long_interval_are_not_kept():
    aggregator = MetricsAggregator(2)
    for clock in range(1, 1000):
        for sketch in sketches(clock, 0.0, float(clock)):
            aggregator.look(sketch)
    assert not aggregator._apart._sketches
    aggregator.add(make_report(0, 1000, epoch_end=True))
    [record] = aggregator.add(make_report(1, 1000, epoch_end=True))
    assert record.consensus_distance == 999 / 2
