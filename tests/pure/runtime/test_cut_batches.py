"""Batches that a model that is cut cannot be trained with: one line, on the spot."""

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError, DivergedError, ProtocolError
from psrt.job.local import run
from psrt.job.virtual import simulate
from psrt.model import MLP


class Wrong:
    """A chain whose batches are given, one after the other, whoever asks."""

    def __init__(self, *batches):
        self.model, self.given = MLP([3, 4, 2], batch_size=8), iter(batches)
        self.layers, self.loss = self.model.layers, self.model.loss

    def initial(self):
        return self.model.initial(np.random.default_rng(0))

    def batches(self, worker, workers, epoch):
        return [next(self.given)]

    def loss_and_grad(self, theta, batch, out):
        raise AssertionError("a part of a gradient is computed with the other stages")

    def evaluate(self, theta):
        return {"loss": 0.0}


def pair(rows, width=3, dtype=np.float32, targets=None):
    return np.ones((rows, width), dtype), np.zeros(rows if targets is None else targets, np.int64)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (pair(8)[0], "no pair of arrays"),
        ((*pair(8), 1), "no pair of arrays"),
        (([[1.0, 2.0, 3.0]], [0]), "no pair of arrays"),
        (pair(8, width=4), "expected float32 rows of 3 and as many targets"),
        (pair(8, dtype=np.float64), r"float64 \(8, 3\) with 8 targets"),
        (pair(8, targets=7), "with 7 targets"),
    ],
    ids=["x", "three", "lists", "width", "dtype", "targets"],
)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_no_pair(batch, message, schedule):
    config = TrainConfig(
        parallel="pipeline:1", pipeline_schedule=schedule, batch_size=8, epochs=1, micro_batches=2
    )
    with pytest.raises(ConfigError, match=message) as caught:
        run(config, Wrong(batch))
    assert "\n" not in str(caught.value)


def test_stages_with_other_batches():
    config = TrainConfig(parallel="pipeline:2", batch_size=8, epochs=1, micro_batches=2)
    problem = Wrong(pair(8), pair(6))
    with pytest.raises(ProtocolError, match=r"has \d rows in the stage before and \d in stage 1"):
        simulate(config, problem, workers=2)


class Bad:
    """A layer that is well but for one method."""

    def __init__(self, layer, **methods):
        self._layer, self._methods = layer, methods

    def __getattr__(self, name):
        return self._methods.get(name, getattr(self._layer, name))


def writes_parameters(layer):
    def forward(x, params, out, saved):
        layer.forward(x, params, out, saved)
        params[-1] += 1

    return Bad(layer, forward=forward)


def writes_late(layer):
    """From the third forward pass, in the second step of two micro-batches, and backward."""
    calls = 0

    def forward(x, params, out, saved):
        nonlocal calls
        calls += 1
        layer.forward(x, params, out, saved)
        if calls > 2:
            params *= 0.5

    return Bad(layer, forward=forward)


def writes_on_the_way_back(layer):
    def backward_input(dy, x, y, saved, params, dx):
        layer.backward_input(dy, x, y, saved, params, dx)
        params *= 0.5

    return Bad(layer, backward_input=backward_input)


def not_a_number(value):
    """Return what spoils a gradient from the second step on, at the place of a bias."""

    def bad(layer):
        calls = 0

        def backward_weight(dy, x, y, saved, out):
            nonlocal calls
            calls += 1
            layer.backward_weight(dy, x, y, saved, out)
            if calls > 4:
                out[-1] = value

        return Bad(layer, backward_weight=backward_weight)

    return bad


#: Ways to compute a gradient layer by layer.
LAYERED = [
    {"parallel": "pipeline:1"},
    {"parallel": "pipeline:2"},
    {"parallel": "pipeline:2", "pipeline_schedule": "pipedream", "micro_batches": None},
    {"parallel": "pipeline:2", "shard": "gradients", "defer_weights": True},
    {"shard": "gradients", "mode": "allreduce", "micro_batches": None},
    {"shard": "parameters", "mode": "allreduce", "micro_batches": None},
]
in_any_way = pytest.mark.parametrize(
    "more", LAYERED, ids=lambda it: "-".join(map(str, it.values()))
)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@in_any_way
def test_a_gradient_that_is_no_number_names_worker_step_and_tensor(more, value):
    problem = Wrong(*[pair(8)] * 80)
    first, second = problem.model.layers()
    layer, problem.tensors = not_a_number(value)(second), problem.model.tensors
    problem.layers = lambda: (first, layer)
    config = TrainConfig(**{"batch_size": 8, "epochs": 8, "micro_batches": 2, **more})
    line = rf"the gradient of layers\.1\.bias is {value} at step [2-6] on worker \d \("
    with pytest.raises(DivergedError, match=line):
        simulate(config, problem, workers=4 if "shard" in more and "parallel" in more else 2)


@pytest.mark.parametrize("bad", [writes_late, writes_on_the_way_back])
@in_any_way
def test_layers_that_write_to_their_parameters_in_any_pass(bad, more):
    problem = Wrong(*[pair(8)] * 80)
    first, second = problem.model.layers()
    layer = bad(second)
    problem.layers = lambda: (first, layer)
    config = TrainConfig(**{"batch_size": 8, "epochs": 3, "micro_batches": 2, **more})
    line = r"^a layer wrote to theta at step \d on worker \d.*: .*test_cut_batches\.py, line \d+$"
    with pytest.raises(ConfigError, match=line):
        simulate(config, problem, workers=4 if len(more) > 2 else 2)


def leaves_out(layer):
    def backward_weight(dy, x, y, saved, out):
        layer.backward_weight(dy, x, y, saved, out.copy())

    return Bad(layer, backward_weight=backward_weight)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (writes_parameters, r"^a layer wrote to theta at step 1 on worker 0"),
        (leaves_out, r"^backward_weight\(\) of the layers left 10 of 26 elements of out unwritten"),
    ],
)
def test_layers_that_do_not_keep_to_the_rules(bad, message):
    problem = Wrong(pair(8))
    first, second = problem.model.layers()
    problem.layers = lambda: (first, bad(second))
    config = TrainConfig(
        parallel="pipeline:1", batch_size=8, epochs=1, micro_batches=2, overlap=False
    )
    with pytest.raises(ConfigError, match=message):
        run(config, problem)


def test_the_memory_of_parts_with_servers_too():
    config = TrainConfig(
        parallel="pipeline:2", mode="sync", servers=2, epochs=1, hidden=(8,),
        dataset="synthetic:32x4x2", batch_size=8,
    )  # fmt: skip
    found = simulate(config, workers=2).summary
    assert found.memory is None
    for memory, n in zip(found.model_cut.memory, found.model_cut.parameters, strict=True):
        assert memory > 8 * n
