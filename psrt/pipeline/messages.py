"""Place the sends and receives of a pipeline, given the computations of its stages. Pure.

A schedule gives the order in which stages compute. The messages follow from it, but not their
places. If each stage of 1F1B sends as soon as it can and receives when it must, it deadlocks where
sends block, since a stage and the next one send to each other at the same time.

**Receive late.** The input of a computation is received right before it. So an activation takes the
memory of a micro-batch no sooner than its forward pass does, which is what the rows promise.

**Send when the message is needed.** Assume that every forward and backward pass takes one unit of
time, and messages none. Then each message has a moment: when the computation that needs it begins.
At this moment neither end is within a computation. So each stage has its messages after the
computations that have ended by then, and before those that have not begun. Messages at the same
moment have the same order at all stages: gradients first, and in a chain of messages of one kind
the one first that the others would wait for.

**No deadlock.** By moment, and within a moment by this order, all computations and messages form
one sequence that agrees with the steps of every stage. The first unfinished message of this
sequence can always be delivered: everything that its two ends must do before comes earlier. The
real time of a computation changes when that happens, not whether it does.

**Weights** are left out of this, since no stage waits for them. They are put back in their place
afterwards, behind the sends that follow the same backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.pipeline.step import BACKWARD_PASSES, COMPUTING, SENDING, Kind, PipelineStep
from psrt.pipeline.timeline import timeline


def with_messages(
    orders: Sequence[Sequence[PipelineStep]], chunks: int
) -> list[list[PipelineStep]]:
    """Return the steps of all stages: their computations, sends and receives.

    Args:
        orders: by stage, its computations in order.
        chunks: V ≥ 1.

    Raises:
        ScheduleError: if stages wait for each other wherever the messages are placed.
    """
    stages = len(orders)
    last = stages * chunks - 1
    runs = timeline(
        orders, chunks, lambda stage, step: 0.0 if step.kind is Kind.BACKWARD_WEIGHT else 1.0
    )
    # Of each stage: (moment, 1, order within the moment) of messages, (moment, 2) of computations.
    steps: list[list[tuple[tuple[float, ...], PipelineStep]]] = [[] for _ in orders]
    for stage, done in enumerate(runs):
        for step, start, _ in done:
            kind, m, chunk, _ = step
            if kind is Kind.BACKWARD_WEIGHT:
                continue
            steps[stage].append(((start, 2), step))
            forward = kind is Kind.FORWARD
            source = chunk * stages + stage + (-1 if forward else 1)
            giver = source % stages
            if not 0 <= source <= last or giver == stage:
                continue
            sends = Kind.SEND_ACTIVATION if forward else Kind.SEND_GRADIENT
            receives = Kind.RECEIVE_ACTIVATION if forward else Kind.RECEIVE_GRADIENT
            # In a chain a stage sends before it receives: the end that waits for none comes first.
            key = (start, 1, forward, -source if forward else source)
            steps[giver].append((key, PipelineStep(sends, m, source // stages, stage)))
            steps[stage].append((key, PipelineStep(receives, m, chunk, giver)))
    return [
        list(_with_weights([step for _, step in sorted(it)], order))
        for it, order in zip(steps, orders, strict=True)
    ]


def sent_early(steps: Sequence[PipelineStep]) -> list[PipelineStep]:
    """Return the steps of a stage with each send right behind the computation of its content.

    For sends that do not block: a message that is not needed yet travels meanwhile. The order of
    messages between two stages in one direction stays the same.

    >>> from psrt.pipeline.registry import PIPELINES
    >>> steps = list(PIPELINES["1f1b"](0, 2, 2))[2:6]
    >>> print(*steps, sep=", ")
    forward of 1, receive gradient of 0 from 1, send activation of 1 to 1, backward of 0
    >>> print(*sent_early(list(PIPELINES["1f1b"](0, 2, 2)))[2:6], sep=", ")
    forward of 1, send activation of 1 to 1, receive gradient of 0 from 1, backward of 0
    """
    sends = {
        (it.kind is Kind.SEND_ACTIVATION, it.micro_batch, it.chunk): it
        for it in steps
        if it.kind in SENDING
    }
    early = []
    for step in steps:
        if step.kind in SENDING:
            continue
        early.append(step)
        if step.kind in COMPUTING and step.kind is not Kind.BACKWARD_WEIGHT:
            made = sends.get((step.kind is Kind.FORWARD, step.micro_batch, step.chunk))
            if made is not None:
                early.append(made)
    return early


def _with_weights(
    steps: Sequence[PipelineStep], order: Sequence[PipelineStep]
) -> Iterator[PipelineStep]:
    """Yield the steps with the ``BACKWARD_WEIGHT`` of ``order`` put back."""
    # By the number of passes before them.
    weights: dict[int, list[PipelineStep]] = {}
    passes = 0
    for step in order:
        if step.kind is Kind.BACKWARD_WEIGHT:
            weights.setdefault(passes, []).append(step)
        else:
            passes += 1
    passes = 0
    for step in steps:
        if step.kind not in SENDING:
            yield from weights.pop(passes, ())
        passes += step.kind is Kind.FORWARD or step.kind in BACKWARD_PASSES
        yield step
    yield from weights.pop(passes, ())
