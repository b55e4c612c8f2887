"""Averages among neighbours: which ones in each round, by which weights, and nothing is lost.

No vector is in a history, but of each that is averaged there is a digest, a sum over its elements
with signs, and a norm. By the digests it shows that what a worker took is what its neighbour
offered for that round. And as sums are linear, that of an average is the average of the sums, by
the weights that the graph says, but for rounding, whose bound is derived in ``runtime.conserved``.

**Who has left.** A worker takes part in every round below the clock that it leaves with. The
weights of a neighbour that has left fall to those that it had them from: rows add up to 1 without
it, under push-sum columns. Of one that died, only some may have got what it offered last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from psrt.arrays import ITEMSIZE
from psrt.config.names import ADAPT_THEN_COMBINE
from psrt.history.check.contract import Contract, real_knob
from psrt.history.check.findings import (
    CAUSALITY,
    CONSERVED,
    MEMBERSHIP,
    NEIGHBOURS,
    OFFERS,
    ORDER,
    TRACKED_SUM,
    TURNS,
    Findings,
    require_duration,
)
from psrt.history.check.mixing import mixing_of
from psrt.history.check.norms import are_near, may_be_norms
from psrt.history.check.steps import check_local_steps, check_own_rates, check_silence
from psrt.history.check.table import Bools, Floats, Ints, Table, find, previous, rank_in_group
from psrt.history.events import TRACKED, Kind, parts
from psrt.history.header import Header
from psrt.topology import Topology

#: Unit roundoff of a float32, and its smallest number.
ROUNDING, TINY = 2.0**-24, 2.0**-149
#: Bytes of a message, without what goes with it.
MESSAGE = 64
#: What products of roundings, and sums in double precision, add to a bound at most, in all.
MORE = 1.001


@dataclass(frozen=True, slots=True)
class _Run:
    """What a run with rounds promises, in the terms of this check."""

    contract: Contract
    mixing: Topology
    #: Elements of a vector.
    n: int
    #: Whether a step comes before its average, gradients are tracked, and a codec is in effect.
    adapts_first: bool
    tracks: bool
    coded: bool
    #: The share of what neighbours are known to differ by that is taken.
    rate: float

    @property
    def vectors(self) -> int:
        """The number of vectors that each worker averages."""
        return 1 + self.tracks

    @property
    def turns(self) -> list[Kind]:
        """What a worker does in a round, in order, but for what it takes."""
        offers, mixes = [Kind.OFFER] * self.vectors, [Kind.MIXED] * self.vectors
        tracks, owns = [Kind.TRACK] * self.tracks, [Kind.OWN] * self.coded
        if self.adapts_first:
            return [Kind.STEP, *tracks, *offers, *owns, *mixes]
        return [*offers, Kind.STEP, *owns, *mixes, *tracks]


@dataclass(frozen=True)
class _Rounds:
    """Where events of the workers are, by what they do in a round."""

    table: Table
    #: By worker, the rounds that it has offered something for, and those that it has ended.
    offered: Ints
    ended: Ints
    #: By worker, whether it died, and whether anything is known of it.
    died: Bools
    told: Bools
    #: By vector, positions by worker and round, worker after worker: of what was offered, of what
    #: came of it, and of what that was averaged into.
    offers: list[Ints]
    mixes: list[Ints]
    owns: Ints

    @cached_property
    def first(self) -> tuple[Ints, Ints]:
        """By worker, where its rounds begin in ``offers`` and in ``mixes``."""
        return (
            np.cumsum(self.offered) - self.offered,
            np.cumsum(self.ended) - self.ended,
        )

    @property
    def certain(self) -> Ints:
        """By worker, the rounds below which others surely count on it."""
        return np.where(self.died, 0, self.offered)

    def offer_of(self, worker: Ints, clock: Ints, vector: int) -> Ints:
        """Return the position of what each worker offered for a round; −1 where it is not known."""
        at = self.offers[vector]
        if not len(at):
            return np.full(len(worker), -1)
        known = clock < self.offered[worker]
        return np.where(known, at[np.where(known, self.first[0][worker] + clock, 0)], -1)


def check_gossip(
    contract: Contract, header: Header, table: Table, leave: Ints, findings: Findings
) -> tuple[int, int]:
    """Check the workers of a mode that averages among neighbours in rounds.

    Args:
        contract: of the run.
        header: of its history.
        table: events of all workers, worker after worker, without frames.
        leave: by worker, position of its LEAVE, the number of events where it died.
        findings: takes what is wrong.

    Returns:
        The bytes that all of them sent, at least and at most; right if nobody has died, and
        without a codec.
    """
    run = _Run(
        contract=contract,
        mixing=mixing_of(header),
        n=header.n if header.numerics else 0,
        adapts_first=header.knob("order") == ADAPT_THEN_COMBINE,
        tracks=bool(header.knob("gradient_tracking")),
        coded=contract.framed,
        rate=real_knob(header, "consensus_rate", 1.0) if contract.framed else 1.0,
    )
    check_silence(table, leave, np.zeros(len(table), bool), findings)
    check_local_steps(contract, table, leave, findings)
    check_own_rates(contract, header, table, findings)
    rounds = _rounds_of(run, table, leave, findings)
    if rounds is None or not findings.none:
        return 0, 0
    _check_clock_at_the_end(rounds, leave, findings)
    taken = _check_neighbours(run, rounds, findings)
    if not findings.none:
        return 0, 0
    _check_offers(run, rounds, taken, findings)
    _check_receivers(run, rounds, findings)
    if not run.coded:
        _check_steady(run, rounds, findings)
    check_waiting(contract, table, findings, exact=not run.coded)
    for vector in range(run.vectors):
        _Sums(run, rounds, taken, vector).check(findings)
    if run.tracks:
        _check_tracked(run, rounds, findings)
    return _sent_bytes(run, rounds, header.n)


def _rounds_of(run: _Run, table: Table, leave: Ints, findings: Findings) -> _Rounds | None:
    """Return the rounds of all workers; None where events are not in the order of the mode."""
    turns, workers = run.turns, run.contract.workers
    at = table.where(*set(turns))
    owner, kind = table["worker"][at], table["kind"][at]
    rank, _ = rank_in_group(owner, workers)
    turn, clock = rank % len(turns), rank // len(turns)
    due = np.array(turns)[turn]
    # Of a kind that comes twice, the second one is of tracked gradients.
    again = (turn > 0) & (np.array([-1, *turns[:-1]])[turn] == due)
    flag = np.where(again, TRACKED, 0)
    text = (
        "worker {worker} has {kind} of clock {clock} and vector {flag}, expected {due} of clock "
        "{its} and vector {vector}"
    )
    findings.on(table, at).require(
        TURNS,
        (kind == due) & (table["clock"][at] == clock) & (table["flag"][at] == flag),
        text,
        due=lambda i: Kind(int(due[i])).name,
        its=clock,
        vector=flag,
        because=[np.where(rank > 0, previous(at, -1), -1)],
    )
    count = np.bincount(owner, minlength=workers)
    died = leave == len(table)
    left = np.flatnonzero(~died)
    findings.on(table, leave[left]).require(
        TURNS,
        count[left] % len(turns) == 0,
        "worker {worker} leaves amid a round",
    )
    if not findings.none:
        return None
    # A step takes what came right before the average that it goes into.
    takes = table.where(Kind.TAKE)
    before = np.searchsorted(at, takes) - 1
    inside = before >= 0
    inside &= (table["worker"][takes] == owner[before]) & (table["clock"][takes] == clock[before])
    inside &= np.isin(turn[before], [turns.index(Kind.MIXED) - 1]) if len(at) else inside
    text = "worker {worker} takes what worker {shard} has for round {clock} out of its turn"
    findings.on(table, takes).require(TURNS, inside, text, because=[at[before]])

    def found(which: Kind, of: int, most: Ints | None = None) -> Ints:
        chosen = (due == which) & (flag == of)
        if most is not None:  # nothing is known of a round that death left half recorded
            chosen &= clock < most[owner]
        positions: Ints = at[chosen]
        return positions

    last = TRACKED if run.tracks else 0
    offered, ended = (
        np.bincount(table["worker"][found(kind, last)], minlength=workers)
        for kind in (Kind.OFFER, Kind.MIXED)
    )
    offers = [found(Kind.OFFER, vector, offered) for vector in range(run.vectors)]
    mixes = [found(Kind.MIXED, vector, ended) for vector in range(run.vectors)]
    owns = found(Kind.OWN, 0, ended) if run.coded else at[:0]
    told = np.bincount(table["worker"], minlength=workers) > 0
    return _Rounds(table, offered, ended, died, told, offers, mixes, owns)


def _check_clock_at_the_end(rounds: _Rounds, leave: Ints, findings: Findings) -> None:
    """Check that a worker leaves with the number of its rounds."""
    at = leave[~rounds.died]
    text = "worker {worker} leaves at clock {said}, expected {due}"
    findings.on(rounds.table, at).require_equal(
        MEMBERSHIP, rounds.table["clock"][at], rounds.ended[~rounds.died], text
    )


@dataclass(frozen=True, slots=True)
class _Taken:
    """What workers took of neighbours, in order of taker, round and neighbour: (k,) columns."""

    #: Positions, by vector.
    at: list[Ints]
    taker: Ints
    clock: Ints
    source: Ints
    #: M_ij.
    weight: Floats
    #: Positions of what was offered, by vector; −1 where it is not known.
    offer: list[Ints]


def _check_neighbours(run: _Run, rounds: _Rounds, findings: Findings) -> _Taken:
    """Check that each takes what its neighbours of a round have, once, in order, by its weight."""
    table, workers, vectors = rounds.table, run.contract.workers, run.vectors
    at = table.where(Kind.TAKE)
    taker, source, clock, flag = (table[name][at] for name in ("worker", "shard", "clock", "flag"))
    wide = int(max(rounds.ended.max(initial=0), clock.max(initial=0))) + 2

    def key(of: Ints, when: Ints, source: Ints, which: Ints | int) -> Ints:
        found: Ints = ((of * wide + when) * workers + source) * vectors + which
        return found

    keys = key(taker, clock, source, flag)
    follows = (taker == previous(taker, -1)) & (clock == previous(clock, -1))
    text = "worker {worker} takes what worker {shard} has for round {clock} after that of {before}"
    findings.on(table, at).require(
        ORDER,
        ~follows | (keys > previous(keys, -1)),
        text,
        before=lambda i: table.value("shard", int(at[i - 1])),
        because=[np.where(follows, previous(at, -1), -1)],
    )
    weight = np.zeros(len(at))
    period = len(run.mixing.matrices)
    for turn, matrix in enumerate(run.mixing.matrices):
        mine = clock % period == turn
        weight[mine] = matrix[taker[mine], source[mine]]
    # Whoever died may have sent to some before it could write that it did.
    known = np.where(rounds.told, rounds.offered + rounds.died, wide)[source]
    holds = (weight > 0) & (taker != source) & (clock < known)
    text = "worker {worker} averages with worker {shard} in round {clock}, {why}"
    findings.on(table, at).require(
        NEIGHBOURS,
        holds,
        text,
        why=lambda i: "which has left" if weight[i] > 0 else "which is no neighbour of it then",
    )
    due = weight.astype(np.float32)
    text = "worker {worker} weighs what worker {shard} has for round {clock} by {weight:g}, "
    findings.on(table, at).require(
        NEIGHBOURS,
        table.real("weight")[at] == due,
        text + "expected {due:g}",
        due=due,
    )
    _check_missing(run, rounds, keys, key, findings)
    order = np.argsort(keys, kind="stable")
    by_vector = [order[flag[order] == vector] for vector in range(vectors)]
    if len({len(it) for it in by_vector}) > 1:
        findings.on(table, at[:1]).forbid(NEIGHBOURS, "worker {worker} takes a part of a vector")
        by_vector = [it[:0] for it in by_vector]
    first = by_vector[0]
    return _Taken(
        at=[at[it] for it in by_vector],
        taker=taker[first],
        clock=clock[first],
        source=source[first],
        weight=weight[first],
        offer=[
            np.where(
                rounds.told[source[first]],
                rounds.offer_of(source[first], clock[first], vector),
                -1,
            )
            for vector in range(vectors)
        ],
    )


def _check_missing(
    run: _Run, rounds: _Rounds, keys: Ints, key: Callable[..., Ints], findings: Findings
) -> None:
    """Check that no worker ends a round without a neighbour that takes part in it."""
    table, period = rounds.table, len(run.mixing.matrices)
    taken = np.sort(keys)
    for turn, matrix in enumerate(run.mixing.matrices):
        mine, others = np.nonzero(_linked(matrix))
        clock = np.arange(turn, int(rounds.ended.max(initial=0)), period)
        here = clock < np.minimum(rounds.ended[mine], rounds.offered[others])[:, None]
        link, when = np.nonzero(here)
        of, source, clock = mine[link], others[link], clock[when]
        for vector in range(run.vectors):
            there = find(taken, key(of, clock, source, vector)) >= 0
            # What a worker sent last may be lost with it, to some of those that it was for; in two
            # rounds, then both, since it may be one ahead of who has not got the first.
            after = find(taken, key(of, clock + 1, source, vector)) >= 0
            last = rounds.offered[source] - 1
            there |= rounds.died[source] & ((clock == last) | ((clock == last - 1) & ~after))
            text = "worker {worker} ends round {clock} without worker {source}, which takes part"
            ends = rounds.mixes[vector][rounds.first[1][of] + clock]
            because = rounds.offer_of(source, clock, vector)
            findings.on(table, ends).require(
                NEIGHBOURS, there, text, source=source, because=[because], counts=False
            )


def check_causality(
    contract: Contract, table: Table, takes: Ints, offers: Ints, findings: Findings
) -> None:
    """Check that each of these takes, at (k,) positions, is not before its offer."""
    if contract.one_clock:
        sent = table.real("time")[offers] - table.real("seconds")[offers] * (1 + ROUNDING)
        text = "worker {worker} took what worker {shard} has for round {clock} before it had it"
        findings.on(table, takes).require(
            CAUSALITY, table.real("time")[takes] >= sent, text, because=[offers]
        )


def _check_offers(run: _Run, rounds: _Rounds, taken: _Taken, findings: Findings) -> None:
    """Check that what is taken is what was offered for that round, and not before."""
    table = rounds.table
    digest, number = parts(table["version"])
    for at, offer in zip(taken.at, taken.offer, strict=True):
        known = offer >= 0
        it, its = at[known], offer[known]
        text = (
            "worker {worker} took digest {said:08x} of worker {shard} for round {clock}, which "
            "offered {due:08x}"
        )
        findings.on(table, it).require_equal(OFFERS, digest[it], digest[its], text, because=[its])
        check_causality(run.contract, table, it, its, findings)
    everything = table.where(Kind.OFFER, Kind.OWN, Kind.TAKE, Kind.MIXED, Kind.TRACK)
    text = "{kind} of worker {worker} in round {clock} has number {said}, expected none"
    findings.on(table, everything).require_equal(OFFERS, number[everything], 0, text, counts=False)
    takes = table.where(Kind.TAKE)
    text = "worker {worker} took what worker {shard} has for round {clock}, stale by {tau}"
    findings.on(table, takes).require(OFFERS, table["tau"][takes] == 0, text, counts=False)


def _check_steady(run: _Run, rounds: _Rounds, findings: Findings) -> None:
    """Check that a step without samples changes nothing of what an average came to."""
    table, workers = rounds.table, run.contract.workers
    digest, _ = parts(table["version"])
    steps = table.where(Kind.STEP)
    made = np.bincount(table["worker"][steps], minlength=workers)
    first = np.cumsum(made) - made
    for offers, mixes in zip(rounds.offers, rounds.mixes, strict=True):
        at = offers[table["clock"][offers] > 0]
        worker, clock = table["worker"][at], table["clock"][at]
        step = steps[first[worker] + clock - (not run.adapts_first)]
        before = mixes[rounds.first[1][worker] + clock - 1]
        text = (
            "worker {worker} offers digest {said:08x} for round {clock}, the average before came "
            "to {due:08x} and no gradient after it"
        )
        findings.on(table, at).require(
            OFFERS,
            (table["samples"][step] > 0) | (digest[at] == digest[before]),
            text,
            said=digest[at],
            due=digest[before],
            because=[before, step],
        )


def _check_receivers(run: _Run, rounds: _Rounds, findings: Findings) -> None:
    """Check that a worker sends to the neighbours of a round that have not left."""
    table, mixing = rounds.table, run.mixing
    for offers in rounds.offers:
        worker, clock = table["worker"][offers], table["clock"][offers]
        least, most = np.zeros(len(offers), np.int64), np.zeros(len(offers), np.int64)
        for turn, matrix in enumerate(mixing.matrices):
            mine = np.flatnonzero(clock % len(mixing.matrices) == turn)
            to = _linked(matrix).T
            least[mine] = most[mine] = to.sum(axis=1)[worker[mine]]
            some = mine[clock[mine] >= rounds.certain.min()]  # somebody has left by then
            here = clock[some][:, None] < rounds.certain
            least[some] = (to[worker[some]] & here).sum(axis=1)
        if mixing.push_sum and not rounds.died.any():
            most = least  # a sender knows before it sends
        said = table["samples"][offers]
        text = "worker {worker} sent what it has for round {clock} to {said}, expected {due}"
        findings.on(table, offers).require(
            OFFERS,
            (said >= least) & (said <= most),
            text,
            said=said,
            due=most,
            counts=False,
        )


def check_waiting(
    contract: Contract, table: Table, findings: Findings, *, exact: bool = True
) -> None:
    """Check what workers say of their waiting; it may be less than the time where not ``exact``."""
    taken = table.are(Kind.TAKE)
    # The last event before each that is no take.
    last = np.maximum.accumulate(np.where(taken, 0, np.arange(len(table))))
    at = table.where(Kind.OFFER, Kind.MIXED, Kind.LEAVE)
    since = last[at - 1]
    same = (at > 0) & (table["worker"][since] == table["worker"][at])
    exact = exact and contract.exact_times
    timed = same | contract.one_clock  # else the first one's clock is not that of the run
    at, since = at[timed], np.where(same, since, -1)[timed]
    loose = np.full(len(at), not exact)
    if contract.cut:
        # At the end of an epoch the first worker waits for the parts of the others.
        ends = table.are(Kind.MIXED, Kind.TRACK)[since]
        loose |= (table["worker"][at] == 0) & (since >= 0) & ends
    for these, most in ((~loose, False), (loose, True)):
        require_duration(findings, table, at[these], since[these], most=most)


class _Sums:
    """Holds the sums of what workers have after each round against those of what they mixed."""

    def __init__(self, run: _Run, rounds: _Rounds, taken: _Taken, vector: int) -> None:
        """Count by round of a worker: rows are those of ``rounds.mixes``."""
        self._run, self._rounds, self._taken = run, rounds, taken
        table = rounds.table
        self._ends = rounds.mixes[vector]
        self._worker, self._clock = table["worker"][self._ends], table["clock"][self._ends]
        begins = rounds.first[0][self._worker] + self._clock
        self._offers = rounds.offers[vector][begins]
        self._into = rounds.owns if run.coded else self._offers
        #: By take: the row that it goes into, and where what it takes was offered.
        known = self._clock.size > 0
        self._row = rounds.first[1][taken.taker] + taken.clock if known else taken.taker
        inside = taken.clock < rounds.ended[taken.taker]  # else its round has no end
        self._row = self._row[inside]
        self._source, self._weight = taken.offer[vector][inside], taken.weight[inside]
        self._vector = vector
        self._share, self._sure = self._own_share()

    def check(self, findings: Findings) -> None:
        """Check each average, and that none of them moves the sum over all workers."""
        rounds, run = self._rounds, self._run
        table, rate = rounds.table, run.rate
        total, size = table.real("progress"), table.real("gap") * run.n
        for at in (self._offers, self._into):
            text = "{kind} of worker {worker} in round {clock} adds up to {progress:.9g}, by a norm"
            findings.on(table, at).require(
                CONSERVED,
                may_be_norms(total[at], size[at], run.n),
                text + " of {gap:g} at most {most:.9g}, and hardly so little",
                most=size[at],
                counts=False,
            )
        due = self._share * total[self._into]
        most = (1.0 + self._share) * size[self._into]
        due += rate * self._over_takes(total)
        most += rate * self._over_takes(size)
        if run.coded:
            given = self._over_takes(None)
            due -= rate * given * total[self._offers]
            most += rate * given * size[self._offers]
        count = np.bincount(self._row, minlength=len(self._ends))
        slack = (count + 3 + run.coded) * (most * ROUNDING + run.n * TINY) * MORE
        said = total[self._ends]
        holds = ~self._sure | are_near(said, due, slack)
        text = (
            "worker {worker} ends round {clock} with a vector whose numbers add up to {said:.9g}, "
            "expected {due:.9g}, {slack:.1g} off at most, of what it had and took"
        )
        findings.on(table, self._ends).require(
            CONSERVED, holds, text, because=[self._into], said=said, due=due, slack=slack
        )
        self._check_weights(findings)
        if findings.none:
            self._check_all(total, slack, findings)

    def _own_share(self) -> tuple[Floats, Bools]:
        """Return, by row, the weight of what a worker had itself, and whether that is known."""
        rounds, mixing = self._rounds, self._run.mixing
        sure = np.ones(len(self._ends), bool)
        sure[self._row[self._source < 0]] = False
        if self._run.coded:
            return np.ones(len(self._ends)), sure
        if not mixing.push_sum:
            return 1.0 - self._over_takes(None), sure
        share = np.zeros(len(self._ends))
        for turn, matrix in enumerate(mixing.matrices):
            mine = np.flatnonzero(self._clock % len(mixing.matrices) == turn)
            worker, clock = self._worker[mine], self._clock[mine]
            share[mine] = matrix.diagonal()[worker]
            some = clock >= rounds.certain.min()  # what one that left would get stays here
            worker, clock, mine = worker[some], clock[some][:, None], mine[some]
            to = np.where(_linked(matrix).T, matrix.T, 0.0)[worker]
            gone = ~rounds.died & (clock >= rounds.offered)
            share[mine] += np.where(gone, to, 0.0).sum(axis=1)
            # Who died is known to be gone sooner or later; what was sent says how many were.
            doubt = np.where(rounds.died, to, 0.0)
            sent = rounds.table["samples"][self._offers[mine]]
            kept = ((to > 0) & ~gone).sum(axis=1) - sent
            share[mine] += np.where(kept == 0, 0.0, doubt.sum(axis=1))
            sure[mine] &= (kept == 0) | (kept == (doubt > 0).sum(axis=1))
        return share, sure

    def _over_takes(self, column: Floats | None) -> Floats:
        """Return, by row, the sum over what it takes of M_ij times a column, or of M_ij alone."""
        values = self._weight
        if column is not None:
            values = values * np.where(self._source >= 0, column[self._source], 0.0)
        found: Floats = np.bincount(self._row, values, len(self._ends)).astype(np.float64)
        return found

    def _check_weights(self, findings: Findings) -> None:
        """Check the weights of push-sum, and that parameters are divided by them."""
        rounds, run = self._rounds, self._run
        table = rounds.table
        weight = table.real("weight")
        offers, ends = rounds.offers[self._vector], self._ends
        if not run.mixing.push_sum:
            text = "worker {worker} ends round {clock} with a vector that is divided by its weight"
            undivided = table.real("rate")[ends] == 0
            findings.on(table, ends).require(CONSERVED, undivided, text, counts=False)
            for at in (offers, ends):
                text = "{kind} of worker {worker} in round {clock} has weight {said:g}, expected 1"
                findings.on(table, at).require_equal(CONSERVED, weight[at], 1.0, text, counts=False)
            return
        worker, clock = table["worker"][offers], table["clock"][offers]
        before = np.where(clock > 0, rounds.first[1][worker] + clock - 1, 0)
        due = np.where(clock > 0, weight[ends[before]], 1.0) if len(ends) else 1.0
        text = "worker {worker} sends weight {said:g} for round {clock}, expected {due:g}"
        findings.on(table, offers).require_equal(CONSERVED, weight[offers], due, text)
        due = self._share * weight[self._offers] + self._over_takes(weight)
        count = np.bincount(self._row, minlength=len(ends))
        holds = np.abs(weight[ends] - due) <= (count + 3) * ROUNDING * due * MORE
        text = "worker {worker} ends round {clock} with weight {weight:.9g}, expected {due:.9g}"
        findings.on(table, ends).require(CONSERVED, ~self._sure | holds, text, due=due)
        # θ = x / w, each number and w itself rounded; what it adds up to is a float32, too.
        due = table.real("progress")[ends] / weight[ends]
        size = run.n * table.real("gap")[self._offers] * self._share + self._over_takes(
            run.n * table.real("gap")
        )
        said = table.real("rate")[ends]
        slack = 4 * ROUNDING * (np.abs(due) + size / weight[ends]) * MORE + run.n * TINY
        text = (
            "worker {worker} goes on from round {clock} with parameters whose numbers add up to "
            "{said:.9g}, expected {due:.9g} by its weight of {weight:g}"
        )
        holds = ~self._sure | are_near(said, due, slack)
        findings.on(table, ends).require(CONSERVED, holds, text, said=said, due=due)

    def _check_all(self, total: Floats, slack: Floats, findings: Findings) -> None:
        """Check that the sum over all who take part in a round stays, and so the mean."""
        rounds, run = self._rounds, self._run
        table, workers, mixing = rounds.table, run.contract.workers, run.mixing
        if not len(self._ends) or not rounds.told.all():
            return
        count = np.bincount(self._clock)
        whole = np.bincount(table["clock"][rounds.offers[self._vector]])[: len(count)] == count
        whole &= np.bincount(self._clock[~self._sure], minlength=len(count)) == 0
        period = len(mixing.matrices)
        stays = np.array([mixing.push_sum or bool((it == it.T).all()) for it in mixing.matrices])
        whole &= (count == workers) | stays[np.arange(len(count)) % period]
        if rounds.died.any():  # what is sent to one that died, or came of it, has gone with it
            whole[max(0, rounds.offered[rounds.died].min() - 2) :] = False
        before = np.bincount(self._clock, total[self._into])
        after = np.bincount(self._clock, total[self._ends])
        off = np.bincount(self._clock, slack)
        last = np.zeros(len(count), np.int64)
        np.maximum.at(last, self._clock, self._ends)
        holds = ~whole | are_near(after, before, off)
        text = (
            "round {clock} moves what all workers together have from {before:.9g} to {after:.9g}, "
            "by more than rounding, {off:.1g}"
        )
        findings.on(table, last).require(
            CONSERVED, holds, text, before=before, after=after, off=off
        )
        if mixing.push_sum and not rounds.died.any():
            self._check_weight_of_all(findings)

    def _check_weight_of_all(self, findings: Findings) -> None:
        """Check that the weights of all, those included with which some left, are their number."""
        rounds, table = self._rounds, self._rounds.table
        workers = self._run.contract.workers
        last = rounds.first[1] + rounds.ended - 1
        if (rounds.ended == 0).any():
            return
        total = table.real("weight")[self._ends[last]].sum()
        # The shares that one sends, each rounded, add up to 1 but for 2⁻²⁴, round after round.
        most = workers * ROUNDING * (rounds.ended.max() + 2) * MORE
        text = f"the weights that workers end with add up to {total:.9g}, expected {workers}"
        findings.on(table, self._ends[last].max(keepdims=True)).require(
            CONSERVED, np.array([abs(total - workers) <= most]), text
        )


def _check_tracked(run: _Run, rounds: _Rounds, findings: Findings) -> None:
    """Check that a tracked gradient grows by what the worker's own has."""
    table = rounds.table
    at = table.where(Kind.TRACK)
    worker, clock = table["worker"][at], table["clock"][at]
    digest, _ = parts(table["version"])
    total, size, own, its = (table.real(name) for name in ("progress", "gap", "rate", "weight"))
    follows = clock > 0
    before = np.where(follows, previous(at, 0), 0)
    # What it adds to: what the last average came to, of this round or of the one before.
    clock = clock - run.adapts_first
    known = (clock >= 0) & (clock < rounds.ended[worker])
    mixed = rounds.mixes[1]
    into = mixed[np.where(known, rounds.first[1][worker] + clock, 0)] if len(mixed) else at
    for sums, norms in ((total, size), (own, its)):
        holds = may_be_norms(sums[at], run.n * norms[at], run.n)
        text = "worker {worker} tracks numbers at clock {clock} whose sum does not fit their norm"
        findings.on(table, at).require(TRACKED_SUM, holds, text, counts=False)
    due = np.where(known, total[into], 0.0) + own[at] - np.where(follows, own[before], 0.0)
    norms = 2 * size[at] + its[at] + 2 * np.where(follows, its[before], 0.0)
    sums = np.abs(own[at]) + np.where(follows, np.abs(own[before]), 0.0)
    slack = ROUNDING * (run.n * norms + sums) * MORE + run.n * TINY
    said = total[at]
    text = (
        "worker {worker} tracks a gradient at clock {clock} that adds up to {said:.9g}, expected "
        "{due:.9g}: what it had of the average, and how its own has changed"
    )
    findings.on(table, at).require(
        TRACKED_SUM,
        are_near(said, due, slack),
        text,
        said=said,
        due=due,
        because=[np.where(known, into, -1), np.where(follows, before, -1)],
    )
    # And it is what is sent next.
    offers = rounds.offers[1]
    sent = np.searchsorted(at, offers) - 1
    mine = (sent >= 0) & (table["worker"][at[sent]] == table["worker"][offers])
    text = "worker {worker} sends digest {said:08x} of tracked gradients, it has {due:08x}"
    findings.on(table, offers[mine]).require_equal(
        TRACKED_SUM, digest[offers[mine]], digest[at[sent[mine]]], text, because=[at[sent[mine]]]
    )


def _sent_bytes(run: _Run, rounds: _Rounds, n: int) -> tuple[int, int]:
    """Return the bytes that all workers sent, at least and at most."""
    table, mixing = rounds.table, run.mixing
    linked = np.array([_linked(matrix) for matrix in mixing.matrices])
    ever = linked.any(axis=0)
    sent = int(table["samples"][rounds.offers[0]].sum())
    nbytes = sent * (MESSAGE + ITEMSIZE * n * run.vectors)
    nbytes += MESSAGE * int((ever | ever.T).sum())  # each says to each neighbour that it leaves
    if not mixing.push_sum:
        return nbytes, nbytes
    # Receivers of a round say that they are ready, to senders that have not left as far as known.
    most = least = 0
    for turn, links in enumerate(linked):
        mine, others = np.nonzero(links)
        before = _turns_before(rounds.offered[mine], turn, len(linked))
        both = np.minimum(rounds.offered[mine], rounds.offered[others])
        most += int(before.sum())
        least += int(_turns_before(both, turn, len(linked)).sum())
    return nbytes + MESSAGE * least, nbytes + MESSAGE * most


def _turns_before(clock: Ints, turn: int, period: int) -> Ints:
    """Return how often a turn of a period has come before each clock."""
    return (clock - turn + period - 1) // period


def _linked(matrix: Floats) -> Bools:
    """Return which workers each takes something of: (W, W), row i for worker i."""
    found: Bools = (matrix > 0) & ~np.eye(len(matrix), dtype=bool)
    return found
