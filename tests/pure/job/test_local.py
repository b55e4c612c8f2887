"""A job of one process, and what a problem has for each worker."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import psrt
from psrt.config import TrainConfig
from psrt.config.modes import Gossip
from psrt.core.errors import StoppedError
from psrt.job.local import run
from psrt.job.resuming import resumed_config
from support.cases import each

BASE = {"dataset": "synthetic:40x4x2", "hidden": (6, 3), "batch_size": 8, "epochs": 2}


@pytest.fixture(autouse=True)
def _by_itself(monkeypatch):
    monkeypatch.setattr("psrt.job.local.launched", lambda: False)


@each("more", [{}, {"variant": "push-sum"}, {"variant": "gradient-tracking"}, {"variant": "pairs"}])
def test_without_neighbours_gossip_trains_as_one_does_alone(more):
    alone, done = (run(TrainConfig(**BASE, **it)) for it in ({}, {"mode": Gossip(**more)}))
    assert done.theta == pytest.approx(alone.theta, abs=1e-6)


def test_one_that_sums_alone_without_shared_memory_is_replayed_and_resumed(tmp_path):
    """What sums there was never chosen, so nothing is held to a choice."""
    out = tmp_path / "run"
    more = {"mode": "allreduce", "shared_memory": False, "checkpoint_every": 3, "record": True}
    done = run(TrainConfig(**BASE, **more, out=str(out)))
    first = min((out / "checkpoints").iterdir())
    for config in (
        psrt.recorded_config(str(out)),
        resumed_config(str(first), out=str(tmp_path / "on"), record=False),
    ):
        assert run(config).theta.tobytes() == done.theta.tobytes()


class Signalled:
    """Is sent SIGUSR1 in its first step, and whenever it is evaluated."""

    def initial(self):
        return np.zeros(2, np.float32)

    def batches(self, worker, workers, epoch):
        return np.zeros((1_000, 1), np.float32)

    def loss_and_grad(self, theta, batch, out):
        if not theta.any():
            signal.raise_signal(signal.SIGUSR1)
        out[:] = -1e-6
        return 0.0

    def evaluate(self, theta):
        signal.raise_signal(signal.SIGUSR1)
        return {"loss": 0.0}


@pytest.fixture
def heard():
    found = []
    before = signal.signal(signal.SIGUSR1, lambda *_: found.append(1))
    yield found
    signal.signal(signal.SIGUSR1, before)


def test_a_run_that_stops_may_be_asked_to_once_more(tmp_path, heard):
    # Slurm sends it to every rank, and to their launcher, which passes it on.
    config = TrainConfig(epochs=1e6, out=str(tmp_path / "run"), checkpoint_every=10**9)
    with pytest.raises(StoppedError, match="resume continues from step"):
        run(config, Signalled())
    assert (tmp_path / "run" / "summary.json").exists()
    signal.raise_signal(signal.SIGUSR1)
    assert heard == []


def test_after_a_run_that_was_not_stopped_the_signal_is_the_callers_again(tmp_path, heard):
    config = TrainConfig(**BASE, out=str(tmp_path / "run"), checkpoint_every=1)
    run(config)
    signal.raise_signal(signal.SIGUSR1)
    assert heard == [1]


# --- what a problem has for each worker ----------------------------------------------------------


class Counting:
    """Least squares; each worker counts its own gradients."""

    def __init__(self):
        self.number, self.count, self.concluded = None, 0, []

    def of_worker(self, number):
        found = Counting()
        found.number = number
        return found

    def conclude(self, states):
        self.concluded.append(states)

    def state(self):
        return {"number": self.number, "count": np.array(self.count)}

    def initial(self):
        return np.ones(2, np.float32)

    def batches(self, worker, workers, epoch):
        assert worker == self.number
        return [[worker]] * (worker + 1)

    def loss_and_grad(self, theta, batch, out):
        self.count += 1
        out[:] = theta
        return float(theta @ theta) / 2

    def evaluate(self, theta):
        if self.number is None:  # at the end, where files are written
            assert len(self.concluded) == 1
        return {"loss": float(self.count)}


@pytest.mark.parametrize("workers", [1, 3])
def test_each_worker_has_its_own_and_the_states_come_back(workers):
    problem = Counting()
    config = psrt.TrainConfig(mode="async", lr=0.1, epochs=2)
    if workers == 1:
        run = psrt.run(psrt.TrainConfig(lr=0.1, epochs=2), problem)
    else:
        run = psrt.simulate(config, problem, workers=workers)
    [states] = problem.concluded
    assert states == {i: {"number": i, "count": np.array(2 * (i + 1))} for i in range(workers)}
    assert run.summary.test_loss == 0
    assert run.records[0].test_loss == 1
