"""What a check came to, for people and for programs; a violation with the events that led to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import EventRef, Findings, Violation
from psrt.history.check.rules import RULES
from psrt.history.check.table import Table
from psrt.history.events import LATE, LOST, PRESENT, Kind
from psrt.units import plural

#: Events of the same worker and of the same shard that are shown before the one that is wrong, and
#: how far back they are looked for, whatever the length of the history.
_BEFORE, _WITHIN = 4, 10_000
#: Fields beyond kind and time that matter, by kind.
_SHOWN = {
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a check: the rules checked, and the first violation if any."""

    contract: Contract
    #: Events in all, and the time from the first to the last, in seconds.
    events: int
    seconds: float
    #: Rule → the number of times it was asked.
    checked: dict[str, int]
    violation: Violation | None

    @classmethod
    def of(cls, contract: Contract, findings: Findings, tables: Sequence[Table]) -> Outcome:
        """Return what a check of these tables found."""
        times = [table.events["time"] for table in tables if len(table)]
        begin = min((float(t.min()) for t in times), default=0.0)
        end = max((float(t.max()) for t in times), default=0.0)
        checked = {rule: findings.checked[rule] for rule in RULES if rule in findings.checked}
        return cls(contract, sum(map(len, tables)), end - begin, checked, findings.first)

    @property
    def ok(self) -> bool:
        """Whether no rule was broken."""
        return self.violation is None

    def lines(self) -> list[str]:
        """Return the report."""
        contract = self.contract
        who = plural(contract.workers, "worker")
        if contract.shards:
            who += f" and {plural(contract.shards, 'shard')}"
        head = f"{contract}, {who}: {self.events:,} events in {self.seconds:.3f} s"
        if self.violation is not None:
            promise = f"{self.violation.rule}: {RULES[self.violation.rule]}"
            why = f"  {self.violation.text}"
            return [head, f"violated: {promise}", why, *_lines(self.violation)]
        asked = {rule: f"{number:,}" for rule, number in self.checked.items() if number}
        width, wide = (max(map(len, column), default=0) for column in (asked, asked.values()))
        rows = [f"  {rule:{width}}  {n:>{wide}}  {RULES[rule]}" for rule, n in asked.items()]
        return [head, *rows, "ok: nothing contradicts the contract of its mode"]

    def document(self) -> dict[str, Any]:
        """Return the report for programs, as JSON can hold it."""
        found = self.violation
        violation = found and {
            "rule": found.rule,
            "text": found.text,
            "events": [_record(ref) for ref in _story(found)],
        }
        return {
            "ok": self.ok,
            "mode": self.contract.mode.name,
            "workers": self.contract.workers,
            "shards": self.contract.shards,
            "events": self.events,
            "seconds": _finite(self.seconds),
            "checked": self.checked,
            "violation": violation,
        }


def _lines(violation: Violation) -> list[str]:
    """Return the events of a violation, a line each; the one that breaks the rule is marked."""
    return [f"  {'>' if ref == violation.event else ' '} {_line(ref)}" for ref in _story(violation)]


def _story(violation: Violation) -> list[EventRef]:
    """Return the events of a violation, and those that led there, in their order."""
    refs = set(violation.because)
    if violation.event is not None:
        refs |= {violation.event, *_before(violation.event)}
    return sorted(refs, key=lambda ref: (_when(ref), ref.table.name, ref.at))


def _before(ref: EventRef) -> list[EventRef]:
    """Return the last events before one that its worker has part in, and the update before it."""
    table = ref.table
    start = max(0, ref.at - _WITHIN)
    worker = table["worker"][start : ref.at] == table["worker"][ref.at]
    shard = table["shard"][start : ref.at] == table["shard"][ref.at]
    applied = table["kind"][start : ref.at] == Kind.APPLY
    same = np.flatnonzero(worker & shard)[-_BEFORE:]
    update = np.flatnonzero(shard & applied)[-1:]
    return [EventRef(table, start + int(i)) for i in (*same, *update)]


def _line(ref: EventRef) -> str:
    """Return one event as a line."""
    record = _record(ref)
    time, kind = record.pop("time"), record.pop("kind")
    fields = "  ".join(f"{name} {_shown(value)}" for name, value in record.items())
    return f"{'?' if time is None else format(time, '12.6f')} s  {kind:10}  {fields}"


def _record(ref: EventRef) -> dict[str, Any]:
    """Return what matters of an event, as JSON can hold it."""
    event = ref.table.events[ref.at]
    kind = Kind(int(event["kind"]))
    record: dict[str, Any] = {"time": _finite(event["time"].item()), "kind": kind.name}
    record |= {name: _finite(event[name].item()) for name in _SHOWN.get(kind, ())}
    if flag := _FLAGS.get((kind, int(event["flag"]))):
        record["flag"] = flag
    return record


def _when(ref: EventRef) -> float:
    return ref.time if math.isfinite(ref.time) else math.inf


def _finite(number: Any) -> Any:
    return number if math.isfinite(number) else None


def _shown(value: Any) -> str:
    if value is None:
        return "nan"
    return f"{value:g}" if isinstance(value, float) else str(value)
