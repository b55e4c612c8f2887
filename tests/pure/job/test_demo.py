"""Decoupled momentum over an all-reduce, against the published algorithm in float64."""

from __future__ import annotations

import numpy as np

import psrt
from psrt.config import TrainConfig
from psrt.job.virtual import simulate
from support.cases import each

#: A matrix of 10 × 9 behind 3 numbers, and 5 numbers behind it.
START, ROWS, COLUMNS, N = 3, 10, 9, 98
BETA, CHUNK, KEPT, STEPS = 0.9, 4, 3, 8
KNOBS = {
    "mode": "allreduce", "optimizer": "demo", "codec_chunk": CHUNK, "codec_kept": KEPT,
    "codec_momentum": BETA, "lr": 0.03, "epochs": 2, "schedule": "step", "decay_epochs": 1.0,
    "decay_factor": 0.25, "batch_size": 4,
}  # fmt: skip


def drawn(worker, step):
    return np.random.default_rng((worker, step)).standard_normal(N).astype(np.float32)


class Drawn:
    """Gradients that are drawn; the last batch of an epoch is smaller at all but worker 0."""

    def initial(self):
        return np.zeros(N, np.float32)

    def matrices(self):
        return [(START, ROWS, COLUMNS)]

    def batches(self, worker, workers, epoch):
        first = epoch * STEPS // 2
        sizes = [4] * (STEPS // 2 - 1) + [4 if worker == 0 else 1]
        return [np.full(size, 100 * worker + first + i) for i, size in enumerate(sizes)]

    def loss_and_grad(self, theta, batch, out):
        out[:] = drawn(*divmod(int(batch[0]), 100))
        return 1.0

    def evaluate(self, theta):
        return {"loss": 0.0}


def transform(rows, columns):
    """Return the DCT-II of blocks as one matrix, entry by entry."""
    found = np.empty((rows * columns, rows * columns))
    for u, v in np.ndindex(rows, columns):
        for i, j in np.ndindex(rows, columns):
            found[u * columns + v, i * columns + j] = (
                np.sqrt((1 if u == 0 else 2) / rows * (1 if v == 0 else 2) / columns)
                * np.cos(np.pi * (i + 0.5) * u / rows)
                * np.cos(np.pi * (j + 0.5) * v / columns)
            )
    return found


def blocks():
    """Yield the indices and the transform of every chunk."""
    for start, rows, columns in ((0, 1, START), (START, ROWS, COLUMNS), (93, 1, 5)):
        place = np.arange(start, start + rows * columns).reshape(rows, columns)
        for top in range(0, rows, CHUNK):
            for left in range(0, columns, CHUNK):
                block = place[top : top + CHUNK, left : left + CHUNK]
                yield block.ravel(), transform(*block.shape)


def published(workers, kept, beta=BETA):
    """Return θ of the published algorithm, each worker's gradient by its share of the samples."""
    theta, chunks = np.zeros(N), list(blocks())
    momentum = np.zeros((workers, N))
    for step in range(STEPS):
        rate = 0.03 * (1 if step < STEPS // 2 else 0.25)
        small = step % (STEPS // 2) == STEPS // 2 - 1
        sizes = np.array([1 if small and worker else 4 for worker in range(workers)])
        total = np.zeros(N)
        for worker, share in enumerate(sizes / sizes.sum()):
            momentum[worker] = beta * momentum[worker] + rate * share * drawn(worker, step)
            for place, forth in chunks:
                values = forth @ momentum[worker][place]
                values[np.argsort(-np.abs(values))[kept:]] = 0
                sent = forth.T @ values
                momentum[worker][place] -= sent
                total[place] += sent
        theta -= rate * np.sign(total)
    return theta


@each(("workers", "kept"), [(1, 1), (2, KEPT), (5, 7)])
def test_it_is_the_published_algorithm(workers, kept):
    config = TrainConfig(**KNOBS | {"codec_kept": kept})
    run = simulate(config, Drawn(), workers=workers)
    np.testing.assert_allclose(run.theta, published(workers, kept), atol=1e-6)


def test_one_worker_that_sends_all_is_signed_descent():
    """θ ← θ − η·sign(g), to the bit, with any momentum."""
    plain = {name: it for name, it in KNOBS.items() if not name.startswith("codec")}
    whole, signed = (
        psrt.run(TrainConfig(**it), Drawn()).theta
        for it in (KNOBS | {"codec_kept": 16}, plain | {"optimizer": "sign-sgd"})
    )
    assert whole.tobytes() == signed.tobytes()
