"""The journal: many workers' reports become one series of records. Pure: no files, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psrt.errors import ProtocolError
from psrt.messages import Report


@dataclass(frozen=True, slots=True)
class Record:
    """The state of the whole run at one logged step; a line of ``metrics.jsonl``.

    *Interval* is what happened since the previous record. Fields are None where there was
    nothing to measure.
    """

    #: Epochs finished.
    epoch: int
    #: Worker clock that every worker has reached: gradient steps finished by each.
    step: int
    #: Mean training loss over the samples of the interval; nan if there were none.
    loss: float
    #: Loss on the test set, if anyone evaluated.
    test_loss: float | None
    #: Accuracy on the test set in [0, 1], if anyone evaluated and there are classes.
    accuracy: float | None
    #: Time since training began until the last of the workers got here, in seconds.
    seconds: float
    #: Training samples per second of the interval, all workers together.
    samples_per_second: float | None
    #: Training samples since the start, all workers together.
    samples: int
    #: Mean τ over the answered pushes of the interval, None without pushes.
    staleness_mean: float | None
    #: Largest τ among them, None without pushes.
    staleness_max: int | None
    #: Bytes that workers handed to the transport since the start.
    bytes_sent: int
    #: Bytes that workers took from the transport since the start.
    bytes_received: int
    #: Whether an epoch ends here.
    epoch_end: bool
    #: When the test set was looked at, in seconds since training began: earlier than ``seconds``
    #: where the worker that did so is ahead of others. None if nobody did.
    evaluated_seconds: float | None = None


class Journal:
    """Merges the reports of ``workers`` into records, in step order.

    A step is logged if it is a multiple of ``log_every`` or ends an epoch. Its record is
    complete when every worker has reported that step or a later one, or has left; it then holds
    all reports up to that step that no earlier record holds. Workers report in step order, so
    which report is in which record does not depend on the order of arrival. A worker may skip
    logged steps (with backups it jumps over clocks): what it then reports counts for the next.
    What workers report last, between two logged steps, makes one more record at the very end.

    Args:
        workers: how many workers report, W ≥ 1.
        log_every: steps between records; 0: at the ends of epochs only.
    """

    def __init__(self, workers: int, *, log_every: int = 0) -> None:
        assert workers >= 1
        assert log_every >= 0
        self._log_every = log_every
        #: Step of each worker's newest report; inf once it has left.
        self._reached: list[float] = [-1.0] * workers
        #: Reports that no record holds yet.
        self._waiting: list[Report] = []
        #: Logged steps whose record is not complete yet.
        self._open: set[int] = set()
        #: Step of the newest record.
        self._recorded = -1
        # Totals up to the newest record.
        self._epoch = 0
        self._samples = self._sent = self._received = 0
        self._seconds = 0.0

    @property
    def finished(self) -> bool:
        """Whether every worker has sent its last report, so that none is to be waited for."""
        return min(self._reached) == math.inf

    def add(self, report: Report) -> list[Record]:
        """Take one worker's report; return the records that it completes, in step order.

        Raises:
            ProtocolError: if no such worker exists, or it reports after its last report or
                steps backwards.
        """
        self._admit(report)
        self._waiting.append(report)
        if self._is_logged(report):
            self._open.add(report.step)
        complete = sorted(step for step in self._open if step <= min(self._reached))
        self._open.difference_update(complete)
        records = [self._record(step) for step in complete]
        if self.finished and any(_says_something(r) for r in self._waiting):
            records.append(self._record(max(r.step for r in self._waiting)))
        return records

    def _is_logged(self, report: Report) -> bool:
        """Whether a record of the report's step is due, unless it is there already."""
        on_beat = self._log_every > 0 and report.step % self._log_every == 0
        return report.step > self._recorded and (on_beat or report.epoch_end)

    def _admit(self, report: Report) -> None:
        worker, step, workers = report.worker, report.step, len(self._reached)
        if not 0 <= worker < workers:
            raise ProtocolError(f"worker {worker} reported, expected 0 to {workers - 1}")
        reached = self._reached[worker]
        if reached == math.inf:
            raise ProtocolError(f"worker {worker} reported step {step} after its last report")
        # The last report may repeat the step of the one before: nothing was left to do.
        if step < reached or (step == reached and not report.last):
            raise ProtocolError(
                f"worker {worker} reported step {step}, expected more than {int(reached)}"
            )
        self._reached[worker] = math.inf if report.last else step

    def _record(self, step: int) -> Record:
        """Close the record of ``step`` with all waiting reports up to it."""
        self._recorded = step
        # Sorted, so that sums of floats do not depend on the order of arrival.
        reports = sorted((r for r in self._waiting if r.step <= step), key=lambda r: r[:3])
        self._waiting = [r for r in self._waiting if r.step > step]
        samples = sum(r.samples for r in reports)
        seconds = max([self._seconds, *(r.seconds for r in reports)])
        elapsed, self._seconds = seconds - self._seconds, seconds
        self._epoch = max([self._epoch, *(r.epoch for r in reports)])
        self._samples += samples
        self._sent += sum(r.bytes_sent for r in reports)
        self._received += sum(r.bytes_received for r in reports)
        pushes = sum(r.staleness_count for r in reports)
        return Record(
            epoch=self._epoch,
            step=step,
            loss=_weighted_loss(reports, samples),
            test_loss=_mean_of_known(r.test_loss for r in reports),
            accuracy=_mean_of_known(r.test_accuracy for r in reports),
            seconds=seconds,
            samples_per_second=samples / elapsed if elapsed > 0 else None,
            samples=self._samples,
            staleness_mean=sum(r.staleness_sum for r in reports) / pushes if pushes else None,
            staleness_max=max(r.staleness_max for r in reports) if pushes else None,
            bytes_sent=self._sent,
            bytes_received=self._received,
            epoch_end=any(r.epoch_end for r in reports),
            evaluated_seconds=max((r.seconds for r in reports if _evaluated(r)), default=None),
        )


def _says_something(report: Report) -> bool:
    """Whether a report is worth a record: it trained or it evaluated."""
    return report.samples > 0 or _evaluated(report)


def _evaluated(report: Report) -> bool:
    return not (math.isnan(report.test_loss) and math.isnan(report.test_accuracy))


def _weighted_loss(reports: Sequence[Report], samples: int) -> float:
    """Return the mean loss over all samples; a report without samples has no say."""
    if not samples:
        return math.nan
    return sum(r.loss * r.samples for r in reports if r.samples) / samples


def _mean_of_known(values: Iterable[float]) -> float | None:
    """Return the mean of those that are not nan, None if all are: nobody evaluated."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else None
