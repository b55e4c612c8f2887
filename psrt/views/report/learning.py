"""Loss, accuracy and speed, by steps and by seconds; all runs in one chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psrt.views.page.detail import Detail
from psrt.views.page.lines import Line, line_chart
from psrt.views.page.parts import Note, Part, Section
from psrt.views.page.thin import Floats
from psrt.views.report.folder import RunFolder


class _Column(NamedTuple):
    title: str
    #: Of ``metrics.jsonl``.
    name: str
    #: Name of the axis.
    unit: str
    log: bool = False
    zero: bool = False
    #: Factor of the values in the file.
    times: float = 1.0


_COLUMNS = (
    _Column("Training loss", "loss", "loss", log=True),
    _Column("Accuracy on the test set", "accuracy", "%", times=100.0),
    _Column("Loss on the test set", "test_loss", "loss", log=True),
)
#: The clock of metrics, as an axis names it.
CLOCK = "seconds since training began"
_SPEED = _Column("Speed", "samples_per_second", "samples/s", zero=True)


def section(runs: Sequence[RunFolder], detail: Detail) -> Section:
    """Return the section."""
    parts: list[Part] = []
    found = [run for run in runs if run.metrics is not None and len(run.metrics)]
    for run in runs:
        if run not in found:
            name = f"{run.name}: " if len(runs) > 1 else ""
            parts.append(Note(f"{name}no metrics.", "missing"))
        elif run.simulation is not None and not run.simulation.numerics:
            name = f"{run.name}: " if len(runs) > 1 else ""
            text = f"{name}nothing was computed (--timing-only), so there is no loss."
            parts.append(Note(text, "missing"))
    for column in _COLUMNS:
        for x_name in ("step", "seconds"):
            figure = _chart(column, x_name, runs, detail)
            if figure is not None:
                parts.append(figure)
    speed = _chart(_SPEED, "seconds", runs, detail)
    if speed is not None:
        parts.append(speed)
    if found and not any(run.metrics is not None and run.metrics.has("accuracy") for run in found):
        parts.append(
            Note("No accuracy: nothing was evaluated, or there are no classes.", "missing")
        )
    return Section("learning", "Loss and accuracy", parts)


def lines_of(
    runs: Sequence[RunFolder],
    column: str,
    x_name: str,
    *,
    times: float = 1.0,
) -> list[Line]:
    """Return a line for each run that has values in a column.

    Args:
        runs: in order, which is also the order of colours.
        column: of ``metrics.jsonl``.
        x_name: ``step``, or ``seconds``: those that the column belongs to.
        times: factor of the values.
    """
    lines = []
    for style, run in enumerate(runs):
        if run.metrics is None or not run.metrics.has(column):
            continue
        x: Floats = run.metrics.time_of(column) if x_name == "seconds" else run.metrics[x_name]
        name = run.name if len(runs) > 1 else ""
        lines.append(Line(name, x, times * run.metrics[column], style))
    return lines


def _chart(column: _Column, x_name: str, runs: Sequence[RunFolder], detail: Detail) -> Part | None:
    lines = lines_of(runs, column.name, x_name, times=column.times)
    unit = "step" if x_name == "step" else CLOCK
    return line_chart(
        f"{column.title}, by {'steps' if x_name == 'step' else 'seconds'}",
        unit,
        column.unit,
        lines,
        most=detail.points,
        log=column.log,
        zero=column.zero,
    )
