"""Checks that each single event is possible. Every other rule relies on this."""

from __future__ import annotations

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.elastic import KINDS as DRAWN
from psrt.history.check.findings import FIELDS, EventRef, Findings, Reasons
from psrt.history.check.frames import KEPT
from psrt.history.check.frames import SERVED as FRAMED
from psrt.history.check.pipeline import KINDS as OF_STAGES
from psrt.history.check.table import Bools, Ints, Table
from psrt.history.events import (
    ANSWER,
    BACK,
    BACKWARD_WEIGHT,
    CAME,
    FORWARD,
    GRADIENT,
    HOST,
    LATE,
    LOST,
    MISSED,
    PARKED,
    PRESENT,
    TRACKED,
    UNUSED,
    Kind,
)
from psrt.history.kinds import KINDS, PAIRED

#: Kinds of a shard that decides for others, or follows; and the last flag of a RELAY.
_DECIDED, TOO_LATE = (Kind.TICK, Kind.RELAY), 2
#: Kinds between a worker and a shard, and among the workers alone.
_SERVED = (Kind.READ, Kind.PUSH)
_UNSERVED = (Kind.REDUCE, Kind.REDUCED)
#: Kinds of a codec's frames among the workers.
_SUMMED = (Kind.SUM_ENCODE, Kind.SUM_KEEP, Kind.SUM_DECODE)
#: Of averages among neighbours, and those of them with a sum over a vector.
_MIXED = (Kind.OFFER, Kind.OWN, Kind.TAKE, Kind.MIXED, Kind.TRACK)
_SUMS_OF = (Kind.OFFER, Kind.OWN, Kind.MIXED, Kind.TRACK)
#: Field → the kinds that have it.
_HAVING = {
    name: tuple(kind for kind, it in KINDS.items() if name in it.columns()) for name in UNUSED
}
#: Kinds whose ``clock``, and whose ``version``, is a count; for APPLY not always.
_CLOCKED = tuple(it for it in _HAVING["clock"] if it not in (Kind.APPLY, Kind.END))
_VERSIONED = (
    *_SERVED,
    *_UNSERVED,
    *(Kind.RECEIVE, Kind.APPLY, Kind.DROP, Kind.REPLY, Kind.RELAY, Kind.FINAL),
)


def check_events(contract: Contract, tables: list[Table], findings: Findings) -> None:
    """Check every event of these tables."""
    most = sum(map(len, tables))
    for table in tables:
        findings.count(FIELDS, len(table))
        _check_counts(table, most, findings)
        _check_numbers(contract, table, findings)
        _check_flags(contract, table, findings)
        _check_unused(contract, table, findings)
        _check_places(contract, table, findings)


def check_times(table: Table, owner: str | None, findings: Findings) -> None:
    """Check that timestamps are numbers and never decrease.

    Args:
        table: events, all by one clock if there is no ``owner``.
        owner: the column that says whose clock an event has; owners are contiguous.
        findings: takes what is wrong.
    """
    times = table.real("time")
    wrong = np.flatnonzero(~np.isfinite(times))
    if len(wrong):
        ref = EventRef(table, int(wrong[0]))  # a nan has no order
        findings.missing(FIELDS, f"{table.value('kind', ref.at)} at time {ref.time}", ref)
        return
    back = np.zeros(len(times), bool)
    back[1:] = times[1:] < times[:-1]
    if owner is not None:
        back[1:] &= table[owner][1:] == table[owner][:-1]
    before = np.arange(-1, len(times) - 1)
    _require(
        findings,
        table,
        ~back,
        "at {time:.6f} s, after one at {before:.6f} s",
        because=[before],
        before=times[before],
    )


def _check_counts(table: Table, most: int, findings: Findings) -> None:
    """Check that counts are at most the number of events: each unit took at least one."""
    applied = table.are(Kind.APPLY)
    by_worker = applied & (table["worker"] >= 0)  # an update without gradients has no clock
    for name, low, when in (
        ("clock", 0, table.are(*_CLOCKED) | by_worker),
        ("version", np.where(applied, 1, 0), table.are(*_VERSIONED)),
        ("tau", 0, table.are(Kind.APPLY, Kind.DROP, Kind.REDUCED, Kind.TAKE)),
    ):
        holds = ~when | ((table[name] >= low) & (table[name] <= most))
        _require(findings, table, holds, f"{name} {{{name}}} in a history of {most} events")


def _check_numbers(contract: Contract, table: Table, findings: Findings) -> None:
    sums = table.are(*KEPT, *DRAWN)  # of arbitrary numbers, so they may be infinite
    totals = table.are(*_SUMS_OF)
    for name in ("progress", "rate", "weight", "seconds"):
        column = table.real(name)
        signed = table.are(*DRAWN) if name == "progress" else sums
        if name != "seconds":
            signed = signed | (totals & ((name != "weight") | (column > 0)))
        signed &= ~np.isnan(column)  # a nan is recorded as infinity
        holds = (np.isfinite(column) & (column >= 0)) | signed
        _require(findings, table, holds, f"{name} {{{name}}}, expected at least 0")
    # A nan says that the gap was not measured.
    _require(findings, table, sums | ~(table.real("gap") < 0), "gap {gap}, expected at least 0")
    needed = totals & ~table.are(Kind.MIXED) | table.are(*KEPT, Kind.DRAW)
    measured = ~(needed & np.isnan(table.real("gap")))
    _require(findings, table, measured, "gap {gap}, expected at least 0 and not nan")
    in_rounds = table.are(Kind.MIXED) & (not contract.pairs)
    unmeasured = ~in_rounds | np.isnan(table.real("gap"))
    _require(findings, table, unmeasured, "gap {gap}, expected none in rounds")
    _require(findings, table, table["samples"] >= 0, "{samples} samples")
    begun = (table.real("time") >= 0) | (not contract.simulated)
    _require(findings, table, begun, "at {time:.6f} s, before the run")
    digests = ~table.are(*PAIRED) | (table["version"] >= 0)
    _require(findings, table, digests, "digests {version}, expected at least 0")


def _check_flags(contract: Contract, table: Table, findings: Findings) -> None:
    flag = table["flag"]
    holds = np.where(table.are(*_UNSERVED), flag <= PRESENT, flag == 0)
    holds = np.where(table.are(*_SUMMED), flag <= BACK, holds)
    holds = np.where(table.are(Kind.DROP), (flag == LATE) | (flag == LOST), holds)
    holds = np.where(table.are(Kind.LEFT), flag <= MISSED, holds)
    holds = np.where(table.are(Kind.RELAY), flag <= TOO_LATE, holds)
    stops = contract.shards and (not contract.rounds or contract.backup)
    if stops:
        nothing = (flag == PARKED) & (table["samples"] == 0) & (table["tau"] == 0)
        nothing &= (table.real("progress") == 0) & (table.are(Kind.READ) | (table["version"] == 0))
        holds = np.where(table.are(Kind.READ, Kind.RECEIVE), (flag == 0) | nothing, holds)
    holds = np.where(table.are(Kind.OFFER, Kind.TAKE), flag <= TRACKED | ANSWER, holds)
    holds = np.where(table.are(Kind.MIXED), flag <= TRACKED, holds)
    passes = (flag >= FORWARD) & (flag <= BACKWARD_WEIGHT)
    holds = np.where(table.are(Kind.PASS), passes, holds)
    holds = np.where(table.are(Kind.MESSAGE), flag <= GRADIENT | CAME, holds)
    if contract.by_host:
        of_hosts = table.are(Kind.OFFER, Kind.TAKE, Kind.MIXED)
        holds = np.where(of_hosts, (flag == 0) | (flag == HOST), holds)
    _require(findings, table, holds, "flag {flag}, which has no meaning there")


def _check_unused(contract: Contract, table: Table, findings: Findings) -> None:
    """Check that fields that a kind does not have are empty."""
    nothing = table.are(Kind.APPLY) & (table["worker"] < 0)  # an update without gradients
    for name, unused in UNUSED.items():
        has = table.are(*_HAVING[name])
        if name not in ("shard", "version", "seconds"):
            has &= ~nothing
        column = table.column(name)
        holds = has | (np.isnan(column) if name == "gap" else column == unused)
        _require(findings, table, holds, f"{name} {{{name}}}, which it does not have")
    # Paces, and the steps that follow from them.
    holds = ~table.are(Kind.PUSH, Kind.RECEIVE) | (table.real("rate") == 0) | contract.mode.paces
    _require(findings, table, holds, "rate {rate}, expected 0 where nobody needs a pace")
    holds = ~table.are(Kind.REPLY) | (table["samples"] == 0) | contract.mode.dynamic
    _require(findings, table, holds, "samples {samples}, expected 0 where steps are not dynamic")


def _check_places(contract: Contract, table: Table, findings: Findings) -> None:
    """Check that workers and shards are those of the run, and kinds those of its mode."""
    shard, worker, clock = table["shard"], table["worker"], table["clock"]
    applied = table.are(Kind.APPLY)
    nobody = table.are(Kind.TICK)
    anybody = applied | nobody | table.are(Kind.FINAL, Kind.CENTRE)
    holds = (worker < contract.workers) & ((worker >= 0) | anybody)
    holds &= ~applied | ((worker < 0) == (clock < 0)) & (clock >= -1)
    holds &= ~nobody | (worker == -1)
    _require(findings, table, holds, "of worker {worker} at clock {clock}")
    served = contract.shards > 0
    # Servers write their shards; without servers worker 0 writes the shared parameters.
    holds = ~table.are(Kind.FINAL) | (worker == (-1 if contract.shards else 0))
    _require(findings, table, holds, "by worker {worker}")
    needs_shard = table.are(*_SERVED, *FRAMED, *DRAWN, *_DECIDED) | (table.are(Kind.FINAL) & served)
    holds = ~needs_shard | ((shard >= 0) & (shard < contract.shards))
    _require(findings, table, holds, f"of shard {{shard}} of {contract.shards}")
    sums = table.are(*_UNSERVED)
    holds = ~sums | ((shard == -1) & (table["tau"] == 0))
    if contract.streams:
        holds = ~sums | ((shard >= 0) & (shard < contract.fragments))
    _require(findings, table, holds, f"of fragment {{shard}} of {contract.fragments}")
    strange = table.are(*(_UNSERVED if served else (*_SERVED, *FRAMED)))
    if contract.mode.elastic is None and not contract.mode.merges:
        strange |= table.are(*DRAWN)
    if served and not contract.mode.averages:
        strange |= table.are(Kind.STEP)
    if contract.learners is None:
        strange |= table.are(*_DECIDED)
    else:
        # Who decides is relayed nothing, and who follows has no window.
        follows = np.array([contract.follows(it) for it in range(contract.shards)])
        follows = follows[np.clip(shard, 0, contract.shards - 1)]
        strange |= np.where(follows, table.are(Kind.TICK), table.are(Kind.RELAY))
    if not contract.pairs:
        strange |= table.are(Kind.PARK)
    waits = table.are(Kind.LEAVE) & (table.real("seconds") > 0)
    if contract.mode.mixes:
        strange |= table.are(*_UNSERVED)
        known = (shard >= 0) & (shard < contract.workers) & (shard != worker)
        holds = ~table.are(Kind.TAKE) | known
        text = f"of neighbour {{shard}} of {contract.workers} workers"
        _require(findings, table, holds, text)
        pairs = table.are(Kind.OFFER, Kind.MIXED)
        holds = ~pairs | (known if contract.pairs else shard == -1)
        _require(findings, table, holds, text)
    else:
        strange |= table.are(*_MIXED) | waits
    if contract.mode.single:
        strange |= table.are(*_UNSERVED)
    if not contract.cut:
        strange |= table.are(*OF_STAGES)
    _require(findings, table, ~strange, f"which mode {contract.mode.name} does not have")


def _require(
    findings: Findings,
    table: Table,
    holds: Bools,
    text: str,
    *,
    because: tuple[Reasons, ...] | list[Reasons] = (),
    **values: Ints | object,
) -> None:
    """Require for all events of a table; each event counts once for all of these checks."""
    everywhere = np.arange(len(table))
    findings.on(table, everywhere).require(
        FIELDS, holds, f"{{kind}} {text}", because=because, counts=False, **values
    )
