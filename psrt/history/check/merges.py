"""Merges of what learners have learnt: when, of which learners, and the same at every shard.

One shard decides, of each fragment. A merge needs a quorum, unless nobody else can come. With a
window it then waits for more: until a TICK, or until nobody else can come. The other shards are
relayed what the first one did, and do the same as soon as the pushes are there; one whose learner
has died on the way is left out, and so dropped as lost.

A shard does not record that a learner stops for a checkpoint before all have. So a learner whose
next message is a stop may have stopped before a merge, which then did not wait for it.

Source: Douillard et al. 2026, arXiv:2604.21428.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from psrt.history.check.alternation import Shard
from psrt.history.check.contract import Contract
from psrt.history.check.findings import CLOCK_S, QUORUM, RELAYS, WINDOWS, Findings
from psrt.history.check.served import paces_of
from psrt.history.check.table import Bools, Floats, Ints, previous
from psrt.history.check.updates import PushOutcomes, pending_after
from psrt.history.events import LATE, MISSED, Kind
from psrt.history.kinds import MESSAGES, Relay, Tick

#: Seconds for which a process may pause between the end of a window and its next line: a push that
#: came before it is noted by as much later.
_PAUSE_S = 0.25
#: γ of a window that computing hides, and the relative rounding of what is made of float32 numbers.
_SHARE, _ROUNDING = 0.8, 1e-5
#: The last flags of a RELAY.
_LAST, _TOO_LATE = 1, 2


def check_merges(
    contract: Contract, shards: Sequence[Shard], outcomes: Sequence[PushOutcomes],
    findings: Findings,
) -> None:  # fmt: skip
    """Check the merges of all shards."""
    assert contract.learners is not None, "merges have a quorum"
    for shard, mine in zip(shards, outcomes, strict=True):
        if contract.follows(shard.number):
            _check_follower(
                contract, shard, mine, shards[contract.deciders[shard.number]], findings
            )
        else:
            _check_decider(contract, shard, mine, shards, findings)


def _check_decider(
    contract: Contract, shard: Shard, outcomes: PushOutcomes, shards: Sequence[Shard],
    findings: Findings,
) -> None:  # fmt: skip
    """Check when a shard that decides makes its merges."""
    table, heads, quorum = shard.table, shard.updates, contract.learners
    assert quorum is not None, "merges have a quorum"
    live = contract.workers - np.cumsum(table.are(Kind.LEFT))
    pending = pending_after(shard, outcomes, outcomes.waits)
    starts = table.where(*MESSAGES)
    ends = np.append(starts[1:], len(table)) - 1
    before = np.maximum(heads - 1, 0)
    there = pending[before]
    size = _sizes(shard, outcomes)
    text = "shard {shard} merged {said} learners to version {version} when {due} had come"
    findings.on(table, heads).require_equal(QUORUM, size, there, text)
    alone = there + _may_have_stopped(contract, shard)[before] >= live[before]
    cause = starts[shard.message[heads]]
    by_tick = table["kind"][cause] == Kind.TICK
    text = (
        "shard {shard} merged {size} learners to version {version}, although {others} others could "
        f"still come, expected {quorum}"
    )
    others = live[before] - there
    findings.on(table, heads).require(
        QUORUM, (size > 0) & ((size >= quorum) | alone | by_tick), text, size=size, others=others
    )
    left = pending[ends]
    due = (left > 0) & (left >= live[ends])
    if contract.grace is None:
        due |= left >= quorum
    text = "shard {shard} has {waits} learners of {live} waiting and makes no merge"
    findings.on(table, ends).require(QUORUM, ~due, text, waits=left, live=live[ends])
    if findings.none:
        _check_windows(contract, shard, outcomes, pending, alone, shards, findings)


def _check_windows(
    contract: Contract, shard: Shard, outcomes: PushOutcomes, pending: Ints, alone: Bools,
    shards: Sequence[Shard], findings: Findings,
) -> None:  # fmt: skip
    """Check which merges wait for more than their quorum, and for how long.

    Args:
        contract: of the run.
        shard: that decides.
        outcomes: of its pushes.
        pending: by position, learners that wait for their merge.
        alone: by merge, whether nobody else could come.
        shards: all of them.
        findings: takes what is wrong.
    """
    table, heads, quorum = shard.table, shard.updates, contract.learners
    assert quorum is not None, "merges have a quorum"
    time = table.real("time")
    ticks = table.where(Kind.TICK)
    # Where the last window opened, by position: with the push that made a quorum.
    rises = (pending >= quorum) & (previous(pending, 0) < quorum)
    opened = np.maximum.accumulate(np.where(rises, np.arange(len(table)), -1))
    starts = table.where(*MESSAGES)
    merged = np.searchsorted(heads, ticks)
    whole = merged < len(heads)
    whole &= shard.message[np.append(heads, 0)[merged]] == shard.message[ticks]
    whole &= table[Tick.clock][ticks] == merged + 1
    text = "a window of shard {shard} is over for version {clock}, but {due} is the next to make"
    findings.on(table, ticks).require(WINDOWS, whole, text, due=merged + 1)
    is_open = (pending[ticks] >= quorum) & (contract.grace is not None)
    seconds, since = table.real(Tick.seconds)[ticks], opened[ticks]
    low = due = size = np.where(is_open, contract.grace or 0.0, 0.0)
    if contract.grace == math.inf:
        low, due, size = _hidden(contract, shard, outcomes, ticks, since, is_open)
    slack = _ROUNDING * size + CLOCK_S
    # Of one that is over early, because nobody else can come, no time is recorded.
    near = (seconds == 0) | ((seconds >= low - slack) & (seconds <= due + slack))
    text = "a window of shard {shard} is open for {seconds:g} s, expected {due:g} s"
    findings.on(table, ticks).require(WINDOWS, near, text, due=due, because=[since])
    lasted = time[ticks] - np.where(since >= 0, time[since], 0.0)
    over = is_open & (lasted >= seconds * (1 - _ROUNDING) - CLOCK_S) & (seconds >= low - slack)
    text = "shard {shard} ended a window after {lasted:g} s, it is open for {due:g} s"
    findings.on(table, ticks).require(
        WINDOWS, over | _stuck(contract, shard, ticks, shards), text, lasted=lasted, due=due,
        because=[since],
    )  # fmt: skip
    if contract.grace is None:
        return
    by_tick = table["kind"][starts[shard.message[heads]]] == Kind.TICK
    text = (
        "shard {shard} made version {version} before its window was over, while others could come"
    )
    findings.on(table, heads).require(WINDOWS, by_tick | alone, text, because=[opened[heads]])
    # By merge, how long its window may be: of one that no tick has ended, that of the mode.
    most = np.full(len(heads) + 1, contract.grace)
    most[np.minimum(merged, len(heads))] = due
    i = np.flatnonzero((outcomes.applied < len(table)) & outcomes.waits)
    at, of = shard.pushes.at[i], outcomes.applied[i]
    window = most[table["version"][of] - 1]
    began = opened[np.maximum(of - 1, 0)]
    # The window of a push is that in which it came, if it was open then.
    merge = np.append(0, heads)[table["version"][of] - 1]
    inside = (began >= merge) & (began < at)
    late = time[at] - np.where(inside, time[began], time[at])
    # A frame is decoded before its push is noted.
    pauses = not contract.simulated or contract.codes
    slack = _PAUSE_S * pauses + CLOCK_S + _ROUNDING * late
    text = (
        "shard {shard} took clock {clock} of worker {worker} into a merge {late:g} s after it had "
        "its quorum, its window is {window:g} s"
    )
    findings.on(table, at).require(
        WINDOWS, late <= window + slack, text, late=late, window=window, because=[began, of]
    )


def _sizes(shard: Shard, outcomes: PushOutcomes) -> Ints:
    """Return by update the number of its pushes."""
    applied = outcomes.applied[outcomes.applied < len(shard.table)]
    return np.bincount(shard.table["version"][applied], minlength=len(shard.updates) + 1)[1:]


def _may_have_stopped(contract: Contract, shard: Shard) -> Ints:
    """Return by position how many live learners may have stopped for a checkpoint."""
    pushes, end = shard.pushes, len(shard.table)
    change = np.zeros(end + 1, np.int64)
    if not contract.stops:
        return change[:-1]
    stops = pushes.stops
    np.add.at(change, np.maximum(pushes.before[stops], 0), 1)
    np.add.at(change, pushes.at[stops], -1)
    # One that died may have stopped after its last answer.
    last = np.zeros(contract.workers, np.int64)
    answered = pushes.reply < end
    np.maximum.at(last, pushes.worker[answered], pushes.reply[answered])
    waits = np.zeros(contract.workers, bool)
    waits[pushes.worker[~answered]] = True
    table = shard.table
    for worker in np.flatnonzero(~waits & (shard.left < end)).tolist():
        if table["flag"][shard.left[worker]] == MISSED or worker in contract.crashes:
            change[last[worker]] += 1
            change[shard.left[worker]] -= 1
    return np.cumsum(change)[:-1]


def _stuck(contract: Contract, shard: Shard, ticks: Ints, shards: Sequence[Shard]) -> Bools:
    """Return by tick whether every learner waits for a merge of some fragment, or has stopped.

    All that decide are at one server, and have its clock.
    """
    stuck = np.zeros(len(ticks), bool)
    if contract.fragments == 1:
        return stuck
    times = shard.table.real("time")[ticks]
    waits = np.zeros((len(ticks), contract.workers), bool)
    for it in shards:
        if contract.follows(it.number):
            continue
        pushes, time = it.pushes, np.append(it.table.real("time"), math.inf)
        until = time[np.minimum(pushes.reply, it.left[pushes.worker])]
        came = np.where(pushes.before < 0, 0.0, time[pushes.before])
        came = np.where(pushes.stops, came, time[pushes.at])
        gone = time[it.left]
        for k, when in enumerate(times.tolist()):
            waits[k, pushes.worker[(came <= when) & (when <= until)]] = True
            waits[k, gone <= when] = True
    found: Bools = np.all(waits, axis=1)
    return found


def _hidden(
    contract: Contract, shard: Shard, outcomes: PushOutcomes, ticks: Ints, since: Ints,
    is_open: Bools,
) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    """Return by tick the least and the most that a window may be, and what it is a difference of.

    It is γ·(T·ξ_step − ξ_quorum − ξ_sync), at least 0. No event has ξ_sync, the time of messages,
    which is one number until the job starts again: the windows say it together, if there are any.
    """
    table, time = shard.table, shard.table.real("time")
    slowest = np.array([1 / min(it.values(), default=math.inf) for it in paces_of(contract, table)])
    # The first of the pushes that waited when a window opened.
    end = np.minimum(outcomes.applied, outcomes.dropped)
    first = [
        shard.pushes.at[outcomes.waits & (shard.pushes.at <= at) & (end > at)].min(initial=at)
        for at in since.tolist()
    ]
    size = _SHARE * contract.delay * slowest[since]
    most = size - _SHARE * (time[since] - time[np.array(first, np.int64)])
    seconds, low, due = table.real(Tick.seconds)[ticks], np.zeros(len(ticks)), np.zeros(len(ticks))
    start = np.searchsorted(contract.resumed, time[since])
    for one in np.unique(start):
        mine = is_open & (start == one)
        told = (most - seconds)[mine & (seconds > 0)]
        sync = max(0.0, float(np.median(told))) if len(told) else 0.0
        due[mine] = np.maximum(0.0, most - sync)[mine]
        low[mine] = due[mine] * (len(told) > 0)
    return low, due, size


def _check_follower(
    contract: Contract, shard: Shard, outcomes: PushOutcomes, first: Shard, findings: Findings
) -> None:
    """Check that a shard does what another one did, as it was relayed."""
    table, its = shard.table, first.table
    relays = table.where(Kind.RELAY)
    done = its.where(Kind.APPLY, Kind.DROP)
    late = its["kind"][done] == Kind.DROP
    done = done[(its["worker"][done] >= 0) & (~late | (its["flag"][done] == LATE))]
    late = its["kind"][done] == Kind.DROP
    version = first.version[done]
    ends = np.append(version[1:] != version[:-1], True) | np.append(late[1:], True)
    flags = np.where(late, _TOO_LATE, np.where(ends, _LAST, 0))
    count = min(len(done), len(relays))
    at, of = relays[:count], done[:count]
    same = table[Relay.version][at] == version[:count]
    same &= table["flag"][at] == flags[:count]
    for name in ("worker", "clock"):
        same &= table[name][at] == its[name][of]
    text = (
        "shard {shard} was relayed clock {clock} of worker {worker} for version {version}, "
        f"which is not what shard {first.number} did next"
    )
    findings.on(table, at).require(RELAYS, same, text, because=[(its, of)])
    text = f"shard {{shard}} was relayed more than shard {first.number} did"
    findings.on(table, relays[count:]).forbid(RELAYS, text, counts=False)
    # Once all have left, a server may end before it is relayed a merge of those that died.
    text = f"shard {shard.number} was not relayed clock {{clock}} of worker {{worker}}"
    excused = np.isin(its["worker"][done[count:]], contract.crashes)
    findings.on(its, done[count:]).require(RELAYS, excused, text, counts=False)
    if contract.one_clock:
        starts = its.where(*MESSAGES)[first.message[of]]
        text = f"shard {{shard}} was relayed what shard {first.number} had not done yet"
        after = table.real("time")[at] >= its.real("time")[starts]
        findings.on(table, at).require(RELAYS, after, text, because=[(its, of)], counts=False)
    if findings.none:
        _check_relayed(shard, outcomes, relays, findings)


def _check_relayed(shard: Shard, outcomes: PushOutcomes, relays: Ints, findings: Findings) -> None:
    """Check that each merge has the learners that were relayed, and is made once they are there."""
    table, heads, end = shard.table, shard.updates, len(shard.table)
    flag = table["flag"][relays]
    members, last = relays[flag != _TOO_LATE], relays[flag == _LAST]
    text = "shard {shard} did not make version {version}, as it was relayed"
    findings.on(table, last[len(heads) :]).forbid(RELAYS, text, counts=False)
    text = "shard {shard} made version {version}, which it was not relayed"
    findings.on(table, heads[len(last) :]).forbid(RELAYS, text, counts=False)
    if not findings.none:
        return
    members = members[table[Relay.version][members] <= len(heads)]
    version = table[Relay.version][members]
    of = shard.find_push(members)
    pushed = np.append(shard.pushes.at, end)[of]
    applied = np.append(outcomes.applied, end)[of]
    taken = (applied < end) & (table["version"][np.minimum(applied, end - 1)] == version)
    made, gone = heads[version - 1], shard.left[table["worker"][members]]
    text = (
        "shard {shard} made version {version} without clock {clock} of worker {worker}, which was "
        "relayed and had not left"
    )
    findings.on(table, members).require(RELAYS, taken | (gone < made), text, because=[made])
    count = np.bincount(version, taken, minlength=len(heads) + 1)[1:]
    text = "shard {shard} made version {version} of {said} learners, of which {due} were relayed"
    sizes = _sizes(shard, outcomes)
    findings.on(table, heads).require_equal(RELAYS, sizes, count.astype(np.int64), text)
    # Made in the message with which the last of all that it needs was there.
    messages = np.append(shard.message, -1)
    needs = messages[np.where(pushed < end, np.minimum(pushed, gone), gone)]
    since = np.zeros(len(heads) + 1, np.int64)
    np.maximum.at(since, version, needs)
    np.maximum.at(since, table[Relay.version][last], messages[last])
    prompt = np.maximum.accumulate(since)[1:]
    text = "shard {shard} made version {version} later than it could have"
    findings.on(table, heads).require(QUORUM, shard.message[heads] == prompt, text, counts=False)
