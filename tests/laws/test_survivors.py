"""Law: who dies is named, and costs the others nothing that they could have kept.

Promised in docs/failures.md and docs/checkpoints.md: with servers, and among neighbours, the others
continue, whatever the moment; nothing that was acknowledged is lost; under --survive each sample of
an epoch is dealt once. Where others cannot continue, one line names who died. A job that is killed
and restarted ends with the bits of one that was not.

Seen red: a server that drops what a dead worker was answered for, workers that decide for
themselves who is left, a line that does not say who died, a batch that is taken again after a
restart; and, of all events, torn steps that are not counted.
"""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.config.faults import EVENT, Fault
from psrt.core.errors import TransportError
from psrt.history.check.run import check_run
from psrt.job.problems import supervised_problem
from psrt.job.scenario import run_in_virtual_time
from psrt.job.virtual import simulate
from support.jobs import BASE, MIXED, SPLIT, ran
from support.ticks import (
    Ticks,
    config_of,
    drawn,
    one_of_each_mode,
    reached,
    table_of,
    ticked,
    ticking,
    weights_of,
)


def crash(event, *ranks):
    return Fault("crash", ranks, EVENT, float(event))


def crashed_in(out):
    """Return the workers that died, as the run's files say."""
    return json.loads((out / "simulation.json").read_text())["crashed"]


def along(job, worker):
    """Return the workers that die if one does: two are a learner, or each is."""
    first = worker - worker % 2
    return [first, first + 1] if job["mode"] == "teams" else [worker]


def goes_on(job, worker=None):
    """Whether the others continue without a worker, or without any at all.

    Each has all that they need, and with servers rank 0 must live: it writes the files.
    """
    lost = [] if worker is None else along(job, worker)
    if 0 in lost and job.served and rank_of(job, 0) == 0:
        return False
    needs_all = job["cut"] in SPLIT or not (job.served or job["mode"] in MIXED)
    return job.copies > 1 and not needs_all


def rank_of(job, worker):
    """Return the rank of a worker of a job whose model is whole; servers come first, or last."""
    knobs = job.knobs()
    first = knobs.get("placement") != "last"
    return worker + (knobs.get("servers", 1) if job.served and first else 0)


def mortal(job):
    """Return the workers without whom the others continue."""
    return [it for it in range(job.copies) if goes_on(job, it)]


def names(job, worker, error):
    """Check that one line says which worker died."""
    assert isinstance(error, TransportError), error
    line = str(error)
    assert "\n" not in line
    place, rank = (
        (", ", "(rank ")
        if job["cut"] in SPLIT
        else (" ", f"(rank {rank_of(job, worker)}) crashed at ")
    )
    assert line.startswith(f"worker {worker}{place}")
    assert rank in line
    assert " crashed at " in line


@pytest.mark.first(which=lambda job: job["event"] == "none")
@pytest.mark.one_in(6)
def test_a_worker_dies_at_any_event(job, result, tmp_path):
    job = job.but(event="none")
    before = result(job).run
    for event in drawn(job, among=before.events, count=2):
        (worker,) = drawn(job, event, among=job.workers)
        scenario = job.scenario(faults=(crash(event + 1, ("worker", worker)),))
        found = ran(job, tmp_path / f"{event}", scenario)
        if found.error is not None:
            assert not goes_on(job, worker), found.error
            names(job, worker, found.error)
            continue
        dead = crashed_in(found.out)
        assert dead in (along(job, worker), []) if goes_on(job, worker) else dead == []
        assert np.isfinite(found.run.theta).all()
        outcome = check_run(found.out)
        assert outcome.ok, "\n".join([f"event {event}", *outcome.lines()])
        if not dead:  # it had ended
            assert found.run.theta.tobytes() == before.theta.tobytes()


#: Jobs that continue without a worker, and train what keeps books. What a neighbour has not yet
#: shared is lost with it.
TICKING = [it for it in ticking() if it.served and goes_on(it)]


#: In local SGD other batches make periods of other lengths, and so other weights of a gradient.
DEALT_AGAIN = [it for it in TICKING if it["mode"] != "local"]


def loses_no_push(job, folder, events, *, survive):
    """Have workers die before an event each, and hold all that was computed against the result."""
    for event in events:
        problem = Ticks()
        worker = mortal(job)[drawn(job, event, among=len(mortal(job)))[0]]
        scenario = job.scenario(faults=(crash(event + 1, ("worker", worker)),))
        config = config_of(job, folder / f"{event}", record=True, survive=survive or None)
        run = run_in_virtual_time(config, scenario, problem)
        outcome = check_run(folder / f"{event}")
        assert outcome.ok, "\n".join(outcome.lines())
        # Of the last step of an epoch that was dealt out again there may be any number of pushes.
        left = range(1 if survive else job.copies - 1, job.copies + 1)
        there = ticked(table_of(run), weights_of(job, left))[:, 0]
        dead = crashed_in(folder / f"{event}")
        computed = {it[1:] for it in problem.computed}
        assert len(computed) == len(problem.computed), "a sample was trained on twice"
        assert {tuple(it) for it in np.argwhere(there.any(0)).tolist()} <= computed
        if survive:
            deals_each_sample_once(problem, dead)
        if job["mode"] == "backup":  # which leaves out what is late
            continue
        kept = {tuple(it) for it in np.argwhere(there.all(0)).tolist()}
        period = 3 if job["mode"] in ("local", "learners") else 1
        assert len(computed - kept) <= period * len(dead), "more is lost than the last push"
        if not survive:
            torn = keeps_what_was_acknowledged(job, run, there, dead)
            assert torn == run.summary.torn


def keeps_what_was_acknowledged(job, run, there, dead):
    """Check that all of the living is there; return the steps of the dead that some shards have."""
    torn, period = 0, 3 if job["mode"] in ("local", "learners") else 1
    for place in range(job.copies):
        counts, clock = reached(there, place, job.copies), run.workers[place].clock
        if place not in dead:
            assert {*counts} == {clock}
            continue
        answered = clock // period * period
        assert all(answered <= it <= clock + period for it in counts), (clock, counts)
        torn += -((min(counts) - max(counts)) // period)  # the last push may have fewer steps
    return torn


def deals_each_sample_once(problem, dead):
    """Check who asked for the batches of an epoch, and that together they have all of it."""
    asked = defaultdict(list)
    for _, epoch, place, among in problem.asked:
        asked[epoch].append((place, among))
    for found in asked.values():
        places = [place for place, _ in found]
        assert len({among for _, among in found}) == 1, "all know of the same workers"
        assert len({*places}) == len(places)
        assert found[0][1] - len(places) <= len(dead)


@pytest.mark.parametrize("books", one_of_each_mode(TICKING))
def test_no_push_is_lost_but_with_who_made_it(books, tmp_path):
    loses_no_push(books, tmp_path, drawn(books, among=300, count=3), survive=False)


@pytest.mark.parametrize("books", one_of_each_mode(DEALT_AGAIN))
def test_nor_is_it_under_survive(books, tmp_path):
    loses_no_push(books, tmp_path, drawn(books, among=300, count=3), survive=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("books", TICKING, ids=str)
def test_none_is_lost_at_any_event(books, tmp_path):
    loses_no_push(books, tmp_path, range(0, 400, 3), survive=False)
    if books in DEALT_AGAIN:
        loses_no_push(books, tmp_path, range(0, 400, 7), survive=True)


class Dealt:
    """A problem as psrt brings it along, and which samples were dealt out in an epoch."""

    def __init__(self, config, workers):
        self._inner, self._other = (supervised_problem(config, workers=workers) for _ in range(2))
        #: By epoch: (place, number of places, the bytes of each sample) of whoever asked.
        self.asked = defaultdict(list)

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def batches(self, place, among, epoch, *samples):
        rows = [
            row.tobytes()
            for inputs, _ in self._other.batches(place, among, epoch, *samples)
            for row in inputs
        ]
        self.asked[epoch].append((place, among, rows))
        return self._inner.batches(place, among, epoch, *samples)


def survives(job):
    """Whether there is a --survive: other workers at servers, each with a whole model."""
    return job.served and goes_on(job)


@pytest.mark.of(which=survives)
@pytest.mark.first(which=lambda job: job["event"] == "none")
@pytest.mark.one_in(4)
def test_survivors_are_dealt_each_sample_once(job, result, tmp_path):
    job = job.but(event="none")
    config = job.config(tmp_path / "run", survive=True, tune=None, epochs=4, record=True)
    (event,) = drawn(job, among=result(job).run.events)
    worker = mortal(job)[drawn(job, event, among=len(mortal(job)))[0]]
    problem = Dealt(config, job.workers)
    scenario = job.scenario(faults=(crash(event + 1, ("worker", worker)),))
    run_in_virtual_time(config, scenario, problem)
    outcome = check_run(tmp_path / "run")
    assert outcome.ok, "\n".join(outcome.lines())
    assert sorted(problem.asked) == [0, 1, 2, 3]
    whole = 0
    for found in problem.asked.values():
        places, among = [it[0] for it in found], {it[1] for it in found}
        assert len(among) == 1, "all know of the same workers"
        assert len({*places}) == len(places)
        samples = [it for _, _, rows in found for it in rows]
        assert len({*samples}) == len(samples), "a sample was dealt twice"
        if len(places) in among:
            assert len(samples) == 50
            whole += 1
        else:
            asked = len(along(job, worker))  # one may still have asked before it died
            assert min(among) - len(places) in range(1, asked + 1)
    # Where nobody waits for others, one that dies may be behind them by more than an epoch.
    assert whole >= (3 if job.in_order else 2)


def is_restarted(job):
    """Whether a job can be restarted; which event it has in the table does not matter."""
    return job.but(event="is killed").is_possible


def killed(job, event, out):
    """Kill a job before an event, and let it be restarted.

    A worker that others continue without does not end the job, so all die there at once.
    """
    everyone = [("worker", it) for it in range(job.workers)]
    who = everyone if job["mode"] in MIXED or event % 2 else [("rank", 0)]
    job = job.but(event="is killed")
    return ran(job, out, job.scenario(faults=(crash(event + 1, *who),)))


@pytest.mark.of(which=is_restarted)
@pytest.mark.first(which=lambda job: job["event"] == "saves")
def test_a_job_that_is_killed_ends_as_one_that_was_not(job, result, tmp_path):
    before = result(job.but(event="saves")).run
    for event in drawn(job, "killed", among=before.events):
        found = killed(job, event, tmp_path / f"{event}")
        assert found.error is None, (event, found.error)
        outcome = check_run(found.out)
        assert outcome.ok, "\n".join([f"event {event}", *outcome.lines()])
        if crashed_in(found.out):
            continue  # so late that the others were done
        for name in ("epochs", "steps", "samples"):
            mine, its = getattr(found.run.summary, name), getattr(before.summary, name)
            assert mine == its or job["mode"] == "backup", (event, name)
        if job.in_order:
            assert found.run.theta.tobytes() == before.theta.tobytes(), event


@pytest.mark.parametrize(
    ("seed", "crashes"),
    [(2, []), (10, [(1, 0.014477)]), (67, [(0, 0.02298)])],
    ids=["nobody", "one whose push was too late", "one whose merge is relayed afterwards"],
)
def test_learners_whose_late_fragments_are_dropped(seed, crashes, tmp_path):
    knobs = {"mode": "local-sgd:local-steps=3,quorum=1,fragments=3", "optimizer": "momentum"}
    assert_checked(tmp_path, 3, seed, crashes, staleness_rate="drop:limit=0", epochs=3, **knobs)


def test_a_rank_dies_when_the_others_of_its_learner_leave(tmp_path):
    mode = "local-sgd:local-steps=3,quorum=1,learner-ranks=2"
    assert_checked(tmp_path, 4, 1, [(3, 0.00527)], mode=mode, optimizer="momentum", epochs=1)


def assert_checked(out, workers, seed, crashes, **knobs):
    knobs = BASE | {"dataset": "synthetic:61x12x4", "batch_size": 5, "servers": 2} | knobs
    config = TrainConfig(**knobs, seed=seed, survive=True, out=str(out), record=True)
    simulate(config, workers=workers, seed=seed, crashes=crashes)
    outcome = check_run(out)
    assert outcome.ok, "\n".join(outcome.lines())
