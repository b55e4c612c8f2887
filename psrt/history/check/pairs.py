"""Averages of pairs, without rounds: asking and answering, staleness, and that nothing is lost.

A worker of colour 0 asks: it offers its vector x to a neighbour of colour 1, and continues. Between
two steps the neighbour answers with its own vector y, and moves by ½ (x − y). The asking worker
then moves by ½ (y − x), whatever it has by then. So the sum of both is conserved, which sums over
the vectors' elements show as in rounds, see ``averages``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psrt.core.arrays import ITEMSIZE
from psrt.history.check.averages import MESSAGE, Averagers, mixing_of
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
from psrt.history.check.norms import MORE, ROUNDING, TINY, are_near
from psrt.history.check.table import Bools, Ints, Table, find, previous, repeats, same_as_before
from psrt.history.events import ANSWER, Kind, parts
from psrt.history.header import Header
from psrt.history.kinds import Mixed, Offer, Park, Take, Vector

#: Relative error of a norm that two workers compute of the same numbers.
_NORM = 1e-5


@dataclass(frozen=True, slots=True)
class _Averages:
    """The averages of all workers, one for each of the two sides; (k,) positions."""

    #: The vector that is averaged into: the sent one of the answering worker, or the current one of
    #: the asking worker.
    own: Ints
    take: Ints
    end: Ints
    #: Whether it is the average of the asking worker.
    asks: Bools
    #: A key for each offer: of the asking worker and the number of its offer.
    offer: Ints
    #: What this worker sent for it, offer or answer, and what the other one sent; −1 if unknown.
    sent: Ints
    came: Ints


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
        The least and the most bytes that all of them sent; valid if nobody has died.
    """
    linked = _linked(header)
    everybody = Averagers.of(contract, header, table, leave, findings)
    _check_clocks(contract, table, leave, findings)
    averages = _averages(table, findings)
    if not findings.none:
        return 0, 0
    _check_roles(linked, np.array(mixing_of(header).colours), table, findings)
    _check_numbers(everybody, findings)
    if not findings.none:
        return 0, 0
    _check_offers(everybody, averages, findings)
    if findings.none:
        _check_open(everybody, averages, findings)
    _check_steady(table, findings)
    if not findings.none:
        return 0, 0
    _check_staleness(table, averages, findings)
    _check_sums(everybody, averages, findings)
    _check_durations(contract, table, findings)
    parks = _check_checkpoints(linked, table, averages, findings)
    sent, vector = table.where(Kind.OFFER), MESSAGE + ITEMSIZE * header.n
    nbytes = len(sent) * vector + MESSAGE * (int(linked.sum()) + parks[1])
    # What arrives after a worker left is not part of its saved state.
    void = int((table["flag"][sent] == 0).sum() - averages.asks.sum())
    late = MESSAGE * (parks[1] - parks[0]) + vector * void if header.resumed else 0
    return nbytes - late, nbytes


def _linked(header: Header) -> Bools:
    """Return by worker its neighbours."""
    linked: Bools = mixing_of(header).of(0) > 0
    np.fill_diagonal(linked, False)
    return linked


def forgotten(header: Header, nbytes: tuple[int, int]) -> int:
    """Return the received bytes that a resumed run may count later or never.

    They are those that arrived at departed workers, and every ``LEAVE``, which is sent again.

    Args:
        header: of the history.
        nbytes: the result of ``check_pairs``.
    """
    least, most = nbytes
    return most - least + MESSAGE * int(_linked(header).sum()) if header.resumed else 0


def _check_clocks(contract: Contract, table: Table, leave: Ints, findings: Findings) -> None:
    """Check that every event has the clock of the steps so far."""
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
    """Check that the events of an average are adjacent; return all averages."""
    worker, other, kind, flag = (table[it] for it in ("worker", Offer.neighbour, "kind", "flag"))
    _, number = parts(table[Vector.digests])
    take, last = table.where(Kind.TAKE), max(0, len(table) - 1)
    own, end = np.maximum(take - 1, 0), np.minimum(take + 1, last)
    asks = flag[take] == ANSWER
    answers = (kind[own] == Kind.OFFER) & (flag[own] == ANSWER)
    answers &= (other[own] == other[take]) & (number[own] == number[take])
    holds = np.where(asks, kind[own] == Kind.OWN, answers)
    holds &= (kind[end] == Kind.MIXED) & (other[end] == other[take])
    for of in (own, end):
        holds &= worker[of] == worker[take]
    findings.on(table, take).require(
        TURNS,
        holds,
        "worker {worker} takes what worker {neighbour} has between {before} and {after}",
        before=lambda i: table.value("kind", int(own[i])),
        after=lambda i: table.value("kind", int(end[i])),
        because=[own, end],
    )
    answer = table.are(Kind.OFFER) & (flag == ANSWER)
    inside = np.flatnonzero(table.are(Kind.OWN, Kind.MIXED) | answer)
    alone = np.setdiff1d(inside, np.concatenate([own, end]))
    findings.on(table, alone).forbid(TURNS, "worker {worker} has {kind} and takes nothing")
    asked, answered = table.where(Kind.OFFER), np.flatnonzero(answer)
    asked = asked[flag[asked] == 0]
    offer = _offer_of(table, np.where(asks, worker[take], other[take]), number[take])
    made = _found(asked, _offer_of(table, worker[asked], number[asked]), offer)
    reply = _found(answered, _offer_of(table, other[answered], number[answered]), offer)
    sent, came = np.where(asks, made, own), np.where(asks, reply, made)
    return _Averages(own, take, end, asks, offer, sent, came)


def _offer_of(table: Table, worker: Ints, number: Ints) -> Ints:
    """Return one number for each offer."""
    _, numbers = parts(table[Vector.digests])
    return worker * (int(numbers.max(initial=0)) + 2) + number


def _found(at: Ints, keys: Ints, wanted: Ints) -> Ints:
    """Return the position of the event with each wanted key; −1 if there is none.

    Args:
        at: positions of the events.
        keys: of each event.
        wanted: the keys to find.
    """
    order = np.argsort(keys, kind="stable")
    return np.append(at[order], -1)[find(keys[order], wanted)]


def _check_roles(linked: Bools, colour: Ints, table: Table, findings: Findings) -> None:
    """Check that only one colour asks, the other one answers, and both are neighbours."""
    at = table.where(Kind.OFFER, Kind.TAKE, Kind.MIXED)
    mine, its = table["worker"][at], table[Offer.neighbour][at]
    text = "worker {worker} averages with worker {neighbour}, which is not its neighbour"
    findings.on(table, at).require(NEIGHBOURS, linked[mine, its], text)
    text = "worker {worker} averages with worker {neighbour}, and both {do}"
    findings.on(table, at).require(
        NEIGHBOURS,
        colour[mine] != colour[its],
        text,
        do=lambda i: "answer" if colour[mine[i]] else "ask",
    )
    at = table.where(Kind.OFFER, Kind.TAKE)
    # The flag of an offer is set if the sender answers, that of a take if the taker asked.
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


def _check_numbers(everybody: Averagers, findings: Findings) -> None:
    """Check the fields that are unused, or constant, without rounds."""
    table = everybody.table
    _, number = parts(table[Vector.digests])
    at = table.where(Kind.OFFER)
    text = "worker {worker} sends what it offers to {receivers} neighbours, expected 1"
    findings.on(table, at).require(OFFERS, table[Offer.receivers][at] == 1, text, counts=False)
    takes = table.where(Kind.TAKE)
    text = "worker {worker} gives what worker {neighbour} has weight {factor:g}, expected 0.5"
    findings.on(table, takes).require(NEIGHBOURS, table.real(Take.factor)[takes] == 0.5, text)
    ends = table.where(Kind.MIXED, Kind.OWN)
    everybody.check_plain(table.where(Kind.OFFER, Kind.MIXED), ends, findings)
    plain = (number[ends] == 0) & (table["flag"][ends] == 0)
    text = "{kind} of worker {worker} has a number or a flag, which have no meaning there"
    findings.on(table, ends).require(TURNS, plain, text, counts=False)


def _check_offers(everybody: Averagers, averages: _Averages, findings: Findings) -> None:
    """Check that each offer is answered at most once, and each answer taken once, unchanged."""
    table, take, asks, came = everybody.table, averages.take, averages.asks, averages.came
    digest, number = parts(table[Vector.digests])
    offers = table.where(Kind.OFFER)
    asked = offers[table["flag"][offers] == 0]
    follows = same_as_before(table["worker"][asked])
    due = np.where(follows, previous(number[asked], -1) + 1, 0)
    text = "worker {worker} makes offer {said}, expected {due}"
    findings.on(table, asked).require_equal(OFFERS, number[asked], due, text)
    again = repeats(2 * averages.offer + asks)
    text = "worker {worker} averages by offer {number} with worker {neighbour} again"
    findings.on(table, take).require(OFFERS, ~again, text, number=number[take])
    if not findings.none:
        return
    taker, source = table["worker"][take], table[Offer.neighbour][take]
    known = everybody.told[source]
    right = (
        (came >= 0) & (table["worker"][came] == source) & (table[Offer.neighbour][came] == taker)
    )
    right &= digest[came] == digest[take]
    text = (
        "worker {worker} took digest {said:08x} of worker {neighbour} for offer {number}, which "
        "sent {what}"
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
    sent = averages.sent
    mine = (sent >= 0) & (sent < take) & (table[Offer.neighbour][sent] == source)
    text = "worker {worker} takes the answer of worker {neighbour} to offer {number}, which it "
    findings.on(table, take).require(
        OFFERS, ~asks | mine, text + "has not made to it", number=number[take], because=[sent]
    )
    if everybody.contract.one_clock and findings.none:
        holds = ~known | (table.real("time")[take] >= table.real("time")[came])
        text = "worker {worker} took what worker {neighbour} has before it had it"
        findings.on(table, take).require(CAUSALITY, holds, text, because=[came])


def _check_open(everybody: Averagers, averages: _Averages, findings: Findings) -> None:
    """Check that one offer is open at a time, and that only departed workers do not answer."""
    table, asks, died = everybody.table, averages.asks, everybody.died
    worker, other, (_, number) = (
        table["worker"],
        table[Offer.neighbour],
        parts(table[Vector.digests]),
    )
    taken, of = averages.take[asks], averages.offer[asks]
    offers = table.where(Kind.OFFER)
    asked = offers[table["flag"][offers] == 0]
    answers = offers[table["flag"][offers] == ANSWER]
    owner, to = worker[asked], other[asked]
    done = _found(taken, of, _offer_of(table, owner, number[asked]))
    following = np.append(asked[1:], len(table))
    last = np.append(owner[1:] != owner[:-1], True)[: len(owner)]
    text = "worker {worker} offers something while its last offer is open"
    findings.on(table, asked).require(
        TURNS,
        (done < 0) | last | (done < following),
        text,
        because=[np.where(last, -1, following)],
    )
    # An offer to a departed worker is void; its sender then knows, and offers it no more.
    wide = len(died)  # not only those in the table: a silent worker has no events
    link = owner * wide + to
    newest = np.zeros(wide * wide, np.int64)
    np.maximum.at(newest, link, asked)
    holds = (done >= 0) | (newest[link] == asked)
    text = "worker {worker} has no answer of worker {neighbour}, and yet offers it something again"
    findings.on(table, asked).require(OFFERS, holds, text, because=[newest[link]])
    # An answer has moved the answering worker, so the asking one must take it, unless it died.
    whose = other[answers]
    there = _found(taken, of, _offer_of(table, whose, number[answers])) >= 0
    text = "worker {neighbour} never took the answer of worker {worker} to its offer {number}"
    findings.on(table, answers).require(OFFERS, there | died[whose], text, number=number[answers])


def _check_steady(table: Table, findings: Findings) -> None:
    """Check that only steps and averages change a worker's vector."""
    digest, _ = parts(table[Vector.digests])
    at = table.where(Kind.OFFER, Kind.OWN, Kind.MIXED)
    moved = np.cumsum(table.are(Kind.STEP) & (table["samples"] > 0))
    same = same_as_before(table["worker"][at]) & (moved[at] == previous(moved[at], -1))
    same &= ~table.are(Kind.MIXED)[at]
    before = previous(at, -1)
    text = "worker {worker} has digest {said:08x} in {kind}, but had {due:08x} before"
    findings.on(table, at).require(
        OFFERS,
        ~same | (digest[at] == digest[before]),
        text,
        said=digest[at],
        due=digest[before],
        because=[before],
    )


def _check_staleness(table: Table, averages: _Averages, findings: Findings) -> None:
    """Check the staleness of an average at the asking worker, and the distance of both."""
    take, sent, end, asks = averages.take, averages.sent, averages.end, averages.asks
    due = np.where(asks, table["clock"][take] - table["clock"][sent], 0)
    text = "worker {worker} averages with worker {neighbour} at staleness {said}, expected {due}"
    findings.on(table, take).require_equal(STALENESS, table["tau"][take], due, text, because=[sent])
    # Both measure the same numbers.
    gap = table.real(Mixed.gap)
    pair = _found(end[~asks], averages.offer[~asks], averages.offer[asks])
    mine, pair = end[asks][pair >= 0], pair[pair >= 0]
    here, there = gap[mine], gap[pair]
    near = are_near(here, there, _NORM * (here + there) + TINY)
    near &= np.isnan(here) == np.isnan(there)
    text = (
        "worker {worker} was {gap:g} apart from worker {neighbour}, which was {its:g} apart from it"
    )
    findings.on(table, mine).require(GAPS, near, text, its=there, because=[pair])


def _check_sums(everybody: Averagers, averages: _Averages, findings: Findings) -> None:
    """Check that each moves by half of the difference, so that the sum of both stays."""
    table, n = everybody.table, everybody.n
    total, size = table.real(Vector.total), table.real(Offer.rms) * n
    own, end, sent, came = averages.own, averages.end, averages.sent, averages.came
    for at in (own, sent):
        everybody.check_norms(at, findings)
    due = total[own] + 0.5 * (total[came] - total[sent])
    # A difference, and a sum: half of a number is exact.
    most = ROUNDING * (size[own] + size[came] + size[sent]) * MORE + n * TINY
    text = (
        "worker {worker} ends an average with worker {neighbour} with a vector whose numbers add "
        "up to {said:.9g}, expected {due:.9g} ± {most:.1g}"
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
    linked: Bools, table: Table, averages: _Averages, findings: Findings
) -> tuple[int, int]:
    """Check that workers reach the same checkpoints, and that none has half of an average.

    Args:
        linked: by worker, its neighbours.
        table: events of all workers, worker after worker.
        averages: all of them.
        findings: takes what is wrong.

    Returns:
        The number of neighbours that reached a checkpoint after a notification, and of all
        notified.
    """
    at, workers = table.where(Kind.PARK), len(linked)
    owner, step = table["worker"][at], table[Park.step][at]
    counts = np.bincount(owner, minlength=workers)
    number = np.arange(len(at)) - (np.cumsum(counts) - counts)[owner]
    first = np.full(int(counts.max(initial=0)), -1)
    first[number[::-1]] = np.arange(len(at))[::-1]
    text = "worker {worker} reaches a checkpoint of step {step}, where another has {due}"
    due = step[first[number]]
    findings.on(table, at).require(
        CAUSALITY, step == due, text, due=due, because=[at[first[number]]]
    )
    follows = same_as_before(owner)
    text = "worker {worker} reaches a checkpoint of step {step} after one of step {before}"
    before = previous(step, 0)
    findings.on(table, at).require(CAUSALITY, ~follows | (step > before), text, before=before)
    # Neighbours that reach a checkpoint were notified, and some that had left by then.
    there = np.array([(counts[linked[i]] > k).sum() for i, k in zip(owner, number, strict=True)])
    told, most = table[Park.neighbours][at], linked.sum(axis=1)[owner]
    text = (
        "worker {worker} notified {neighbours} neighbours of a checkpoint, expected {there} to "
        "{most}"
    )
    findings.on(table, at).require(
        NEIGHBOURS, (told >= there) & (told <= most), text, there=there, most=most
    )
    # The number of checkpoints that each event's worker has reached before it.
    total = np.cumsum(table.are(Kind.PARK))
    begins = (np.cumsum(counts) - counts)[table["worker"]]
    passed = total - begins
    for other in (averages.sent, averages.came):
        text = "worker {worker} averages with worker {neighbour} across a checkpoint"
        holds = (other < 0) | (passed[averages.take] == np.append(passed, 0)[other])
        findings.on(table, averages.take).require(CAUSALITY, holds, text, because=[other])
    steps = np.maximum.accumulate(np.where(table.are(Kind.STEP), np.arange(len(table)), -1))
    require_duration(findings, table, at, steps[at], most=True)
    return int(there.sum()), int(told.sum())


def _check_durations(contract: Contract, table: Table, findings: Findings) -> None:
    """Check what workers say of their waiting: which is at their end only."""
    at = table.where(Kind.OFFER, Kind.MIXED, Kind.LEAVE)
    # A worker waits for an offer before it takes it.
    since = at - np.where(table.are(Kind.MIXED)[at], 3, 1)
    same = (since >= 0) & (table["worker"][since] == table["worker"][at])
    timed = same | contract.one_clock
    since = np.where(same, since, -1)
    require_duration(findings, table, at[timed], since[timed], most=True)
