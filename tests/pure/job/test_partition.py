"""``--partition``: who is dealt which samples, what is said of it, and what cannot be dealt out."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.cli.simulate import parse_simulate
from psrt.core.errors import ConfigError
from psrt.data import deal
from psrt.history.check.run import check_run
from psrt.history.header import sealed
from psrt.job.problems import supervised_problem
from psrt.job.scenario import run_in_virtual_time
from support.cases import each

#: Of 60 samples, unevenly dealt to 4 workers: one has 3, another 26.
SMALL = {
    "dataset": "synthetic:60x4x3", "hidden": (3, 3), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "seed": 3,
}  # fmt: skip
WORKERS = 4


def config_of(mode, partition, **changes):
    return TrainConfig(**SMALL | {"mode": mode, "partition": partition} | changes)


class Counting:
    """The config's own problem, which counts the samples that it is asked for."""

    def __init__(self, config, workers):
        self.own = supervised_problem(config, workers=workers)
        self.seen = Counter()

    def __getattr__(self, name):
        return getattr(self.own, name)

    def gather(self, worker, indices):
        self.seen.update((worker, int(i)) for i in indices)
        return self.own.gather(indices)

    def batches(self, worker, workers, epoch, samples):
        return [self.gather(worker, it) for it in samples]


def test_a_worker_sees_its_own_samples_each_once_an_epoch():
    config = config_of("async", "dirichlet:0.4")
    problem = Counting(config, WORKERS)
    own = deal(
        problem.labels(), workers=WORKERS, rule="dirichlet", number=0.4, batch_size=4, seed=3
    )
    labels = np.asarray(problem.labels())
    sizes = ", ".join(str(len(it)) for it in own.samples)
    kinds = ", ".join(str(len({*labels[it].tolist()})) for it in own.samples)
    said = []
    psrt.simulate(config, problem, workers=WORKERS, say=said.append)
    assert [it for it in said if it.startswith("partition: ")] == [
        f"partition: dirichlet:0.4, samples per worker {sizes}; labels per worker {kinds}"
    ]
    assert problem.seen == {
        (worker, int(i)): 2 for worker, samples in enumerate(own.samples) for i in samples
    }


def test_a_recorded_run_is_imitated(tmp_path):
    out = str(tmp_path / "run")
    config = config_of("sync", "dirichlet:0.4", out=out, record=True, epochs=3)
    measured = psrt.simulate(config, workers=WORKERS).summary

    def like(*more):
        return run_in_virtual_time(*parse_simulate(["--like", out, *more])).summary

    assert (like().samples, like().steps) == (measured.samples, measured.steps)
    short = replace(config, epochs=None, steps=3, overwrite=True)
    psrt.simulate(short, workers=WORKERS)  # the header says what an epoch has
    for more in ([], ["--partition", "iid"], ["--partition", "by-label:2"], ["--workers", "5"]):
        assert like(*more, "--epochs", "2").samples == 2 * 60
    # What a problem of the user's own has dealt out is known; how it would be otherwise is not.
    path = tmp_path / "run" / "history" / "header.json"
    values = json.loads(path.read_text())
    path.write_text(sealed(values | {"data_sha256": "0" * 64}))
    assert like("--epochs", "3").samples == measured.samples
    with pytest.raises(ConfigError, match="use --partition iid, or the run's own"):
        like("--workers", "5")


def test_another_deal_is_found_out(tmp_path):
    out = str(tmp_path / "run")
    psrt.simulate(config_of("sync", "dirichlet:0.4", out=out, record=True), workers=WORKERS)
    path = tmp_path / "run" / "history" / "header.json"
    values = json.loads(path.read_text())
    one, two, *rest = values["deal"]
    for other in ([two, one, *rest], [[one[0] + 1, 2], [two[0] - 1, 2], *rest], [two, *rest], []):
        path.write_text(sealed(values | {"deal": other}))
        with suppress(ConfigError):
            assert not check_run(out).ok, other


class Own:
    """A problem of the user's own, with labels."""

    def initial(self):
        return np.ones(6, np.float32)

    def labels(self):
        return [0, 1, 2, 0, 1, 2, 2, 2]

    def batches(self, worker, workers, epoch, samples=None):
        assert samples is not None
        return [np.zeros((len(it), 2)) for it in samples]

    def loss_and_grad(self, theta, batch, out):
        assert len(batch)
        out[:] = theta
        return float(theta @ theta)

    def evaluate(self, theta):
        return {"loss": float(theta @ theta)}


class Unlabelled(Own):
    labels = None


def test_a_problem_of_the_users_own_says_its_labels():
    config = TrainConfig(mode="async", epochs=2, partition="by-label:1", batch_size=2)
    run = psrt.simulate(config, Own(), workers=3)
    assert run.summary.samples == 16
    with pytest.raises(ConfigError, match=r"the problem, an? Unlabelled, has no labels\(\)"):
        psrt.simulate(config, Unlabelled(), workers=3)


@each(
    ("changes", "workers", "text"),
    [
        ({}, 61, "--partition dirichlet:0.4: 60 samples for 61 workers"),
        ({"partition": "by-label:4"}, 4, "--partition by-label:4: 4 labels for each of 4 workers, "
         "expected 1 to 3: the data has 3 labels"),
        ({"partition": "iid"}, 16, "a step of all 16 workers takes 64 samples"),
    ],
)  # fmt: skip
def test_what_cannot_be_dealt_out_is_said_in_one_line(changes, workers, text):
    config = replace(config_of("async", "dirichlet:0.4"), **changes)
    for numerics in (True, False):
        with pytest.raises(ConfigError, match=text) as error:
            psrt.simulate(config, workers=workers, numerics=numerics)
        assert "\n" not in str(error.value)


@each(
    ("given", "kept"),
    [("by-label:02", "by-label:2"), ("dirichlet:.50", "dirichlet:0.5"), ("by-label:0", None),
     ("by-label:1.5", None), ("dirichlet:0", None), ("dirichlet:nan", None), ("iid:1", None)],
)  # fmt: skip
def test_values(given, kept):
    if kept is None:
        with pytest.raises(ConfigError, match=r"^partition must be .*, got '"):
            TrainConfig(partition=given)
    else:
        assert TrainConfig(partition=given).partition == kept
