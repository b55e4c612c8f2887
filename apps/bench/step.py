"""One training step of the MLP against its bare matrix products. No MPI.

    python apps/bench/step.py --rounds 15

The bare products are the ``np.dot(..., out=)`` calls that a step needs at least, on the
same parameters, gradient and shapes: one forward and one weight gradient per layer, and one
input gradient per layer but the first. What a step takes beyond them is psrt's.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from psrt.bench.figures import Column, spread, table
from psrt.bench.race import Candidate, race, repeated
from psrt.cli.bench import Report, run_script
from psrt.core.arrays import FloatArray
from psrt.core.errors import PsrtError
from psrt.model import MLP
from psrt.optim import step
from psrt.optim.table import Sgd

#: Models that the targets are set for.
MODELS = ((784, 512, 512, 10), (784, 2048, 2048, 10))
BATCH_SIZE = 64
#: Floating-point operations of one reading round: rounds are as many as fit, so that small
#: models get more of them.
_WORK = 6e11
_LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class Problem:
    """A model with one batch, and what a step reads and writes."""

    model: MLP
    theta: FloatArray
    gradient: FloatArray
    x: FloatArray
    y: npt.NDArray[np.int64]

    @classmethod
    def make(cls, sizes: Sequence[int], batch_size: int, seed: int) -> Problem:
        """Make seeded data of the shapes."""
        rng = np.random.default_rng(seed)
        model = MLP(sizes, batch_size=batch_size)
        x = rng.random((batch_size, sizes[0]), np.float32)
        y = rng.integers(0, sizes[-1], batch_size)
        return cls(model, model.initial(rng), np.zeros(model.n, np.float32), x, y)

    def layers(self, vector: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
        """Return weight and bias of each layer as views of ``vector``."""
        tensors = self.model.tensors(vector)
        return [
            (tensors[f"layers.{i}.weight"], tensors[f"layers.{i}.bias"])
            for i in range(len(self.model.sizes) - 1)
        ]


def bare_products(problem: Problem) -> Callable[[], None]:
    """Return a call that makes the matrix products of a step and nothing else."""
    rows = len(problem.x)
    values = [np.zeros((rows, width), np.float32) for width in problem.model.sizes]
    values[0][...] = problem.x
    deltas = [np.zeros((rows, width), np.float32) for width in problem.model.sizes]
    weights = [weight for weight, _ in problem.layers(problem.theta)]
    gradients = [weight for weight, _ in problem.layers(problem.gradient)]
    forward = [(values[i], weight, values[i + 1]) for i, weight in enumerate(weights)]
    backward: list[tuple[FloatArray, FloatArray, FloatArray]] = []
    deltas[-1] = values[-1]
    for i in reversed(range(len(weights))):
        if i:
            backward.append((deltas[i + 1], weights[i].T, deltas[i]))
        backward.append((values[i].T, deltas[i + 1], gradients[i]))
    products = forward + backward

    def run() -> None:
        for left, right, out in products:
            np.dot(left, right, out=out)

    return run


def reference_gradient(problem: Problem) -> npt.NDArray[np.float64]:
    """Return the gradient of ReLU layers under softmax cross-entropy, plainly and in float64."""
    layers = [(w.astype(np.float64), b) for w, b in problem.layers(problem.theta)]
    values = [problem.x.astype(np.float64)]
    for i, (weight, bias) in enumerate(layers):
        z = values[-1] @ weight + bias
        values.append(z if i == len(layers) - 1 else np.maximum(z, 0))
    exponentials = np.exp(values[-1] - values[-1].max(axis=1, keepdims=True))
    delta = exponentials / exponentials.sum(axis=1, keepdims=True)
    delta[np.arange(len(problem.y)), problem.y] -= 1
    delta /= len(problem.y)
    parts: list[npt.NDArray[np.float64]] = []
    for i in reversed(range(len(layers))):
        parts[:0] = [(values[i].T @ delta).ravel(), delta.sum(axis=0)]
        delta = (delta @ layers[i][0].T) * (values[i] > 0)
    return np.concatenate(parts)


def verify(problem: Problem) -> float:
    """Check a step's gradient and update, and return the gradient's relative error.

    Raises:
        PsrtError: if the gradient or the update is wrong.
    """
    want = reference_gradient(problem)
    got, theta = problem.gradient, problem.theta
    problem.model.loss_and_grad(theta, problem.x, problem.y, got)
    error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
    if not error < 1e-4:
        raise PsrtError(f"the gradient of {_name(problem)} is off by {error:.1e}")
    moved = theta.copy()
    step(Sgd().make(problem.model.n), moved, got, moved, _LEARNING_RATE)
    if not np.array_equal(moved, theta - np.float32(_LEARNING_RATE) * got):
        raise PsrtError(f"the update of {_name(problem)} is not theta - lr * gradient")
    return error


def _name(problem: Problem) -> str:
    return "-".join(map(str, problem.model.sizes))


def run(
    *,
    models: Sequence[Sequence[int]] = MODELS,
    batch_size: int = BATCH_SIZE,
    rounds: int | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Verify and measure each model's step.

    Args:
        models: widths of each.
        batch_size: rows of the batch.
        rounds: readings of each candidate; None for as many as take some ten seconds a model.
        seed: of data and parameters.

    Returns:
        One row per model: ``products``, ``forward_backward`` and ``with_sgd`` in seconds,
        ``forward_backward_ratio`` and ``with_sgd_ratio`` to the products of the same round,
        all as ``Summary``; ``allocated_bytes``, the peak growth in a step; ``gradient_error``.

    Raises:
        PsrtError: if a result is wrong.
    """
    return [_measure(Problem.make(sizes, batch_size, seed), rounds) for sizes in models]


def _measure(problem: Problem, rounds: int | None) -> dict[str, Any]:
    """Return one row of ``run``."""
    error = verify(problem)
    model = problem.model
    optimizer = Sgd().make(model.n)

    def forward_backward() -> None:
        model.loss_and_grad(problem.theta, problem.x, problem.y, problem.gradient)

    def with_sgd() -> None:
        forward_backward()
        step(optimizer, problem.theta, problem.gradient, problem.theta, _LEARNING_RATE)

    calls = {
        "products": bare_products(problem),
        "forward_backward": forward_backward,
        "with_sgd": with_sgd,
    }
    candidates = {name: Candidate(repeated(call)) for name, call in calls.items()}
    found = race(candidates, rounds or _rounds(model, len(problem.x)), calls=1, warmup=1)
    return {
        "model": _name(problem),
        "batch_size": len(problem.x),
        "parameters": model.n,
        **{name: found.summary(name) for name in calls},
        "forward_backward_ratio": found.ratio("forward_backward", "products"),
        "with_sgd_ratio": found.ratio("with_sgd", "products"),
        "allocated_bytes": peak_growth(with_sgd),
        "gradient_error": error,
    }


def _rounds(model: MLP, rows: int) -> int:
    """Return how many rounds of three candidates fit the work that a model may take."""
    products = 6 * rows * sum(a * b for a, b in pairwise(model.sizes))
    return int(min(2000, max(20, _WORK / (3 * products))))


def peak_growth(run: Callable[[], object]) -> int:
    """Return by how many bytes a call raises the memory that Python and numpy hold at once.

    The call is made twice before, so that what is kept from call to call is there already.
    """
    run()
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    try:
        run()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if started:
            tracemalloc.stop()


COLUMNS: tuple[Column, ...] = (
    ("model", "model"),
    ("products ms", spread("products", 1e3)),
    ("forward+backward ms", spread("forward_backward", 1e3)),
    ("ratio", spread("forward_backward_ratio", digits=3)),
    ("with SGD ms", spread("with_sgd", 1e3)),
    ("ratio", spread("with_sgd_ratio", digits=3)),
    ("allocated", lambda row: f"{row['allocated_bytes']} B"),
)


def report(rounds: int) -> Report:
    """Measure, and return the rows and their table."""
    rows = run(rounds=rounds)
    return {"step": (rows, table(rows, COLUMNS))}


if __name__ == "__main__":
    sys.exit(run_script(lambda given, comm: report(given.rounds), __doc__))
