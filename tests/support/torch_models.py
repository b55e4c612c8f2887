"""Small modules of torch, data for them, and the plain loop that psrt's result must be that of."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import psrt
from psrt.data import BatchPlan

SAMPLES, FEATURES, CLASSES = 96, 6, 3


def data(seed: int = 0, samples: int = SAMPLES) -> tuple[Any, Any]:
    """Return (N, 6) float32 in three clouds, and the class of each."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, samples)
    x = rng.normal(size=(samples, FEATURES)) + 0.8 * np.eye(CLASSES, FEATURES)[y]
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


def plain() -> Any:
    """Return an MLP without anything random."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def noisy() -> Any:
    """Return an MLP with dropout and running means."""
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(16, CLASSES),
    )  # fmt: skip


def loss(module: Any, batch: Any) -> Any:
    """Return the mean cross-entropy of a batch (x, y)."""
    x, y = batch
    return functional.cross_entropy(module(x), y)


def problem_of(module: Any, **more: Any) -> Any:
    """Return the module on the data, in batches of 8."""
    asked: dict[str, Any] = {"batch_size": 8, "accuracy": psrt.torch.accuracy, **more}
    return psrt.torch.Problem(module, loss, data(), data(1, 30), **asked)


def parameters_of(module: Any) -> Any:
    """Return copies of all parameters, one after the other."""
    return torch.cat([it.detach().reshape(-1) for it in module.parameters()]).numpy().copy()


def trained_alone(
    module: Any,
    *,
    batch: int,
    epochs: int,
    lr: float = 0.1,
    seed: int = 0,
    optimizer: Any = None,
    after_epoch: Any = None,
    after_update: Any = None,
) -> Any:
    """Train by torch alone, on all samples of each global batch; return the parameters.

    Without an optimizer by plain SGD; ``after_epoch`` and ``after_update`` are schedulers.
    """
    x, y = data()
    plan = BatchPlan(len(x), batch_size=batch, workers=1, seed=seed)
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=lr)
    for epoch in range(epochs):
        for step in range(plan.steps_per_epoch):
            rows = torch.from_numpy(np.array(plan.indices(epoch, step, 0)))
            optimizer.zero_grad()
            loss(module, (x[rows], y[rows])).backward()
            optimizer.step()
            if after_update is not None:
                after_update.step()
        if after_epoch is not None:
            after_epoch.step()
    return parameters_of(module)
