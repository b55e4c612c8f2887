"""A program that uses psrt, strictly typed: `mypy --strict` reads it, nothing runs it."""

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import psrt

Vector = NDArray[np.float32]


class Mean:
    """Finds the mean of some rows: a `psrt.Problem` by its shape, without inheriting from it."""

    def __init__(self, rows: Vector) -> None:
        self.rows = rows

    def initial(self) -> Vector:
        return np.zeros(self.rows.shape[1], np.float32)

    def batches(self, worker: int, workers: int, epoch: int) -> Iterator[Vector]:
        yield self.rows[worker::workers]

    def loss_and_grad(self, theta: Vector, batch: Vector, out: Vector) -> float:
        np.subtract(theta, batch.mean(axis=0), out=out)
        return float(out @ out) / 2

    def evaluate(self, theta: Vector) -> dict[str, float]:
        return {"loss": float(np.square(theta - self.rows.mean(axis=0)).sum()) / 2}


def train(problem: psrt.Problem) -> float | None:
    try:
        config: psrt.TrainConfig = psrt.TrainConfig(mode="ssp:staleness=2", epochs=3)
        run: psrt.Run | None = psrt.run(config, problem, say=print)
    except psrt.ConfigError as error:
        raise SystemExit(str(error)) from error
    return None if run is None else run.summary.test_accuracy


def simulate(problem: psrt.Problem) -> Vector:
    run: psrt.SimulatedRun = psrt.simulate(psrt.TrainConfig(mode="async"), problem, workers=3)
    return run.theta


def average(values: Vector) -> None:
    with psrt.Communicator(MPI.COMM_WORLD) as communicator:
        communicator.all_reduce(values, op="mean")
        work = communicator.all_reduce_async(values)
        work.wait()
        size: int = communicator.size
        print(size, psrt.__version__)


if __name__ == "__main__":
    train(Mean(np.ones((8, 3), np.float32)))
