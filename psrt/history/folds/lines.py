"""Merges the reports of all workers into one series of records. Pure: no files, no clock."""

from __future__ import annotations

import heapq
import math

from psrt.core.errors import ProtocolError
from psrt.core.stats import Report, Sketch, Stats, merged_columns
from psrt.history.folds.apart import Apart, Slowest
from psrt.history.folds.record import Interval, Record, is_evaluated
from psrt.history.folds.windows import Windows


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
        windows: of the same workers; None makes them.
    """

    def __init__(self, workers: int, *, log_every: int = 0, windows: Windows | None = None) -> None:
        assert workers >= 1
        assert log_every >= 0
        self._log_every = log_every
        #: Of the workers' newest reports.
        self._slowest = Slowest(workers)
        self._apart = Apart(workers)
        self._windows = windows or Windows(workers)
        #: Reports that no record holds yet, by step, and a heap of these steps.
        self._waiting: dict[int, list[Report]] = {}
        self._waiting_steps: list[int] = []
        #: Logged steps whose record is not complete yet: a heap, and the same as a set.
        self._open: list[int] = []
        self._opened: set[int] = set()
        #: Step of the newest record.
        self._recorded = -1
        #: Step of the last record of the run that this one resumes.
        self._began = -1
        # Totals up to the newest record.
        self._epoch = 0
        self._samples = 0
        #: By worker, its columns of ``psrt.core.stats``.
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
        if report.step <= self._began:  # is in a record of the resumed run
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
        """Return what a worker has reported of the columns of ``psrt.core.stats``."""
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


def _says_something(report: Report) -> bool:
    """Whether a report is worth a record: it trained or it evaluated."""
    return report.samples > 0 or is_evaluated(report)
