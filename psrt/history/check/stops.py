"""Stops for a checkpoint: all live workers wait, and then read the parameters once more.

A worker stops when it has read the answer to a push, at the clock that it was given, and has no
message in flight. A shard answers all of them together, once each has stopped or left. For the
other rules a stop is a push that only asks for a newer version, and the read after it reads the
answer to the push before.
"""

from __future__ import annotations

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import READS, REPLIES, Findings
from psrt.history.check.table import Ints, Table
from psrt.history.events import PARKED, Kind


def without_stops(shards: int, table: Table, findings: Findings) -> Table:
    """Return the workers' events with only the last read after each push.

    It gets τ and the waiting time of the read that answers the push.

    Args:
        shards: that are read at a time.
        table: events of all workers, worker after worker, of reads, pushes and steps.
        findings: takes what is wrong.
    """
    at = table.where(Kind.READ)
    at = at[table["flag"][at] == PARKED]
    if not len(at):
        return table
    before = at - shards
    follows = (before >= 0) & (table["kind"][before] == Kind.READ) & (table["flag"][before] == 0)
    for name in ("worker", "shard", "clock"):
        follows &= table[name][before] == table[name][at]
    text = "worker {worker} stopped at clock {clock} before it had read the answer to its push"
    findings.on(table, at).require(READS, follows, text, because=[np.maximum(before, 0)])
    if not findings.none:
        return table
    events = table.events.copy()
    for name in ("tau", "seconds"):
        events[name][at] = events[name][before]
    return Table(np.delete(events, before), table.name)


def stopped(contract: Contract, table: Table, left: Ints, findings: Findings) -> Ints:
    """Check that all live workers stop together; return the position of the last stop.

    Args:
        contract: of the run.
        table: a shard's events.
        left: by worker, where it left; the number of events if it did not.
        findings: takes what is wrong.

    Returns:
        By position, the last stop of its group; 0 for other events.
    """
    last = np.zeros(len(table), np.int64)
    at = table.where(Kind.RECEIVE)
    at = at[table["flag"][at] == PARKED]
    if not len(at):
        return last
    begins = np.diff(at, prepend=-2) > 1
    number = np.cumsum(begins) - 1
    ends = at[np.append(begins[1:], True)][number]
    together = np.bincount(number)[number]
    there = contract.workers - np.searchsorted(np.sort(left), at)
    text = (
        "shard {shard} answered worker {worker}, which had stopped for a checkpoint, when "
        "{together} of {there} had stopped"
    )
    findings.on(table, at).require(
        REPLIES, together == there, text, together=together, there=there, because=[ends]
    )
    last[at] = ends
    return last
