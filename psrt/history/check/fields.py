"""Whether each event by itself says something that can be. Every other rule relies on this one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import Findings, Spot
from psrt.history.check.rules import FIELDS
from psrt.history.check.table import Bools, Ints, Table
from psrt.history.events import LATE, LOST, PRESENT, Kind

#: Kinds whose ``clock``, and whose ``version``, counts something.
_CLOCKED = (
    Kind.READ, Kind.PUSH, Kind.STEP, Kind.REDUCE, Kind.REDUCED, Kind.LEAVE,
    Kind.RECEIVE, Kind.SAVE, Kind.DROP, Kind.REPLY, Kind.LEFT,
)  # fmt: skip
_VERSIONED = (
    Kind.READ, Kind.PUSH, Kind.REDUCE, Kind.REDUCED, Kind.RECEIVE, Kind.APPLY, Kind.DROP,
    Kind.REPLY, Kind.FINAL,
)  # fmt: skip
#: Kinds that happen between a worker and a shard, and among the workers alone.
_SERVED = (Kind.READ, Kind.PUSH)
_UNSERVED = (Kind.REDUCE, Kind.REDUCED)


def check_fields(contract: Contract, tables: list[Table], findings: Findings) -> None:
    """Check every event of these tables."""
    most = sum(map(len, tables))
    for table in tables:
        findings.count(FIELDS, len(table))
        _check_numbers(table, most, findings)
        _check_flags(table, findings)
        _check_places(contract, table, findings)


def _check_numbers(table: Table, most: int, findings: Findings) -> None:
    """Check that counts are counts and that reals are numbers."""
    clocked, versioned = table.are(*_CLOCKED), table.are(*_VERSIONED)

    def counts(name: str, low: int | Ints, when: Bools) -> None:
        column = table[name]
        # Whatever is counted took at least an event each.
        holds = ~when | ((column >= low) & (column <= most))
        _expect(
            findings, table, holds,
            lambda i: f"{name} {column[i]} in a history of {most} events",
        )  # fmt: skip

    nothing = table.are(Kind.APPLY) & (table["worker"] < 0)
    counts("clock", 0, clocked | (table.are(Kind.APPLY) & ~nothing))
    counts("version", np.where(table.are(Kind.APPLY), 1, 0), versioned)
    counts("tau", 0, table.are(Kind.APPLY, Kind.DROP))
    for name in ("progress", "rate", "weight", "seconds"):
        _check_real(table, name, findings)
    gap, samples = table.real("gap"), table["samples"]
    _expect(findings, table, ~(gap < 0), lambda i: f"gap {gap[i]}, expected at least 0")
    _expect(findings, table, samples >= 0, lambda i: f"{samples[i]} samples")


def _check_real(table: Table, name: str, findings: Findings) -> None:
    column = table.real(name)
    holds = np.isfinite(column) & (column >= 0)
    _expect(findings, table, holds, lambda i: f"{name} {column[i]}, expected a number from 0 on")


def _check_flags(table: Table, findings: Findings) -> None:
    flag = table["flag"]
    holds = np.where(
        table.are(Kind.DROP), (flag == LATE) | (flag == LOST),
        np.where(table.are(*_UNSERVED), flag <= PRESENT, flag == 0),
    )  # fmt: skip
    _expect(findings, table, holds, lambda i: f"flag {flag[i]}, which has no meaning there")


def _check_places(contract: Contract, table: Table, findings: Findings) -> None:
    """Check that workers and shards are those of the run, and kinds those of its mode."""
    shard, worker, clock = table["shard"], table["worker"], table["clock"]
    applied = table.are(Kind.APPLY)
    anybody = applied | table.are(Kind.FINAL)
    holds = (worker < contract.workers) & ((worker >= 0) | anybody)
    holds &= ~applied | ((worker < 0) == (clock < 0)) & (clock >= -1)
    _expect(findings, table, holds, lambda i: f"of worker {worker[i]} at clock {clock[i]}")
    served = contract.shards > 0
    needs_shard = table.are(*_SERVED) | (table.are(Kind.FINAL) & served)
    holds = ~needs_shard | ((shard >= 0) & (shard < contract.shards))
    _expect(findings, table, holds, lambda i: f"of shard {shard[i]} of {contract.shards}")
    strange = table.are(*(_UNSERVED if served else _SERVED))
    if served and not contract.mode.averages:
        strange |= table.are(Kind.STEP)
    if contract.mode.single:
        strange |= table.are(*_UNSERVED)
    _expect(findings, table, ~strange, lambda i: f"which mode {contract.mode.name} does not have")


def check_times(table: Table, owner: str | None, findings: Findings) -> None:
    """Check that times are numbers and never go back.

    Args:
        table: events, of one clock where there is no ``owner``.
        owner: the column that says by whose clock an event is; its events come together.
        findings: takes what is wrong.
    """
    times = table.real("time")
    finite = np.isfinite(times)
    if not finite.all():
        i = int(np.flatnonzero(~finite)[0])
        findings.miss(FIELDS, f"{kind_at(table, i)} at time {times[i]}", Spot(table, i))
        return
    back = np.zeros(len(times), bool)
    back[1:] = times[1:] < times[:-1]
    if owner is not None:
        back[1:] &= table[owner][1:] == table[owner][:-1]
    _expect(
        findings, table, ~back,
        lambda i: f"at {times[i]:.6f} s, after one at {times[i - 1]:.6f} s",
        lambda i: (Spot(table, i - 1),),
    )  # fmt: skip


def kind_at(table: Table, i: int) -> str:
    """Return the name of an event's kind."""
    return Kind(int(table["kind"][i])).name


def _expect(
    findings: Findings,
    table: Table,
    holds: Bools,
    say: Callable[[int], str],
    because: Callable[[int], tuple[Spot, ...]] = lambda _: (),
) -> None:
    findings.expect(
        FIELDS, holds, table, np.arange(len(table)),
        lambda i: f"{kind_at(table, i)} {say(i)}", because, counts=False,
    )  # fmt: skip
