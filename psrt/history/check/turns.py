"""Whether a shard's events come in an order that has a sense; all its other rules rely on that.

Versions go up by one; each worker is taken up and answered in turns until it has left, at the clock
and on the version that it was given.
"""

from __future__ import annotations

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import Findings, Spot
from psrt.history.check.rules import MEMBERSHIP, TURNS, VERSIONS
from psrt.history.check.shard import Shard, Takes
from psrt.history.check.table import Bools, Ints, Table
from psrt.history.events import Kind


def look_at(
    contract: Contract, number: int, table: Table, died: Bools, findings: Findings
) -> Shard | None:
    """Return a shard's events in its terms; None, with a finding, where they have no sense.

    Args:
        contract: of the run.
        number: of the shard.
        table: its events, of which ``check_fields`` has found nothing.
        died: by worker, whether it never said that it leaves.
        findings: takes what is wrong.
    """
    starts = table.are(Kind.RECEIVE, Kind.LEFT)
    findings.expect(
        TURNS, starts[:1], table, np.zeros(min(1, len(table)), np.int64),
        lambda _: f"shard {number} acts before any message came",
    )  # fmt: skip
    version = _versions(number, table, findings)
    left = _departures(contract, number, table, findings)
    takes = _turns(contract, number, table, version, died, findings)
    if findings.first is not None:
        return None
    shard = Shard(
        number, table, np.cumsum(starts) - 1, version, takes, left, _updates(table)
    )  # fmt: skip
    _in_turn(contract, shard, findings)
    return None if findings.first is not None else shard


def _updates(table: Table) -> Ints:
    applied = table.where(Kind.APPLY)
    return applied[np.diff(table["version"][applied], prepend=0) > 0]


def _versions(number: int, table: Table, findings: Findings) -> Ints:
    """Check that each update makes the next version; return the newest one by position."""
    applied = table.where(Kind.APPLY)
    made, nothing = table["version"][applied], table["worker"][applied] < 0
    before = np.concatenate([[0], made])[:-1]
    adjacent = np.diff(applied, prepend=-2) == 1
    alone = nothing | np.concatenate([[False], nothing])[:-1]  # an update out of nothing is one
    same = (made == before) & adjacent & ~alone
    findings.expect(
        VERSIONS, (made == before + 1) | same, table, applied,
        lambda i: f"shard {number} made version {made[i]} after version {before[i]}, "
        f"expected {before[i] + 1}",
        lambda i: (Spot(table, int(applied[i - 1])),) if i else (),
    )  # fmt: skip
    newest = np.maximum.accumulate(np.where(table.are(Kind.APPLY), table["version"], 0))
    served = table.where(Kind.REPLY)
    told = table["version"][served]
    findings.expect(
        VERSIONS, told == newest[served], table, served,
        lambda i: f"shard {number} answered worker {table['worker'][served[i]]} with version "
        f"{told[i]} when its newest was {newest[served[i]]}",
        lambda i: _last(table, applied, int(served[i])),
    )  # fmt: skip
    return newest


def _last(table: Table, positions: Ints, before: int) -> tuple[Spot, ...]:
    """Return the last of these events before a position."""
    at = int(np.searchsorted(positions, before)) - 1
    return (Spot(table, int(positions[at])),) if at >= 0 else ()


def _departures(contract: Contract, number: int, table: Table, findings: Findings) -> Ints:
    """Check that every worker leaves; return where."""
    left = np.full(contract.workers, len(table))
    gone = table.where(Kind.LEFT)
    left[table["worker"][gone][::-1]] = gone[::-1]
    findings.count(MEMBERSHIP, contract.workers)
    staying = np.flatnonzero(left == len(table))
    if len(staying):
        last = (Spot(table, len(table) - 1),) if len(table) else ()
        findings.miss(MEMBERSHIP, f"worker {staying[0]} never left shard {number}", *last)
    return left


def _turns(
    contract: Contract,
    number: int,
    table: Table,
    version: Ints,
    died: Bools,
    findings: Findings,
) -> Takes:
    """Check that RECEIVE and REPLY alternate for each worker until LEFT; return what was taken."""
    told = table.where(Kind.RECEIVE, Kind.REPLY, Kind.LEFT)
    at = told[np.argsort(table["worker"][told], kind="stable")]
    worker, kind = table["worker"][at], table["kind"][at]
    follows = np.diff(worker, prepend=-1) == 0
    before = np.where(follows, np.concatenate([[0], kind])[:-1], 0)
    take, serve = kind == Kind.RECEIVE, kind == Kind.REPLY
    holds = np.where(take, (before == 0) | (before == Kind.REPLY), True)
    holds &= ~serve | (before == Kind.RECEIVE)
    holds &= before != Kind.LEFT
    holds &= ~((kind == Kind.LEFT) & (before == Kind.RECEIVE) & ~died[worker])
    findings.expect(
        TURNS, holds, table, at,
        lambda i: _out_of_turn(number, int(worker[i]), int(kind[i]), int(before[i])),
        lambda i: (Spot(table, int(at[i - 1])),) if follows[i] else (),
    )  # fmt: skip
    found = np.flatnonzero(take)
    answered = np.concatenate([serve & follows, [False]])[found + 1]
    positions = at[found]
    previous = np.where(before[found] == Kind.REPLY, np.concatenate([[-1], at])[found], -1)
    clock = table["clock"][positions]
    given = np.where(previous < 0, 0, table["clock"][previous])
    asks = (clock > given) & (table["samples"][positions] == 0) & (contract.backup > 0)
    messages = np.cumsum(table.are(Kind.RECEIVE, Kind.LEFT)) - 1
    return Takes(
        at=positions,
        message=messages[positions],
        worker=worker[found],
        clock=clock,
        version=table["version"][positions],
        samples=table["samples"][positions],
        met=version[positions] - table["version"][positions],
        answer=np.where(answered, np.concatenate([at, [0]])[found + 1], len(table)),
        before=previous,
        asks=asks,
    )


def _out_of_turn(number: int, worker: int, kind: int, before: int) -> str:
    who = f"worker {worker}"
    if before == Kind.LEFT:
        return f"shard {number} has {Kind(kind).name} of {who}, which had left it"
    if kind == Kind.RECEIVE:
        return f"shard {number} took up another push of {who} before it had answered the last one"
    if kind == Kind.REPLY:
        return f"shard {number} answered {who}, which had no push unanswered"
    return f"{who} left shard {number} with its last push unanswered, and yet said that it leaves"


def _in_turn(contract: Contract, shard: Shard, findings: Findings) -> None:
    """Check that a push is of the clock and the version that its worker was given last."""
    takes, table = shard.takes, shard.table
    first = takes.before < 0
    clock = np.where(first, 0, table["clock"][takes.before])
    version = np.where(first, 0, table["version"][takes.before])
    right = ((takes.clock == clock) | takes.asks) & (takes.version == version)
    findings.expect(
        TURNS, right, table, takes.at,
        lambda i: f"shard {shard.number} took up a push of worker {takes.worker[i]} for clock "
        f"{takes.clock[i]} on version {takes.version[i]}, expected clock {clock[i]} on version "
        f"{version[i]}",
        lambda i: shard.spots(int(takes.before[i])),
    )  # fmt: skip
    served = np.flatnonzero(takes.answer < len(table))
    given = table["clock"][takes.answer[served]]
    met = shard.version[takes.answer[served]]
    due = met if contract.rounds else takes.clock[served] + 1
    ahead = given >= takes.clock[served] + ~takes.asks[served]
    findings.expect(
        TURNS, (given == due) & ahead, table, takes.answer[served],
        lambda i: f"shard {shard.number} answered clock {takes.clock[served[i]]} of worker "
        f"{takes.worker[served[i]]} with clock {given[i]} at version {met[i]}, expected clock "
        f"{max(int(due[i]), int(takes.clock[served[i]]) + (not takes.asks[served[i]]))}",
        lambda i: shard.spots(int(takes.at[served[i]])),
    )  # fmt: skip
