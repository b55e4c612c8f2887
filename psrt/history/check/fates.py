"""What became of each push: applied once, or dropped once for a reason that its mode has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import Findings
from psrt.history.check.rules import ONCE, STALENESS
from psrt.history.check.shard import Shard
from psrt.history.check.table import Bools, Ints, repeats
from psrt.history.events import LATE, Kind


@dataclass(frozen=True, slots=True)
class Fates:
    """Columns beside ``Takes``; a position is the number of events where it never happened."""

    #: Whether it waits for an update, and whether it is too stale for one.
    waits: Bools
    late: Bools
    applied: Ints
    dropped: Ints
    kept: Ints


def check_fates(contract: Contract, shard: Shard, findings: Findings) -> Fates:
    """Check what became of each push of a shard."""
    takes = shard.takes
    late = np.zeros(len(takes), bool) if contract.late is None else takes.met > contract.late
    late &= ~takes.asks
    waits = ~takes.asks & ~late & (contract.rounds | (takes.samples > 0))
    applied = _uses(shard, Kind.APPLY, findings)
    dropped = _uses(shard, Kind.DROP, findings)
    kept = _uses(shard, Kind.SAVE, findings)
    fates = Fates(waits, late, applied, dropped, kept)
    _check_all_used(shard, fates, findings)
    _check_drops(shard, fates, findings)
    _check_late(contract, shard, fates, findings)
    _check_staleness(shard, findings)
    return fates


def _uses(shard: Shard, kind: Kind, findings: Findings) -> Ints:
    """Return where each push met an event of a kind, after checking that there is one at most."""
    table, takes = shard.table, shard.takes
    at = table.where(kind)
    at = at[table["worker"][at] >= 0]
    of = shard.find_take(at)
    says = {Kind.APPLY: "applied", Kind.DROP: "dropped", Kind.SAVE: "kept"}[kind]

    def who(i: int) -> str:
        return (
            f"shard {shard.number} {says} the gradient of worker {table['worker'][at[i]]} at clock "
            f"{table['clock'][at[i]]}"
        )

    came = (of >= 0) & (takes.at[of] < at) if len(takes) else np.zeros(len(at), bool)
    findings.expect(ONCE, came, table, at, lambda i: f"{who(i)}, which had not come")
    at, of = at[came], of[came]
    found = np.full(len(takes), len(table))
    found[of[::-1]] = at[::-1]
    findings.expect(
        ONCE, ~repeats(of), table, at, lambda i: f"{who(i)} again",
        lambda i: shard.spots(int(takes.at[of[i]]), int(found[of[i]])),
    )  # fmt: skip
    if kind != Kind.SAVE:
        same = (table["samples"][at] == takes.samples[of]) & (
            table.real("progress")[at] == table.real("progress")[takes.at[of]]
        )
        findings.expect(
            ONCE, same, table, at, lambda i: f"{who(i)}, but with other samples or progress",
            lambda i: shard.spots(int(takes.at[of[i]])),
        )  # fmt: skip
    return found


def _check_all_used(shard: Shard, fates: Fates, findings: Findings) -> None:
    """Check that no gradient is lost, none is used in two ways, and what is none is not used."""
    takes, end = shard.takes, len(shard.table)
    is_applied, is_dropped = fates.applied < end, fates.dropped < end
    once = is_applied ^ is_dropped
    empty = ~fates.waits & ~(fates.late & (takes.samples > 0))
    holds = np.where(empty, ~is_applied & ~is_dropped, once)

    def say(i: int) -> str:
        who = f"clock {takes.clock[i]} of worker {takes.worker[i]}"
        if is_applied[i] and is_dropped[i]:
            return f"shard {shard.number} both applied and dropped {who}"
        if empty[i]:
            return f"shard {shard.number} used {who}, which had no gradient"
        return f"shard {shard.number} took up {who} and neither applied nor dropped it"

    findings.expect(
        ONCE, holds, shard.table, takes.at, say,
        lambda i: shard.spots(int(fates.applied[i]), int(fates.dropped[i]), int(takes.answer[i])),
    )  # fmt: skip


def _check_drops(shard: Shard, fates: Fates, findings: Findings) -> None:
    """Check that a push is dropped there and then, for being late or for its worker's death."""
    takes, table = shard.takes, shard.table
    i = np.flatnonzero(fates.dropped < len(table))
    at = fates.dropped[i]
    flag, message = table["flag"][at], shard.message[at]
    unanswered = takes.answer[i] == len(table)
    left = shard.left[takes.worker[i]]
    gone = np.where(left < len(table), shard.message[np.minimum(left, len(table) - 1)], -1)
    lost = fates.waits[i] & unanswered & (message == gone)
    late = fates.late[i] & (message == takes.message[i])
    findings.expect(
        ONCE, np.where(flag == LATE, late, lost), table, at,
        lambda j: f"shard {shard.number} dropped clock {takes.clock[i[j]]} of worker "
        f"{takes.worker[i[j]]} as {'late' if flag[j] == LATE else 'lost'}, with staleness "
        f"{takes.met[i[j]]}: its mode has no reason for that",
        lambda j: shard.spots(int(takes.at[i[j]]), int(left[j])),
    )  # fmt: skip
    # What was never kept lies where its worker, now dead, may have been writing.
    torn = fates.waits & (fates.applied < len(table)) & (fates.kept == len(table))
    i = np.flatnonzero(torn)
    findings.expect(
        ONCE, fates.applied[i] < shard.left[takes.worker[i]], table, fates.applied[i],
        lambda j: f"shard {shard.number} applied clock {takes.clock[i[j]]} of worker "
        f"{takes.worker[i[j]]}, which had left before and whose gradient was not kept",
        lambda j: shard.spots(int(takes.at[i[j]]), int(shard.left[takes.worker[i[j]]])),
    )  # fmt: skip


def _check_late(contract: Contract, shard: Shard, fates: Fates, findings: Findings) -> None:
    """Check that what is too stale was not applied."""
    takes, table = shard.takes, shard.table
    i = np.flatnonzero(fates.late)
    findings.expect(
        ONCE, fates.applied[i] == len(table), table, np.minimum(fates.applied[i], len(table) - 1),
        lambda j: f"shard {shard.number} applied clock {takes.clock[i[j]]} of worker "
        f"{takes.worker[i[j]]} of staleness {takes.met[i[j]]}, the most is {contract.late}",
        lambda j: shard.spots(int(takes.at[i[j]])),
    )  # fmt: skip


def _check_staleness(shard: Shard, findings: Findings) -> None:
    """Check τ of what was applied or dropped."""
    takes, table = shard.takes, shard.table
    at = table.where(Kind.APPLY, Kind.DROP)
    of = shard.find_take(at)
    at, of = at[of >= 0], of[of >= 0]
    met = shard.version[at] - (table["kind"][at] == Kind.APPLY)
    tau = met - takes.version[of]
    findings.expect(
        STALENESS, table["tau"][at] == tau, table, at,
        lambda i: f"shard {shard.number} recorded staleness {table['tau'][at[i]]} for clock "
        f"{takes.clock[of[i]]} of worker {takes.worker[of[i]]}, computed on version "
        f"{takes.version[of[i]]}, which met version {met[i]}: it is {tau[i]}",
        lambda i: shard.spots(int(takes.at[of[i]])),
    )  # fmt: skip
    drops = np.flatnonzero(table["kind"][at] == Kind.DROP)
    said = table["version"][at[drops]]
    findings.expect(
        STALENESS, said == takes.version[of[drops]], table, at[drops],
        lambda i: f"shard {shard.number} recorded version {said[i]} for a push that was computed "
        f"on version {takes.version[of[drops[i]]]}",
        lambda i: shard.spots(int(takes.at[of[drops[i]]])),
    )  # fmt: skip
