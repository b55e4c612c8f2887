"""A model of your own: logistic regression in plain numpy, trained by psrt.

    python apps/own_model.py                       # in this process
    mpirun -n 4 python apps/own_model.py           # 1 server, 3 workers, synchronous

A problem is any object with the four methods below. All parameters are one flat float32 vector
``theta``; here it holds 20 weights and a bias. Which scheme trains it is the config's business.
"""

import numpy as np

import psrt

FEATURES, TRAIN, TEST, BATCH = 20, 4000, 1000, 50


class Logistic:
    """Two clouds of points that overlap; p(y = 1 | x) = 1 / (1 + exp(-(x·w + b)))."""

    def __init__(self):
        rng = np.random.default_rng(0)  # the same data on every rank
        y = rng.integers(0, 2, TRAIN + TEST)
        x = rng.normal(size=(TRAIN + TEST, FEATURES)) + 0.35 * (2 * y[:, None] - 1)
        x = np.hstack([x, np.ones((len(x), 1))])  # the bias is the weight of a 1
        self.x, self.y = np.float32(x), np.float32(y)

    def initial(self):
        """Return the parameters to start from, (n,) float32; rank 0's are sent to everyone."""
        return np.zeros(FEATURES + 1, np.float32)

    def batches(self, worker, workers, epoch):
        """Yield this worker's batches of an epoch: all workers' together are the training set."""
        order = np.random.default_rng(epoch).permutation(TRAIN)  # the same on every worker
        for start in range(0, TRAIN, BATCH * workers):
            step = order[start : start + BATCH * workers]
            mine = np.array_split(step, workers)[worker]
            yield self.x[mine], self.y[mine]

    def loss_and_grad(self, theta, batch, out):
        """Write the gradient of the batch's mean loss into ``out`` and return that loss."""
        x, y = batch
        z = x @ theta
        np.dot(x.T, 1 / (1 + np.exp(-z)) - y, out=out)
        out /= len(y)
        return float(np.mean(np.logaddexp(0, z) - y * z))

    def evaluate(self, theta):
        """Return figures on held-out data: ``loss``, and ``accuracy`` where there is one."""
        z, y = self.x[TRAIN:] @ theta, self.y[TRAIN:]
        return {
            "loss": float(np.mean(np.logaddexp(0, z) - y * z)),
            "accuracy": float(np.mean((z > 0) == y)),
        }


if __name__ == "__main__":
    run = psrt.run(psrt.TrainConfig(lr=0.5, epochs=5), Logistic(), say=print)
    if run is not None:  # rank 0
        print("weights", np.round(run.theta[:-1], 2), "bias", np.round(run.theta[-1], 2))
