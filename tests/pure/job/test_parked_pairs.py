"""Checkpoints of gossip without rounds, and runs that go on from them.

The problem is the oracle: each gradient is −1 at an element of its worker and step, and 0
elsewhere. Averages move ticks between workers, and change no sum: so what all workers of a
checkpoint have together is each step of each worker once, if and only if no half of an average is
in it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from psrt.checkpoint import Disk, Manifest, read_part
from psrt.config import TrainConfig
from psrt.config.modes import Gossip
from psrt.core.errors import ConfigError, StoppedError
from psrt.core.messages import Mix, Park
from psrt.history.check.run import check_run
from psrt.job.boundaries import Boundaries
from psrt.job.recorded import recorded_config
from psrt.job.resuming import resumed_config
from psrt.job.virtual import simulate
from psrt.runtime.strategies.pair_gossip import PairGossip
from psrt.simulation.port import VirtualPort
from support.cases import each

#: By name, the graph and the steps of each worker.
JOBS = {
    "two, uneven": ("ring", (2, 9)),
    "ring": ("ring", (6, 6, 6, 6)),
    "ring, uneven": ("ring", (9, 2, 5, 3)),
    "star whose middle is done": ("star", (2, 9, 4, 7)),
    "torus": ("torus", (4, 5, 6, 7)),
}


class Ticks:
    """Each step of a worker ticks off an element of its own."""

    def __init__(self, steps):
        self.steps, self.taken = steps, []

    def initial(self):
        return np.zeros(len(self.steps) * max(self.steps), np.float32)

    def batches(self, worker, workers, epoch):
        return [(worker, i) for i in range(self.steps[worker])]

    def samples(self, batch):
        return 1

    def loss_and_grad(self, theta, batch, out):
        self.taken.append(batch)
        out[:] = 0
        out.reshape(len(self.steps), -1)[batch] = -1
        return 0.5

    def evaluate(self, theta):
        return {}


def config_of(folder, job, **more):
    return TrainConfig(
        **{
            "mode": Gossip(JOBS[job][0], "pairs"), "batch_size": 1, "epochs": 1, "lr": 1.0,
            "optimizer": "sgd", "out": str(folder / "run"),
            "checkpoint_every": 2, "keep": 1000, "inject": ("*:jitter:0.5", "0:delay:0.4"),
            "record": True, "log_every": 2,
        }
        | more
    )  # fmt: skip


def saved(out):
    """Return by step the trees of the workers of each checkpoint of a run."""
    found = {}
    for folder in sorted((Path(out) / "checkpoints").iterdir()):
        manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
        found[manifest.step] = [read_part(Disk(), folder, it)["role"] for it in manifest.parts]
    return found


def clocks_in(roles):
    return [it["clock"] for it in roles]


def check_sum(vectors, clocks, steps):
    """Check that all workers together have each step up to these clocks once, and no other."""
    found = sum(it.astype(np.float64) for it in vectors).reshape(len(steps), -1)
    due = np.arange(max(steps)) < np.array(clocks)[:, None]
    assert np.allclose(found, due, atol=1e-5), "half of an average was saved, or a step was lost"


def check_cuts(out, steps):
    """Check the run and all its checkpoints; return them."""
    outcome = check_run(out)
    assert outcome.ok, "\n".join(outcome.lines())
    cuts = saved(out)
    for roles in cuts.values():
        check_sum([it["strategy"]["vector"] for it in roles], clocks_in(roles), steps)
    return cuts


def run_of(folder, job, *, seed=0, **more):
    steps = JOBS[job][1]
    problem = Ticks(steps)
    run = simulate(config_of(folder, job, **more), problem, workers=len(steps), seed=seed)
    check_sum([it.theta for it in run.workers], steps, steps)
    return run


def resumed(folder, job, step, again, *, seed=50, **more):
    """Go on from a checkpoint in a copy of the run, as if it had died right after it."""
    steps, out = JOBS[job][1], folder / again
    shutil.copytree(folder / "run", out)
    for it in (out / "checkpoints").iterdir():
        if int(it.name) > step:
            shutil.rmtree(it)
    clocks, problem = clocks_in(saved(out)[step]), Ticks(steps)
    config = resumed_config(str(out), out=str(out), record=True, **more)
    run = simulate(config, problem, workers=len(steps), seed=seed)
    left = [range(*it) for it in zip(clocks, steps, strict=True)]
    assert sorted(problem.taken) == [(i, at) for i, its in enumerate(left) for at in its]
    check_sum([it.theta for it in run.workers], steps, steps)
    assert run.summary.samples == sum(steps)
    check_cuts(out, steps)
    return run


def deafened(told):
    """Have only one worker learn of checkpoints by itself, others of their neighbours."""
    step = PairGossip.step

    async def deaf(self, it):
        if told is not None and self.call is not None and self._pairs.worker != told:
            self.call = lambda clock, last: 0
        return await step(self, it)

    return mock.patch.object(PairGossip, "step", deaf)


def judge(folder, job, *, seed=0, every=2, most=None, told=None):
    """Train, go on from each checkpoint, and check all of it; return the steps that were saved."""
    with deafened(told):
        run_of(folder, job, seed=seed, checkpoint_every=every)
    cuts = list(check_cuts(folder / "run", JOBS[job][1]))
    for step in cuts[-most if most else 0 :]:
        resumed(folder, job, step, f"from-{step}", seed=seed + 50)
    return cuts


@each(("job", "told"), [("star whose middle is done", None), ("ring", 2)])
def test_no_half_of_an_average_is_saved(tmp_path, job, told):
    """Nor is it where workers learn of it by one of their neighbours."""
    assert len(judge(tmp_path / job, job, seed=1, most=1, told=told)) >= 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("job", JOBS)
def test_it_is_so_at_every_checkpoint_in_many_orders(tmp_path, job, every):
    for seed in range(12):
        steps = JOBS[job][1]
        told = steps.index(max(steps)) if seed % 2 else None
        assert judge(tmp_path / str(seed), job, seed=seed, every=every, told=told)


def test_workers_are_saved_at_steps_of_their_own_and_the_fastest_names_them(tmp_path):
    """A longer run goes on only from before somebody was done."""
    run_of(tmp_path, "two, uneven", checkpoint_every=3)
    cuts = saved(tmp_path / "run")
    assert [(step, max(clocks_in(it))) for step, it in cuts.items()] == [(3, 3), (6, 6), (9, 9)]
    assert any(len(set(clocks_in(it))) > 1 for it in cuts.values())
    where = str(tmp_path / "run" / "checkpoints" / "00000009")
    config = resumed_config(where, out=str(tmp_path / "longer"), epochs=2, record=False)
    with pytest.raises(ConfigError, match="a longer run resumes from an earlier checkpoint"):
        simulate(config, Ticks((2, 9)), workers=2)


def test_who_was_done_says_so_again_and_is_asked_nothing(tmp_path):
    run_of(tmp_path, "ring, uneven")
    step, roles = list(saved(tmp_path / "run").items())[-1]
    assert roles[1]["has_left"]
    assert roles[0]["strategy"]["pairs"]["left"]["1"] == 2
    sent, send = [], VirtualPort.send

    def sending(self, to, message, region=-1):
        sent.append((to, message))
        send(self, to, message, region)

    with mock.patch.object(VirtualPort, "send", sending):
        run = resumed(tmp_path, "ring, uneven", step, "on")
    assert not any(to == 1 and isinstance(it, Mix | Park) for to, it in sent)
    assert run.workers[0].stats.left[1] == 2


def test_a_run_that_is_stopped_goes_on_as_if_it_were_not(tmp_path):
    call, steps = Boundaries.call, JOBS["ring"][1]

    def asked(self, clock, last):
        if clock >= 3:
            self.ask(stop=True)
        return call(self, clock, last)

    with mock.patch.object(Boundaries, "call", asked), pytest.raises(StoppedError) as caught:
        run_of(tmp_path, "ring", checkpoint_every=100)
    ((step, roles),) = saved(tmp_path / "run").items()
    check_sum([it["strategy"]["vector"] for it in roles], clocks_in(roles), steps)
    assert f"--resume continues from step {step}, " in str(caught.value)
    assert max(clocks_in(roles)) < max(steps)
    resumed(tmp_path, "ring", step, "on")


def test_a_run_with_checkpoints_is_repeated_to_the_bit(tmp_path):
    """So is one that went on from one."""
    steps = JOBS["ring, uneven"][1]
    run_of(tmp_path, "ring, uneven", seed=3)
    resumed(tmp_path, "ring, uneven", list(saved(tmp_path / "run"))[-1], "on", seed=8)
    for out in ("run", "on"):
        # The replay itself refuses parameters that are not those of the run.
        simulate(recorded_config(tmp_path / out), Ticks(steps), workers=len(steps), seed=99)
