"""Averages of two, without rounds: who asks and who answers, how stale, and that nothing is lost.

Who has colour 0 asks: it offers what it has to a neighbour, of colour 1, and goes on. That one, in
between two steps, answers with what it has, y, and moves by ½ (x − y), x being what came; who asked
moves by ½ (y − x), whatever it has by then. So what both have together stays, and as in rounds it
shows by sums over the elements of vectors, see ``gossip``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psrt.arrays import ITEMSIZE
from psrt.history.check.contract import Contract
from psrt.history.check.findings import (
    CAUSALITY,
    CONSERVED,
    GAPS,
    MEMBERSHIP,
    NEIGHBOURS,
    OFFERS,
    STALENESS,
    TURNS,
    Findings,
    require_duration,
)
from psrt.history.check.gossip import MESSAGE, MORE, ROUNDING, TINY
from psrt.history.check.mixing import mixing_of
from psrt.history.check.norms import are_near, may_be_norms
from psrt.history.check.steps import check_local_steps, check_own_rates, check_silence
from psrt.history.check.table import Bools, Ints, Table, find, previous, same_as_before
from psrt.history.events import ANSWER, Kind, parts
from psrt.history.header import Header

#: Relative error of a norm that two workers compute of the same numbers.
_NORM = 1e-5


@dataclass(frozen=True, slots=True)
class _Averages:
    """The averages of all workers, one each for who asked and who answered; (k,) positions."""

    #: What is averaged into: of who answers what it sent, of who asks what it had then.
    own: Ints
    take: Ints
    end: Ints
    #: Whether it is that of who asked.
    asks: Bools


def check_pairs(
    contract: Contract, header: Header, table: Table, leave: Ints, findings: Findings
) -> tuple[int, int]:
    """Check the workers of a mode that averages in pairs.

    Args:
        contract: of the run.
        header: of its history.
        table: events of all workers, worker after worker.
        leave: by worker, position of its LEAVE, the number of events where it died.
        findings: takes what is wrong.

    Returns:
        The least and the most bytes that all of them sent; right if nobody has died.
    """
    linked = _linked(header)
    check_silence(table, leave, np.zeros(len(table), bool), findings)
    check_local_steps(contract, table, leave, findings)
    check_own_rates(contract, header, table, findings)
    _check_clocks(contract, table, leave, findings)
    averages = _averages(table, findings)
    if not findings.none:
        return 0, 0
    _check_roles(linked, table, findings)
    _check_numbers(table, findings)
    if not findings.none:
        return 0, 0
    told = np.bincount(table["worker"], minlength=contract.workers) > 0
    died = leave == len(table)
    offered = _check_offers(contract, table, averages, told, died, findings)
    _check_steady(table, findings)
    if not findings.none:
        return 0, 0
    _check_staleness(table, averages, findings)
    _check_sums(header, table, averages, offered, findings)
    _check_durations(contract, table, findings)
    parks = _check_checkpoints(linked, table, averages, offered, findings)
    sent, vector = table.where(Kind.OFFER), MESSAGE + ITEMSIZE * header.n
    nbytes = len(sent) * vector + MESSAGE * (int(linked.sum()) + parks[1])
    # What came to one that had left is no part of what it was saved with.
    void = int((table["flag"][sent] == 0).sum() - averages.asks.sum())
    late = MESSAGE * (parks[1] - parks[0]) + vector * void if header.resumed else 0
    return nbytes - late, nbytes


def _linked(header: Header) -> Bools:
    """Return by worker its neighbours."""
    linked: Bools = mixing_of(header).of(0) > 0
    np.fill_diagonal(linked, False)
    return linked


def forgotten(header: Header, nbytes: tuple[int, int]) -> int:
    """Return how many received bytes a run that goes on from a checkpoint may count later or never.

    That is what came to workers that had left, and every ``LEAVE``, which is sent again.

    Args:
        header: of the history.
        nbytes: what ``check_pairs`` returned.
    """
    least, most = nbytes
    return most - least + MESSAGE * int(_linked(header).sum()) if header.resumed else 0


def _check_clocks(contract: Contract, table: Table, leave: Ints, findings: Findings) -> None:
    """Check that everything happens at the clock of the steps so far."""
    steps = table.are(Kind.STEP)
    before: Ints = np.cumsum(steps) - steps  # of all workers up to there
    first = np.cumsum(np.bincount(table["worker"], minlength=contract.workers))
    begins = np.concatenate([[0], first])[table["worker"]]
    due = before - np.append(before, 0)[begins] if len(table) else before
    at = table.where(Kind.OFFER, Kind.OWN, Kind.TAKE, Kind.MIXED, Kind.PARK, Kind.LEAVE)
    text = "worker {worker} has {kind} at clock {said} after {due} steps"
    left = np.isin(at, leave)
    for these, rule in ((at[~left], TURNS), (at[left], MEMBERSHIP)):
        said = table["clock"][these]
        findings.on(table, these).require_equal(rule, said, due[these], text)


def _averages(table: Table, findings: Findings) -> _Averages:
    """Check that what belongs to an average stands together; return all of them."""
    take = table.where(Kind.TAKE)
    last = max(0, len(table) - 1)
    own, end = np.maximum(take - 1, 0), np.minimum(take + 1, last)
    asks = table["flag"][take] == ANSWER
    answers = (table["kind"][own] == Kind.OFFER) & (table["flag"][own] == ANSWER)
    answers &= (table["shard"][own] == table["shard"][take]) & (
        parts(table["version"][own])[1] == parts(table["version"][take])[1]
    )
    holds = np.where(asks, table["kind"][own] == Kind.OWN, answers)
    holds &= (table["kind"][end] == Kind.MIXED) & (table["shard"][end] == table["shard"][take])
    for of in (own, end):
        holds &= table["worker"][of] == table["worker"][take]
    text = (
        "worker {worker} takes what worker {shard} has, and before it is {before} and after it "
        "{after}"
    )
    findings.on(table, take).require(
        TURNS,
        holds,
        text,
        before=lambda i: table.value("kind", int(own[i])),
        after=lambda i: table.value("kind", int(end[i])),
        because=[own, end],
    )
    alone = np.setdiff1d(
        np.flatnonzero(
            table.are(Kind.OWN, Kind.MIXED) | (table.are(Kind.OFFER) & (table["flag"] == ANSWER))
        ),
        np.concatenate([own, end]),
    )
    findings.on(table, alone).forbid(TURNS, "worker {worker} has {kind} and takes nothing")
    return _Averages(own, take, end, asks)


def _colours(linked: Bools) -> Ints:
    """Return the colour of each worker: 0 of the first of a part, the other one of neighbours."""
    colour = np.full(len(linked), -1)
    for first in range(len(linked)):
        if colour[first] >= 0:
            continue
        wave, shade = np.array([first]), 0
        while len(wave):
            colour[wave] = shade
            wave = np.flatnonzero(linked[:, wave].any(axis=1) & (colour < 0))
            shade = 1 - shade
    return colour


def _check_roles(linked: Bools, table: Table, findings: Findings) -> None:
    """Check that only one colour asks, the other one answers, and both are neighbours."""
    colour = _colours(linked)
    at = table.where(Kind.OFFER, Kind.TAKE, Kind.MIXED)
    mine, its = table["worker"][at], table["shard"][at]
    text = "worker {worker} averages with worker {shard}, which is no neighbour of it"
    findings.on(table, at).require(NEIGHBOURS, linked[mine, its], text)
    text = "worker {worker} averages with worker {shard}, and both {do}"
    findings.on(table, at).require(
        NEIGHBOURS,
        colour[mine] != colour[its],
        text,
        do=lambda i: "answer" if colour[mine[i]] else "ask",
    )
    at = table.where(Kind.OFFER, Kind.TAKE)
    # An offer is flagged by who answers, what is taken by who asked.
    answers = (table["flag"][at] == ANSWER) == table.are(Kind.OFFER)[at]
    known = np.isin(table["flag"][at], (0, ANSWER))
    text = "worker {worker} has {kind} as one that {does}, but it {should}"
    findings.on(table, at).require(
        NEIGHBOURS,
        known & (answers == (colour[table["worker"][at]] == 1)),
        text,
        does=lambda i: "answers" if answers[i] else "asks",
        should=lambda i: "asks" if answers[i] else "answers",
    )


def _check_numbers(table: Table, findings: Findings) -> None:
    """Check the numbers that mean nothing, or the same everywhere, without rounds."""
    _, number = parts(table["version"])
    at = table.where(Kind.OFFER)
    text = "worker {worker} sends what it offers to {samples} neighbours, expected 1"
    findings.on(table, at).require(OFFERS, table["samples"][at] == 1, text, counts=False)
    takes = table.where(Kind.TAKE)
    text = "worker {worker} weighs what worker {shard} has by {weight:g}, expected 0.5"
    findings.on(table, takes).require(NEIGHBOURS, table.real("weight")[takes] == 0.5, text)
    at = table.where(Kind.OFFER, Kind.MIXED)
    text = "{kind} of worker {worker} has weight {weight:g}, expected 1"
    findings.on(table, at).require(CONSERVED, table.real("weight")[at] == 1, text, counts=False)
    ends = table.where(Kind.MIXED, Kind.OWN)
    plain = (number[ends] == 0) & (table.real("rate")[ends] == 0) & (table["flag"][ends] == 0)
    text = "{kind} of worker {worker} has a number, a rate or a flag, which mean nothing there"
    findings.on(table, ends).require(TURNS, plain, text, counts=False)


def _check_offers(
    contract: Contract,
    table: Table,
    averages: _Averages,
    told: Bools,
    died: Bools,
    findings: Findings,
) -> Ints:
    """Check that each offer is answered once at most, and each answer taken once, as it was sent.

    Returns:
        By average, the position of what came; −1 where it is of one that fell silent.
    """
    digest, number = parts(table["version"])
    offers = table.where(Kind.OFFER)
    asked = offers[table["flag"][offers] == 0]
    owner = table["worker"][asked]
    follows = same_as_before(owner)
    due = np.where(follows, previous(number[asked], -1) + 1, 0)
    text = "worker {worker} makes offer {said}, expected {due}"
    findings.on(table, asked).require_equal(OFFERS, number[asked], due, text)
    answers = offers[table["flag"][offers] == ANSWER]
    take, asks = averages.take, averages.asks
    taker, source = table["worker"][take], table["shard"][take]
    # One number for each offer: of who asked, and which of its.
    wide = int(number.max(initial=0)) + 2
    key_asked = owner * wide + number[asked]
    key_answer = table["shard"][answers] * wide + number[answers]
    order = np.argsort(key_answer, kind="stable")
    key_take = np.where(asks, taker, source) * wide + number[take]
    again = np.zeros(len(take), bool)
    for side in (asks, ~asks):
        mine = np.flatnonzero(side)
        sort = mine[np.argsort(key_take[mine], kind="stable")]
        again[sort] = same_as_before(key_take[sort])
    text = "worker {worker} averages by offer {number} of worker {whose} again"
    whose = np.where(asks, taker, source)
    findings.on(table, take).require(OFFERS, ~again, text, number=number[take], whose=whose)
    if not findings.none:
        return np.full(len(take), -1)
    # Of who asked: its own offer, and the answer to it. Of who answered: the offer.
    made = find(key_asked, key_take)
    answered = find(key_answer[order], key_take)
    at_made = np.where(made >= 0, np.append(asked, -1)[made], -1)
    at_answer = np.where(answered >= 0, np.append(answers[order], -1)[answered], -1)
    came = np.where(asks, at_answer, at_made)
    known = told[source]
    right = came >= 0
    right &= (table["worker"][came] == source) & (table["shard"][came] == taker)
    right &= digest[came] == digest[take]
    text = (
        "worker {worker} took digest {said:08x} of worker {shard} for offer {number}, which sent "
        "{what}"
    )
    findings.on(table, take).require(
        OFFERS,
        right | ~known,
        text,
        said=digest[take],
        number=number[take],
        what=lambda i: f"{digest[came[i]]:08x}" if came[i] >= 0 else "nothing for it",
        because=[came],
    )
    own_offer = ~asks | ((at_made >= 0) & (at_made < take))
    own_offer &= ~asks | (table["shard"][at_made] == source)
    text = "worker {worker} takes the answer of worker {shard} to offer {number}, which it has not "
    findings.on(table, take).require(
        OFFERS, own_offer, text + "made to it", number=number[take], because=[at_made]
    )
    if contract.one_clock and findings.none:
        holds = ~known | (table.real("time")[take] >= table.real("time")[came])
        text = "worker {worker} took what worker {shard} has before it had it"
        findings.on(table, take).require(CAUSALITY, holds, text, because=[came])
    _check_open(table, averages, asked, answers, key_asked, key_take, died, findings)
    return np.where(known, came, -1)


def _check_open(
    table: Table,
    averages: _Averages,
    asked: Ints,
    answers: Ints,
    key_asked: Ints,
    key_take: Ints,
    died: Bools,
    findings: Findings,
) -> None:
    """Check that one offer is open at a time, and that only one that left lets one pass."""
    take, asks = averages.take, averages.asks
    owner, to = table["worker"][asked], table["shard"][asked]
    order = np.argsort(key_take[asks], kind="stable")
    taken = take[asks][order]
    found = find(key_take[asks][order], key_asked)
    done = np.where(found >= 0, np.append(taken, -1)[found], -1)
    following = np.append(asked[1:], len(table))
    last = np.append(owner[1:] != owner[:-1], True)[: len(owner)]
    text = "worker {worker} offers something while its last offer is open"
    findings.on(table, asked).require(
        TURNS,
        (done < 0) | last | (done < following),
        text,
        because=[np.where(last, -1, following)],
    )
    # Void is what went to one that has left; who offered it knows then, and offers no more to it.
    void = done < 0
    wide = len(died)  # not those of the table alone: who fell silent has no events
    link = owner * wide + to
    newest = np.zeros(wide * wide, np.int64)
    np.maximum.at(newest, link, asked)
    holds = ~void | (newest[link] == asked)
    text = "worker {worker} has no answer of worker {shard}, and yet offers it something again"
    findings.on(table, asked).require(OFFERS, holds, text, because=[newest[link]])
    # What was answered has moved who answered: who asked takes it, unless it died.
    _, number = parts(table["version"])
    width = int(number.max(initial=0)) + 2
    keys = table["shard"][answers] * width + number[answers]
    there = find(key_take[asks][order], keys) >= 0
    text = "worker {shard} never took the answer of worker {worker} to its offer {number}"
    findings.on(table, answers).require(
        OFFERS, there | died[table["shard"][answers]], text, number=number[answers]
    )


def _check_steady(table: Table, findings: Findings) -> None:
    """Check that only a step and an average change what a worker has."""
    digest, _ = parts(table["version"])
    at = table.where(Kind.OFFER, Kind.OWN, Kind.MIXED)
    moved = np.cumsum(table.are(Kind.STEP) & (table["samples"] > 0))
    same = same_as_before(table["worker"][at]) & (moved[at] == previous(moved[at], -1))
    same &= ~table.are(Kind.MIXED)[at]
    before = previous(at, -1)
    text = "worker {worker} has digest {said:08x} in {kind}, and it had {due:08x} before"
    findings.on(table, at).require(
        OFFERS,
        ~same | (digest[at] == digest[before]),
        text,
        said=digest[at],
        due=digest[before],
        because=[before],
    )


def _check_staleness(table: Table, averages: _Averages, findings: Findings) -> None:
    """Check by how many steps an average is late at who asked, and how far apart both were."""
    take = averages.take
    sent = _sent_by_taker(table, averages)
    due = np.where(averages.asks, table["clock"][take] - table["clock"][sent], 0)
    text = "worker {worker} averages with worker {shard} at staleness {said}, expected {due}"
    findings.on(table, take).require_equal(STALENESS, table["tau"][take], due, text, because=[sent])
    # Both measure the same numbers.
    gap = table.real("gap")
    end, asks = averages.end, averages.asks
    _, number = parts(table["version"])
    wide = int(number.max(initial=0)) + 2
    who = np.where(asks, table["worker"][take], table["shard"][take]) * wide + number[take]
    mine, its = np.flatnonzero(asks), np.flatnonzero(~asks)
    its = its[np.argsort(who[its], kind="stable")]
    found = find(who[its], who[mine])
    mine, pair = mine[found >= 0], its[found[found >= 0]]
    here, there = gap[end[mine]], gap[end[pair]]
    near = are_near(here, there, _NORM * (here + there) + TINY)
    near &= np.isnan(here) == np.isnan(there)
    text = "worker {worker} was {gap:g} apart from worker {shard}, which was {its:g} apart from it"
    findings.on(table, end[mine]).require(GAPS, near, text, its=there, because=[end[pair]])


def _sent_by_taker(table: Table, averages: _Averages) -> Ints:
    """Return, by average, where what its taker sent is: its offer, or its answer."""
    _, number = parts(table["version"])
    wide = int(number.max(initial=0)) + 2
    offers = table.where(Kind.OFFER)
    asked = offers[table["flag"][offers] == 0]
    keys = table["worker"][asked] * wide + number[asked]
    take = averages.take
    found = find(keys, table["worker"][take] * wide + number[take])
    sent: Ints = np.where(averages.asks, np.append(asked, -1)[found], averages.own)
    return sent


def _check_sums(
    header: Header, table: Table, averages: _Averages, came: Ints, findings: Findings
) -> None:
    """Check that each moves by half of what they differ by, so that what both have stays."""
    n = header.n if header.numerics else 0
    total, size = table.real("progress"), table.real("gap") * n
    own, end = averages.own, averages.end
    sent = _sent_by_taker(table, averages)
    for at in (own, sent):
        text = "{kind} of worker {worker} adds up to {progress:.9g}, by a norm of {gap:g}"
        holds = may_be_norms(total[at], size[at], n)
        findings.on(table, at).require(
            CONSERVED,
            holds,
            text + " at most {most:.9g}, and hardly so little",
            most=size[at],
            counts=False,
        )
    due = total[own] + 0.5 * (total[came] - total[sent])
    # A difference, and a sum: half of a number is exact.
    most = ROUNDING * (size[own] + size[came] + size[sent]) * MORE + n * TINY
    text = (
        "worker {worker} ends an average with worker {shard} with a vector whose numbers add up to "
        "{said:.9g}, expected {due:.9g}, {most:.1g} off at most"
    )
    findings.on(table, end).require(
        CONSERVED,
        (came < 0) | are_near(total[end], due, most),
        text,
        said=total[end],
        due=due,
        most=most,
        because=[own, sent],
    )


def _check_checkpoints(
    linked: Bools, table: Table, averages: _Averages, came: Ints, findings: Findings
) -> tuple[int, int]:
    """Check that workers come to the same checkpoints, and that none has half of an average.

    Args:
        linked: by worker, its neighbours.
        table: events of all workers, worker after worker.
        averages: all of them.
        came: by average, where what came was sent; −1 where that is not known.
        findings: takes what is wrong.

    Returns:
        How many neighbours have come to one that others told of it, and how many were told.
    """
    at, workers = table.where(Kind.PARK), len(linked)
    owner, step = table["worker"][at], table["version"][at]
    counts = np.bincount(owner, minlength=workers)
    number = np.arange(len(at)) - (np.cumsum(counts) - counts)[owner]
    first = np.full(int(counts.max(initial=0)), -1)
    first[number[::-1]] = np.arange(len(at))[::-1]
    text = "worker {worker} comes to a checkpoint of step {version}, where another has {due}"
    due = step[first[number]]
    findings.on(table, at).require(
        CAUSALITY, step == due, text, due=due, because=[at[first[number]]]
    )
    follows = same_as_before(owner)
    text = "worker {worker} comes to a checkpoint of step {version} after one of step {before}"
    before = previous(step, 0)
    findings.on(table, at).require(CAUSALITY, ~follows | (step > before), text, before=before)
    # Neighbours that come to one have been told of it, and some that had left by then.
    there = np.array([(counts[linked[i]] > k).sum() for i, k in zip(owner, number, strict=True)])
    told, most = table["samples"][at], linked.sum(axis=1)[owner]
    text = "worker {worker} told {samples} neighbours of a checkpoint, expected {there} to {most}"
    findings.on(table, at).require(
        NEIGHBOURS, (told >= there) & (told <= most), text, there=there, most=most
    )
    # How many each has come to before an event, of those of its worker.
    total = np.cumsum(table.are(Kind.PARK))
    begins = (np.cumsum(counts) - counts)[table["worker"]]
    passed = total - begins
    take, sent = averages.take, _sent_by_taker(table, averages)
    for other in (sent, came):
        text = "worker {worker} averages with worker {shard} across a checkpoint"
        holds = (other < 0) | (passed[take] == np.append(passed, 0)[other])
        findings.on(table, take).require(CAUSALITY, holds, text, because=[other])
    steps = np.maximum.accumulate(np.where(table.are(Kind.STEP), np.arange(len(table)), -1))
    require_duration(findings, table, at, steps[at], most=True)
    return int(there.sum()), int(told.sum())


def _check_durations(contract: Contract, table: Table, findings: Findings) -> None:
    """Check what workers say of their waiting: which is at their end only."""
    at = table.where(Kind.OFFER, Kind.MIXED, Kind.LEAVE)
    # What comes is waited for before it is taken.
    since = at - np.where(table.are(Kind.MIXED)[at], 3, 1)
    same = (since >= 0) & (table["worker"][since] == table["worker"][at])
    timed = same | contract.one_clock
    since = np.where(same, since, -1)
    require_duration(findings, table, at[timed], since[timed], most=True)
