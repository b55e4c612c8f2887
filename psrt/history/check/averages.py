"""Rules that all averages among neighbours share: who takes what, and that nothing is lost.

A history has no vectors. For each averaged vector it has a digest, a sum over its elements with
random signs, and a norm. The digests show that a worker took exactly what its neighbour offered for
that round. As sums are linear, the sum of an average is the average of the sums, by the weights of
the graph, except for rounding, whose bound is derived in ``runtime.conserved``.

**Departed workers.** A worker takes part in every round below the clock at which it leaves. If it
died, only some neighbours may have got its last offer.
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

#: Bytes of a message without its payload.
MESSAGE = 64


def mixing_of(header: Header) -> Topology:
    """Return how the workers of a run mix, from its topology's row.

    For a graph without a name, random or the user's own, the header has the edges.

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
    """The workers of a run with averages, and what is known of each."""

    contract: Contract
    table: Table
    #: Elements of a vector; 0 if nothing was computed.
    n: int
    #: By worker, whether it died, and whether anything is known of it.
    died: Bools
    told: Bools

    @classmethod
    def of(
        cls, contract: Contract, header: Header, table: Table, leave: Ints, findings: Findings
    ) -> Averagers:
        """Check each worker's own steps; return them."""
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
        """Check that the norms of vectors, which bound rounding, fit their sums."""
        most = self.table.real(Offer.rms)[at] * self.n
        holds = may_be_norms(self.table.real(Vector.total)[at], most, self.n)
        text = "{kind} of worker {worker} at clock {clock} adds up to {total:.9g}, which does not "
        text += "fit a norm of {rms:g}: at most {most:.9g}, and very unlikely so little"
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
        text = "{kind} of worker {worker} in round {clock} has fields that only pairs have"
        findings.on(table, at).require(OFFERS, nothing, text, counts=False)

    def check_plain(self, vectors: Ints, results: Ints, findings: Findings) -> None:
        """Check that these vectors have weight 1, and that no result is divided by a weight."""
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
            before: (k,) positions of what each has before.
            ends: (k,) positions of what each continues with.
            slack: by round, the most that rounding may make of it.
            whole: by round, whether everything is known.
            findings: takes what is wrong.
        """
        table, clock = self.table, self.table["clock"][ends]
        total = table.real(Vector.total)
        had, has = np.bincount(clock, total[before]), np.bincount(clock, total[ends])
        last = np.zeros(len(whole), np.int64)
        np.maximum.at(last, clock, ends)
        text = (
            "round {clock} changes the sum over all workers from {had:.9g} to {has:.9g}, by more "
            "than rounding, {slack:.1g}"
        )
        findings.on(table, last).require(
            CONSERVED, ~whole | are_near(has, had, slack), text, had=had, has=has, slack=slack
        )


@dataclass(frozen=True, slots=True)
class Series:
    """Events that each worker has one of per round, grouped by worker."""

    at: Ints
    #: By worker, their number and the first one.
    count: Ints
    start: Ints

    @classmethod
    def of(cls, table: Table, at: Ints, workers: int) -> Series:
        """Return the events at these positions."""
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
    """Offers and takes of each round, and the resulting averages."""

    all: Averagers
    offers: Series
    ends: Series
    #: Positions of the takes.
    takes: Ints
    #: By round of the period: (W, W) whether one takes the other's offer.
    linked: Bools
    #: The most offers of a worker that died that may be lost to some of its neighbours.
    lost: int

    @cached_property
    def taken(self) -> tuple[Ints, Ints, Ints]:
        """By take, the taker, its neighbour, and the round."""
        worker, source, clock = (self.all.table[it] for it in ("worker", Take.neighbour, "clock"))
        return worker[self.takes], source[self.takes], clock[self.takes]

    @cached_property
    def offered(self) -> Ints:
        """By take, the position of the offer; −1 if unknown."""
        _, source, clock = self.taken
        return self.offers.find(source, clock)

    @cached_property
    def _known(self) -> tuple[Ints, Ints, Ints]:
        """The takes of complete rounds, their rows in ``ends``, and their offers' positions."""
        taker, _, clock = self.taken
        inside = clock < self.ends.count[taker]
        row = (self.ends.start[taker] + clock)[inside]
        return self.takes[inside], row, self.offered[inside]

    @property
    def count(self) -> Ints:
        """By average, the number of takes."""
        return np.bincount(self._known[1], minlength=len(self.ends.at))

    def over_takes(self, column: Floats | None = None) -> Floats:
        """Return, by average, the weighted sum of a column of its takes."""
        takes, row, source = self._known
        values = self.all.table.real(Take.factor)[takes]
        if column is not None:
            values = values * np.where(source >= 0, column[source], 0.0)
        found: Floats = np.bincount(row, values, len(self.ends.at)).astype(np.float64)
        return found

    @property
    def sure(self) -> Bools:
        """By average, whether all of its takes are known."""
        _, row, source = self._known
        sure = np.ones(len(self.ends.at), bool)
        sure[row[source < 0]] = False
        return sure

    def check_taken(self, findings: Findings) -> None:
        """Check that each take is of a neighbour in the round, and of what it has offered."""
        table, everybody = self.all.table, self.all
        taker, source, clock = self.taken
        linked = self.linked[clock % len(self.linked), taker, source]
        # A worker that died may have sent before it could record the offer.
        may = np.where(everybody.told, self.offers.count + everybody.died, np.iinfo(np.int64).max)[
            source
        ]
        text = "worker {worker} averages with worker {neighbour} in round {clock}, {why}"
        findings.on(table, self.takes).require(
            NEIGHBOURS,
            linked & (clock < may),
            text,
            why=lambda i: "which has left" if linked[i] else "which is not its neighbour then",
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
        """Check that no worker ends a round without a neighbour that takes part."""
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
            # The last offer of a worker that died may be lost to some of its neighbours; in modes
            # where it may be one round ahead, the last two.
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
        """Check the weight of each take; nan where it is unknown."""
        factor = due.astype(np.float32)
        text = (
            "worker {worker} gives what worker {neighbour} has for round {clock} the weight "
            "{factor:g}, "
        )
        findings.on(self.all.table, self.takes).require(
            NEIGHBOURS,
            (self.all.table.real(Take.factor)[self.takes] == factor) | np.isnan(factor),
            text + "expected {due:g}",
            due=factor,
        )

    def check_receivers(self, least: Ints, most: Ints, findings: Findings) -> None:
        """Check the number of neighbours that each offer went to."""
        said = self.all.table[Offer.receivers][self.offers.at]
        text = "worker {worker} sent its offer of round {clock} to {said} workers, expected {due}"
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
            own: (k,) by average, the position of the worker's own vector; −1 if unknown.
            share: (k,) the weight of the own vector.
            sure: (k,) whether these and all takes are known.
            findings: takes what is wrong.
            rate: the share of each difference that is taken.
            less: (k,) positions of the vectors that are subtracted in differences, if not ``own``.

        Returns:
            (k,) the bound of each one's rounding.
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
            "expected {due:.9g} ± {slack:.1g} from what it had and took"
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
    """Check that in a round the neighbours' offers are taken in worker order, each once."""
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
    """Check the recorded waiting; if not ``exact``, it may be less than the time passed."""
    taken = table.are(Kind.TAKE)
    # The last event before each that is not a take.
    last = np.maximum.accumulate(np.where(taken, 0, np.arange(len(table))))
    at = table.where(Kind.OFFER, Kind.MIXED, Kind.LEAVE)
    since = last[at - 1]
    same = (at > 0) & (table["worker"][since] == table["worker"][at])
    exact = exact and contract.exact_times
    timed = same | contract.one_clock  # otherwise a worker's first event is on another clock
    at, since = at[timed], np.where(same, since, -1)[timed]
    loose = np.full(len(at), not exact)
    if contract.cut:
        # At the end of an epoch the first worker also waits for the parts of the others.
        ends = table.are(Kind.MIXED, Kind.TRACK)[since]
        loose |= (table["worker"][at] == 0) & (since >= 0) & ends
    for these, most in ((~loose, False), (loose, True)):
        require_duration(findings, table, at[these], since[these], most=most)
