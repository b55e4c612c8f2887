"""The times of the computations of a pipeline, for prices, pictures and messages. Pure.

Every stage takes its computations in order, each as soon as the previous one has ended and its
input is there: for a forward pass the output of the previous virtual stage, for a backward pass the
gradient of the next one. A result for another stage leaves as soon as it is computed, so steps that
send and receive take no time of a stage, and a plan without them runs the same.

The run is deterministic, and one is enough: a computation begins when certain others have ended,
in whatever order this code looks at them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from psrt.core.errors import ProtocolError
from psrt.pipeline.step import BACKWARD_PASSES, COMPUTING, Kind, PipelineStep


class ScheduleError(ProtocolError):
    """A schedule is wrong; the text says at which stage and step, and why."""

    def __init__(
        self, stage: int, why: str, index: int | None = None, step: PipelineStep | None = None
    ) -> None:
        """Compose the message.

        Args:
            stage: the stage at fault, or the first to notice.
            why: the error.
            index: of the step among the stage's own; None after the last step.
            step: that step.
        """
        where = "" if step is None else f", step {index} ({step})"
        super().__init__(f"stage {stage}{where}: {why}")
        self.stage, self.why, self.index, self.step = stage, why, index, step


class Run(NamedTuple):
    """One computation, with its time."""

    step: PipelineStep
    start: float
    end: float


#: (virtual stage, micro-batch, whether forward) of a result that another computation needs.
_Made = tuple[int, int, bool]


def timeline(
    plan: Sequence[Iterable[PipelineStep]],
    chunks: int,
    seconds: Callable[[int, PipelineStep], float],
    message: Callable[[int, bool, int], float] | None = None,
) -> list[list[Run]]:
    """Return by stage its computations with their times.

    Args:
        plan: by stage, its steps.
        chunks: V ≥ 1.
        seconds: (stage, step) → the time of a computation.
        message: (virtual stage, whether forward, micro-batch) → the time of a message with its
            output, or with the gradient of its input, to another stage; messages between two stages
            in one direction follow each other. None: messages take no time.

    Raises:
        ScheduleError: if stages wait for each other, or for a result that no stage computes.
    """
    stages = len(plan)
    last = stages * chunks - 1
    orders = [[step for step in steps if step.kind in COMPUTING] for steps in plan]
    runs: list[list[Run]] = [[] for _ in orders]
    arrived: dict[_Made, float] = {}
    waiting: dict[_Made, int] = {}
    free: dict[tuple[int, int], float] = {}
    ready = deque(range(stages))
    while ready:
        stage = ready.popleft()
        order, done = orders[stage], runs[stage]
        clock = done[-1].end if done else 0.0
        while len(done) < len(order):
            step = order[len(done)]
            kind, m, chunk, _ = step
            virtual = chunk * stages + stage
            needs: _Made | None = None
            if kind is Kind.FORWARD:
                needs = (virtual - 1, m, True) if virtual else None
            elif kind in BACKWARD_PASSES:
                needs = (virtual + 1, m, False) if virtual < last else (last, m, True)
            start = clock
            if needs is not None:
                if needs not in arrived:
                    waiting[needs] = stage
                    break
                start = max(clock, arrived[needs])
            clock = start + seconds(stage, step)
            done.append(Run(step, start, clock))
            if kind is Kind.BACKWARD_WEIGHT:
                continue
            forward = kind is Kind.FORWARD
            there = clock
            to = (stage + (1 if forward else -1)) % stages
            if message is not None and to != stage and (virtual < last if forward else virtual):
                there = max(clock, free.get((stage, to), 0.0)) + message(virtual, forward, m)
                free[stage, to] = there
            made = (virtual, m, forward)
            arrived[made] = there
            if made in waiting:
                ready.append(waiting.pop(made))
    for stage, (order, done) in enumerate(zip(orders, runs, strict=True)):
        if len(done) < len(order):
            raise ScheduleError(stage, "waits for ever", len(done), order[len(done)])
    return runs
