"""Jobs with --tune in virtual time: what they try, what stays the same, and what is found out."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from html import escape

import numpy as np
import pytest

from psrt.config import MODES, TrainConfig
from psrt.core.errors import ConfigError
from psrt.history import read_history
from psrt.history.check.findings import Findings
from psrt.history.check.run import check_run
from psrt.history.check.tuning import check_tuning
from psrt.job.problems import supervised_problem
from psrt.job.recorded import recorded_config
from psrt.job.resuming import found_in, resumed_config
from psrt.job.virtual import simulate
from psrt.report.console import tuned_text
from psrt.simulation import SimulationCosts
from psrt.views.report.page import page_of
from support.cases import each

#: Layers of 512 KiB and 256 KiB, so that buckets and shards may differ.
KNOBS = {
    "dataset": "synthetic:300x256x16", "hidden": (512, 128), "batch_size": 8, "lr": 0.01,
    "steps": 8, "optimizer": "adam",
}  # fmt: skip
#: Layers so small that more local steps pay.
SMALL = KNOBS | {"hidden": (8,), "steps": 40}
JOBS = {
    "allreduce": KNOBS | {"mode": "allreduce"},
    "sharded": KNOBS | {"mode": "allreduce:shard=optimizer"},
    "coded": KNOBS | {"mode": "allreduce", "codec": "int8", "codec_everywhere": True},
    "local-sgd": SMALL | {"mode": "local-sgd:local-steps=32"},
    "outer": SMALL | {"mode": "local-sgd:local-steps=6,outer=nesterov"},
    "sync": KNOBS | {"mode": "sync"},
    "async": KNOBS | {"mode": "async", "servers": 2},
    "teams": KNOBS | {"mode": "local-sgd:local-steps=2,learner-ranks=2,quorum=2", "servers": 1},
    "one possible": KNOBS | {"mode": "sync", "hidden": (8,)},
}
RESUMED = ("allreduce", "local-sgd", "sync")


def run(name, out=None, seed=0, **more):
    knobs = JOBS[name] | {"tune": True, "out": out and str(out), "record": out is not None} | more
    far = SimulationCosts(latency=lambda *_: 1e-3) if name == "local-sgd" else None
    return simulate(TrainConfig(**knobs), workers=4, seed=seed, costs=far)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Recorded runs of all jobs; nobody changes them."""
    found = {}
    for name in JOBS:
        out = tmp_path_factory.mktemp("tuned") / "run"
        saves = {"checkpoint_every": 4, "keep": 1000} if name in RESUMED else {}
        found[name] = out, run(name, out, **saves)
    return found


@pytest.mark.parametrize("name", JOBS)
def test_it_chooses_what_a_check_confirms_and_a_replay_repeats(recorded, name, tmp_path):
    out, made = recorded[name]
    tuned = made.summary.tuned
    assert (len(tuned.tried) > 1) == (name != "one possible")
    outcome = check_run(out)
    assert outcome.ok, outcome.violation
    assert outcome.checked["tuning"] == len(tuned.tried)
    told = json.loads((out / "summary.json").read_text())["tuned"]
    assert told == json.loads(json.dumps(asdict(tuned)))
    assert escape(tuned_text(told)) in page_of([str(out)])
    # As on the command line, which takes the flags of the run again.
    given = {it: JOBS[name][it] for it in ("mode", "steps")}
    assert recorded_config(out, tune=True, **given).tune
    again = run(name, tmp_path / "again", seed=5, replay=str(out))
    assert again.summary.parameters_sha256 == made.summary.parameters_sha256
    assert again.summary.tuned == tuned
    assert check_run(tmp_path / "again").ok


@pytest.mark.parametrize("name", JOBS)
def test_it_is_the_run_that_has_the_choice_given(recorded, name):
    made = recorded[name][1]
    knob, chosen = made.summary.tuned.knob, made.summary.tuned.chosen
    mode = MODES.accept(JOBS[name]["mode"])
    given = {knob: chosen} if made.summary.servers else {"mode": replace(mode, **{knob: chosen})}
    plain = run(name, tune=None, **given)
    np.testing.assert_array_equal(made.theta, plain.theta)
    assert made.seconds == plain.seconds
    assert len(made.reports) == len(plain.reports)
    if not made.summary.servers:
        usual = getattr(mode.settled(clips=False, contraction=None), knob)
        assert chosen <= usual  # no more local steps than given
        assert name != "local-sgd" or chosen > 4


@pytest.mark.parametrize("name", RESUMED)
def test_it_resumes_with_what_was_found(recorded, name, tmp_path):
    out, made = recorded[name]
    shutil.copytree(out, tmp_path / "run")
    cut = min((tmp_path / "run" / "checkpoints").iterdir())
    knobs = JOBS[name] | {"tune": True, "record": True, "out": str(tmp_path / "run")}
    if name == "sync":
        del knobs["mode"]  # which is the default
    for config in (
        resumed_config(str(cut), **knobs),
        TrainConfig(**knobs, resume=str(cut)),
    ):
        again = simulate(config, workers=4)
        assert again.summary.tuned == made.summary.tuned
        np.testing.assert_array_equal(again.theta, made.theta)
    assert check_run(tmp_path / "run").ok


def test_what_was_tuned_in_a_checkpoint_must_make_sense(recorded):
    (path, *_), text = (recorded["sync"][0] / "checkpoints").iterdir(), '"nonsense"'
    found = found_in(str(path))
    assert found.tuned == recorded["sync"][1].summary.tuned.tried
    found.manifest.more["tuned"] = text
    with pytest.raises(ConfigError, match="nonsense"):
        found.tuned  # noqa: B018


def test_a_run_that_was_not_tuned_is_not_when_it_goes_on(tmp_path):
    knobs = JOBS["local-sgd"] | {"record": True}
    saves = {"checkpoint_every": 4, "out": str(tmp_path / "run")}
    simulate(TrainConfig(**knobs, **saves), workers=4)
    again = knobs | {"tune": True, "out": str(tmp_path / "again")}
    for name in ("replay", "resume"):
        config = TrainConfig(**again, **{name: str(tmp_path / "run")})
        with pytest.raises(ConfigError, match="tune"):
            simulate(config, workers=4)
    with pytest.raises(ConfigError, match="tune"):
        resumed_config(str(tmp_path / "run"), tune=True)


@each("slow", [1, 4])
def test_a_worker_that_is_always_slower_is_no_reason_for_longer_periods(slow):
    costs = SimulationCosts(
        compute=lambda rank, rng: 0.01 * (slow if rank == 0 else 1), latency=lambda *_: 1e-4
    )
    knobs = SMALL | {"mode": "local-sgd:local-steps=32", "tune": True}
    made = simulate(TrainConfig(**knobs), workers=3, costs=costs)
    assert made.summary.tuned.chosen == 1
    assert made.summary.tuned.tried[1][1] == pytest.approx(0.01 * slow, rel=0.1)


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


@each("own", [False, True])
def test_a_rehearsal_gives_a_problem_its_state_back(own):
    config = TrainConfig(**JOBS["sync"], tune=True)
    problem, *children = (supervised_problem(config, workers=2) for _ in range(3))
    for it in (problem, *children):
        it.__class__ = type("Counting", (Counting, type(it)), {})
    if own:
        problem.of_worker = children.__getitem__
    made = simulate(config, problem, workers=2)
    assert len(made.summary.tuned.tried) > 1
    taken = [it.taken for it in (problem, *children)]
    assert (
        taken == [0, made.summary.steps, made.summary.steps]
        if own
        else [2 * made.summary.steps, 0, 0]
    )


FORGED = {
    "allreduce": [
        {"tuned": {0: (1 << 20, 1e-9)}}, {"tuned": {1: (1 << 20, 0.1)}}, {"mode": "allreduce"},
        {"mode": "allreduce:bucket-bytes=7"}, {"mode": "allreduce:bucket-bytes=1048576"},
        {"tuned": {0: (1 << 20, None)}},
    ],
    "local-sgd": [
        {"mode": "local-sgd:local-steps=31"}, {"tuned": {0: (2, 0.1)}}, {"tuned": {1: (4, 1e9)}},
        {"tuned": {2: (4, 0.1)}}, {"tuned": {2: (1 << 40, 0.1)}},
    ],
    "sync": [{"tuned": {1: (1, 1e-9)}}, {"tuned": {0: (1, 0.1)}}],
}  # fmt: skip


@each(("name", "forged"), [(name, it) for name, rows in FORGED.items() for it in rows])
def test_a_forged_choice_is_found_out(recorded, name, forged):
    header = read_history(str(recorded[name][0])).header
    rows = dict(enumerate(header.tuned)) | forged.get("tuned", {})
    config = header.config | {it: forged[it] for it in forged if it != "tuned"}
    findings = Findings()
    check_tuning(header, findings)
    assert findings.none
    check_tuning(replace(header, tuned=tuple(rows.values()), config=config), findings)
    assert findings.first.rule == "tuning"


NOT_POSSIBLE = {
    "as a whole, without buckets": {"mode": "allreduce:overlap=false"},
    "that sums the gradient as a whole": {"mode": "allreduce", "clip_norm": 1.0},
    "--parallel pipeline:2": {"mode": "allreduce", "parallel": "pipeline:2"},
    "fragments are of": {"mode": "local-sgd:fragments=2"},
    "have times of their own": {"mode": "local-sgd:sync-delay=1"},
    "averages have times": {"mode": "local-sgd:post-local-epoch=1"},
    "whose fragments": {"mode": "local-sgd:fragments=2", "servers": 1},
    "has no effect with --mode gossip": {"mode": "gossip"},
}


@each(("text", "knobs"), NOT_POSSIBLE.items())
def test_where_nothing_can_be_tuned_it_is_an_error(text, knobs):
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**knobs, tune=True)
    assert text in str(caught.value)
    assert "tune" in str(caught.value)


def test_faults_strike_the_run_and_not_its_rehearsals():
    knobs, faults = JOBS["async"] | {"tune": True}, {"workers": 3, "crashes": [(1, 0.004)]}
    made = simulate(TrainConfig(**knobs), **faults)
    assert [*made.world.crashed.values()] == [0.004]
    given = {"tune": None, "shards_per_server": made.summary.tuned.chosen}
    plain = simulate(TrainConfig(**knobs | given), **faults)
    np.testing.assert_array_equal(made.theta, plain.theta)
