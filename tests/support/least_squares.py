"""Least squares with uneven batches, and every mode that can train it over MPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

#: Parameters.
D = 5
#: Every mode, and the fewest ranks that it needs.
EVERY: dict[str, tuple[dict[str, Any], int]] = {
    "sync": ({"mode": "sync", "servers": 1}, 2),
    "sync, 2 servers": ({"mode": "sync", "servers": 2}, 3),
    "backup": ({"mode": "sync:backup=1"}, 3),
    "async": ({"mode": "async", "servers": 2}, 3),
    "ssp": ({"mode": "ssp:staleness=1"}, 2),
    "softsync": ({"mode": "softsync:k=1"}, 2),
    "local-sgd": ({"mode": "local-sgd:local-steps=3"}, 2),
    "local-sgd, ring": ({"mode": "local-sgd:local-steps=3", "allreduce": "ring"}, 2),
    "local-sgd, server": ({"mode": "local-sgd:local-steps=3", "servers": 1}, 2),
    "auto": ({"mode": "allreduce", "check_every": 1}, 2),
    "node": ({"mode": "allreduce:bucket-bytes=1", "allreduce": "node"}, 2),
    "ring": ({"mode": "allreduce", "allreduce": "ring"}, 2),
    "tree": ({"mode": "allreduce", "allreduce": "tree"}, 2),
    "butterfly": ({"mode": "allreduce", "allreduce": "butterfly"}, 2),
    "mpi": ({"mode": "allreduce", "allreduce": "mpi"}, 2),
}


def schemes(*names: str) -> list[Any]:
    """Return the flags of these modes, or all, for as many ranks as they need."""
    return [
        pytest.param(EVERY[name][0], marks=pytest.mark.mpi(min_size=EVERY[name][1]), id=name)
        for name in names or EVERY
    ]


class UnevenSquares:
    """Least squares whose workers have different numbers of batches, of different sizes.

    Worker 1 has nothing at all, and every worker has batches without samples.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((64, D)).astype(np.float32)
        self.y = (self.x @ np.arange(D)).astype(np.float32)

    def initial(self) -> np.ndarray:
        return np.ones(D, np.float32)

    def batches(self, worker: int, workers: int, epoch: int) -> Sequence[np.ndarray]:
        rng = np.random.default_rng((worker, epoch))
        count = 0 if worker == 1 else 4 + 3 * (worker % 3)
        return [rng.integers(0, 64, (worker + step) % 4) for step in range(count)]

    def loss_and_grad(self, theta: np.ndarray, batch: np.ndarray, out: np.ndarray) -> float:
        assert len(batch), "not called for a batch without samples"
        x, y = self.x[batch], self.y[batch]
        error = x @ theta - y
        np.matmul(error, x, out=out)
        out /= len(batch)
        return float(error @ error) / (2 * len(batch))

    def evaluate(self, theta: np.ndarray) -> dict[str, float]:
        error = self.x @ theta - self.y
        return {"loss": float(error @ error) / (2 * len(error))}

    def lists(self, workers: int, epochs: int) -> list[list[np.ndarray]]:
        """Return each worker's batches of all epochs, one after the other."""
        return [
            [batch for epoch in range(epochs) for batch in self.batches(worker, workers, epoch)]
            for worker in range(workers)
        ]
