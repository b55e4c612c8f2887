"""A convolutional net of torch on the handwritten digits, with all flags of ``psrt train``.

    python apps/torch_digits.py                             # serially, in this process
    psrt launch -n 4 apps/torch_digits.py --mode ssp:staleness=2 --servers 1
    psrt launch -n 2 apps/torch_digits.py --mode allreduce --record --out runs/torch

Every rank runs this script and makes the same module of the same seed; which scheme trains it is
the config's business.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from script import run_script, say
from torch.nn import functional

import psrt
from psrt.cli.flags import parse_train
from psrt.data import load_dataset


def net(seed: int) -> Any:
    """Return a net for (B, 64) pixels and 10 classes, with running means and dropout."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 8, 8)),
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(16 * 4 * 4, 10),
    )


def loss(module: Any, batch: Any) -> Any:
    """Return the mean loss of a batch, a scalar."""
    x, y = batch
    return functional.cross_entropy(module(x), y)


def problem_of(config: psrt.TrainConfig) -> psrt.Problem:
    """Return the net on psrt's digits."""
    data = load_dataset("digits", seed=config.seed)
    found: psrt.Problem = psrt.torch.Problem(
        net(config.seed),
        loss,
        (data.x_train, data.y_train.astype(np.int64)),
        (data.x_test, data.y_test.astype(np.int64)),
        batch_size=config.batch_size,
        seed=config.seed,
        accuracy=psrt.torch.accuracy,
        buffers="mean",
    )
    return found


def main(argv: Sequence[str]) -> None:
    """Train as the flags say."""
    config = parse_train(argv, prog="torch_digits.py")
    problem = problem_of(config)
    run = psrt.run(config, problem, say=say)
    if run is not None:  # rank 0, whose module is now the trained one
        say(f"parameters {run.theta.size:,}")


if __name__ == "__main__":
    sys.exit(run_script(main))
