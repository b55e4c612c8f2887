"""The lines about what failures cost a long job, by how often it is saved. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from psrt.checkpoint.failures import FailureCosts, Lost, asked_for
from psrt.checkpoint.interval import daly_s, young_s
from psrt.core.units import time_text

_COLUMNS = ("steps", "lost", "saving", "again", "down", "Young", "Daly")

#: From here on a share is shown by its order of magnitude: Daly's may have hundreds of digits.
_LARGE = 1e6


def failure_lines(costs: FailureCosts, lost: Sequence[Lost]) -> list[str]:
    """Return the lines below the others of a simulation.

    Args:
        costs: of failures and checkpoints.
        lost: by interval.
    """
    delta, mtbf = costs.stall_s, costs.mtbf_s
    written = f" and take {time_text(costs.write_s)} to write" if costs.write_s else ""
    lines = [
        f"failures every {time_text(mtbf)}; checkpoints stop training for {time_text(delta)}"
        f"{written}; restarts take {time_text(costs.restart_s)}",
        "time lost, in % of that of the steps, by the interval:",
    ]
    asked = asked_for(costs, lost[0].seconds / lost[0].steps)
    best = min(lost, key=lambda it: it.total)
    table: list[tuple[str, ...]] = [("", *_COLUMNS, "")]
    for it in lost:
        notes = ["best of these"] * (it is best and math.isfinite(it.total))
        notes += ["--checkpoint-every"] * (it.steps == asked)
        shares = (it.total, it.saving, it.again, it.down, it.young, it.daly)
        numbers = (f"{it.steps:,}", *map(_percent, shares))
        table.append((time_text(it.seconds), *numbers, ", ".join(notes)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines += [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row[:-1], widths, strict=False))
        + f"  {row[-1]}".rstrip()
        for row in table
    ]
    if delta:
        young, daly = time_text(young_s(delta, mtbf)), time_text(daly_s(delta, mtbf))
        lines.append(f"least by Young {young}, by Daly {daly}")
    return lines


def _percent(share: float) -> str:
    if math.isinf(share):
        return "all"
    return f"{100 * share:.2f}" if share < _LARGE else f"{100 * share:.1e}"
