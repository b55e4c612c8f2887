"""Price a collective by its schedule. Pure: spans and seconds, never buffers or MPI.

A schedule is run on clocks instead of numbers. In the α-β-γ model of a network

- a message of b bytes takes α + bβ seconds, from the moment when both ends have posted it;
- a rank sends one message and receives one at the same time, to and from any two ranks, and
  messages between different pairs do not slow each other down;
- combining b bytes takes bγ; copying within a rank's memory is free.

Each rank takes its steps in order, on its own clock, and waits for its peers exactly where the
schedule requires it (`rendezvous`). The price is the latest clock, without any formula: the tests
compare the closed forms in the files of the schedules with it.

**Overlap.** An executor may post step i + 1 before it combines the bytes of step i, and combine
while the next bytes are in flight:

.. code-block:: text

    wire   | step 1 |  step 2  |  step 3  |
    rank            | fold 1 | | fold 2 | | fold 3 |

Not where step i + 1 sends or overwrites the elements that are being combined: there it waits. A
rank combines one message at a time, so step i + 1 ends when its bytes have arrived *and* fold i is
done.

**Lower bounds**, for any all-reduce of n bytes in this model:

- *Latency* ⌈lg p⌉α. After k rounds a rank can have heard from at most 2**k ranks, itself
  included, since each round adds at most what one sender knew; it must hear from all p.
- *Bandwidth* 2(p − 1)/p·nβ. An element's p − 1 foreign contributions must meet before the first
  rank knows its sum, and only the last of the messages that brought them together makes a rank
  complete; each of the p − 1 others needs one more. So 2(p − 1) messages carry each element, the
  busiest of p ranks sends at least the p-th part of them all, and one at a time.
- *Combining* (p − 1)/p·nγ. Each element takes p − 1 combinations, and the busiest of p ranks does
  the p-th part.

Each binds alone, so the largest of the three binds as well; their sum need not.

Source: Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994, for α and
β; Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
IJHPCA 19(1), 2005, for γ; the bandwidth bound is Patarasuk and Yuan's, JPDC 69(2), 2009.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from psrt.collective.analysis.rendezvous import RankState, run
from psrt.collective.costs import LinkCosts
from psrt.collective.step import NOTHING, Step
from psrt.core.partition import Span


@dataclass(frozen=True, slots=True)
class Price:
    """The time and traffic of one run of a schedule."""

    #: The latest clock, in seconds.
    seconds: float
    #: Messages in the longest chain that wait for each other: the time at α = 1, β = γ = 0.
    rounds: int
    #: Messages of all ranks; those without elements are left out and do not count.
    messages: int
    #: Pairs (from, to) of ranks that some message takes.
    wires: int
    #: Bytes that each rank sends, receives and combines.
    sent: tuple[int, ...]
    received: tuple[int, ...]
    combined: tuple[int, ...]

    @property
    def sent_max(self) -> int:
        """Bytes that the busiest sender sends."""
        return max(self.sent, default=0)

    @property
    def received_max(self) -> int:
        """Bytes that the busiest receiver receives."""
        return max(self.received, default=0)

    @property
    def combined_max(self) -> int:
        """Bytes that the busiest folder combines."""
        return max(self.combined, default=0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no all-reduce can undercut, in seconds; derived at the top of this file."""

    latency: float
    bandwidth: float
    combining: float

    @property
    def seconds(self) -> float:
        """The largest of the three."""
        return max(self.latency, self.bandwidth, self.combining)


def lower_bounds(size: int, nbytes: float, costs: LinkCosts) -> Bounds:
    """Return the bounds for ``size`` ≥ 1 ranks and a vector of ``nbytes``.

    Args:
        size: number of ranks, ≥ 1.
        nbytes: size of the vector in bytes.
        costs: α, β and γ of a link, in seconds.

    >>> lower_bounds(4, 1000, LinkCosts(alpha=1.0, beta=0.01, gamma=0.002))
    Bounds(latency=2.0, bandwidth=15.0, combining=1.5)
    """
    rounds = (size - 1).bit_length() if nbytes else 0
    share = nbytes * (size - 1) / size
    return Bounds(rounds * costs.alpha, 2 * share * costs.beta, share * costs.gamma)


def price(
    schedules: Sequence[Iterable[Step]], itemsize: int, costs: LinkCosts, *, overlap: bool = False
) -> Price:
    """Run the schedules of all ranks on clocks.

    Args:
        schedules: the steps of each rank.
        itemsize: bytes of an element.
        costs: of the machine.
        overlap: whether a rank combines beside its next step, where spans allow.

    Raises:
        ScheduleError: if the ranks wait for each other for ever, or the two ends of a message
            differ in size.

    >>> from psrt.collective.schedules.ring import ring_steps
    >>> ring = [ring_steps(rank, 4, 1000) for rank in range(4)]
    >>> found = price(ring, 4, LinkCosts(alpha=1.0, beta=0.001, gamma=0.0))
    >>> found.rounds, found.sent_max, found.seconds
    (6, 6000, 12.0)
    """
    return _priced(schedules, itemsize, _Clocks(len(schedules), itemsize, costs, overlap))


def _priced(schedules: Sequence[Iterable[Step]], itemsize: int, clocks: _Clocks) -> Price:
    traffic = run(schedules, clocks)
    return Price(
        seconds=clocks.latest(),
        rounds=traffic.rounds,
        messages=traffic.messages,
        wires=traffic.wires,
        sent=tuple(itemsize * n for n in traffic.sent),
        received=tuple(itemsize * n for n in traffic.received),
        combined=tuple(itemsize * n for n in traffic.combined),
    )


def price_by_round(
    schedules: Sequence[Iterable[Step]], itemsize: int, costs: LinkCosts, *, overlap: bool = False
) -> tuple[Price, tuple[float, ...]]:
    """Return the price, and by round when its messages and all before have arrived, in seconds.

    A message's round is the number of messages in the longest chain that ends with it. What the
    last ones bring is still to be combined then. Arguments and errors are those of ``price``.

    >>> from psrt.collective.schedules.ring import ring_steps
    >>> ring = [ring_steps(rank, 2, 1000) for rank in range(2)]
    >>> price_by_round(ring, 4, LinkCosts(alpha=1.0, beta=0.001, gamma=0.0))[1]
    (3.0, 6.0)
    """
    clocks = _RoundClocks(len(schedules), itemsize, costs, overlap)
    found = _priced(schedules, itemsize, clocks)
    latest = (clocks.ends[number] for number in sorted(clocks.ends))
    return found, tuple(accumulate(latest, max))


class _Clocks:
    """A clock per rank: when each step begins and ends. A ``Memory`` of times."""

    def __init__(self, size: int, itemsize: int, costs: LinkCosts, overlap: bool) -> None:
        self._alpha = costs.alpha
        self._beta, self._gamma = costs.beta * itemsize, costs.gamma * itemsize
        self._overlap = overlap
        #: By rank, in seconds: when its step was posted, and when the messages of that step and
        #: the fold during it have ended so far.
        self._now, self._end = [0.0] * size, [0.0] * size
        #: By rank: the span still to be combined during its next step.
        self._fold = [NOTHING] * size

    def post(self, rank: RankState) -> None:
        """Begin a step; a pending fold is done before or during it."""
        r = rank.rank
        if _touches(rank.step, self._fold[r]):
            self._settle(r)
        self._end[r] = self._now[r] + self._fold[r].size * self._gamma
        self._fold[r] = NOTHING

    def local(self, rank: RankState) -> None:
        """Combine two spans of a rank's memory; a copy is free."""
        step = rank.step
        if step.combine:
            self._settle(rank.rank)
            self._now[rank.rank] += step.send.size * self._gamma
        elif _touches(step, self._fold[rank.rank]):
            self._settle(rank.rank)

    def carry(self, sender: RankState, receiver: RankState) -> None:
        """Add the time of a message, from the moment when both ends have posted it."""
        a, b = sender.rank, receiver.rank
        end = self._arrival(sender, receiver)
        self._end[a], self._end[b] = max(self._end[a], end), max(self._end[b], end)

    def end(self, rank: RankState) -> None:
        """End a step; the bytes received are combined now or during the next step."""
        r, step = rank.rank, rank.step
        self._now[r] = self._end[r]
        if step.combine and step.receive_from is not None:
            self._fold[r] = step.receive
            if not self._overlap:
                self._settle(r)

    def latest(self) -> float:
        """Return the time at which the last rank has finished, its last fold included."""
        for r in range(len(self._now)):
            self._settle(r)
        return max(self._now, default=0.0)

    def _arrival(self, sender: RankState, receiver: RankState) -> float:
        posted = max(self._now[sender.rank], self._now[receiver.rank])
        return posted + self._alpha + sender.step.send.size * self._beta

    def _settle(self, r: int) -> None:
        """Do a pending fold, with no step at the same time."""
        self._now[r] += self._fold[r].size * self._gamma
        self._fold[r] = NOTHING


class _RoundClocks(_Clocks):
    """Clocks that remember the latest arrival of each round."""

    def __init__(self, size: int, itemsize: int, costs: LinkCosts, overlap: bool) -> None:
        super().__init__(size, itemsize, costs, overlap)
        self.ends: dict[int, float] = {}

    def carry(self, sender: RankState, receiver: RankState) -> None:
        """Note the time of a message's end, too."""
        number = max(sender.round, receiver.round) + 1
        self.ends[number] = max(self.ends.get(number, 0.0), self._arrival(sender, receiver))
        super().carry(sender, receiver)


def _touches(step: Step, span: Span) -> bool:
    """Return whether a step sends or overwrites elements of ``span``.

    What it receives to combine it may receive: that lands in scratch memory and is folded in turn.
    """
    if span.size == 0:
        return False
    sends = step.send.start < span.stop and span.start < step.send.stop
    copies = step.receive.start < span.stop and span.start < step.receive.stop
    return sends or (copies and not step.combine)
