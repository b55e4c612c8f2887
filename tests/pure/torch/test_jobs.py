"""Jobs of a module in virtual time, to the bit; and losses that are means over no rows.

Checkpoints are those of ranks: tests/parallel/torch/test_torch_training.py.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional

import psrt
import psrt.jax
from psrt import ConfigError, TrainConfig
from psrt.history.check.run import check_run
from support.staging import BOTH
from support.torch_models import noisy, problem_of

pytestmark = BOTH
MODES = {
    "sync": {"mode": "sync"},
    "async": {"mode": "async", "servers": 2},
    "local-sgd": {"mode": "local-sgd:local-steps=3"},
    "easgd": {"mode": "easgd:local-steps=2"},
    "allreduce": {"mode": "allreduce:bucket-bytes=100"},
    "gossip": {"mode": "gossip"},
}


@pytest.mark.parametrize("flags", MODES.values(), ids=MODES)
def test_a_recorded_run_is_checked_and_repeated_to_the_bit(tmp_path, flags):
    given = {"lr": 0.1, "epochs": 2, "out": str(tmp_path / "run"), "record": True}
    recorded = psrt.simulate(TrainConfig(**given | flags), problem_of(noisy()), workers=3)
    assert check_run(tmp_path / "run").ok
    fresh = problem_of(noisy())
    assert recorded.summary.test_loss < fresh.evaluate(fresh.initial())["loss"]
    config = psrt.recorded_config(tmp_path / "run")
    again = psrt.simulate(config, problem_of(noisy()), workers=3, seed=5)  # other delays
    np.testing.assert_array_equal(again.theta, recorded.theta)


# --- losses that are means over tokens ----------------------------------------------------------

ROWS, TOKENS, FEATURES, CLASSES = 48, 5, 4, 3
IGNORED = -100


def rows_of_tokens(seed=0):
    """Return features and classes of tokens, of which most are ignored: whole batches, too."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, TOKENS, FEATURES)).astype(np.float32)
    y = x[..., :CLASSES].argmax(axis=2)
    keep = rng.integers(0, TOKENS + 1, ROWS) * (rng.random(ROWS) < 0.4)
    return x, np.where(np.arange(TOKENS) < keep[:, None], y, IGNORED)


def tokens(batch):
    return (batch[1] != IGNORED).sum()


def mean_loss(module, batch):
    x, y = batch
    return functional.cross_entropy(module(x).movedim(2, 1), y, ignore_index=IGNORED)


def accuracy(module, batch):
    return psrt.torch.accuracy(lambda x: module(x).movedim(2, 1), batch)


def of_torch(**more):
    torch.manual_seed(0)
    module = torch.nn.Linear(FEATURES, CLASSES)
    train, test = (tuple(map(torch.from_numpy, rows_of_tokens(seed))) for seed in (0, 1))
    return psrt.torch.Problem(
        module, mean_loss, train, test, accuracy=accuracy, **{"weight": tokens, **more}
    )


def of_jax(**more):
    import jax
    from jax import numpy as jnp

    def mean(params, batch):
        x, y = batch
        logs = jax.nn.log_softmax(x @ params)
        kept = y != IGNORED
        found = jnp.take_along_axis(logs, jnp.where(kept, y, 0)[..., None], axis=2)[..., 0]
        return -(found * kept).sum() / kept.sum()

    def right(params, batch):
        x, y = batch
        kept = y != IGNORED
        return (((x @ params).argmax(2) == y) & kept).sum() / kept.sum()

    start = np.zeros((FEATURES, CLASSES), np.float32)
    return psrt.jax.Problem(
        mean,
        start,
        rows_of_tokens(),
        rows_of_tokens(1),
        accuracy=right,
        **{"weight": tokens, **more},
    )


@pytest.mark.parametrize("make", [of_torch, of_jax])
def test_workers_in_rounds_are_one_process(make, tmp_path):
    base = {"epochs": 3, "lr": 0.5}
    one = psrt.run(TrainConfig(mode="serial", **base), make(batch_size=6))
    _, y = rows_of_tokens()
    assert one.summary.samples == 3 * (y != IGNORED).sum()
    assert one.summary.test_accuracy < 1
    is_jax = make is of_jax  # which compiles for each problem
    for workers, mode in ((2, "sync"), (3, "sync"), (3, "allreduce"))[: 1 if is_jax else None]:
        out = tmp_path / f"{workers} {mode}"
        config = TrainConfig(**base, mode=mode, out=str(out), record=True)
        run = psrt.simulate(config, make(batch_size=6 // workers), workers=workers)
        np.testing.assert_allclose(run.theta, one.theta, rtol=1e-4, atol=1e-5)
        assert run.summary.test_loss == pytest.approx(one.summary.test_loss, rel=1e-5)
        assert run.summary.test_accuracy == pytest.approx(one.summary.test_accuracy)
        assert run.records[0].loss == pytest.approx(one.records[0].loss, rel=1e-5)
        assert check_run(out).ok, check_run(out)


def test_figures_on_the_test_set_are_over_what_counts():
    problem = of_torch(batch_size=2)
    x, y = map(torch.from_numpy, rows_of_tokens(1))
    with torch.no_grad():
        expected = float(mean_loss(problem.module, (x, y)))
        right = (problem.module(x).argmax(2) == y)[y != IGNORED].double().mean()
    found = problem.evaluate(problem.initial())
    assert found["loss"] == pytest.approx(expected, rel=1e-6)
    assert found["accuracy"] == pytest.approx(float(right))
    with pytest.raises(ConfigError, match=r"weight\(\) is 0 for all of the test set"):
        of_torch(batch_size=2, weight=lambda batch: 0).evaluate(problem.initial())
