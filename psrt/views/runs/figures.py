"""The results of a run: each figure once, for ``psrt compare`` and ``psrt report``. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from psrt.core.units import size_text, time_text


class Told(NamedTuple):
    """The contents of a run's files."""

    #: The fields of its summary; None without one.
    summary: Mapping[str, Any] | None
    #: The columns of the last record of its metrics.
    last: Mapping[str, Any]
    #: Whether it was in virtual time.
    simulated: bool = False
    #: All records of its metrics, if they were read one by one.
    records: Sequence[Mapping[str, Any]] = ()


class Figure(NamedTuple):
    """One figure of the results."""

    name: str
    #: Reads it; None if the run does not have it.
    of: Callable[[Told], Any]
    #: Formats it.
    text: Callable[[Any], str] = "{:,.6g}".format
    #: Whether its relation to another run's value is meaningful.
    relative: bool = False
    #: ``max`` or ``min``, the better of several values; None if none is better.
    best: Callable[..., Any] | None = None
    #: Whether it is a number of something, whose mean over several runs says nothing.
    is_label: bool = False

    def said(self, told: Told) -> str | None:
        """Return it as text; None if there is no such number."""
        value = self.of(told)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return None
        return self.text(value)


def _of(*path: str, column: str = "") -> Callable[[Told], Any]:
    """Return a function that reads a field of the summary, or a column without a summary."""

    def read(told: Told) -> Any:
        if told.summary is None:
            return told.last.get(column)
        value: Any = told.summary
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    return read


def _waiting(told: Told) -> float | None:
    """Return the mean share of its time that a worker waited."""
    rows = (told.summary or {}).get("waiting", ())
    shares = [row["share"] for row in rows if row["share"] is not None]
    return sum(shares) / len(rows) if rows else None


def _merges(told: Told) -> float | None:
    """Return the merges per second of learners, of each fragment."""
    summary = told.summary or {}
    if not (summary.get("averages") and summary.get("servers") and summary.get("seconds")):
        return None
    rate: float = summary["updates"] / summary["seconds"]
    return rate


def _slowest(told: Told) -> int | None:
    """Return the worker that others waited for the longest."""
    waits: dict[int, float] = {}
    for row in (told.summary or {}).get("waiting", ()):
        for worker, seconds in row.get("waiting_for", {}).items():
            waits[int(worker)] = waits.get(int(worker), 0.0) + (seconds or 0.0)
    return max(waits, key=waits.__getitem__, default=None)


def _stale(name: str) -> Callable[[Told], Any]:
    read = _of("staleness", name, column=f"staleness_{name}")

    def found(told: Told) -> Any:
        if told.summary is not None and not told.summary["staleness"]["histogram"]:
            return None  # nothing was pushed
        return read(told)

    return found


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


#: Whether a run has ended, and where it was.
OF_RUN = (
    Figure("ended", lambda it: it.summary is not None, lambda it: "yes" if it else "not yet"),
    Figure("simulated", lambda it: it.simulated, lambda it: "yes" if it else "no"),
)
FIGURES = (
    Figure("workers", _of("workers")),
    Figure("servers", _of("servers")),
    Figure("hosts", _of("hosts")),
    Figure("epochs", _of("epochs", column="epoch")),
    Figure("steps", _of("steps", column="step")),
    Figure("seconds", _of("seconds", column="seconds"), time_text, relative=True, best=min),
    Figure(
        "samples/s", _of("samples_per_second", column="samples_per_second"), "{:,.0f}".format,
        relative=True, best=max,
    ),
    Figure("merges/s", _merges, "{:,.4g}".format, relative=True, best=max),
    Figure(
        "training loss", _of("train_loss", column="loss"), "{:.4g}".format,
        relative=True, best=min,
    ),
    Figure(
        "test loss", _of("test_loss", column="test_loss"), "{:.4g}".format,
        relative=True, best=min,
    ),
    Figure("accuracy", _of("test_accuracy", column="accuracy"), _percent, best=max),
    Figure("staleness, mean", _stale("mean"), "{:.2f}".format, best=min),
    Figure("staleness, max", _stale("max"), best=min),
    Figure("waiting", _waiting, _percent, best=min),
    Figure("waited for worker", _slowest, is_label=True),
    Figure("dropped", _of("dropped"), best=min),
    Figure("missing workers", lambda told: len((told.summary or {}).get("missing", ())) or None),
    Figure(
        "bytes sent", _of("bytes_sent", column="bytes_sent"), size_text, relative=True, best=min,
    ),
    Figure(
        "bytes between stages", lambda told: (told.summary or {}).get("cut_bytes_sent") or None,
        size_text, relative=True, best=min,
    ),
    Figure("parameters", _of("parameters")),
    Figure("same bits", _of("parameters_sha256"), lambda it: it[:8]),
)  # fmt: skip
#: Prefix of the user's own figures on the test set.
TEST = "test "


def user_figures(runs: Iterable[Told]) -> Iterator[Figure]:
    """Yield the further figures of ``evaluate`` in any of the runs."""
    for name in dict.fromkeys(
        it for run in runs for it in (run.summary or {}).get("test_figures", ())
    ):
        yield user_figure(name)


def user_figure(name: str) -> Figure:
    """Return the row of a figure of ``evaluate``."""
    return Figure(f"{TEST}{name}", _of("test_figures", name), "{:.4g}".format, relative=True)
