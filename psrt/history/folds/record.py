"""A line of ``metrics.jsonl``: each column declared once, with its unit and its formula. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, NamedTuple

from psrt.core.stats import COLUMNS as STATS
from psrt.core.stats import Report
from psrt.history.folds.windows import Window


class Interval(NamedTuple):
    """What happened between two records, and the state at its end."""

    #: The reports of all workers, by worker and step.
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
    #: The columns of ``psrt.core.stats`` at its end, by name.
    columns: Mapping[str, float]
    #: The time since the previous record's.
    window: Window
    #: The distance of the workers' models when last measured, None if it was not.
    consensus: float | None = None

    def total(self, name: str) -> Any:
        """Return the sum of a field of the reports."""
        return sum(map(attrgetter(name), self.reports))

    def largest(self, name: str) -> Any:
        """Return the maximum of a field of pushes; None without pushes."""
        if not self.pushes:
            return None
        return max(map(attrgetter(name), self.reports))

    def evaluations(self) -> list[Report]:
        """Return the reports that evaluated on the test set."""
        return [report for report in self.reports if is_evaluated(report)]

    def figures(self) -> dict[str, float]:
        """Return the other figures on the test set, by name; of several the newest."""
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

    The *interval* of a record is everything since the previous record: the steps of all workers up
    to ``step``, whenever they took them. Fields are None if there was nothing to measure. Each
    column is declared here, once: name, unit, formula and time.
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
    #: Bytes that workers have sent since the start.
    bytes_sent: int = _column("bytes", lambda it: int(it.columns["bytes_sent"]))
    #: Bytes that workers have received since the start.
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
    #: ‖θ_i − mean‖/√n of the workers' own models, as root mean square over the workers, at the
    #: newest clock of the interval at which they were compared; None without any.
    consensus_distance: float | None = _column("", lambda it: it.consensus, default=None)
    #: End of the window of ``samples_per_second`` and ``waiting_share``, which starts at the end of
    #: the previous record's: the last time, up to ``seconds``, that all workers had reported.
    measured_seconds: float | None = _column("seconds", lambda it: it.window.end, default=None)
    #: Columns of ``psrt.core.stats`` without a field here, and other figures of ``evaluate``, by
    #: name: written like the fields.
    more: dict[str, float] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """Other figures of ``evaluate`` on the test set, by name."""
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
    own = "seconds" if name in STATS else "evaluated_seconds"  # for other evaluated figures
    at = record.get(COLUMNS[name]["at"] if name in COLUMNS else own)
    return float(record["seconds"] if at is None else at)


def _ratio(total: float, count: float) -> float | None:
    return total / count if count else None


def is_evaluated(report: Report) -> bool:
    """Return whether a report has figures of the test set."""
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
