"""The page about a plan: what is predicted of each row, why, and from what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from psrt.config.modes import PROMISES
from psrt.core.units import plural
from psrt.planning.known import Known
from psrt.planning.ranking import Plan, Row
from psrt.planning.table import facts, named, notes, shown_rows, table
from psrt.report.simulation import CAUSES
from psrt.views.page.bars import bar_chart
from psrt.views.page.detail import Detail
from psrt.views.page.frame import render
from psrt.views.page.lines import Line, line_chart
from psrt.views.page.parts import Code, Figure, Note, Part, Section, Table
from psrt.views.page.words import nbytes, number, percent, seconds
from psrt.views.report.waiting import between_workers

#: Rows of the first table, and those of which the page shows what their workers wait for.
_FIRST, _BEST = 20, 3
#: The number of the colour of each promise.
_STYLES = dict(zip(PROMISES, (2, 0, 1, 3), strict=True))


def page_of(plan: Plan) -> str:
    """Return the page about a plan, as HTML without a script.

    Raises:
        ConfigError: if jinja2 is not installed.
    """
    title = f"A plan for {plural(plan.known.workload.n, 'parameter')}"
    lead = f"{plural(len(plan.rows), 'candidate')}, ranked by {plan.budget.words}"
    best, doubt = plan.rows[:_BEST], plan.known.doubt
    simulated = [row for row in plan.rows if row.prediction.steps]
    sections = [
        _section(
            "ranked", "Ranked", Note(doubt, "bad") if doubt else None,
            _table(plan, shown_rows(plan, _FIRST)), _table(plan, plan.rows, "All rows"),
            Table([*notes(plan, plan.rows)]),
        ),
        _section("charts", "Time, staleness and bytes", *_charts(simulated)),
        _section("waiting", "Waiting, in the best rows", *_waiting(simulated[:_BEST])),
        _section(
            "commands", "Commands", *(Code(row.command, named(row)) for row in best),
            Table([(named(row), row.command) for row in plan.rows], (), "All rows", folded=True),
        ),
        _section("known", "What was known", Table([*facts(plan), *_measured(plan.known)])),
    ]  # fmt: skip
    return render(title, lead, sections, scripts=())


def _section(name: str, title: str, *parts: Part | None) -> Section:
    return Section(name, title, [it for it in parts if it is not None])


def _table(plan: Plan, rows: Sequence[Row], caption: str = "") -> Table:
    """Return a table, folded if it has a caption."""
    (_, _, *head), *lines = table(rows, plan.budget)
    cells = [(f"{place}  {what}", *its) for place, what, *its in lines]
    return Table(cells, ("", *head), caption, numbers=True, folded=bool(caption))


def _charts(rows: Sequence[Row]) -> Iterator[Figure | None]:
    """Yield the time that rows take, beside what they pay in staleness and in bytes."""
    how = "Each point is a row: point at it to see which. Its colour says what it promises."
    stale, sent = list[Line](), list[Line]()
    for row in reversed(rows):  # the best is on top
        it = row.prediction
        stale.append(_point(row, it.staleness_mean or 0.0, 1e6 / row.useful_per_s))
        sent.append(_point(row, it.sent_per_step or 0.0, 1e3 * it.step_s))
    yield line_chart(
        "Time against staleness", "mean staleness, in versions", "µs per useful sample", stale,
        most=4, log=True, caption=how,
    )  # fmt: skip
    yield line_chart(
        "Bytes against time", "bytes that a rank sends per step", "ms per step", sent,
        most=4, log=True, log_x=True, caption=how,
    )  # fmt: skip


def _point(row: Row, x: float, y: float) -> Line:
    return Line(row.promise, np.array([x]), np.array([y]), _STYLES[row.promise], named(row))


def _waiting(rows: Sequence[Row]) -> Iterator[Figure | None]:
    """Yield what workers wait for, and for whom."""
    if not rows:
        return
    causes = list(rows[0].prediction.waits)
    shares = [(named(row), [row.prediction.waits[it] for it in causes]) for row in rows]
    yield bar_chart(
        "Share of a worker's time spent waiting, by cause", shares,
        [CAUSES[f"for_{it}"] for it in causes], percent, highest=1.0,
        caption="In the rest of the time workers compute.",
    )  # fmt: skip
    for row in rows:
        it = row.prediction
        waits = [it.waiting_for.get(worker, {}) for worker in range(row.workers)]
        yield between_workers(
            f"Waits between workers in row {row.number}",
            [{other: share * it.step_s for other, share in its.items()} for its in waits],
            Detail(), "Seconds of a step that a worker waits until another has pushed or answered.",
        )  # fmt: skip


def _measured(known: Known) -> Iterator[tuple[str, str]]:
    """Yield what is known beside what a plan always says, each with its name."""
    means = (seconds(sum(its) / len(its)) for its in known.workload.gradient_s)
    yield "a gradient, by rank", ", ".join(means)
    yield "host, by rank", ", ".join(map(str, known.site.hosts))
    yield "cores, by machine", ", ".join(map(str, known.site.cores))
    yield from ((f"an update by {it}", f"{nbytes(rate)}/s") for it, rate in known.apply.items())
    for run in known.runs:
        kind, speed = f"{run.family} {run.codec or ''}".strip(), number(run.samples_per_s, 3)
        yield f"a short run: {kind}", f"{speed} samples/s of {plural(run.workers, 'worker')}"
    yield from ((it.replace("_", " "), number(value)) for it, value in known.details.items())
