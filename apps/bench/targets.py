"""Check whether all-reduces meet psrt's targets, from a file that ``--json`` wrote.

mpirun -n 4 python -m psrt bench allreduce --json runs/allreduce.json
python apps/bench/targets.py runs/allreduce.json
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from psrt.bench.allreduce_rows import (
    AFTER_BARRIER,
    AUTO,
    BACK_TO_BACK,
    PLAIN,
    SMALL,
    WINDOW,
    Name,
)
from psrt.bench.figures import Column, Row, table
from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.cli.process import run_command
from psrt.core.errors import ConfigError
from psrt.core.files import read_text
from psrt.core.units import size_text

_K, _M = 1 << 10, 1 << 20
#: From here on a vector in a window is to be this many times faster than the library's, at every
#: size and in the geometric mean; below, ``auto`` must not be much slower.
LONG, AT_LEAST, ON_AVERAGE = 256 * _K, 2.7, 3.3
#: Share of the library's speed that is still no slower.
NO_SLOWER = 0.9
#: From here on that holds for the ring on plain arrays.
PLAIN_LONG = _M
#: Between hosts the ring takes at most that many times 2(p − 1)/p·nβ, from here on.
OVER_WIRE, WIRE_LONG = 1.15, 4 * _M


def targets(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a row for each target and number of ranks that something was measured for.

    Args:
        rows: of ``psrt bench allreduce --json``.

    Returns:
        ``target``, ``ranks``, ``at_least`` or ``at_most``, ``read`` (of medians), ``at`` (bytes
        of the worst, or None), and ``reached`` (None where nothing is aimed at).
    """
    return [
        target
        for ranks in sorted({row["ranks"] for row in rows})
        for target in _of([row for row in rows if row["ranks"] == ranks])
        if target is not None
    ]


def _of(rows: Sequence[Row]) -> Iterator[dict[str, Any] | None]:
    """Yield the targets for one number of ranks, None for those without a reading."""
    host = [row for row in rows if row["hosts"] == 1]
    windows = _select(host, Name(AUTO, WINDOW), lambda n: n >= LONG)
    yield _worst(f"windows from {size_text(LONG)}: worst × MPI.Allreduce", windows, AT_LEAST)
    yield _mean("windows: geometric mean × MPI.Allreduce", windows, ON_AVERAGE)
    yield _worst("windows: worst share of copyto", windows, None, "over_copy")
    short = _select(host, Name(AUTO, WINDOW), lambda n: n < LONG)
    yield _worst(f"auto below {size_text(LONG)}: worst × MPI.Allreduce", short, NO_SLOWER)
    waiting = _select(host, Name(AUTO, WINDOW, AFTER_BARRIER), lambda _: True)
    name = f"auto up to {size_text(SMALL)}, {AFTER_BARRIER}: worst × MPI.Allreduce"
    yield _worst(name, waiting, NO_SLOWER)
    ring = _select(host, Name("ring", PLAIN), lambda n: n >= PLAIN_LONG)
    name = f"ring on plain arrays from {size_text(PLAIN_LONG)}: worst × MPI.Allreduce"
    yield _worst(name, ring, NO_SLOWER)
    apart = [row for row in rows if row["hosts"] == row["ranks"]]
    wire = _select(apart, Name("ring", WINDOW), lambda n: n >= WIRE_LONG)
    name = f"ring between hosts from {size_text(WIRE_LONG)}: worst / (2(p−1)/p·nβ"
    yield _longest(f"{name})", wire, OVER_WIRE, "over_wire")
    yield _longest(f"{name} + (p−1)/p·nγ)", wire, None, "over_bound")


def _select(rows: Sequence[Row], name: Name, fits: Callable[[int], bool]) -> list[Row]:
    return [
        row
        for row in rows
        if Name(row["algorithm"], row["buffer"], row.get("pattern", BACK_TO_BACK)) == name
        and fits(row["bytes"])
        and row["over_library"] is not None
    ]


def _worst(
    target: str, rows: Sequence[Row], wanted: float | None, what: str = "over_library"
) -> dict[str, Any] | None:
    """Report the row with the smallest ratio."""
    if not rows:
        return None
    row = min(rows, key=lambda row: float(row[what]["median"]))
    return _target(target, row["ranks"], row[what]["median"], row["bytes"], at_least=wanted)


def _mean(target: str, rows: Sequence[Row], wanted: float) -> dict[str, Any] | None:
    """Report the geometric mean: of ratios, the one mean that turns over with them."""
    if not rows:
        return None
    logs = [math.log(row["over_library"]["median"]) for row in rows]
    mean = math.exp(sum(logs) / len(logs))
    return _target(target, rows[0]["ranks"], mean, None, at_least=wanted)


def _longest(
    target: str, rows: Sequence[Row], wanted: float | None, what: str
) -> dict[str, Any] | None:
    """Report the row with the largest ratio."""
    if not rows:
        return None
    row = max(rows, key=lambda row: float(row[what]["median"]))
    return _target(target, row["ranks"], row[what]["median"], row["bytes"], at_most=wanted)


def _target(
    target: str,
    ranks: int,
    read: float,
    at: int | None,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> dict[str, Any]:
    reached = None
    if at_least is not None:
        reached = read >= at_least
    elif at_most is not None:
        reached = read <= at_most
    return {
        "target": target, "ranks": ranks, "at_least": at_least, "at_most": at_most,
        "read": read, "at": at, "reached": reached,
    }  # fmt: skip


def _wanted(row: Row) -> str:
    if row["at_least"] is not None:
        return f"≥ {row['at_least']:g}"
    return "" if row["at_most"] is None else f"≤ {row['at_most']:g}"


COLUMNS: tuple[Column, ...] = (
    ("target", "target"),
    ("ranks", "ranks"),
    ("wanted", _wanted),
    ("read", lambda row: f"{row['read']:.2f}"),
    ("at", lambda row: "" if row["at"] is None else size_text(row["at"])),
    ("reached", lambda row: {True: "yes", False: "NO", None: ""}[row["reached"]]),
)


def read_rows(path: str) -> list[Row]:
    """Return the rows that ``psrt bench allreduce --json`` wrote to a file.

    Raises:
        ConfigError: if it has none.
    """
    try:
        return list(json.loads(read_text(path, "JSON"))["all-reduce"])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path}: not the figures of psrt bench allreduce --json") from None


def main(argv: Sequence[str]) -> int:
    """Print the targets."""
    parser = FlagParser(prog="targets.py", description=__doc__)
    parser.add_argument("figures", metavar="FILE", help="what --json wrote")
    say(table(targets(read_rows(parser.parse(argv).figures)), COLUMNS))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:]), "targets.py"))
