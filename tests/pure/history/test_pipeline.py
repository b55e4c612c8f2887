"""The history of a model that is cut: what stages did, held against the definitions, and broken."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from psrt.history.check.findings import PIPELINE, Findings
from psrt.history.check.pipeline import Layout, _check_alive, _steps_of, check_pipeline
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


def events_of(cut, samples=SAMPLES):
    """Run a schedule, and return by cell the events of its workers, one copy after the other."""
    logs = [Kept() for _ in range(cut.stages * cut.slices)]
    now = 0.0
    for copy in range(cut.copies):
        for slice_ in range(cut.slices):
            recorders = [
                WorkerEventRecorder(logs[stage * cut.slices + slice_], copy)
                for stage in range(cut.stages)
            ]
            now = one_slice(cut, recorders, samples, now)
    return [log.kept() for log in logs]


def one_slice(cut, recorders, samples, now):
    row = PIPELINES[cut.schedule]
    total = len(samples) if cut.asynchronous else cut.micro_batches
    plan = row.plan(cut.stages, total, cut.chunks, deferred=cut.deferred)
    rounds = [(0, plan)] if cut.asynchronous else [(c, plan) for c in range(len(samples))]
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
                at, shown = (m, step._replace(micro_batch=0)) if cut.asynchronous else (clock, step)
                rows = samples[at] if cut.asynchronous else rows_of(cut, samples[at], m)
                if step.kind in COMPUTING:
                    age = min(at, cut.stages - stage - 1) if cut.asynchronous else at + 1
                    recorders[stage].passed(now, at, shown, rows, at - age)
                    if cut.asynchronous and step.kind.value in ("backward", "backward-weight"):
                        recorders[stage].stepped(now, at, samples[at], at * 0.125, 0.1, 0.001)
                    continue
                if step.kind in SENDING:
                    under_way.add((*key, virtual))
                if rows:
                    nbytes = rows * WIDTH * 4 + 8
                    recorders[stage].exchanged(now, at, shown, rows, nbytes)
        for recorder in () if cut.asynchronous else recorders:
            now += 0.001
            recorder.stepped(now, clock, samples[clock], clock * 0.125, 0.1, 0.001)
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
                        cut, samples = replace(cut, micro_batches=1), (4,) * micro_batches
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
