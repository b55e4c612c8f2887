"""Jobs with --tune in virtual time: what they try, what stays the same, and what is found out."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from psrt.config import TrainConfig, resolve
from psrt.core.errors import ConfigError
from psrt.history import read_history
from psrt.history.check.run import check_run
from psrt.history.events import Kind
from psrt.history.folder import FOLDER, write_header
from psrt.job.problems import supervised_problem
from psrt.job.resuming import resumed_config
from psrt.job.virtual import simulate
from psrt.report.console import tuned_text
from psrt.simulation import SimulationCosts
from psrt.views.report.page import page_of
from support.cases import each

#: Layers of 512 KiB and 256 KiB in several buckets; 40 steps in a bit more than 2 epochs.
KNOBS = {
    "dataset": "synthetic:300x256x16", "hidden": (512, 128), "batch_size": 8, "lr": 0.01,
    "steps": 40, "optimizer": "adam",
}  # fmt: skip
#: Layers so small that more local steps pay.
SMALL = KNOBS | {"hidden": (8,), "steps": 120}
JOBS = {
    "allreduce": KNOBS | {"mode": "allreduce"},
    "local-sgd": SMALL | {"mode": "local-sgd:local-steps=32"},
    "outer": SMALL | {"mode": "local-sgd:local-steps=6,outer=nesterov"},
    "sync": KNOBS | {"mode": "sync", "steps": 8},
    "async": KNOBS | {"mode": "async", "servers": 2, "steps": 8},
    "local-sgd, served": KNOBS | {"mode": "local-sgd:local-steps=2", "servers": 1, "steps": 8},
}
ALONE = ("allreduce", "local-sgd", "outer")


def run(name, out=None, workers=3, seed=0, **more):
    knobs = JOBS[name] | {"tune": True, "out": out and str(out), "record": out is not None} | more
    return simulate(TrainConfig(**knobs), workers=workers, seed=seed)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Recorded runs of all jobs; nobody changes them."""
    found = {}
    for name in JOBS:
        out = tmp_path_factory.mktemp("tuned") / "run"
        found[name] = out, run(name, out)
    return found


@pytest.mark.parametrize("name", JOBS)
def test_it_chooses_what_a_check_confirms_and_a_replay_repeats(recorded, name, tmp_path):
    out, made = recorded[name]
    tuned = made.summary.tuned
    assert tuned.chosen is not None
    assert len(tuned.tried) > 1
    outcome = check_run(out)
    assert outcome.ok, outcome.violation
    assert outcome.checked["tuning"] == len(tuned.tried) + 1
    told = json.loads((out / "summary.json").read_text())["tuned"]
    assert told["chosen"] == tuned.chosen
    again = simulate(
        TrainConfig(**JOBS[name] | {
            "tune": True if name in ALONE else None, "replay": str(out), "record": True,
            "out": str(tmp_path / "again"),
        }), workers=3, seed=5,
    )  # fmt: skip
    assert again.summary.parameters_sha256 == made.summary.parameters_sha256
    assert (again.summary.tuned == tuned) == (name in ALONE)
    assert check_run(tmp_path / "again").ok


@pytest.mark.parametrize("name", ["allreduce", "local-sgd", "sync"])
def test_a_page_shows_what_was_tried(recorded, name):
    out, made = recorded[name]
    assert tuned_text(asdict(made.summary.tuned)) in page_of([str(out)])


def test_the_same_seed_tries_and_chooses_the_same(recorded):
    for name in ("allreduce", "async"):
        made = recorded[name][1]
        assert run(name).summary.tuned == made.summary.tuned


@pytest.mark.parametrize("name", ["allreduce", "sync", "async", "local-sgd, served"])
def test_the_bits_are_those_of_the_choice_given(name):
    """Of two terms the order does not matter: other buckets round alike."""
    made = run(name, workers=2)
    knobs = JOBS[name]
    if made.summary.servers:
        knobs = knobs | {"shards_per_server": made.summary.tuned.chosen}
    given = simulate(TrainConfig(**knobs), workers=2)
    np.testing.assert_array_equal(made.theta, given.theta)
    if made.summary.servers:  # nor does a rehearsal leave anything else behind
        assert made.seconds == given.seconds
        assert len(made.reports) == len(given.reports)


def test_local_steps_are_what_was_chosen_and_never_more_than_given(recorded):
    for name in ("local-sgd", "outer"):
        out, made = recorded[name]
        events = read_history(str(out)).workers[0]
        kinds = events["kind"][np.isin(events["kind"], (Kind.STEP, Kind.REDUCE))]
        ends = np.flatnonzero(kinds == Kind.REDUCE)
        periods = np.diff(ends, prepend=-1)[:-2] - 1  # but the last, and that of nobody
        chosen = made.summary.tuned.chosen
        assert periods.tolist() == [1] * 8 + [4] * 8 + [chosen] * (len(periods) - 16)
        assert chosen > 1
        assert made.summary.averages.local_steps == chosen
    assert recorded["outer"][1].summary.tuned.chosen <= 6


@each("slow", [1, 4])
def test_a_worker_that_is_always_slower_is_no_reason_for_longer_periods(slow):
    costs = SimulationCosts(
        compute=lambda rank, rng: 0.01 * (slow if rank == 0 else 1), latency=lambda *_: 1e-4
    )
    knobs = SMALL | {"mode": "local-sgd:local-steps=32", "tune": True}
    made = simulate(TrainConfig(**knobs), workers=3, costs=costs)
    assert made.summary.tuned.chosen == 1
    assert made.summary.tuned.tried[1][1] == pytest.approx(0.01 * slow, rel=0.1)


@pytest.mark.parametrize(("name", "step"), [
    ("allreduce", 5), ("allreduce", 20), ("allreduce", 35), ("local-sgd", 20), ("local-sgd", 100),
])  # fmt: skip
def test_a_resumed_run_continues_with_the_trial_or_the_choice(name, step, tmp_path):
    made = run(name, tmp_path / "run", checkpoint_every=5, keep=1000)
    steps = sorted(int(it.name) for it in (tmp_path / "run" / "checkpoints").iterdir())
    at = min(it for it in steps if it >= step)
    cut = tmp_path / "run" / "checkpoints" / f"{at:08d}"
    again = simulate(resumed_config(str(cut), out=str(tmp_path / "run")), workers=3)
    mine, its = again.summary.tuned, made.summary.tuned
    assert mine.chosen is not None
    done = at // 8 if name == "allreduce" else (at >= 8) + (at >= 40)
    assert mine.tried[:done] == its.tried[:done]
    assert [value for value, _ in mine.tried] == [value for value, _ in its.tried]
    assert check_run(tmp_path / "run").ok
    if mine.chosen == its.chosen:
        np.testing.assert_array_equal(again.theta, made.theta)


def test_servers_resume_with_the_shards_that_were_found(tmp_path):
    made = run("sync", tmp_path / "run", checkpoint_every=4)
    cut = tmp_path / "run" / "checkpoints" / f"{4:08d}"
    again = simulate(resumed_config(str(cut), out=str(tmp_path / "run"), tune=True), workers=3)
    assert again.summary.tuned == made.summary.tuned
    np.testing.assert_array_equal(again.theta, made.theta)
    auto = TrainConfig(**JOBS["sync"], tune=True, resume=str(cut), out=str(tmp_path / "other"))
    assert simulate(auto, workers=3).summary.shards_per_server == made.summary.shards_per_server


class Counting:
    """Has a state that each gradient changes."""

    taken = 0

    def loss_and_grad(self, *args):
        self.taken += 1
        return super().loss_and_grad(*args)

    def state(self):
        return {"taken": self.taken}

    def load_state(self, tree):
        self.taken = tree["taken"]


def test_a_rehearsal_gives_a_problem_its_state_back():
    config = TrainConfig(**JOBS["sync"], tune=True)
    problem = supervised_problem(config, workers=2)
    problem.__class__ = type("Counting", (Counting, type(problem)), {})
    made = simulate(config, problem, workers=2)
    assert len(made.summary.tuned.tried) > 1
    assert problem.taken == 2 * made.summary.steps


FORGED = {
    "allreduce": [
        (-1, (1, 1, None)), (-1, (24, 7, None)), (1, (8, 7, 1e-9)), (0, (1, 1 << 20, 0.1)),
        (1, (8, 1 << 20, 0.1)), (0, (0, 1 << 20, None)),
    ],
    "local-sgd": [(-1, (16, 31, None)), (0, (0, 2, 0.1)), (1, (8, 4, 1e9)), (-1, None)],
    "sync": [(-1, (0, 64, None)), (0, (1, 1, 0.1)), (-1, None)],
}  # fmt: skip


@each(("name", "at", "row"), [(name, *it) for name, rows in FORGED.items() for it in rows])
def test_a_forged_choice_is_found_out(recorded, name, at, row):
    out, _ = recorded[name]
    header = read_history(str(out)).header
    rows = list(header.tuned)
    rows[at : (at + 1) or None] = [] if row is None else [row]
    try:
        write_header(Path(out) / FOLDER, replace(header, tuned=tuple(rows)))
        # Without the summary, which would say so, too.
        (out / "summary.json").rename(out / "hidden")
        outcome = check_run(out)
        assert not outcome.ok
        assert outcome.violation.rule in ("tuning", "averaging")
    finally:
        write_header(Path(out) / FOLDER, header)
        (out / "hidden").rename(out / "summary.json")
    assert check_run(out).ok


NOTHING = {
    "bucket-bytes 4096 is given": {"mode": "allreduce:bucket-bytes=4096"},
    "overlap false sums": {"mode": "allreduce:overlap=false"},
    "--clip-norm sums": {"mode": "allreduce", "clip_norm": 1.0},
    "other owners": {"mode": "allreduce:shard=optimizer"},
    "a codec": {"mode": "allreduce", "codec": "int8"},
    "--parallel pipeline:2": {"mode": "allreduce", "parallel": "pipeline:2"},
    "the most that may be used, is 1": {"mode": "local-sgd:local-steps=1"},
    "have times of their own": {"mode": "local-sgd:fragments=2"},
    "averages have times": {"mode": "local-sgd:post-local-epoch=1"},
    "--shards-per-server 4 is given": {"mode": "sync", "shards_per_server": 4},
    "fragments are the shards": {"mode": "local-sgd:fragments=2", "servers": 1},
    "learners have several ranks": {"mode": "local-sgd:learner-ranks=2", "servers": 1},
    "--survive": {"mode": "sync", "survive": True},
    "has no effect with --mode gossip": {"mode": "gossip"},
}


@each(("text", "knobs"), NOTHING.items())
def test_where_nothing_can_be_tuned_it_is_an_error(text, knobs):
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**knobs, tune=True)
    assert text in str(caught.value)
    assert "tune" in str(caught.value)


def test_nor_with_one_worker_nor_is_a_fault_rehearsed():
    with pytest.raises(ConfigError, match="there is one worker"):
        resolve(TrainConfig(mode="allreduce", tune=True), ranks=1)
    with pytest.raises(ConfigError, match="faults, which would strike"):
        simulate(TrainConfig(**JOBS["async"], tune=True), workers=2, crashes=[(1, 9.0)])


def test_a_run_that_is_too_short_says_so():
    made = run("allreduce", steps=10)
    assert made.summary.tuned.chosen is None
    assert len(made.summary.tuned.tried) == 1
