"""Totals of a collective next to the lower bounds of its kind. Pure.

**Lower bounds** for p ranks and n bytes in the α-β-γ model, each by itself. Those of an all-reduce
are derived in ``psrt.collective.analysis.cost``; those of the phases follow in the same way:

==============  =========  ==============  =============
kind            latency    bandwidth       combining
==============  =========  ==============  =============
all-reduce      ⌈lg p⌉ α   2(p − 1)/p nβ   (p − 1)/p nγ
reduce-scatter  ⌈lg p⌉ α   (p − 1)/p nβ    (p − 1)/p nγ
all-gather      ⌈lg p⌉ α   (p − 1)/p nβ
reduce          ⌈lg p⌉ α   nβ              (p − 1)/p nγ
broadcast       ⌈lg p⌉ α   nβ
scatter         ⌈lg p⌉ α   (p − 1)/p nβ
gather          ⌈lg p⌉ α   (p − 1)/p nβ
all-to-all      ⌈lg p⌉ α   (p − 1)/p² nβ
==============  =========  ==============  =============

*Latency*: the number of ranks that one can have heard from, or that can have heard from one, at
most doubles in a round, and in each kind some rank needs to hear from all or all from one.
*Bandwidth*: in an all-gather a rank receives all chunks but its own; in a reduce-scatter each of
the p ranks must send something for each of the p − 1 foreign chunks; the root of a scatter sends
and that of a gather receives p − 1 chunks; every other rank than the root of a reduce must send
each of its elements, and of a broadcast receive it; a rank's row of an all-to-all has n/p
elements, all but the p-th part of them for others. *Combining*: every element takes p − 1
combinations, shared by p ranks at best.

Source: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice,
and experience", Concurrency and Computation 19(13), 2007, table 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psrt.collective import Schedule, Step
from psrt.collective.analysis.cost import Bounds, Price, price
from psrt.collective.costs import LinkCosts


@dataclass(frozen=True, slots=True)
class Least:
    """Lower bounds of every schedule of a kind, independent of a machine."""

    rounds: int
    #: Bytes that the busiest rank sends or receives.
    moved: float
    #: Bytes that the busiest rank combines.
    combined: float


@dataclass(frozen=True, slots=True)
class Totals:
    """One schedule's totals and predicted time, next to the bounds of its kind."""

    price: Price
    least: Least
    costs: LinkCosts
    #: Seconds for messages, for bytes and for combining: each with the other two costs at 0.
    parts: Bounds
    bounds: Bounds

    @property
    def moved(self) -> int:
        """Bytes that the busiest rank sends or receives."""
        return max(self.price.sent_max, self.price.received_max)

    @property
    def ratio(self) -> float:
        """Predicted time as a multiple of the bound; 1 if both are 0."""
        return self.price.seconds / self.bounds.seconds if self.bounds.seconds else 1.0


def least(schedule: Schedule, size: int, nbytes: float) -> Least:
    """Return the lower bounds of a kind of collective.

    >>> from psrt.collective import ALGORITHMS
    >>> least(ALGORITHMS["ring"], 4, 1000)
    Least(rounds=2, moved=1500.0, combined=750.0)
    """
    if size == 1 or nbytes == 0:
        return Least(0, 0.0, 0.0)
    moved, combined = schedule.least(size)
    return Least((size - 1).bit_length(), moved * nbytes, combined * nbytes)


def total(
    schedule: Schedule,
    plan: Sequence[Sequence[Step]],
    *,
    n: int,
    itemsize: int,
    costs: LinkCosts,
    overlap: bool,
) -> Totals:
    """Price a plan.

    Args:
        schedule: the plan's row of the registry.
        plan: by rank, its steps.
        n: number of elements of the vector.
        itemsize: bytes of an element.
        costs: α, β and γ of every message.
        overlap: whether combining runs during the next step.
    """

    def alone(beta: float, gamma: float) -> float:
        return price(plan, itemsize, LinkCosts(0.0, beta, gamma), overlap=overlap).seconds

    bound = least(schedule, len(plan), n * itemsize)
    priced = price(plan, itemsize, costs, overlap=overlap)
    return Totals(
        price=priced,
        least=bound,
        costs=costs,
        parts=Bounds(priced.rounds * costs.alpha, alone(costs.beta, 0.0), alone(0.0, costs.gamma)),
        bounds=Bounds(
            bound.rounds * costs.alpha, bound.moved * costs.beta, bound.combined * costs.gamma
        ),
    )
