"""The lines of ``metrics.jsonl``: each must agree with the events up to its step.

A worker reports at the clocks of the log's period, at the end of each epoch, and at its own end. A
line combines all reports up to a step at which some worker reported on the period or at an end. So
if psrt splits the data, the events determine which lines there are. If a problem does, the ends of
epochs are unknown: then a line is checked against itself and the line before.

``folds.lines``, the code of a run, turns events into reports and those into lines.

Losses, accuracies and bytes are in no event. By a real clock ``seconds`` have only bounds, and
rates and waits, which are of windows of time, only have to add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter

import numpy as np

from psrt.core.stats import Report, Stats
from psrt.history.check.contract import Contract
from psrt.history.check.figures import Figures
from psrt.history.check.findings import CLOCK_S, METRICS, Findings
from psrt.history.check.table import Floats, Ints, Table, previous, without_pauses
from psrt.history.events import Kind
from psrt.history.folds.history import WorkerPieces
from psrt.history.folds.lines import MetricsAggregator
from psrt.history.folds.record import Record
from psrt.history.folds.windows import Windows
from psrt.history.header import MOST

#: The fields of every line.
KEYS = (
    "epoch", "step", "loss", "test_loss", "accuracy", "seconds", "samples_per_second", "samples",
    "staleness_mean", "staleness_max", "bytes_sent", "bytes_received", "epoch_end",
    "evaluated_seconds", "gap_mean", "skew_max", "waiting_share", "consensus_distance",
    "measured_seconds",
)  # fmt: skip
#: The share of all samples that windows may miss, since their rates are rounded.
_SLACK = 1e-6
#: The fields that follow from events exactly, and those that do in virtual time, up to rounding.
_COUNTED = (
    "step", "epoch", "epoch_end", "samples", "staleness_mean", "staleness_max", "skew_max",
)  # fmt: skip
_MEASURED = ("samples_per_second", "waiting_share", "measured_seconds")
#: The fields that only grow from line to line.
_GROWING = ("epoch", "seconds", "samples", "bytes_sent", "bytes_received")


def check_metrics(
    metrics: Sequence[Mapping[str, object]],
    findings: Findings,
    *,
    numerics: bool,
    gap: float,
    apart: bool,
    silent: bool = False,
    forgotten: int = 0,
) -> list[Figures]:
    """Check that lines are complete, and that each agrees with the line before.

    Args:
        metrics: the lines.
        findings: takes what is wrong.
        numerics: whether there is a loss.
        gap: the largest measured gap; 0 without any.
        apart: whether distances between workers were measured.
        silent: whether losses may be missing, as in the user's own loop.
        forgotten: the most received bytes that a resumed run no longer counts.

    Returns:
        The lines.
    """
    lines = [
        Figures(METRICS, f"line {i} of metrics.jsonl", line, findings)
        for i, line in enumerate(metrics, 1)
    ]
    step, last, measured = -1.0, dict.fromkeys(_GROWING, 0.0), 0.0
    for line in lines:
        line.has(*[(name,) for name in KEYS])
        line.within(step + 1, math.inf, "step")
        step = line.number("step") or 0.0
        before, last = last, {name: line.number(name) or 0.0 for name in _GROWING}
        before["bytes_received"] -= forgotten
        for name in _GROWING:
            line.within(before[name], math.inf, name)
        made = last["samples"] - before["samples"]
        line.within(measured, last["seconds"], "measured_seconds")
        began, measured = measured, line.number("measured_seconds") or 0.0
        if measured > began:
            line.within(0.0, math.inf, "samples_per_second")
            line.within(0.0, 1.0, "waiting_share", rounded=True)
        else:
            line.same(None, "samples_per_second")
            line.same(None, "waiting_share")
        if made and numerics and not silent:
            line.within(-math.inf, math.inf, "loss")
        elif made and numerics:
            line.maybe_within(-math.inf, math.inf, "loss")
        else:
            line.same(None, "loss")
        line.maybe_within(0.0, gap, "gap_mean", rounded=True)
        if apart:
            line.maybe_within(0.0, math.inf, "consensus_distance")
        else:
            line.same(None, "consensus_distance")
        line.maybe_within(0.0, last["seconds"], "evaluated_seconds")
        if line.number("evaluated_seconds") is None:
            line.same(None, "test_loss")
            line.same(None, "accuracy")
        line.maybe_within(-math.inf, math.inf, "test_loss")
        line.maybe_within(0.0, 1.0, "accuracy")
    return lines


def check_windows(lines: Sequence[Figures], waited: float | None = None) -> None:
    """Check that windows of time add up, which is all that is known by a real clock.

    Not in a resumed run: repeated steps are in one window more than their samples are counted.

    Args:
        lines: of the metrics.
        waited: mean seconds that a worker waited; None if unknown.
    """
    ends = [it.number("measured_seconds") or 0.0 for it in lines]
    windows = [(it, end) for it, end in zip(lines, np.diff([0.0, *ends]), strict=True) if end > 0]
    if not windows:
        return
    lines[-1].same(lines[-1].number("seconds"), "measured_seconds", of="its seconds")
    samples, (own, length) = lines[-1].number("samples") or 0.0, windows[-1]
    # In virtual time, work that took no time after the last window is in no window.
    after = samples - (own.number("samples") or 0.0)
    for name, total, untimed, of in (
        ("samples_per_second", samples, after, "all samples"),
        ("waiting_share", waited, 0.0, "all waits"),
    ):
        if total is None:
            continue
        said = [it.number(name) or 0.0 for it, _ in windows]
        left = total - np.dot(said[:-1], [it for _, it in windows[:-1]])
        slack = (_SLACK * max(total, ends[-1]) + untimed) / length
        own.near(float(left / length), name, slack=slack, of=of)


def check_distances(
    lines: Sequence[Figures],
    bounds: Mapping[int, tuple[float, float]],
    unknown: Sequence[range] = (),
) -> None:
    """Check that each line has the distance of workers, within the bounds of its step.

    Args:
        lines: of the metrics.
        bounds: by step; any distance is valid for other steps.
        unknown: steps whose lines may have none.
    """
    for line in lines:
        step = int(line.number("step") or 0)
        low, high = bounds.get(step, (0.0, math.inf))
        if any(step in steps for steps in unknown):
            line.maybe_within(low, high, "consensus_distance")
        else:
            line.within(low, high, "consensus_distance")


def split_steps(table: Table, resumed: Sequence[float], workers: int) -> list[range]:
    """Return the steps that only some workers had reported when a run resumed.

    Their distances are lost. A worker reports its last step after it was saved with it or, if it
    was done, before.

    Args:
        table: events of all workers.
        resumed: the times at which the run resumed.
        workers: the number of workers.
    """
    at = table.where(Kind.STEP)
    time, owner = table.real("time")[at], table["worker"][at]
    clocks = [np.bincount(owner[time < when], minlength=workers) for when in resumed]
    return [range(int(it.min()), int(it.max()) + 1) if np.ptp(it) else range(0) for it in clocks]


def check_lines(
    contract: Contract,
    lines: Sequence[Figures],
    workers: Sequence[WorkerPieces],
    reports: Sequence[Sequence[Report]],
    findings: Findings,
) -> None:
    """Check every line against the events, if nobody has died and psrt has split the data.

    Args:
        contract: of the run.
        lines: as ``check_metrics`` returned them.
        workers: what each worker counts.
        reports: of each, as of ``told_by``.
        findings: takes what is wrong.
    """
    windows = SaidWindows(contract.workers, [it.number("measured_seconds") for it in lines])
    aggregator = MetricsAggregator(contract.workers, log_every=contract.log_every, windows=windows)
    at = attrgetter("seconds")
    records: list[Record] = []
    for _, group in groupby(sorted(chain.from_iterable(reports), key=at), key=at):
        came = list(group)
        windows.take(came)
        records += chain.from_iterable(map(aggregator.add, came))
    if len(records) != len(lines):
        findings.count(METRICS, 1)
        text = f"metrics.jsonl has {len(lines)} lines, the history makes {len(records)}"
        findings.missing(METRICS, text)
        return
    # The first worker of a split model may wait for the parts of others before it reports.
    measures = contract.exact_times and not contract.cut
    exact = [*_COUNTED, *_MEASURED * measures, *["seconds"] * contract.exact_times]
    for line, record in zip(lines, records, strict=True):
        for name in exact:
            line.equal(getattr(record, name), name)
        if record.evaluated_seconds is None:
            line.same(None, "evaluated_seconds")
    if not contract.exact_times:
        clock = np.concatenate([it.clock for it in workers])
        high = np.concatenate([times_of(contract, it)[1] for it in workers])
        _check_seconds(contract, lines, records, clock, high)
    if not measures and not contract.resumed:
        waited = sum(float(it.waited.sum()) for it in workers)
        check_windows(lines, waited / contract.workers if contract.one_clock else None)


class SaidWindows(Windows):
    """Windows of reports whose order is not known where several came at one time.

    A window ends at the time up to which all workers had reported when its line was complete. Of
    reports of one time, any number may have come before that: the line says where it ends, and it
    must be one of the times that are possible.
    """

    def __init__(self, workers: int, ends: Sequence[float | None]) -> None:
        super().__init__(workers)
        self._ends = iter(ends)
        self._before = self._told

    def take(self, reports: Sequence[Report]) -> None:
        """Take reports of one time; each is handed to ``add`` next."""
        before = self._told.copy()
        for report in reports:
            super().add(report)
        self._before = before if len(reports) > 1 else self._told

    def add(self, report: Report) -> None:
        """Do nothing: it has been taken."""

    def _reached(self, until: float) -> float:
        said = next(self._ends, None)
        least, most = min(until, *self._before), super()._reached(until)
        if said is None:
            return most
        possible = (it for it in (*self._before, *self._told, until) if least <= it <= most)
        return min(possible, key=lambda it: abs(it - said))


def _check_seconds(
    contract: Contract,
    lines: Sequence[Figures],
    records: Sequence[Record],
    clock: Ints,
    high: Floats,
) -> None:
    """Check the times of lines by a real clock: between the last event before and the next one."""
    steps = np.array([it.step for it in records])
    until = np.zeros(len(lines))
    np.maximum.at(until, np.minimum(np.searchsorted(steps, clock), len(lines) - 1), high)
    for line, record, most in zip(
        lines, records, np.maximum.accumulate(until).tolist(), strict=True
    ):
        line.within(record.seconds - CLOCK_S, math.inf, "seconds", rounded=True)
        if contract.one_clock and not contract.resumed:  # a report counts the time to save
            line.within(0.0, most + CLOCK_S, "seconds", rounded=True)


def told_by(contract: Contract, worker: WorkerPieces, number: int) -> tuple[Stats, list[Report]]:
    """Feed a worker's events to its fold; return what it counted and reported.

    Only what events contain: no losses, gaps or bytes. Without a plan it is unknown when a worker
    reports.

    Args:
        contract: of the run.
        worker: what it counts.
        number: of the worker; with a split model, in the whole job.
    """
    counts, plan, clock = worker.fold(), contract.plan, worker.clock
    reports: list[Report] = []
    begun, since = 0, 0.0
    if plan is not None and len(clock):
        low = times_of(contract, worker)[0]
        at = np.flatnonzero(np.append(clock[1:] != clock[:-1], True))  # the last row of a clock
        clock, is_last = clock[at], at == at[-1]
        ends = is_last | ((clock > 0) & plan.begins_epoch(clock))
        beats = clock // (contract.log_every or MOST)
        due = ends | (beats > previous(beats, 0))
        columns = (at, clock, plan.epochs(clock), low[at], ends, is_last)
        for i, step, epoch, seconds, epoch_end, last in zip(
            *(column[due].tolist() for column in columns), strict=True
        ):
            worker.tell(counts, begun, i + 1)
            figures = {"loss": 0.0} if epoch_end and not number else {}  # it evaluates
            report = counts.report(
                number, epoch, step, figures, seconds=seconds, since=since, epoch_end=epoch_end,
                last=last,
            )  # fmt: skip
            reports.append(report)
            begun, since = i + 1, seconds
    worker.tell(counts, begun, len(worker.rows))
    return counts.stats, reports


def times_of(contract: Contract, worker: WorkerPieces) -> tuple[Floats, Floats]:
    """Return by piece the least and the most seconds at which the report after it was made.

    A report follows what it counts, in virtual time immediately. By a real clock, time started
    before the first piece, and a worker reports before its next piece. The pause between a
    checkpoint and its resumption does not count.
    """
    time, lasts = worker.time, worker.lasts
    time = without_pauses(time, lasts, np.zeros(len(time), np.int64), contract.resumed)
    since = 0.0 if contract.simulated else time[0] - lasts[0]
    return time - since, np.append(time[1:], np.inf)
