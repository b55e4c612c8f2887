"""A problem with something for each worker, which it is given back when training is over."""

import numpy as np
import pytest

import psrt


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


def test_without_a_state_there_is_nothing_to_give_back(monkeypatch):
    monkeypatch.delattr(Counting, "state")
    problem = Counting()
    psrt.simulate(psrt.TrainConfig(mode="sync", lr=0.1, epochs=1), problem, workers=2)
    assert problem.concluded == [{0: None, 1: None}]
