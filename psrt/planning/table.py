"""A plan as text: a line per row, and below them what to type. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap

from psrt.core.units import plural, size_text, time_text
from psrt.planning.ranking import PROMISES, Budget, Plan, Row
from psrt.rows.knobs import shown

#: Width of lines, and of the column with what a row is.
_WIDTH, _WHAT = 100, 38
#: Rows of a mode that are shown before those of other modes.
_OF_MODE = 2


def shown_rows(plan: Plan, top: int) -> list[Row]:
    """Return the rows to show, in order: the best of each mode, and then the best of all.

    Args:
        plan: at least one row.
        top: their number.
    """
    of_mode: Counter[str] = Counter()
    first, others = list[Row](), list[Row]()
    for row in plan.rows:
        of_mode[row.config.scheme.name] += 1
        (first if of_mode[row.config.scheme.name] <= _OF_MODE else others).append(row)
    return sorted([*first, *others][:top], key=lambda row: row.number)


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
    work = known.workload
    lines = [
        f"known: {work.n:,} parameters, a gradient {time_text(work.mean_s)}, {known.source}",
    ]
    if known.doubt:
        lines.append(f"doubt: {known.doubt}")
    left_out = ", ".join(f"{count} {why}" for why, count in plan.pruned.items())
    simulated = plural(len(plan.rows), "configuration")
    lines += wrap(f"simulated: {simulated}{f'; left out: {left_out}' if left_out else ''}", _WIDTH)
    return [*lines, f"ranked by: {plan.asked}"]


def _table(rows: Sequence[Row], budget: Budget) -> list[str]:
    amount = {"samples": "time", "seconds": "samples"}.get(budget.kind, "")
    amount = amount if budget.amount is not None else ""
    fails = any(row.goodput is not None for row in rows)
    head = ["#", "", "ranks", "step", "samples/s", "±", "sent/step", "memory", "stale", "θ"]
    head += ["goodput"] * fails + [amount] * bool(amount)
    cells = [head]
    for row in rows:
        it = row.prediction
        lines = wrap(in_short(row), _WHAT, subsequent_indent=" ", break_on_hyphens=False)
        stale = "-" if it.staleness_mean is None else f"{it.staleness_mean:.1f}/{it.staleness_max}"
        more = [] if row.goodput is None else [f"{100 * row.goodput:.1f} %"]
        found = budget.of(row)
        if found is not None:
            more.append(time_text(found) if budget.kind == "samples" else f"{found:.3g}")
        cells.append([
            str(row.number), lines[0], _ranks(row), time_text(it.step_s),
            f"{it.samples_per_s:.4g}", f"{100 * (it.high / it.samples_per_s - 1):.1f} %",
            size_text(it.sent_per_step), size_text(max(row.memory.values())), stale, row.promise,
            *more,
        ])  # fmt: skip
        cells += [["", line, *[""] * (len(head) - 2)] for line in lines[1:]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        "  ".join(
            text.ljust(width) if i == 1 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


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
    if config.checkpoint_every is not None:
        parts.append(f"checkpoint {shown(config.checkpoint_every)}")
    return " ".join(filter(None, parts))


def _ranks(row: Row) -> str:
    """Return the number of ranks: workers, and servers if there are any."""
    return f"{row.workers}+{row.servers}" if row.servers else str(row.workers)


def _notes(plan: Plan, rows: Sequence[Row]) -> list[str]:
    """Return what the columns mean that do not say it."""
    promises = dict.fromkeys(row.promise for row in rows)
    lines = ["ranks: workers + servers; stale: mean/largest staleness, in versions"]
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
