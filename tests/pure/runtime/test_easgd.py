"""Elastic averaging against a few lines of numpy, and against what it must be equal to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.job.virtual import simulate

N, STEPS, LR = 13, 11, 0.1


class Bowls:
    """One bowl for each step of each worker: ½·|A(θ − b)|²/n, with A diagonal."""

    def __init__(self, workers, steps=STEPS, seed=0):
        rng = np.random.default_rng(seed)
        steps = [steps] * workers if isinstance(steps, int) else steps
        self.of = [
            [(rng.uniform(0.5, 1.5, N), rng.normal(size=N)) for _ in range(count)]
            for count in steps
        ]
        self.start = rng.normal(size=N).astype(np.float32)

    def initial(self):
        return self.start.copy()

    def batches(self, worker, workers, epoch):
        return self.of[worker]

    def samples(self, batch):
        return 1

    def gradient(self, theta, batch):
        scale, at = batch
        return scale * (theta.astype(np.float64) - at)

    def loss_and_grad(self, theta, batch, out):
        out[:] = self.gradient(theta, batch)
        return float(np.square(theta - batch[1]).mean())

    def evaluate(self, theta):
        return {"loss": float(np.square(theta.astype(np.float64)).mean())}


def config(**knobs):
    return TrainConfig(
        **{"mode": "easgd", "servers": 1, "lr": LR, "batch_size": 1, "epochs": 1} | knobs
    )


def trained(problem, *, seed=0, **knobs):
    run = simulate(config(**knobs), problem, workers=len(problem.of), seed=seed)
    centre = np.concatenate([it.shard.theta for it in run.servers])
    return centre, [it.strategy._port.theta.copy() for it in run.workers]


def expected(problem, *, beta=0.9, period=10, momentum=0.0, nesterov=False):
    """Return the centre and the workers of synchronous EASGD in double precision."""
    workers = len(problem.of)
    alpha = beta / workers
    centre = problem.start.astype(np.float64)
    x, v = [centre.copy() for _ in range(workers)], [np.zeros(N) for _ in range(workers)]
    steps = max(map(len, problem.of))
    for step in range(steps):
        for i in range(workers):
            if step >= len(problem.of[i]):
                continue
            scale, at = problem.of[i][step]
            gradient = scale * (x[i] - at)
            v[i] = momentum * v[i] + gradient
            x[i] = x[i] - LR * (gradient + momentum * v[i] if nesterov else v[i])
        if (step + 1) % period == 0 or step == steps - 1:
            forces = [alpha * (it - centre) for it in x]
            x = [it - force for it, force in zip(x, forces, strict=True)]
            centre = centre + sum(forces)
    return centre, x


@pytest.mark.parametrize("period", [1, 3, 10])
@pytest.mark.parametrize("beta", [0.0, 0.9, 1.2])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_it_is_what_the_paper_says(workers, beta, period):
    if beta > 2 * workers / (workers + 1):
        beta = 1.0
    problem = Bowls(workers)
    centre, x = trained(problem, elastic=beta, local_steps=period)
    due, its = expected(problem, beta=beta, period=period)
    np.testing.assert_allclose(centre, due, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x, its, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "more"),
    [("momentum", {"momentum": 0.9}), ("nesterov", {"momentum": 0.9, "nesterov": True})],
)
def test_momentum_is_of_the_local_steps_only(optimizer, more):
    problem = Bowls(3)
    centre, x = trained(problem, local_steps=2, optimizer=optimizer, momentum=0.9)
    due, its = expected(problem, period=2, **more)
    np.testing.assert_allclose(centre, due, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x, its, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_without_a_force_workers_train_alone(asynchronous):
    problem = Bowls(3)
    knobs = {"optimizer": "nesterov", "local_steps": 4}
    centre, x = trained(problem, elastic=0.0, asynchronous=asynchronous, **knobs)
    assert centre.tobytes() == problem.start.tobytes()
    for worker, theta in enumerate(x):
        alone = Bowls(3)
        alone.of = [alone.of[worker]]
        run = simulate(config(mode="serial", servers=0, optimizer="nesterov"), alone, workers=1)
        assert theta.tobytes() == run.workers[0]._port.theta.tobytes()


@pytest.mark.parametrize("knobs", [{}, {"optimizer": "nesterov"}])
def test_one_worker_is_the_same_synchronous_or_not(knobs):
    problem = Bowls(1)
    (one, x), (other, y) = (
        trained(problem, local_steps=3, asynchronous=it, **knobs) for it in (False, True)
    )
    assert one.tobytes() == other.tobytes()
    assert x[0].tobytes() == y[0].tobytes()


@pytest.mark.parametrize("more", [{}, {"asynchronous": True}])
def test_shards_change_no_bit(more):
    problem = Bowls(1 if more else 4, (9,) if more else (9, 4, 7, 9))
    (centre, x), *others = (
        trained(problem, local_steps=2, servers=servers, shards_per_server=each, seed=seed, **more)
        for servers, each, seed in ((1, 1, 0), (3, 1, 1), (2, 2, 2))
    )
    for other, y in others:
        assert other.tobytes() == centre.tobytes()
        assert [it.tobytes() for it in y] == [it.tobytes() for it in x]


LOSSY = {"codec": "int8", "codec_everywhere": True}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("codecs", [{}, LOSSY, LOSSY | {"codec_reply": "int8"}])
def test_forces_are_equal_and_opposite(asynchronous, codecs):
    """Workers differ after a first step, and have no gradients after it: Σx + x̃ stays."""
    problem, apart = Bowls(4, (7, 2, 9, 5)), np.random.default_rng(3).normal(size=(4, N))
    first = [(np.ones(N), at) for at in apart]
    problem.of = [
        [one, *((np.zeros(N), at) for _, at in rest)]
        for one, rest in zip(first, problem.of, strict=True)
    ]
    x = [problem.start - LR * (problem.start - at) for at in apart]
    before = np.sum([*x, problem.start], axis=0)
    centre, x = trained(problem, local_steps=1, asynchronous=asynchronous, **codecs)
    np.testing.assert_allclose(np.sum([*x, centre], axis=0), before, atol=1e-5)
    assert not np.allclose(centre, problem.start)


@pytest.mark.parametrize("codec", ["top-k", "random-k", "low-rank"])
def test_what_a_codec_leaves_out_stays_in_the_difference(codec):
    """Kept back in addition it would count twice, and the centre would be driven away."""
    knobs = {"hidden": (20,), "steps": 400, "batch_size": 8}
    density = {"codec_density": 0.1} if codec == "random-k" else {}
    config = TrainConfig(mode="easgd", local_steps=4, **knobs)
    plain = simulate(config, workers=4).summary.test_loss
    lossy = replace(config, codec=codec, codec_everywhere=True, **density)
    assert simulate(lossy, workers=4).summary.test_loss < 1.2 * plain


def test_a_codec_without_loss_changes_nothing():
    problem, lossless = Bowls(3, (9, 4, 7)), {"codec": "nonzero", "codec_everywhere": True}
    (centre, x), (other, y), (last, z) = (
        trained(problem, local_steps=2, servers=2, **more)
        for more in ({}, lossless, lossless | {"codec_reply": "nonzero"})
    )
    assert centre.tobytes() == other.tobytes()
    assert [it.tobytes() for it in x] == [it.tobytes() for it in y]
    # What a reply adds to a centre is rounded once more than the centre itself.
    np.testing.assert_allclose(last, centre, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(z, x, rtol=1e-5, atol=1e-6)
    centre, x = trained(problem, local_steps=2, asynchronous=True)
    other, y = trained(problem, local_steps=2, asynchronous=True, **lossless)
    np.testing.assert_allclose(other, centre, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("more", [{}, {"asynchronous": True}, LOSSY])
def test_it_is_evaluated_at_the_centre(more):
    problem = Bowls(1 if "asynchronous" in more else 3)
    run = simulate(config(local_steps=3, **more), problem, workers=len(problem.of), seed=0)
    centre = run.servers[0].shard.theta
    assert all(it.strategy.model.tobytes() == centre.tobytes() for it in run.workers)
    assert run.summary.test_loss == problem.evaluate(centre)["loss"]
    assert run.records[-1].test_loss == pytest.approx(problem.evaluate(centre)["loss"], rel=1e-6)


def test_a_run_says_what_is_evaluated():
    lines = []
    asked = TrainConfig(mode="easgd", dataset="synthetic:40x3x2", hidden=(), batch_size=4, steps=3)
    run_in_virtual_time(asked, Scenario(workers=2), say=lines.append)
    text = "accuracy: of the centre, as worker 0 knows it from its last average, and at the end"
    assert text in lines


def test_who_has_no_samples_is_not_drawn():
    problem = Bowls(3, 4)
    idle = problem.of[2]
    problem.samples = lambda batch: int(not any(batch is it for it in idle))
    for asynchronous in (False, True):
        _, x = trained(problem, local_steps=2, asynchronous=asynchronous)
        assert x[2].tobytes() == problem.start.tobytes()
