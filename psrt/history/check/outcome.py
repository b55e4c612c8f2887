"""What a check came to, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psrt.history.check.contract import Contract
from psrt.history.check.findings import Findings, Violation
from psrt.history.check.rules import RULES
from psrt.history.check.story import lines_of, record_of, spots_of
from psrt.history.check.table import Table
from psrt.units import plural


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was checked, and the first violation if there is one."""

    contract: Contract
    #: Events in all, and the time from the first to the last, in seconds.
    events: int
    seconds: float
    #: Rule → how many things it was asked of.
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
        contract, counts = self.contract, f"{self.events:,} events in {self.seconds:.3f} s"
        who = plural(contract.workers, "worker")
        if contract.shards:
            who += f" and {plural(contract.shards, 'shard')}"
        head = f"{contract}, {who}: {counts}"
        if self.violation is None:
            width = max(map(len, self.checked), default=0)
            number = max((len(f"{n:,}") for n in self.checked.values()), default=0)
            return [head] + [
                f"  {rule:{width}}  {self.checked[rule]:{number},}  {RULES[rule]}"
                for rule in self.checked
                if self.checked[rule]
            ] + ["ok: nothing contradicts the contract of its mode"]  # fmt: skip
        return [
            head,
            f"violated: {self.violation.rule}: {RULES[self.violation.rule]}",
            f"  {self.violation.text}",
            *lines_of(self.violation),
        ]

    def document(self) -> dict[str, Any]:
        """Return the report for programs, as JSON can hold it."""
        found = self.violation
        return {
            "ok": self.ok,
            "mode": self.contract.mode.name,
            "workers": self.contract.workers,
            "shards": self.contract.shards,
            "events": self.events,
            "seconds": _real(self.seconds),
            "checked": self.checked,
            "violation": None if found is None else {
                "rule": found.rule,
                "text": found.text,
                "events": [record_of(spot) for spot in spots_of(found)],
            },
        }  # fmt: skip


def _real(number: float) -> float | None:
    return number if abs(number) < float("inf") else None
