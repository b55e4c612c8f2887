"""The counters of a run: each figure declared once, with its unit and how it merges over ranks.

Each rank counts into its own ``Stats``. At the end they are sent to rank 0 as text and merged into
``summary.json``; a figure without a field in the summary is written under its own name. So a new
counter takes one line here and one line where it is counted.

A figure that workers count may also be a *column* of ``metrics.jsonl``: with each report a worker
sends its counts since the start, and a line holds the newest counts of all workers, merged as in
the summary. Pure.
"""

# ruff: noqa: RUF009 - the calls in the dataclass make its fields

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest
from typing import Any, ClassVar, NamedTuple, TypeAlias

#: Merges the values of one figure on two ranks.
Merge = Callable[[Any, Any], Any]

#: Number → its count, or an amount.
Histogram = dict[int, int]


def _largest(ours: Any, theirs: Any) -> Any:
    return max(ours, theirs)


def _total(ours: Any, theirs: Any) -> Any:
    return ours + theirs


def _by_key(ours: dict[Any, Any], theirs: dict[Any, Any]) -> dict[Any, Any]:
    """Add the values of equal keys."""
    merged = dict(ours)
    for key, value in theirs.items():
        merged[key] = merged.get(key, 0) + value
    return merged


def _least_by_key(ours: Histogram, theirs: Histogram) -> Histogram:
    return {key: min(it[key] for it in (ours, theirs) if key in it) for key in ours | theirs}


def _largest_by_key(ours: Histogram, theirs: Histogram) -> Histogram:
    merged = dict(ours)
    for key, value in theirs.items():
        merged[key] = max(merged.get(key, 0), value)
    return merged


def _each_by_key(ours: list[Histogram], theirs: list[Histogram]) -> list[Histogram]:
    none: Histogram = {}
    return [_by_key(a, b) for a, b in zip_longest(ours, theirs, fillvalue=none)]


def _moments(
    ours: tuple[int, float, float], theirs: tuple[int, float, float]
) -> tuple[int, float, float]:
    return ours[0] + theirs[0], ours[1] + theirs[1], max(ours[2], theirs[2])


def _largest_each(ours: tuple[float, ...], theirs: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(max(pair) for pair in zip_longest(ours, theirs, fillvalue=0))


def _own(ours: Any, theirs: Any) -> Any:
    """Keep the first value: the figure has a meaning on a single rank only."""
    return ours


def _figure(
    merge: Merge, start: Any, *, unit: str = "", is_figure: bool = True, column: bool = False
) -> Any:
    metadata = {"merge": merge, "unit": unit, "is_figure": is_figure, "column": column}
    if callable(start):
        return field(default_factory=start, metadata=metadata)
    return field(default=start, metadata=metadata)


def total(unit: str, start: float = 0, *, column: bool = False) -> Any:
    """Declare a number that adds up over ranks.

    Args:
        unit: for the reader.
        start: value before anything was counted; its type is that of the number.
        column: whether ``metrics.jsonl`` also has it, as counted by the workers so far.
    """
    return _figure(_total, start, unit=unit, column=column)


def largest(unit: str, start: float = 0, *, column: bool = False) -> Any:
    """Declare a number whose maximum over ranks is taken; see ``total``."""
    return _figure(_largest, start, unit=unit, column=column)


def parts(merge: Merge, start: Any, unit: str = "") -> Any:
    """Declare a figure that has its own form in the summary.

    Args:
        merge: merges the figures of two ranks.
        start: value before anything was counted.
        unit: for the reader; empty for a plain number.
    """
    return _figure(merge, start, unit=unit, is_figure=False)


@dataclass(slots=True)
class Stats:
    """The counters of one rank, or of all ranks merged."""

    #: The counters that a checkpoint keeps: all except the numbers of worker and shard.
    saved: ClassVar[tuple[str, ...]] = ()
    #: Number of the worker, −1 for a server.
    worker: int = parts(_own, -1)
    #: Number of the shard, −1 for a worker.
    shard: int = parts(_own, -1)
    #: Training samples.
    samples: int = total("samples")
    #: Gradient steps finished, the worker's clock.
    steps: int = largest("steps")
    #: Epochs finished.
    epochs: int = largest("epochs")
    #: Time from a worker's first step to its last.
    seconds: float = largest("seconds", 0.0)
    #: Updates of a shard, or of the parameters that all ranks share.
    updates: int = largest("updates")
    #: Gradients that arrived but were not applied.
    dropped: int = total("pushes")
    #: Largest difference between two workers' clocks.
    clock_spread_max: int = largest("steps")
    #: By worker, the steps that it had finished when it departed, as a server or neighbour knows.
    left: Histogram = parts(_largest_by_key, dict, "steps")
    #: By missing worker, the steps of it that a shard has: the most and the fewest of all shards.
    reached: Histogram = parts(_largest_by_key, dict, "steps")
    reached_all: Histogram = parts(_least_by_key, dict, "steps")
    #: Bytes handed to the transport.
    bytes_sent: int = total("bytes", column=True)
    #: Bytes taken from the transport.
    bytes_received: int = total("bytes", column=True)
    #: Bytes of the frames that workers sent, and of the gradients that they encode; both 0 without
    #: a codec.
    frame_bytes: int = total("bytes")
    framed_bytes: int = total("bytes")
    #: Bytes sent to other stages and slices under model parallelism, and received from them.
    cut_bytes_sent: int = total("bytes")
    cut_bytes_received: int = total("bytes")
    #: Reads by skew, the difference of the shards' versions in them.
    skew: Histogram = parts(_by_key, dict, "reads")
    #: By worker: applied pushes by staleness τ, or its averages with neighbours.
    staleness: list[Histogram] = parts(_each_by_key, list, "pushes")
    #: Measured gaps, ‖θ_now − θ_read‖/√n or between neighbours: count, sum, maximum.
    gaps: tuple[int, float, float] = parts(_moments, (0, 0.0, 0.0))
    #: Bytes of a worker's vectors, in the order of ``Memory``; empty if they are not counted.
    memory: tuple[float, ...] = parts(_largest_each, (), "bytes")
    #: Time that a worker waited, by cause.
    waited: dict[str, float] = parts(_by_key, dict, "seconds")
    #: Time that a worker waited for other workers, by worker.
    waited_for: dict[int, float] = parts(_by_key, dict, "seconds")
    #: Of the final parameters, on ranks that hold all of them; otherwise 0.
    fingerprint: int = parts(_own, 0)

    @property
    def histogram(self) -> list[int]:
        """The number of applied pushes with staleness τ, at index τ, of all workers."""
        counts: Histogram = {}
        for found in self.staleness:
            counts = _by_key(counts, found)
        return [counts.get(tau, 0) for tau in range(1 + max(counts, default=-1))]

    @classmethod
    def merged(cls, stats: Iterable[Stats]) -> Stats:
        """Merge the counters of all ranks, in the order of the ranks.

        >>> both = Stats.merged([Stats(samples=2, steps=3), Stats(samples=5, steps=1)])
        >>> both.samples, both.steps
        (7, 3)
        """
        everything = cls()
        for one in stats:
            for figure in dataclasses.fields(cls):
                ours, theirs = getattr(everything, figure.name), getattr(one, figure.name)
                setattr(everything, figure.name, figure.metadata["merge"](ours, theirs))
        return everything

    def of_cell(self, number: int, cells: int, shards: int) -> Stats:
        """Return a rank's counters, with the workers and shards of its cell numbered in the job.

        Args:
            number: number of the cell.
            cells: number of cells.
            shards: number of shards of each.

        >>> Stats(shard=1, left={2: 9}).of_cell(1, cells=3, shards=2).left
        {7: 9}
        """
        none: Histogram = {}
        by_worker = [none] * (len(self.staleness) * cells)
        by_worker[number::cells] = self.staleness
        return dataclasses.replace(
            self,
            shard=self.shard if self.shard < 0 else number * shards + self.shard,
            left={worker * cells + number: steps for worker, steps in self.left.items()},
            staleness=by_worker,
            waited_for={worker * cells + number: s for worker, s in self.waited_for.items()},
        )

    @property
    def torn(self) -> int:
        """The number of steps of missing workers that only some of the shards have.

        >>> Stats.merged(Stats(reached={2: n}, reached_all={2: n}) for n in (4, 3)).torn
        1
        """
        return sum(most - self.reached_all[worker] for worker, most in self.reached.items())

    def figures(self) -> dict[str, Any]:
        """Return the plain numbers by name, as the summary shows them."""
        return {
            figure.name: getattr(self, figure.name)
            for figure in dataclasses.fields(self)
            if figure.metadata["is_figure"]
        }

    def columns(self) -> tuple[float, ...]:
        """Return the numbers that ``metrics.jsonl`` has, in the order of ``COLUMNS``."""
        return tuple([getattr(self, name) for name in COLUMNS])

    @classmethod
    def of_columns(cls, worker: int, values: Iterable[float]) -> Stats:
        """Return the counters of a worker for which only ``columns`` are known."""
        found = cls(worker=worker)
        for name, value in zip(COLUMNS, values, strict=True):
            setattr(found, name, value)
        return found

    def to_text(self) -> str:
        """Return a line of JSON; dictionaries become pairs, since keys of JSON are text."""
        return json.dumps(
            {figure.name: _plain(getattr(self, figure.name)) for figure in dataclasses.fields(self)}
        )

    @classmethod
    def from_text(cls, text: str) -> Stats:
        """Read the text of ``to_text``."""
        values = json.loads(text, object_hook=_rebuilt)
        return cls(**(values | {name: tuple(values[name]) for name in ("gaps", "memory")}))


Stats.saved = tuple(it.name for it in dataclasses.fields(Stats) if it.metadata["merge"] is not _own)

#: The columns of ``metrics.jsonl`` that workers count here: name → its declaration.
COLUMNS = {it.name: it for it in dataclasses.fields(Stats) if it.metadata["column"]}


class Report(NamedTuple):
    """Worker → rank 0: the measurements since the worker's previous report."""

    #: The worker that reports.
    worker: int
    #: Epochs finished at ``step``.
    epoch: int
    #: The worker's clock: gradient steps finished.
    step: int
    #: Mean training loss over ``samples``.
    loss: float
    #: Samples since the previous report.
    samples: int
    #: Sum of τ over the answered pushes since the previous report, one per push and shard.
    staleness_sum: int
    #: Number of terms in the sum.
    staleness_count: int
    #: The largest of them.
    staleness_max: int
    #: Time of the port since training began, in seconds.
    seconds: float
    #: Time of the previous report; 0 for the first one.
    since: float
    #: Seconds of waiting since the previous report: for others, servers and messages.
    waited: float
    #: Largest skew of a read since the previous report.
    skew_max: int
    #: Sum of the gaps ‖θ_now − θ_read‖/√n that were measured since the previous report.
    gap_sum: float
    #: Number of gaps in the sum.
    gap_count: int
    #: Loss on the test set; nan if this report did not evaluate.
    test_loss: float
    #: Accuracy on the test set in [0, 1]; nan if this report did not evaluate.
    test_accuracy: float
    #: Whether ``step`` ends an epoch.
    epoch_end: bool
    #: Whether the worker is done and sends no more.
    last: bool
    #: ``Stats.columns`` of the worker: its counts since the start.
    columns: tuple[float, ...]
    #: Further figures on the test set under the user's own names, as JSON; empty without any.
    figures: str = ""


class Sketch(NamedTuple):
    """Worker → rank 0: a sketch, from which the distance between workers' parameters follows."""

    #: The worker that sends.
    worker: int
    #: The worker's clock: gradient steps finished.
    clock: int
    #: Numbers of the sketch, as float64; see ``history.folds.sketch``.
    numbers: bytes


class Evaluated(NamedTuple):
    """Worker 0 → rank 0: the model whose figures its next report has, if anybody wants it."""

    #: What ``model.safetensors`` would contain; empty without numerics.
    data: bytes


#: What workers send to rank 0 outside of the training traffic.
Sent: TypeAlias = Report | Sketch | Evaluated


def merged_columns(workers: Iterable[Sequence[float]]) -> dict[str, float]:
    """Merge the ``Stats.columns`` of all workers.

    >>> merged_columns([(100, 20), (10, 2)])
    {'bytes_sent': 110, 'bytes_received': 22}
    """
    by_column = zip(*workers, strict=True)
    return {
        name: reduce(column.metadata["merge"], values)
        for (name, column), values in zip(COLUMNS.items(), by_column, strict=True)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {"pairs": [[key, item] for key, item in value.items()]}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _rebuilt(found: dict[str, Any]) -> dict[Any, Any]:
    return dict(found["pairs"]) if found.keys() == {"pairs"} else found
