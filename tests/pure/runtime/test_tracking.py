"""Gossip with gradient tracking: against float64, what it conserves, and where it comes to rest."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.job.virtual import simulate
from psrt.optim import BLOCK
from psrt.runtime.strategies.tracking import Tracking
from psrt.topology import topology_of

CTA, ATC = "combine-then-adapt", "adapt-then-combine"
BOTH = pytest.mark.parametrize("order", [CTA, ATC])


class Quadratic:
    """Worker i has the loss ½ a_i ‖θ − c_i‖², its minimizer c_i being like no other one's.

    The last of its ``batches`` is empty at worker ``lacking``, as where it has fewer samples.
    """

    def __init__(self, workers, *, n=3, batches=10, lacking=None):
        rng = np.random.default_rng(workers)
        self.centres = rng.standard_normal((workers, n))
        self.curvatures = 1.0 + np.arange(workers) % 3
        self._batches, self._lacking = batches, lacking

    @property
    def minimizer(self):
        """Where the mean of all losses is least."""
        return self.curvatures @ self.centres / self.curvatures.sum()

    def gradients(self, thetas):
        """Return the gradient of each worker, (W, n)."""
        return self.curvatures[:, None] * (thetas - self.centres)

    def initial(self):
        return np.zeros(self.centres.shape[1], np.float32)

    def batches(self, worker, workers, epoch):
        return [
            np.full(int(i + 1 < self._batches or worker != self._lacking), worker)
            for i in range(self._batches)
        ]

    def loss_and_grad(self, theta, batch, out):
        worker = int(batch[0])
        away = theta - self.centres[worker]
        out[:] = self.curvatures[worker] * away
        return 0.5 * float(self.curvatures[worker] * (away @ away))

    def evaluate(self, theta):
        return {"loss": 0.0}


def ends(run):
    """Return what each worker ends with, θ_i."""
    return np.array([it.strategy.held[0] for it in run.workers])


def oracle(problem, *, topology, order, lr, steps):
    """Return each worker's θ and y in float64."""
    workers, n = problem.centres.shape
    matrices = topology_of(topology, workers).matrices
    x, y, before = np.zeros((3, workers, n))
    for step in range(steps):
        matrix, gradients = matrices[step % len(matrices)], problem.gradients(x)
        if order == CTA:
            y = matrix @ y + gradients - before
            x = matrix @ x - lr * y
        else:
            y += gradients - before
            x, y = matrix @ (x - lr * y), matrix @ y
        before = gradients
    return x, y


@BOTH
@pytest.mark.parametrize(
    ("topology", "n"),
    # The last in several blocks, which end amid either vector.
    [("ring", 3), ("one-peer-exponential", 3), ("star", 3), ("full", BLOCK + 5)],
)
def test_each_worker_ends_where_the_equations_say(topology, n, order):
    problem = Quadratic(4, n=n)
    config = TrainConfig(
        mode="gossip", topology=topology, order=order, gradient_tracking=True, lr=0.1, steps=6
    )
    run = simulate(config, problem, workers=4, seed=1)
    x, y = oracle(problem, topology=topology, order=order, lr=0.1, steps=6)
    assert_allclose(ends(run), x, 1e-6, 3e-6)
    tracked = [it.strategy._tracked for it in run.workers]
    assert_allclose(np.array(tracked), y, 1e-6, 3e-6)


@BOTH
def test_at_a_constant_rate_it_comes_to_rest_at_the_minimizer_and_plain_gossip_does_not(order):
    problem = Quadratic(8)
    base = {"mode": "gossip", "topology": "ring", "order": order, "lr": 0.05, "epochs": 80}
    plain, tracking = (
        ends(simulate(TrainConfig(**base, gradient_tracking=tracks), problem, workers=8))
        for tracks in (False, True)
    )
    assert np.abs(tracking - problem.minimizer).max() < 1e-6
    assert np.abs(plain - problem.minimizer).max() > 0.1
    # Also in the mean: workers at different places have gradients whose sum is not zero there.
    assert np.abs(plain.mean(axis=0) - problem.minimizer).max() > 1e-3


@BOTH
@pytest.mark.parametrize("lacking", [None, 2])
def test_what_is_tracked_adds_up_to_all_gradients_at_every_step(monkeypatch, order, lacking):
    """Without samples, those that a worker had last count."""
    found = {}
    adapt = Tracking._adapt

    def watched(self, step):
        adapt(self, step)
        if step.samples:
            assert np.array_equal(self._own, self._gradient[: self._own.size])
        found.setdefault(step.clock, []).append((self._tracked.copy(), self._own.copy()))

    monkeypatch.setattr(Tracking, "_adapt", watched)
    problem = Quadratic(6, lacking=lacking)
    config = TrainConfig(
        mode="gossip", topology="exponential", order=order, gradient_tracking=True, epochs=30
    )
    run = simulate(config, problem, workers=6)
    assert len(found) == 300
    for of_all in found.values():
        tracked, gradients = np.sum(of_all, axis=0, dtype=np.float64)
        assert tracked == pytest.approx(gradients, abs=1e-5)
    assert ends(run) == pytest.approx(np.tile(problem.minimizer, (6, 1)), abs=1e-5)


def test_gradients_are_clipped_and_what_is_tracked_is_not():
    config = TrainConfig(
        mode="gossip", topology="full", gradient_tracking=True, steps=1, lr=1.0, clip_norm=0.25
    )
    run = simulate(config, Quadratic(2), workers=2)
    for worker in run.workers:
        assert np.linalg.norm(worker.strategy._own) == pytest.approx(0.25)


def test_one_worker_has_its_own_gradients():
    base = {"steps": 9, "hidden": (5,), "optimizer": "momentum"}
    alone = simulate(TrainConfig(mode="serial", **base), workers=1).theta
    config = TrainConfig(mode="gossip", gradient_tracking=True, **base)
    assert simulate(config, workers=1).theta == pytest.approx(alone, abs=1e-6)


def test_both_vectors_travel_as_one():
    config = TrainConfig(mode="gossip", topology="ring", gradient_tracking=True, steps=5)
    run = simulate(config, Quadratic(4, n=50), workers=4)
    for worker in run.workers:
        assert worker.stats.bytes_sent == 5 * 2 * (2 * 4 * 50 + 64) + 2 * 64  # two leaves
    timing = simulate(config, workers=4, numerics=False, parameters=50)
    assert timing.summary.bytes_sent == run.summary.bytes_sent


def test_the_order_of_arrivals_does_not_show():
    config = TrainConfig(mode="gossip", topology="ring", gradient_tracking=True, steps=20)
    runs = [simulate(config, Quadratic(5), workers=5, seed=seed) for seed in range(3)]
    assert len({run.summary.parameters_sha256 for run in runs}) == 1


@BOTH
def test_others_go_on_when_one_dies(order):
    config = TrainConfig(mode="gossip", order=order, gradient_tracking=True, steps=30)
    run = simulate(config, Quadratic(5), workers=5, crashes=((2, 0.004),))
    assert [it.clock == 30 for it in run.workers] == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"push_sum": True}, "--gradient-tracking has no effect with --push-sum; it belongs to"),
        ({"mode": "sync"}, "--gradient-tracking has no effect with --mode sync; it belongs to"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(knobs, message):
    with pytest.raises(ConfigError, match=message) as refused:
        TrainConfig(**({"mode": "gossip", "gradient_tracking": True} | knobs))
    assert "\n" not in str(refused.value)
