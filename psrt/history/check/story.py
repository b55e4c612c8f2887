"""A violation as a short story: the events that led there, a line each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from psrt.history.check.findings import Spot, Violation
from psrt.history.events import LATE, LOST, PRESENT, Kind

#: Events of the same worker and of the same shard that are told of before the one that is wrong.
_BEFORE = 4
#: Fields beyond kind and time that matter, by kind.
_TOLD = {
    Kind.READ: ("worker", "shard", "clock", "version", "tau"),
    Kind.PUSH: ("worker", "shard", "clock", "version", "samples", "progress"),
    Kind.STEP: ("worker", "clock", "samples", "progress", "rate"),
    Kind.REDUCE: ("worker", "clock", "version", "samples", "weight"),
    Kind.REDUCED: ("worker", "clock", "version", "weight", "rate"),
    Kind.LEAVE: ("worker", "clock"),
    Kind.RECEIVE: ("shard", "worker", "clock", "version", "samples", "progress"),
    Kind.SAVE: ("shard", "worker", "clock"),
    Kind.APPLY: ("shard", "worker", "clock", "version", "tau", "samples", "rate"),
    Kind.DROP: ("shard", "worker", "clock", "version", "tau"),
    Kind.REPLY: ("shard", "worker", "clock", "version"),
    Kind.LEFT: ("shard", "worker", "clock"),
    Kind.FINAL: ("shard", "version"),
}
_FLAGS = {
    (Kind.DROP, LATE): "late",
    (Kind.DROP, LOST): "lost",
    (Kind.REDUCE, PRESENT): "training",
    (Kind.REDUCED, PRESENT): "somebody is training",
}


def spots_of(violation: Violation) -> list[Spot]:
    """Return the events of a violation's story, in their order."""
    spots = set(violation.because)
    if violation.event is not None:
        spots |= {violation.event, *_before(violation.event)}
    return sorted(spots, key=lambda spot: (_when(spot), spot.table.name, spot.at))


def lines_of(violation: Violation) -> list[str]:
    """Return the story of a violation; the event that breaks the rule is marked."""
    return [
        f"  {'>' if spot == violation.event else ' '} {line_of(spot)}"
        for spot in spots_of(violation)
    ]


def line_of(spot: Spot) -> str:
    """Return one event as a line."""
    record = record_of(spot)
    time, kind = record.pop("time"), record.pop("kind")
    told = "  ".join(f"{name} {_shown(value)}" for name, value in record.items())
    return f"{'?' if time is None else format(time, '12.6f')} s  {kind:10}  {told}"


def record_of(spot: Spot) -> dict[str, Any]:
    """Return what matters of an event, as JSON can hold it."""
    event = spot.table.events[spot.at]
    kind = Kind(int(event["kind"]))
    record: dict[str, Any] = {"time": _finite(event["time"].item()), "kind": kind.name}
    record |= {name: _finite(event[name].item()) for name in _TOLD.get(kind, ())}
    if flag := _FLAGS.get((kind, int(event["flag"]))):
        record["flag"] = flag
    return record


def _before(spot: Spot) -> list[Spot]:
    """Return the last events before one that its worker has part in, and the update before it."""
    table = spot.table
    start = max(0, spot.at - 10_000)  # enough for a story, whatever the length of the history
    worker = table["worker"][start : spot.at] == table["worker"][spot.at]
    shard = table["shard"][start : spot.at] == table["shard"][spot.at]
    kinds = table["kind"][start : spot.at]
    same = np.flatnonzero(worker & shard)[-_BEFORE:]
    update = np.flatnonzero(shard & (kinds == Kind.APPLY))[-1:]
    return [Spot(table, start + int(i)) for i in (*same, *update)]


def _when(spot: Spot) -> float:
    return spot.time if math.isfinite(spot.time) else math.inf


def _finite(number: Any) -> Any:
    return number if math.isfinite(number) else None


def _shown(value: Any) -> str:
    if value is None:
        return "nan"
    return f"{value:g}" if isinstance(value, float) else str(value)
