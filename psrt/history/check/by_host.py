"""Gossip by host: what the ranks of a host average, what hosts mix, and that all ranks get it.

The first worker of a host is its leader. In each round it takes the offers of its members, offers
their mean to other hosts, takes the means of those, and records the result, all with the flag HOST.
Then it and its members continue with the result. It does so until its last member leaves, even if
it has left the rounds itself. So there are two levels of averages, each with its own weights; see
``averages``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psrt.config.names import ADAPT_THEN_COMBINE
from psrt.core.arrays import ITEMSIZE
from psrt.history.check.averages import (
    MESSAGE,
    Averagers,
    Level,
    Series,
    check_order,
    check_waiting,
    mixing_of,
)
from psrt.history.check.contract import Contract
from psrt.history.check.findings import (
    CAUSALITY,
    NEIGHBOURS,
    OFFERS,
    TURNS,
    Findings,
)
from psrt.history.check.norms import MORE, ROUNDING, TINY
from psrt.history.check.table import Bools, Floats, Ints, Table, rank_in_group
from psrt.history.events import HOST, Kind
from psrt.history.header import Header
from psrt.history.kinds import Mixed, Offer, Vector
from psrt.topology.mixing import metropolis_weight
from psrt.topology.registry import HostLevel


@dataclass(frozen=True, slots=True)
class _Rounds:
    """The events of all workers by kind."""

    all: Averagers
    mixing: HostLevel
    #: By worker, the leader of its host, and whether it is the leader itself.
    leader: Ints
    leads: Bools
    #: The results with which workers continue.
    mixes: Series
    #: Inside hosts, workers' vectors and the host's mean; among hosts, that and the result.
    inside: Level
    between: Level

    def sure(self, series: Series) -> Ints:
        """Return, by worker, the rounds that cannot complete without it."""
        return np.where(self.all.died, np.maximum(series.count - 1, 0), series.count)


def check_by_host(
    contract: Contract, header: Header, table: Table, leave: Ints, findings: Findings
) -> tuple[int, int]:
    """Check the workers of a mode whose hosts mix; see ``check_gossip``."""
    everybody = Averagers.of(contract, header, table, leave, findings)
    rounds = _rounds_of(header, everybody, leave, findings)
    if not findings.none:
        return 0, 0
    _check_blocks(rounds, header.mode.order == ADAPT_THEN_COMBINE, findings)
    if not findings.none:
        return 0, 0
    for level in (rounds.inside, rounds.between):
        level.check_taken(findings)
        check_order(table, level.takes, findings)
        level.check_missing(findings)
    if findings.none:
        _check_means(rounds, findings)
        _check_results(rounds, findings)
    _check_what_workers_have(rounds, findings)
    _check_said(rounds, findings)
    everybody.check_norms(table.where(Kind.OFFER), findings)
    check_waiting(contract, table, findings)
    if findings.none:
        _check_all(rounds, findings)
    return _sent_bytes(rounds, header.n)


def _rounds_of(header: Header, everybody: Averagers, leave: Ints, findings: Findings) -> _Rounds:
    table, died, mixing = everybody.table, everybody.died, mixing_of(header).hosts
    assert mixing is not None, "a topology of hosts"
    workers = everybody.contract.workers
    leader = np.array(mixing.first)
    leads = leader == np.arange(workers)
    of_host = table["flag"] == HOST

    def series(kind: Kind, by_hosts: bool) -> Series:
        """Return the events of a kind, whose rounds must increase by one."""
        at = np.flatnonzero(table.are(kind) & (of_host == by_hosts))
        rank, _ = rank_in_group(table["worker"][at], workers)
        text = "worker {worker} has {kind} with flag {flag} of round {clock}, expected round {due}"
        findings.on(table, at).require_equal(TURNS, table["clock"][at], rank, text)
        return Series.of(table, at, workers)

    offers, mixes = series(Kind.OFFER, False), series(Kind.MIXED, False)
    means, results = series(Kind.OFFER, True), series(Kind.MIXED, True)
    own = (leader[:, None] == np.arange(workers)) & ~leads[:, None]  # by member, its leader
    linked = np.array([(it > 0) & ~np.eye(workers, dtype=bool) for it in mixing.matrices])
    takes = [np.flatnonzero(table.are(Kind.TAKE) & (of_host == it)) for it in (False, True)]
    rounds = _Rounds(
        everybody,
        mixing,
        leader,
        leads,
        mixes,
        Level(everybody, offers, means, takes[0], own.T[None], lost=1),
        Level(everybody, means, results, takes[1], linked, lost=1),
    )
    everybody.check_rounds(leave, mixes.count, findings)
    for begun, ended in ((offers, mixes), (means, results)):
        more = begun.count - ended.count
        wrong = np.flatnonzero((more != 0) & ~(died & (more == 1)))
        findings.on(table, leave[wrong[:1]] - died[wrong[:1]]).forbid(
            TURNS, "worker {worker} ends in the middle of a round"
        )
    others = np.flatnonzero(~leads[table["worker"]] & (of_host | table.are(Kind.TAKE)))
    text = "worker {worker} has {kind} of a round of hosts, but does not lead its host"
    findings.on(table, others).forbid(TURNS, text)
    return rounds


def _check_blocks(rounds: _Rounds, adapts_first: bool, findings: Findings) -> None:
    """Check the order of events within a round."""
    table, mixes = rounds.all.table, rounds.mixes
    offers, means, results = rounds.inside.offers, rounds.between.offers, rounds.between.ends
    steps = Series.of(table, table.where(Kind.STEP), rounds.all.contract.workers)
    #: Each first kind comes after the second kind of that many rounds before, if both exist.
    order = [
        (steps, offers, 0) if not adapts_first else (offers, steps, 0),
        *((mixes, it, 0) for it in (steps, offers, results)),
        *((it, mixes, 1) for it in (offers, steps, means)),
        *((means, offers, 0), (means, results, 1), (results, means, 0), (results, steps, 0)),
    ]
    for late, early, lag in order:
        clock = table["clock"][late.at] - lag
        before = early.find(table["worker"][late.at], clock)
        text = "{kind} of worker {worker} in round {clock} comes before {other} of round {its}"
        findings.on(table, late.at).require(
            TURNS,
            late.at > before,
            text,
            other=lambda i, before=before: table.value("kind", int(before[i])),
            its=clock,
            because=[before],
        )
    if not adapts_first:
        # Offers travel while the gradient is computed; in the first round, if no member is awaited.
        worker, clock = table["worker"][means.at], table["clock"][means.at]
        step = steps.find(worker, clock)
        waits = np.bincount(rounds.leader)[worker] > 1
        holds = (step < 0) | ((means.at > step) == ((clock == 0) & waits))
        text = "worker {worker} offers the mean of its host for round {clock} on the wrong side of "
        findings.on(table, means.at).require(TURNS, holds, text + "its step", because=[step])
    # Offers of members are taken right before a mean, and those of hosts right after it.
    for level, of_host in ((rounds.inside, False), (rounds.between, True)):
        worker, _, clock = level.taken
        end = level.ends.find(worker, clock)
        begin = means.find(worker, clock)
        if not of_host:
            begin = np.maximum(results.find(worker, clock - 1), offers.find(worker, clock))
        # A round that a death left half recorded has no end.
        holds = (level.takes > begin) & (level.takes < np.where(end < 0, len(table), end))
        holds &= ((begin >= 0) | (not of_host)) & ((end >= 0) | rounds.all.died[worker])
        text = "worker {worker} takes what worker {neighbour} has for round {clock} out of its turn"
        findings.on(table, level.takes).require(TURNS, holds, text)


def _check_means(rounds: _Rounds, findings: Findings) -> None:
    """Check the means of hosts: all workers that take part have the same weight."""
    table, level = rounds.all.table, rounds.inside
    means = level.ends.at
    if not len(means):
        return
    own = level.offers.find(table["worker"][means], table["clock"][means])
    number = level.count + (own >= 0)
    text = "worker {worker} records {weight:g} workers in round {clock}, expected {due}"
    findings.on(table, means).require_equal(
        NEIGHBOURS, table.real(Mixed.weight)[means], number, text
    )
    taker, _, clock = level.taken
    mean = level.ends.find(taker, clock)
    level.check_weights(np.where(mean >= 0, 1.0 / table.real(Mixed.weight)[mean], np.nan), findings)
    # Without an own vector, the first take is the one that is moved.
    first = np.full(len(means), -1)
    row = np.searchsorted(means, mean[mean >= 0])
    first[row[::-1]] = level.offered[mean >= 0][::-1]
    start = np.where(own >= 0, own, first)
    sure = level.sure & (start >= 0)
    level.check_sums(start, 1.0 - level.over_takes(), sure, findings)


def _check_results(rounds: _Rounds, findings: Findings) -> None:
    """Check the results of means."""
    table, level, mixing = rounds.all.table, rounds.between, rounds.mixing
    results, size = level.ends.at, table.real(Mixed.weight)
    if not len(results):
        return
    taker, source, clock = level.taken
    due = np.array(mixing.matrices)[clock % len(mixing.matrices), taker, source]
    if mixing.is_metropolis:
        own, other, turn = level.offers.find(taker, clock), level.offered, clock % len(level.linked)
        degree = level.linked.sum(axis=2)
        terms = degree[turn, taker], degree[turn, source], size[own], size[other]
        due = np.array([metropolis_weight(*it) for it in zip(*terms, strict=True)], np.float64)
        due = np.where(other >= 0, due, np.nan)
    level.check_weights(due, findings)
    start = level.offers.find(table["worker"][results], table["clock"][results])
    level.check_sums(start, 1.0 - level.over_takes(), level.sure, findings)
    text = "worker {worker} records {weight:g} workers in round {clock}, expected {due:g}"
    findings.on(table, results).require_equal(
        NEIGHBOURS, size[results], size[start], text, counts=False
    )


def _check_what_workers_have(rounds: _Rounds, findings: Findings) -> None:
    """Check that all workers of a host continue with the result of its round."""
    table, at = rounds.all.table, rounds.mixes.at
    worker, clock = table["worker"][at], table["clock"][at]
    lead = rounds.leader[worker]
    came = rounds.between.ends.find(lead, clock)
    # Its leader has died, so it has only its own vector.
    alone = (came < 0) & rounds.all.died[lead] & (lead != worker)
    text = "worker {worker} continues from round {clock}, in which its host did not mix"
    findings.on(table, at).require(NEIGHBOURS, (came >= 0) | alone, text)
    source = np.where(came >= 0, came, rounds.inside.offers.find(worker, clock))
    known = (came >= 0) | (alone & rounds.all.told[lead])
    it, its = at[known], source[known]
    text = "worker {worker} continues from round {clock} with {said}, its host has {due}"
    for name in (Vector.digests, Vector.total):
        column = table.column(name)
        same = (column[it] == column[its]) | (np.isnan(column[it]) & np.isnan(column[its]))
        findings.on(table, it).require(
            OFFERS, same, text, said=column[it], due=column[its], because=[its]
        )
    if rounds.all.contract.one_clock:
        text = "worker {worker} has its host's result of round {clock} before the host has it"
        before = table.real("time")[at[came >= 0]] >= table.real("time")[came[came >= 0]]
        findings.on(table, at[came >= 0]).require(CAUSALITY, before, text)


def _check_said(rounds: _Rounds, findings: Findings) -> None:
    """Check the number of receivers of each offer, and fields that are constant."""
    table, inside, between = rounds.all.table, rounds.inside, rounds.between
    worker, clock = table["worker"][inside.offers.at], table["clock"][inside.offers.at]
    most = (~rounds.leads[worker]).astype(np.int64)
    least = np.where(clock < rounds.sure(between.ends)[rounds.leader[worker]], most, 0)
    inside.check_receivers(least, most, findings)
    worker, clock = table["worker"][between.offers.at], table["clock"][between.offers.at]
    to = between.linked.transpose(0, 2, 1)[clock % len(between.linked), worker]
    here = clock[:, None] < rounds.sure(between.offers)
    between.check_receivers((to & here).sum(axis=1), to.sum(axis=1), findings)
    rounds.all.check_unsaid(findings)
    own = np.concatenate([inside.offers.at, rounds.mixes.at])
    rounds.all.check_plain(own, table.where(Kind.MIXED), findings)


def _check_all(rounds: _Rounds, findings: Findings) -> None:
    """Check that the sum over all who take part in a round stays, and so the mean."""
    everybody, table = rounds.all, rounds.all.table
    offers, at = rounds.inside.offers, rounds.mixes.at
    if not len(at) or not everybody.told.all():
        return
    clock = table["clock"][at]
    count, its = np.bincount(clock), offers.find(table["worker"][at], clock)
    # The vectors in an average are no larger than those of all workers together.
    size: Floats = everybody.n * table.real(Offer.rms)[its]
    most = 8.0 * np.bincount(clock, size).astype(np.float64)
    slack = (count + 4) * (most * ROUNDING + everybody.n * TINY) * MORE
    whole = np.bincount(table["clock"][offers.at])[: len(count)] == count
    whole &= (count == everybody.contract.workers) | rounds.mixing.is_metropolis
    if everybody.died.any():
        whole[offers.count[everybody.died].min() :] = False
    everybody.check_total(its, at, slack, whole, findings)


def _sent_bytes(rounds: _Rounds, n: int) -> tuple[int, int]:
    """Return the least and the most bytes that all workers sent, which are equal."""
    table, between = rounds.all.table, rounds.between
    offers = (rounds.inside.offers, between.offers)
    sent = sum(int(table[Offer.receivers][it.at].sum()) for it in offers)
    members = ~rounds.leads
    sent += int(rounds.mixes.count[members].sum())  # each gets the result of a round
    linked = between.linked.any(axis=0)
    leaves = int((linked | linked.T).sum()) + int(members.sum())
    nbytes = sent * (MESSAGE + ITEMSIZE * n) + leaves * MESSAGE
    return nbytes, nbytes
