"""Pipelines that are never drained: weights, staleness and copies, against a model by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.job.virtual import simulate
from psrt.model import MLP
from psrt.pipeline.registry import PIPELINES
from psrt.pipeline.step import COMPUTING

ROW = PIPELINES["pipedream"]
SIZES, ROWS, RATE = [6, 7, 5, 8, 4], 4, 0.3


class Batches:
    """A chain, with the given numbers of samples in the batches of an epoch, in one buffer."""

    def __init__(self, *samples):
        rng = np.random.default_rng(0)
        self.model = MLP(SIZES, activation="tanh", batch_size=ROWS)
        self.layers, self.loss = self.model.layers, self.model.loss
        self.of_epoch = [
            (rng.standard_normal((m, SIZES[0])).astype(np.float32), rng.integers(0, SIZES[-1], m))
            for m in samples
        ]
        self.theta = rng.normal(0, 0.5, self.model.n).astype(np.float32)

    def initial(self):
        return self.theta.copy()

    def batches(self, worker, workers, epoch):
        return Sized(self.of_epoch)

    def loss_and_grad(self, theta, batch, out):
        raise AssertionError("a part of a gradient is computed with the other stages")

    def evaluate(self, theta):
        return {}


class Sized:
    """Batches that are gathered in one place, so that the last one is no more."""

    def __init__(self, batches):
        self._batches = batches

    def __len__(self):
        return len(self._batches)

    def __iter__(self):
        inputs, labels = np.empty((ROWS, SIZES[0]), np.float32), np.empty(ROWS, np.int64)
        for x, y in self._batches:
            inputs[...], labels[...] = np.nan, -1
            inputs[: len(x)], labels[: len(y)] = x, y
            yield inputs[: len(x)], labels[: len(y)]


def train(problem, stages, *, seed=0, **knobs):
    config = TrainConfig(
        parallel=f"pipeline:{stages}", pipeline_schedule="pipedream", batch_size=ROWS, lr=RATE,
        **{"optimizer": "sgd"} | knobs,
    )  # fmt: skip
    return simulate(config, problem, workers=stages, seed=seed)


def by_hand(problem, stages, epochs, *, steps=None, scale=lambda tau: 1.0, compensate=0.0):
    """In float64: each batch sees, in each stage, the weights of P − s − 1 updates ago.

    Returns:
        The parameters, and by staleness how often it occurred in all stages.
    """
    theta, weights, start = problem.initial().astype(float), [], 0
    for m, n in itertools.pairwise(SIZES):
        weights.append([theta[start : start + m * n].reshape(m, n).copy()])
        weights[-1].append(theta[start + m * n : start + (m + 1) * n].copy())
        start += (m + 1) * n
    owner = [s for s, it in enumerate(np.array_split(range(len(weights)), stages)) for _ in it]
    versions, seen = [], []
    batches = [(i, it) for _ in range(epochs) for i, it in enumerate(problem.of_epoch)]
    for in_epoch, (x, y) in batches[:steps]:
        versions.append([(w.copy(), b.copy()) for w, b in weights])
        seen += [min(in_epoch, stages - s - 1) for s in range(stages)]
        taus = [min(in_epoch, stages - s - 1) for s in owner]
        used = [versions[-1 - tau][i] for i, tau in enumerate(taus)]
        values = [x.astype(float)]
        for i, (w, b) in enumerate(used):
            z = values[-1] @ w + b
            values.append(np.tanh(z) if i < len(used) - 1 else z)
        if not len(x):
            continue
        p = np.exp(values[-1] - values[-1].max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[range(len(x)), y] -= 1
        delta = p / len(x)
        for i in range(len(used))[::-1]:
            grads = [values[i].T @ delta, delta.sum(axis=0)]
            delta = (delta @ used[i][0].T) * (1 - values[i] ** 2)
            for of, g in enumerate(grads):
                moved = weights[i][of] - used[i][of]
                g = scale(taus[i]) * (g + compensate * g * g * moved)
                weights[i][of] = weights[i][of] - RATE * g
    flat = np.concatenate([v.ravel() for pair in weights for v in pair])
    return flat, tuple(map(seen.count, range(max(seen) + 1)))


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "samples", [(4,) * 7, (4, 0, 4, 0, 0, 2, 1), (1,), (0, 4), (3, 4)], ids=str
)
def test_each_stage_trains_on_the_weights_its_batch_came_with(stages, samples):
    problem = Batches(*samples)
    run = train(problem, stages, epochs=2)
    want, taus = by_hand(problem, stages, 2)
    np.testing.assert_allclose(run.theta, want, rtol=0, atol=2e-6)
    assert run.summary.staleness.histogram == taus
    # No more copies than a stage is behind.
    kept = [it._cut.stash_bytes for it in run.workers]
    sizes = run.summary.model_cut.parameters
    assert kept == [4 * n * (stages - 1 - s) for s, n in enumerate(sizes)]


@pytest.mark.parametrize("steps", [1, 2, 5, 8])
def test_a_run_may_end_amid_an_epoch(steps):
    problem = Batches(4, 3, 4, 4, 2)
    for stages in (2, 4):
        run = train(problem, stages, steps=steps)
        want, _ = by_hand(problem, stages, 2, steps=steps)
        np.testing.assert_allclose(run.theta, want, rtol=0, atol=2e-6)
        part = train(problem, stages, epochs=steps / 5)
        np.testing.assert_array_equal(part.theta, run.theta)


def test_recomputed_activations_are_of_stashed_weights():
    problem = Batches(4, 3, 4, 4, 2)
    plain, recomputed = (train(problem, 3, epochs=2, recompute=it) for it in (None, True))
    np.testing.assert_array_equal(recomputed.theta, plain.theta)


@pytest.mark.parametrize(
    ("knobs", "scale", "compensate"),
    [
        ({"staleness_rate": "inverse"}, lambda tau: 1 / max(1, tau), 0.0),
        ({"staleness_rate": "power:power=2.0"}, lambda tau: (1 + tau) ** -2.0, 0.0),
        ({"staleness_rate": "delay-compensated:strength=3.0"}, lambda tau: 1.0, 3.0),
    ],
    ids=["inverse", "power", "delay-compensated"],
)
def test_rates_know_the_staleness(knobs, scale, compensate):
    problem = Batches(4, 0, 4, 4, 2, 4, 4)
    run = train(problem, 4, epochs=2, **knobs)
    want, _ = by_hand(problem, 4, 2, scale=scale, compensate=compensate)
    np.testing.assert_allclose(run.theta, want, rtol=0, atol=2e-6)
    plain, _ = by_hand(problem, 4, 2)
    assert np.abs(plain - want).max() > 1e-4


@pytest.mark.parametrize("stages", [1, 2, 5, 16])
@pytest.mark.parametrize("batches", [1, 2, 3, 17, 40])
def test_an_endless_schedule_cut_short_is_that_of_so_many_batches(stages, batches):
    for stage in range(stages):
        wanted = [it for it in ROW(stage, stages, batches) if it.kind in COMPUTING]
        endless = (it for it in ROW(stage, stages, 1 << 40) if it.micro_batch < batches)
        found = itertools.islice((it for it in endless if it.kind in COMPUTING), len(wanted))
        assert list(found) == wanted
