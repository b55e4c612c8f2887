"""The page about a plan: what is predicted of each row, why, and from what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.core.files import write_text
from psrt.core.units import plural
from psrt.planning.known import Known
from psrt.planning.ranking import PROMISES, Plan, Row
from psrt.planning.table import in_short, shown_rows
from psrt.report.simulation import CAUSES
from psrt.views.page.bars import bar_chart
from psrt.views.page.detail import Detail
from psrt.views.page.frame import render
from psrt.views.page.parts import Code, Note, Part, Section, Table
from psrt.views.page.points import Point, point_chart
from psrt.views.page.words import NONE, nbytes, number, percent, seconds
from psrt.views.report.waiting import between_workers

#: Rows of which the page shows what their workers wait for.
_BEST = 3
#: The number of the colour of each promise.
_STYLES = dict(zip(PROMISES, (2, 0, 1, 3), strict=True))
#: What a plan does not say.
_LIMIT = (
    "A plan says how fast samples are trained, not how well the model learns from them: a stale "
    "gradient is worth less. psrt plan --try trains the best rows."
)
#: The first rows and columns, of which one table is open; another has all.
_FIRST, _COLUMNS = 20, 10
#: Units stay with their numbers.
_NO_BREAK = str.maketrans({" ": "\u00a0"})


def write_page(path: str, plan: Plan) -> None:
    """Write the page about a plan to a file.

    Raises:
        ConfigError: if jinja2 is not installed, or the file cannot be written.
    """
    write_text(path, page_of(plan))


def page_of(plan: Plan) -> str:
    """Return the page about a plan, as HTML without a script.

    Raises:
        ConfigError: if jinja2 is not installed.
    """
    title = f"A plan for {plural(plan.known.workload.n, 'parameter')}"
    lead = f"{plural(len(plan.rows), 'candidate')}, ranked by {plan.asked}"
    sections = [_ranked(plan), _charts(plan), _waiting(plan), _commands(plan)]
    known = Table(list(_facts(plan.known)))
    sections.append(Section("known", "What was known", [known]))
    return render(title, lead, sections, scripts=())


def _ranked(plan: Plan) -> Section:
    """Return the tables of rows: what they were ranked by, and what comes with it."""
    first = shown_rows(plan, _FIRST)
    pruned = [f"{why}: {count:,}" for why, count in plan.pruned.items() if count]
    parts: list[Part] = [Note(plan.known.doubt, "bad")] if plan.known.doubt else []
    if plan.rows:
        parts.append(_table(first, list(_columns(first))[:_COLUMNS]))
        parts.append(_table(plan.rows, list(_columns(plan.rows)), "All rows and figures"))
    else:
        parts.append(Note("No candidate is left.", "missing"))
    parts.append(Note(f"Left out before they were simulated: {'; '.join(pruned) or 'none'}."))
    return Section("ranked", "Ranked", parts)


def _columns(rows: Sequence[Row]) -> Iterator[tuple[str, list[str]]]:
    """Yield columns, each with its head."""
    every = [row.prediction for row in rows]
    yield "workers", [f"{row.workers:,}" for row in rows]
    yield "servers", [f"{row.servers:,}" for row in rows]
    yield "samples/s", [number(it.samples_per_s, 3) for it in every]
    yield "±", [percent((it.high - it.low) / 2 / it.samples_per_s) for it in every]
    yield "step", [seconds(it.step_s) for it in every]
    yield "sent per step", [nbytes(it.sent_per_step) for it in every]
    yield "mean staleness", [number(it.staleness_mean, 3) for it in every]
    yield "dropped", [percent(it.dropped or None) for it in every]
    yield "goodput", [percent(row.goodput) for row in rows]
    yield "promise", [row.promise for row in rows]
    yield "largest staleness", [number(it.staleness_max) for it in every]
    yield "memory of a worker", [nbytes(row.memory.get("worker")) for row in rows]
    yield "of a server", [nbytes(row.memory.get("server") or None) for row in rows]
    yield "step by the closed form", [seconds(row.closed_step_s) for row in rows]
    yield "steps simulated", [f"{it.steps:,}" for it in every]


def _table(
    rows: Sequence[Row], columns: Sequence[tuple[str, list[str]]], caption: str = ""
) -> Table:
    """Return a table without the columns that are empty."""
    known = [it for it in columns if any(cell != NONE for cell in it[1])]
    cells = zip(map(_named, rows), *(column for _, column in known), strict=True)
    lines = [(name, *(it.translate(_NO_BREAK) for it in rest)) for name, *rest in cells]
    head = ("", *(name for name, _ in known))
    return Table(lines, head, caption, numbers=True, folded=bool(caption))


def _named(row: Row) -> str:
    return f"{row.number}  {in_short(row)}"


def _charts(plan: Plan) -> Section:
    """Return the time that rows take, beside what they pay in staleness and in bytes."""
    promised = {row.promise for row in plan.rows}
    legend = [it for it in _STYLES.items() if it[0] in promised]
    how = (
        "Numbers are those of the first rows; a bar is the interval that has the true mean 19 "
        "times of 20. Point at a row to see its flags."
    )
    first = {row.number for row in shown_rows(plan, _FIRST)}
    by_staleness, by_bytes = [], []
    for row in plan.rows:
        it, name = row.prediction, f"{row.number}" if row.number in first else ""
        by_staleness.append(_point(row, name, it.staleness_mean or 0.0, 1e6 / row.useful_per_s))
        by_bytes.append(_point(row, name, it.sent_per_step, 1e3 * it.step_s))
    figures = (
        point_chart(
            "Time against staleness", "mean staleness, in versions", "µs per useful sample",
            by_staleness, legend=legend, zero=True, caption=how,
        ),
        point_chart(
            "Bytes against time", "bytes that a rank sends per step", "ms per step", by_bytes,
            legend=legend, caption="As above. Rows with other workers have other samples per step.",
        ),
    )  # fmt: skip
    words = [(name, words) for name, words in PROMISES.items() if name in promised]
    parts: list[Part] = [
        Note(_LIMIT),
        *filter(None, figures),
        Table(words, caption="What a promise says of θ"),
    ]
    return Section("charts", "Time, staleness and bytes", parts)


def _point(row: Row, name: str, x: float, y: float) -> Point:
    """Return a row's point, whose y is a time that is inversely proportional to its speed."""
    it = row.prediction
    slowest = max(it.low, it.samples_per_s / 10)  # a wider interval would hide all others
    low, high = (y * it.samples_per_s / speed for speed in (it.high, slowest))
    return Point(name, x, y, low, high, _STYLES[row.promise], _named(row))


def _waiting(plan: Plan) -> Section:
    """Return what workers of the best rows wait for."""
    best = plan.rows[:_BEST]
    causes = list(dict.fromkeys(cause for row in best for cause in row.prediction.waits))
    bars = bar_chart(
        "Share of a worker's time spent waiting, by cause",
        [(_named(row), [row.prediction.waits.get(it, 0.0) for it in causes]) for row in best],
        [CAUSES.get(f"for_{it}", it) for it in causes], percent, highest=1.0,
        caption="In the rest of the time workers compute.",
    )  # fmt: skip
    maps = [
        between_workers(
            f"Waits between workers in row {row.number}", _waits_of(row), Detail(), percent,
            "Share of its time that a worker waits until another has pushed or answered.",
            mean=True,
        )
        for row in best
    ]  # fmt: skip
    return Section("waiting", "Waiting, in the best rows", [bars, *filter(None, maps)])


def _waits_of(row: Row) -> list[dict[int, float]]:
    mine = (row.prediction.waiting_for.get(f"worker {it}", {}) for it in range(row.workers))
    return [{int(name.split()[1]): share for name, share in one.items()} for one in mine]


def _commands(plan: Plan) -> Section:
    parts: list[Part] = [Code(row.command, _named(row)) for row in plan.rows[:_BEST]]
    if rest := [(_named(row), row.command) for row in plan.rows[_BEST:]]:
        parts.append(Table(rest, caption="All others", folded=True))
    return Section("commands", "Commands", parts)


def _facts(known: Known) -> Iterator[tuple[str, str]]:
    work, site = known.workload, known.site
    its = [it for one in work.gradient_s for it in one]
    yield "source", known.source
    yield "doubt", known.doubt or "none"
    yield "parameters", f"{work.n:,}"
    yield "samples of a worker's step", f"{work.batch_size:,}"
    yield "samples of an epoch", number(work.samples)
    yield (
        "a gradient",
        f"{seconds(work.mean_s)} on average, {seconds(min(its))} to {seconds(max(its))}, "
        f"{len(its):,} times",
    )
    means = [sum(its) / len(its) for its in work.gradient_s]
    if len(means) > 1:
        last = max(range(len(means)), key=means.__getitem__)
        yield "the slowest rank", f"{last}: {seconds(means[last])}"
    if work.parts:
        yield "the gradient is ready in", plural(len(work.parts), "part")
    hosts, machines = len(set(site.hosts)), len(set(site.machines))
    yield "ranks", f"{site.ranks:,} on {plural(hosts, 'host')}"
    yield "cores", f"{sum(site.cores):,} of {plural(machines, 'machine')}"
    yield "a message within a host", _link(site.costs.inside.alpha, site.costs.inside.beta)
    if hosts > 1:
        yield "a message between hosts", _link(site.costs.between.alpha, site.costs.between.beta)
    for name, rate in known.apply.items():
        yield f"an update by {name}", f"{nbytes(rate)} of gradient per second"
    for run in known.runs:
        kind = f"{run.family} with {run.codec}" if run.codec else run.family
        workers = plural(run.workers, "worker")
        yield f"a short run: {kind}", f"{number(run.samples_per_s, 3)} samples/s of {workers}"
    yield from ((name.replace("_", " "), number(value)) for name, value in known.details.items())


def _link(alpha: float, beta: float) -> str:
    rate = "any number of bytes" if beta == 0 else nbytes(1 / beta)
    return f"{seconds(alpha)}, and {rate} per second"
