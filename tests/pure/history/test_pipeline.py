"""The history of a model that is cut: what stages did, held against the definitions, and broken."""

from __future__ import annotations

import itertools
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
    Kind,
)
from psrt.pipeline.messages import sent_early
from psrt.pipeline.registry import PIPELINES
from psrt.pipeline.step import ALL, COMPUTING, SENDING
from psrt.runtime.event_recorder import WorkerEventRecorder
from support.cases import each
from support.histories import Kept

#: Numbers of a row of what goes between two stages.
WIDTH = 5
SAMPLES = (7, 7, 3)


def layout(schedule, stages, micro_batches, chunks=1, *, deferred=False, copies=1, slices=1):
    return Layout(copies, stages, slices, PIPELINES[schedule], chunks, micro_batches, deferred)


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
    row = cut.schedule
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
    for stages, micro_batches, chunks, deferred in itertools.product(
        (1, 2, 3, 5), (1, 2, 5, 8), (1, 2, 3) if row.chunked else (1,),
        (False, True) if row.defers else (False,),
    ):  # fmt: skip
        cut = layout(schedule, stages, micro_batches, chunks, deferred=deferred)
        samples = SAMPLES
        if row.asynchronous:
            cut = replace(cut, micro_batches=1)
            samples = (4, 0, 3, 0, 4, 4, 4, 0)[:micro_batches]  # some without samples
        findings = found_in(cut, events_of(cut, samples))
        assert findings.none, (cut, findings.first)
        assert findings.checked[PIPELINE]


# --- broken, one way after the other; that of one event alone is a law ---------------------------

WHAT = ("kind", "flag", "shard", "tau", "samples", "version", "progress", "clock")
BATCH = ("tau", "samples", "clock", "shard")
BACK, WEIGHTS = (BACKWARD, BACKWARD_INPUT), (BACKWARD, BACKWARD_WEIGHT)
PASS, MESSAGE, STEP = Kind.PASS, Kind.MESSAGE, Kind.STEP


def at(events, kind, **fields):
    """Return the positions of events with these fields."""
    found = events["kind"] == kind
    for name, value in fields.items():
        found &= np.isin(events[name], value)
    return np.flatnonzero(found)


def swapped(events, i, j, names=BATCH):
    """Exchange what two events say, but for their times."""
    for name in names:
        events[name][[i, j]] = events[name][[j, i]]


def edited(*edits):
    """Return what edits one event each: (cell, kind, flag, which of them, field, by how much)."""

    def edit(cells):
        for cell, kind, flag, index, field, by in edits:
            cells[cell][field][at(cells[cell], kind, **flag)[index]] += by

    return edit


def splits_otherwise(cells):
    flags = cells[0]["flag"]
    whole = at(cells[0], PASS, flag=BACKWARD)
    if len(whole):
        flags[whole[0]] = BACKWARD_INPUT
    else:
        flags[at(cells[0], PASS, flag=BACKWARD_INPUT)[0]] = BACKWARD


def takes_a_step_less(cells):
    cells[1] = np.delete(cells[1], at(cells[1], STEP)[-1])


def does_nothing(cells):
    cells[1] = cells[1][~np.isin(cells[1]["kind"], (PASS, MESSAGE))]


MUTANTS = {
    "takes another micro-batch":
        lambda it: swapped(it[0], *at(it[0], PASS, flag=FORWARD)[:2], BATCH[:3]),
    "goes back in another order": lambda it: swapped(it[0], *at(it[0], PASS, flag=BACK)[-2:]),
    "adds weights in another order": lambda it: swapped(it[0], *at(it[0], PASS, flag=WEIGHTS)[-2:]),
    "goes back before forward": lambda it: swapped(
        it[0], at(it[0], PASS, flag=FORWARD)[0], at(it[0], PASS, flag=BACK)[0], WHAT),
    "splits otherwise": splits_otherwise,
    "goes back with newer weights": edited((0, PASS, {"flag": BACK}, 2, "version", 1)),
    "more bytes for the rows, at both ends": edited(
        (0, MESSAGE, {"flag": 0}, 1, "progress", 4), (1, MESSAGE, {"flag": CAME}, 1, "progress", 4)
    ),
    "receives before it was sent": edited((1, MESSAGE, {"flag": CAME}, 0, "time", -1.0)),
    "takes a step less": takes_a_step_less,
    "takes other samples": edited((1, STEP, {}, 1, "samples", 1)),
    "is elsewhere in the data": edited((1, STEP, {}, 1, "progress", 0.125)),
    "does nothing": does_nothing,
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_what_is_broken_is_found(name):
    cut, sound = CUTS[name], events_of(CUTS[name])
    for what, mutant in MUTANTS.items():
        cells = [it.copy() for it in sound]
        # The cells of one slice.
        two = cells[:: cut.slices]
        mutant(two)
        cells[:: cut.slices] = two
        assert any(a.tobytes() != b.tobytes() for a, b in zip(sound, cells, strict=True)), what
        findings = found_in(cut, cells)
        assert not findings.none, what
        assert findings.first.rule == PIPELINE


PIPEDREAM = CUTS["pipedream"]


def renumbered(cell, field, by, **fields):
    """Return events of which some of a cell say another number."""
    cells = events_of(PIPEDREAM)
    cells[cell][field][at(cells[cell], PASS, **fields)] += by
    return cells


def is_fresher_than_its_place():
    """Nothing is stashed: the newest weights take a batch back."""
    cells = events_of(PIPEDREAM)
    back = at(cells[0], PASS, flag=BACKWARD)
    cells[0]["version"][back] = cells[0]["clock"][back]
    return cells


def updates_before_the_pass():
    """The step stands before the backward pass whose gradient it is of."""
    cells = events_of(PIPEDREAM)
    i = at(cells[2], PASS, flag=BACKWARD_WEIGHT)[1]
    assert cells[2]["kind"][i + 1] == STEP
    cells[2][[i, i + 1]] = cells[2][[i + 1, i]]
    return cells


#: Of what is not drained but at the end of an epoch, of three batches each.
NEVER_DRAINED = {
    "stays full": lambda: events_of(PIPEDREAM, drains=(6,)),
    "ends elsewhere": lambda: events_of(PIPEDREAM, epochs=(2, 4), drains=(3, 3)),
    "begins with weights of the epoch before": lambda: renumbered(0, "version", -1, clock=3),
    # One batch more under way.
    "is later than its place": lambda: events_of(replace(PIPEDREAM, stages=4))[1:],
    "is fresher than its place": is_fresher_than_its_place,
    "updates before the pass": updates_before_the_pass,
    "names a micro-batch": lambda: renumbered(0, "tau", 1, clock=1),
}  # fmt: skip


@each("name", NEVER_DRAINED)
def test_a_pipeline_that_is_not_drained_keeps_its_promises(name):
    findings = found_in(PIPEDREAM, NEVER_DRAINED[name]())
    assert not findings.none
    assert findings.first.rule == PIPELINE


@each("stage", range(3))
def test_versions_of_weights_are_counted_whatever_the_order(stage):
    """What one stage more before them keeps: one version too many, in each."""
    cut, findings = PIPEDREAM, Findings()
    own = Table(events_of(replace(cut, stages=4), (7,) * 8)[stage], "cell")
    steps = _steps_of(own, 0)
    passes = steps.own[own.are(PASS)[steps.own]]
    _check_stash(replace(cut, stages=4), stage, steps, passes, findings)
    assert findings.none
    _check_kept(cut, stage, steps, passes, findings)
    kept = 3 - stage
    assert f"keeps {kept + 1} versions of its weights, expected at most {kept}" in (
        findings.first.text
    )


@each("name", ["sequential", "gpipe", "1f1b", "zero-bubble"])
def test_another_schedule_than_the_header_says_is_found(name):
    for other in {"sequential", "gpipe", "1f1b", "zero-bubble"} - {name}:
        assert not found_in(
            replace(CUTS[name], schedule=PIPELINES[other]), events_of(CUTS[name])
        ).none, other


def test_more_activations_than_promised_are_found_whatever_the_order():
    """GPipe's order where 1F1B was promised: too many are alive, and that is seen by itself."""
    cut = layout("1f1b", 3, 4)
    cells = events_of(replace(cut, schedule=PIPELINES["gpipe"]))
    for stage, cell in enumerate(cells):
        assert len(at(cell, PASS)) == 4 * (3 if stage else 2) * len(SAMPLES)
    findings = Findings()
    own = Table(cells[0], "cell 0")
    _check_alive(cut, 0, _steps_of(own, 0), findings)
    assert "4 micro-batches are alive in stage 0, expected at most 3" in findings.first.text
