"""When a worker may go on: the gate of each mode, and the rules of SSP that follow from it.

Source of the rules: Ho et al., NeurIPS 2013.
"""

from __future__ import annotations

import numpy as np

from psrt.history.check.alternation import Shard
from psrt.history.check.contract import Contract
from psrt.history.check.findings import Asked, Findings
from psrt.history.check.rules import GUARANTEE, OWN, PROGRESS, REPLIES
from psrt.history.check.table import Bools, Ints
from psrt.history.check.updates import PushOutcomes


def check_replies(
    contract: Contract, shard: Shard, outcomes: PushOutcomes, findings: Findings
) -> None:
    """Check when each push was answered, and what the answer contained.

    A reply is due in the message that lets it go: the one in which the event happened that the
    gate waits for, or that of the push itself where that came later.
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
        if contract.rounds:
            text = f"{who} at version {{version}}, before the update that it waits for"
        replies.require(REPLIES, ~answered | (given >= due), text, of=of, because=because)
    else:
        _check_gate(contract.gate, shard, ~answered | (given >= due), replies, because)
    text = f"{who} only now, which it could before"
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
    """Check that nobody was let through the gate of SSP before the slowest had come near enough."""
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

    0 where nothing is waited for, the number of events where it never happens.
    """
    pushes, end = shard.pushes, len(shard.table)
    if contract.rounds:
        target = np.where(pushes.asks, pushes.clock, pushes.version + 1)
        target = np.where(outcomes.waits | pushes.asks, target, 0)
        made = np.concatenate([[0], shard.updates, [end]])  # version → where it was made
        return made[np.minimum(target, len(made) - 1)]
    if contract.gate is None:
        return np.zeros(len(pushes), np.int64)
    reached = all_finished(shard)
    behind = np.maximum(pushes.clock + 1 - contract.gate, 0)
    return reached[np.minimum(behind, len(reached) - 1)]


def all_finished(shard: Shard) -> Ints:
    """Return by m from where on every live worker has finished m steps.

    A worker has when its push of clock m − 1 was received, or when it has left before that. So its
    LEFT counts for all m that are larger than the number of its pushes, and the position by which
    all have is the largest of all these. It grows with m, so a searchsorted in it says how many
    steps the slowest had finished at a position.
    """
    pushes, most = shard.pushes, int(shard.pushes.clock.max(initial=-1)) + 2
    by_push, by_leave = np.zeros(most + 1, np.int64), np.zeros(most + 1, np.int64)
    finished = np.zeros(len(shard.left), np.int64)
    np.maximum.at(finished, pushes.worker, pushes.clock + 1)
    order = np.argsort(pushes.at)
    by_push[pushes.clock[order] + 1] = pushes.at[order]  # the last one stays
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

    With a(m) the position by which all gradients of clocks before m are applied, a running maximum
    over m, the reply must stand after a(c − gate).
    """
    pushes, table = shard.pushes, shard.table
    most = int(pushes.clock.max(initial=-1)) + 2
    applied = np.full(most + 1, -1)
    i = np.flatnonzero(outcomes.waits)
    i = i[np.argsort(outcomes.applied[i], kind="stable")]
    applied[pushes.clock[i] + 1] = outcomes.applied[i]  # of a clock, the last to be applied stays
    applied = np.maximum.accumulate(applied)
    replied = np.flatnonzero(pushes.reply < len(table))
    at, oldest = pushes.reply[replied], np.maximum(pushes.clock[replied] + 1 - gate, 0)
    text = (
        "shard {shard} answered worker {worker} with clock {next} before every gradient of clocks "
        f"up to {{last}} was applied, with staleness {gate}"
    )
    findings.on(table, at).require(
        GUARANTEE,
        applied[oldest] < at,
        text,
        next=pushes.clock[replied] + 1,
        last=oldest - 1,
        because=[pushes.at[replied], applied[oldest]],
    )
