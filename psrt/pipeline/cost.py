"""Price a pipeline by its schedule. Pure: steps and seconds, never arrays or MPI.

The computations of all stages are run on clocks (``timeline.py``), each with the time that it takes
in its virtual stage, and messages with α + β·bytes. A message leaves as soon as it is computed,
whatever the stage does next; messages between two stages in one direction follow each other. The
price is the latest clock, computed without any formula. Tests compare it with the closed forms in
the files of the schedules.

**Small products are expensive.** A batch of B rows in M micro-batches costs more than B rows at
once: products of few rows reuse less of the weights that they read. ``slowdown`` is that factor, by
kind of computation and number of rows, relative to the whole batch. Deferred weights are one
product of the whole batch, so they do not pay it.

**An upper bound.** P stages are faster than one process with the whole batch by at most:

    balance × bubble × efficiency

- *balance* is the work of all stages over that of the slowest: P where all stages cost the same.
- *bubble* is the share of the time in which a stage is busy, if all were as slow as the slowest
  and messages were free: 3M/(3M + 2P − 2) for GPipe where f = b = w.
- *efficiency* is the slowest stage's time for the whole batch over that for its micro-batches.

Where all stages cost the same, this is the price itself, except for messages. Otherwise the cheaper
stages make the bubble a little smaller than it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psrt.core.errors import ConfigError
from psrt.pipeline.proof import prove
from psrt.pipeline.schedule import PipelineSchedule
from psrt.pipeline.step import ALL, Kind, PipelineStep
from psrt.pipeline.timeline import Run, timeline

#: (kind, rows) → how many times as long a row takes in a product of these rows as in a whole batch.
Slowdown = Callable[[Kind, int], float]


class StageCosts(NamedTuple):
    """The costs of the whole batch in a virtual stage, in products of all rows."""

    #: Seconds forward, backward to the input, and backward to the weights.
    forward: float
    backward_input: float
    backward_weight: float
    #: Bytes of its outputs for the whole batch, to the next virtual stage; gradients have as many.
    nbytes: float = 0.0

    @property
    def seconds(self) -> float:
        """The sum of all three."""
        return self.forward + self.backward_input + self.backward_weight

    def of(self, kind: Kind) -> float:
        """Return the seconds of a kind of computation."""
        if kind is Kind.FORWARD:
            return self.forward
        if kind is Kind.BACKWARD_INPUT:
            return self.backward_input
        if kind is Kind.BACKWARD_WEIGHT:
            return self.backward_weight
        return self.backward_input + self.backward_weight


@dataclass(frozen=True, slots=True)
class PipelinePrice:
    """The time and traffic of one batch, or of one run of an asynchronous schedule."""

    #: The latest clock, in seconds.
    seconds: float
    #: Of each stage: the time in which it computes.
    busy: tuple[float, ...]
    #: By stage: its computations, with their times.
    runs: tuple[tuple[Run, ...], ...]
    #: Messages of all stages, their bytes, and the most activations alive at once in each stage.
    messages: int
    nbytes: float
    alive: tuple[int, ...]

    @property
    def idle(self) -> tuple[float, ...]:
        """Of each stage: the time in which it waits."""
        return tuple(self.seconds - busy for busy in self.busy)

    @property
    def bubble(self) -> float:
        """The share of all stages' time in which they are idle."""
        total = self.seconds * len(self.busy)
        return sum(self.idle) / total if total else 0.0


class Bound(NamedTuple):
    """An upper bound on the speedup over one process with the whole batch, as three factors."""

    #: The work of all stages over that of the slowest.
    balance: float
    #: The share of the time in which equal stages are busy.
    bubble: float
    #: The slowest stage's time for the whole batch over that for its micro-batches.
    efficiency: float

    @property
    def speedup(self) -> float:
        """The product of the three."""
        return self.balance * self.bubble * self.efficiency


def as_dear(kind: Kind, rows: int) -> float:
    """Return 1: a row takes as long in a small product as in a large one."""
    return 1.0


def price(
    plan: Sequence[Sequence[PipelineStep]],
    costs: Sequence[StageCosts],
    rows: Sequence[int],
    *,
    alpha: float = 0.0,
    beta: float = 0.0,
    slowdown: Slowdown = as_dear,
) -> PipelinePrice:
    """Price a plan.

    Args:
        plan: by stage, its steps.
        costs: of each virtual stage, for all rows.
        rows: of each micro-batch; all of them are the whole batch.
        alpha: seconds per message.
        beta: seconds per byte of a message.
        slowdown: of small products.

    Raises:
        ConfigError: if the number of costs is not a multiple of the number of stages.
        ScheduleError: if the plan is not a valid schedule.

    >>> from psrt.pipeline.registry import PIPELINES
    >>> found = price(PIPELINES["gpipe"].plan(2, 3), [StageCosts(3, 3, 3)] * 2, [1, 1, 1])
    >>> found.seconds, found.busy, found.bubble
    (11.0, (9.0, 9.0), 0.18181818181818182)
    """
    stages, whole = len(plan), sum(rows)
    chunks, rest = divmod(len(costs), stages)
    if rest or not chunks:
        raise ConfigError(f"costs of {len(costs)} virtual stages, expected those of {stages} each")

    def seconds(stage: int, step: PipelineStep) -> float:
        cost = costs[step.chunk * stages + stage].of(step.kind)
        if step.micro_batch == ALL:
            return cost
        some = rows[step.micro_batch]
        if step.kind is not Kind.BACKWARD:
            return cost * some / whole * slowdown(step.kind, some)
        return sum(
            costs[step.chunk * stages + stage].of(kind) * some / whole * slowdown(kind, some)
            for kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
        )

    def message(virtual: int, forward: bool, m: int) -> float:
        sender = virtual if forward else virtual - 1
        return alpha + beta * costs[sender].nbytes * rows[m] / whole

    found = prove(plan, len(rows), chunks)
    runs = timeline(plan, chunks, seconds, message)
    return PipelinePrice(
        seconds=max((it[-1].end for it in runs if it), default=0.0),
        busy=tuple(sum(run.end - run.start for run in it) for it in runs),
        runs=tuple(map(tuple, runs)),
        messages=found.messages,
        # Each virtual stage but the last sends its whole batch, and receives as many bytes back.
        nbytes=sum(
            2 * cost.nbytes for v, cost in enumerate(costs[:-1]) if v % stages != (v + 1) % stages
        ),
        alive=found.alive,
    )


def bound(
    row: PipelineSchedule,
    costs: Sequence[StageCosts],
    rows: Sequence[int],
    chunks: int = 1,
    *,
    deferred: bool = False,
    slowdown: Slowdown = as_dear,
) -> Bound:
    """Return an upper bound on the speedup over one process with the whole batch.

    Args:
        row: of the registry.
        costs: of each virtual stage, for all rows.
        rows: of each micro-batch.
        chunks: V ≥ 1.
        deferred: whether the gradients of weights come at the end, in one product.
        slowdown: of small products.

    Raises:
        ConfigError: if there is no such pipeline.

    >>> from psrt.pipeline.registry import PIPELINES
    >>> stages = [StageCosts(1.0, 1.0, 1.0), StageCosts(0.75, 0.75, 0.75)]
    >>> found = bound(PIPELINES["1f1b"], stages, [1] * 4)
    >>> found, found.speedup
    (Bound(balance=1.75, bubble=0.8571428571428571, efficiency=1.0), 1.5)
    """
    stages = len(costs) // chunks
    parts = [[costs[chunk * stages + s] for chunk in range(chunks)] for s in range(stages)]
    work = [sum(cost.seconds for cost in part) for part in parts]
    dearest = parts[max(range(stages), key=work.__getitem__)]
    # The mean of its chunks, so that the copies in all stages cost as much as it does.
    forward, to_input, to_weight, _ = (sum(it) / chunks for it in zip(*dearest, strict=True))
    alike = [StageCosts(forward, to_input, to_weight)] * len(costs)
    plan = row.plan(stages, len(rows), chunks, deferred=deferred)
    found = price(plan, alike, rows, slowdown=slowdown)
    return Bound(
        balance=sum(work) / max(work),
        bubble=found.busy[0] / found.seconds,
        efficiency=max(work) / found.busy[0],
    )
