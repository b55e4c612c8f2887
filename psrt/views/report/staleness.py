"""How stale gradients were: by worker and τ, over the run, and how far the parameters had moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from psrt.views.page.bars import bar_chart
from psrt.views.page.detail import Detail
from psrt.views.page.heat_map import group_names, grouped, heat_map
from psrt.views.page.lines import line_chart
from psrt.views.page.parts import Figure, Note, Part, Section
from psrt.views.page.thin import Floats
from psrt.views.page.words import number, percent
from psrt.views.report.folder import RunFolder
from psrt.views.report.learning import lines_of
from psrt.views.report.of_each import of_each
from psrt.views.report.over_time import over_time

#: Higher τ are shown together.
_MOST_TAU = 100_000


def section(runs: Sequence[RunFolder], detail: Detail) -> Section:
    """Return the section."""
    shared: list[Part | None] = [
        line_chart(
            "Mean staleness, by steps", "step", "τ, in versions",
            lines_of(runs, "staleness_mean", "step"), most=detail.points, zero=True,
        ),
        line_chart(
            "Gap, by steps", "step", "‖θ now − θ read‖/√n", lines_of(runs, "gap_mean", "step"),
            most=detail.points, zero=True,
            caption="How far the parameters had moved while a gradient was computed.",
        ),
    ]  # fmt: skip
    parts = [it for it in shared if it is not None]
    parts += of_each(runs, lambda run: _of_one(run, detail))
    if not parts:
        parts.append(Note("No gradient was stale: none was pushed to a server.", "missing"))
    return Section("staleness", "Staleness", parts)


def _of_one(run: RunFolder, detail: Detail) -> Iterator[Part]:
    by_worker = _by_worker(run)
    if not any(it for it in by_worker.values()):
        return
    whole: dict[int, int] = {}
    for counts in by_worker.values():
        for tau, count in counts.items():
            whole[tau] = whole.get(tau, 0) + count
    of_what = "gradients" if run.summary is None or run.summary.servers else "averages"
    if not max(whole):
        yield Note(f"None of {sum(whole.values()):,} {of_what} was stale.")
        return
    yield _histogram(whole, of_what, detail)
    if len(by_worker) > 1:
        figure = _by_tau(by_worker, of_what, detail)
        if figure is not None:
            yield figure
    if run.events is not None and run.events.stale.any():
        figure = over_time(
            "Mean staleness over the run", run.events.tau, run.events.stale,
            run.events.began, run.events.ended, number,
            "Mean τ of the updates in that time.", detail,
        )  # fmt: skip
        if figure is not None:
            yield figure


def _by_worker(run: RunFolder) -> dict[int, Mapping[int, int]]:
    """Return by worker how often each τ occurred, from the summary or else from events."""
    if run.summary is not None:
        found = run.summary.staleness.by_worker
        return {worker: it.histogram for worker, it in enumerate(found)}
    if run.events is None:
        return {}
    return {
        worker: {tau: int(count) for tau, count in enumerate(counts.tolist()) if count}
        for worker, counts in sorted(run.events.histogram.items())
    }


def _histogram(counts: Mapping[int, int], of_what: str, detail: Detail) -> Figure:
    groups = grouped(1 + min(max(counts), _MOST_TAU), min(24, detail.rows))
    sums = [0] * len(groups)
    width = groups[0][1]
    for tau, count in counts.items():
        sums[min(max(tau, 0), _MOST_TAU) // width] += count
    total = sum(sums) or 1
    rows = [(name, [it / total]) for name, it in zip(group_names(groups), sums, strict=True)]
    return bar_chart(
        f"Staleness τ of {total:,} {of_what}", rows, ("share",), percent,
        caption="Number of versions by which the parameters were ahead when a gradient was applied."
        if of_what == "gradients" else "Steps of a worker since it asked for the average.",
    )  # fmt: skip


def _by_tau(
    by_worker: Mapping[int, Mapping[int, int]], of_what: str, detail: Detail
) -> Figure | None:
    """Return a heat map, worker × τ: shares of each worker's own gradients."""
    most = max((max(counts, default=0) for counts in by_worker.values()), default=0)
    columns = grouped(1 + min(most, _MOST_TAU), detail.columns)
    rows = grouped(len(by_worker), detail.rows)
    values: Floats = np.zeros((len(rows), len(columns)))
    height, width = rows[0][1], columns[0][1]
    for place, counts in enumerate(by_worker.values()):
        for tau, count in counts.items():
            values[place // height, min(max(tau, 0), _MOST_TAU) // width] += count
    totals = values.sum(axis=1, keepdims=True)
    values = np.divide(values, totals, out=np.zeros_like(values), where=totals > 0)
    return heat_map(
        "Staleness by worker",
        values,
        group_names(rows),
        [f"{start}" for start, _ in columns],
        "worker",
        "τ" if width == 1 else f"τ, {width} in a column",
        percent,
        caption=f"Of each worker's own {of_what}, the share with this τ.",
    )
