"""A trace with its inputs, and its totals next to lower bounds: the source of texts and drawings.

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

*Latency*: the number of ranks whose data can have reached one rank, or that one rank's data can
have reached, at most doubles in a round. In each kind some rank needs data of all, or all need that
of one.
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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from psrt.collective import OPS, Algorithm, Schedule, Step
from psrt.collective.analysis.cost import Bounds, Price, price, price_by_round
from psrt.collective.costs import LinkCosts
from psrt.core.arrays import ITEMSIZE
from psrt.core.errors import ConfigError
from psrt.views.explain.inputs import Example
from psrt.views.explain.trace import FOLDS, Content, Number, ScheduleTrace, trace_schedule


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
    #: By round, the predicted time in seconds at which its messages and all before have arrived.
    arrivals: tuple[float, ...]

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
        overlap: whether combining overlaps with the next step.
    """

    def alone(beta: float, gamma: float) -> float:
        return price(plan, itemsize, LinkCosts(0.0, beta, gamma), overlap=overlap).seconds

    bound = least(schedule, len(plan), n * itemsize)
    priced, arrivals = price_by_round(plan, itemsize, costs, overlap=overlap)
    return Totals(
        price=priced,
        least=bound,
        costs=costs,
        parts=Bounds(priced.rounds * costs.alpha, alone(costs.beta, 0.0), alone(0.0, costs.gamma)),
        bounds=Bounds(
            bound.rounds * costs.alpha, bound.moved * costs.beta, bound.combined * costs.gamma
        ),
        arrivals=arrivals,
    )


#: Most ranks that are shown individually; `psrt explain compare` prices more.
MOST_RANKS = 256
#: Most steps of all ranks together; this many take seconds to draw.
MOST_STEPS = 200_000
#: Most numbers of an example that a reader can follow.
MOST_NUMBERS = 65_536


def default_names(size: int) -> tuple[str, ...]:
    """Return A, B, C, … for up to 26 ranks, else 0, 1, 2, ….

    >>> default_names(3), default_names(27)[-1]
    (('A', 'B', 'C'), '26')
    """
    if size <= 26:
        return tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:size])
    return tuple(map(str, range(size)))


@dataclass(frozen=True, slots=True)
class Explanation:
    """One schedule, explained for some ranks."""

    schedule: Schedule
    trace: ScheduleTrace
    totals: Totals
    #: By rank.
    names: tuple[str, ...]
    #: The operation's name.
    op: str
    #: The ranks in the order of the ring; None: by number, or without a ring.
    order: tuple[int, ...] | None
    #: The root, if there is one.
    root: int | None
    #: Whether the trace has numbers, not only symbols.
    numbered: bool

    @property
    def size(self) -> int:
        """Ranks."""
        return len(self.names)

    @property
    def n(self) -> int:
        """Elements of the vector."""
        return self.trace.spec.n

    @property
    def divides(self) -> bool:
        """Whether the result of all ranks is divided at the end."""
        return OPS[self.op].divides and self.trace.folds

    @property
    def fold_name(self) -> str:
        """Name of the operation over all ranks, before the division."""
        return "sum" if self.divides else self.op

    def result(self, rank: int) -> list[tuple[int, Content]]:
        """Return the cells of a rank's result, means divided."""
        return [
            (cell, self._finished(content))
            for cell in self.trace.owed(rank)
            if (content := self.trace.end[rank][cell]) is not None
        ]

    def _finished(self, content: Content) -> Content:
        if not self.divides:
            return content
        return Content(content.whose, tuple(_divided(x, self.size) for x in content.numbers))


def explain(
    schedule: Schedule,
    *,
    size: int,
    n: int,
    costs: LinkCosts,
    example: Example | None = None,
    op: str = "sum",
    order: tuple[int, ...] | None = None,
    root: int = 0,
) -> Explanation:
    """Trace and price a schedule.

    Args:
        schedule: a row of the registry.
        size: number of ranks, ≥ 1.
        n: number of elements of the vector.
        costs: α, β and γ for the predicted time.
        example: names and numbers; without one, ranks are letters and sums are symbols.
        op: a key of ``FOLDS``.
        order: the ranks in the order of the ring.
        root: rank of the root, if there is one.

    Raises:
        ConfigError: for more ranks, steps or numbers than can be shown individually.
    """
    if size > MOST_RANKS:
        raise ConfigError(
            f"psrt explain shows at most {MOST_RANKS} ranks, got {size}; "
            "psrt explain compare prices more"
        )
    if example is not None and size * n > MOST_NUMBERS:
        raise ConfigError(f"an example has at most {MOST_NUMBERS} numbers, got {size * n}")
    values: Sequence[Sequence[Number]] | None = None if example is None else example.values
    if OPS[op].integers and any(isinstance(x, float) for row in values or () for x in row):
        raise ConfigError(f"{op} needs integers, but the example has other numbers")
    plan = _plan(schedule, size, n, root, order)
    spec = schedule.spec(size, n, root)
    trace = trace_schedule(plan, spec, values, FOLDS[op], order)
    totals = total(schedule, plan, n=n, itemsize=ITEMSIZE, costs=costs, overlap=overlaps(schedule))
    return Explanation(
        schedule=schedule,
        trace=trace,
        totals=totals,
        names=default_names(size) if example is None else example.names,
        op=op,
        order=order,
        root=root if schedule.rooted else None,
        numbered=example is not None,
    )


def overlaps(schedule: Schedule) -> bool:
    """Return whether an executor may combine during the next step."""
    return isinstance(schedule, Algorithm) and schedule.overlaps


def _plan(
    schedule: Schedule, size: int, n: int, root: int, order: Sequence[int] | None
) -> list[list[Step]]:
    """Return the steps of all ranks.

    Raises:
        ConfigError: for more steps than can be shown.
    """
    steps: Callable[..., Iterator[Step]] = schedule
    if order is not None:
        steps = partial(schedule.steps, order=order)
    last = (root,) if schedule.rooted else ()
    plan: list[list[Step]] = []
    left = MOST_STEPS
    for rank in range(size):
        # Counted while they are generated: all of them may not fit into memory.
        plan.append(list(islice(steps(rank, size, n, *last), left + 1)))
        left -= len(plan[-1])
        if left < 0:
            raise ConfigError(
                f"{schedule.name} of {size} ranks and {n} elements takes more than {MOST_STEPS} "
                "steps; explain it on fewer ranks or fewer bytes"
            )
    return plan


def _divided(value: Number, size: int) -> Number:
    """Return a mean, as an integer if it is one."""
    if isinstance(value, int) and value % size == 0:
        return value // size
    return value / size
