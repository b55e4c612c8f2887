"""Averages among neighbours in rounds: whose turn it is, the weights, and that nothing is lost.

See ``averages``. The weight of a departed neighbour goes to the worker that gave it: rows of the
matrix still add up to 1 without it, or columns under push-sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psrt.config.names import ADAPT_THEN_COMBINE, GRADIENT_TRACKING
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
    CONSERVED,
    NEIGHBOURS,
    OFFERS,
    TRACKED_SUM,
    TURNS,
    Findings,
)
from psrt.history.check.norms import MORE, ROUNDING, TINY, are_near, may_be_norms
from psrt.history.check.table import Bools, Floats, Ints, Table, previous, rank_in_group
from psrt.history.events import TRACKED, Kind, parts
from psrt.history.header import Header
from psrt.history.kinds import Mixed, Offer, Track, Vector
from psrt.topology import Topology


@dataclass(frozen=True, slots=True)
class _Run:
    """What a run with rounds promises, in terms of this check."""

    contract: Contract
    mixing: Topology
    #: Whether a step comes before its average, gradients are tracked, and a codec is in effect.
    adapts_first: bool
    tracks: bool
    coded: bool
    #: The share of the known differences to neighbours that is taken.
    rate: float

    @property
    def vectors(self) -> int:
        """The number of vectors that each worker averages."""
        return 1 + self.tracks

    @property
    def turns(self) -> list[Kind]:
        """What a worker does in a round, in order, except for its takes."""
        offers, mixes = [Kind.OFFER] * self.vectors, [Kind.MIXED] * self.vectors
        tracks, owns = [Kind.TRACK] * self.tracks, [Kind.OWN] * self.coded
        if self.adapts_first:
            return [Kind.STEP, *tracks, *offers, *owns, *mixes]
        return [*offers, Kind.STEP, *owns, *mixes, *tracks]

    def weights(self, clock: Ints, i: Ints, j: Ints) -> Floats:
        """Return M_ij of each round."""
        found = np.zeros(len(clock))
        for turn, matrix in enumerate(self.mixing.matrices):
            mine = clock % self.mixing.period == turn
            found[mine] = matrix[i[mine], j[mine]]
        return found


@dataclass(frozen=True, slots=True)
class _Rounds:
    """The positions of the workers' events, by what they do in a round."""

    run: _Run
    all: Averagers
    #: By vector, the offers and the results.
    levels: list[Level]
    #: With a codec, the vectors that were averaged into.
    owns: Series

    @property
    def offered(self) -> Ints:
        """By worker, the rounds for which it has an offer."""
        return self.levels[0].offers.count

    @property
    def certain(self) -> Ints:
        """By worker, the rounds below which others certainly wait for it."""
        return np.where(self.all.died, 0, self.offered)


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
        The least and the most bytes that all of them sent; valid if nobody has died, and without a
        codec.
    """
    run = _Run(
        contract=contract,
        mixing=mixing_of(header),
        adapts_first=header.mode.order == ADAPT_THEN_COMBINE,
        tracks=header.mode.variant == GRADIENT_TRACKING,
        coded=contract.framed,
        rate=(header.mode.consensus_rate or 1.0) if contract.framed else 1.0,
    )
    everybody = Averagers.of(contract, header, table, leave, findings)
    rounds = _rounds_of(run, everybody, leave, findings)
    if rounds is None or not findings.none:
        return 0, 0
    everybody.check_rounds(leave, rounds.levels[0].ends.count, findings)
    check_order(table, table.where(Kind.TAKE), findings, vectors=run.vectors)
    _check_whole(rounds, findings)
    for level in rounds.levels:
        level.check_taken(findings)
        taker, source, clock = level.taken
        level.check_weights(run.weights(clock, taker, source), findings)
        level.check_missing(findings)
    if not findings.none:
        return 0, 0
    everybody.check_unsaid(findings)
    _check_receivers(rounds, findings)
    if not run.coded:
        _check_steady(rounds, findings)
    check_waiting(contract, table, findings, exact=not run.coded)
    for level in rounds.levels:
        _check_sums(rounds, level, findings)
    if run.tracks:
        _check_tracked(rounds, findings)
    return _sent_bytes(rounds, header.n)


def _rounds_of(run: _Run, everybody: Averagers, leave: Ints, findings: Findings) -> _Rounds | None:
    """Return the rounds of all workers; None if events are not in the order of the mode."""
    table, turns, workers = everybody.table, run.turns, run.contract.workers
    at = table.where(*set(turns))
    owner, kind = table["worker"][at], table["kind"][at]
    rank, _ = rank_in_group(owner, workers)
    turn, clock = rank % len(turns), rank // len(turns)
    due = np.array(turns)[turn]
    # If a kind comes twice in a round, the second one is of tracked gradients.
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
    left = np.flatnonzero(~everybody.died)
    amid = count[left] % len(turns) != 0
    findings.on(table, leave[left]).require(
        TURNS, ~amid, "worker {worker} leaves in the middle of a round"
    )
    if not findings.none:
        return None
    # A step takes its neighbours' offers right before the average that they go into.
    takes = table.where(Kind.TAKE)
    before = np.searchsorted(at, takes) - 1
    inside = before >= 0
    inside &= (table["worker"][takes] == owner[before]) & (table["clock"][takes] == clock[before])
    inside &= np.isin(turn[before], [turns.index(Kind.MIXED) - 1]) if len(at) else inside
    text = "worker {worker} takes what worker {neighbour} has for round {clock} out of its turn"
    findings.on(table, takes).require(TURNS, inside, text, because=[at[before]])

    def found(which: Kind, vector: int) -> Series:
        """Return the rounds of one vector; those that a death left half recorded are unknown."""
        last = np.flatnonzero((due == which) & (flag == (TRACKED if run.tracks else 0)))
        whole = np.bincount(owner[last], minlength=workers) if which != Kind.OWN else count
        chosen = (due == which) & (flag == vector) & (clock < whole[owner])
        return Series.of(table, at[chosen], workers)

    linked = np.array([_linked(matrix) for matrix in run.mixing.matrices])
    levels = [
        Level(
            everybody,
            found(Kind.OFFER, vector),
            found(Kind.MIXED, vector),
            takes[table["flag"][takes] == vector],
            linked,
            lost=2,
        )
        for vector in range(run.vectors)
    ]
    return _Rounds(run, everybody, levels, found(Kind.OWN, 0))


def _check_whole(rounds: _Rounds, findings: Findings) -> None:
    """Check that all vectors of each neighbour are taken."""
    table = rounds.all.table
    takes = table.where(Kind.TAKE)
    findings.on(table, takes).require(
        NEIGHBOURS,
        table["flag"][takes] < rounds.run.vectors,
        "worker {worker} takes vector {flag} of worker {neighbour}, which does not exist",
        counts=False,
    )
    first, *others = (np.stack(level.taken) for level in rounds.levels)
    if not all(np.array_equal(first, it) for it in others):
        findings.on(table, takes[:1]).forbid(NEIGHBOURS, "worker {worker} takes a part of a vector")


def _check_steady(rounds: _Rounds, findings: Findings) -> None:
    """Check that a step without samples does not change the result of an average."""
    table, run = rounds.all.table, rounds.run
    digest, _ = parts(table[Vector.digests])
    steps = Series.of(table, table.where(Kind.STEP), run.contract.workers)
    for level in rounds.levels:
        at = level.offers.at[table["clock"][level.offers.at] > 0]
        worker, clock = table["worker"][at], table["clock"][at]
        step = steps.find(worker, clock - (not run.adapts_first))
        before = level.ends.find(worker, clock - 1)
        text = (
            "worker {worker} offers digest {said:08x} for round {clock}, but the last average had "
            "{due:08x} and no gradient came after it"
        )
        findings.on(table, at).require(
            OFFERS,
            (table["samples"][step] > 0) | (digest[at] == digest[before]),
            text,
            said=digest[at],
            due=digest[before],
            because=[before, step],
        )


def _check_receivers(rounds: _Rounds, findings: Findings) -> None:
    """Check that a worker sends to the neighbours of a round that have not left."""
    table = rounds.all.table
    for level in rounds.levels:
        offers = level.offers.at
        worker, clock = table["worker"][offers], table["clock"][offers]
        least, most = np.zeros(len(offers), np.int64), np.zeros(len(offers), np.int64)
        for turn, links in enumerate(level.linked):
            mine = np.flatnonzero(clock % len(level.linked) == turn)
            to = links.T
            least[mine] = most[mine] = to.sum(axis=1)[worker[mine]]
            some = mine[clock[mine] >= rounds.certain.min()]  # some worker has left by then
            here = clock[some][:, None] < rounds.certain
            least[some] = (to[worker[some]] & here).sum(axis=1)
        if rounds.run.mixing.push_sum and not rounds.all.died.any():
            most = least  # a sender knows who has left before it sends
        level.check_receivers(least, most, findings)


def _check_sums(rounds: _Rounds, level: Level, findings: Findings) -> None:
    """Check each average of a vector, and that none of them moves the sum over all workers."""
    run, everybody, table = rounds.run, rounds.all, rounds.all.table
    ends = level.ends.at
    worker, clock = table["worker"][ends], table["clock"][ends]
    offers = level.offers.find(worker, clock)
    own = rounds.owns.find(worker, clock) if run.coded else offers
    for at in (level.offers.at, own):
        everybody.check_norms(at, findings)
    share, sure = _own_share(rounds, level, offers)
    slack = level.check_sums(
        own, share, sure, findings, rate=run.rate, less=offers if run.coded else None
    )
    if run.mixing.push_sum:
        _check_weights(rounds, level, offers, share, sure, findings)
    else:
        everybody.check_plain(np.concatenate([level.offers.at, ends]), ends, findings)
    if not findings.none or not len(ends) or not everybody.told.all():
        return
    count = np.bincount(clock)
    whole = np.bincount(table["clock"][level.offers.at])[: len(count)] == count
    whole &= np.bincount(clock[~sure], minlength=len(count)) == 0
    stays = [run.mixing.push_sum or bool((it == it.T).all()) for it in run.mixing.matrices]
    whole &= (count == run.contract.workers) | np.array(stays)[np.arange(len(count)) % len(stays)]
    if everybody.died.any():  # vectors that were sent to a dead worker are lost with it
        whole[max(0, rounds.offered[everybody.died].min() - 2) :] = False
    everybody.check_total(own, ends, np.bincount(clock, slack).astype(np.float64), whole, findings)
    if run.mixing.push_sum and not everybody.died.any():
        _check_weight_of_all(rounds, level, findings)


def _own_share(rounds: _Rounds, level: Level, offers: Ints) -> tuple[Floats, Bools]:
    """Return, by average, the weight of the worker's own vector, and whether all is known.

    Args:
        rounds: all of them.
        level: the number of the vector.
        offers: (k,) by average, what its worker offered.
    """
    table, mixing, died = rounds.all.table, rounds.run.mixing, rounds.all.died
    sure = level.sure
    if rounds.run.coded:
        return np.ones(len(sure)), sure
    if not mixing.push_sum:
        return 1.0 - level.over_takes(), sure
    ends = level.ends.at
    at, rank = table["clock"][ends], table["worker"][ends]
    share = rounds.run.weights(at, rank, rank)
    for turn, matrix in enumerate(mixing.matrices):
        # The share of a departed worker stays here.
        some = (at % mixing.period == turn) & (at >= rounds.certain.min())
        mine = np.flatnonzero(some)
        worker, clock = rank[mine], at[mine][:, None]
        to = np.where(_linked(matrix).T, matrix.T, 0.0)[worker]
        gone = ~died & (clock >= rounds.offered)
        share[mine] += np.where(gone, to, 0.0).sum(axis=1)
        # Senders learn of a death at different times; the number of receivers shows who knew.
        doubt = np.where(died, to, 0.0)
        kept = ((to > 0) & ~gone).sum(axis=1) - table[Offer.receivers][offers[mine]]
        share[mine] += np.where(kept == 0, 0.0, doubt.sum(axis=1))
        sure[mine] &= (kept == 0) | (kept == (doubt > 0).sum(axis=1))
    return share, sure


def _check_weights(
    rounds: _Rounds, level: Level, offers: Ints, share: Floats, sure: Bools, findings: Findings
) -> None:
    """Check the weights of push-sum, and that parameters are divided by them.

    Args:
        rounds: all of them.
        level: the number of the vector.
        offers: (k,) by average, what its worker offered.
        share: (k,) the weight that it gave its own vector.
        sure: (k,) whether that is known.
        findings: takes what is wrong.
    """
    table, n, ends = rounds.all.table, rounds.all.n, level.ends.at
    weight, norm = table.real(Offer.weight), n * table.real(Offer.rms)
    sent = level.offers.at
    before = level.ends.find(table["worker"][sent], table["clock"][sent] - 1)
    due = np.where(table["clock"][sent] > 0, weight[before], 1.0)
    text = "worker {worker} sends weight {said:g} for round {clock}, expected {due:g}"
    findings.on(table, sent).require_equal(CONSERVED, weight[sent], due, text)
    due = share * weight[offers] + level.over_takes(weight)
    holds = np.abs(weight[ends] - due) <= (level.count + 3) * ROUNDING * due * MORE
    text = "worker {worker} ends round {clock} with weight {weight:.9g}, expected {due:.9g}"
    findings.on(table, ends).require(CONSERVED, ~sure | holds, text, due=due)
    # θ = x / w, with each number and w rounded; the recorded sum is a float32, too.
    due = table.real(Mixed.total)[ends] / weight[ends]
    size = norm[offers] * share + level.over_takes(norm)
    said = table.real(Mixed.divided)[ends]
    slack = 4 * ROUNDING * (np.abs(due) + size / weight[ends]) * MORE + n * TINY
    text = (
        "worker {worker} continues from round {clock} with parameters whose numbers add up to "
        "{said:.9g}, expected {due:.9g} by its weight of {weight:g}"
    )
    holds = ~sure | are_near(said, due, slack)
    findings.on(table, ends).require(CONSERVED, holds, text, said=said, due=due)


def _check_weight_of_all(rounds: _Rounds, level: Level, findings: Findings) -> None:
    """Check that all weights, including those at departure, add up to the number of workers."""
    table, workers, ended = rounds.all.table, rounds.run.contract.workers, level.ends.count
    if (ended == 0).any():
        return
    last = level.ends.at[level.ends.start + ended - 1]
    total = table.real(Mixed.weight)[last].sum()
    # The rounded shares that a worker sends add up to 1 except for 2⁻²⁴, in each round.
    most = workers * ROUNDING * (ended.max() + 2) * MORE
    text = f"the weights that workers end with add up to {total:.9g}, expected {workers}"
    findings.on(table, last.max(keepdims=True)).require(
        CONSERVED, np.array([abs(total - workers) <= most]), text
    )


def _check_tracked(rounds: _Rounds, findings: Findings) -> None:
    """Check that a tracked gradient changes by as much as the worker's own, and is sent next."""
    table, n, level = rounds.all.table, rounds.all.n, rounds.levels[1]
    at = table.where(Kind.TRACK)
    worker, clock = table["worker"][at], table["clock"][at]
    digest, _ = parts(table[Vector.digests])
    columns = (Track.total, Track.rms, Track.gradient_total, Track.gradient_rms)
    total, size, own, its = (table.real(name) for name in columns)
    before = np.where(clock > 0, previous(at, -1), -1)
    # It adds to the result of the last average, of this round or of the one before.
    into = level.ends.find(worker, clock - rounds.run.adapts_first)
    for sums, norms in ((total, size), (own, its)):
        holds = may_be_norms(sums[at], n * norms[at], n)
        text = "worker {worker} tracks numbers at clock {clock} whose sum does not fit their norm"
        findings.on(table, at).require(TRACKED_SUM, holds, text, counts=False)
    had, had_norm = (np.where(before >= 0, it[before], 0.0) for it in (own, its))
    due = np.where(into >= 0, total[into], 0.0) + own[at] - had
    norms = 2 * size[at] + its[at] + 2 * had_norm
    sums = np.abs(own[at]) + np.abs(had)
    slack = ROUNDING * (n * norms + sums) * MORE + n * TINY
    said = total[at]
    text = (
        "worker {worker} tracks a gradient at clock {clock} that adds up to {said:.9g}, expected "
        "{due:.9g}: its last average plus the change of its own gradient"
    )
    findings.on(table, at).require(
        TRACKED_SUM, are_near(said, due, slack), text, said=said, due=due, because=[into, before]
    )
    offers = level.offers.at
    sent = np.searchsorted(at, offers) - 1
    mine = (sent >= 0) & (table["worker"][at[sent]] == table["worker"][offers])
    offers, source = offers[mine], at[sent[mine]]
    text = "worker {worker} sends digest {said:08x} of tracked gradients, but has {due:08x}"
    findings.on(table, offers).require_equal(
        TRACKED_SUM, digest[offers], digest[source], text, because=[source]
    )


def _sent_bytes(rounds: _Rounds, n: int) -> tuple[int, int]:
    """Return the least and the most bytes that all workers sent."""
    table, level, offered = rounds.all.table, rounds.levels[0], rounds.offered
    ever = level.linked.any(axis=0)
    sent = int(table[Offer.receivers][level.offers.at].sum())
    nbytes = sent * (MESSAGE + ITEMSIZE * n * rounds.run.vectors)
    nbytes += MESSAGE * int((ever | ever.T).sum())  # each tells each neighbour that it leaves
    if not rounds.run.mixing.push_sum:
        return nbytes, nbytes
    # Receivers of a round announce that they are ready to senders not known to have left.
    most = least = 0
    period = len(level.linked)
    for turn, links in enumerate(level.linked):
        mine, others = np.nonzero(links)
        both = np.minimum(offered[mine], offered[others])
        # The number of times this turn came before each clock.
        most += int(((offered[mine] - turn + period - 1) // period).sum())
        least += int(((both - turn + period - 1) // period).sum())
    return nbytes + MESSAGE * least, nbytes + MESSAGE * most


def _linked(matrix: Floats) -> Bools:
    """Return which offers each worker takes: (W, W), row i for worker i."""
    found: Bools = (matrix > 0) & ~np.eye(len(matrix), dtype=bool)
    return found
