"""Batches that a model that is cut cannot be trained with: one line, on the spot."""

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError, ProtocolError
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
