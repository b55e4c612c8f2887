"""What a collective costs, read off its schedule. Pure: spans and seconds, never buffers or MPI.

A schedule is run on clocks instead of numbers. In the α-β-γ model of a network

- a message of b bytes takes α + bβ seconds, from the moment when both ends have posted it;
- a rank sends one message and receives one at the same time, to and from any two ranks, and
  messages between different pairs do not slow each other down;
- to combine b bytes takes bγ; to copy in the own memory is free.

Each rank takes its steps in order, on its own clock, and waits for its peers exactly where the
schedule makes it wait (`clocks`). The price is the latest clock, with no formula in between:
the closed forms in the files of the schedules are held against it by the tests.

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

from psrt.collective.analysis.clocks import Clocks
from psrt.collective.costs import Costs
from psrt.collective.step import Step


@dataclass(frozen=True, slots=True)
class Price:
    """What one run of a schedule comes to."""

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


def lower_bounds(size: int, nbytes: float, costs: Costs) -> Bounds:
    """Return the bounds for ``size`` ≥ 1 ranks and a vector of ``nbytes``.

    >>> lower_bounds(4, 1000, Costs(alpha=1.0, beta=0.01, gamma=0.002))
    Bounds(latency=2.0, bandwidth=15.0, combining=1.5)
    """
    rounds = (size - 1).bit_length() if nbytes else 0
    share = nbytes * (size - 1) / size
    return Bounds(rounds * costs.alpha, 2 * share * costs.beta, share * costs.gamma)


def price(
    schedules: Sequence[Iterable[Step]], itemsize: int, costs: Costs, *, overlap: bool = False
) -> Price:
    """Run the schedules of all ranks on clocks.

    Args:
        schedules: the steps of each rank.
        itemsize: bytes of an element.
        costs: of the machine.
        overlap: whether a rank combines beside its next step, where spans allow.

    Raises:
        ProtocolError: if the ranks wait for each other for ever, or the two ends of a message
            differ in size.

    >>> from psrt.collective.schedules.ring import ring_steps
    >>> ring = [ring_steps(rank, 4, 1000) for rank in range(4)]
    >>> found = price(ring, 4, Costs(alpha=1.0, beta=0.001, gamma=0.0))
    >>> found.rounds, found.sent_max, found.seconds
    (6, 6000, 12.0)
    """
    clocks = Clocks(
        schedules,
        alpha=costs.alpha,
        beta=costs.beta * itemsize,
        gamma=costs.gamma * itemsize,
        overlap=overlap,
    )
    clocks.run()
    ranks = clocks.ranks
    return Price(
        seconds=max((rank.clock for rank in ranks), default=0.0),
        rounds=max((rank.depth for rank in ranks), default=0),
        messages=clocks.messages,
        wires=len(clocks.wires),
        sent=tuple(itemsize * rank.sent for rank in ranks),
        received=tuple(itemsize * rank.received for rank in ranks),
        combined=tuple(itemsize * rank.combined for rank in ranks),
    )
