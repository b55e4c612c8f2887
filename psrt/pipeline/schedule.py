"""The row of a pipeline schedule in the registry: its steps, its price, its promises. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from psrt.core.errors import ConfigError
from psrt.pipeline.messages import with_messages
from psrt.pipeline.step import ALL, BACKWARD_PASSES, Kind, PipelineStep

#: (stage, P, M, V) → the computations of a stage, in order.
Order = Callable[[int, int, int, int], Iterator[PipelineStep]]


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of one micro-batch in a whole stage, the same in all stages."""

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0

    @property
    def seconds(self) -> float:
        """The sum of all three: f + b + w."""
        return self.forward + self.backward_input + self.backward_weight


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """A pipeline schedule as data: the steps of each stage, and what it promises of them.

    Calling it yields the steps of one stage.

    >>> from psrt.pipeline.registry import PIPELINES
    >>> for step in PIPELINES["gpipe"](1, 2, 1):
    ...     print(step)
    receive activation of 0 from 0
    forward of 0
    backward-input of 0
    send gradient of 0 to 0
    backward-weight of 0
    """

    #: Its key, and its name for users.
    name: str
    #: The computations of each stage.
    order: Order
    #: One line for the help text.
    summary: str
    #: (stage, P, M, V) → the most activations alive in the chunks of a stage, each of one
    #: micro-batch in one chunk; without ``deferred``.
    alive: Callable[[int, int, int, int], int] = field(kw_only=True)
    #: (P, M, V, seconds) → idle seconds of each stage, where all stages cost the same and messages
    #: take no time; without ``deferred``. Derived in the schedule's file.
    idle: Callable[[int, int, int, Passes], float] = field(kw_only=True)
    #: The bubble where f = b = w and M ≥ P, in words of P, M and V.
    formula: str = field(kw_only=True)
    #: Authors, venue, year; empty where there is no paper behind it.
    source: str = field(kw_only=True)
    #: Whether gradients of weights wait until other micro-batches have come back.
    splits: bool = field(default=False, kw_only=True)
    #: Whether a stage sends the gradient of its input before it computes that of its weights.
    sends_first: bool = field(default=True, kw_only=True)
    #: Whether the gradients of weights may be deferred into one product at the end.
    defers: bool = field(default=True, kw_only=True)
    #: (stage, P, k) → the updates of a stage between the two passes of batch k, if it updates after
    #: every backward pass, so that each micro-batch is a batch; None: the update is at the end.
    staleness: Callable[[int, int, int], int] | None = field(default=None, kw_only=True)
    #: Whether a stage may have several chunks.
    chunked: bool = field(default=False, kw_only=True)

    @property
    def asynchronous(self) -> bool:
        """Whether a stage updates after every backward pass, without waiting for the others."""
        return self.staleness is not None

    def __call__(
        self,
        stage: int,
        stages: int,
        micro_batches: int,
        chunks: int = 1,
        *,
        deferred: bool = False,
    ) -> Iterator[PipelineStep]:
        """Yield the steps of one stage, in order.

        Args:
            stage: from 0 to ``stages`` − 1.
            stages: P ≥ 1.
            micro_batches: M ≥ 1; of an asynchronous schedule K, the number of batches.
            chunks: V ≥ 1.
            deferred: whether the gradients of weights come at the end, in one product.

        Raises:
            ConfigError: if there is no such pipeline.
        """
        if not 0 <= stage < stages:
            raise ConfigError(f"stage {stage} of {self.name} is not one of its {stages} stages")
        self.check(stages, micro_batches, chunks, deferred=deferred)
        yield from _steps(self, stage, stages, micro_batches, chunks, deferred)

    def plan(
        self, stages: int, micro_batches: int, chunks: int = 1, *, deferred: bool = False
    ) -> list[list[PipelineStep]]:
        """Return the steps of all stages; arguments as in a call.

        Raises:
            ConfigError: if there is no such pipeline.
        """
        return [
            list(self(stage, stages, micro_batches, chunks, deferred=deferred))
            for stage in range(stages)
        ]

    def most_alive(
        self,
        stage: int,
        stages: int,
        micro_batches: int,
        chunks: int = 1,
        *,
        deferred: bool = False,
    ) -> int:
        """Return the promise: the most activations alive in the chunks of a stage.

        With deferred weights all stay until the end. Arguments as in a call.
        """
        if deferred:
            return chunks * micro_batches
        return self.alive(stage, stages, micro_batches, chunks)

    def bubble(
        self,
        stages: int,
        micro_batches: int,
        chunks: int = 1,
        *,
        deferred: bool = False,
        passes: Passes = Passes(),
    ) -> float:
        """Return the share of the time in which a stage is idle, where all stages cost the same.

        Args:
            stages: P ≥ 1.
            micro_batches: M ≥ 1.
            chunks: V ≥ 1.
            deferred: whether the gradients of weights come at the end, in one product.
            passes: seconds of a micro-batch.

        >>> from psrt.pipeline.registry import PIPELINES
        >>> PIPELINES["1f1b"].bubble(3, 8), PIPELINES["zero-bubble"].bubble(3, 8)
        (0.14285714285714285, 0.07692307692307693)
        """
        # Deferred weights come after everything that another stage waits for. Without them it is
        # the same schedule with w = 0, after which all stages take equally long for their product.
        waited = replace(passes, backward_weight=0.0) if deferred else passes
        idle = self.idle(stages, micro_batches, chunks, waited)
        return idle / (idle + micro_batches * passes.seconds)

    def check(self, stages: int, micro_batches: int, chunks: int = 1, *, deferred: bool) -> None:
        """Check that there is such a pipeline; arguments as in a call.

        Raises:
            ConfigError: if there is none.
        """
        if stages < 1 or micro_batches < 1 or chunks < 1:
            raise ConfigError(
                f"{self.name} needs at least one stage, micro-batch and chunk, got {stages}, "
                f"{micro_batches} and {chunks}"
            )
        if chunks > 1 and not self.chunked:
            raise ConfigError(f"{self.name} has one chunk per stage, got {chunks}")
        if deferred and not self.defers:
            raise ConfigError(f"weights of {self.name} cannot be deferred")


def _steps(
    row: PipelineSchedule, stage: int, stages: int, micro_batches: int, chunks: int, deferred: bool
) -> Iterator[PipelineStep]:
    """Yield the steps of a stage; a long asynchronous run keeps no more than a short one."""
    short = stages + 2
    if not row.asynchronous or micro_batches <= short:
        yield from _plan(row, stages, micro_batches, chunks, deferred)[stage]
        return
    # From its forward pass of P on a stage repeats itself, one batch later each time.
    steps = _plan(row, stages, short, chunks, deferred)[stage]
    begin, end = (
        steps.index(next(it for it in steps if it.kind is Kind.FORWARD and it.micro_batch == m))
        for m in (stages, stages + 1)
    )
    yield from steps[:begin]
    for later in range(micro_batches - short):
        for step in steps[begin:end]:
            yield step._replace(micro_batch=step.micro_batch + later)
    for step in steps[begin:]:
        yield step._replace(micro_batch=step.micro_batch + micro_batches - short)


@lru_cache(maxsize=8)
def _plan(
    row: PipelineSchedule, stages: int, micro_batches: int, chunks: int, deferred: bool
) -> tuple[tuple[PipelineStep, ...], ...]:
    """Return the steps of all stages, cached for the next stage that asks."""
    orders = [list(row.order(stage, stages, micro_batches, chunks)) for stage in range(stages)]
    if deferred:
        orders = [_deferred(it, chunks) for it in orders]
    elif row.sends_first:
        orders = [list(_sent_first(it, stage)) for stage, it in enumerate(orders)]
    return tuple(map(tuple, with_messages(orders, chunks)))


def _deferred(order: Sequence[PipelineStep], chunks: int) -> list[PipelineStep]:
    """Return the computations of a stage, with weights at the end, in one product per chunk."""
    passes = [
        step._replace(kind=Kind.BACKWARD_INPUT) if step.kind in BACKWARD_PASSES else step
        for step in order
        if step.kind is not Kind.BACKWARD_WEIGHT
    ]
    # The last chunk comes back first.
    return passes + [PipelineStep(Kind.BACKWARD_WEIGHT, ALL, it) for it in range(chunks)[::-1]]


def _sent_first(order: Iterable[PipelineStep], stage: int) -> Iterator[PipelineStep]:
    """Yield the computations of a stage, each weight behind the gradient that a stage waits for."""
    for step in order:
        if step.kind is Kind.BACKWARD and (stage or step.chunk):
            yield step._replace(kind=Kind.BACKWARD_INPUT)
            yield step._replace(kind=Kind.BACKWARD_WEIGHT)
        else:
            yield step


def most_alive(steps: Iterable[PipelineStep], chunks: int = 1) -> tuple[int, ...]:
    """Return by chunk the most activations that a stage's steps keep alive at once.

    They belong to consecutive micro-batches, so this number of slots suffices: micro-batch m may
    use slot m modulo that number.

    Args:
        steps: of a stage, in order.
        chunks: V ≥ 1.

    >>> from psrt.pipeline.registry import PIPELINES
    >>> [most_alive(PIPELINES["1f1b"](stage, 3, 8)) for stage in range(3)]
    [(3,), (2,), (1,)]
    """
    alive, most = [0] * chunks, [0] * chunks
    held: set[tuple[int, int]] = set()
    for kind, m, chunk, _ in steps:
        if kind in (Kind.FORWARD, Kind.RECEIVE_ACTIVATION) and (chunk, m) not in held:
            held.add((chunk, m))
            alive[chunk] += 1
            most[chunk] = max(most[chunk], alive[chunk])
        elif kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
            alive[chunk] -= alive[chunk] if m == ALL else 1
    return tuple(most)
