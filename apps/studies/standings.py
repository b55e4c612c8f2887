"""How each mode stands in each scenario: from rows of runs to medians, spreads and ties. Pure.

A row is one run: mode, scenario, seed and what was measured. Over the seeds of a mode in a scenario
the time to the target has a median and a *spread*, from its fastest to its slowest run. Where the
median of one mode lies in the spread of another, so few seeds do not tell which is faster: a tie.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

#: How a mode stands in a scenario.
FIRST, TIED, NEAR, BEHIND, NEVER, BASELINE = "first", "tied", "near", "behind", "never", "baseline"
#: As fast as the best to a tenth, though the spreads are apart.
NEAR_RATIO = 1.1
#: What the table has the medians of, beside the time to the target.
_MEDIANS = (
    "test_accuracy", "staleness_mean", "waiting_share", "dropped", "bytes_sent",
    "samples_per_second",
)  # fmt: skip


def medians(rows: Iterable[Row], *, baseline: str = "") -> list[dict[str, Any]]:
    """Return a row for each mode in each scenario: medians, spread, and how it stands there.

    Args:
        rows: one per run; ``seconds_to_accuracy`` is None where the target was not reached.
        baseline: a mode that is shown but does not compete.

    Returns:
        In order of first appearance. ``seconds_to_accuracy`` is the median, ``fastest`` and
        ``slowest`` are the spread, all three None for never; ``reached`` of ``runs`` came to the
        target; ``worst_accuracy`` is that of the worst run. ``ratio`` is the median over that of
        the best, None for never, and ``standing`` one of the words above.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["mode"], row["scenario"]), []).append(row)
    cells = [_cell(mode, scenario, group) for (mode, scenario), group in groups.items()]
    for scenario in dict.fromkeys(cell["scenario"] for cell in cells):
        here = [cell for cell in cells if cell["scenario"] == scenario]
        best = min((c for c in here if c["mode"] != baseline), key=median_of, default=None)
        for cell in here:
            cell.update(_standing(cell, best, cell["mode"] == baseline))
    return cells


def _cell(mode: str, scenario: str, group: Sequence[Row]) -> dict[str, Any]:
    """Return what the runs of one mode in one scenario come to."""
    times = sorted(or_inf(row["seconds_to_accuracy"]) for row in group)
    return {
        "mode": mode,
        "scenario": scenario,
        "runs": len(group),
        "reached": sum(time < math.inf for time in times),
        "seconds_to_accuracy": _or_none(statistics.median(times)),
        "fastest": _or_none(times[0]),
        "slowest": _or_none(times[-1]),
        "worst_accuracy": min(row["test_accuracy"] for row in group),
        "staleness_max": max(row["staleness_max"] for row in group),
        **{key: statistics.median(row[key] for row in group) for key in _MEDIANS},
    }


def _standing(cell: Row, best: Row | None, is_baseline: bool) -> dict[str, Any]:
    """Return how a mode stands beside the best of its scenario."""
    mine, its = median_of(cell), math.inf if best is None else median_of(best)
    ratio = None if max(mine, its) == math.inf else mine / its if its else 1.0
    return {"standing": BASELINE if is_baseline else _word(cell, best, ratio), "ratio": ratio}


def _word(cell: Row, best: Row | None, ratio: float | None) -> str:
    """Return how one who competes stands."""
    if best is None or ratio is None:
        return NEVER
    if cell is best:
        return FIRST
    if _is_tie(cell, best):
        return TIED
    return NEAR if ratio <= NEAR_RATIO else BEHIND


def _is_tie(cell: Row, best: Row) -> bool:
    """Tell whether a median lies in the other's spread; who misses the target ties with nobody."""
    if cell["slowest"] is None:
        return False
    return cell["fastest"] <= median_of(best) or median_of(cell) <= or_inf(best["slowest"])


def median_of(cell: Row) -> float:
    """Return the median time to the target, infinite for never."""
    return or_inf(cell["seconds_to_accuracy"])


def or_inf(value: float | None) -> float:
    """Return a number that is larger than all others for None, which is never."""
    return math.inf if value is None else value


def _or_none(value: float) -> float | None:
    return None if value == math.inf else value


def repeats(runs: Iterable[Row]) -> bool | None:
    """Return whether a seed ends in the same parameters with any straggler; None if not known.

    Args:
        runs: of one mode, with ``seed`` and ``parameters_sha256``.
    """
    ends: dict[int, list[str]] = {}
    for run in runs:
        ends.setdefault(run["seed"], []).append(run["parameters_sha256"])
    if all(len(hashes) < 2 for hashes in ends.values()):
        return None
    return all(len(set(hashes)) == 1 for hashes in ends.values())
