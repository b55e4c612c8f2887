"""Between workers and a shard: pushes are received, answered when they may be, and read.

The mode's gate says when a worker may continue, and the rules of SSP follow from it. Source of
those: Ho et al., NeurIPS 2013.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.history.check.alternation import Shard, Workers
from psrt.history.check.contract import Contract
from psrt.history.check.findings import (
    DELIVERY,
    GUARANTEE,
    MEMBERSHIP,
    OWN,
    PROGRESS,
    READS,
    REPLIES,
    Asked,
    Findings,
    require_duration,
    require_some_time,
)
from psrt.history.check.table import (
    Bools,
    Ints,
    Table,
    previous,
    rank_in_group,
    same_as_before,
)
from psrt.history.check.updates import PushOutcomes
from psrt.history.events import MISSED, PARKED


def check_delivery(
    contract: Contract,
    workers: Workers,
    shard: Shard,
    outcomes: PushOutcomes,
    findings: Findings,
) -> None:
    """Compare the workers' events about a shard with the shard's own."""
    # A push that only asks for a newer version has no gradient.
    reported = ~np.isin(shard.pushes.worker, contract.unreported)
    real = np.flatnonzero(~shard.pushes.asks & reported)
    _check_pushes(contract, workers, shard, real, findings)
    if findings.none:
        _check_reads(contract, workers, shard, outcomes, real, findings)
    _check_leaving(contract, workers, shard, findings)


def _check_pushes(
    contract: Contract, workers: Workers, shard: Shard, real: Ints, findings: Findings
) -> None:
    """Check the k-th push that a worker sent against the k-th that the shard received from it.

    Both sides are sorted by worker, so the k-th push of a worker is at the start of its group + k.
    """
    mine, table, count = workers.table, shard.table, contract.workers
    unfinished = workers.unfinished[mine["shard"][workers.unfinished] == shard.number]
    # Tables are grouped by worker, so ascending positions are, too.
    pushed = np.sort(np.concatenate([workers.of(workers.pushes, shard.number), unfinished]))
    received = shard.pushes.at[real]
    owner, sender = mine["worker"][pushed], shard.pushes.worker[real]
    rank, starts = rank_in_group(owner, count)
    place, _ = rank_in_group(sender, count)
    came, sent = np.bincount(sender, minlength=count), np.bincount(owner, minlength=count)
    # The last push of a worker that died may be lost with it.
    died = workers.leave == len(mine)
    arrived = (rank < came[owner]) | (died[owner] & (rank == sent[owner] - 1))
    text = "worker {worker} pushed clock {clock} to shard {shard}, which never received it"
    findings.on(mine, pushed).require(DELIVERY, arrived, text)
    text = "shard {shard} received clock {clock} of worker {worker}, which pushed only {sent} times"
    findings.on(table, received).require(DELIVERY, place < sent[sender], text, sent=sent[sender])
    if not findings.none:
        return
    of = pushed[starts[sender] + place]
    text = "shard {shard} received from worker {worker} {field} {said}, which pushed {field} {due}"
    fields = ("clock", "version", "samples", "progress", "rate")
    _require_same(findings, DELIVERY, fields, (table, received), (mine, of), text)
    if contract.simulated:
        text = "shard {shard} received a push of worker {worker} before it was sent"
        findings.on(table, received).require(
            DELIVERY, _not_after(mine, of, table, received), text, because=[(mine, of)]
        )


def _check_reads(
    contract: Contract,
    workers: Workers,
    shard: Shard,
    outcomes: PushOutcomes,
    real: Ints,
    findings: Findings,
) -> None:
    """Check that between two pushes a worker reads the last reply that it got."""
    mine, table, pushes = workers.table, shard.table, shard.pushes
    read = workers.of(workers.reads, shard.number)
    owner = mine["worker"][read]
    rank, _ = rank_in_group(owner, contract.workers)
    # The first read answers no push; the k-th after it reads the reply to the k-th push.
    read, owner, rank = read[rank > 0], owner[rank > 0], rank[rank > 0]
    came = np.bincount(pushes.worker[real], minlength=contract.workers)
    push = (np.cumsum(came) - came)[owner] + rank - 1
    known = rank <= came[owner]
    # A request for a newer version comes after a push, and is answered after it.
    heads = np.flatnonzero(~pushes.asks)
    last = np.append(heads[1:], len(pushes))[np.searchsorted(heads, real)]
    last = np.minimum(last, np.searchsorted(pushes.worker, pushes.worker[real], "right")) - 1
    reply = np.full(len(read), len(table))
    if len(real):
        end = last[push[known]]
        # A worker that died while stopped for a checkpoint has not read the last answer.
        final = np.append(owner[1:] != owner[:-1], True) & (workers.leave[owner] == len(mine))
        unread = (final & (mine["flag"][read] != PARKED))[known] & pushes.stops[end]
        reply[known] = pushes.reply[end - unread]
    known &= reply < len(table)
    findings.on(mine, read).require(
        READS, known, "worker {worker} read a reply of shard {shard} that it never gave"
    )
    read, reply, push = read[known], reply[known], push[known]
    text = "worker {worker} read of shard {shard} {field} {said}, which answered {field} {due}"
    _require_same(findings, READS, ("clock", "version"), (mine, read), (table, reply), text)
    text = "worker {worker} got staleness {said} from shard {shard}, expected {due} for its push"
    used, made = pushes.met[real[push]], outcomes.applied[real[push]]
    if contract.learners is not None:  # one that is relayed may be older when it is merged
        used = np.append(table["tau"], 0)[made]
    findings.on(mine, read).require_equal(
        READS,
        mine["tau"][read],
        np.where(outcomes.waits[real[push]], used, -1),
        text,
        because=[(table, pushes.at[real[push]]), (table, reply)],
    )
    if contract.simulated:
        text = "worker {worker} read of shard {shard} before that had answered"
        findings.on(mine, read).require(
            READS, _not_after(table, reply, mine, read), text, because=[(table, reply)]
        )


def _check_leaving(contract: Contract, workers: Workers, shard: Shard, findings: Findings) -> None:
    """Check that a shard receives a worker's leave as the worker sent it."""
    mine, table = workers.table, shard.table
    gone = np.flatnonzero((workers.leave < len(mine)) & (shard.left < len(table)))
    sent, received = workers.leave[gone], shard.left[gone]
    said, heard = mine["clock"][sent], table["clock"][received]
    holds = said == heard
    if contract.simulated and not contract.resumed:  # departed workers announce it again
        holds &= _not_after(mine, sent, table, received)
    # A worker that was declared dead may be alive, and continue for a while.
    missed = table["flag"][received] == MISSED
    holds = np.where(missed, said >= heard, holds)
    text = "worker {worker} left shard {shard} at clock {clock}, but had announced clock {said}"
    findings.on(table, received).require(MEMBERSHIP, holds, text, said=said, because=[(mine, sent)])


def _require_same(
    findings: Findings,
    rule: str,
    fields: Sequence[str],
    here: tuple[Table, Ints],
    there: tuple[Table, Ints],
    text: str,
) -> None:
    """Require that events of one table agree with the corresponding ones of another.

    Args:
        findings: takes what is wrong.
        rule: its name.
        fields: columns to compare; the text may name one, {field}.
        here: a table and the positions of the events to check.
        there: the table and positions of the events to compare with, pair by pair.
        text: what is wrong.
    """
    (table, at), (other, of) = here, there
    for field in fields:
        said, due = table.column(field)[at], other.column(field)[of]
        findings.on(table, at).require_equal(rule, said, due, text, field=field, because=[there])


def check_durations(contract: Contract, workers: Workers, findings: Findings) -> None:
    """Check the recorded times of computation, and of waiting for replies."""
    table, reads, pushes = workers.table, workers.reads, workers.pushes
    # Reads and pushes alternate, so the last one of the other kind before belongs to it.
    began = np.searchsorted(pushes[:, 0], reads[:, 0]) - 1
    since = np.where(workers.is_answer[:, None], pushes[began] if len(pushes) else reads, reads)
    # A read after a stop has the waiting time before the stop.
    after_stop = (table["flag"][reads] == PARKED).ravel()
    # A fragment is waited for only from the step on that adopts it, see ``check_arrivals``.
    after_stop |= contract.streams
    require_duration(findings, table, reads.ravel(), since.ravel(), most=after_stop)
    began = np.searchsorted(reads[:, 0], pushes[:, 0]) - 1
    require_duration(findings, table, pushes.ravel(), reads[began].ravel())
    if not contract.simulated:
        require_some_time(findings, table, pushes[:, 0])


def _not_after(cause: Table, causes: Ints, effect: Table, effects: Ints) -> np.ndarray:
    """Return, for each pair of events, whether the first did not happen after the second."""
    return cause.real("time")[causes] <= effect.real("time")[effects]


def check_replies(
    contract: Contract, shard: Shard, outcomes: PushOutcomes, findings: Findings
) -> None:
    """Check when each push was answered, and what the answer contained.

    A reply is due in the message that releases it: the one with the event that the gate waits for,
    or that of the push itself if it came later.
    """
    pushes, table = shard.pushes, shard.table
    end = len(table)
    release = _release(contract, shard, outcomes)
    messages = np.append(shard.message, end)
    due = np.where(release < end, np.maximum(messages[release], pushes.message), end)
    answered = pushes.reply < end
    given, left = messages[pushes.reply], messages[shard.left[pushes.worker]]
    of, because = pushes.clock, [pushes.at, release]
    replies = findings.on(table, np.where(answered, pushes.reply, pushes.at))
    who = "shard {shard} answered worker {worker} at clock {of}"
    if contract.gate is None:
        text = f"{who} before it had received its push"
        if contract.rounds or contract.learners is not None:
            text = f"{who} at version {{version}}, before the update that it waits for"
        replies.require(REPLIES, ~answered | (given >= due), text, of=of, because=because)
    else:
        _check_gate(contract.gate, shard, ~answered | (given >= due), replies, because)
    text = f"{who} later than it could have"
    replies.require(REPLIES, ~answered | (given <= due), text, of=of, because=because)
    text = "shard {shard} never answered worker {worker} at clock {clock}"
    replies.require(
        REPLIES, answered | (left <= due), text, because=[release, shard.left[pushes.worker]]
    )
    if contract.reads_its_writes:
        text = f"{who} with parameters that lack its own gradient"
        replies.require(
            OWN,
            ~(outcomes.waits & answered) | (outcomes.applied < pushes.reply),
            text,
            of=of,
            because=[pushes.at, outcomes.applied],
        )
    if contract.gate is not None:
        _check_guarantee(contract.gate, shard, outcomes, findings)


def _check_gate(gate: int, shard: Shard, holds: Bools, replies: Asked, because: list[Ints]) -> None:
    """Check that SSP's gate let no worker through before the slowest was near enough."""
    clock, at = shard.pushes.clock + 1, replies.at
    text = (
        "shard {shard} answered worker {worker} at clock {of} with clock {next}, although worker "
        f"{{slow}} had finished {{steps}} steps: {{ahead}} ahead, the most is {gate}"
    )
    replies.require(
        PROGRESS,
        holds,
        text,
        of=clock - 1,
        next=clock,
        slow=lambda i: _slowest(shard, int(at[i]))[0],
        steps=lambda i: _slowest(shard, int(at[i]))[1],
        ahead=lambda i: clock[i] - _slowest(shard, int(at[i]))[1],
        because=because,
    )


def _release(contract: Contract, shard: Shard, outcomes: PushOutcomes) -> Ints:
    """Return the position of the event from which on each push may be answered.

    0 if nothing is waited for, the number of events if it never happens.
    """
    pushes, end = shard.pushes, len(shard.table)
    if contract.learners is not None:
        dropped = np.where(outcomes.late & (pushes.samples > 0), outcomes.dropped, 0)
        release = np.where(outcomes.waits, outcomes.applied, dropped)
    elif contract.rounds:
        target = np.where(pushes.asks, pushes.clock, pushes.version + 1)
        target = np.where(outcomes.waits | pushes.asks, target, 0)
        made = np.concatenate([[0], shard.updates, [end]])  # version → where it was made
        release = made[np.minimum(target, len(made) - 1)]
    elif contract.gate is None:
        release = np.zeros(len(pushes), np.int64)
    else:
        reached = all_finished(shard)
        behind = np.maximum(pushes.clock + 1 - contract.gate, 0)
        release = reached[np.minimum(behind, len(reached) - 1)]
    return np.where(pushes.stops, pushes.all_stopped, release)


def all_finished(shard: Shard) -> Ints:
    """Return by m the position from which on every live worker has finished m steps.

    A worker has finished m steps when its push of clock m − 1 was received, or when it left before
    that. So its LEFT counts for all m larger than the number of its pushes. The result is the
    largest of these positions over all workers. It grows with m, so a searchsorted in it gives the
    steps that the slowest had finished at a position.

    With backups, a worker that asks for a newer version has finished only the steps before. One
    that a round did not wait for has finished the skipped steps with its next push.
    """
    pushes, most = shard.pushes, int(shard.pushes.clock.max(initial=-1)) + 2
    by_push, by_leave = np.zeros(most + 1, np.int64), np.zeros(most + 1, np.int64)
    finished = np.zeros(len(shard.left), np.int64)
    goes_on = ~pushes.stops  # a stop adds no step to the last push
    at, worker = pushes.at[goes_on], pushes.worker[goes_on]
    steps = (pushes.clock + ~pushes.asks)[goes_on]
    np.maximum.at(finished, worker, steps)
    order = np.argsort(at)
    by_push[steps[order]] = at[order]  # the last one stays
    before = np.where(same_as_before(worker), previous(steps, 0), 0)
    for i in np.flatnonzero(steps > before + 1):
        left_out = by_push[before[i] + 1 : steps[i]]
        np.maximum(left_out, at[i], out=left_out)
    order = np.argsort(shard.left)
    by_leave[finished[order] + 1] = shard.left[order]
    reached = np.maximum(by_push, np.maximum.accumulate(by_leave))
    reached[0] = 0
    return reached


def _slowest(shard: Shard, before: int) -> tuple[int, int]:
    """Return the live worker that had finished the fewest steps at a position, and how many."""
    pushes = shard.pushes
    finished = np.zeros(len(shard.left), np.int64)
    seen = pushes.at < before
    np.maximum.at(finished, pushes.worker[seen], pushes.clock[seen] + 1)
    finished[shard.left < before] = np.iinfo(np.int64).max
    slow = int(finished.argmin())
    return slow, int(finished[slow])


def _check_guarantee(gate: int, shard: Shard, outcomes: PushOutcomes, findings: Findings) -> None:
    """Check that a reply for clock c contains every gradient of clocks up to c − gate − 1.

    Let a(m) be the position by which all gradients of clocks before m are applied, a running
    maximum over m. The reply must come after a(c − gate).
    """
    pushes, table = shard.pushes, shard.table
    most = int(pushes.clock.max(initial=-1)) + 2
    applied = np.full(most + 1, -1)
    i = np.flatnonzero(outcomes.waits)
    i = i[np.argsort(outcomes.applied[i], kind="stable")]
    applied[pushes.clock[i] + 1] = outcomes.applied[i]  # of a clock, the last to be applied stays
    applied = np.maximum.accumulate(applied)
    replied = np.flatnonzero(pushes.reply < len(table))
    given = (pushes.clock + ~pushes.asks)[replied]
    at, oldest = pushes.reply[replied], np.maximum(given - gate, 0)
    text = (
        "shard {shard} answered worker {worker} with clock {next} before every gradient of clocks "
        f"up to {{last}} was applied, with staleness {gate}"
    )
    findings.on(table, at).require(
        GUARANTEE,
        applied[oldest] < at,
        text,
        next=given,
        last=oldest - 1,
        because=[pushes.at[replied], applied[oldest]],
    )
