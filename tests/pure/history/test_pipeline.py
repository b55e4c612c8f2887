"""The history of a model that is cut: what stages did, held against the definitions, and broken."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from psrt.history.check.findings import PIPELINE, Findings
from psrt.history.check.pipeline import (
    Layout,
    _check_alive,
    _check_kept,
    _check_stash,
    _steps_of,
    check_pipeline,
)
from psrt.history.check.table import Table
from psrt.history.events import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    CAME,
    FORWARD,
    GRADIENT,
    Kind,
)
from psrt.pipeline.messages import sent_early
from psrt.pipeline.registry import PIPELINES
from psrt.pipeline.step import ALL, COMPUTING, SENDING
from psrt.runtime.event_recorder import WorkerEventRecorder
from support.histories import Kept

#: Numbers of a row of what goes between two stages.
WIDTH = 5
SAMPLES = (7, 7, 3)


def layout(schedule, stages, micro_batches, chunks=1, *, deferred=False, copies=1, slices=1):
    return Layout(copies, stages, slices, schedule, chunks, micro_batches, deferred)


def rows_of(cut, samples, m):
    if m == ALL:
        return samples
    return samples // cut.micro_batches + (m < samples % cut.micro_batches)


def events_of(cut, samples=SAMPLES, *, epochs=None, drains=None):
    """Run a schedule, and return by cell the events of its workers, one copy after the other.

    Args:
        cut: how the model is cut.
        samples: of the batches.
        epochs: of a pipeline that is not drained, the steps of each; two are alike if not given.
        drains: the steps between which it is drained all the same; those of the epochs.
    """
    if cut.asynchronous:
        epochs = epochs or (len(samples),) * 2
        samples = samples * (sum(epochs) // len(samples))
    lengths = (drains or epochs or (len(samples),), epochs or (len(samples),))
    logs = [Kept() for _ in range(cut.stages * cut.slices)]
    now = 0.0
    for copy in range(cut.copies):
        for slice_ in range(cut.slices):
            recorders = [
                WorkerEventRecorder(logs[stage * cut.slices + slice_], copy)
                for stage in range(cut.stages)
            ]
            now = one_slice(cut, recorders, samples, now, *lengths)
    return [log.kept() for log in logs]


def one_slice(cut, recorders, samples, now, drains, epochs):
    row = PIPELINES[cut.schedule]
    progress = [epoch + i * 0.125 for epoch, count in enumerate(epochs) for i in range(count)]
    if cut.asynchronous:
        begins = np.cumsum((0, *drains))[:-1].tolist()
        rounds = [(b, row.plan(cut.stages, k)) for b, k in zip(begins, drains, strict=True)]
    else:
        plan = row.plan(cut.stages, cut.micro_batches, cut.chunks, deferred=cut.deferred)
        rounds = [(c, plan) for c in range(len(samples))]
    for clock, steps in rounds:
        left = [deque(sent_early(it)) for it in steps]
        under_way = set()
        while any(left):
            for stage, mine in enumerate(left):
                if not mine:
                    continue
                step = mine[0]
                m = step.micro_batch
                virtual = step.chunk * cut.stages + stage
                key = (m, step.kind.value.split()[-1])
                if step.kind not in COMPUTING and step.kind not in SENDING:
                    back = "gradient" in step.kind.value
                    if (*key, virtual + 1 if back else virtual - 1) not in under_way:
                        continue
                mine.popleft()
                now += 0.001
                at, shown = clock, step
                if cut.asynchronous:
                    at, shown = clock + m, step._replace(micro_batch=0)
                rows = samples[at] if cut.asynchronous else rows_of(cut, samples[at], m)
                if step.kind in COMPUTING:
                    age = min(m, cut.stages - stage - 1) if cut.asynchronous else at + 1
                    recorders[stage].passed(now, at, shown, rows, at - age)
                    if cut.asynchronous and step.kind.value in ("backward", "backward-weight"):
                        recorders[stage].stepped(now, at, samples[at], progress[at], 0.1, 0.001)
                    continue
                if step.kind in SENDING:
                    under_way.add((*key, virtual))
                if rows:
                    nbytes = rows * WIDTH * 4 + 8
                    recorders[stage].exchanged(now, at, shown, rows, nbytes)
        for recorder in () if cut.asynchronous else recorders:
            now += 0.001
            recorder.stepped(now, clock, samples[clock], progress[clock], 0.1, 0.001)
    return now


def found_in(cut, cells):
    findings = Findings()
    tables = [Table(events, f"cell {i}") for i, events in enumerate(cells)]
    check_pipeline(cut, tables, findings, one_clock=True)
    return findings


CUTS = {
    "sequential": layout("sequential", 3, 2),
    "gpipe": layout("gpipe", 3, 4),
    "gpipe, deferred": layout("gpipe", 3, 4, deferred=True),
    "1f1b": layout("1f1b", 3, 4),
    "1f1b, two copies of two slices": layout("1f1b", 2, 3, copies=2, slices=2),
    "interleaved": layout("interleaved", 2, 4, 2),
    "zero-bubble": layout("zero-bubble", 3, 4),
    "pipedream": layout("pipedream", 3, 1),
}


@pytest.mark.parametrize("schedule", PIPELINES)
def test_every_schedule_is_what_its_definition_says(schedule):
    row = PIPELINES[schedule]
    for stages in range(1, 6):
        for micro_batches in (1, 2, 3, 5, 8):
            for chunks in (1, 2, 3) if row.chunked else (1,):
                for deferred in (False, True) if row.defers else (False,):
                    cut = layout(schedule, stages, micro_batches, chunks, deferred=deferred)
                    samples = SAMPLES
                    if row.asynchronous:
                        cut = replace(cut, micro_batches=1)
                        samples = (4, 0, 3, 0, 4, 4, 4, 0)[:micro_batches]  # some without samples
                    findings = found_in(cut, events_of(cut, samples))
                    assert findings.none, (cut, findings.first)
                    assert findings.checked[PIPELINE]


# --- broken, one way after the other --------------------------------------------------------------


def at(events, kind, **fields):
    """Return the positions of events with these fields."""
    found = events["kind"] == kind
    for name, value in fields.items():
        found &= np.isin(events[name], value)
    return np.flatnonzero(found)


def swapped(events, i, j, names):
    """Exchange what two events say, but for their times."""
    for name in names:
        events[name][[i, j]] = events[name][[j, i]]


WHAT = ("kind", "flag", "shard", "tau", "samples", "version", "progress", "clock")
WEIGHTS = (BACKWARD, BACKWARD_WEIGHT)


def forgets_a_pass(cells):
    cells[1] = np.delete(cells[1], at(cells[1], Kind.PASS, flag=FORWARD)[1])


def goes_forward_twice(cells):
    i = at(cells[1], Kind.PASS, flag=FORWARD)[1]
    cells[1] = np.insert(cells[1], i, cells[1][i])


def goes_back_twice(cells):
    i = at(cells[1], Kind.PASS, flag=WEIGHTS)[0]
    cells[1] = np.insert(cells[1], i, cells[1][i])


def takes_another_micro_batch(cells):
    i, j = at(cells[0], Kind.PASS, flag=FORWARD)[:2]
    swapped(cells[0], i, j, ("tau", "samples", "clock"))


def goes_back_in_another_order(cells):
    i, j = at(cells[0], Kind.PASS, flag=(BACKWARD, BACKWARD_INPUT))[-2:]
    swapped(cells[0], i, j, ("tau", "samples", "clock", "shard"))


def adds_weights_in_another_order(cells):
    i, j = at(cells[0], Kind.PASS, flag=WEIGHTS)[-2:]
    swapped(cells[0], i, j, ("tau", "samples", "clock", "shard"))


def goes_back_before_forward(cells):
    i = at(cells[0], Kind.PASS, flag=FORWARD)[0]
    j = at(cells[0], Kind.PASS, flag=(BACKWARD, BACKWARD_INPUT))[0]
    swapped(cells[0], i, j, WHAT)


def splits_otherwise(cells):
    whole = at(cells[0], Kind.PASS, flag=BACKWARD)
    if len(whole):
        cells[0]["flag"][whole[0]] = BACKWARD_INPUT
    else:
        cells[0]["flag"][at(cells[0], Kind.PASS, flag=BACKWARD_INPUT)[0]] = BACKWARD


def loses_a_row(cells):
    cells[1]["samples"][at(cells[1], Kind.PASS, flag=FORWARD)[0]] -= 1


def computes_for_another_step(cells):
    cells[1]["clock"][at(cells[1], Kind.PASS, flag=WEIGHTS)[-1]] += 1


def takes_old_weights(cells):
    cells[0]["version"][at(cells[0], Kind.PASS, flag=FORWARD)[2]] += 1


def goes_back_with_newer_weights(cells):
    i = at(cells[0], Kind.PASS, flag=(BACKWARD, BACKWARD_INPUT))[2]
    cells[0]["version"][i] += 1


def never_sends(cells):
    cells[0] = np.delete(cells[0], at(cells[0], Kind.MESSAGE, flag=0)[1])


def never_receives(cells):
    cells[1] = np.delete(cells[1], at(cells[1], Kind.MESSAGE, flag=CAME)[1])


def sends_twice(cells):
    i = at(cells[1], Kind.MESSAGE, flag=GRADIENT)[0]
    cells[1] = np.insert(cells[1], i, cells[1][i])


def sends_what_it_has_not(cells):
    """The gradient leaves before it is computed."""
    mine = cells[1]
    i = at(mine, Kind.MESSAGE, flag=GRADIENT)[0]
    of_it = {name: mine[name][i] for name in ("tau", "clock", "shard")}
    j = at(mine, Kind.PASS, flag=(BACKWARD, BACKWARD_INPUT), **of_it)[0]
    swapped(mine, i, j, WHAT)


def computes_what_has_not_come(cells):
    mine = cells[1]
    i = at(mine, Kind.MESSAGE, flag=CAME)[0]
    of_it = {name: mine[name][i] for name in ("tau", "clock", "shard")}
    swapped(mine, i, at(mine, Kind.PASS, flag=FORWARD, **of_it)[0], WHAT)


def sends_to_another_stage(cells):
    cells[0]["version"][at(cells[0], Kind.MESSAGE, flag=0)[0]] += 1


def receives_fewer_bytes(cells):
    cells[1]["progress"][at(cells[1], Kind.MESSAGE, flag=CAME)[0]] -= 4


def sends_more_bytes_for_the_rows(cells):
    """At both ends."""
    sent, came = at(cells[0], Kind.MESSAGE, flag=0)[1], at(cells[1], Kind.MESSAGE, flag=CAME)[1]
    cells[0]["progress"][sent] += 4
    cells[1]["progress"][came] += 4


def receives_other_rows(cells):
    cells[1]["samples"][at(cells[1], Kind.MESSAGE, flag=CAME)[0]] += 1


def receives_before_it_was_sent(cells):
    cells[1]["time"][at(cells[1], Kind.MESSAGE, flag=CAME)[0]] = 0.0


def takes_a_step_less(cells):
    cells[1] = np.delete(cells[1], at(cells[1], Kind.STEP)[-1])


def takes_other_samples(cells):
    cells[1]["samples"][at(cells[1], Kind.STEP)[1]] += 1


def is_elsewhere_in_the_data(cells):
    cells[1]["progress"][at(cells[1], Kind.STEP)[1]] += 0.125


def does_nothing(cells):
    cells[1] = cells[1][~np.isin(cells[1]["kind"], (Kind.PASS, Kind.MESSAGE))]


MUTANTS = [
    forgets_a_pass, goes_forward_twice, goes_back_twice, takes_another_micro_batch,
    goes_back_in_another_order, adds_weights_in_another_order, goes_back_before_forward,
    splits_otherwise, loses_a_row, computes_for_another_step, takes_old_weights,
    goes_back_with_newer_weights, never_sends, never_receives, sends_twice, sends_what_it_has_not,
    computes_what_has_not_come, sends_to_another_stage, receives_fewer_bytes,
    sends_more_bytes_for_the_rows, receives_other_rows, receives_before_it_was_sent,
    takes_a_step_less, takes_other_samples, is_elsewhere_in_the_data, does_nothing,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda it: it.__name__)
@pytest.mark.parametrize("name", CUTS)
def test_what_is_broken_is_found(name, mutant):
    cut = CUTS[name]
    cells = events_of(cut)
    before = [it.copy() for it in cells]
    # The cells of one slice.
    two = cells[:: cut.slices]
    mutant(two)
    cells[:: cut.slices] = two
    assert any(a.tobytes() != b.tobytes() for a, b in zip(before, cells, strict=True))
    findings = found_in(cut, cells)
    assert not findings.none
    assert findings.first.rule == PIPELINE


def stays_full(cut):
    return events_of(cut, drains=(6,))


def drains_too_often(cut):
    return events_of(cut, drains=(3, 1, 2))


def ends_elsewhere(cut):
    return events_of(cut, epochs=(2, 4), drains=(3, 3))


def begins_with_old_weights(cut):
    """A stage keeps weights of the epoch before."""
    cells = events_of(cut)
    first = at(cells[0], Kind.PASS, clock=3)
    assert (cells[0]["version"][first] == 3).all()
    cells[0]["version"][first] = 2
    return cells


def is_later_than_its_place(cut):
    """A stage does what the one before it is to do, one batch more under way."""
    more = replace(cut, stages=4)
    return events_of(more)[1:]


def is_fresher_than_its_place(cut):
    """Nothing is stashed: the newest weights take a batch back."""
    cells = events_of(cut)
    back = at(cells[0], Kind.PASS, flag=BACKWARD)
    cells[0]["version"][back] = cells[0]["clock"][back]
    return cells


def has_old_weights_both_ways(cut):
    """Forward with a version that is not the newest, and back with the same."""
    cells = events_of(cut)
    of_it = at(cells[1], Kind.PASS, clock=2)
    cells[1]["version"][of_it] -= 1
    return cells


def counts_versions_from_the_epoch(cut):
    cells = events_of(cut)
    later = at(cells[0], Kind.PASS, clock=(3, 4, 5))
    cells[0]["version"][later] -= 3
    return cells


def updates_before_the_pass(cut):
    """The step stands before the backward pass whose gradient it is of."""
    cells = events_of(cut)
    i = at(cells[2], Kind.PASS, flag=BACKWARD_WEIGHT)[1]
    assert cells[2]["kind"][i + 1] == Kind.STEP
    cells[2][[i, i + 1]] = cells[2][[i + 1, i]]
    return cells


def names_a_micro_batch(cut):
    cells = events_of(cut)
    cells[0]["tau"][at(cells[0], Kind.PASS, clock=1)] = 1
    return cells


NEVER_DRAINED = [
    stays_full, drains_too_often, ends_elsewhere, begins_with_old_weights, is_later_than_its_place,
    is_fresher_than_its_place, has_old_weights_both_ways, counts_versions_from_the_epoch,
    updates_before_the_pass, names_a_micro_batch,
]  # fmt: skip


@pytest.mark.parametrize("mutant", NEVER_DRAINED, ids=lambda it: it.__name__)
def test_a_pipeline_that_is_not_drained_keeps_its_promises(mutant):
    cut = CUTS["pipedream"]
    findings = found_in(cut, mutant(cut))
    assert not findings.none
    assert findings.first.rule == PIPELINE


@pytest.mark.parametrize("stage", range(3))
def test_versions_of_weights_are_counted_whatever_the_order(stage):
    """What one stage more before them keeps: one version too many, in each."""
    cut, findings = CUTS["pipedream"], Findings()
    own = Table(events_of(replace(cut, stages=4), (7,) * 8)[stage], "cell")
    steps = _steps_of(own, 0)
    passes = steps.own[own.are(Kind.PASS)[steps.own]]
    _check_stash(replace(cut, stages=4), stage, steps, passes, findings)
    assert findings.none
    _check_kept(cut, stage, steps, passes, findings)
    kept = 3 - stage
    assert f"keeps {kept + 1} versions of its weights, expected at most {kept}" in (
        findings.first.text
    )


@pytest.mark.parametrize("name", CUTS)
def test_another_schedule_than_the_header_says_is_found(name):
    cut = CUTS[name]
    if cut.asynchronous or cut.deferred or cut.chunks > 1:
        return
    for other in ("sequential", "gpipe", "1f1b", "zero-bubble"):
        if other != cut.schedule:
            assert not found_in(replace(cut, schedule=other), events_of(cut)).none, other


def test_more_activations_than_promised_are_found_whatever_the_order():
    """GPipe's order where 1F1B was promised: too many are alive, and that is seen by itself."""
    cut = layout("1f1b", 3, 4)
    cells = events_of(replace(cut, schedule="gpipe"))
    for stage, cell in enumerate(cells):
        assert len(at(cell, Kind.PASS)) == 4 * (3 if stage else 2) * len(SAMPLES)
    findings = Findings()
    own = Table(cells[0], "cell 0")
    _check_alive(cut, 0, _steps_of(own, 0), findings)
    assert "4 micro-batches are alive in stage 0, expected at most 3" in findings.first.text
