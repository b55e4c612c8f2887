"""A job of one process; what a problem has for each worker; and how far training is."""

from __future__ import annotations

import json
import re
import signal

import numpy as np
import pytest

import psrt
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.config import TrainConfig
from psrt.errors import ConfigError, StoppedError
from psrt.history.check.run import check_run
from psrt.job.amount import Training
from psrt.job.local import run
from psrt.job.problems import machine_costs
from psrt.job.session import run_job
from psrt.job.virtual import VirtualLauncher
from psrt.progress import PROGRESS
from psrt.runtime.server import Server
from support.cases import each

BASE = {"dataset": "synthetic:40x4x2", "hidden": (6, 3), "batch_size": 8, "epochs": 2}


def trained(**knobs):
    lines = []
    done = run(TrainConfig(**BASE, **knobs), say=lines.append)
    return done, lines


@pytest.fixture(autouse=True)
def _by_itself(monkeypatch):
    monkeypatch.setattr("psrt.job.local.launched", lambda: False)


def test_the_sum_is_told_once_at_the_start_and_in_the_summary(tmp_path):
    out = tmp_path / "run"
    done, lines = trained()
    assert not any("all-reduce" in line for line in lines)
    summary = done.summary
    assert (summary.allreduce, summary.allreduce_why) == (None, "")
    assert (summary.buckets, summary.overlap) == (0, False)
    done, lines = trained(mode="allreduce", bucket_bytes=1, out=str(out))
    assert lines[0] == "all-reduce: node, because one rank has nothing to sum"
    assert sum("all-reduce" in line for line in lines) == 1
    told = json.loads((out / "summary.json").read_text())
    assert (told["allreduce"], told["buckets"], told["overlap"]) == ("node", 3, True)
    assert told["allreduce_why"] == "one rank has nothing to sum"
    assert done.summary.updates == done.summary.steps == 2 * 5


@pytest.mark.parametrize(
    "more",
    [
        {"order": "adapt-then-combine"},
        {"push_sum": True},
        {"gradient_tracking": True},
        {"codec": "sign", "codec_everywhere": True},
        {"asynchronous": True, "topology": "star"},
        {"by_host": True},
    ],
    ids=lambda more: min(more),
)
def test_without_neighbours_gossip_trains_as_one_does_alone(tmp_path, more):
    alone, _ = trained(mode="serial")
    out = str(tmp_path / "run")
    done, _ = trained(mode="gossip", out=out, record=True, **more)
    assert done.theta == pytest.approx(alone.theta, abs=1e-6)
    found = check_run(out)
    assert found.ok, "\n".join(found.lines())


@each("knobs", [{}, {"bucket_bytes": 1}, {"overlap": False}, {"clip_norm": 0.1}])
def test_one_rank_of_an_allreduce_is_serial(knobs):
    serial, _ = trained(mode="serial", **{k: v for k, v in knobs.items() if k == "clip_norm"})
    alone, _ = trained(mode="allreduce", **knobs)
    np.testing.assert_array_equal(alone.theta, serial.theta)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        (b"{", "not JSON"),
        (b"\xff", "not a text in UTF-8"),
        (b"{}", "no 'between'"),
    ],
)
def test_costs_that_cannot_be_read(tmp_path, content, words):
    path = tmp_path / "costs.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^--machine-costs {re.escape(str(path))}: .*{words}"):
        trained(mode="allreduce", machine_costs=str(path), out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_costs_are_what_the_file_says_or_those_of_a_common_machine(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(DEFAULT_COSTS.to_json().replace('"cores": 2', '"cores": 7'))
    asked = TrainConfig(mode="allreduce", machine_costs=str(path))
    assert machine_costs(asked).cores == 7
    assert machine_costs(TrainConfig()) == DEFAULT_COSTS


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
    with pytest.raises(StoppedError, match="resume goes on from step"):
        run(config, Signalled())
    assert (tmp_path / "run" / "summary.json").exists()
    signal.raise_signal(signal.SIGUSR1)
    assert heard == []


def test_after_a_run_that_was_not_stopped_the_signal_is_the_callers_again(tmp_path, heard):
    config = TrainConfig(**BASE, out=str(tmp_path / "run"), checkpoint_every=1)
    run(config)
    signal.raise_signal(signal.SIGUSR1)
    assert heard == [1]


def test_data_and_losses_that_need_a_word_get_one(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 2
    for scale, lr, begins in ((1, 0.1, ()), (1000, 1e-6, ("data: ",)), (1, 100.0, ("diverged: ",))):
        file = tmp_path / f"{scale}.npz"
        np.savez(file, x_train=scale * x, y_train=y, x_test=scale * x, y_test=y)
        lines = []
        run(TrainConfig(**BASE | {"dataset": str(file)}, lr=lr), say=lines.append)
        hints = [it.partition(": ")[0] + ": " for it in lines if it.startswith(("data:", "div"))]
        assert hints == [*begins], lines


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


def test_without_a_state_there_is_nothing_to_give_back(monkeypatch):
    monkeypatch.delattr(Counting, "state")
    problem = Counting()
    psrt.simulate(psrt.TrainConfig(mode="sync", lr=0.1, epochs=1), problem, workers=2)
    assert problem.concluded == [{0: None, 1: None}]


# --- how far training is -------------------------------------------------------------------------


class Looked(VirtualLauncher):
    """Keeps what is known at each report: of all roles, and as servers alone would know it."""

    async def run(self, roles, finished):
        servers = {rank: it for rank, it in roles.items() if isinstance(it, Server)}
        self.amounts, self.told, hear = [], [], self.on_report
        alone = Training(self.config, self, servers, None) if servers else None

        def on_report(report):
            hear(report)
            part = PROGRESS._parts[-1]
            self.amounts.append(part.look())
            if alone is not None:
                self.told.append(alone())

        self.on_report = on_report
        await super().run(roles, finished)


def looked(**knobs):
    config = TrainConfig(hidden=(4,), **knobs)
    launcher = Looked(3, seed=1)
    launcher.config = config
    before = PROGRESS._parts
    run_job(launcher, config)
    assert PROGRESS._parts == before
    return launcher


@pytest.mark.parametrize("mode", ["async", "sync", "allreduce", "gossip"])
def test_steps_are_counted_of_those_that_are_planned(mode):
    launcher = looked(mode=mode, steps=20, log_every=5)
    for amounts in filter(None, (launcher.amounts, launcher.told)):
        done = [it.done for it in amounts]
        assert {(it.total, it.noun) for it in amounts} == {(20, "step")}
        assert done == sorted(done)
        assert done[0] < 10
        assert done[-1] in (19, 20)  # the last report may come before the last push of others
        assert all(it.note.endswith(" of virtual time") for it in amounts)
    assert bool(launcher.told) == (mode in ("async", "sync"))
    assert launcher.amounts[-1].detail.startswith("epoch ")


def test_epochs_are_where_they_say_how_long_it_takes():
    launcher = looked(mode="async", epochs=2, log_every=5)
    for amounts in (launcher.amounts, launcher.told):
        done = [it.done for it in amounts]
        assert {(it.total, it.noun) for it in amounts} == {(2, "epoch")}
        assert done == sorted(done)
        assert 0 < done[0] < 1
        assert done[-1] == pytest.approx(2, abs=0.1)
        assert amounts[-1].note.startswith("step 30  ")
