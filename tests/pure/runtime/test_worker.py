"""A worker by itself: its training loop, its delays and its counters.

On one side of the loop is a scripted scheme, on the other a port that notes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.core.errors import ConfigError, DivergedError
from psrt.history.folds.worker import WorkerFold
from psrt.job.virtual import simulate
from psrt.report import MetricsAggregator
from psrt.runtime.delays import LONGEST_S, Delays
from psrt.runtime.length import Length
from psrt.runtime.meter import Meter
from psrt.runtime.strategies.base import Strategy
from psrt.runtime.worker import Worker
from psrt.simulation import SimulationCosts
from psrt.transport import RoleMap, SoloPort, drive
from support.cases import each


class NotingPort(SoloPort):
    """Notes how long it paused, and may be any worker."""

    def __init__(self, worker=0):
        super().__init__(2)
        self.role_map = RoleMap(2, workers=(0, 1, 2))
        self.rank = worker
        self.paused, self.reports = [], []
        self.on_report = self.reports.append

    async def pause(self, seconds):
        self.paused.append(seconds)


class TimedPort(NotingPort):
    """Computing takes half a second."""

    time = 0.0

    def now(self):
        return self.time

    async def compute(self, work, *args):
        self.time += 0.5
        return work(*args)


class Scheme(Strategy):
    """Takes one step at a time, but for the jumps it is told to make: clock → next clock."""

    updates = 0

    def __init__(self, jumps=()):
        self.jumps = dict(jumps)
        self.begun, self.steps, self.left = [], [], None
        self.counts = WorkerFold()

    def begin(self, step):
        self.begun.append(step)

    async def step(self, step):
        assert self.begun[-1] == step
        self.steps.append(step)
        self.counts.read(0)
        self.counts.used(1)
        return self.jumps.get(step.clock, step.clock + 1)

    async def leave(self, clock):
        self.left = clock


class Batches:
    """The same number of batches every epoch; a batch is (epoch, index, samples)."""

    def __init__(self, per_epoch=4, samples=2, *, sized=True, losses=()):
        self.per_epoch, self.samples_each, self.sized = per_epoch, samples, sized
        self.losses = dict(losses)
        self.asked, self.seen = [], []

    def batches(self, worker, workers, epoch):
        self.asked.append((worker, workers, epoch))
        batches = [(epoch, index, self.samples_each) for index in range(self.per_epoch)]
        return batches if self.sized else iter(batches)

    def samples(self, batch):
        return batch[2]

    def loss_and_grad(self, theta, batch, out):
        self.seen.append(batch[:2])
        out[:] = 0.0
        return self.losses.get(batch[:2], 0.5)

    def evaluate(self, theta):
        return {"loss": 0.25, "accuracy": 0.75}


def work(problem, *, scheme=None, port=None, log_every=None, delays=None, **length):
    port, scheme = port or NotingPort(), scheme or Scheme()
    meter = Meter(port, port.rank, log_every=log_every)
    worker = Worker(
        port,
        problem,
        scheme,
        meter,
        length=Length(**length),
        clip_norm=None,
        delays=delays,
        rng=np.random.default_rng(3),
    )
    assert drive(worker.run()) is meter
    return worker, scheme, port


class TestLength:
    @each(
        ("length", "clock", "epoch"),
        [
            ({"epochs": 2}, 8, 2),
            ({"epochs": 1.5}, 6, 1),
            *(({"steps": it}, it, it // 4) for it in (1, 3, 4, 5, 8, 9)),
            ({"steps": 6, "epochs": 1}, 4, 1),
            ({"steps": 3, "epochs": 1}, 3, 0),
        ],
    )
    def test_it_ends_after_so_many_epochs_or_steps(self, length, clock, epoch):
        problem = Batches()
        worker, scheme, _ = work(problem, **length)
        assert problem.seen == [divmod(i, 4) for i in range(clock)]
        assert problem.asked[: epoch + 1] == [(0, 3, e) for e in range(len(problem.asked))]
        assert (worker.clock, worker.epoch, scheme.left) == (clock, epoch, clock)
        assert [step.progress for step in scheme.steps] == [i / 4 for i in range(clock)]
        if clock == 8:  # being carried to the end ends
            worker, scheme, _ = work(Batches(), scheme=Scheme({1: 8}), **length)
            assert (worker.clock, len(scheme.steps), scheme.left) == (8, 2, 8)

    def test_without_a_length_progress_is_in_whole_epochs(self):
        _, scheme, _ = work(Batches(sized=False), epochs=2)
        assert [step.progress for step in scheme.steps] == [0.0] * 4 + [1.0] * 4
        with pytest.raises(ConfigError, match=r"--epochs 1\.5 ends within .* has no length"):
            work(Batches(sized=False), epochs=1.5)

    @each("length", [{"steps": 5}, {"epochs": 3}])
    def test_a_worker_without_data_leaves_at_once(self, length):
        worker, scheme, port = work(Batches(per_epoch=0), **length)
        assert (worker.clock, scheme.steps, scheme.left) == (0, [], 0)
        assert [report.last for report in port.reports] == [True]


class TestSteps:
    def test_an_empty_batch_is_a_step_without_a_gradient(self):
        problem = Batches(samples=0)
        worker, scheme, _ = work(problem, epochs=1)
        assert problem.seen == []
        assert [step.samples for step in scheme.steps] == [0] * 4
        assert (worker.stats.samples, worker.meter.counts.steps) == (0, 4)

    def test_batches_that_others_have_gone_past_are_left_out(self):
        problem = Batches()
        worker, scheme, _ = work(problem, scheme=Scheme({1: 4, 5: 7}), epochs=2)
        assert problem.seen == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 3)]
        assert [step.clock for step in scheme.steps] == [0, 1, 4, 5, 7]
        assert (worker.clock, worker.meter.counts.steps, worker.stats.samples) == (8, 5, 10)


@each("loss", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_a_loss_that_is_not_finite_ends_it(loss):
    with pytest.raises(DivergedError, match=r"is -?(nan|inf) at step 6 on worker 2 \(rank 2\)"):
        work(Batches(losses={(1, 1): loss}), port=NotingPort(2), epochs=2)


class TestDelays:
    def test_what_is_drawn_is_drawn_with_the_generator_in_order_and_adds_up(self):
        kinds = [("delay", (1.0,)), ("jitter", (0.1,)), ("pause", (1, 5.0)), ("tail", (0.2, 2.0))]
        paused = work(Batches(), epochs=1, delays=Delays(kinds))[2].paused
        rng = np.random.default_rng(3)
        due = [1 + rng.exponential(0.1) + pause + 0.2 * rng.pareto(2.0) for pause in (0, 5, 0, 0)]
        assert paused == pytest.approx(due)
        assert work(Batches(), epochs=1)[2].paused == []

    def test_slow_is_a_multiple_and_the_heaviest_tail_is_one_a_clock_can_take(self):
        rng = np.random.default_rng(0)
        delays = Delays([("slow", (3.0, 2)), ("slow", (1.0, 0)), ("slow", (2.0, 3))])
        assert [delays.seconds(step, 0.25, rng) for step in range(4)] == [0, 0, 0.5, 0.75]
        tail = Delays([("tail", (86400.0, 0.1))])
        assert max(tail.seconds(step, 0.25, rng) for step in range(2000)) == LONGEST_S

    def test_steps_are_counted_over_epochs_and_by_the_clock(self):
        delays = Delays([("pause", (5, 2.0)), ("slow", (3.0, 6))])
        assert work(Batches(), epochs=2, port=TimedPort(), delays=delays)[2].paused == [2.0, 1, 1]
        overtaken = Delays([("pause", (3, 2.0))])
        _, scheme, port = work(Batches(), epochs=1, scheme=Scheme({1: 3}), delays=overtaken)
        assert [step.clock for step in scheme.steps] == [0, 1, 3]
        assert port.paused == [2.0]

    def test_slow_goes_by_the_time_that_computing_took(self):
        delays = Delays([("slow", (4.0,))])
        assert work(Batches(), steps=3, port=TimedPort(), delays=delays)[2].paused == [1.5] * 3
        nothing_computed = work(Batches(samples=0), steps=3, port=TimedPort(), delays=delays)
        assert nothing_computed[2].paused == []


class TestReports:
    def test_logged_steps_as_well_and_the_first_worker_evaluates_where_an_epoch_ends(self):
        _, _, port = work(Batches(), epochs=2, log_every=3)
        assert [(r.epoch, r.step, r.epoch_end, r.last) for r in port.reports] == [
            (0, 3, False, False),
            (1, 4, True, False),
            (1, 6, False, False),
            (2, 8, True, True),
        ]

        assert [r.test_accuracy for r in port.reports if r.epoch_end] == [0.75, 0.75]
        assert all(math.isnan(r.test_loss) for r in port.reports if not r.epoch_end)
        _, _, port = work(Batches(), port=NotingPort(1), epochs=2)
        assert all(math.isnan(r.test_loss) for r in port.reports)


# --- counters -------------------------------------------------------------------------------------


class CountingPort:
    bytes_sent, bytes_received, time = 100, 10, 4.0

    def __init__(self):
        self.reports = []

    def now(self):
        return self.time

    def report(self, report):
        self.reports.append(report)


def test_it_reports_what_happened_since():
    port = CountingPort()
    meter = Meter(port, 3)
    port.time = 5.0
    meter.begin()  # its clock starts when training does, not when the job is set up
    port.bytes_sent, port.bytes_received, port.time = 150, 25, 7.5
    counts = meter.counts
    for loss, samples, taus, skew in ((2.0, 4, (4, 1), 1), (1.0, 12, (1, 0), 3)):
        counts.stepped(loss, samples)
        counts.read(skew)
        for tau in taus:
            counts.used(tau)
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
    assert (counts.stats.samples, counts.steps, max(counts.stats.skew)) == (16, 2, 3)
    assert (meter.seconds, last.last) == (2.5, True)


@each(
    ("every", "reported", "clock", "due"),
    [
        (None, 0, 100, False), (5, 0, 4, False), (5, 0, 5, True), (5, 5, 5, False),
        (5, 5, 9, False), (5, 4, 5, True),
        (5, 7, 10, True),  # an epoch ended at 7; logged steps stay where they are
        (5, 3, 17, True),  # backups overtook the worker
    ],
)  # fmt: skip
def test_a_report_is_due_where_a_logged_step_was_reached(every, reported, clock, due):
    meter = Meter(CountingPort(), 0, log_every=every)
    meter.report(0, reported, {})
    assert meter.due(clock) is due


# --- carried over epochs --------------------------------------------------------------------------


@each("slow", [1, 3])
def test_epochs_that_a_worker_was_carried_over_are_not_reported_by_it(slow):
    def compute(rank, rng):
        return rng.exponential(0.2 if rank == slow else 0.001)

    config = TrainConfig(
        mode="sync:backup=1", epochs=12, dataset="synthetic:96x8x3", batch_size=8, hidden=()
    )
    run = simulate(config, workers=3, seed=1, costs=SimulationCosts(compute=compute))
    aggregator = MetricsAggregator(3)
    records = [record for report in run.reports for record in aggregator.add(report)]
    assert [record.step for record in records] == list(range(4, 49, 4))
    assert [worker.clock for worker in run.workers] == [48, 48, 48]
    assert run.workers[slow - 1].meter.counts.steps < 10
    assert aggregator.finished
