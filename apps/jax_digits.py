"""A perceptron of JAX on the handwritten digits, with all flags of ``psrt train``.

    python apps/jax_digits.py                               # serially, in this process
    psrt launch -n 4 apps/jax_digits.py --mode ssp:staleness=2 --servers 1
    psrt launch -n 2 apps/jax_digits.py --mode allreduce --record --out runs/jax

The parameters are a tree of arrays, as in any program of JAX; which scheme trains them is the
config's business.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

# Before JAX is there: the ranks are the parallelism, so a rank takes one core.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import jax
import numpy as np
from jax import numpy as jnp
from script import run_script, say

import psrt
from psrt.cli.flags import parse_train
from psrt.data import load_dataset

Layers = list[dict[str, Any]]
#: Pixels, units of the hidden layers, digits.
SIZES = (64, 128, 64, 10)


def initial(seed: int) -> Layers:
    """Return He's initial weights and biases of zero, layer by layer; the same on every rank."""
    keys = jax.random.split(jax.random.key(seed), len(SIZES) - 1)
    return [
        {
            "w": jax.random.normal(key, (inputs, outputs)) * np.sqrt(2 / inputs),
            "b": jnp.zeros(outputs),
        }
        for key, inputs, outputs in zip(keys, SIZES, SIZES[1:], strict=False)
    ]


def scores(layers: Layers, x: Any) -> Any:
    """Return the scores (B, 10) of pixels (B, 64)."""
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def loss(layers: Layers, batch: tuple[Any, Any]) -> Any:
    """Return the mean loss of a batch, a scalar."""
    x, y = batch
    logs = jax.nn.log_softmax(scores(layers, x))
    return -jnp.take_along_axis(logs, y[:, None], axis=1).mean()


def accuracy(layers: Layers, batch: tuple[Any, Any]) -> Any:
    """Return the share of right answers."""
    x, y = batch
    return (scores(layers, x).argmax(axis=1) == y).mean()


def problem_of(config: psrt.TrainConfig) -> psrt.Problem:
    """Return the perceptron on psrt's digits."""
    data = load_dataset("digits", seed=config.seed)
    found: psrt.Problem = psrt.jax.Problem(
        loss,
        initial(config.seed),
        (data.x_train, data.y_train),
        (data.x_test, data.y_test),
        batch_size=config.batch_size,
        seed=config.seed,
        accuracy=accuracy,
    )
    return found


def main(argv: Sequence[str]) -> None:
    """Train as the flags say."""
    config = parse_train(argv, prog="jax_digits.py")
    run = psrt.run(config, problem_of(config), say=say)
    if run is not None:  # rank 0
        say(f"parameters {run.theta.size:,}")


if __name__ == "__main__":
    sys.exit(run_script(main))
