"""Law: a run resumes with other servers and other workers where docs/checkpoints.md says so.

Promised there in the columns "other servers" and "other workers": to the same bits, to the same but
for rounding, to a legal run in which each push counts once, or it is refused in one line.

Seen red: pushes that wait for their update that are forgotten, a place in the epoch as if there
were as many workers as before, an optimizer whose state is zeros at other servers, residuals of
sums that other workers take for theirs.
"""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.job.resuming import resumed_config
from psrt.job.scenario import Scenario, run_in_virtual_time
from support.jobs import MIXED, SPLIT, refused_by
from support.ticks import (
    EPOCHS,
    SAMPLES,
    Ticks,
    config_of,
    cuts_of,
    drawn,
    has_cuts,
    one_of_each_mode,
    order_of,
    reached,
    savers,
    table_of,
    ticked,
    ticking,
    weights_of,
)

#: By the number of workers before, some after; a step has 4 W samples, which they can share evenly.
GROUPS = {1: (2,), 2: (1, 4), 3: (2, 4), 5: (2, 4)}
#: Codecs that treat each element by itself.
_ELEMENTWISE = ("none", "float16")
#: Who trains in rounds with servers.
_ROUNDS = ("sync", "local", "post-local", "easgd")


def can_have_others(job):
    """Whether others can be asked for: not where it has one worker, or its knobs name them."""
    return has_cuts(job) and job["mode"] != "serial" and "parallel" not in dict(job.more)


def has_servers(job):
    return can_have_others(job) and job.served and job["cut"] not in SPLIT


def is_bound(job):
    """Whether it cannot go on with other workers: each has something of its own, or parts."""
    return (
        job["mode"] in (*MIXED, "teams")
        or job["cut"] in SPLIT
        or (job["mode"] != "allreduce" and not job.served)
        or (not job.served and job.codec != "none")
    )


def is_rounded(job):
    """Whether other workers change nothing but the order of sums of the same samples."""
    return (
        job["mode"] in ("sync", "allreduce")
        and job.codec == "none"
        and job["data"] == "iid"
        and job["trim"] != "clip"
    )


def cut_of(whole, *what):
    """Return one of the checkpoints from which there is something left to do."""
    left = cuts_of(whole.out, whole.run)
    return left[drawn(*what, among=len(left))[0]]


def fits(job, workers):
    """Whether a mode, and its data, can have so many workers."""
    chosen = job.by_factor | {"copies": "2" if workers == 2 else "5" if workers > 2 else "1"}
    return refused_by(chosen) is None


def refused(cut, scenario, **changes):
    with pytest.raises(ConfigError) as refusal:
        run_in_virtual_time(resumed_config(str(cut), **changes), scenario)
    line = str(refusal.value)
    assert line.startswith(f"--resume {cut}")
    assert "\n" not in line
    assert " workers instead of " in line or "parallel" in line, line


@pytest.mark.of(which=can_have_others)
@pytest.mark.first(which=lambda job: job["event"] == "saves")
def test_with_other_workers(job, result, tmp_path):
    job = job.but(event="saves")
    whole = result(job)
    for after in GROUPS[job.copies]:
        if not fits(job, after):
            continue
        cut = cut_of(whole, job, after)
        ranks = after * job.workers // job.copies
        more = {"batch_size": 4 * job.copies // after, "record": False}
        if job["cut"] in SPLIT:
            more["parallel"] = job.knobs()["parallel"].replace(f"{job.copies},", f"{after},")
        out, scenario = str(tmp_path / f"{after}"), Scenario(ranks, hosts=job.hosts and (ranks,))
        if is_bound(job):
            refused(cut, scenario, out=out, **more)
            continue
        config = resumed_config(str(cut), out=out, **more)
        run = run_in_virtual_time(config, scenario)
        assert run.summary.epochs == whole.run.summary.epochs
        assert np.isfinite(run.theta).all()
        if is_rounded(job):
            assert run.summary.steps == whole.run.summary.steps
            assert run.summary.samples == whole.run.summary.samples
            np.testing.assert_allclose(run.theta, whole.run.theta, rtol=1e-3, atol=1e-4)


@pytest.mark.of(which=lambda job: can_have_others(job) and not is_bound(job) and is_rounded(job))
@pytest.mark.first(which=lambda job: job["event"] == "saves")
def test_a_line_that_had_not_come_yet_is_missed_in_no_total(job, result, tmp_path):
    """As where the host that told of it was cut off: the checkpoint says what it had told."""
    job = job.but(event="saves")
    whole = result(job)
    run = tmp_path / "run"
    shutil.copytree(whole.out, run)
    cut = cuts_of(run, whole.run)[-1]
    lines = (run / "metrics.jsonl").read_text().splitlines()
    before = [it for it in lines if json.loads(it)["step"] < int(cut.name)]
    assert before, "no line is behind it"
    (run / "metrics.jsonl").write_text("".join(f"{it}\n" for it in before[:-1]))
    for after in (job.copies, *(it for it in GROUPS[job.copies] if fits(job, it))):
        out, ranks = str(tmp_path / f"{after}"), after * job.workers // job.copies
        more = {"batch_size": 4 * job.copies // after, "record": False, "out": out}
        again = run_in_virtual_time(resumed_config(str(cut), **more), Scenario(ranks))
        assert again.summary.samples == whole.run.summary.samples, after


def other_servers(job):
    return [it for it in (1, 2, 3) if it != {"2 servers": 2, "1 server": 1}.get(job["way"])]


@pytest.mark.of(which=has_servers)
@pytest.mark.first(which=savers(has_servers, by_codec=False).__contains__)
def test_with_other_servers(job, result, tmp_path):
    job = job.but(event="saves")
    whole = result(job)
    for servers in other_servers(job):
        cut = cut_of(whole, job, servers)
        out = str(tmp_path / f"{servers}")
        config = resumed_config(str(cut), out=out, record=False, servers=servers)
        run = run_in_virtual_time(config, dataclasses.replace(job.scenario()))
        assert run.summary.epochs == whole.run.summary.epochs
        if job["mode"] != "backup":
            assert run.summary.samples == whole.run.summary.samples
        if job["mode"] in _ROUNDS and job.codec in (*_ELEMENTWISE, "bfloat16"):
            assert run.theta.tobytes() == whole.run.theta.tobytes(), servers
        assert np.isfinite(run.theta).all()


#: Jobs that other workers and servers can resume, and that train what keeps books.
TICKING = [
    it.but(event="saves") for it in ticking() if can_have_others(it) and not is_bound(it)
]  # fmt: skip


def counts_once(job, folder, after, servers, *, every):
    """Hold each gradient of both attempts against the parameters.

    Args:
        job: that trains ``Ticks``.
        folder: to use.
        after: the number of workers that resume.
        servers: that of servers, if it has any.
        every: whether to try all cuts; else one.
    """
    problem = Ticks()
    whole = run_in_virtual_time(config_of(job, folder / "run"), job.scenario(), problem)
    first = len(problem.computed)
    cuts = cuts_of(folder / "run", whole)
    for i in range(len(cuts)) if every else drawn(job, after, among=len(cuts)):
        problem.attempt, problem.computed = 1, problem.computed[:first]
        more = {"servers": servers} if job.served else {}
        out = str(folder / f"{after} {servers} {cuts[i].name}")
        config = resumed_config(str(cuts[i]), out=out, **more)
        run = run_in_virtual_time(config, Scenario(after), problem)
        table = table_of(run)
        before = ticked(table[:, 0], weights_of(job, [job.copies]))
        now = ticked(table[:, 1], weights_of(job, [after]))
        again = [it[1:] for it in problem.computed[first:]]
        assert again
        assert len({*again}) == len(again), "a sample was trained on twice in an attempt"
        if job["mode"] == "backup":  # which leaves out what is late; each update weighs 1
            np.testing.assert_allclose(table.sum((1, 2, 3)), run.summary.updates, rtol=1e-4)
            continue
        for row in now:
            assert {tuple(it) for it in np.argwhere(row).tolist()} == {*again}, "a push is lost"
        clocks = [reached(before, place, job.copies) for place in range(job.copies)]
        assert all(len({*it}) == 1 for it in clocks), "shards had other pushes at the cut"
        assert run.summary.samples == sum(it[0] for it in clocks) + len(again)
        if job.in_order:
            follows(job, after, [it[0] for it in clocks], again, before[0])


def follows(job, after, clocks, again, before):
    """Check that workers in step go on where the first sample left of the epoch is."""
    (clock,) = {*clocks}
    epoch, step = divmod(clock, SAMPLES // job.copies)
    due = {
        it
        for place in range(after)
        for it in order_of(place, after)
        if it[0] > epoch or (it[0] == epoch and it[1] >= step * job.copies // after * after)
    }
    assert {*again} == due
    there = {tuple(it) for it in np.argwhere(before).tolist()}
    assert len(there | due) == EPOCHS * SAMPLES
    assert len(there & due) < after


@pytest.mark.parametrize("books", one_of_each_mode(TICKING))
def test_each_push_counts_once(books, tmp_path):
    for after in (2, 3) if books.copies != 2 else (3, 5):
        if fits(books, after):
            counts_once(books, tmp_path / f"{after}", after, 1 + after % 2, every=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("books", TICKING, ids=str)
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_it_does_so_from_each_cut(books, servers, tmp_path):
    for after in (1, 2, 3, 5):
        if fits(books, after):
            counts_once(books, tmp_path / f"{after}", after, servers, every=True)
