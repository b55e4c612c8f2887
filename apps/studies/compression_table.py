"""What comes of every codec, beside nothing at all: medians, spreads, and who pays. Pure.

Over the seeds of a setting the time to the target accuracy has a median and a *spread*, from its
fastest to its slowest run. A codec pays on a link where its median is shorter than the shortest run
without one, and costs where it is longer than the longest; in between so few seeds do not tell.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psrt.core.units import size_text

Row = Mapping[str, Any]

#: The baseline of all other settings.
NONE = "none"
PAYS, OPEN, COSTS, FAILS = "pays", "open", "costs", "never"


def cells(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the results of the runs of each mode, setting and link, in order of first appearance.

    Args:
        rows: one per run: ``mode``, ``setting``, ``link``, ``lr``, ``bytes_sent``, and
            ``test_accuracy`` and ``seconds_to_accuracy``, None where a run diverged or never came
            to the target.

    Returns:
        ``median``, ``fastest`` and ``slowest`` time to the target, ``accuracy`` (median) and
        ``worst`` accuracy, ``bytes_sent``, each None where there is none; ``ratio`` of the median
        to that without a codec, and ``standing``, one of the words above; ``reached`` of ``runs``.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["mode"], row["link"], row["setting"]), []).append(row)
    found = {key: _cell(key, group) for key, group in groups.items()}
    for (mode, link, _), cell in found.items():
        _stand(cell, found.get((mode, link, NONE)))
    return list(found.values())


def _cell(key: tuple[str, str, str], group: Sequence[Row]) -> dict[str, Any]:
    mode, link, setting = key
    times = sorted(_or_inf(row["seconds_to_accuracy"]) for row in group)
    ends = [row["test_accuracy"] or 0.0 for row in group]
    sent = [row["bytes_sent"] for row in group if row["bytes_sent"] is not None]
    return {
        "mode": mode,
        "link": link,
        "setting": setting,
        "lr": group[0]["lr"],
        "runs": len(group),
        "reached": sum(time < math.inf for time in times),
        "median": _or_none(statistics.median(times)),
        "fastest": _or_none(times[0]),
        "slowest": _or_none(times[-1]),
        "accuracy": statistics.median(ends),
        "worst": min(ends),
        "bytes_sent": statistics.median(sent) if sent else None,
    }


def _stand(cell: dict[str, Any], plain: Row | None) -> None:
    """Add how a setting stands beside none."""
    cell["ratio"], cell["standing"] = None, OPEN
    mine = _or_inf(cell["median"])
    if mine == math.inf:
        cell["standing"] = FAILS
    elif plain is None:
        return
    elif cell["setting"] != NONE:
        its = _or_inf(plain["median"])
        cell["ratio"] = None if its == math.inf else mine / its
        if mine < _or_inf(plain["fastest"]):
            cell["standing"] = PAYS
        elif mine > _or_inf(plain["slowest"]):
            cell["standing"] = COSTS


def table(found: Sequence[Row]) -> str:
    """Return a table for each mode: bytes and accuracy, then the time to the target by link."""
    lines: list[str] = []
    for mode in _of(found, "mode"):
        mine = [cell for cell in found if cell["mode"] == mode]
        links = _of(mine, "link")
        headings = "".join(f"{link:>22}" for link in links)
        lines += ["", mode, f"{'codec':<34}{'lr':>7}{'sent':>12}{'accuracy (worst)':>20}{headings}"]
        for setting in _of(mine, "setting"):
            here = [cell for cell in mine if cell["setting"] == setting]
            first = here[0]
            sent = "" if first["bytes_sent"] is None else size_text(first["bytes_sent"])
            ends = f"{100 * first['accuracy']:.1f} ({100 * first['worst']:.1f}) %"
            times = "".join(
                f"{time_text(cell):>22}" for link in links for cell in here if cell["link"] == link
            )
            lines.append(f"{setting:<34}{first['lr']:>7g}{sent:>12}{ends:>20}{times}")
    return "\n".join(lines[1:])


def time_text(cell: Row) -> str:
    """Return the time to the target, and how it stands beside none."""
    if cell["median"] is None:
        return f"{cell['reached']} of {cell['runs']}" if cell["reached"] else "never"
    ratio = "" if cell["ratio"] is None else f" ({cell['ratio']:.2f} {cell['standing']})"
    return f"{cell['median']:.3g} s{ratio}"


def verdict(found: Sequence[Row]) -> list[str]:
    """Return the lines that say which codec pays where, and which does not."""
    lines = []
    for mode in _of(found, "mode"):
        for link in _of(found, "link"):
            here = [
                cell
                for cell in found
                if (cell["mode"], cell["link"]) == (mode, link) and cell["setting"] != NONE
            ]
            lines.append(f"{mode} at {link}:")
            for standing, words in (
                (PAYS, "pays"), (OPEN, "open, too close to tell"), (COSTS, "costs time"),
                (FAILS, "misses the target"),
            ):  # fmt: skip
                named = [_named(cell) for cell in here if cell["standing"] == standing]
                if named:
                    lines.append(f"  {words}: {', '.join(named)}")
    competing = [cell for cell in found if cell["setting"] != NONE]
    paying = sum(cell["standing"] == PAYS for cell in competing)
    return [*lines, f"{paying} of {len(competing)} cases pay."]


def _named(cell: Row) -> str:
    ratio = "" if cell["ratio"] is None else f" ({cell['ratio']:.2f})"
    return f"{cell['setting']}{ratio}"


def _of(found: Sequence[Row], key: str) -> list[str]:
    return list(dict.fromkeys(cell[key] for cell in found))


def _or_inf(value: float | None) -> float:
    return math.inf if value is None else value


def _or_none(value: float) -> float | None:
    return None if value == math.inf else value
