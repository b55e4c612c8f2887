"""A plan as text: a line per row, and below them what to type. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap

from psrt.core.units import plural, size_text, time_text
from psrt.planning.ranking import PROMISES, Budget, Plan, Row

#: Width of lines, and the least of the column with what a row is.
_WIDTH, _LEAST = 100, 24


def shown_rows(plan: Plan, top: int) -> list[Row]:
    """Return the rows to show, in order: the best of each mode and promise, then the second best.

    Args:
        plan: at least one row.
        top: their number.
    """
    seen: Counter[tuple[str, str]] = Counter()
    places = list[tuple[int, Row]]()
    for row in plan.rows:
        kind = row.config.scheme.name, row.promise
        places.append((seen[kind], row))
        seen[kind] += 1
    places.sort(key=lambda it: it[0])  # stable
    return sorted((row for _, row in places[:top]), key=lambda row: row.number)


def plan_text(plan: Plan, rows: Sequence[Row], budget: Budget) -> str:
    """Return the text of some rows of a plan.

    Args:
        plan: what they are of.
        rows: to show.
        budget: that they are ranked by.
    """
    return "\n".join([*_header(plan), "", *_table(rows, budget), "", *_notes(plan, rows)])


def commands_text(rows: Sequence[Row]) -> str:
    """Return what to type for rows."""
    width = len(str(rows[-1].number))
    return "\n".join(f"{row.number:>{width}}  {row.command}" for row in rows)


def _header(plan: Plan) -> list[str]:
    known = plan.known
    work, site = known.workload, known.site
    lines = [f"known: {work.n:,} parameters, a gradient {time_text(work.mean_s)}, {known.source}"]
    if len(set(site.hosts)) > 1:
        link = site.costs.between
        rate = size_text(1 / link.beta)
        lines.append(f"links between hosts: {time_text(link.alpha)} a message, {rate}/s")
    if known.doubt:
        lines.append(f"doubt: {known.doubt}")
    left_out = "; ".join(f"{why}: {count}" for why, count in plan.pruned.items())
    lines.append(f"simulated: {plural(len(plan.rows), 'configuration')} of {plan.listed}")
    lines += wrap(f"left out: {left_out}", _WIDTH, subsequent_indent="  ") if left_out else []
    return [*lines, f"ranked by: {plan.asked}"]


def _table(rows: Sequence[Row], budget: Budget) -> list[str]:
    amount = {"samples": "time", "seconds": "samples"}.get(budget.kind, "")
    head = ["#", "ranks", "step", "samples/s", "±", "sent", "memory", "stale", "θ"]
    head += ["goodput"] * any(row.goodput is not None for row in rows)
    head += [amount] * (budget.amount is not None)
    cells = [head, *(_cells(row, budget) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = max(_LEAST, _WIDTH - sum(widths) - 2 * len(widths))
    lines = []
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
    stale = "-" if it.staleness_mean is None else f"{it.staleness_mean:.1f}/{it.staleness_max}"
    more = [] if row.goodput is None else [f"{100 * row.goodput:.1f} %"]
    if found is not None:
        more.append(time_text(found) if budget.kind == "samples" else f"{found:.3g}")
    return [
        str(row.number), _ranks(row), time_text(it.step_s), f"{it.samples_per_s:.4g}",
        f"{100 * (it.high / it.samples_per_s - 1):.1f} %", size_text(it.sent_per_step),
        size_text(max(row.memory.values())), stale, row.promise, *more,
    ]  # fmt: skip


def in_short(row: Row) -> str:
    """Return the mode and the other knobs of a row, in short."""
    config = row.config
    name, _, knobs = str(config.mode).partition(":")
    parts = [name, knobs.replace(",", " ")]
    if config.shards_per_server not in (None, 1):
        parts.append(f"shards={config.shards_per_server}")
    if config.allreduce is not None:
        parts.append(config.allreduce)
    if config.codec is not None:
        both = [it.name for it in config.codecs.values()]
        parts.append("/".join(both))
    return " ".join(filter(None, parts))


def _ranks(row: Row) -> str:
    """Return the number of ranks: workers, and servers if there are any."""
    return f"{row.workers}+{row.servers}" if row.servers else str(row.workers)


def _notes(plan: Plan, rows: Sequence[Row]) -> list[str]:
    """Return what the columns mean that do not say it."""
    promises = dict.fromkeys(row.promise for row in rows)
    lines = ["ranks: workers + servers; sent: by a rank in a step; stale: mean/largest"]
    lines += [f"θ {name}: {PROMISES[name]}" for name in PROMISES if name in promises]
    lines.append("memory: parameters, gradients and optimizer of the largest rank; no activations")
    lines.append("samples/s says nothing about how well a model learns from a sample")
    dropped = [it for it in rows if it.prediction.dropped > 5e-4]
    if dropped:
        parts = (f"{100 * it.prediction.dropped:.0f} % in {it.number}" for it in dropped)
        lines += wrap(f"gradients that no update uses: {', '.join(parts)}", _WIDTH)
    if (more := len(plan.rows) - len(rows)) > 0:
        lines.append(f"{plural(more, 'row')} more: --top N prints them, --json FILE writes all")
    return lines


def toml_comment(row: Row) -> str:
    """Return the comment above a row's config in a file."""
    it = row.prediction
    return (
        f"# psrt plan: on {plural(row.ranks, 'rank')} {it.samples_per_s:.4g} samples/s are "
        f"predicted,\n# {it.low:.4g} to {it.high:.4g}; to start it:\n# {row.command}\n"
    )
