"""The lines of ``metrics.jsonl``: each holds what the events up to its step say.

A worker reports at the clocks that the log's period asks for, at the end of each epoch, and at its
own end; a line is made of all reports up to a step at which somebody reported on the beat or at an
end. So where psrt cuts the data, the events alone say which lines there are. Where a problem does,
it is not known where an epoch ended: then a line is held against itself and the one before.

Rates and waits are of windows of time, of all workers at the same time, whatever their step: what a
worker did between two reports is spread evenly over that time.

Losses, accuracies and bytes are in no event. By a real clock ``seconds`` have bounds only, and so
have rates and waits; the windows add up all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from psrt.history.check.alternation import Workers
from psrt.history.check.contract import Contract
from psrt.history.check.figures import Figures
from psrt.history.check.findings import CLOCK_S, METRICS, Findings
from psrt.history.check.table import Floats, Ints, Table, previous, same_as_before, without_pauses
from psrt.history.events import Kind

#: What every line has.
KEYS = (
    "epoch", "step", "loss", "test_loss", "accuracy", "seconds", "samples_per_second", "samples",
    "staleness_mean", "staleness_max", "bytes_sent", "bytes_received", "epoch_end",
    "evaluated_seconds", "gap_mean", "skew_max", "waiting_share", "consensus_distance",
    "measured_seconds",
)  # fmt: skip
#: By how much of all samples the windows may miss them, whose rates are rounded.
_SLACK = 1e-6
#: What only grows from line to line.
_GROWING = ("epoch", "seconds", "samples", "bytes_sent", "bytes_received")


@dataclass(frozen=True, slots=True)
class Counted:
    """What workers have counted, piece by piece: (k,) columns, worker after worker, in order."""

    worker: Ints
    #: Gradient steps that the worker had finished by then.
    clock: Ints
    time: Floats
    samples: Ints
    #: Seconds since it began to be counted.
    lasts: Floats
    #: Seconds that the worker waited.
    waited: Floats
    #: Sum, number and maximum of τ over the shards, and the difference of their versions.
    tau: Ints
    taus: Ints
    tau_max: Ints
    skew: Ints


def counted_of_steps(
    table: Table, workers: Workers | None, *, pairs: bool = False, late: Ints | None = None
) -> Counted:
    """Return what was counted where a step is an event, and waiting another.

    Args:
        table: events of all workers, worker after worker.
        workers: their reads; None without servers.
        pairs: whether neighbours average without rounds, so that an average has a staleness.
        late: τ of each step, where stages count it and servers do not.
    """
    reads = table.where(*[Kind.TAKE] * pairs)[:, None]
    skew = np.zeros(len(reads), np.int64)
    if workers is not None:
        reads, skew = workers.reads[workers.is_answer], workers.skew
    waits = table.are(Kind.OFFER, Kind.LEAVE) & (table.real("seconds") > 0)
    waits |= table.are(Kind.REDUCED, Kind.MIXED)
    own = np.flatnonzero(table.are(Kind.STEP) | waits)
    at = np.sort(np.concatenate([own, reads[:, 0]]))
    owner, is_step = table["worker"][at], table.are(Kind.STEP)[at]
    # What is waited for belongs to the step before, and to clock 0 before the first.
    clock = np.where(is_step, table["clock"][at] + 1, 0)
    clock = np.maximum.accumulate(clock + owner * (1 << 40)) - owner * (1 << 40)
    row, staleness = np.searchsorted(at, reads[:, 0]), _staleness(table, reads)
    if late is not None:
        row, staleness, skew = np.flatnonzero(is_step), _of_stages(late), np.zeros_like(late)
    return Counted(
        owner,
        clock,
        table.real("time")[at],
        np.where(is_step, table["samples"][at], 0),
        table.real("seconds")[at],
        np.where(is_step, 0.0, table.real("seconds")[at]),
        *(_placed(len(at), row, column) for column in (*staleness, skew)),
    )


def counted_of_pushes(workers: Workers, *, late: Ints | None = None) -> Counted:
    """Return what was counted where a push is a step; nobody has died, so each is answered.

    ``late`` is as of ``counted_of_steps``.
    """
    table, reads = workers.table, workers.reads[workers.is_answer]
    at = reads[:, 0]
    return Counted(
        table["worker"][at],
        table["clock"][at],
        table.real("time")[at],
        table["samples"][workers.pushes[:, 0]],
        table.real("seconds")[at] + table.real("seconds")[workers.pushes[:, 0]],
        table.real("seconds")[at],
        *(_staleness(table, reads) if late is None else _of_stages(late)),
        workers.skew if late is None else np.zeros_like(late),
    )


def counted_of_cells(cells: Sequence[Counted]) -> Counted:
    """Return what the workers of all cells of a model that is cut have counted together.

    The first cell of a copy counts its samples.
    """
    columns = {
        name: np.concatenate([getattr(it, name) for it in cells])
        for name in Counted.__dataclass_fields__
    }
    number = np.repeat(np.arange(len(cells)), [len(it.worker) for it in cells])
    columns["worker"] = columns["worker"] * len(cells) + number
    columns["samples"] = np.where(number == 0, columns["samples"], 0)
    order = np.argsort(columns["worker"], kind="stable")
    return Counted(**{name: column[order] for name, column in columns.items()})


def _staleness(table: Table, reads: Ints) -> tuple[Ints, Ints, Ints]:
    """Return by read the sum, number and maximum of τ; −1 stands for a push that was not used."""
    tau = table["tau"][reads]
    used = tau >= 0
    return (tau * used).sum(axis=1), used.sum(axis=1), tau.max(axis=1, initial=0)


def _of_stages(late: Ints) -> tuple[Ints, Ints, Ints]:
    return late, np.ones_like(late), late


def _placed(length: int, at: Ints, values: Ints) -> Ints:
    column = np.zeros(length, np.int64)
    column[at] = values
    return column


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
    """Check that lines are whole, and that each agrees with the one before.

    Args:
        metrics: the lines.
        findings: takes what is wrong.
        numerics: whether there is a loss.
        gap: the largest that was measured; 0 without any.
        apart: whether it was measured how far apart workers are.
        silent: whether it may be that nobody says a loss, as in a loop of the user's own.
        forgotten: received bytes that a run which went on does not count any more, at most.

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


def check_windows(lines: Sequence[Figures]) -> None:
    """Check that windows of time add up, which is all that is known of them without events.

    Not where a run went on from a checkpoint: what is done over again is in one window more than
    its samples are counted.
    """
    ends = [it.number("measured_seconds") or 0.0 for it in lines]
    windows = [(it, end) for it, end in zip(lines, np.diff([0.0, *ends]), strict=True) if end > 0]
    if windows:
        lines[-1].same(lines[-1].number("seconds"), "measured_seconds", of="its seconds")
        samples = lines[-1].number("samples") or 0.0
        rates = [it.number("samples_per_second") or 0.0 for it, _ in windows]
        own, length = windows[-1]
        left = samples - np.dot(rates[:-1], [it for _, it in windows[:-1]])
        slack = _SLACK * samples / length
        own.near(float(left / length), "samples_per_second", slack=slack, of="all samples")


def check_distances(
    lines: Sequence[Figures],
    bounds: Mapping[int, tuple[float, float]],
    unknown: Sequence[range] = (),
) -> None:
    """Check that each line says how far apart workers are, within the bounds of its step.

    Args:
        lines: of the metrics.
        bounds: by step; of others it may be any.
        unknown: steps that may say nothing.
    """
    for line in lines:
        step = int(line.number("step") or 0)
        low, high = bounds.get(step, (0.0, math.inf))
        if any(step in steps for steps in unknown):
            line.maybe_within(low, high, "consensus_distance")
        else:
            line.within(low, high, "consensus_distance")


def split_steps(table: Table, resumed: Sequence[float], workers: int) -> list[range]:
    """Return the steps that only some workers had told of where a run went on from a checkpoint.

    What these had told of how far they are from others is known to nobody any more. A worker tells
    of its last step after it was saved with it, or, where it was done, before.

    Args:
        table: events of all workers.
        resumed: when the run went on.
        workers: their number.
    """
    at = table.where(Kind.STEP)
    time, owner = table.real("time")[at], table["worker"][at]
    clocks = [np.bincount(owner[time < when], minlength=workers) for when in resumed]
    return [range(int(it.min()), int(it.max()) + 1) if np.ptp(it) else range(0) for it in clocks]


def check_lines(
    contract: Contract,
    lines: Sequence[Figures],
    counted: Counted,
    log_every: int,
    findings: Findings,
) -> None:
    """Check every line against the events; nobody has died, and psrt has cut the data.

    Args:
        contract: of the run.
        lines: as ``check_metrics`` returned them.
        counted: by the workers.
        log_every: steps between two lines; 0 for the ends of epochs only.
        findings: takes what is wrong.
    """
    plan = contract.plan
    assert plan is not None, "else it is not known where an epoch ends"
    worker, clock = counted.worker, counted.clock
    last = np.zeros(contract.workers, np.int64)
    last[worker] = clock  # the newest one stays
    ends = (clock == last[worker]) | ((clock > 0) & plan.begins_epoch(clock))
    reports = ends
    if log_every:
        before = np.where(same_as_before(worker), previous(clock, 0), 0)
        reports = ends | (clock // log_every > before // log_every)
        on_beat = reports & (clock % log_every == 0)
        steps = np.unique(clock[ends | on_beat])
    else:
        steps = np.unique(clock[ends])
    if len(steps) != len(lines):
        findings.count(METRICS, 1)
        text = f"metrics.jsonl has {len(lines)} lines, the history makes {len(steps)}"
        findings.missing(METRICS, text)
        return
    # What was counted is in its worker's next report, and that in the next line.
    wide = int(last.max()) + 1
    key = worker * wide + clock
    sent = np.unique(key[reports])  # of each worker the last one is there
    report = np.searchsorted(sent, key)
    line = np.searchsorted(steps, sent[report] % wide)
    low, high = _times(contract, counted)
    _check_counts(contract, lines, counted, line, low, high)
    if not contract.resumed:
        _check_windows(contract, lines, counted, report, low, high)
    for name, due in (("step", steps), ("epoch", plan.epochs(steps))):
        for figures, value in zip(lines, due.tolist(), strict=True):
            figures.same(value, name)
    ending, evaluating = set(line[ends].tolist()), set(line[ends & (worker == 0)].tolist())
    for i, figures in enumerate(lines):
        figures.same(i in ending, "epoch_end")
        if i not in evaluating:
            figures.same(None, "evaluated_seconds")


def _check_counts(
    contract: Contract,
    lines: Sequence[Figures],
    counted: Counted,
    line: Ints,
    low: Floats,
    high: Floats,
) -> None:
    """Check numbers and times; ``line`` says of each piece which line it is in."""
    count = len(lines)

    def largest(values: Ints | Floats) -> Ints | Floats:
        found = np.full(count, values.min(initial=0))
        np.maximum.at(found, line, values)
        return found

    samples = np.cumsum(np.bincount(line, counted.samples, count))
    tau, taus = np.bincount(line, counted.tau, count), np.bincount(line, counted.taus, count)
    tau_max, skew = largest(counted.tau_max), largest(counted.skew)
    low, high = (np.maximum.accumulate(largest(it)) for it in (low, high))
    for i, figures in enumerate(lines):
        figures.same(int(samples[i]), "samples")
        if contract.exact_times:
            figures.same(float(low[i]), "seconds")
        else:
            figures.within(float(low[i]) - CLOCK_S, math.inf, "seconds", rounded=True)
            if contract.one_clock and not contract.resumed:  # a report counts the time to save
                figures.within(0.0, float(high[i]) + CLOCK_S, "seconds", rounded=True)
        if taus[i]:
            figures.near(tau[i] / taus[i], "staleness_mean")
            figures.same(int(tau_max[i]), "staleness_max")
            figures.same(int(skew[i]), "skew_max")
        else:
            for name in ("staleness_mean", "staleness_max", "skew_max"):
                figures.same(None, name)


def _times(contract: Contract, counted: Counted) -> tuple[Floats, Floats]:
    """Return by piece the least and the most seconds at which what follows it was reported.

    A report follows what it counts, and in virtual time at once. By a real clock time began before
    the first piece did, and a worker reports before its next piece.
    """
    follows = same_as_before(counted.worker)
    time = without_pauses(counted.time, counted.lasts, counted.worker, contract.resumed)
    begin = time[~follows] - counted.lasts[~follows]
    since = 0.0 if contract.simulated else begin[np.cumsum(~follows) - 1]
    until = np.where(np.append(follows[1:], False), np.append(time[1:], 0), np.inf)
    return time - since, until


def _check_windows(
    contract: Contract,
    lines: Sequence[Figures],
    counted: Counted,
    report: Ints,
    low: Floats,
    high: Floats,
) -> None:
    """Check rates and waits: windows up to each add up to what workers had done by its end.

    Args:
        contract: of the run.
        lines: of the metrics.
        counted: by the workers.
        report: (k,) the number of the report that each piece is in, worker after worker.
        low: (k,) the least seconds at which it was made, if that is its last piece.
        high: (k,) the most.
    """
    last = np.append(np.flatnonzero(np.diff(report)), len(report) - 1)
    owner, ends = counted.worker[last], [it.number("measured_seconds") or 0.0 for it in lines]
    early, late = low[last] - CLOCK_S, high[last] + CLOCK_S
    # The first worker of a model that is cut may wait for the parts of others before it reports.
    if contract.exact_times and not contract.cut:
        early = late = low[last]
    lines[-1].same(lines[-1].number("seconds"), "measured_seconds", of="its seconds")
    lengths = np.diff([0.0, *ends])
    newest = max(np.flatnonzero(lengths > 0), default=-1)  # which has all that is left
    for name, counts, each in (
        ("samples_per_second", counted.samples, 1),
        ("waiting_share", counted.waited, contract.workers),
    ):
        amounts = np.bincount(report, counts)
        total, said = float(amounts.sum()), 0.0
        least, most = (_done(ends, it, owner, amounts) for it in (late, early))
        for i, (figures, length) in enumerate(zip(lines, lengths.tolist(), strict=True)):
            if length <= 0:
                continue
            bounds = (least[i], most[i]) if contract.one_clock else (0.0, total)
            bounds = (total, total) if i == newest else bounds
            slack = _SLACK * total
            figures.within(
                (bounds[0] - slack - said) / (each * length),
                (bounds[1] + slack - said) / (each * length),
                name,
                rounded=True,
            )
            said += each * length * (figures.number(name) or 0.0)


def _done(ends: Sequence[float], time: Floats, owner: Ints, amounts: Ints | Floats) -> Floats:
    """Return what all workers had done by some times, evenly from each report to the next.

    Args:
        ends: the times.
        time: (r,) of the reports, worker after worker.
        owner: (r,) whose they are.
        amounts: (r,) what was done since the one before.
    """
    total = np.zeros(len(ends))
    for at in np.split(np.arange(len(owner)), np.flatnonzero(np.diff(owner)) + 1):
        times = np.append(0.0, np.maximum.accumulate(time[at]))
        total += np.interp(ends, times, np.append(0.0, np.cumsum(amounts[at])))
    return total
