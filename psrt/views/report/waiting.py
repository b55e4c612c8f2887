"""Which workers waited, for what, for which others, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from psrt.history.folds.figures import Waiting
from psrt.report.simulation import CAUSES
from psrt.views.page.bars import bar_chart
from psrt.views.page.detail import Detail
from psrt.views.page.heat_map import group_names, grouped, heat_map
from psrt.views.page.lines import line_chart
from psrt.views.page.parts import Figure, Note, Part, Section
from psrt.views.page.thin import Floats
from psrt.views.page.words import percent, seconds
from psrt.views.report.folder import RunFolder
from psrt.views.report.learning import CLOCK, lines_of
from psrt.views.report.of_each import of_each
from psrt.views.report.over_time import over_time


def section(runs: Sequence[RunFolder], detail: Detail) -> Section:
    """Return the section."""
    parts: list[Part] = []
    figure = line_chart(
        "Time spent waiting, by seconds", CLOCK, "% of the workers' time",
        lines_of(runs, "waiting_share", "seconds", times=100.0), most=detail.points, zero=True,
    )  # fmt: skip
    shares = [run.metrics["waiting_share"] for run in runs if run.metrics is not None]
    if figure is not None and any((it > 0).any() for it in shares):
        parts.append(figure)
    parts += of_each(runs, lambda run: _of_one(run, detail))
    if not parts:
        parts.append(Note("No worker waited for another, as far as is recorded.", "missing"))
    return Section("waiting", "Waiting", parts)


def _of_one(run: RunFolder, detail: Detail) -> Iterator[Part]:
    workers = () if run.summary is None else run.summary.waiting
    if any(worker.seconds for worker in workers):
        yield _by_cause(workers, detail)
        figure = between_workers(
            "Waits between workers", [it.waiting_for for it in workers], detail,
            "Total seconds that a worker waited until another had pushed or answered.",
        )  # fmt: skip
        if figure is not None:
            yield figure
    if run.events is not None and run.events.waited.any():
        width = (run.events.ended - run.events.began) / run.events.waited.shape[1]
        figure = over_time(
            "Waiting over the run", run.events.waited, np.full_like(run.events.waited, width),
            run.events.began, run.events.ended, percent,
            "Share of the time that each worker waited.", detail,
        )  # fmt: skip
        if figure is not None:
            yield figure


def _by_cause(workers: Sequence[Waiting], detail: Detail) -> Figure:
    """Return bars: seconds of each worker, or means of groups if there are many."""
    groups = grouped(len(workers), detail.rows)
    rows = []
    for (start, stop), name in zip(groups, group_names(groups), strict=True):
        mine = workers[start:stop]
        means = [
            sum(max(0.0, getattr(it, cause) or 0.0) for it in mine) / len(mine) for cause in CAUSES
        ]
        rows.append((f"worker {name}", means))
    several = "; means of groups of workers" if len(groups) < len(workers) else ""
    return bar_chart(
        "Time waited, by cause", rows, tuple(CAUSES.values()), seconds,
        caption=f"For each worker, from its first step to its last{several}.",
    )  # fmt: skip


def between_workers(
    title: str, waits: Sequence[Mapping[int, float]], detail: Detail, caption: str
) -> Figure | None:
    """Return a heat map: waiting worker × awaited worker, in seconds."""
    count = len(waits)
    groups = grouped(count, detail.rows)
    height = groups[0][1]
    values: Floats = np.zeros((len(groups), len(groups)))
    for place, others in enumerate(waits):
        for other, waited in others.items():
            if 0 <= other < count and waited is not None and waited > 0:
                values[place // height, other // height] += waited
    if not values.any():
        return None
    names = group_names(groups)
    return heat_map(
        title, values, names, names, "this one waited", "for this one", seconds, caption=caption
    )
