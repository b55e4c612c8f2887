"""How runs ended: their figures, side by side where there are several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from psrt.core.units import plural
from psrt.views.page.parts import Note, Part, Section, Table
from psrt.views.page.words import NONE, number, percent, seconds
from psrt.views.report import again
from psrt.views.report.folder import RunFolder
from psrt.views.runs.figures import FIGURES, Figure, Told, user_figures


def section(runs: Sequence[RunFolder]) -> Section:
    """Return the section; it is never empty."""
    rows = [(name, *map(value_of, runs)) for name, value_of in _rows(runs)]
    rows = [row for row in rows if any(cell != NONE for cell in row[1:])]
    several = len(runs) > 1
    table = Table(
        rows,
        head=("", *(run.name for run in runs)) if several else (),
        styles=range(len(runs)) if several else (),
    )
    parts: list[Part] = [
        Note(f"{run.name}: {line}" if several else line, "bad")
        for run in runs
        for line in run.damage
    ]
    return Section("outcome", "Outcome", [*parts, table])


def state(run: RunFolder) -> str:
    """Return whether a run finished, and otherwise how far it came."""
    if run.summary is not None and run.end is None:
        ended = "finished"
        if run.summary.missing:
            ended += f", without {plural(len(run.summary.missing), 'worker')}"
        return ended
    text = "no summary: still running, or ended early" if run.end is None else str(run.end)
    # Either may have been written later.
    step, after = run.progress.get("clock", 0), run.progress.get("seconds")
    if run.metrics is not None and len(run.metrics) and run.metrics["step"][-1] > step:
        step, after = float(run.metrics["step"][-1]), float(run.metrics["seconds"][-1])
    if step:
        text += f"; at step {number(step)}"
        text += f" after {seconds(after)}" if after is not None else ""
    return text


def _resume(run: RunFolder) -> str:
    """Return how to resume a run that ended early."""
    if run.end is None:
        return NONE
    if (words := again.resume(run)) is None:
        return "there is no checkpoint: --checkpoint-every writes them"
    return words


def _rows(runs: Sequence[RunFolder]) -> Iterator[tuple[str, Callable[[RunFolder], str]]]:
    yield "state", state
    yield "to resume", _resume
    yield "mode", lambda run: run.mode or NONE
    yield "ranks", lambda run: NONE if run.summary or run.ranks is None else f"{run.ranks:,}"
    if target := _target(runs):
        yield (
            f"time to {percent(target)} accuracy",
            lambda run: seconds(run.metrics.seconds_to(target)) if run.metrics else NONE,
        )
    for it in (*FIGURES, *user_figures(map(_told, runs))):
        yield it.name, partial(_said, it)


def _said(figure: Figure, run: RunFolder) -> str:
    return figure.said(_told(run)) or NONE


def _told(run: RunFolder) -> Told:
    """Return what the files say, with the last value of each column of the metrics."""
    last: dict[str, float] = {}
    for name, values in run.metrics.columns.items() if run.metrics is not None else ():
        known = values[np.isfinite(values)]
        if len(known):
            last[name] = float(known[-1])
    return Told(None if run.summary is None else asdict(run.summary), last)


def _target(runs: Sequence[RunFolder]) -> float | None:
    """Return the accuracy that all runs reached, in whole percent."""
    best = [
        float(np.nanmax(run.metrics["accuracy"]))
        for run in runs
        if run.metrics is not None and run.metrics.has("accuracy")
    ]
    target = math.floor(100 * min(best, default=0.0) + 1e-9) / 100
    return target if 0 < target <= 1 else None
