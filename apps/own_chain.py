"""A model of your own that can be split across ranks: a residual network in plain numpy.

    python apps/own_chain.py                                          # in this process
    mpirun -n 2 python apps/own_chain.py pipeline:2                   # two stages of layers
    mpirun -n 4 python apps/own_chain.py data:2,pipeline:2            # and two copies of the model

A problem whose model is a chain of layers has two more methods than ``own_model.py``: ``layers``
and ``loss``. A layer writes into arrays that it is given and keeps nothing to itself, so psrt can
have several micro-batches in flight, each in its own arrays.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

import psrt

FEATURES, WIDTH, BLOCKS, CLASSES = 2, 16, 4, 2
TRAIN, TEST, BATCH = 2048, 512, 64
Array = np.ndarray  # float32; rows are those of a micro-batch, b of them
Batch = tuple[Array, Array]  # x (B, 2) float32 and y (B,) labels


class Linear:
    """y = x·W + b, without activation: into the blocks, and out of them."""

    saved = 0  # a backward pass needs nothing but x

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.n = (inputs + 1) * outputs  # parameters: W, then b

    def split(self, vector: Array) -> tuple[Array, Array]:
        """Return views of W and b."""
        return vector[: -self.outputs].reshape(self.inputs, self.outputs), vector[-self.outputs :]

    def forward(self, x: Array, params: Array, out: Array, saved: Array) -> None:
        """Write y into ``out`` (b, outputs)."""
        w, b = self.split(params)
        np.dot(x, w, out=out)
        out += b

    def backward_input(
        self, dy: Array, x: Array, y: Array, saved: Array, params: Array, dx: Array | None
    ) -> None:
        """Write the gradient of x into ``dx``; None in the first layer of the model."""
        if dx is not None:
            np.dot(dy, self.split(params)[0].T, out=dx)

    def backward_weight(self, dy: Array, x: Array, y: Array, saved: Array, out: Array) -> None:
        """Write the gradient of the parameters, a sum over the rows, into ``out`` (n,)."""
        w, b = self.split(out)
        np.dot(x.T, dy, out=w)
        np.sum(dy, axis=0, out=b)


class Residual:
    """y = x + tanh(x·W + b): a block that starts close to doing nothing.

    The backward passes need h = tanh(…) of the forward pass, and the weights' needs the gradient
    of the sums, which ``backward_input`` has computed. Both are in ``saved``: it lasts for as long
    as the micro-batch, and may be overwritten.
    """

    def __init__(self, width: int) -> None:
        self.inputs = self.outputs = self.saved = width
        self.linear = Linear(width, width)
        self.n = self.linear.n

    def forward(self, x: Array, params: Array, out: Array, saved: Array) -> None:
        """Write y into ``out``, and h into ``saved`` (b, width)."""
        self.linear.forward(x, params, out=saved, saved=saved)
        np.tanh(saved, out=saved)
        np.add(x, saved, out=out)

    def backward_input(
        self, dy: Array, x: Array, y: Array, saved: Array, params: Array, dx: Array | None
    ) -> None:
        """Write the gradient of x; leave that of the sums in ``saved``."""
        np.multiply(dy, 1 - saved * saved, out=saved)
        if dx is not None:
            self.linear.backward_input(saved, x, y, saved, params, dx)
            dx += dy

    def backward_weight(self, dy: Array, x: Array, y: Array, saved: Array, out: Array) -> None:
        """Write the gradient of W and b."""
        self.linear.backward_weight(saved, x, y, saved, out)


class Spirals:
    """Two spirals that wind about each other: no straight line parts them."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)  # the same data on every rank
        y = rng.integers(0, CLASSES, TRAIN + TEST)
        turn = 0.3 + 4 * np.sqrt(rng.random(len(y)))
        angle = turn + np.pi * y
        x = np.stack([np.cos(angle), np.sin(angle)], axis=1) * turn[:, None] / 2
        self.x = (x + 0.05 * rng.standard_normal(x.shape)).astype(np.float32)
        self.y = y
        blocks = [Residual(WIDTH) for _ in range(BLOCKS)]
        self.chain: list[Linear | Residual] = [
            Linear(FEATURES, WIDTH),
            *blocks,
            Linear(WIDTH, CLASSES),
        ]

    def layers(self) -> list[Linear | Residual]:
        """Return the layers; in theta, parameters of each follow those of the one before."""
        return self.chain

    def loss(self, outputs: Array, targets: Array, rows: int) -> float:
        """Return the loss of some rows of a batch of ``rows``; outputs become its gradient."""
        each = np.arange(len(targets))
        outputs -= outputs.max(axis=1, keepdims=True)
        of_labels = outputs[each, targets].sum()
        np.exp(outputs, out=outputs)
        sums = outputs.sum(axis=1, keepdims=True)
        outputs /= sums
        outputs[each, targets] -= 1
        outputs /= rows
        return float((np.log(sums).sum() - of_labels) / rows)

    def initial(self) -> Array:
        """Return the parameters to start from, (n,) float32."""
        rng = np.random.default_rng(1)
        theta = [rng.standard_normal(it.n) / np.sqrt(it.inputs) for it in self.chain]
        return (np.concatenate(theta) * 0.7).astype(np.float32)

    def batches(self, worker: int, workers: int, epoch: int) -> Iterator[Batch]:
        """Yield this worker's batches; those of all workers together are the training set."""
        order = np.random.default_rng(epoch).permutation(TRAIN)  # the same on every worker
        for start in range(0, TRAIN, BATCH * workers):
            mine = np.array_split(order[start : start + BATCH * workers], workers)[worker]
            yield self.x[mine], self.y[mine]

    def forward(self, theta: Array, x: Array) -> list[tuple[Array, Array, Array, Array]]:
        """Return the parameters, x, y and what was saved of each layer, one after the other."""
        found, at = [], 0
        for layer in self.chain:
            params = theta[at : at + layer.n]
            y = np.empty((len(x), layer.outputs), np.float32)
            saved = np.empty((len(x), layer.saved), np.float32)
            layer.forward(x, params, y, saved)
            found.append((params, x, y, saved))
            x, at = y, at + layer.n
        return found

    def loss_and_grad(self, theta: Array, batch: Batch, out: Array) -> float:
        """Write the gradient of the batch's mean loss into ``out``; where nothing is cut."""
        found, at = self.forward(theta, batch[0]), len(theta)
        dy = found[-1][2].copy()
        loss = self.loss(dy, batch[1], len(dy))
        for layer, (params, x, y, saved) in zip(self.chain[::-1], found[::-1], strict=True):
            dx = np.empty_like(x)
            layer.backward_input(dy, x, y, saved, params, dx)
            layer.backward_weight(dy, x, y, saved, out[at - layer.n : at])
            dy, at = dx, at - layer.n
        return loss

    def evaluate(self, theta: Array) -> dict[str, float]:
        """Return figures on held-out data."""
        outputs, y = self.forward(theta, self.x[TRAIN:])[-1][2], self.y[TRAIN:]
        accuracy = np.mean(outputs.argmax(axis=1) == y)
        return {"loss": self.loss(outputs, y, len(y)), "accuracy": float(accuracy)}


def main(words: Sequence[str]) -> None:
    """Train, cut as the first word says."""
    config = psrt.TrainConfig(optimizer="momentum", lr=0.05, epochs=10, batch_size=BATCH)
    if words:
        config = replace(config, mode="allreduce", parallel=words[0], micro_batches=4)
    psrt.run(config, Spirals(), say=print)


if __name__ == "__main__":
    from script import run_script  # what is impossible is one line, and status 2

    sys.exit(run_script(main))
