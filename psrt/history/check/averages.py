"""What averages among neighbours have in common: who takes what of whom, and that nothing is lost.

No vector is in a history, but of each that is averaged there is a digest, a sum over its elements
with signs, and a norm. By the digests it shows that what a worker took is what its neighbour
offered for that round. And as sums are linear, that of an average is the average of the sums, by
the weights that the graph says, but for rounding, whose bound is derived in ``runtime.conserved``.

**Who has left.** A worker takes part in every round below the clock that it leaves with. Of one
that died, only some may have got what it offered last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from psrt.config.names import BY_HOST, PUSH_SUM
from psrt.core.errors import ConfigError
from psrt.history.check.contract import Contract
from psrt.history.check.findings import (
    CAUSALITY,
    CONSERVED,
    MEMBERSHIP,
    NEIGHBOURS,
    OFFERS,
    ORDER,
    Findings,
    require_duration,
)
from psrt.history.check.norms import MORE, ROUNDING, TINY, are_near, may_be_norms
from psrt.history.check.steps import check_local_steps, check_own_rates, check_silence
from psrt.history.check.table import Bools, Floats, Ints, Table, find, previous
from psrt.history.events import Kind, parts
from psrt.history.header import Header
from psrt.history.kinds import Mixed, Offer, Take, Vector
from psrt.topology import Topology, topology_of

#: Bytes of a message, without what goes with it.
MESSAGE = 64


def mixing_of(header: Header) -> Topology:
    """Return how the workers of a run mix, by its topology's row.

    Of a graph without a name, one that was drawn or a user's own, the header has the edges.

    Raises:
        ConfigError: if the header cannot be that of a run of psrt.
    """
    hosts: list[int] = []
    if header.mode.variant == BY_HOST:
        if not header.hosts or max(header.workers) >= len(header.hosts):
            raise ConfigError("the history's header does not say which hosts its workers are on")
        places = [header.hosts[rank] for rank in header.workers]
        order = {place: number for number, place in enumerate(dict.fromkeys(places))}
        hosts = [order[place] for place in places]
    return topology_of(
        "the header's edges" if header.edges else str(header.mode.topology),
        len(header.workers),
        push_sum=header.mode.variant == PUSH_SUM,
        hosts=hosts,
        edges=header.edges,
    )


@dataclass(frozen=True, slots=True)
class Averagers:
    """The workers of a run whose workers average, and what is known of each."""

    contract: Contract
    table: Table
    #: Elements of a vector; 0 where nothing was computed.
    n: int
    #: By worker, whether it died, and whether anything is known of it.
    died: Bools
    told: Bools

    @classmethod
    def of(
        cls, contract: Contract, header: Header, table: Table, leave: Ints, findings: Findings
    ) -> Averagers:
        """Check what each of them does by itself, its steps; return them."""
        check_silence(table, leave, np.zeros(len(table), bool), findings)
        check_local_steps(contract, table, leave, findings)
        check_own_rates(contract, header, table, findings)
        told = np.bincount(table["worker"], minlength=contract.workers) > 0
        n = header.n if header.numerics else 0
        return cls(contract, table, n, leave == len(table), told)

    def check_rounds(self, leave: Ints, ended: Ints, findings: Findings) -> None:
        """Check that a worker leaves with the number of its rounds."""
        at = leave[~self.died]
        text = "worker {worker} leaves at clock {said}, expected {due}"
        findings.on(self.table, at).require_equal(
            MEMBERSHIP, self.table["clock"][at], ended[~self.died], text
        )

    def check_norms(self, at: Ints, findings: Findings) -> None:
        """Check that the norms of some vectors, by which rounding is judged, fit their sums."""
        most = self.table.real(Offer.rms)[at] * self.n
        holds = may_be_norms(self.table.real(Vector.total)[at], most, self.n)
        text = "{kind} of worker {worker} at clock {clock} adds up to {total:.9g}, by a norm of "
        text += "{rms:g} at most {most:.9g}, and hardly so little"
        findings.on(self.table, at).require(CONSERVED, holds, text, most=most, counts=False)

    def check_causality(self, takes: Ints, offers: Ints, findings: Findings) -> None:
        """Check that each of these takes, at (k,) positions, is not before its offer."""
        table = self.table
        if self.contract.one_clock:
            sent = table.real("time")[offers] - table.real("seconds")[offers] * (1 + ROUNDING)
            text = "worker {worker} took what worker {neighbour} has for round {clock} before it "
            text += "had it"
            findings.on(table, takes).require(
                CAUSALITY, table.real("time")[takes] >= sent, text, because=[offers]
            )

    def check_unsaid(self, findings: Findings) -> None:
        """Check that events of rounds have no number of an offer, and no staleness."""
        table = self.table
        at = table.where(Kind.OFFER, Kind.OWN, Kind.TAKE, Kind.MIXED, Kind.TRACK)
        nothing = (parts(table[Vector.digests])[1][at] == 0) & (table["tau"][at] == 0)
        text = "{kind} of worker {worker} in round {clock} says what only averages of pairs have"
        findings.on(table, at).require(OFFERS, nothing, text, counts=False)

    def check_plain(self, vectors: Ints, results: Ints, findings: Findings) -> None:
        """Check that these vectors have no weight of their own, and that no result is divided."""
        table = self.table
        text = "{kind} of worker {worker} at clock {clock} has weight {weight:g}, expected 1"
        plain = table.real(Offer.weight)[vectors] == 1
        findings.on(table, vectors).require(CONSERVED, plain, text, counts=False)
        text = "worker {worker} ends clock {clock} with a vector that is divided by its weight"
        whole = table.real(Mixed.divided)[results] == 0
        findings.on(table, results).require(CONSERVED, whole, text, counts=False)

    def check_total(
        self, before: Ints, ends: Ints, slack: Floats, whole: Bools, findings: Findings
    ) -> None:
        """Check that the sum over all who take part in a round stays, and so the mean.

        Args:
            before: (k,) positions of what each of them has.
            ends: (k,) of what it goes on with.
            slack: by round, the most that rounding may make of it.
            whole: by round, whether all is known of it.
            findings: takes what is wrong.
        """
        table, clock = self.table, self.table["clock"][ends]
        total = table.real(Vector.total)
        had, has = np.bincount(clock, total[before]), np.bincount(clock, total[ends])
        last = np.zeros(len(whole), np.int64)
        np.maximum.at(last, clock, ends)
        text = (
            "round {clock} moves what all workers together have from {had:.9g} to {has:.9g}, by "
            "more than rounding, {slack:.1g}"
        )
        findings.on(table, last).require(
            CONSERVED, ~whole | are_near(has, had, slack), text, had=had, has=has, slack=slack
        )


@dataclass(frozen=True, slots=True)
class Series:
    """Events that workers have one of in each round, worker after worker."""

    at: Ints
    #: By worker, their number, and where they begin.
    count: Ints
    start: Ints

    @classmethod
    def of(cls, table: Table, at: Ints, workers: int) -> Series:
        """Return those at these positions."""
        count = np.bincount(table["worker"][at], minlength=workers)
        return cls(at, count, np.cumsum(count) - count)

    def find(self, worker: Ints, clock: Ints) -> Ints:
        """Return the position of the event of each worker and round; −1 where there is none."""
        known = (clock >= 0) & (clock < self.count[worker])
        if not len(self.at):
            return np.full(len(known), -1)
        found: Ints = np.where(known, self.at[np.where(known, self.start[worker] + clock, 0)], -1)
        return found


@dataclass(frozen=True)
class Level:
    """What workers offer in each round, and what comes of it at each that takes some of it."""

    all: Averagers
    offers: Series
    ends: Series
    #: Positions of what is taken.
    takes: Ints
    #: By round of the period: (W, W) whether one takes of the other.
    linked: Bools
    #: Offers of one that died that may be lost to some of those that they were for, at most.
    lost: int

    @cached_property
    def taken(self) -> tuple[Ints, Ints, Ints]:
        """By take, who takes, of whom, and in which round."""
        worker, source, clock = (self.all.table[it] for it in ("worker", Take.neighbour, "clock"))
        return worker[self.takes], source[self.takes], clock[self.takes]

    @cached_property
    def offered(self) -> Ints:
        """By take, where that was offered; −1 where it is not known."""
        _, source, clock = self.taken
        return self.offers.find(source, clock)

    @cached_property
    def _known(self) -> tuple[Ints, Ints, Ints]:
        """The takes of rounds that have an end, its row in ``ends``, and where each was offered."""
        taker, _, clock = self.taken
        inside = clock < self.ends.count[taker]
        row = (self.ends.start[taker] + clock)[inside]
        return self.takes[inside], row, self.offered[inside]

    @property
    def count(self) -> Ints:
        """By average, the number of what it takes."""
        return np.bincount(self._known[1], minlength=len(self.ends.at))

    def over_takes(self, column: Floats | None = None) -> Floats:
        """Return, by average, the sum of its weights, each times a column of what it takes."""
        takes, row, source = self._known
        values = self.all.table.real(Take.factor)[takes]
        if column is not None:
            values = values * np.where(source >= 0, column[source], 0.0)
        found: Floats = np.bincount(row, values, len(self.ends.at)).astype(np.float64)
        return found

    @property
    def sure(self) -> Bools:
        """By average, whether all that it takes is known."""
        _, row, source = self._known
        sure = np.ones(len(self.ends.at), bool)
        sure[row[source < 0]] = False
        return sure

    def check_taken(self, findings: Findings) -> None:
        """Check that each takes of neighbours of a round what they had for it, and not before."""
        table, everybody = self.all.table, self.all
        taker, source, clock = self.taken
        linked = self.linked[clock % len(self.linked), taker, source]
        # Whoever died may have sent to some before it could write that it did.
        may = np.where(everybody.told, self.offers.count + everybody.died, np.iinfo(np.int64).max)[
            source
        ]
        text = "worker {worker} averages with worker {neighbour} in round {clock}, {why}"
        findings.on(table, self.takes).require(
            NEIGHBOURS,
            linked & (clock < may),
            text,
            why=lambda i: "which has left" if linked[i] else "which is no neighbour of it then",
        )
        known = self.offered >= 0
        at, its = self.takes[known], self.offered[known]
        digest, _ = parts(table[Vector.digests])
        text = (
            "worker {worker} took digest {said:08x} of worker {neighbour} for round {clock}, which "
            "offered {due:08x}"
        )
        findings.on(table, at).require_equal(OFFERS, digest[at], digest[its], text, because=[its])
        everybody.check_causality(at, its, findings)

    def check_missing(self, findings: Findings) -> None:
        """Check that no worker ends a round without a neighbour that takes part in it."""
        workers, wide = len(self.offers.count), int(self.offers.count.max(initial=0)) + 2
        taker, source, clock = self.taken
        taken = np.unique((taker * wide + np.minimum(clock, wide - 1)) * workers + source)
        period = len(self.linked)
        for turn, links in enumerate(self.linked):
            mine, others = np.nonzero(links)
            most = np.minimum(self.ends.count[mine], self.offers.count[others])
            rounds = np.arange(turn, int(most.max(initial=0)), period)
            link, when = np.nonzero(rounds < most[:, None])
            of, other, at = mine[link], others[link], rounds[when]
            there, after = (
                find(taken, (of * wide + it) * workers + other) >= 0 for it in (at, at + 1)
            )
            # What a worker sent last may be lost with it, to some of those that it was for; in two
            # rounds, then both, since it may be one ahead of who has not got the first.
            last = self.offers.count[other] - 1
            lost = (at == last) | ((at == last - 1) & ~after & (self.lost > 1))
            text = "worker {worker} ends round {clock} without worker {other}, which takes part"
            findings.on(self.all.table, self.ends.find(of, at)).require(
                NEIGHBOURS,
                there | (self.all.died[other] & lost),
                text,
                other=other,
                because=[self.offers.find(other, at)],
                counts=False,
            )

    def check_weights(self, due: Floats, findings: Findings) -> None:
        """Check by which factor each is taken; nan where it is not known."""
        factor = due.astype(np.float32)
        text = (
            "worker {worker} weighs what worker {neighbour} has for round {clock} by {factor:g}, "
        )
        findings.on(self.all.table, self.takes).require(
            NEIGHBOURS,
            (self.all.table.real(Take.factor)[self.takes] == factor) | np.isnan(factor),
            text + "expected {due:g}",
            due=factor,
        )

    def check_receivers(self, least: Ints, most: Ints, findings: Findings) -> None:
        """Check to how many each offer went."""
        said = self.all.table[Offer.receivers][self.offers.at]
        text = "worker {worker} sent what it has for round {clock} to {said}, expected {due}"
        findings.on(self.all.table, self.offers.at).require(
            OFFERS, (said >= least) & (said <= most), text, said=said, due=most, counts=False
        )

    def check_sums(
        self,
        own: Ints,
        share: Floats,
        sure: Bools,
        findings: Findings,
        *,
        rate: float = 1.0,
        less: Ints | None = None,
    ) -> Floats:
        """Check that the sums of averages are the averages of sums.

        Args:
            own: (k,) by average, the position of what is averaged into; −1 where it is not known.
            share: (k,) the weight of that.
            sure: (k,) whether these, and all that is taken, are known.
            findings: takes what is wrong.
            rate: the share of each difference that is taken.
            less: (k,) positions of what differences are from, where that is not ``own``.

        Returns:
            (k,) the most that rounding may make of each.
        """
        table, n, ends = self.all.table, self.all.n, self.ends.at
        total, size = table.real(Vector.total), table.real(Offer.rms) * n
        due = share * total[own] + rate * self.over_takes(total)
        most = 2.0 * size[own] + rate * self.over_takes(size)
        if less is not None:
            given = rate * self.over_takes()
            due -= given * total[less]
            most += given * size[less]
        slack: Floats = (self.count + 4) * (most * ROUNDING + n * TINY) * MORE
        said = total[ends]
        text = (
            "worker {worker} ends round {clock} with a vector whose numbers add up to {said:.9g}, "
            "expected {due:.9g}, {slack:.1g} off at most, of what it had and took"
        )
        findings.on(table, ends).require(
            CONSERVED,
            ~sure | are_near(said, due, slack),
            text,
            because=[own],
            said=said,
            due=due,
            slack=slack,
        )
        return slack


def check_order(table: Table, takes: Ints, findings: Findings, *, vectors: int = 1) -> None:
    """Check that in a round what neighbours have is taken in their order, each once."""
    worker, clock, source = (table[it][takes] for it in ("worker", "clock", Take.neighbour))
    rank = source * vectors + table["flag"][takes] % vectors
    again = (worker == previous(worker, -1)) & (clock == previous(clock, -1))
    text = (
        "worker {worker} takes what worker {neighbour} has for round {clock} after that of {before}"
    )
    findings.on(table, takes).require(
        ORDER,
        ~again | (rank > previous(rank, -1)),
        text,
        before=previous(source, -1),
        because=[np.where(again, previous(takes, -1), -1)],
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
