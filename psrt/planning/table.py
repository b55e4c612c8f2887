"""A plan as text: a line per row, and below them what to type; also the parts for a page. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from psrt.config.modes import PROMISES
from psrt.core.units import plural, size_text, time_text
from psrt.planning.ranking import Budget, Plan, Row
from psrt.views.page.words import NONE, number, percent

#: Width of lines, and the least of the column with what a row is.
_WIDTH, _LEAST = 100, 24


def shown_rows(plan: Plan, top: int) -> list[Row]:
    """Return that many rows, in order: of each mode and promise the best, then the second best."""
    seen = Counter[tuple[str, str]]()

    def place(row: Row) -> int:
        seen[row.config.scheme.name, row.promise] += 1
        return seen[row.config.scheme.name, row.promise]

    return sorted(sorted(plan.rows, key=place)[:top], key=lambda row: row.number)


def plan_text(plan: Plan, top: int) -> str:
    """Return the text of a plan, with that many rows."""
    rows = shown_rows(plan, top)
    cells = table(rows, plan.budget)
    width = max(len(it[0]) for it in cells)
    commands = [f"{row.number:>{width}}  {row.command}" for row in rows]
    parts = _said(facts(plan)), _lines(cells), _said(notes(plan, rows)), commands
    return "\n\n".join("\n".join(lines) for lines in parts)


def _said(pairs: Iterable[tuple[str, str]]) -> list[str]:
    texts = (f"{name}: {text}" for name, text in pairs)
    return [line for it in texts for line in wrap(it, _WIDTH, subsequent_indent="  ")]


def facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what a plan is made of, each with its name."""
    known, link, count = plan.known, plan.known.site.costs.between, len(plan.rows)
    gradient = time_text(known.workload.mean_s)
    yield "known", f"{known.workload.n:,} parameters, a gradient {gradient}, {known.source}"
    if known.site.is_several:
        rate = size_text(1 / link.beta)
        yield "links between hosts", f"{time_text(link.alpha)} a message, {rate}/s"
    if known.doubt:
        yield "doubt", known.doubt
    simulated = plural(sum(row.prediction.steps > 0 for row in plan.rows), "configuration")
    yield "simulated", f"{simulated} of {count + sum(plan.pruned.values())}"
    if plan.pruned:
        yield "left out", "; ".join(f"{why}: {its}" for why, its in plan.pruned.items())
    yield "ranked by", plan.budget.words


def notes(plan: Plan, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield what the columns mean that do not say it."""
    yield "ranks", "workers + servers; sent: by a rank in a step"
    yield "stale", "mean/largest, in versions, of which W workers push W in a step"
    promises = {row.promise for row in rows}
    yield from ((f"θ {name}", text) for name, text in PROMISES.items() if name in promises)
    yield "memory", "parameters, gradients and optimizer of the largest rank; no activations"
    yield "samples/s", "that updates use; they do not tell how well a model learns from them"
    shares = ((it.prediction.dropped, it.number) for it in rows)
    if dropped := [f"{percent(share)} in {n}" for share, n in shares if share > 5e-4]:
        yield "gradients that no update uses", ", ".join(dropped)
    if closed := ", ".join(str(it.number) for it in rows if not it.prediction.steps):
        yield "by closed forms", f"{closed}, of which a simulation would take too long"
    if more := len(plan.rows) - len(rows):
        yield f"{plural(more, 'row')} more", "--top N prints them, --json FILE writes all"


def table(rows: Sequence[Row], budget: Budget) -> list[list[str]]:
    """Return the head of a table, and the cells of each row."""
    each = [dict(_cells(row, budget)) for row in rows]
    return [[*each[0]], *([*it.values()] for it in each)]


def _cells(row: Row, budget: Budget) -> Iterator[tuple[str, str]]:
    """Yield the head and the cell of each column."""
    it = row.prediction
    yield "#", str(row.number)
    yield "", in_short(row)
    yield "ranks", f"{row.workers}+{row.servers}" if row.servers else str(row.workers)
    yield "step", time_text(it.step_s)
    yield "samples/s", number(it.samples_per_s * (1 - it.dropped), 3)
    yield "±", percent(None if it.high is None else it.high / it.samples_per_s - 1)
    yield "sent", NONE if it.sent_per_step is None else size_text(it.sent_per_step)
    yield "memory", size_text(max(row.memory.values()))
    mean, most = it.staleness_mean, it.staleness_max
    yield "stale", (NONE if not it.steps else "-") if mean is None else f"{mean:.1f}/{most}"
    yield "θ", row.promise
    if row.goodput is not None:
        yield "goodput", percent(row.goodput)
    if budget.head:
        yield budget.head, budget.of(row.useful_per_s)


def named(row: Row) -> str:
    """Return the number of a row, and what it is."""
    return f"{row.number}  {in_short(row)}"


def in_short(row: Row) -> str:
    """Return the mode and the other knobs of a row, in short."""
    config, shards = row.config, row.config.shards_per_server
    name, _, knobs = str(config.mode).partition(":")
    codecs = "/".join(it.name for it in config.codecs.values())
    several = "" if shards in (None, 1) else f"shards={shards}"
    split = config.parallel, config.pipeline_schedule
    parts = name, knobs.replace(",", " "), *split, several, config.allreduce, codecs
    return " ".join(filter(None, parts))


def _lines(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as aligned lines; what a row is may take several."""
    widths, lines = [max(map(len, column)) for column in zip(*cells, strict=True)], list[str]()
    widths[1] = max(_LEAST, _WIDTH - sum(widths) + widths[1] - 2 * (len(widths) - 1))
    for place, what, *rest in cells:
        first, *more = wrap(what, widths[1], subsequent_indent=" ", break_on_hyphens=False) or [""]
        others = (it.rjust(width) for it, width in zip(rest, widths[2:], strict=True))
        line = "  ".join([place.rjust(widths[0]), first.ljust(widths[1]), *others])
        lines += [line.rstrip(), *(" " * (widths[0] + 2) + it for it in more)]
    return lines
