"""Checkpoints of gossip without rounds, and runs that go on from them.

The problem is the oracle: each gradient is −1 at an element of its worker and step, and 0
elsewhere. Averages move ticks between workers, and change no sum: so what all workers of a
checkpoint have together is each step of each worker once, if and only if no half of an average is
in it.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from psrt.checkpoint import Disk, Manifest, read_part
from psrt.config import TrainConfig
from psrt.errors import ConfigError, PsrtError, StoppedError
from psrt.history import Kind, read_history
from psrt.history.check import check
from psrt.history.check.findings import CAUSALITY, DURATIONS, FIELDS, NEIGHBOURS, TURNS
from psrt.history.check.run import check_run
from psrt.job.initiator import Initiator
from psrt.job.recorded import recorded_config
from psrt.job.resuming import resumed_config
from psrt.job.virtual import simulate
from psrt.messages import Mix, Park
from psrt.runtime.strategies.base import Strategy
from psrt.runtime.strategies.pair_cut import PairCut
from psrt.runtime.strategies.pair_gossip import PairGossip
from psrt.runtime.strategies.pairs import Pairs
from psrt.runtime.worker import Worker
from psrt.simulation.port import VirtualPort
from support.cases import each

#: Worker 0 is slow, all are uneven.
DELAYS = ("*:jitter:0.5", "0:delay:0.4")
#: By name, the graph and the steps of each worker; a path where none is named.
JOBS = {
    "two": ("ring", (7, 7)),
    "two, uneven": ("ring", (2, 9)),
    "ring": ("ring", (6, 6, 6, 6)),
    "ring, uneven": ("ring", (9, 2, 5, 3)),
    "ring of six": ("ring", (5, 8, 5, 8, 3, 8)),
    "star": ("star", (6, 6, 6, 6, 6)),
    "star whose middle is done": ("star", (2, 9, 4, 7)),
    "path": ("", (6, 6, 6)),
    "path that falls apart": ("", (8, 9, 2, 7, 9, 9)),
    "torus": ("torus", (4, 5, 6, 7)),
    "full": ("full-bipartite", (5, 6, 7, 4, 6, 5)),
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


def graph_of(name, workers, folder):
    """Return a topology, in a file where it has no name of its own."""
    if name == "":
        edges = [(i, i + 1) for i in range(workers - 1)]
    elif name == "full-bipartite":
        edges = [(i, j) for i in range(0, workers, 2) for j in range(1, workers, 2)]
    else:
        return name
    path = folder / "edges"
    path.write_text("".join(f"{a} {b}\n" for a, b in edges))
    return str(path)


def config_of(folder, job, **more):
    graph, steps = JOBS[job]
    folder.mkdir(parents=True, exist_ok=True)
    return TrainConfig(
        **{
            "mode": "gossip", "asynchronous": True, "batch_size": 1, "epochs": 1, "lr": 1.0,
            "topology": graph_of(graph, len(steps), folder), "optimizer": "sgd",
            "out": str(folder / "run"), "checkpoint_every": 2, "keep": 1000, "inject": DELAYS,
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


def check_cuts(out, steps, after=0):
    """Check all checkpoints of a run; return them."""
    cuts = saved(out)
    for step, roles in cuts.items():
        assert step <= after or step <= max(steps) + len(cuts)
        check_sum([it["strategy"]["vector"] for it in roles], clocks_in(roles), steps)
    return cuts


def check_whole(out):
    outcome = check_run(out)
    assert outcome.ok, "\n".join(outcome.lines())


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
    check_whole(out)
    assert all(it > step for it in set(check_cuts(out, steps, step)) - set(saved(folder / "run")))
    return run


def judge(folder, job, *, seed=0, every=2, most=None, told=None):
    """Train, go on from each checkpoint, and check all of it; return the steps that were saved."""
    with only_told(told):
        run_of(folder, job, seed=seed, checkpoint_every=every)
        check_whole(folder / "run")
        cuts = check_cuts(folder / "run", JOBS[job][1])
        for step in list(cuts)[-most if most else 0 :]:
            resumed(folder, job, step, f"from-{step}", seed=seed + 50)
    return list(cuts)


@contextmanager
def only_told(worker):
    """Have only one worker learn of checkpoints by itself, others of their neighbours."""
    step = PairGossip.step

    async def deaf(self, it):
        if self.call is not None and self._pairs.worker != worker:
            self.call = lambda clock, last: 0
        return await step(self, it)

    if worker is None:
        yield
        return
    with mock.patch.object(PairGossip, "step", deaf):
        yield


@each("job", ["two", "ring, uneven", "star whose middle is done", "path"])
def test_no_half_of_an_average_is_saved(tmp_path, job):
    assert len(judge(tmp_path / job, job, seed=1, most=1)) >= 2


@each("told", [0, 2])
def test_neighbours_learn_of_one_another(tmp_path, told):
    assert len(judge(tmp_path / f"{told}", "ring", seed=told, most=1, told=told)) >= 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("job", JOBS)
def test_it_is_so_at_every_checkpoint_in_many_orders(tmp_path, job, every):
    for seed in range(12):
        steps = JOBS[job][1]
        told = steps.index(max(steps)) if seed % 2 else None
        assert judge(tmp_path / str(seed), job, seed=seed, every=every, told=told)


def test_workers_are_saved_at_steps_of_their_own(tmp_path):
    run_of(tmp_path, "ring", seed=1)
    assert any(len(set(clocks_in(it))) > 1 for it in saved(tmp_path / "run").values())


def test_a_step_is_named_by_the_fastest_worker(tmp_path):
    run_of(tmp_path, "two, uneven", checkpoint_every=3)
    cuts = saved(tmp_path / "run")
    assert list(cuts) == [3, 6, 9]
    assert [max(clocks_in(it)) for it in cuts.values()] == [3, 6, 9]


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


def test_a_longer_run_goes_on_only_from_before_somebody_was_done(tmp_path):
    run_of(tmp_path, "two, uneven")
    steps = list(saved(tmp_path / "run"))
    where = str(tmp_path / "run" / "checkpoints" / f"{steps[-1]:08d}")
    config = resumed_config(where, out=str(tmp_path / "longer"), epochs=2, record=False)
    with pytest.raises(ConfigError, match="a longer run resumes from an earlier checkpoint"):
        simulate(config, Ticks((2, 9)), workers=2)


def test_other_workers_are_refused(tmp_path):
    run_of(tmp_path, "ring")
    config = resumed_config(str(tmp_path / "run"), out=str(tmp_path / "on"), record=False)
    with pytest.raises(ConfigError, match="2 workers instead of 4"):
        simulate(config, Ticks((6, 6, 6, 6)), workers=2)


@each("job", ["two", "ring", "path"])
def test_a_run_that_is_stopped_goes_on_as_if_it_were_not(tmp_path, job):
    folder, call, steps = tmp_path / job, Initiator.call, JOBS[job][1]

    def asked(self, clock, last):
        if clock >= 3:
            self.ask(stop=True)
        return call(self, clock, last)

    with mock.patch.object(Initiator, "call", asked), pytest.raises(StoppedError) as caught:
        run_of(folder, job, checkpoint_every=100)
    ((step, roles),) = check_cuts(folder / "run", steps).items()
    assert f"--resume goes on from step {step}, " in str(caught.value)
    assert max(clocks_in(roles)) < max(steps)
    resumed(folder, job, step, "on")


@each("job", ["ring", "star", "path", "star whose middle is done"])
def test_a_worker_that_dies_holds_nobody(tmp_path, job):
    """Whatever was saved before is whole; there are no more checkpoints, and a line says so."""
    steps = JOBS[job][1]
    for i in range(0, 24, 5):
        folder, said = tmp_path / f"{job} {i}", []
        config = config_of(folder, job, checkpoint_every=1)
        worker = i % (len(steps) - 1) + 1
        run = simulate(
            config, Ticks(steps), workers=len(steps), seed=i, say=said.append,
            crashes=[(worker, 0.1 + 0.15 * i)],
        )  # fmt: skip
        clocks = [it.clock for it in run.workers]
        assert [it for at, it in enumerate(clocks) if at != worker] == [
            it for at, it in enumerate(steps) if at != worker
        ]
        check_whole(folder / "run")
        cuts = check_cuts(folder / "run", steps)
        if run.world.crashed and len(cuts) < max(steps):
            assert any(it.endswith("goes on without a worker: no more checkpoints") for it in said)


@each("job", ["ring, uneven", "star"])
def test_a_run_with_checkpoints_is_repeated_to_the_bit(tmp_path, job):
    """So is one that went on from one."""
    folder, steps = tmp_path / job, JOBS[job][1]
    run_of(folder, job, seed=3)
    step = list(saved(folder / "run"))[-1]
    resumed(folder, job, step, "on", seed=8)
    for out in ("run", "on"):
        # The replay itself refuses parameters that are not those of the run.
        simulate(recorded_config(folder / out), Ticks(steps), workers=len(steps), seed=99)


def parks_of(history, worker):
    return np.flatnonzero(history.workers[worker]["kind"] == Kind.PARK)


def moved(history):
    """A stop comes before the average that was before it."""
    for worker, events in enumerate(history.workers):
        for at in parks_of(history, worker).tolist():
            if at >= 3 and events["kind"][at - 1] == Kind.MIXED:
                times = events["time"][at - 3 : at + 1].copy()
                events[at - 3 : at + 1] = events[[at, at - 3, at - 2, at - 1]]
                events["time"][at - 3 : at + 1] = times
                events["seconds"][at - 3] = 0
                return


def changed(name, by):
    def change(history):
        history.workers[1][name][parks_of(history, 1)[-1]] += by

    return change


BROKEN = {
    "an average is across a stop": (moved, CAUSALITY),
    "a stop is for another step": (changed("version", 1), CAUSALITY),
    "it is at another step of its worker": (changed("clock", 1), TURNS),
    "nobody was told": (changed("samples", -9), FIELDS),
    "too few were told": (changed("samples", -1), NEIGHBOURS),
    "more were told than there are": (changed("samples", 3), NEIGHBOURS),
    "it took longer than the time since the step": (changed("seconds", 99), DURATIONS),
    "a stop has no number of an offer": (changed("tau", 1), FIELDS),
}


@each("name", list(BROKEN))
def test_a_history_with_another_stop_is_refuted(tmp_path, name):
    run_of(tmp_path / name, "ring", seed=1)
    history, (mutate, rule) = read_history(tmp_path / name / "run"), BROKEN[name]
    assert check(history).ok
    events = tuple(it.copy() for it in history.workers)
    broken = replace(history, workers=events)
    mutate(broken)
    found = check(broken).violation
    assert found is not None
    assert found.rule == rule, found


def handles_at_once(mp):
    puts_aside = PairCut.puts_aside

    def puts(self, message):
        return type(message) is not Mix and puts_aside(self, message)

    mp.setattr(PairCut, "puts_aside", puts)


def saves_with_an_open_offer(mp):
    """Nobody waits for the answer, which is then taken by who had it in no checkpoint."""
    come_to = PairGossip._come_to

    async def coming(self, cut, clock):
        offer, self._pairs.open = self._pairs.open, None
        handle = self._handle

        async def handles(message, *rest):
            if type(message) is Mix and self._pairs.asks:
                self._next.aside.append(message)
                return False
            return await handle(message, *rest)

        self._handle = handles
        await come_to(self, cut, clock)
        del self._handle
        self.unanswered = offer

    park = PairGossip.park

    async def parks(self, clock):
        if self._pairs.open is None:
            self._pairs.open = self.unanswered
        await park(self, clock)

    mp.setattr(PairGossip, "_come_to", coming)
    mp.setattr(PairGossip, "park", parks)


def late_answers_are_ignored(mp):
    handle = PairGossip._handle

    async def handles(self, message, clock, waited=0.0):
        if type(message) is Mix and self._pairs.asks and message.worker in self._next._parked:
            self._pairs.open = None
            return False
        return await handle(self, message, clock, waited)

    mp.setattr(PairGossip, "_handle", handles)


def what_was_put_aside_is_lost(mp):
    end = PairCut.end
    mp.setattr(PairCut, "end", lambda self: end(self)[:0])


def saved_before_neighbours_have_come(mp):
    mp.setattr(PairCut, "is_complete", lambda self, training: True)


def ends_with_an_open_offer(mp):
    async def finish(self):
        self._ended = self._port.now()
        return ()

    mp.setattr(PairGossip, "finish", finish)
    mp.setattr(PairGossip, "vector", property(lambda self: self._theta))


def forgets(kind, name):
    return lambda mp: mp.setattr(kind, "saved", tuple(it for it in kind.saved if it != name))


def counts_twice(mp):
    mp.setattr(PairGossip, "early_bytes", 0)


def is_silent_when_it_goes_on(mp):
    leave = PairGossip.leave

    async def leaves(self, clock):
        if clock == self.began:
            return await Strategy.leave(self, clock) or ()
        return await leave(self, clock)

    go_on = PairGossip.go_on

    def goes_on(self, clock):
        self.began = clock
        go_on(self, clock)

    mp.setattr(PairGossip, "began", -1, raising=False)
    mp.setattr(PairGossip, "go_on", goes_on)
    mp.setattr(PairGossip, "leave", leaves)


MUTANTS = {
    "an offer that comes after its sender's Park is taken at once": handles_at_once,
    "a worker is saved with an open offer": saves_with_an_open_offer,
    "an answer that comes after its sender's Park is ignored": late_answers_are_ignored,
    "what was put aside is lost": what_was_put_aside_is_lost,
    "a worker is saved before its neighbours have come": saved_before_neighbours_have_come,
    "a worker is saved at its end with an open offer": ends_with_an_open_offer,
    "who has left is forgotten": forgets(Pairs, "left"),
    "offers begin anew": forgets(Pairs, "made"),
    "staleness is forgotten": forgets(PairGossip, "taus"),
    "gaps are forgotten": forgets(PairGossip, "gaps"),
    "the place in the data is forgotten": forgets(Worker, "_taken"),
    "bytes are counted twice": counts_twice,
    "who has left says nothing": is_silent_when_it_goes_on,
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.one_in(12)
def test_the_oracle_finds(tmp_path, monkeypatch, name):
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, PsrtError, KeyError, ValueError)):
        judged(tmp_path)


def judged(folder):
    for seed in range(8):
        for job in ("ring, uneven", "ring", "path"):
            judge(folder / f"{job} {seed}", job, seed=seed, every=1 + seed % 2)
