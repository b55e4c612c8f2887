"""Checks that events are in a valid order: all other rules of modes with servers rely on it.

On a shard, versions increase by one. Pushes of each worker, at the clock and version that it was
given, alternate with replies until it leaves. On a worker, reads of all shards and pushes to all
shards alternate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import ALTERNATION, MEMBERSHIP, READS, VERSIONS, EventRef, Findings
from psrt.history.check.stops import stopped
from psrt.history.check.table import (
    Bools,
    Grid,
    Ints,
    Table,
    find,
    previous,
    rank_in_group,
    rank_in_run,
    same_as_before,
)
from psrt.history.events import MISSED, PARKED, Kind
from psrt.history.kinds import MESSAGES


@dataclass(frozen=True, slots=True)
class ReceivedPushes:
    """The pushes that a shard received, grouped by worker; (pushes,) columns."""

    #: The position of each receipt in the shard's events, and the number of its message.
    at: Ints
    message: Ints
    worker: Ints
    clock: Ints
    #: The version that it was computed on.
    version: Ints
    samples: Ints
    #: Staleness on arrival: the shard's version then, minus that.
    met: Ints
    #: Position of the reply; the number of events if there is none.
    reply: Ints
    #: Position of the reply before to the same worker; −1 for the first.
    before: Ints
    #: Whether it only asks for a newer version: from a worker that a round did not wait for, or
    #: that has stopped.
    asks: Bools
    #: Whether its worker has stopped for a checkpoint; and the position of the last stop of those
    #: that stopped with it, else 0.
    stops: Bools
    all_stopped: Ints

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard's events, with derived columns."""

    number: int
    table: Table
    #: By position: the number, from 0, of the message that it belongs to.
    message: Ints
    #: By position: the newest version, this event's included.
    version: Ints
    pushes: ReceivedPushes
    #: By worker: position of its LEFT; the number of events if there is none.
    left: Ints
    #: Positions of the first event of each update: that of version v is at index v − 1.
    updates: Ints

    def find_push(self, positions: Ints) -> Ints:
        """Return the index in ``pushes`` of each event's gradient; −1 for none."""
        pushes, table = self.pushes, self.table
        real = np.flatnonzero(~pushes.asks)
        # One key for each gradient. A worker's clocks ascend, so the keys of ``pushes`` do, too.
        wide = int(table["clock"].max(initial=0)) + 2
        keys = pushes.worker[real] * wide + pushes.clock[real]
        at = find(keys, table["worker"][positions] * wide + table["clock"][positions])
        return np.where(at >= 0, real[at] if len(real) else -1, -1)


@dataclass(frozen=True, slots=True)
class Workers:
    """The events of all workers, with derived columns."""

    table: Table
    #: Grouped by worker, each in its order; (reads, shards) and (pushes, shards).
    reads: Grid
    pushes: Grid
    #: By worker: position of its LEAVE; the number of events if it has none.
    leave: Ints
    #: Pushes of incomplete steps of workers that died: the first ones, to some of the shards.
    unfinished: Ints
    #: The shards that these are about, by column.
    shards: Sequence[int]

    def of(self, grid: Grid, shard: int) -> Ints:
        """Return the column of a shard."""
        found: Ints = grid[:, self.shards.index(shard)]
        return found

    @property
    def is_answer(self) -> Bools:
        """By read, whether it answers a push; all do except a worker's first."""
        return same_as_before(self.table["worker"][self.reads[:, 0]])


def shard_of(
    contract: Contract, number: int, table: Table, died: Bools, findings: Findings
) -> Shard | None:
    """Return a shard's events with derived columns; None, with a finding, if the order is invalid.

    Args:
        contract: of the run.
        number: of the shard.
        table: its events, which ``check_events`` has passed.
        died: by worker, whether it never announced that it leaves.
        findings: takes what is wrong.
    """
    starts = table.are(*MESSAGES)
    findings.on(table, np.zeros(min(1, len(table)), np.int64)).require(
        ALTERNATION, starts[:1], "shard {shard} acts before any message arrived"
    )
    version = _versions(table, findings)
    left = _departures(contract, number, table, findings)
    together = stopped(contract, table, left, findings)
    pushes = _received(contract, table, version, died, together, findings)
    if not findings.none:
        return None
    applied = table.where(Kind.APPLY)
    updates = applied[np.diff(table["version"][applied], prepend=0) > 0]
    shard = Shard(number, table, np.cumsum(starts) - 1, version, pushes, left, updates)
    _check_clocks(contract, shard, findings)
    _check_missed(contract, shard, findings)
    return shard if findings.none else None


def _versions(table: Table, findings: Findings) -> Ints:
    """Check that each update makes the next version; return the newest one by position."""
    applied = table.where(Kind.APPLY)
    made, nothing = table["version"][applied], table["worker"][applied] < 0
    before = previous(made, 0)
    adjacent = np.diff(applied, prepend=-2) == 1
    alone = nothing | previous(nothing, False)  # an update out of nothing is one event
    same_update = (made == before) & adjacent & ~alone
    text = "shard {shard} made version {version} after version {before}, expected {due}"
    findings.on(table, applied).require(
        VERSIONS,
        (made == before + 1) | same_update,
        text,
        before=before,
        due=before + 1,
        because=[previous(applied, -1)],
    )
    # Versions only grow, so the newest one at a position is the largest up to there.
    newest = np.maximum.accumulate(np.where(table.are(Kind.APPLY), table["version"], 0))
    replies = table.where(Kind.REPLY)
    text = "shard {shard} answered worker {worker} with version {said} when its newest was {due}"
    findings.on(table, replies).require_equal(
        VERSIONS,
        table["version"][replies],
        newest[replies],
        text,
        because=[np.append(applied, -1)[np.searchsorted(applied, replies) - 1]],
    )
    return newest


def _departures(contract: Contract, number: int, table: Table, findings: Findings) -> Ints:
    """Check that every worker leaves the shard; return where."""
    left = np.full(contract.workers, len(table))
    gone = table.where(Kind.LEFT)
    left[table["worker"][gone][::-1]] = gone[::-1]  # the first one stays
    findings.count(MEMBERSHIP, contract.workers)
    staying = np.flatnonzero(left == len(table))
    if len(staying):
        last = (EventRef(table, len(table) - 1),) if len(table) else ()
        findings.missing(MEMBERSHIP, f"worker {staying[0]} never left shard {number}", *last)
    missed = gone[table["flag"][gone] == MISSED]
    mortal = np.isin(table["worker"][missed], contract.crashes)
    findings.on(table, missed).require(
        MEMBERSHIP, mortal, "worker {worker} was declared dead in a run that declares none"
    )
    return left


def _received(
    contract: Contract,
    table: Table,
    version: Ints,
    died: Bools,
    together: Ints,
    findings: Findings,
) -> ReceivedPushes:
    """Check that RECEIVE and REPLY alternate for each worker until LEFT; return the pushes."""
    # A stable sort by worker groups the dialogue of the shard with each worker.
    dialogue = table.where(Kind.RECEIVE, Kind.REPLY, Kind.LEFT)
    at = dialogue[np.argsort(table["worker"][dialogue], kind="stable")]
    worker, kind = table["worker"][at], table["kind"][at]
    follows = same_as_before(worker)
    before = np.where(follows, previous(kind, 0), 0)
    receive, reply, left = (kind == it for it in (Kind.RECEIVE, Kind.REPLY, Kind.LEFT))
    after_left, unanswered = before == Kind.LEFT, before == Kind.RECEIVE
    for wrong, text in (
        (after_left, "shard {shard} has {kind} of worker {worker}, which had left it"),
        (
            receive & unanswered,
            "shard {shard} received another push of worker {worker} before it had answered the "
            "last one",
        ),
        (
            reply & ~unanswered & ~after_left,
            "shard {shard} answered worker {worker}, which had no push unanswered",
        ),
        (
            left & unanswered & ~died[worker],
            "worker {worker} announced that it leaves shard {shard} while its last push was "
            "unanswered",
        ),
    ):
        findings.on(table, at).require(
            ALTERNATION,
            ~wrong,
            text,
            counts=wrong is after_left,
            because=[np.where(follows, previous(at, -1), -1)],
        )
    found = np.flatnonzero(receive)
    answered = np.append(reply & follows, False)[found + 1]
    positions = at[found]
    last_reply = np.where(before[found] == Kind.REPLY, previous(at, -1)[found], -1)
    clock, samples = table["clock"][positions], table["samples"][positions]
    given = np.where(last_reply < 0, 0, table["clock"][last_reply])
    messages = np.cumsum(table.are(*MESSAGES)) - 1
    stops = table["flag"][positions] == PARKED
    # A stop does not say clock and version: they are those of the last answer.
    has = np.where(last_reply < 0, 0, table["version"][last_reply])
    has = np.where(stops, has, table["version"][positions])
    return ReceivedPushes(
        at=positions,
        message=messages[positions],
        worker=worker[found],
        clock=clock,
        version=has,
        samples=samples,
        met=version[positions] - has,
        reply=np.where(answered, np.append(at, 0)[found + 1], len(table)),
        before=last_reply,
        asks=(clock > given) & (samples == 0) & (contract.backup > 0) | stops,
        stops=stops,
        all_stopped=together[positions],
    )


def _check_clocks(contract: Contract, shard: Shard, findings: Findings) -> None:
    """Check that a push is of the clock and the version that its worker was given last."""
    pushes, table = shard.pushes, shard.table
    first = pushes.before < 0
    clock = np.where(first, 0, table["clock"][pushes.before])
    version = np.where(first, 0, table["version"][pushes.before])
    if contract.behind:
        version = version[_late(contract, table, pushes.at)]
    text = (
        "shard {shard} received a push of worker {worker} for clock {clock} on version {version}, "
        "expected clock {due_clock} on version {due_version}"
    )
    findings.on(table, pushes.at).require(
        ALTERNATION,
        ((pushes.clock == clock) | pushes.asks & ~pushes.stops) & (pushes.version == version),
        text,
        due_clock=clock,
        due_version=version,
        because=[pushes.before],
    )
    i = np.flatnonzero(pushes.reply < len(table))
    at = pushes.reply[i]
    given, met, least = table["clock"][at], shard.version[at], pushes.clock[i] + ~pushes.asks[i]
    # After a round all continue with its version, including those that it did not wait for.
    due = met if contract.rounds else pushes.clock[i] + ~pushes.asks[i]
    text = (
        "shard {shard} answered clock {pushed} of worker {worker} with clock {clock} at version "
        "{met}, expected clock {due}"
    )
    findings.on(table, at).require(
        ALTERNATION,
        (given == due) & (given >= least),
        text,
        pushed=pushes.clock[i],
        met=met,
        due=np.maximum(due, least),
        because=[pushes.at[i]],
    )


def _check_missed(contract: Contract, shard: Shard, findings: Findings) -> None:
    """Check that a worker was declared dead at the clock after its last push.

    With backups a shard moves a worker that it did not wait for to the newest round. The clock may
    be that one or, if rank 0 declares the death, the one that was sent.
    """
    pushes, table = shard.pushes, shard.table
    gone = table.where(Kind.LEFT)
    gone = gone[table["flag"][gone] == MISSED]
    pushed, finished = np.zeros((2, contract.workers), np.int64)
    real = ~pushes.stops
    np.maximum.at(pushed, pushes.worker[real], pushes.clock[real] + 1)
    np.maximum.at(finished, pushes.worker[real], (pushes.clock + ~pushes.asks)[real])
    owner, clock = table["worker"][gone], table["clock"][gone]
    due = pushed[owner]
    moved = np.maximum(finished[owner], shard.version[gone]) if contract.backup else due
    findings.on(table, gone).require(
        ALTERNATION,
        (clock == due) | (clock == moved),
        "worker {worker} was declared dead at clock {clock}, expected {due}{moved}",
        due=due,
        moved=[f" or {it}" if it != of else "" for it, of in zip(moved, due, strict=True)],
    )


def workers_of(
    contract: Contract, table: Table, leave: Ints, findings: Findings, shards: Sequence[int]
) -> Workers | None:
    """Return the workers' events about these shards; None if the order is invalid."""
    pushed = table.where(Kind.PUSH)
    unfinished = _unfinished(contract, table, pushed, leave, shards)
    reads = _grid(contract, table, table.where(Kind.READ), "read", findings, shards)
    # With several shards per server, a gradient may be pushed in parts, the last shard first. So is
    # what learners push, but as a whole: the first one decides.
    in_parts = contract.shards > contract.servers
    finished = np.setdiff1d(pushed, unfinished)
    backwards = contract.learners is not None
    pushes = _grid(
        contract, table, finished, "pushed", findings, shards,
        any_order=in_parts and not backwards, backwards=backwards,
    )  # fmt: skip
    if reads is None or pushes is None or not findings.none:
        return None
    workers = Workers(table, reads, pushes, leave, unfinished, shards)
    _check_alternation(workers, findings)
    if not findings.none:
        return None
    _check_computed_on(contract, workers, findings)
    _check_clock_at_the_end(contract, workers, findings)
    return workers


def _unfinished(
    contract: Contract, table: Table, pushed: Ints, leave: Ints, shards: Sequence[int]
) -> Ints:
    """Return the pushes of incomplete steps, of workers that died while computing."""
    if contract.shards == contract.servers:
        return pushed[:0]  # all pushes of a step are sent at its end, so none are incomplete
    owner = table["worker"][pushed]
    rank, starts = rank_in_group(owner, contract.workers)
    count = np.diff(np.append(starts, len(pushed)))
    died = leave == len(table)
    found: Ints = pushed[died[owner] & (rank >= (count - count % len(shards))[owner])]
    return found


def _grid(
    contract: Contract,
    table: Table,
    at: Ints,
    did: str,
    findings: Findings,
    of: Sequence[int],
    *,
    any_order: bool = False,
    backwards: bool = False,
) -> Grid | None:
    """Return events of one kind by shard; None if they do not come shard by shard."""
    shards, owner = len(of), table["worker"][at]
    counts = np.bincount(owner, minlength=contract.workers)
    if (counts % shards).any():
        worker = int(np.flatnonzero(counts % shards)[0])
        findings.on(table, at[owner == worker][-1:]).forbid(
            READS, f"worker {worker} {did} {counts[worker]} shards, expected a multiple of {shards}"
        )
        return None
    grid = at.reshape(-1, shards)
    # Consecutive events.
    first = grid[:, :1]
    holds = (grid == first + np.arange(shards)).all(1)
    if backwards:
        grid = grid[:, ::-1]
    if any_order:
        grid = np.take_along_axis(grid, np.argsort(table["shard"][grid], axis=1), axis=1)
    holds &= (table["shard"][grid] == np.array(of)).all(1)
    for name in ("clock", "samples"):
        holds &= (table[name][grid] == table[name][first]).all(1)
    holds &= (table.real("progress")[grid] == table.real("progress")[first]).all(1)
    text = f"worker {{worker}} {did} clock {{clock}} not from shard to shard with one clock"
    findings.on(table, grid[:, 0]).require(READS, holds, text, because=[grid[:, 1:]])
    return grid


def _check_alternation(workers: Workers, findings: Findings) -> None:
    """Check that reads and pushes alternate, with a read first and last."""
    table, leaves = workers.table, workers.table.where(Kind.LEAVE)
    at = np.sort(np.concatenate([workers.reads[:, 0], workers.pushes[:, 0], leaves]))
    kind, follows = table["kind"][at], same_as_before(table["worker"][at])
    before = np.where(follows, previous(kind, 0), 0)
    read = (before == 0) | (before == Kind.PUSH)
    push = before == Kind.READ
    leave = (before == 0) | (before == Kind.READ)  # a worker without data never reads
    holds = np.select([kind == Kind.READ, kind == Kind.PUSH], [read, push], leave)
    text = "worker {worker} has {kind} of clock {clock} after {before}"
    findings.on(table, at).require(
        READS,
        holds,
        text,
        before=lambda i: Kind(int(before[i])).name if before[i] else "nothing",
        because=[np.where(follows, previous(at, -1), -1)],
    )


def _late(contract: Contract, table: Table, pushes: Ints) -> Ints:
    """Return for each push the one whose reply its gradient was computed on, for PipeDream.

    Args:
        contract: of the run.
        table: of the pushes.
        pushes: positions, grouped by worker, each in its order.
    """
    epoch = np.floor(table.real("progress")[pushes])
    behind = np.minimum(rank_in_run(table["worker"][pushes], epoch), contract.behind)
    late: Ints = np.arange(len(pushes)) - behind
    return late


def _check_computed_on(contract: Contract, workers: Workers, findings: Findings) -> None:
    """Check that a gradient has the clock and the versions of the read just before.

    In a pipeline that is not drained, the versions are those of an earlier read.
    """
    table, pushes = workers.table, workers.pushes
    # Reads and pushes alternate, so the last read before a push in the table is its worker's own.
    of = np.searchsorted(workers.reads[:, 0], pushes[:, 0]) - 1
    read = workers.reads[of] if len(pushes) else pushes
    versions = read
    if contract.behind:
        versions = read[_late(contract, table, pushes[:, 0])]
    rows = np.arange(len(pushes))
    for name in ("clock", "version"):
        due = versions if name == "version" else read
        said, was = table[name][pushes], table[name][due]
        shard = (said != was).argmax(1)  # the first one that differs, if any does
        text = (
            f"worker {{worker}} pushed a gradient of {name} {{said}} to shard {{shard}}, but had "
            f"read {name} {{due}}"
        )
        findings.on(table, pushes[rows, shard]).require_equal(
            READS, said[rows, shard], was[rows, shard], text, because=[due[rows, shard]]
        )
    first = workers.reads[~workers.is_answer]
    zero = np.ones(first.shape, bool)
    for name in ("clock", "version", "tau"):
        zero &= table[name][first] == 0
        if name == "version":  # a learner may stop before it has pushed a fragment
            zero |= table["flag"][first] == PARKED
    findings.on(table, first[:, 0]).require(
        READS, np.all(zero, axis=1), "worker {worker} does not start with version 0 at clock 0"
    )


def _check_clock_at_the_end(contract: Contract, workers: Workers, findings: Findings) -> None:
    """Check that a worker leaves with the clock that it was given last."""
    table, reads = workers.table, workers.reads[:, 0]
    clock = np.zeros(contract.workers, np.int64)
    clock[table["worker"][reads]] = table["clock"][reads]  # the last one stays
    gone = np.flatnonzero(workers.leave < len(table))
    at = workers.leave[gone]
    text = "worker {worker} leaves at clock {said}, expected {due}"
    findings.on(table, at).require_equal(MEMBERSHIP, table["clock"][at], clock[gone], text)
