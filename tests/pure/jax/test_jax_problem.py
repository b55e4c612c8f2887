"""A loss of JAX's as a problem: against plain loops of JAX, and what it refuses."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import psrt
import psrt.jax
from psrt import ConfigError, TrainConfig
from psrt.data import BatchPlan
from support.jax_models import (
    CLASSES,
    FEATURES,
    HIDDEN,
    SAMPLES,
    accuracy,
    data,
    dropped,
    initial,
    loss,
    plain,
    problem,
)

BASE = {"epochs": 2, "lr": 0.2, "timeout_s": 20}
#: Modes, with workers.
MODES = {
    "sync": {"mode": "sync", "servers": 2},
    "async": {"mode": "async"},
    "local-sgd": {"mode": "local-sgd:local-steps=2"},
    "allreduce": {"mode": "allreduce", "allreduce": "ring"},
    "gossip": {"mode": "gossip:topology=ring"},
}


def trained_by_hand(workers, epochs=2, batch_size=4, lr=0.2):
    """Return the parameters after plain steps of JAX on what all workers see at a step."""
    x, y = data()
    params = initial()
    plan = BatchPlan(SAMPLES, batch_size=batch_size, workers=workers, seed=3)
    for epoch in range(epochs):
        for step in range(plan.steps_per_epoch):
            rows = np.concatenate([plan.indices(epoch, step, it) for it in range(workers)])
            gradients = jax.grad(plain)(params, (x[rows], y[rows]))
            params = jax.tree_util.tree_map(lambda p, g: p - lr * g, params, gradients)
    return params


def same(problem, run, expected, **near):
    leaves = map(jax.tree_util.tree_leaves, (problem.params(run.theta), expected))
    for name, one, other in zip(problem.tensors(run.theta), *leaves, strict=True):
        np.testing.assert_allclose(one, other, **near, err_msg=name)


def test_a_serial_run_is_a_plain_loop_and_workers_are_one_of_large_batches():
    it = problem()
    run = psrt.run(TrainConfig(mode="serial", **BASE), it)
    expected = trained_by_hand(1)
    same(it, run, expected, rtol=1e-5, atol=1e-6)
    assert run.summary.test_loss == pytest.approx(float(plain(expected, data())), rel=1e-4)
    assert run.summary.test_accuracy == pytest.approx(float(accuracy(expected, data())))
    run = psrt.simulate(TrainConfig(**BASE | MODES["allreduce"]), it, workers=3)
    same(it, run, trained_by_hand(3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_learns_and_is_repeated_to_the_bit(tmp_path, mode):
    out = tmp_path / "run"
    config = TrainConfig(**BASE | MODES[mode] | {"epochs": 4}, out=str(out), record=True)
    run = psrt.simulate(config, problem(dropped, accuracy=None), workers=3)
    start = float(loss(initial(), data()))
    assert run.summary.test_loss < start
    again = psrt.recorded_config(out)
    replayed = psrt.simulate(again, problem(dropped, accuracy=None), workers=3)
    np.testing.assert_array_equal(replayed.theta, run.theta)


def test_what_is_drawn_depends_on_the_seed_the_worker_and_the_step_alone():
    it, theta = problem(dropped), problem().initial()
    out = np.empty_like(theta)

    def losses(of, worker, epoch):
        return [of.loss_and_grad(theta, batch, out) for batch in of.batches(worker, 2, epoch)]

    first = losses(it, 0, 0)
    losses(it, 1, 1)
    assert losses(it, 0, 0) == first
    batch = next(iter(it.batches(0, 2, 0)))
    keys = [batch.key, (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    drawn = {it.loss_and_grad(theta, type(batch)(key, batch.indices), out) for key in keys}
    assert len(drawn) == 4
    other = problem(dropped, seed=4)
    assert other.loss_and_grad(theta, batch, out) not in drawn


def test_a_checkpoint_is_gone_on_from_to_the_bit(tmp_path):
    config = {**BASE, "mode": "sync", "servers": 1}
    whole = psrt.simulate(TrainConfig(**config), problem(dropped), workers=2)
    part = TrainConfig(**config, out=str(tmp_path / "a"), checkpoint_every=3)
    psrt.simulate(part, problem(dropped), workers=2)
    cut = tmp_path / "a" / "checkpoints" / "00000009"
    again = TrainConfig(**config, out=str(tmp_path / "b"), resume=str(cut))
    resumed = psrt.simulate(again, problem(dropped), workers=2)
    np.testing.assert_array_equal(resumed.theta, whole.theta)


def test_matrices_lie_where_the_weights_are():
    it = problem()
    theta = it.initial()
    named = it.tensors(theta)
    found = {(m.rows, m.columns): m.of(theta) for m in it.matrices()}
    np.testing.assert_array_equal(found[FEATURES, HIDDEN], named["[0]['weight']"])
    np.testing.assert_array_equal(found[HIDDEN, CLASSES], named["[1]['weight']"])
    kernel = {"conv": jnp.ones((3, 3, 2, 5), jnp.float32), "b": jnp.ones(5, jnp.float32)}
    conv = psrt.jax.Problem(plain, kernel, data(), batch_size=4)
    assert [(m.rows, m.columns) for m in conv.matrices()] == [(18, 5)]


def test_labels_deal_out_samples_and_data_are_the_fingerprint():
    config = TrainConfig(**BASE | MODES["async"], partition="by-label:1")
    run = psrt.simulate(config, problem(), workers=3)
    assert run.summary.samples == 2 * SAMPLES
    given = psrt.jax.Problem(plain, initial(), data(), batch_size=4, labels=np.arange(SAMPLES))
    np.testing.assert_array_equal(given.labels(), np.arange(SAMPLES))
    other = psrt.jax.Problem(plain, initial(), (data()[0] + 1, data()[1]), batch_size=4)
    assert problem().fingerprint() == problem().fingerprint()
    assert given.fingerprint() != other.fingerprint()


def test_params_are_copies():
    it = problem()
    theta = it.initial()
    params = it.params(theta)
    theta[:] = 0
    assert float(jnp.abs(params[0]["weight"]).max()) > 0
    with pytest.raises(ConfigError, match=r"theta is of shape \(3,\), expected \(83,\)"):
        it.params(theta[:3])
