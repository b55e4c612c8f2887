"""The candidates of ``bench allreduce``, the numbers they sum, the rows of its table. Pure.

=================  ============================================================================
algorithm          description
=================  ============================================================================
``MPI.Allreduce``  the library's, blocking and in place on a plain array: the baseline
``auto``           the choice of ``Communicator`` by the machine's costs
``node``, NAME …   the algorithms of ``Communicator`` by their names
``mpi``            the library's again, called by ``Communicator`` with its check of signatures
``copyto``         all ranks copy the vector once, at the same time: a lower bound of any sum
``exchange``       every rank sends the vector to the next one while it receives from the last
=================  ============================================================================

Small calls are timed in two patterns, since programs use both and candidates may rank differently
in them: **back to back**, where a fast rank begins the next call while others finish the previous
one, and each **after a barrier**, like a step of training that all ranks reach at once.
Each is compared with ``MPI.Allreduce`` in the same pattern.

They sum whole numbers, whose sum is exact in any order, so every result is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from psrt.bench.figures import Column, Row, Summary, spread, table
from psrt.bench.race import Layout, Readings
from psrt.collective import ALGORITHMS
from psrt.collective.analysis.choose import predict
from psrt.collective.analysis.machine import MachineCosts, Measured
from psrt.collective.registry import ALL_REDUCES
from psrt.core.arrays import FloatArray
from psrt.core.units import size_text

LIBRARY, AUTO, COPY, EXCHANGE = "MPI.Allreduce", "auto", "copyto", "exchange"
WINDOW, PLAIN = "window", "plain"
BACK_TO_BACK, AFTER_BARRIER = "back to back", "after a barrier"


class Name(NamedTuple):
    """The name of a candidate."""

    algorithm: str
    buffer: str
    pattern: str = BACK_TO_BACK


#: The candidates that users choose between; they have a turn in almost every round.
KEY: tuple[Name, ...] = (
    Name(LIBRARY, PLAIN), Name(AUTO, WINDOW), Name(AUTO, PLAIN), Name("node", WINDOW),
    Name("ring", WINDOW), Name("ring", PLAIN), Name(COPY, WINDOW), Name(EXCHANGE, WINDOW),
)  # fmt: skip
#: Largest size timed in both patterns; longer calls take the same time in both.
SMALL = 64 << 10
#: Between hosts, above this, only ``KEY`` is measured.
LARGEST_BETWEEN = 16 << 20
#: If hosts have several ranks each, only these are tried between them.
_BETWEEN = ("ring", "segmented-ring", "double-tree", "butterfly", "halving-doubling")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one size on one layout; the same on every rank."""

    layout: Layout
    nbytes: int
    #: By name, the bytes that each rank sent in one call; None if they are not counted.
    sent: dict[Name, tuple[int, ...] | None]
    #: The choice of ``auto``.
    chosen: str
    readings: Readings[Name]


def names(layout: Layout, nbytes: int) -> Iterator[Name]:
    """Yield the candidates on a layout, the baseline first."""
    plain = [Name(LIBRARY, PLAIN), Name(AUTO, WINDOW), Name(AUTO, PLAIN)]
    yield from plain
    if nbytes <= SMALL:
        yield from (name._replace(pattern=AFTER_BARRIER) for name in plain)
    if len(layout.hosts) == 1:
        for buffer in (WINDOW, PLAIN):
            yield from (Name(algorithm, buffer) for algorithm in ("node", *ALGORITHMS))
        yield Name("mpi", PLAIN)
        yield Name(COPY, WINDOW)
        return
    if layout.apart:
        yield from (Name(algorithm, WINDOW) for algorithm in ALGORITHMS)
        yield Name(EXCHANGE, WINDOW)
    else:
        yield Name("ring", WINDOW)
        yield from (Name(f"node+{algorithm}", WINDOW) for algorithm in _BETWEEN)
    yield Name("mpi", PLAIN)


def rows_of(outcome: Outcome, costs: MachineCosts) -> list[dict[str, Any]]:
    """Return a row for each candidate.

    ``seconds`` are medians with quartiles; ``algbw`` and ``busbw`` bytes per second of the median;
    ``sent`` the counted bytes of each rank; ``predicted_s`` the time by the costs. ``over_library``
    is the speed relative to ``MPI.Allreduce`` in the same pattern, round by round; ``over_copy``
    that relative to ``copyto``. ``over_wire`` is the time relative to 2(p − 1)/p·nβ, ``over_bound``
    that relative to it plus (p − 1)/p·nγ. A figure that does not exist is None.
    """
    return [_row(outcome, name, costs) for name in outcome.sent]


def measured_by(rows: Iterable[Row]) -> Iterator[Measured]:
    """Yield the input of `choose`: the times between real hosts of all that it may choose."""
    for row in rows:
        hosts = (row["ranks"] // row["hosts"],) * row["hosts"]
        chooses = row["algorithm"] in ALL_REDUCES and row["algorithm"] != AUTO
        if len(hosts) > 1 and not row["pretended"] and chooses:
            yield row["algorithm"], hosts, row["bytes"], row["seconds"].median


def _row(outcome: Outcome, name: Name, costs: MachineCosts) -> dict[str, Any]:
    layout, nbytes, found = outcome.layout, outcome.nbytes, outcome.readings
    p = len(layout.ranks)
    seconds = found.summary(name)
    reduces = name.algorithm not in (COPY, EXCHANGE)
    share = 2 * (p - 1) / p
    combine_s = (p - 1) / p * nbytes * costs.between.gamma
    chosen = outcome.chosen if name.algorithm == AUTO else name.algorithm
    sent = outcome.sent[name]

    def ratio(over: Name, under: Name, *more: float) -> Summary | None:
        return found.ratio(over, under, *more) if reduces else None

    back_to_back = name.pattern == BACK_TO_BACK
    return {
        "algorithm": name.algorithm,
        "chosen": chosen,
        "buffer": name.buffer,
        "pattern": name.pattern,
        "ranks": p,
        "hosts": len(layout.hosts),
        "pretended": layout.pretended,
        "bytes": nbytes,
        "seconds": seconds,
        "algbw": nbytes / seconds.median,
        "busbw": share * nbytes / seconds.median if reduces else None,
        "sent": None if sent is None else list(sent),
        "predicted_s": _predicted(chosen, outcome, costs) if reduces and back_to_back else None,
        "over_library": ratio(Name(LIBRARY, PLAIN, name.pattern), name),
        "over_copy": ratio(Name(COPY, WINDOW), name) if back_to_back else None,
        "over_wire": ratio(name, Name(EXCHANGE, WINDOW), share) if back_to_back else None,
        "over_bound": (
            ratio(name, Name(EXCHANGE, WINDOW), share, combine_s) if back_to_back else None
        ),
    }


def _predicted(algorithm: str, outcome: Outcome, costs: MachineCosts) -> float | None:
    """Return the predicted seconds; None if the costs do not cover the candidate."""
    name = "mpi" if algorithm == LIBRARY else algorithm
    return predict(name, [len(host) for host in outcome.layout.hosts], outcome.nbytes, 4, costs)


def as_text(rows: Sequence[Row]) -> str:
    """Return the rows as text: small calls in both patterns first, then all candidates."""
    both = {(row["ranks"], row["hosts"], row["bytes"]) for row in rows if _waits(row)}
    small = [
        row
        for row in rows
        if (row["ranks"], row["hosts"], row["bytes"]) in both
        and (row["algorithm"] == AUTO or _waits(row) or row["algorithm"] == LIBRARY)
    ]
    parts = []
    if small:
        parts.append(
            f"small calls, in two patterns\n{table(small, SMALL_COLUMNS)}\n\nall candidates"
        )
    parts.append(table([row for row in rows if not _waits(row)], COLUMNS))
    parts += [
        "µs: median [quartiles] of the turns; × MPI.Allreduce: in the same round and pattern",
        "of limit: the share of copyto's speed; between hosts, of that of 2(p − 1)/p exchanges",
    ]
    if any(row["over_library"] is None and row["busbw"] is not None for row in rows):
        parts.append("× MPI.Allreduce -: it was left out, or had no turn in the same round")
    if any(row["pretended"] for row in rows):
        parts.append("hosts *: ranks of one host, treated as separate hosts with MPI between them")
    if any(row["hosts"] > 1 and row["bytes"] > LARGEST_BETWEEN for row in rows):
        parts.append(f"between hosts, above {size_text(LARGEST_BETWEEN)}, fewer are measured")
    return "\n".join(parts)


def _waits(row: Row) -> bool:
    return bool(row["pattern"] == AFTER_BARRIER)


def _algorithm(row: Row) -> str:
    algorithm, chosen = row["algorithm"], row["chosen"]
    return str(algorithm if chosen == algorithm else f"{algorithm}: {chosen}")


def _scaled(key: str, scale: float, digits: int) -> Any:
    return lambda row: "-" if row[key] is None else f"{row[key] * scale:.{digits}f}"


def _sent(row: Row) -> str:
    """Return the bytes that ranks sent, the least and the most if they differ.

    >>> _sent({"sent": [4096, 4096]}), _sent({"sent": [0, 4096]}), _sent({"sent": None})
    ('4 KiB', '0 B .. 4 KiB', '-')
    """
    if row["sent"] is None:
        return "-"
    least, most = size_text(min(row["sent"])), size_text(max(row["sent"]))
    return most if least == most else f"{least} .. {most}"


def _of_limit(row: Row) -> str:
    """Return the share of the speed of a copy, or between hosts of 2(p − 1)/p·n on the wire.

    Neither limits small calls, which take the time of messages, not of bytes.
    """
    if row["bytes"] <= SMALL:
        return "-"
    if row["over_copy"] is not None:
        return f"{row['over_copy'].median:.0%}"
    return "-" if row["over_wire"] is None else f"{1 / row['over_wire'].median:.0%}"


_FIRST: tuple[Column, ...] = (
    ("algorithm", _algorithm),
    ("buffer", "buffer"),
    ("ranks", "ranks"),
    ("hosts", lambda row: f"{row['hosts']}{'*' if row['pretended'] else ''}"),
    ("bytes", lambda row: size_text(row["bytes"])),
)
_TIMES: tuple[Column, ...] = (
    ("µs", spread("seconds", 1e6, 1)),
    ("turns", lambda row: row["seconds"].readings),
)
_OVER_LIBRARY: Column = ("× MPI.Allreduce", spread("over_library"))
SMALL_COLUMNS: tuple[Column, ...] = (*_FIRST, ("calls", "pattern"), *_TIMES, _OVER_LIBRARY)
COLUMNS: tuple[Column, ...] = (
    *_FIRST,
    *_TIMES,
    ("predicted µs", _scaled("predicted_s", 1e6, 1)),
    ("algbw GB/s", _scaled("algbw", 1e-9, 2)),
    ("busbw GB/s", _scaled("busbw", 1e-9, 2)),
    ("sent/rank", _sent),
    _OVER_LIBRARY,
    ("of limit", _of_limit),
)


#: Elements i and j of a rank are equal only if i - j is a multiple of this prime, so swapped chunks
#: are noticed.
_PERIOD = 1021
_TILE = 64 * _PERIOD
#: The largest sum is below 2²⁴, up to which float32 is exact.
MOST_RANKS = 180


class WholeNumbers:
    """The contribution of each rank, and the result required of all.

    Rank r gives ``(r + 1)·(i mod 1021) + r`` as its element i, so a contribution that is lost,
    doubled, or replaced by another rank's changes the sum.
    """

    def __init__(self, ranks: int) -> None:
        """Prepare a tile of the numbers; longer vectors repeat it.

        Args:
            ranks: at most ``MOST_RANKS``.
        """
        assert ranks <= MOST_RANKS, "sums must stay exact"
        self._base = (np.arange(_TILE) % _PERIOD).astype(np.float32)
        self._ranks = ranks

    def of(self, rank: int) -> FloatArray:
        """Return the tile of a rank's contribution."""
        return np.float32(rank + 1) * self._base + np.float32(rank)

    def total(self) -> FloatArray:
        """Return the tile of the sum over all ranks.

        >>> numbers = WholeNumbers(3)
        >>> bool((numbers.total() == numbers.of(0) + numbers.of(1) + numbers.of(2)).all())
        True
        """
        p = self._ranks
        return np.float32(p * (p + 1) // 2) * self._base + np.float32(p * (p - 1) // 2)


def fill(array: FloatArray, tile: FloatArray) -> None:
    """Fill an array with copies of a tile."""
    for block in _blocks(array, tile.size):
        block[:] = tile[: block.size]


def first_difference(array: FloatArray, tile: FloatArray) -> int | None:
    """Return the first index at which an array differs from copies of a tile; None if equal.

    >>> tile = np.arange(3, dtype=np.float32)
    >>> array = np.array([0, 1, 2, 0, 7], np.float32)
    >>> first_difference(array, tile), first_difference(array[:4], tile)
    (4, None)
    """
    at = 0
    for block in _blocks(array, tile.size):
        wrong = np.flatnonzero(block != tile[: block.size])
        if wrong.size:
            return at + int(wrong[0])
        at += block.size
    return None


def _blocks(array: FloatArray, size: int) -> Iterator[FloatArray]:
    for start in range(0, array.size, size):
        yield array[start : start + size]
