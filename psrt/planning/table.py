"""A plan as text: a line per row, and below them what to type. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap

from psrt.config.modes import PROMISES
from psrt.core.units import plural, size_text, time_text
from psrt.planning.ranking import Budget, Plan, Row

#: Width of lines, and the least of the column with what a row is.
_WIDTH, _LEAST = 100, 24
_HEAD = ("#", "ranks", "step", "samples/s", "±", "sent", "memory", "stale", "θ")


def shown_rows(plan: Plan, top: int) -> list[Row]:
    """Return the rows to show, in order: of each mode and promise the best, then the second best.

    Args:
        plan: at least one row.
        top: their number.
    """
    seen, places = Counter[tuple[str, str]](), list[tuple[int, Row]]()
    for row in plan.rows:
        kind = row.config.scheme.name, row.promise
        places.append((seen[kind], row))
        seen[kind] += 1
    best = sorted(places, key=lambda it: it[0])[:top]  # stable
    return sorted((row for _, row in best), key=lambda row: row.number)


def plan_text(plan: Plan, budget: Budget, top: int) -> str:
    """Return the text of a plan.

    Args:
        plan: at least one row.
        budget: that it is ranked by.
        top: rows to show.
    """
    rows = shown_rows(plan, top)
    commands = [f"{row.number:>{len(str(rows[-1].number))}}  {row.command}" for row in rows]
    parts = (_header(plan), _table(rows, budget), _notes(plan, rows), commands)
    return "\n\n".join("\n".join(lines) for lines in parts)


def _header(plan: Plan) -> list[str]:
    known, site, count = plan.known, plan.known.site, len(plan.rows)
    gradient = time_text(known.workload.mean_s)
    lines = [f"known: {known.workload.n:,} parameters, a gradient {gradient}, {known.source}"]
    if site.is_several:
        link = site.costs.between
        rate = size_text(1 / link.beta)
        lines.append(f"links between hosts: {time_text(link.alpha)} a message, {rate}/s")
    if known.doubt:
        lines.append(f"doubt: {known.doubt}")
    listed = count + sum(plan.pruned.values())
    lines.append(f"simulated: {plural(count, 'configuration')} of {listed}")
    left_out = "; ".join(f"{why}: {number}" for why, number in plan.pruned.items())
    lines += wrap(f"left out: {left_out}", _WIDTH, subsequent_indent="  ") if left_out else []
    return [*lines, f"ranked by: {plan.asked}"]


def _table(rows: Sequence[Row], budget: Budget) -> list[str]:
    head = [*_HEAD, *["goodput"] * (rows[0].goodput is not None)]
    head += ["time" if budget.kind == "samples" else "samples"] * bool(budget.amount)
    cells = [head, *(_cells(row, budget) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room, lines = max(_LEAST, _WIDTH - sum(widths) - 2 * len(widths)), list[str]()
    for own, row in zip(cells, [None, *rows], strict=True):
        what = "" if row is None else in_short(row)
        first, *more = wrap(what, room, subsequent_indent=" ", break_on_hyphens=False) or [""]
        number, *rest = (it.rjust(width) for it, width in zip(own, widths, strict=True))
        lines.append("  ".join([number, first.ljust(room), *rest]).rstrip())
        lines += [" " * (widths[0] + 2) + it for it in more]
    return lines


def _cells(row: Row, budget: Budget) -> list[str]:
    """Return the columns of a row, except for what it is."""
    it, found = row.prediction, budget.of(row)
    ranks = f"{row.workers}+{row.servers}" if row.servers else str(row.workers)
    stale = "-" if it.staleness_mean is None else f"{it.staleness_mean:.1f}/{it.staleness_max}"
    more = [] if row.goodput is None else [f"{100 * row.goodput:.1f} %"]
    if budget.amount:
        more.append(time_text(found) if budget.kind == "samples" else f"{found:.3g}")
    return [
        str(row.number), ranks, time_text(it.step_s), _number(it.samples_per_s),
        f"{100 * (it.high / it.samples_per_s - 1):.1f} %", size_text(it.sent_per_step),
        size_text(max(row.memory.values())), stale, row.promise, *more,
    ]  # fmt: skip


def _number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def in_short(row: Row) -> str:
    """Return the mode and the other knobs of a row, in short."""
    config, shards = row.config, row.config.shards_per_server
    name, _, knobs = str(config.mode).partition(":")
    codecs = "/".join(it.name for it in config.codecs.values())
    several = "" if shards in (None, 1) else f"shards={shards}"
    parts = name, knobs.replace(",", " "), several, config.allreduce, codecs
    return " ".join(filter(None, parts))


def _notes(plan: Plan, rows: Sequence[Row]) -> list[str]:
    """Return what the columns mean that do not say it."""
    promises = {row.promise for row in rows}
    lines = ["ranks: workers + servers; sent: by a rank in a step; stale: mean/largest"]
    lines += [f"θ {name}: {PROMISES[name]}" for name in PROMISES if name in promises]
    lines.append("memory: parameters, gradients and optimizer of the largest rank; no activations")
    lines.append("samples/s says nothing about how well a model learns from a sample")
    dropped = [(it.prediction.dropped, it.number) for it in rows if it.prediction.dropped > 5e-4]
    parts = ", ".join(f"{100 * share:.0f} % in {number}" for share, number in dropped)
    lines += wrap(f"gradients that no update uses: {parts}", _WIDTH) if parts else []
    if more := len(plan.rows) - len(rows):
        lines.append(f"{plural(more, 'row')} more: --top N prints them, --json FILE writes all")
    return lines


def toml_comment(row: Row) -> str:
    """Return the comment above a row's config in a file."""
    it, ranks = row.prediction, plural(row.ranks, "rank")
    rates = f"{_number(it.samples_per_s)} samples/s, {_number(it.low)} to {_number(it.high)}"
    return f"# psrt plan: predicted on {ranks}: {rates}\n# {row.command}\n"
