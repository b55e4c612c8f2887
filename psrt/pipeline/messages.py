"""Where the sends and receives of a pipeline are, given what its stages compute. Pure.

A schedule says in what order stages compute. The messages follow from it, but not their places:
1F1B in which each stage sends as soon as it can and receives when it must deadlocks where sends
block, since a stage and the next one send to each other at once.

**Receive late.** What a computation needs is received right before it: so an activation takes the
memory of a micro-batch no sooner than its forward pass does, which is what the rows promise.

**Send when it is wanted.** Let every forward and backward pass take one unit of time, and messages
none. Then each message has a moment: when the computation that needs it begins. At this moment
neither end is within a computation. So all stages have their messages after the computations that
have ended by then, and before those that have not begun; messages of one moment are ordered alike
at all stages: gradients first, and where messages of a kind form a chain, that first which would
otherwise wait for the others.

**No deadlock.** By moment, and within a moment by this order, all computations and messages are in
one sequence that agrees with the steps of every stage. Of the messages that are not through, the
first in this sequence can go through: whatever its two ends have to do before comes earlier. How
long computations really take changes when that is, not that it is.

**Weights** are left out of this, since nobody waits for them: they come back to where they were,
behind the sends that follow the same backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.pipeline.step import BACKWARD_PASSES, COMPUTING, SENDING, Kind, PipelineStep
from psrt.pipeline.timeline import timeline


def with_messages(
    orders: Sequence[Sequence[PipelineStep]], chunks: int
) -> list[list[PipelineStep]]:
    """Return the steps of all stages: what they compute, send and receive.

    Args:
        orders: by stage, its computations in order.
        chunks: V ≥ 1.

    Raises:
        ScheduleError: if no placing of messages can help: stages wait for each other.
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
            # In a chain a stage sends before it receives: from the far end of the wave on.
            key = (start, 1, forward, -source if forward else source)
            steps[giver].append((key, PipelineStep(sends, m, source // stages, stage)))
            steps[stage].append((key, PipelineStep(receives, m, chunk, giver)))
    return [
        list(_with_weights([step for _, step in sorted(it)], order))
        for it, order in zip(steps, orders, strict=True)
    ]


def sent_early(steps: Sequence[PipelineStep]) -> list[PipelineStep]:
    """Return the steps of a stage with each send right behind the computation that makes it.

    For sends that do not block: what waits until it is wanted travels meanwhile. The order of
    messages between two stages in one direction stays as it is.

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
