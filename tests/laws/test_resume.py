"""Law: a job that saves resumes from any of its checkpoints as if it had never been interrupted.

Promised in docs/checkpoints.md, "What is promised": where workers keep in step, to the same bits
and figures, and a history with the same events; elsewhere each push counts once over both attempts,
and the history is one that keeps the contract.

Seen red: residuals of sums, tracked gradients, or pushes that wait for their update that are not
saved; a batch that is taken again; an event at the time minus infinity.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.history import Kind
from psrt.history.check.run import check_run
from psrt.history.reading import read_cells
from psrt.job.resuming import resumed_config
from psrt.job.scenario import run_in_virtual_time
from psrt.job.virtual import simulate
from support.jobs import OTHER_COSTS, plain, ran
from support.least_squares import UnevenSquares
from support.ticks import (
    Ticks,
    config_of,
    cuts_of,
    drawn,
    has_cuts,
    one_of_each_mode,
    order_of,
    reached,
    savers,
    saves,
    table_of,
    ticked,
    ticking,
    weights_of,
)

#: Of a summary, what is about its time, and why something was chosen: from the costs.
APART = ("seconds", "samples_per_second", "waiting", "environment", "allreduce_why", "shards_why")
#: Events whose ``seconds`` are no times.
_ROUNDED = (Kind.DRAW, Kind.RESIDUAL)


def told(out):
    """Return by worker and shard all events but their times, in the order of their contents.

    What comes at the same time comes in any order.
    """
    tables = []
    for history in read_cells(out)[1]:
        for table in (*history.workers, *history.shards):
            events = table.copy()
            events["time"] = 0
            events["seconds"][~np.isin(events["kind"], _ROUNDED)] = 0
            tables.append(sorted(event.tobytes() for event in events))
    return tables


def figures(run):
    """Return the figures of the whole run; what vectors took at most is of this attempt."""
    found = dataclasses.asdict(run.summary)
    if found["model_cut"] is not None:
        del found["model_cut"]["memory"]
    return {name: it for name, it in found.items() if name not in APART}


#: Jobs that save, and train what keeps books.
TICKING = [it.but(event="saves") for it in ticking() if saves(it)]


def resumes(job, whole, cut, out):
    """Hold what comes of a cut against the run that was not interrupted there."""
    config = resumed_config(str(cut), out=str(out))
    run = run_in_virtual_time(config, dataclasses.replace(job.scenario(), costs=OTHER_COSTS))
    outcome = check_run(out)
    assert outcome.ok, "\n".join([cut.name, *outcome.lines()])
    if job.in_order:
        assert run.theta.tobytes() == whole.run.theta.tobytes(), cut.name
        assert figures(run) == figures(whole.run), cut.name
        assert told(out) == told(whole.out), cut.name
    else:
        for name in ("epochs", "steps", "samples"):
            mine, its = getattr(run.summary, name), getattr(whole.run.summary, name)
            assert mine == its or job["mode"] == "backup", (cut.name, name)


@pytest.mark.of(which=has_cuts)
@pytest.mark.first(which=savers(has_cuts).__contains__)
def test_it_ends_as_if_never_interrupted(job, result, tmp_path):
    job = job.but(event="saves")
    whole = result(job)
    cuts = cuts_of(whole.out, whole.run)
    for i in drawn(job, among=len(cuts)):
        resumes(job, whole, cuts[i], tmp_path / cuts[i].name)


@pytest.mark.exhaustive
@pytest.mark.of(which=has_cuts)
def test_it_does_so_from_every_cut(job, result, tmp_path):
    job = job.but(event="saves")
    whole = result(job)
    for cut in cuts_of(whole.out, whole.run):
        resumes(job, whole, cut, tmp_path / cut.name)


@pytest.mark.parametrize("knobs", ["", ",sync-delay=3", ",sync-delay=3,grace=auto"])
def test_learners_report_their_paces_again(knobs, tmp_path):
    job = plain(mode="learners", copies="5", way="2 servers", event="saves")
    mode = f"local-sgd:local-steps=4,quorum=2,dynamic=true{knobs}"
    whole = ran(job, tmp_path / "run", mode=mode, inject=("0:slow:2", "*:jitter:0.001"))
    for cut in cuts_of(whole.out, whole.run):
        resumes(job, whole, cut, tmp_path / cut.name)


def test_ranks_stop_together_where_rounds_become_shorter_than_a_delay(tmp_path):
    # The first rank of a learner has seen an answer, and so that all are to stop, before others.
    job = plain(mode="teams", copies="3", way="1 server", event="saves")
    mode = "local-sgd:local-steps=4,learner-ranks=2,quorum=1,sync-delay=3,dynamic=true"
    slow = ("0:slow:4", "1:slow:4", "*:jitter:0.001")
    whole = ran(job, tmp_path / "run", mode=mode, inject=slow, epochs=4)
    assert whole.error is None, whole.error
    for cut in cuts_of(whole.out, whole.run)[::4]:
        resumes(job, whole, cut, tmp_path / cut.name)


@pytest.mark.parametrize("knobs", ["", ",quorum=1", ",sync-delay=1"])
def test_ranks_of_a_learner_have_more_and_fewer_steps(knobs, tmp_path):
    # Those that are done take part in the steps of the others, and in their stops.
    mode = f"local-sgd:local-steps=2,learner-ranks=2{knobs}"
    config = TrainConfig(
        mode=mode, servers=1, batch_size=3, epochs=2, out=str(tmp_path / "run"), record=True,
        checkpoint_every=1, keep=1000,
    )  # fmt: skip
    whole = simulate(config, UnevenSquares(), workers=4)
    cuts = cuts_of(tmp_path / "run", whole)
    assert len(cuts) > 3
    for cut in cuts:
        out = tmp_path / cut.name
        run = simulate(resumed_config(str(cut), out=str(out)), UnevenSquares(), workers=4)
        outcome = check_run(out)
        assert outcome.ok, "\n".join([cut.name, *outcome.lines()])
        assert run.summary.samples == whole.summary.samples
        if not knobs:
            assert run.theta.tobytes() == whole.theta.tobytes()


def counts_once(job, folder, *, every):
    """Hold each gradient of both attempts against the parameters.

    Args:
        job: that trains ``Ticks``.
        folder: to use.
        every: whether to try all cuts; else two.
    """
    problem, scenario = Ticks(), job.scenario()
    whole = run_in_virtual_time(config_of(job, folder / "run"), scenario, problem)
    cuts = cuts_of(folder / "run", whole)
    for i in range(len(cuts)) if every else drawn(job, among=len(cuts), count=2):
        problem.attempt, problem.computed = 1, []
        config = resumed_config(str(cuts[i]), out=str(folder / cuts[i].name))
        run = run_in_virtual_time(config, dataclasses.replace(scenario, costs=OTHER_COSTS), problem)
        table = table_of(run)
        there = ticked(table, weights_of(job, [job.copies]))
        before, after = there[:, 0], there[:, 1]
        again = [it[1:] for it in problem.computed]
        assert len({*again}) == len(again), "a gradient was computed twice"
        if job["mode"] == "backup":  # which leaves out what is late; each update weighs 1
            assert not (before & after).any()
            np.testing.assert_allclose(table.sum((1, 2, 3)), run.summary.updates, rtol=1e-4)
            continue
        for row in after:
            assert {tuple(it) for it in np.argwhere(row).tolist()} == {*again}
        assert (before ^ after).all(), "a push is lost, or there twice"
        for place in range(job.copies):
            assert len({*reached(before, place, job.copies)}) == 1, "shards had other pushes"
            left = {*order_of(place, job.copies)}
            assert [it for it in again if it in left] == sorted(left.intersection(again))


@pytest.mark.parametrize("books", one_of_each_mode(TICKING))
def test_each_push_counts_once(books, tmp_path):
    counts_once(books, tmp_path, every=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("books", TICKING, ids=str)
def test_it_does_so_from_each_cut(books, tmp_path):
    counts_once(books, tmp_path, every=True)
