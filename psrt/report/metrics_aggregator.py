"""Merges the reports of all workers into one series of records. Pure: no files, no clock."""

from __future__ import annotations

import heapq
import json
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from psrt.errors import ProtocolError
from psrt.messages import Report, Sketch
from psrt.runtime.sketch import distance
from psrt.stats import COLUMNS as STATS
from psrt.stats import Stats, merged_columns


class Window(NamedTuple):
    """A stretch of time, the same for all workers, and what they did in it, whatever their step."""

    #: When it ends, in seconds since the start of training.
    end: float
    #: Seconds since the end of the one before; 0 if nothing more is known of all workers.
    length: float
    #: Training samples, those of a report spread evenly over its time.
    samples: float
    #: Seconds that workers waited, all of them together.
    waited: float


class Interval(NamedTuple):
    """What happened between two records, and what was reached at the end of it."""

    #: Of all workers, by worker and step.
    reports: Sequence[Report]
    #: Step of the record.
    step: int
    #: Epochs finished at its end.
    epoch: int
    #: Since the start of training, at its end.
    seconds: float
    #: Training samples since the start, all workers together.
    samples: int
    #: Training samples in it.
    made: int
    #: Answered pushes in it.
    pushes: int
    #: W.
    workers: int
    #: The columns of ``psrt.stats`` at its end, by name.
    columns: Mapping[str, float]
    #: The time since the previous record's.
    window: Window
    #: How far apart the models of the workers were when it was last measured, None if it was not.
    consensus: float | None = None

    def total(self, name: str) -> Any:
        """Return the sum of a field of the reports."""
        return sum(map(attrgetter(name), self.reports))

    def largest(self, name: str) -> Any:
        """Return the maximum of a field of the reports; None without pushes, which it is of."""
        if not self.pushes:
            return None
        return max(map(attrgetter(name), self.reports))

    def evaluations(self) -> list[Report]:
        """Return the reports that evaluated on the test set."""
        return [report for report in self.reports if _evaluated(report)]

    def figures(self) -> dict[str, float]:
        """Return what else was found on the test set, by name; of several the newest."""
        found: dict[str, float] = {}
        for report in self.reports:
            found |= json.loads(report.figures) if report.figures else {}
        return found


def _column(
    unit: str, formula: Callable[[Interval], Any], *, at: str = "seconds", **default: Any
) -> Any:
    """Declare a column: its unit, how it follows from an interval, and which column is its time."""
    return field(metadata={"unit": unit, "formula": formula, "at": at}, **default)


@dataclass(frozen=True, slots=True)
class Record:
    """The state of the whole run at one logged step; a line of ``metrics.jsonl``.

    *Interval* is what happened since the previous record: in the steps of all workers up to
    ``step``, whenever they took them. Fields are None where there was nothing to measure. A column
    is declared here, once: name, unit, formula and time.
    """

    #: Epochs finished.
    epoch: int = _column("epochs", lambda it: it.epoch)
    #: Worker clock that every worker has reached: gradient steps finished by each.
    step: int = _column("steps", lambda it: it.step)
    #: Mean training loss over the samples of the interval; nan if there were none.
    loss: float = _column("", lambda it: _weighted_loss(it.reports, it.made))
    #: Loss on the test set, if anyone evaluated.
    test_loss: float | None = _column(
        "",
        lambda it: _mean_of_known(report.test_loss for report in it.reports),
        at="evaluated_seconds",
    )
    #: Accuracy on the test set in [0, 1], if anyone evaluated and there are classes.
    accuracy: float | None = _column(
        "",
        lambda it: _mean_of_known(report.test_accuracy for report in it.reports),
        at="evaluated_seconds",
    )
    #: Time from the start of training until the last worker reached ``step``, in seconds.
    seconds: float = _column("seconds", lambda it: it.seconds)
    #: Training samples per second of the window of time that ends at ``measured_seconds``, all
    #: workers together; None if no time passed.
    samples_per_second: float | None = _column(
        "samples/s",
        lambda it: _ratio(it.window.samples, it.window.length),
        at="measured_seconds",
    )
    #: Training samples of all workers up to ``step``.
    samples: int = _column("samples", lambda it: it.samples)
    #: Mean τ over the gradients of the interval that updates took, None without any.
    staleness_mean: float | None = _column(
        "versions", lambda it: _ratio(it.total("staleness_sum"), it.pushes)
    )
    #: Largest τ among them, None without any.
    staleness_max: int | None = _column("versions", lambda it: it.largest("staleness_max"))
    #: Bytes that workers handed to the transport since the start.
    bytes_sent: int = _column("bytes", lambda it: int(it.columns["bytes_sent"]))
    #: Bytes that workers took from the transport since the start.
    bytes_received: int = _column("bytes", lambda it: int(it.columns["bytes_received"]))
    #: Whether an epoch ends here.
    epoch_end: bool = _column("", lambda it: any(report.epoch_end for report in it.reports))
    #: Time of the evaluation on the test set, in seconds since training began: earlier than
    #: ``seconds`` if the evaluating worker is ahead of others. None without an evaluation.
    evaluated_seconds: float | None = _column(
        "seconds",
        lambda it: max((report.seconds for report in it.evaluations()), default=None),
        default=None,
    )
    #: Mean gap ‖θ_now − θ_read‖/√n of the interval's measured gradients, None without any.
    gap_mean: float | None = _column(
        "", lambda it: _ratio(it.total("gap_sum"), it.total("gap_count")), default=None
    )
    #: Largest difference of shard versions in a read of the interval, None where τ is.
    skew_max: int | None = _column("versions", lambda it: it.largest("skew_max"), default=None)
    #: Share of the workers' time in that window spent waiting, None if no time passed.
    waiting_share: float | None = _column(
        "",
        lambda it: _ratio(it.window.waited, it.window.length * it.workers),
        at="measured_seconds",
        default=None,
    )
    #: ‖θ_i − mean‖/√n of the workers' own models, the root of its mean square over the workers, at
    #: the newest clock of the interval at which they were compared; None without any.
    consensus_distance: float | None = _column("", lambda it: it.consensus, default=None)
    #: End of the window of ``samples_per_second`` and ``waiting_share``, which begins at that of
    #: the previous record: the last time, up to ``seconds``, of which all workers had told.
    measured_seconds: float | None = _column("seconds", lambda it: it.window.end, default=None)
    #: Columns of ``psrt.stats`` that have no field here, and what else ``evaluate`` has found, by
    #: name: written like the fields.
    more: dict[str, float] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """What else ``evaluate`` has found on the test set, by name."""
        return {name: it for name, it in self.more.items() if name not in STATS}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Record:
        """Return the record of a line of ``metrics.jsonl``.

        Raises:
            TypeError: if it lacks a column.
        """
        known = {name: it for name, it in values.items() if name in COLUMNS}
        if known.get("loss", ...) is None:
            known["loss"] = math.nan
        more = {name: it for name, it in values.items() if name not in COLUMNS}
        return cls(**known, more=more)

    @classmethod
    def of(cls, interval: Interval) -> Record:
        """Return the record of an interval, every column by its formula."""
        return cls(
            **{name: column["formula"](interval) for name, column in COLUMNS.items()},
            more={name: it for name, it in interval.columns.items() if name not in COLUMNS}
            | interval.figures(),
        )


#: The columns of every line, by name: their ``unit`` and ``formula``, and the column that is the
#: time which they belong ``at``.
COLUMNS = {it.name: it.metadata for it in fields(Record) if it.metadata}


def time_of(record: Mapping[str, Any], name: str) -> float:
    """Return the time of a column of a record, in seconds since training began.

    >>> run = {"seconds": 9.0, "evaluated_seconds": 3.0}
    >>> time_of(run, "loss"), time_of(run, "accuracy"), time_of(run, "f1")
    (9.0, 3.0, 3.0)
    """
    own = "seconds" if name in STATS else "evaluated_seconds"  # of what else was evaluated
    at = record.get(COLUMNS[name]["at"] if name in COLUMNS else own)
    return float(record["seconds"] if at is None else at)


class _Slowest:
    """The step that all of some workers have reached.

    The cost of a step does not grow with the number of workers.
    """

    def __init__(self, workers: int) -> None:
        #: Step of each worker; inf once it has left.
        self.reached: list[float] = [-1.0] * workers
        #: The number of workers at each step, and a heap of these steps.
        self._at: Counter[float] = Counter({-1.0: workers})
        self._steps: list[float] = [-1.0]

    def reach(self, worker: int, step: float) -> None:
        """Note that a worker has reached a step; inf if it has left."""
        before, self.reached[worker] = self.reached[worker], step
        self._at[before] -= 1
        if step not in self._at:
            heapq.heappush(self._steps, step)
        self._at[step] += 1

    @property
    def step(self) -> float:
        """The last step that every worker has reached; inf if all have left."""
        while not self._at[self._steps[0]]:
            del self._at[heapq.heappop(self._steps)]
        return self._steps[0]


class _Apart:
    """How far apart workers are, by sketches that each of them makes at the same clocks.

    A clock counts if all have sketched there but those that had left before.
    """

    def __init__(self, workers: int) -> None:
        self._slowest = _Slowest(workers)
        #: By worker, the clock of its newest sketch.
        self._last = [-1] * workers
        #: By clock and worker, those at clocks that not all have reached.
        self._sketches: dict[int, dict[int, bytes]] = {}
        #: By clock that counts, in order, the distances that are in no record yet.
        self._distances: dict[int, float | None] = {}

    def add(self, sketch: Sketch) -> None:
        """Keep a sketch until those of all workers have come."""
        self._sketches.setdefault(sketch.clock, {})[sketch.worker] = sketch.numbers
        self._last[sketch.worker] = sketch.clock
        self._reach(sketch.worker, sketch.clock)

    def gone(self, worker: int) -> None:
        """Wait for a worker no more."""
        self._reach(worker, math.inf)

    def take(self, step: int) -> float | None:
        """Return the newest distance up to a step; None if there is none since the last call."""
        found = None
        for clock in [clock for clock in self._distances if clock <= step]:
            found = self._distances.pop(clock)
        return found

    def _reach(self, worker: int, step: float) -> None:
        before = self._slowest.step
        self._slowest.reach(worker, step)
        if (step := self._slowest.step) == before:
            return
        for clock in sorted(clock for clock in self._sketches if clock <= step):
            found = self._sketches.pop(clock)
            if len(found) == sum(last >= clock for last in self._last):
                # By worker, so that the order of arrival does not show.
                sketches = [np.frombuffer(found[worker]) for worker in sorted(found)]
                self._distances[clock] = distance(sketches)


class _Windows:
    """Cuts what workers report into windows of time.

    A report tells of the time since the one before, over which what was done is taken to be spread
    evenly. So each worker's time is in the windows once, whatever step it is at: samples add up to
    all of them, and nobody waits for more than there is of a window.
    """

    def __init__(self, workers: int) -> None:
        #: End of the newest window; and of the last one of the run that goes on, if it does.
        self.end = self._began = 0.0
        #: By worker, since when and until when it did how much that no window has yet.
        self._left: list[deque[tuple[float, float, float, float]]] = [
            deque() for _ in range(workers)
        ]
        #: By worker, up to when it has told; inf once it tells no more.
        self._told = [0.0] * workers

    def go_on(self, end: float) -> None:
        """Begin after the last window of a run that is resumed."""
        self.end = self._began = end
        self._told = [end] * len(self._told)

    def add(self, report: Report) -> None:
        """Take what a worker did, but for what the run before has in its windows."""
        since, until, share = report.since, report.seconds, 1.0
        if since < self._began:
            share = (until - self._began) / (until - since) if until > self._began else 0.0
            since = self._began
        if share:
            piece = (since, until, share * report.samples, share * report.waited)
            self._left[report.worker].append(piece)
        self._told[report.worker] = math.inf if report.last else until

    def gone(self, worker: int) -> None:
        """Wait for a worker no more."""
        self._told[worker] = math.inf

    def close(self, until: float) -> Window:
        """Return the next window, up to a time, or as far as all workers have told."""
        end = max(self.end, min(until, *self._told))
        length, self.end = end - self.end, end
        pieces = [self._take(left, end) for left in self._left] if length else []
        samples, waited = map(sum, zip(*pieces, strict=True)) if pieces else (0.0, 0.0)
        return Window(end, length, samples, waited)

    @staticmethod
    def _take(left: deque[tuple[float, float, float, float]], end: float) -> tuple[float, float]:
        """Take what a worker did until the end of a window: samples, and seconds of waiting."""
        made = waited = 0.0
        while left and (left[0][0] < end or left[0][1] <= end):
            since, until, samples, seconds = left.popleft()
            share = 1.0
            if until > end:
                share = (end - since) / (until - since)
                left.appendleft((end, until, samples * (1 - share), seconds * (1 - share)))
            made, waited = made + share * samples, waited + share * seconds
        return made, waited


class MetricsAggregator:
    """Merges the reports of ``workers`` into records, in step order.

    A step is logged if it is a multiple of ``log_every`` or ends an epoch. Its record is
    complete when every worker has reported that step or a later one, or has left; it then holds
    all reports up to that step that no earlier record holds. Workers report in step order, so
    which report is in which record does not depend on the order of arrival. A worker may skip
    logged steps (with backups it jumps over clocks): what it then reports counts for the next.
    What workers report last, between two logged steps, makes one more record at the very end.

    Args:
        workers: the number of workers that report, W ≥ 1.
        log_every: steps between records; 0: at the ends of epochs only.
    """

    def __init__(self, workers: int, *, log_every: int = 0) -> None:
        assert workers >= 1
        assert log_every >= 0
        self._log_every = log_every
        #: Of the workers' newest reports.
        self._slowest = _Slowest(workers)
        self._apart = _Apart(workers)
        self._windows = _Windows(workers)
        #: Reports that no record holds yet, by step, and a heap of these steps.
        self._waiting: dict[int, list[Report]] = {}
        self._waiting_steps: list[int] = []
        #: Logged steps whose record is not complete yet: a heap, and the same as a set.
        self._open: list[int] = []
        self._opened: set[int] = set()
        #: Step of the newest record.
        self._recorded = -1
        #: Step of the last record of the run that this one goes on with.
        self._began = -1
        # Totals up to the newest record.
        self._epoch = 0
        self._samples = 0
        #: By worker, its columns of ``psrt.stats``.
        self._columns = [Stats().columns()] * workers
        self._seconds = 0.0

    @property
    def finished(self) -> bool:
        """Whether every worker has sent its last report."""
        return self._slowest.step == math.inf

    def go_on(self, last: Record) -> None:
        """Begin after the last record of a run that is resumed."""
        self._recorded = self._began = last.step
        self._epoch = last.epoch
        self._samples, self._seconds = last.samples, last.seconds
        self._windows.go_on(last.measured_seconds or 0.0)

    def add(self, report: Report) -> list[Record]:
        """Merge one worker's report; return the records that it completes, in step order.

        Raises:
            ProtocolError: if no such worker exists, or it reports after its last report or
                steps backwards.
        """
        if report.step <= self._began:  # is in a record of the run that goes on
            self._columns[report.worker] = report.columns
            self._windows.add(report)
            return self.gone(report.worker) if report.last else []
        self._admit(report)
        self._windows.add(report)
        step = report.step
        if step not in self._waiting:
            self._waiting[step] = []
            heapq.heappush(self._waiting_steps, step)
        self._waiting[step].append(report)
        if self._is_logged(report) and step not in self._opened:
            self._opened.add(step)
            heapq.heappush(self._open, step)
        return self._complete()

    def reported(self, worker: int) -> Stats:
        """Return what a worker has reported of the columns of ``psrt.stats``."""
        return Stats.of_columns(worker, self._columns[worker])

    def look(self, sketch: Sketch) -> None:
        """Take note of where a worker's own model is."""
        self._apart.add(sketch)

    def gone(self, worker: int) -> list[Record]:
        """Stop waiting for a worker that died; return the records that this completes."""
        self._reach(worker, math.inf)
        return self._complete()

    def _complete(self) -> list[Record]:
        """Return the records of steps that every worker has reached, in step order."""
        records = []
        while self._open and self._open[0] <= self._slowest.step:
            step = heapq.heappop(self._open)
            self._opened.remove(step)
            records.append(self._record(step))
        left = self._waiting.values() if self.finished else ()
        if any(_says_something(report) for reports in left for report in reports):
            records.append(self._record(max(self._waiting)))
        return records

    def _is_logged(self, report: Report) -> bool:
        """Whether the report's step is to be logged and has no record yet."""
        on_beat = self._log_every > 0 and report.step % self._log_every == 0
        return report.step > self._recorded and (on_beat or report.epoch_end)

    def _admit(self, report: Report) -> None:
        worker, step, workers = report.worker, report.step, len(self._slowest.reached)
        if not 0 <= worker < workers:
            raise ProtocolError(f"worker {worker} reported, expected 0 to {workers - 1}")
        reached = self._slowest.reached[worker]
        if reached == math.inf:
            raise ProtocolError(f"worker {worker} reported step {step} after its last report")
        # The last report may repeat the step of the one before: nothing was left to do.
        if step < reached or (step == reached and not report.last):
            raise ProtocolError(
                f"worker {worker} reported step {step}, expected more than {int(reached)}"
            )
        self._reach(worker, math.inf if report.last else step)

    def _reach(self, worker: int, step: float) -> None:
        """Note that a worker has reached a step; inf if it has left."""
        self._slowest.reach(worker, step)
        if step == math.inf:
            self._apart.gone(worker)
            self._windows.gone(worker)

    def _record(self, step: int) -> Record:
        """Close the record of ``step`` with all waiting reports up to it."""
        self._recorded = step
        # Sorted, so that sums of floats do not depend on the order of arrival.
        reports: list[Report] = []
        while self._waiting_steps and self._waiting_steps[0] <= step:
            reports += self._waiting.pop(heapq.heappop(self._waiting_steps))
        reports.sort(key=lambda r: r[:3])
        self._seconds = max([self._seconds, *(r.seconds for r in reports)])
        self._epoch = max([self._epoch, *(r.epoch for r in reports)])
        made = sum(r.samples for r in reports)
        self._samples += made
        for report in reports:
            self._columns[report.worker] = report.columns
        return Record.of(
            Interval(
                reports,
                step,
                self._epoch,
                self._seconds,
                self._samples,
                made,
                sum(r.staleness_count for r in reports),
                len(self._slowest.reached),
                merged_columns(self._columns),
                self._windows.close(self._seconds),
                self._apart.take(step),
            )
        )


def _ratio(total: float, count: float) -> float | None:
    return total / count if count else None


def _says_something(report: Report) -> bool:
    """Whether a report is worth a record: it trained or it evaluated."""
    return report.samples > 0 or _evaluated(report)


def _evaluated(report: Report) -> bool:
    found = (report.test_loss, report.test_accuracy)
    return bool(report.figures) or not all(map(math.isnan, found))


def _weighted_loss(reports: Sequence[Report], samples: int) -> float:
    """Return the mean loss over all samples; reports without samples have a loss of nan."""
    if not samples:
        return math.nan
    return sum(r.loss * r.samples for r in reports if r.samples) / samples


def _mean_of_known(values: Iterable[float]) -> float | None:
    """Return the mean of the values that are not nan; None if all are, without evaluation."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else None
