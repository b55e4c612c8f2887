"""The rows of ``bench allreduce``: what contests amount to, for people and programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psrt.bench.entrants import AUTO, COPY, EXCHANGE, LIBRARY, PLAIN, WINDOW, Name, Outcome
from psrt.bench.measure import Summary, format_table
from psrt.bench.rounds import pairs, readings
from psrt.bench.seats import Seats
from psrt.collective.analysis.choose import predict
from psrt.collective.analysis.machine import MachineCosts
from psrt.units import size_text

#: Between hosts, above this, only what promises are about is measured.
ALL_BETWEEN_UP_TO = 16 << 20


@dataclass(frozen=True, slots=True)
class Race:
    """One size on one layout."""

    seats: Seats
    nbytes: int
    outcome: Outcome


def rows_of(race: Race, costs: MachineCosts) -> list[dict[str, Any]]:
    """Return a row for each contestant of a race.

    ``seconds`` are medians with quartiles; ``algbw`` and ``busbw`` bytes per second of the median;
    ``sent`` bytes counted, of each rank; ``predicted_s`` by the costs; ``over_library`` how many
    times faster than ``MPI.Allreduce``, round by round; ``over_copy`` the share of ``copyto``'s
    speed; ``over_wire`` how many times 2(p − 1)/p·nβ it took, and ``over_bound`` how many times
    that and (p − 1)/p·nγ. None where there is no such thing.
    """
    return [_row(race, name, costs) for name in race.outcome.sent]


def _row(race: Race, name: Name, costs: MachineCosts) -> dict[str, Any]:
    algorithm, buffer = name
    outcome, p = race.outcome, len(race.seats.ranks)
    seconds = Summary.of(readings(outcome.rounds, name))
    reduces = algorithm not in (COPY, EXCHANGE)
    share = 2 * (p - 1) / p
    fold_s = (p - 1) / p * race.nbytes * costs.between.gamma
    chosen = outcome.chosen if algorithm == AUTO else algorithm
    sent = outcome.sent[name]
    return {
        "algorithm": algorithm,
        "chosen": chosen,
        "buffer": buffer,
        "ranks": p,
        "hosts": len(race.seats.hosts),
        "pretended": race.seats.pretended,
        "bytes": race.nbytes,
        "seconds": seconds,
        "algbw": race.nbytes / seconds.median,
        "busbw": share * race.nbytes / seconds.median if reduces else None,
        "sent": None if sent is None else list(sent),
        "predicted_s": _predicted(chosen, race, costs) if reduces else None,
        "over_library": _ratio(race, (LIBRARY, PLAIN), name) if reduces else None,
        "over_copy": _ratio(race, (COPY, WINDOW), name) if reduces else None,
        "over_wire": _ratio(race, name, (EXCHANGE, WINDOW), share) if reduces else None,
        "over_bound": _ratio(race, name, (EXCHANGE, WINDOW), share, fold_s) if reduces else None,
    }


def _ratio(
    race: Race, over: Name, under: Name, factor: float = 1.0, plus: float = 0.0
) -> Summary | None:
    """Summarize ``over`` / (``factor`` · ``under`` + ``plus``) round by round."""
    both = pairs(race.outcome.rounds, over, under)
    return Summary.of([a / (factor * b + plus) for a, b in both]) if both else None


def _predicted(algorithm: str, race: Race, costs: MachineCosts) -> float | None:
    """Return the predicted seconds; None where the costs say nothing of it."""
    name = "mpi" if algorithm == LIBRARY else algorithm
    hosts = [len(host) for host in race.seats.hosts]
    return predict(name, hosts, race.nbytes, 4, costs)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as text."""
    headers = [
        "algorithm", "buffer", "ranks", "hosts", "bytes", "µs", "turns", "predicted µs",
        "algbw GB/s", "busbw GB/s", "sent/rank", "× MPI.Allreduce", "of limit",
    ]  # fmt: skip
    text = format_table(headers, [_cells(row) for row in rows])
    notes = ["of limit: the share of copyto's speed; between hosts of 2(p − 1)/p exchanges"]
    if any(row["pretended"] for row in rows):
        notes.append("hosts *: ranks of one host that count as so many, with MPI between them")
    if any(row["hosts"] > 1 and row["bytes"] > ALL_BETWEEN_UP_TO for row in rows):
        largest = size_text(ALL_BETWEEN_UP_TO)
        notes.append(f"between hosts, above {largest}, only what the promises are about")
    return "\n".join([text, *notes])


def _cells(row: dict[str, Any]) -> list[object]:
    algorithm, chosen = row["algorithm"], row["chosen"]
    sent, over = row["sent"], row["over_library"]
    return [
        algorithm if chosen == algorithm else f"{algorithm}: {chosen}",
        row["buffer"],
        row["ranks"],
        f"{row['hosts']}{'*' if row['pretended'] else ''}",
        size_text(row["bytes"]),
        row["seconds"].format(1e6, 1),
        row["seconds"].readings,
        _number(row["predicted_s"], 1e6, 1),
        _number(row["algbw"], 1e-9, 2),
        _number(row["busbw"], 1e-9, 2),
        "-" if sent is None else _spread(sent),
        "-" if over is None else over.format(),
        _of_limit(row),
    ]


def _of_limit(row: dict[str, Any]) -> str:
    """Return the share of the speed of a copy, or between hosts of 2(p − 1)/p·n on the wire."""
    if row["over_copy"] is not None:
        return f"{row['over_copy'].median:.0%}"
    return "-" if row["over_wire"] is None else f"{1 / row['over_wire'].median:.0%}"


def _number(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"


def _spread(sent: Sequence[int]) -> str:
    """Return what ranks sent, the least and the most if they differ.

    >>> _spread([4096, 4096]), _spread([0, 4096])
    ('4 KiB', '0 B .. 4 KiB')
    """
    least, most = size_text(min(sent)), size_text(max(sent))
    return most if least == most else f"{least} .. {most}"
