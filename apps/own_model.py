"""A model of your own: logistic regression in plain numpy, trained by psrt.

    python apps/own_model.py                       # in this process
    mpirun -n 4 python apps/own_model.py           # 1 server, 3 workers, synchronous

A problem is any object with the four methods below. All parameters are one flat float32 vector
``theta``; here it holds 20 weights and a bias. Which scheme trains it is the config's business.
"""

from collections.abc import Iterator

import numpy as np

import psrt

FEATURES, TRAIN, TEST, BATCH = 20, 4000, 1000, 50
Batch = tuple[np.ndarray, np.ndarray]  # x (B, 21) and y (B,), float32


class Logistic:
    """Two clouds of points that overlap; p(y = 1 | x) = 1 / (1 + exp(-x·w))."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)  # the same data on every rank
        y = rng.integers(0, 2, TRAIN + TEST)
        x = rng.normal(size=(TRAIN + TEST, FEATURES)) + 0.35 * (2 * y[:, None] - 1)
        x = np.hstack([x, np.ones((len(x), 1))])  # the bias is the weight of a 1
        self.x, self.y = x.astype(np.float32), y.astype(np.float32)

    def initial(self) -> np.ndarray:
        """Return the parameters to start from, (n,) float32; rank 0's are sent to everyone."""
        return np.zeros(FEATURES + 1, np.float32)

    def batches(self, worker: int, workers: int, epoch: int) -> Iterator[Batch]:
        """Yield this worker's batches; those of all workers together are the training set."""
        order = np.random.default_rng(epoch).permutation(TRAIN)  # the same on every worker
        for start in range(0, TRAIN, BATCH * workers):
            step = order[start : start + BATCH * workers]
            mine = np.array_split(step, workers)[worker]
            yield self.x[mine], self.y[mine]

    def loss_and_grad(self, theta: np.ndarray, batch: Batch, out: np.ndarray) -> float:
        """Write the gradient of the batch's mean loss into ``out`` and return that loss."""
        x, y = batch
        z = x @ theta
        np.dot(1 / (1 + np.exp(-z)) - y, x / len(y), out=out)
        return float(np.mean(np.logaddexp(0, z) - y * z))

    def evaluate(self, theta: np.ndarray) -> dict[str, float]:
        """Return figures on held-out data: ``loss``, and ``accuracy`` where there is one."""
        z, y = self.x[TRAIN:] @ theta, self.y[TRAIN:]
        loss = np.mean(np.logaddexp(0, z) - y * z)
        return {"loss": float(loss), "accuracy": float(np.mean((z > 0) == y))}


if __name__ == "__main__":
    run = psrt.run(psrt.TrainConfig(lr=0.5, epochs=5), Logistic(), say=print)
    if run is not None:  # rank 0
        print("bias", run.theta[-1], "weights", run.theta[:-1].round(2))
