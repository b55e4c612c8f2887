"""Whether the all-reduce keeps what psrt promises of it. Pure: reads the rows of ``allreduce``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from psrt.bench.entrants import AUTO, PLAIN, WINDOW
from psrt.bench.measure import format_table
from psrt.units import size_text

_K, _M = 1 << 10, 1 << 20
#: From here on a vector in a window is to be this many times faster than the library's, at every
#: size and in the geometric mean; below, ``auto`` must not be much slower.
LONG, AT_LEAST, ON_AVERAGE = 256 * _K, 2.7, 3.3
#: Share of the library's speed that is still no slower.
NO_SLOWER = 0.9
#: From here on that holds for the ring on plain arrays.
PLAIN_LONG = _M
#: Between hosts the ring takes so many times 2(p − 1)/p·nβ at most, from here on.
OVER_WIRE, WIRE_LONG = 1.15, 4 * _M
#: Microseconds of a call of 1 KB beyond its messages.
OWN_US = 15.0

Row = Mapping[str, Any]


def promises(rows: Sequence[Row], calls: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a row for each promise and layout that something was measured for.

    Args:
        rows: of ``allreduce.measure``.
        calls: of ``call_cost.measure``.

    Returns:
        ``promise``, ``ranks``, ``at_least`` or ``at_most``, ``read`` (of medians), ``at`` (bytes
        of the worst, or None), and ``kept`` (None where nothing is promised).
    """
    found: list[dict[str, Any]] = []
    for ranks in sorted({row["ranks"] for row in rows}):
        mine = [row for row in rows if row["ranks"] == ranks]
        found += [told for told in _of(ranks, mine) if told is not None]
    for call in calls:
        microseconds = call["own_s"].median * 1e6
        found.append(_told(f"{call['figure']} (µs)", 2, microseconds, None, at_most=OWN_US))
    return found


def _of(ranks: int, rows: Sequence[Row]) -> Iterable[dict[str, Any] | None]:
    """Yield the promises about one number of ranks, None for those without a reading."""
    host = [row for row in rows if row["hosts"] == 1]
    windows = _select(host, AUTO, WINDOW, lambda n: n >= LONG)
    short = _select(host, AUTO, WINDOW, lambda n: n < LONG)
    ring = _select(host, "ring", PLAIN, lambda n: n >= PLAIN_LONG)
    apart = [row for row in rows if row["hosts"] == ranks]
    wire = _select(apart, "ring", WINDOW, lambda n: n >= WIRE_LONG)
    yield _worst(f"windows from {size_text(LONG)}: worst × MPI.Allreduce", windows, AT_LEAST)
    yield _mean("windows: geometric mean × MPI.Allreduce", windows, ON_AVERAGE)
    yield _worst("windows: worst share of copyto", windows, None, "over_copy")
    yield _worst(f"auto below {size_text(LONG)}: worst × MPI.Allreduce", short, NO_SLOWER)
    name = f"ring on plain arrays from {size_text(PLAIN_LONG)}: worst × MPI.Allreduce"
    yield _worst(name, ring, NO_SLOWER)
    name = f"ring between hosts from {size_text(WIRE_LONG)}: worst / (2(p−1)/p·nβ"
    yield _longest(f"{name})", wire, OVER_WIRE, "over_wire")
    yield _longest(f"{name} + (p−1)/p·nγ)", wire, None, "over_bound")


def _select(
    rows: Sequence[Row], algorithm: str, buffer: str, fits: Callable[[int], bool]
) -> list[Row]:
    return [
        row
        for row in rows
        if (row["algorithm"], row["buffer"]) == (algorithm, buffer) and fits(row["bytes"])
    ]


def _worst(
    promise: str, rows: Sequence[Row], wanted: float | None, what: str = "over_library"
) -> dict[str, Any] | None:
    """Tell of the row with the smallest ratio."""
    if not rows:
        return None
    row = min(rows, key=lambda row: float(row[what].median))
    return _told(promise, row["ranks"], row[what].median, row["bytes"], at_least=wanted)


def _mean(promise: str, rows: Sequence[Row], wanted: float) -> dict[str, Any] | None:
    """Tell of the geometric mean: of ratios, the one mean that turns over with them."""
    if not rows:
        return None
    logs = [math.log(row["over_library"].median) for row in rows]
    mean = math.exp(sum(logs) / len(logs))
    return _told(promise, rows[0]["ranks"], mean, None, at_least=wanted)


def _longest(
    promise: str, rows: Sequence[Row], wanted: float | None, what: str
) -> dict[str, Any] | None:
    """Tell of the row with the largest ratio."""
    if not rows:
        return None
    row = max(rows, key=lambda row: float(row[what].median))
    return _told(promise, row["ranks"], row[what].median, row["bytes"], at_most=wanted)


def _told(
    promise: str,
    ranks: int,
    read: float,
    at: int | None,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> dict[str, Any]:
    kept = None
    if at_least is not None:
        kept = read >= at_least
    elif at_most is not None:
        kept = read <= at_most
    return {
        "promise": promise, "ranks": ranks, "at_least": at_least, "at_most": at_most,
        "read": read, "at": at, "kept": kept,
    }  # fmt: skip


def table(found: Sequence[Row]) -> str:
    """Return the promises as text."""
    return format_table(
        ["promise", "ranks", "wanted", "read", "at", "kept"],
        [
            [
                row["promise"],
                row["ranks"],
                _wanted(row),
                f"{row['read']:.2f}",
                "" if row["at"] is None else size_text(row["at"]),
                {True: "yes", False: "NO", None: ""}[row["kept"]],
            ]
            for row in found
        ],
    )


def _wanted(row: Row) -> str:
    if row["at_least"] is not None:
        return f"≥ {row['at_least']:g}"
    return "" if row["at_most"] is None else f"≤ {row['at_most']:g}"
