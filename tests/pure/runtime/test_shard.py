"""What a shard makes of what the policy decided."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.messages import Push
from psrt.optim import Schedule, make_optimizer, make_staleness_rate
from psrt.runtime.shard import Shard
from psrt.runtime.updater import Updater

N = 3


def push(worker, *, clock=0, version=0, samples=4, progress=0.0):
    return Push(worker, clock, version, samples, progress)


class Case:
    """A shard at zero with a learning rate of 1, and the gradients 1, 2, 4, … of its workers."""

    def __init__(self, *, by_samples=False, rate=None, schedule=None, initial=0.0):
        self.gradients = [np.full(N, 2.0**w, np.float32) for w in range(4)]
        rule = rate and make_staleness_rate(rate, N, dc_lambda=0.5 if "delay" in rate else None)
        schedule = schedule or Schedule("constant", 1.0, epochs=4)
        elementwise = rule if rule and rule.elementwise else None
        self.shard = Shard(
            [np.zeros(N, np.float32) for _ in range(3)],
            np.full(N, initial, np.float32),
            Updater(N, make_optimizer("sgd", N), schedule, rate=elementwise),
            payload=self.gradients.__getitem__,
            workers=4,
            by_samples=by_samples,
            rate=rule,
        )

    def apply(self, *pushes, buffer=0):
        before = self.shard.theta.copy()
        self.shard.apply(pushes, buffer)
        [step] = set((before - self.shard.theta).tolist())
        return step


def test_gradients_are_weighed_by_samples_in_rounds():
    case = Case(by_samples=True)
    assert case.apply(push(0, samples=6), push(1, samples=2), push(2, samples=0)) == 1.25
    assert case.shard.version == 1


def test_gradients_are_weighed_alike_elsewhere():
    assert Case().apply(push(0, samples=6), push(1, samples=2)) == 1.5


def test_a_round_without_samples_is_a_version_and_no_step():
    case = Case(by_samples=True)
    assert case.apply(push(0, samples=0), push(1, samples=0), buffer=1) == 0
    assert case.apply(buffer=1) == 0
    assert (case.shard.version, case.shard.newest) == (2, 0)


@pytest.mark.parametrize("buffer", [0, 1, 2])
def test_a_version_goes_into_the_buffer_that_is_given(buffer):
    case = Case(initial=5.0)
    case.apply(push(0), buffer=buffer)
    assert case.shard.newest == buffer
    assert case.shard.theta is case.shard.buffers[buffer]
    assert case.shard.theta.tolist() == [4.0] * N
    others = [b[0] for i, b in enumerate(case.shard.buffers) if i != buffer]
    assert others == ([0.0, 0.0] if buffer == 0 else [5.0, 0.0])


def test_the_initial_parameters_are_a_copy():
    initial = np.ones(N, np.float32)
    buffers = [np.zeros(N, np.float32) for _ in range(3)]
    Shard(buffers, initial, None, payload=None, workers=1, by_samples=True)
    initial[:] = 9
    assert buffers[0].tolist() == [1.0] * N


def test_kept_gradients_are_those_of_the_time_they_were_kept():
    case = Case()
    case.shard.keep(push(0))
    case.gradients[0][:] = 100  # its worker goes on
    case.shard.keep(push(1))
    case.gradients[1][:] = 100
    assert case.apply(push(0), push(1), push(2)) == pytest.approx((1 + 2 + 4) / 3)


def test_the_next_sum_of_kept_gradients_starts_anew():
    case = Case()
    for _ in range(3):
        case.shard.keep(push(0))
        assert case.apply(push(0), push(1)) == 1.5
    case.shard.keep(push(2))
    assert case.apply(push(2)) == 4.0  # all of the quorum was kept: somebody left


def test_rates_look_at_each_gradients_own_staleness():
    case = Case(rate="inverse")
    for _ in range(4):
        case.apply(push(0))
    case.shard.keep(push(1, version=0))  # 4 versions ago
    assert case.apply(push(1, version=0), push(2, version=2)) == pytest.approx((2 / 4 + 4 / 2) / 2)
    assert case.shard.stats.histogram == [1, 1, 2, 1, 1]


def test_an_elementwise_rate_gets_what_the_worker_read():
    case = Case(rate="delay-compensated", initial=1.0)
    case.shard.read_by(2)
    case.apply(push(0))  # θ: 1 → 0
    case.shard.read_by(3)
    # G + λ·G²·(θ_now − θ_read): 4 + 0.5·16·(0 − 1) and 8 + 0.5·64·0
    assert case.apply(push(2), push(3)) == ((4 - 8) + 8) / 2
    # Worker 1 has read the initial parameters only.
    assert case.apply(push(1)) == 2 + 0.5 * 4 * (-2 - 1)


def test_a_kept_gradient_is_compensated_too():
    case = Case(rate="delay-compensated", initial=1.0)
    case.apply(push(0))
    case.shard.keep(push(2))
    case.shard.read_by(2)  # it goes on with newer parameters
    case.gradients[2][:] = 0
    assert case.apply(push(2), push(1, samples=1)) == ((4 - 8) + (2 - 2)) / 2


@pytest.mark.parametrize("by_samples", [True, False])
def test_an_update_goes_with_the_mean_progress_of_its_pushes(by_samples):
    schedule = Schedule("constant", 1.0, epochs=4, warmup_epochs=4)
    case = Case(by_samples=by_samples, schedule=schedule)
    assert case.apply(push(0, progress=3.0), push(0, progress=1.0)) == 0.5
    assert case.apply(push(1, progress=1.0)) == 0.5


def test_staleness_is_counted_without_a_limit():
    case = Case()
    case.shard.version = 40
    for version in (40, 38, 40, 0):
        case.apply(push(0, version=version))
    assert {i: n for i, n in enumerate(case.shard.stats.histogram) if n} == {
        0: 1,
        2: 1,
        3: 1,
        43: 1,
    }
