"""What happened to each push: its update, or the reason for none; and what an update contains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psrt.history.check.alternation import Shard
from psrt.history.check.contract import Contract
from psrt.history.check.findings import (
    FIFO,
    GAPS,
    ONCE,
    ORDER,
    QUORUM,
    ROUND,
    SAVED,
    STALENESS,
    Findings,
    require_duration,
)
from psrt.history.check.table import Bools, Ints, previous, repeats, same_as_before
from psrt.history.events import LATE, Kind
from psrt.history.kinds import MESSAGES

#: The flag of a RELAY of what came too late.
_TOO_LATE = 2


@dataclass(frozen=True, slots=True)
class PushOutcomes:
    """Columns beside ``ReceivedPushes``; positions are the number of events if there is none."""

    #: Whether it waits for an update, and whether it is too stale for one.
    waits: Bools
    late: Bools
    #: Where it was relayed to a shard that follows another one, 0 at one that decides.
    relayed: Ints
    #: Where it was applied, dropped, saved.
    applied: Ints
    dropped: Ints
    saved: Ints


def check_updates(contract: Contract, shard: Shard, findings: Findings) -> PushOutcomes:
    """Check every push and every update of a shard."""
    outcomes = _outcomes(contract, shard, findings)
    _check_used_once(shard, outcomes, findings)
    _check_drops(contract, shard, outcomes, findings)
    _check_staleness(shard, findings)
    _check_durations(shard, findings)
    _check_gaps(contract, shard, outcomes, findings)
    _check_saved(contract, shard, outcomes, findings)
    _check_order(contract, shard, outcomes, findings)
    if contract.learners is None:
        _check_quorum(contract, shard, outcomes, findings)
    return outcomes


def _outcomes(contract: Contract, shard: Shard, findings: Findings) -> PushOutcomes:
    pushes = shard.pushes
    late = np.zeros(len(pushes), bool) if contract.late is None else pushes.met > contract.late
    late &= ~pushes.asks
    relayed = np.zeros(len(pushes), np.int64)
    if contract.follows(shard.number):
        at = shard.table.where(Kind.RELAY)
        of = shard.find_push(at)
        relayed[:] = len(shard.table)
        relayed[of[of >= 0]] = at[of >= 0]
        late = np.append(shard.table["flag"], 0)[relayed] == _TOO_LATE
    waits = ~pushes.asks & ~late & (contract.rounds | (pushes.samples > 0))
    applied = _uses(shard, Kind.APPLY, "applied", findings)
    dropped = _uses(shard, Kind.DROP, "dropped", findings)
    saved = _uses(shard, Kind.SAVE, "saved", findings)
    return PushOutcomes(waits, late, relayed, applied, dropped, saved)


def _uses(shard: Shard, kind: Kind, did: str, findings: Findings) -> Ints:
    """Return each push's event of a kind, after checking that there is at most one."""
    table, pushes = shard.table, shard.pushes
    who = f"shard {{shard}} {did} the gradient of worker {{worker}} at clock {{clock}}"
    at = table.where(kind)
    at = at[table["worker"][at] >= 0]
    of = shard.find_push(at)
    came = (of >= 0) & (pushes.at[of] < at) if len(pushes) else np.zeros(len(at), bool)
    findings.on(table, at).require(ONCE, came, f"{who}, which had not arrived")
    at, of = at[came], of[came]
    found = np.full(len(pushes), len(table))
    found[of[::-1]] = at[::-1]  # the first one stays
    findings.on(table, at).require(
        ONCE, ~repeats(of), f"{who} again", because=[pushes.at[of], found[of]]
    )
    if kind != Kind.SAVE:
        same = table["samples"][at] == pushes.samples[of]
        same &= table.real("progress")[at] == table.real("progress")[pushes.at[of]]
        findings.on(table, at).require(
            ONCE, same, f"{who}, but with other samples or progress", because=[pushes.at[of]]
        )
    return found


def _check_used_once(shard: Shard, outcomes: PushOutcomes, findings: Findings) -> None:
    """Check that every gradient is applied or dropped, not both, and empty pushes are neither."""
    pushes, end = shard.pushes, len(shard.table)
    applied, dropped = outcomes.applied < end, outcomes.dropped < end
    empty = ~outcomes.waits & ~(outcomes.late & (pushes.samples > 0))
    reasons = [outcomes.applied, outcomes.dropped, pushes.reply]
    for wrong, text in (
        (applied & dropped, "both applied and dropped clock {clock} of worker {worker}"),
        (
            empty & (applied != dropped),
            "used clock {clock} of worker {worker}, which had no gradient",
        ),
        (
            ~empty & ~applied & ~dropped,
            "received clock {clock} of worker {worker} and neither applied nor dropped it",
        ),
    ):
        findings.on(shard.table, pushes.at).require(
            ONCE, ~wrong, f"shard {{shard}} {text}", because=reasons
        )


def _check_drops(
    contract: Contract, shard: Shard, outcomes: PushOutcomes, findings: Findings
) -> None:
    """Check that a push is dropped immediately, for being late or for its worker's death."""
    pushes, table, end = shard.pushes, shard.table, len(shard.table)
    i = np.flatnonzero(outcomes.dropped < end)
    at = outcomes.dropped[i]
    flag, message, left = table["flag"][at], shard.message[at], shard.left[pushes.worker[i]]
    gone = np.where(left < end, shard.message[np.minimum(left, end - 1)], -1)
    known = np.append(shard.message, end)[outcomes.relayed[i]]
    if contract.follows(shard.number):  # once it has the version on which that was too late
        made = np.concatenate([[0], shard.updates, [end - 1]])
        version = np.append(table["version"], 0)[outcomes.relayed[i]]
        reached = shard.message[made[np.clip(version, 0, len(made) - 1)]]
        known = np.maximum(known, reached)
    late = outcomes.late[i] & (message == np.maximum(pushes.message[i], known))
    waits = outcomes.waits[i] | outcomes.late[i] & (message <= known)
    lost = waits & (pushes.reply[i] == end) & (message == gone)
    text = (
        "shard {shard} dropped clock {clock} of worker {worker} as {reason}, with staleness "
        "{met}: its mode does not allow that"
    )
    findings.on(table, at).require(
        ONCE,
        np.where(flag == LATE, late, lost),
        text,
        reason=lambda j: "late" if flag[j] == LATE else "lost",
        met=pushes.met[i],
        because=[pushes.at[i], left],
    )
    i = np.flatnonzero(outcomes.late)
    at = outcomes.applied[i]
    text = (
        f"shard {{shard}} applied clock {{clock}} of worker {{worker}} with staleness {{met}}, the "
        f"most is {contract.late}"
    )
    findings.on(table, np.minimum(at, end - 1)).require(
        ONCE, at == end, text, met=pushes.met[i], because=[pushes.at[i]]
    )
    # A gradient that was not saved is in its dead worker's memory, and may be torn.
    i = np.flatnonzero(outcomes.waits & (outcomes.applied < end) & (outcomes.saved == end))
    left = shard.left[pushes.worker[i]]
    text = (
        "shard {shard} applied clock {clock} of worker {worker}, which had left before and whose "
        "gradient was not saved"
    )
    findings.on(table, outcomes.applied[i]).require(
        ONCE, outcomes.applied[i] < left, text, because=[pushes.at[i], left]
    )


def _check_staleness(shard: Shard, findings: Findings) -> None:
    """Check τ of applied and dropped pushes, and the version of those not applied."""
    pushes, table = shard.pushes, shard.table
    at = table.where(Kind.APPLY, Kind.DROP)
    of = shard.find_push(at)
    at, of = at[of >= 0], of[of >= 0]
    read = pushes.version[of]
    # An APPLY belongs to the version that it makes; its push arrived at the one before.
    met = shard.version[at] - (table["kind"][at] == Kind.APPLY)
    text = (
        "shard {shard} recorded staleness {said} for clock {clock} of worker {worker}, computed "
        "on version {read}, which met version {met}: it is {due}"
    )
    findings.on(table, at).require_equal(
        STALENESS, table["tau"][at], met - read, text, read=read, met=met, because=[pushes.at[of]]
    )
    at = table.where(Kind.DROP, Kind.SAVE)
    of = shard.find_push(at)
    at, of = at[of >= 0], of[of >= 0]
    text = "shard {shard} recorded version {said} for a push that was computed on version {due}"
    findings.on(table, at).require_equal(
        STALENESS, table["version"][at], pushes.version[of], text, because=[pushes.at[of]]
    )


def _check_durations(shard: Shard, findings: Findings) -> None:
    """Check that an update took no longer than the time since its message arrived."""
    table = shard.table
    at = table.where(Kind.APPLY)
    messages = table.where(*MESSAGES)
    require_duration(findings, table, at, messages[shard.message[at]], most=True)


def _check_gaps(
    contract: Contract, shard: Shard, outcomes: PushOutcomes, findings: Findings
) -> None:
    """Check how far parameters moved between a read and the use of its gradient.

    A gradient is used when it is saved, else when it is applied. If the shard then still had the
    version that was read, its parameters cannot have moved, unless a codec lost some.
    """
    pushes, table, end = shard.pushes, shard.table, len(shard.table)
    i = np.flatnonzero(outcomes.applied < end)
    at, saved = outcomes.applied[i], outcomes.saved[i]
    gap = table.real("gap")[at]
    met = np.where(saved < end, shard.version[np.minimum(saved, end - 1)], shard.version[at] - 1)
    moved = (met > pushes.version[i]) | (not contract.exact_reads)
    if not contract.mode.is_stale:
        text = (
            "shard {shard} measured a gap of {gap:g} of worker {worker} at clock {clock}, where "
            "nothing moves between a read and its update"
        )
        findings.on(table, at).require(GAPS, np.isnan(gap), text)
        return
    text = (
        "shard {shard} measured a gap of {gap:g} of worker {worker} at clock {clock}, although "
        "its version was still {met}, which had been read"
    )
    findings.on(table, at).require(
        GAPS, np.isnan(gap) | moved | (gap == 0), text, met=met, because=[pushes.at[i]]
    )


def _check_saved(
    contract: Contract, shard: Shard, outcomes: PushOutcomes, findings: Findings
) -> None:
    """Check that a gradient was saved if its worker could overwrite it before it was applied."""
    pushes, table, end = shard.pushes, shard.table, len(shard.table)
    # Only in softsync may a worker continue so early; another rule checks that.
    needs = outcomes.waits & (pushes.reply < outcomes.applied) & (pushes.reply < end)
    needs &= not contract.reads_its_writes
    saved = outcomes.saved < end
    in_time = saved & (outcomes.saved < pushes.reply)
    in_time &= shard.message[np.minimum(outcomes.saved, end - 1)] == pushes.message
    text = (
        "shard {shard} let worker {worker} continue, but its gradient of clock {of} was neither "
        "applied nor saved"
    )
    findings.on(table, np.where(needs, pushes.reply, 0)).require(
        SAVED,
        ~needs | in_time,
        text,
        of=pushes.clock,
        because=[pushes.at, outcomes.saved, outcomes.applied],
    )
    text = (
        "shard {shard} saved clock {clock} of worker {worker}, which did not continue before it "
        "was applied"
    )
    findings.on(table, np.where(saved, outcomes.saved, 0)).require(
        SAVED, ~saved | needs, text, because=[pushes.at, outcomes.applied, pushes.reply]
    )
    # Saved gradients are already in a sum, which is the first term of their update.
    i = np.flatnonzero(outcomes.applied < end)
    i = i[np.argsort(outcomes.applied[i], kind="stable")]
    at = outcomes.applied[i]
    same = same_as_before(table["version"][at])
    text = (
        "shard {shard} summed the saved gradient of clock {clock} of worker {worker} after one "
        "that was not saved"
    )
    findings.on(table, at).require(
        SAVED, ~(same & saved[i] & ~previous(saved[i], True)), text, because=[previous(at, -1)]
    )


def _check_order(
    contract: Contract, shard: Shard, outcomes: PushOutcomes, findings: Findings
) -> None:
    """Check the order of a worker's gradients, and of those summed in an update."""
    pushes, table = shard.pushes, shard.table
    i = np.flatnonzero(outcomes.applied < len(table))
    at = outcomes.applied[i]
    # Pushes are sorted by worker and clock, so positions must ascend within a worker.
    same = same_as_before(pushes.worker[i])
    text = "shard {shard} applied clock {clock} of worker {worker} before its clock {before}"
    findings.on(table, at).require(
        FIFO,
        ~same | (np.diff(at, prepend=-1) > 0),
        text,
        before=previous(pushes.clock[i], -1),
        because=[previous(at, -1)],
    )
    i = i[np.argsort(at, kind="stable")]
    at = outcomes.applied[i]
    same = same_as_before(table["version"][at])
    before = previous(pushes.worker[i], -1)
    if not contract.rounds and contract.learners is None:
        text = (
            "shard {shard} summed clock {clock} of worker {worker} after a gradient of worker "
            "{before} that arrived later, expected the order of arrival"
        )
        findings.on(table, at).require(
            ORDER,
            ~same | (np.diff(pushes.at[i], prepend=-1) > 0),
            text,
            before=before,
            because=[previous(at, -1), pushes.at[i]],
        )
        return
    if contract.rounds:
        text = (
            "shard {shard} made version {version} of a gradient of round {said}, of worker {worker}"
        )
        findings.on(table, at).require_equal(
            ROUND, pushes.clock[i], table["version"][at] - 1, text, because=[pushes.at[i]]
        )
    text = (
        "shard {shard} summed worker {worker} after worker {before} in "
        f"{'round {clock}' if contract.rounds else 'version {version}'}, expected the order of "
        "workers"
    )
    findings.on(table, at).require(
        ORDER, ~same | (pushes.worker[i] > before), text, before=before, because=[previous(at, -1)]
    )


def _check_quorum(
    contract: Contract, shard: Shard, outcomes: PushOutcomes, findings: Findings
) -> None:
    """Check that every update has enough gradients, and that after each message none is due."""
    table = shard.table
    # The state after each event: running sums of what each event adds and removes.
    live = contract.workers - np.cumsum(table.are(Kind.LEFT))
    pending = pending_after(shard, outcomes, outcomes.waits)
    full = pending_after(shard, outcomes, outcomes.waits & (shard.pushes.samples > 0))
    stuck = _stuck(shard, outcomes)
    # With backups, pushes without samples alone do not make an update.
    bears = (full > 0) | (pending >= live)
    _check_sizes(contract, shard, live, pending, stuck, bears, findings)
    ends = np.flatnonzero(np.diff(shard.message, append=len(table)) > 0)
    need = np.where(live[ends] > 0, contract.quorum(live[ends]), 1)
    text = (
        "shard {shard} has {waits} gradients and {live} live workers, but makes no update; its "
        "mode needs {need}"
    )
    findings.on(table, ends).require(
        QUORUM,
        (pending[ends] < need) | ~bears[ends],
        text,
        waits=pending[ends],
        live=live[ends],
        need=need,
    )
    # If each worker has pushed and waits for its answer, no more pushes will arrive.
    text = "shard {shard} leaves all of its {live} live workers waiting"
    findings.on(table, ends).require(
        QUORUM, (stuck[ends] < live[ends]) | (live[ends] == 0), text, live=live[ends]
    )


def _check_sizes(
    contract: Contract,
    shard: Shard,
    live: Ints,
    pending: Ints,
    stuck: Ints,
    bears: Bools,
    findings: Findings,
) -> None:
    """Check the number of gradients of each update."""
    table, heads = shard.table, shard.updates
    applied = np.cumsum(table.are(Kind.APPLY) & (table["worker"] >= 0))
    before = np.maximum(heads - 1, 0)  # an update is never the first event
    size = np.diff(np.append(applied[before], applied[-1:])) if len(heads) else heads
    there, alive = pending[before], live[before]
    text = "shard {shard} made version {version} of {said} gradients when {due} had arrived"
    findings.on(table, heads).require_equal(QUORUM, size, there, text)
    need = contract.quorum(alive)
    # All live workers have pushed, so fewer than a quorum must be enough.
    nobody_comes = (alive == 0) & (size > 0)
    if contract.rounds:
        nobody_comes |= (alive > 0) & (stuck[before] == alive)
    text = (
        "shard {shard} made version {version} of {size} gradients with {alive} live workers, "
        "expected {need}"
    )
    findings.on(table, heads).require(
        QUORUM,
        ((size >= need) & (size > 0)) | nobody_comes,
        text,
        size=size,
        alive=alive,
        need=need,
    )
    text = (
        "shard {shard} made version {version} without a gradient, of {size} workers without "
        "samples, before all of {alive} had pushed"
    )
    findings.on(table, heads).require(
        QUORUM, bears[before] | nobody_comes, text, size=size, alive=alive
    )


def pending_after(shard: Shard, outcomes: PushOutcomes, waits: Bools) -> Ints:
    """Return how many of the pushes in ``waits`` wait for an update after each event."""
    end = len(shard.table)
    change = np.zeros(end, np.int64)
    change[shard.pushes.at[waits]] = 1
    over = np.minimum(outcomes.applied, outcomes.dropped)[waits]
    change[over[over < end]] = -1
    return np.cumsum(change)


def _stuck(shard: Shard, outcomes: PushOutcomes) -> Ints:
    """Return the number of live workers whose answer depends on other workers."""
    pushes, end = shard.pushes, len(shard.table)
    change = np.zeros(end, np.int64)
    # What an update must answer: a due gradient, or a request for a future version.
    bound = outcomes.waits | (
        pushes.asks & ~pushes.stops & (pushes.clock > shard.version[pushes.at])
    )
    change[pushes.at[bound]] = 1
    over = np.minimum(pushes.reply, shard.left[pushes.worker])[bound]
    change[over[over < end]] = -1
    return np.cumsum(change)
