"""Whether a run's ``summary.json`` tells of what its history tells of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import Findings
from psrt.history.check.rules import SUMMARY
from psrt.history.check.table import Ints, Table
from psrt.history.events import Kind


def check_summary(
    summary: Mapping[str, object], contract: Contract, shards: list[Table], findings: Findings
) -> None:
    """Check what a summary counts of updates, drops and staleness."""
    applied = [table.where(Kind.APPLY) for table in shards]
    versions = [table["version"][at] for table, at in zip(shards, applied, strict=True)]
    check_updates(summary, contract, max(int(v.max(initial=0)) for v in versions), findings)
    dropped = sum(len(table.where(Kind.DROP)) for table in shards)
    _same("dropped", summary.get("dropped"), dropped, findings)
    pushes = [at[table["worker"][at] >= 0] for table, at in zip(shards, applied, strict=True)]
    taus = [table["tau"][at] for table, at in zip(shards, pushes, strict=True)]
    workers = [table["worker"][at] for table, at in zip(shards, pushes, strict=True)]
    shard = np.repeat(np.arange(len(shards)), [len(at) for at in pushes])
    told = summary.get("staleness")
    told = told if isinstance(told, dict) else {}
    tau = np.concatenate(taus)
    _same("staleness histogram", told.get("histogram"), np.bincount(tau).tolist(), findings)
    for name, group, count in (
        ("by_shard", shard, len(shards)),
        ("by_worker", np.concatenate(workers), contract.workers),
    ):
        if name in told:
            found = _histograms(group, tau, count)
            _same(f"staleness {name}", _told_histograms(told[name]), found, findings)


def check_updates(
    summary: Mapping[str, object], contract: Contract, updates: int, findings: Findings
) -> None:
    """Check what a summary says of any run."""
    _same("mode", summary.get("mode"), contract.mode.name, findings)
    _same("workers", summary.get("workers"), contract.workers, findings)
    _same("updates", summary.get("updates"), updates, findings)


def _histograms(group: Ints, tau: Ints, count: int) -> list[dict[str, int]]:
    """Return how often each τ is in each group, as JSON has it."""
    found: list[dict[str, int]] = [{} for _ in range(count)]
    width = int(tau.max(initial=0)) + 1
    numbers, counts = np.unique(group * width + tau, return_counts=True)
    for number, times in zip(numbers.tolist(), counts.tolist(), strict=True):
        found[number // width][str(number % width)] = times
    return found


def _told_histograms(rows: object) -> object:
    """Return the histograms out of a summary's rows; what is none stands for itself."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return rows
    return [row.get("histogram") for row in rows]


def _same(name: str, said: object, found: object, findings: Findings) -> None:
    findings.count(SUMMARY, 1)
    if said == found:
        return
    if isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        at = next(i for i in range(len(found)) if said[i] != found[i])
        name, said, found = f"{name} at {at}", said[at], found[at]
    findings.miss(SUMMARY, f"{name}: the summary says {said}, the history {found}")
