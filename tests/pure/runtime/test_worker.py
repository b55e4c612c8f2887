"""The training loop by itself: a scripted scheme on one side, a port that notes on the other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psrt.errors import ConfigError, DivergedError
from psrt.runtime.delays import Delays
from psrt.runtime.length import Length
from psrt.runtime.meter import Meter
from psrt.runtime.strategies.base import StepResult, Strategy
from psrt.runtime.worker import Worker
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
    """Computing takes half a second, and whoever looks at the clock is counted."""

    time, looks = 0.0, 0

    def now(self):
        self.looks += 1
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

    def begin(self, step):
        self.begun.append(step)

    async def step(self, step):
        assert self.begun[-1] == step
        self.steps.append(step)
        return StepResult(self.jumps.get(step.clock, step.clock + 1), 1, 1, 1, 0)

    async def leave(self, clock):
        self.left = clock
        return ()


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


def work(problem, *, scheme=None, port=None, log_every=None, delays=None, clip_norm=None, **length):
    port, scheme = port or NotingPort(), scheme or Scheme()
    meter = Meter(port, port.rank, log_every=log_every)
    worker = Worker(
        port,
        problem,
        scheme,
        meter,
        length=Length(**length),
        clip_norm=clip_norm,
        delays=delays,
        rng=np.random.default_rng(3),
    )
    assert drive(worker.run()) is meter
    return worker, scheme, port


class TestLength:
    def test_epochs(self):
        problem = Batches()
        worker, scheme, _ = work(problem, epochs=2)
        assert problem.seen == [(e, i) for e in range(2) for i in range(4)]
        assert problem.asked == [(0, 3, 0), (0, 3, 1)]
        assert (worker.clock, worker.epoch, scheme.left) == (8, 2, 8)
        assert [step.progress for step in scheme.steps] == [i / 4 for i in range(8)]

    def test_part_of_an_epoch(self):
        problem = Batches()
        worker, _, _ = work(problem, epochs=1.5)
        assert (worker.clock, worker.epoch) == (6, 1)

    def test_without_a_length_progress_is_in_whole_epochs(self):
        _, scheme, _ = work(Batches(sized=False), epochs=2)
        assert [step.progress for step in scheme.steps] == [0.0] * 4 + [1.0] * 4

    def test_without_a_length_a_part_of_an_epoch_is_refused(self):
        with pytest.raises(ConfigError, match=r"--epochs 1\.5 ends within .* has no length"):
            work(Batches(sized=False), epochs=1.5)

    @pytest.mark.parametrize(("steps", "epoch"), [(1, 0), (3, 0), (4, 1), (5, 1), (8, 2), (9, 2)])
    def test_steps(self, steps, epoch):
        worker, scheme, _ = work(Batches(), steps=steps)
        assert (worker.clock, worker.epoch, len(scheme.steps)) == (steps, epoch, steps)

    def test_whichever_ends_first(self):
        assert work(Batches(), steps=6, epochs=1)[0].clock == 4
        assert work(Batches(), steps=3, epochs=1)[0].clock == 3

    @pytest.mark.parametrize("length", [{"steps": 5}, {"epochs": 3}])
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
        assert (worker.meter.stats.samples, worker.meter.steps) == (0, 4)

    def test_batches_that_others_have_gone_past_are_left_out(self):
        problem = Batches()
        worker, scheme, _ = work(problem, scheme=Scheme({1: 4, 5: 7}), epochs=2)
        assert problem.seen == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 3)]
        assert [step.clock for step in scheme.steps] == [0, 1, 4, 5, 7]
        assert (worker.clock, worker.meter.steps, worker.meter.stats.samples) == (8, 5, 10)

    def test_being_carried_to_the_end_ends(self):
        worker, scheme, _ = work(Batches(), scheme=Scheme({1: 8}), epochs=2)
        assert (worker.clock, len(scheme.steps), scheme.left) == (8, 2, 8)
        worker, scheme, _ = work(Batches(), scheme=Scheme({1: 8}), steps=8)
        assert (worker.clock, len(scheme.steps)) == (8, 2)

    def test_the_gradient_goes_into_the_ports_buffer_without_the_control_values(self):
        class Writes(Batches):
            def loss_and_grad(self, theta, batch, out):
                assert theta.base is port.theta
                out[:] = 9
                return 0.0

        port = NotingPort()
        work(Writes(), port=port, epochs=1)
        assert port.gradient.tolist() == [9, 9, 0, 0, 0]


@each(
    ("given", "limit", "clipped"),
    [
        ((3, 4), 2.5, [1.5, 2.0]),
        ((3, 4), 5.0, [3, 4]),
        ((3, 4), None, [3, 4]),
    ],
)
def test_a_strategy_is_given_the_gradient_clipped(given, limit, clipped):
    """By its own norm and not by what lies behind it; not what was left of the step before."""
    got = []

    class Looks(Scheme):
        async def step(self, step):
            got.append(port.gradient.tolist())
            return await super().step(step)

    class Writes(Batches):
        def loss_and_grad(self, theta, batch, out):
            port.gradient[:] = [*given, 99, 99, 99]
            return 0.0

    for samples in 2, 0:
        port = NotingPort()
        port.gradient[:] = 9
        work(Writes(samples=samples), scheme=Looks(), port=port, steps=1, clip_norm=limit)
    expected = [[*clipped, 99, 99, 99], [9] * 5]
    assert got == expected


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_a_loss_that_is_not_finite_ends_it(loss):
    with pytest.raises(DivergedError, match=r"is -?(nan|inf) at step 6 on worker 2 \(rank 2\)"):
        work(Batches(losses={(1, 1): loss}), port=NotingPort(2), epochs=2)


class InParts(Batches):
    """Says so when a part of its gradient is ready."""

    def loss_and_grad(self, theta, batch, out, ready):
        loss = super().loss_and_grad(theta, batch, out)
        ready(0)
        return loss


def test_a_strategy_that_wants_the_gradient_in_parts_is_told_of_them():
    scheme, said = Scheme(), []
    scheme.ready = said.append
    work(InParts(), scheme=scheme, steps=3)
    assert said == [0] * 3


class TestDelays:
    def test_none_are_no_pauses(self):
        assert work(Batches(), epochs=1)[2].paused == []
        assert work(Batches(), epochs=1, delays=Delays())[2].paused == []

    def test_a_constant_delay_is_paused_for_at_every_step(self):
        delays = Delays([("delay", (0.5,))])
        assert work(Batches(), epochs=1, delays=delays)[2].paused == [0.5] * 4

    def test_random_delays_are_drawn_with_the_generator(self):
        delays = Delays([("delay", (1.0,)), ("jitter", (0.1,))])
        paused = work(Batches(), epochs=1, delays=delays)[2].paused
        expected = np.random.default_rng(3)
        assert paused == [1.0 + expected.exponential(0.1) for _ in range(4)]

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

    def test_nobody_looks_at_the_clock_unless_something_asks_for_it(self):
        looks = []
        for delays in (None, Delays([("delay", (0.5,))]), Delays([("slow", (2.0,))])):
            port = TimedPort()
            work(Batches(), epochs=1, port=port, delays=delays)
            looks.append(port.looks)
        assert looks[0] == looks[1] == looks[2] - 2 * 4


class TestReports:
    def steps(self, port):
        return [(r.epoch, r.step, r.epoch_end, r.last) for r in port.reports]

    def test_the_end_of_each_epoch_and_the_end(self):
        _, _, port = work(Batches(), epochs=2)
        assert self.steps(port) == [(1, 4, True, False), (2, 8, True, True)]

    def test_logged_steps_as_well(self):
        _, _, port = work(Batches(), epochs=2, log_every=3)
        assert self.steps(port) == [
            (0, 3, False, False),
            (1, 4, True, False),
            (1, 6, False, False),
            (2, 8, True, True),
        ]

    def test_a_logged_step_that_ends_an_epoch_is_reported_once(self):
        _, _, port = work(Batches(), epochs=2, log_every=2)
        assert [step for _, step, _, _ in self.steps(port)] == [2, 4, 6, 8]

    def test_the_first_worker_evaluates_where_an_epoch_ends(self):
        _, _, port = work(Batches(), epochs=2, log_every=3)
        assert [r.test_accuracy for r in port.reports if r.epoch_end] == [0.75, 0.75]
        assert all(math.isnan(r.test_loss) for r in port.reports if not r.epoch_end)
        _, _, port = work(Batches(), port=NotingPort(1), epochs=2)
        assert all(math.isnan(r.test_loss) for r in port.reports)

    def test_what_was_seen_since_the_last_report(self):
        losses = {(0, 0): 1.0, (0, 1): 2.0, (0, 2): 6.0}
        _, _, port = work(Batches(losses=losses), epochs=1, log_every=3)
        first, last = port.reports
        assert (first.loss, first.samples, first.staleness_count) == (3.0, 6, 3)
        assert (last.loss, last.samples, last.staleness_count) == (0.5, 2, 1)
        assert (first.worker, last.worker) == (0, 0)
