"""A training loop of your own under any mode of psrt: logistic regression in plain numpy.

    python apps/own_loop.py --lr 0.5                          # serially, in this process
    mpirun -n 4 python apps/own_loop.py --mode ssp --lr 0.5   # 1 server, 3 workers

The loop is yours: the data, the gradient, when to look at it, when to leave. ``step()`` hands psrt
a gradient and comes back with the parameters of the next step; how, is the mode's business.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from own_model import BATCH, FEATURES, TRAIN, Logistic
from script import run_script, say

import psrt
from psrt.cli.flags import parse_train


def main(argv: Sequence[str]) -> None:
    """Train as the flags say, then look at what came out."""
    data = Logistic()  # the same on every rank
    parameters = [np.zeros(FEATURES, np.float32), np.zeros(1, np.float32)]  # weights and bias
    config = parse_train(argv, prog="own_loop.py")
    with psrt.Trainer(config, parameters, say=say) as trainer:
        while trainer.epoch():  # False at once at a server: it has served by then
            order = np.random.default_rng(trainer.epochs).permutation(TRAIN)
            for start in range(0, TRAIN, BATCH * trainer.workers):
                step = order[start : start + BATCH * trainer.workers]
                mine = np.array_split(step, trainer.workers)[trainer.worker]
                loss, gradients = loss_and_gradients(trainer.parameters, data.x[mine], data.y[mine])
                if not trainer.step(gradients, samples=len(mine), loss=loss):
                    break
            trainer.metrics(**data.evaluate(trainer.theta))
    # From here on every rank has the parameters that the run has ended with.
    if trainer.result is not None:  # rank 0
        say(f"ends with {100 * data.evaluate(trainer.theta)['accuracy']:.2f} %")


def loss_and_gradients(
    parameters: list[np.ndarray], x: np.ndarray, y: np.ndarray
) -> tuple[float, list[np.ndarray]]:
    """Return the mean loss of a batch, and its gradient in the form of the parameters."""
    weights, bias = parameters
    x = x[:, :FEATURES]
    z = x @ weights + bias
    off = (1 / (1 + np.exp(-z)) - y) / len(y)
    loss = float(np.mean(np.logaddexp(0, z) - y * z))
    return loss, [off @ x, off.sum(keepdims=True)]


if __name__ == "__main__":
    sys.exit(run_script(main))
