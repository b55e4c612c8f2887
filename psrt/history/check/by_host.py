"""Gossip by host: what ranks of a host average, what hosts mix, and that all of a host have that.

The first worker of a host leads it. In each round it takes what its members have offered, offers
the mean to other hosts, takes theirs, and has what came of it; all of that with the flag HOST. Then
it and its members have the same. It does so until its last member leaves, though itself it may have
left the rounds before.

As in ``gossip`` digests show that what was taken is what was offered, and sums, which are linear,
that averages are of that; here of two levels, each by its own weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psrt.arrays import ITEMSIZE
from psrt.config.names import ADAPT_THEN_COMBINE
from psrt.history.check.contract import Contract
from psrt.history.check.findings import (
    CAUSALITY,
    CONSERVED,
    MEMBERSHIP,
    NEIGHBOURS,
    OFFERS,
    ORDER,
    TURNS,
    Findings,
)
from psrt.history.check.gossip import (
    MESSAGE,
    MORE,
    ROUNDING,
    TINY,
    check_causality,
    check_waiting,
)
from psrt.history.check.mixing import Hosts, hosts_of
from psrt.history.check.norms import are_near, may_be_norms
from psrt.history.check.steps import check_local_steps, check_own_rates, check_silence
from psrt.history.check.table import Bools, Floats, Ints, Table, find, previous, rank_in_group
from psrt.history.events import HOST, Kind, parts
from psrt.history.header import Header


@dataclass(frozen=True, slots=True)
class _Series:
    """Events that workers have one of in each round, worker after worker."""

    at: Ints
    #: By worker, their number, and where they begin.
    count: Ints
    start: Ints

    def of(self, worker: Ints, clock: Ints) -> Ints:
        """Return the position of the event of each worker and round; −1 where there is none."""
        known = (clock >= 0) & (clock < self.count[worker])
        if not len(self.at):
            return np.full(len(known), -1)
        found: Ints = np.where(known, self.at[np.where(known, self.start[worker] + clock, 0)], -1)
        return found


@dataclass(frozen=True, slots=True)
class _Rounds:
    """The events of all workers by what they are."""

    contract: Contract
    table: Table
    hosts: Hosts
    #: Elements of a vector.
    n: int
    #: By worker, whoever leads its host, and whether it does so itself.
    leader: Ints
    leads: Bools
    #: By worker, whether it died, and whether anything is known of it.
    died: Bools
    told: Bools
    #: What workers have, and what they go on with.
    offers: _Series
    mixes: _Series
    #: Of those that lead, the mean of a host, and what came of it.
    means: _Series
    results: _Series

    def may(self, series: _Series) -> Ints:
        """Return, by worker, the rounds that it may have been in: one that died, in one more."""
        return np.where(self.told, series.count + self.died, np.iinfo(np.int64).max)

    def sure(self, series: _Series) -> Ints:
        """Return, by worker, the rounds in which nobody may do without it."""
        return np.where(self.died, np.maximum(series.count - 1, 0), series.count)


def check_by_host(
    contract: Contract, header: Header, table: Table, leave: Ints, findings: Findings
) -> tuple[int, int]:
    """Check the workers of a mode whose hosts mix; see ``check_gossip``."""
    check_silence(table, leave, np.zeros(len(table), bool), findings)
    check_local_steps(contract, table, leave, findings)
    check_own_rates(contract, header, table, findings)
    rounds = _rounds_of(contract, header, table, leave, findings)
    if not findings.none:
        return 0, 0
    _check_blocks(rounds, header.knob("order") == ADAPT_THEN_COMBINE, findings)
    if not findings.none:
        return 0, 0
    _check_means(rounds, findings)
    _check_results(rounds, findings)
    _check_what_workers_have(rounds, findings)
    _check_said(rounds, findings)
    _check_norms(rounds, findings)
    check_waiting(contract, table, findings)
    if findings.none:
        _check_all(rounds, findings)
    return _sent_bytes(rounds, header.n)


def _series(table: Table, at: Ints, workers: int, findings: Findings) -> _Series:
    """Return events as a series; they are to count rounds one by one."""
    worker = table["worker"][at]
    rank, start = rank_in_group(worker, workers)
    text = "worker {worker} has {kind} with flag {flag} of round {clock}, expected round {due}"
    findings.on(table, at).require_equal(TURNS, table["clock"][at], rank, text)
    return _Series(at, np.bincount(worker, minlength=workers), start)


def _rounds_of(
    contract: Contract, header: Header, table: Table, leave: Ints, findings: Findings
) -> _Rounds:
    hosts, workers = hosts_of(header), contract.workers
    first = np.unique(hosts.host, return_index=True)[1]
    died = leave == len(table)
    of_host = table["flag"] == HOST
    kinds = {
        (kind, flag): _series(
            table, np.flatnonzero(table.are(kind) & (of_host == flag)), workers, findings
        )
        for kind in (Kind.OFFER, Kind.MIXED)
        for flag in (False, True)
    }
    rounds = _Rounds(
        contract=contract,
        table=table,
        hosts=hosts,
        n=header.n if header.numerics else 0,
        leader=first[hosts.host],
        leads=first[hosts.host] == np.arange(workers),
        died=died,
        told=np.bincount(table["worker"], minlength=workers) > 0,
        offers=kinds[Kind.OFFER, False],
        mixes=kinds[Kind.MIXED, False],
        means=kinds[Kind.OFFER, True],
        results=kinds[Kind.MIXED, True],
    )
    at = leave[~died]
    text = "worker {worker} leaves at clock {said}, expected {due}"
    findings.on(table, at).require_equal(
        MEMBERSHIP, table["clock"][at], rounds.mixes.count[~died], text
    )
    for begun, ended in ((rounds.offers, rounds.mixes), (rounds.means, rounds.results)):
        more = begun.count - ended.count
        wrong = np.flatnonzero((more != 0) & ~(died & (more == 1)))
        findings.on(table, leave[wrong[:1]] - died[wrong[:1]]).forbid(
            TURNS, "worker {worker} ends amid a round"
        )
    others = np.flatnonzero(~rounds.leads[table["worker"]] & (of_host | table.are(Kind.TAKE)))
    text = "worker {worker} has {kind} of a round of hosts, it does not lead its host"
    findings.on(table, others).forbid(TURNS, text)
    return rounds


def _check_blocks(rounds: _Rounds, adapts_first: bool, findings: Findings) -> None:
    """Check the order of events within a round."""
    table, offers, mixes = rounds.table, rounds.offers, rounds.mixes
    means, results = rounds.means, rounds.results
    at = table.where(Kind.STEP)
    _, start = rank_in_group(table["worker"][at], rounds.contract.workers)
    steps = _Series(at, np.bincount(table["worker"][at], minlength=len(start)), start)

    def follow(late: _Series, early: _Series, lag: int = 0) -> None:
        """Require that one comes after the other of that many rounds before, where both are."""
        worker, clock = table["worker"][late.at], table["clock"][late.at]
        before = early.of(worker, clock - lag)
        text = "{kind} of worker {worker} in round {clock} comes before {other} of round {its}"
        findings.on(table, late.at).require(
            TURNS,
            late.at > before,
            text,
            other=lambda i: table.value("kind", int(before[i])),
            its=clock - lag,
            because=[before],
        )

    for late, early, lag in (
        (steps, offers, 0) if not adapts_first else (offers, steps, 0),
        (mixes, steps, 0),
        (mixes, offers, 0),
        (offers, mixes, 1),
        (steps, mixes, 1),
        (means, offers, 0),
        (means, mixes, 1),
        (means, results, 1),
        (results, means, 0),
        (results, steps, 0),
        (mixes, results, 0),
    ):
        follow(late, early, lag)
    if not adapts_first:
        # They travel while the gradient is computed; in the first round, if nobody is waited for.
        worker, clock = table["worker"][means.at], table["clock"][means.at]
        step = steps.of(worker, clock)
        waits = np.bincount(rounds.hosts.host)[rounds.hosts.host[worker]] > 1
        holds = (step < 0) | ((means.at > step) == ((clock == 0) & waits))
        text = "worker {worker} offers the mean of its host for round {clock} on the wrong side of "
        findings.on(table, means.at).require(TURNS, holds, text + "its step", because=[step])
    _check_places_of_takes(rounds, findings)


def _check_places_of_takes(rounds: _Rounds, findings: Findings) -> None:
    """Check that members' are taken right before a mean, and those of hosts right after it."""
    table, means, results = rounds.table, rounds.means, rounds.results
    takes = table.where(Kind.TAKE)
    worker, clock = table["worker"][takes], table["clock"][takes]
    of_host = table["flag"][takes] == HOST
    begin = np.where(of_host, means.of(worker, clock), results.of(worker, clock - 1))
    end = np.where(of_host, results.of(worker, clock), means.of(worker, clock))
    begin = np.maximum(begin, np.where(of_host, -1, rounds.offers.of(worker, clock)))
    # Of a round that death left half recorded there is no end.
    holds = (takes > begin) & (takes < np.where(end < 0, len(table), end))
    holds &= (begin >= 0) | ~of_host
    holds &= (end >= 0) | rounds.died[worker]
    text = "worker {worker} takes what worker {shard} has for round {clock} out of its turn"
    findings.on(table, takes).require(TURNS, holds, text)


def _check_taken(
    rounds: _Rounds, takes: Ints, linked: Bools, series: _Series, findings: Findings
) -> Ints:
    """Check who is taken, that it is what was offered, and that nobody is taken twice.

    Args:
        rounds: all of them.
        takes: positions.
        linked: (k,) whether the one takes of the other at all.
        series: what is taken.
        findings: takes what is wrong.

    Returns:
        Where each was offered; −1 where that is not known.
    """
    table = rounds.table
    taker, clock, source = (table[name][takes] for name in ("worker", "clock", "shard"))
    holds = linked & (clock < rounds.may(series)[source])
    text = "worker {worker} averages with worker {shard} in round {clock}, {why}"
    findings.on(table, takes).require(
        NEIGHBOURS,
        holds,
        text,
        why=lambda i: "which has left" if linked[i] else "which is none that it takes of then",
    )
    again = (taker == previous(taker, -1)) & (clock == previous(clock, -1))
    text = "worker {worker} takes what worker {shard} has for round {clock} after that of {before}"
    findings.on(table, takes).require(
        ORDER,
        ~again | (source > previous(source, -1)),
        text,
        before=lambda i: table.value("shard", int(takes[i - 1])),
    )
    offered = series.of(source, clock)
    known = offered >= 0
    it, its = takes[known], offered[known]
    digest = table["version"]
    text = "worker {worker} took digest {said} of worker {shard} for round {clock}, of {due}"
    findings.on(table, it).require_equal(OFFERS, digest[it], digest[its], text, because=[its])
    check_causality(rounds.contract, table, it, its, findings)
    return offered


def _check_none_missing(
    rounds: _Rounds, ends: _Series, takes: Ints, pairs: tuple[Ints, Ints, Ints], findings: Findings
) -> None:
    """Check that each of these (taker, source, clock) is among the takes."""
    table, workers = rounds.table, rounds.contract.workers
    wide = int(max(rounds.offers.count.max(), rounds.means.count.max(), 0)) + 2
    taken = np.sort((table["worker"][takes] * wide + table["clock"][takes]) * workers
                    + table["shard"][takes])  # fmt: skip
    taker, source, clock = pairs
    there = find(np.unique(taken), (taker * wide + clock) * workers + source) >= 0
    text = "worker {worker} ends round {clock} without worker {source}, which takes part"
    findings.on(table, ends.of(taker, clock)).require(
        NEIGHBOURS, there, text, source=source, counts=False
    )


def _clocks(most: Ints) -> tuple[Ints, Ints]:
    """Return indices, each as often as ``most`` says, and counts from 0 on beside each."""
    of = np.repeat(np.arange(len(most)), most)
    return of, rank_in_group(of, len(most))[0]


def _check_means(rounds: _Rounds, findings: Findings) -> None:
    """Check the means of hosts."""
    table, means, offers, leader = rounds.table, rounds.means, rounds.offers, rounds.leader
    takes = np.flatnonzero(table.are(Kind.TAKE) & (table["flag"] != HOST))
    taker, clock, source = (table[name][takes] for name in ("worker", "clock", "shard"))
    members = (leader[source] == taker) & (source != taker)
    offered = _check_taken(rounds, takes, members, offers, findings)
    mine = np.flatnonzero(~rounds.leads)
    of, when = _clocks(np.minimum(rounds.sure(offers)[mine], means.count[leader[mine]]))
    pairs = leader[mine][of], mine[of], when
    _check_none_missing(rounds, means, takes, pairs, findings)
    if not findings.none or not len(means.at):
        return
    lead, at_clock = table["worker"][means.at], table["clock"][means.at]
    row = means.start[taker] + np.minimum(clock, means.count[taker] - 1)
    inside = clock < means.count[taker]
    row, takes, offered = row[inside], takes[inside], offered[inside]
    own = offers.of(lead, at_clock)
    number = np.bincount(row, minlength=len(means.at)) + (own >= 0)
    text = "worker {worker} says that {weight:g} workers are in round {clock}, expected {due}"
    findings.on(table, means.at).require_equal(
        NEIGHBOURS, table.real("weight")[means.at], number, text
    )
    due = (1.0 / np.maximum(number, 1)).astype(np.float32)[row]
    text = "worker {worker} weighs what worker {shard} has for round {clock} by {weight:g}, "
    findings.on(table, takes).require(
        NEIGHBOURS, table.real("weight")[takes] == due, text + "expected {due:g}", due=due
    )
    # Without one's own, the first one is moved.
    first = np.full(len(means.at), -1)
    first[row[::-1]] = offered[::-1]
    start = np.where(own >= 0, own, first)
    _require_sums(rounds, means.at, start, row, takes, offered, findings)


def _check_results(rounds: _Rounds, findings: Findings) -> None:
    """Check what comes of means."""
    table, means, results, hosts = rounds.table, rounds.means, rounds.results, rounds.hosts
    host, period = hosts.host, len(hosts.matrices)
    takes = np.flatnonzero(table.are(Kind.TAKE) & (table["flag"] == HOST))
    taker, clock, source = (table[name][takes] for name in ("worker", "clock", "shard"))
    matrix = np.array(hosts.matrices)
    linked = (matrix > 0) & ~np.eye(matrix.shape[1], dtype=bool)
    there = linked[clock % period, host[taker], host[source]] & rounds.leads[source]
    offered = _check_taken(rounds, takes, there, means, findings)
    leads = np.flatnonzero(rounds.leads)
    for turn, links in enumerate(linked):
        to, frm = np.nonzero(links)
        to, frm = leads[to], leads[frm]
        most = np.minimum(results.count[to], rounds.sure(means)[frm])
        of, when = _clocks(np.maximum((most - turn + period - 1) // period, 0))
        pairs = to[of], frm[of], when * period + turn
        _check_none_missing(rounds, results, takes, pairs, findings)
    if not findings.none or not len(results.at):
        return
    own = means.of(taker, clock)
    size = table.real("weight")
    if hosts.by_ranks:
        degree = linked.sum(axis=2)
        mine, theirs = size[own], np.where(offered >= 0, size[offered], np.nan)
        due = np.minimum(
            1.0 / (degree[clock % period, host[taker]] + 1.0),
            theirs / mine / (degree[clock % period, host[source]] + 1.0),
        )
    else:
        due = matrix[clock % period, host[taker], host[source]]
    due = due.astype(np.float32)
    text = "worker {worker} weighs what worker {shard} has for round {clock} by {weight:g}, "
    findings.on(table, takes).require(
        NEIGHBOURS,
        (size[takes] == due) | np.isnan(due),
        text + "expected {due:g}",
        due=due,
    )
    inside = clock < results.count[taker]
    row = (results.start[taker] + clock)[inside]
    lead, at_clock = table["worker"][results.at], table["clock"][results.at]
    start = means.of(lead, at_clock)
    _require_sums(rounds, results.at, start, row, takes[inside], offered[inside], findings)
    text = "worker {worker} says that {weight:g} workers are in round {clock}, expected {due:g}"
    findings.on(table, results.at).require_equal(
        NEIGHBOURS, size[results.at], size[start], text, counts=False
    )


def _check_norms(rounds: _Rounds, findings: Findings) -> None:
    """Check that the norms of what is sent fit its sums."""
    table, n = rounds.table, rounds.n
    at = table.where(Kind.OFFER)
    holds = may_be_norms(table.real("progress")[at], table.real("gap")[at] * n, n)
    text = "{kind} of worker {worker} in round {clock} adds up to {progress:.9g}, which does not "
    findings.on(table, at).require(CONSERVED, holds, text + "fit a norm of {gap:g}", counts=False)


def _slack(count: Ints, most: Floats, n: int) -> Floats:
    """Return the most that rounding makes of that many differences; see ``runtime.conserved``."""
    found: Floats = (count + 4) * (most * ROUNDING + n * TINY) * MORE
    return found


def _require_sums(
    rounds: _Rounds,
    ends: Ints,
    start: Ints,
    row: Ints,
    takes: Ints,
    offered: Ints,
    findings: Findings,
) -> None:
    """Require that sums of averages are the averages of sums.

    Args:
        rounds: all of them.
        ends: (k,) positions of the averages.
        start: (k,) what is moved; −1 where it is not known.
        row: of each take, the average that it goes into.
        takes: positions of these.
        offered: what they take; −1 where it is not known.
        findings: takes what is wrong.
    """
    table = rounds.table
    total, size = table.real("progress"), table.real("gap") * rounds.n
    weight = table.real("weight")[takes]

    def over(values: Floats | float) -> Floats:
        found: Floats = np.bincount(row, weight * values, len(ends)).astype(np.float64)
        return found

    sure = start >= 0
    sure[row[offered < 0]] = False
    due = (1.0 - over(1.0)) * total[start] + over(total[offered])
    count = np.bincount(row, minlength=len(ends))
    slack = _slack(count, 2.0 * size[start] + over(size[offered]), rounds.n)
    said = total[ends]
    text = (
        "worker {worker} has an average for round {clock} whose numbers add up to {said:.9g}, "
        "expected {due:.9g}, {slack:.1g} off at most, of what went into it"
    )
    findings.on(table, ends).require(
        CONSERVED,
        ~sure | are_near(said, due, slack),
        text,
        said=said,
        due=due,
        slack=slack,
        because=[start],
    )


def _check_what_workers_have(rounds: _Rounds, findings: Findings) -> None:
    """Check that all workers of a host go on with what came of its round."""
    table, mixes, results = rounds.table, rounds.mixes, rounds.results
    at = mixes.at
    worker, clock = table["worker"][at], table["clock"][at]
    lead = rounds.leader[worker]
    came = results.of(lead, clock)
    # Whoever led it has died, and what it has itself is all there is.
    alone = (came < 0) & rounds.died[lead] & (lead != worker)
    text = "worker {worker} goes on from round {clock}, in which its host did not mix"
    findings.on(table, at).require(NEIGHBOURS, (came >= 0) | alone, text)
    source = np.where(came >= 0, came, rounds.offers.of(worker, clock))
    known = (came >= 0) | (alone & rounds.told[lead])
    it, its = at[known], source[known]
    text = "worker {worker} goes on from round {clock} with {said}, its host has {due}"
    for name in ("version", "progress"):
        column = table.column(name)
        same = (column[it] == column[its]) | (np.isnan(column[it]) & np.isnan(column[its]))
        findings.on(table, it).require(
            OFFERS, same, text, said=column[it], due=column[its], because=[its]
        )
    if rounds.contract.one_clock:
        text = "worker {worker} has what its host has of round {clock} before that"
        before = table.real("time")[at[came >= 0]] >= table.real("time")[came[came >= 0]]
        findings.on(table, at[came >= 0]).require(CAUSALITY, before, text)


def _check_said(rounds: _Rounds, findings: Findings) -> None:
    """Check to how many each offer went, and what is the same in all of these events."""
    table, offers, means, hosts = rounds.table, rounds.offers, rounds.means, rounds.hosts
    worker, clock = table["worker"][offers.at], table["clock"][offers.at]
    lead = rounds.leader[worker]
    most = (~rounds.leads[worker]).astype(np.int64)
    least = np.where(clock < rounds.sure(rounds.results)[lead], most, 0)
    text = "worker {worker} sent what it has for round {clock} to {samples}, expected {due}"
    said = table["samples"][offers.at]
    findings.on(table, offers.at).require(
        OFFERS, (said >= least) & (said <= most), text, due=most, counts=False
    )
    matrix, period = np.array(hosts.matrices), len(hosts.matrices)
    linked = ((matrix > 0) & ~np.eye(matrix.shape[1], dtype=bool)).transpose(0, 2, 1)
    worker, clock = table["worker"][means.at], table["clock"][means.at]
    to = linked[clock % period, hosts.host[worker]]
    here = clock[:, None] < rounds.sure(means)[rounds.leads]
    said = table["samples"][means.at]
    findings.on(table, means.at).require(
        OFFERS,
        (said >= (to & here).sum(axis=1)) & (said <= to.sum(axis=1)),
        text,
        due=to.sum(axis=1),
        counts=False,
    )
    own = np.concatenate([offers.at, rounds.mixes.at])
    text = "{kind} of worker {worker} in round {clock} has weight {weight:g}, expected 1"
    findings.on(table, own).require(CONSERVED, table.real("weight")[own] == 1, text, counts=False)
    every = table.where(Kind.OFFER, Kind.TAKE, Kind.MIXED)
    _, number = parts(table["version"])
    nothing = (number[every] == 0) & (table["tau"][every] == 0) & (table.real("rate")[every] == 0)
    text = "{kind} of worker {worker} in round {clock} says what only averages of pairs have"
    findings.on(table, every).require(OFFERS, nothing, text, counts=False)


def _check_all(rounds: _Rounds, findings: Findings) -> None:
    """Check that the sum over all who take part in a round stays, and so the mean."""
    table, offers, mixes = rounds.table, rounds.offers, rounds.mixes
    if not len(mixes.at) or not rounds.told.all():
        return
    total, size = table.real("progress"), table.real("gap") * rounds.n
    clock = table["clock"][mixes.at]
    count = np.bincount(clock)
    its = offers.of(table["worker"][mixes.at], clock)
    before, after = np.bincount(clock, total[its]), np.bincount(clock, total[mixes.at])
    # All that is weighed in an average is no larger than what all have together.
    most: Floats = 8.0 * np.bincount(clock, size[its]).astype(np.float64)
    off = _slack(count, most, rounds.n)
    whole = np.bincount(table["clock"][offers.at])[: len(count)] == count
    whole &= (count == rounds.contract.workers) | rounds.hosts.by_ranks
    if rounds.died.any():
        whole[offers.count[rounds.died].min() :] = False
    last = np.zeros(len(count), np.int64)
    np.maximum.at(last, clock, mixes.at)
    text = (
        "round {clock} moves what all workers together have from {before:.9g} to {after:.9g}, by "
        "more than rounding, {off:.1g}"
    )
    holds = ~whole | are_near(after, before, off)
    findings.on(table, last).require(CONSERVED, holds, text, before=before, after=after, off=off)


def _sent_bytes(rounds: _Rounds, n: int) -> tuple[int, int]:
    """Return the bytes that all workers sent, at least and at most: the same."""
    table = rounds.table
    sent = sum(int(table["samples"][it.at].sum()) for it in (rounds.offers, rounds.means))
    members = ~rounds.leads
    sent += int(rounds.mixes.count[members].sum())  # what came of a round goes to each
    matrix = np.array(rounds.hosts.matrices)
    linked = ((matrix > 0) & ~np.eye(matrix.shape[1], dtype=bool)).any(axis=0)
    leaves = int((linked | linked.T).sum()) + int(members.sum())
    nbytes = sent * (MESSAGE + ITEMSIZE * n) + leaves * MESSAGE
    return nbytes, nbytes
