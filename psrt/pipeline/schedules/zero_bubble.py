"""Zero-bubble ZB-H1: gradients of weights wait until there is nothing else to do.

A backward pass has two parts. The previous stage waits for the gradient of the input, but no stage
waits for that of the weights. So stages go forward and backward as in 1F1B, but backward only to
inputs, which brings micro-batches back sooner. The gradients of weights come later: stage s is s of
them behind, so that the later stages have some left for the end, where in 1F1B they are idle. With
P = 3 and M = 4:

.. code-block:: text

    stage 0  F0 F1 F2  .  . B0 W0 F3 B1 W1 B2 W2 B3 W3
    stage 1   . F0 F1  . B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
    stage 2   .  . F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

**Cost.** In 1F1B every stage is idle for (P − 1)·(f + b). Here postponed weights fill (P − 1)·k of
it, k = min(f, b, w): one gap for each stage that a micro-batch comes back through. With
M ≥ P

    T = M·(f + b + w) + (P − 1)·(f + b − k),    bubble = (P − 1)/(3M + P − 1) where f = b = w

half of 1F1B's idle time, and a third of the idle time if stages waited for w, too. With M < P there
are too few weights, and (P − M)·k more is idle. (The paper has the case f = b = w. That k is the
least of the three agrees with the clocks for all times that the tests try.)

**Memory.** min(M, P) micro-batches in every stage: P − s in flight, as in 1F1B, and s whose weights
wait. The first stage needs no more than in 1F1B, and the others as much as the first.

**Deferred.** With the weights of all micro-batches in one product at the end there is nothing left
to fill the bubble with, and this is 1F1B with deferred weights: (P − 1)·(f + b) is idle.

Source: Qi, Wan, Huang and Lin, "Zero bubble pipeline parallelism", ICLR 2024 (2401.10241): ZB-H1.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.pipeline.schedules.one_f_one_b import one_f_one_b_order
from psrt.pipeline.step import Kind, PipelineStep


def zero_bubble_order(
    stage: int, stages: int, micro_batches: int, chunks: int = 1
) -> Iterator[PipelineStep]:
    """Yield the computations of ``stage``: those of 1F1B, weights ``stage`` micro-batches later.

    Args:
        stage: in ``[0, stages)``.
        stages: P ≥ 1.
        micro_batches: M ≥ 1.
        chunks: 1.
    """
    for step in one_f_one_b_order(stage, stages, micro_batches):
        if step.kind is Kind.FORWARD:
            yield step
            continue
        yield step._replace(kind=Kind.BACKWARD_INPUT)
        if step.micro_batch >= stage:
            yield PipelineStep(Kind.BACKWARD_WEIGHT, step.micro_batch - stage)
    for m in range(max(0, micro_batches - stage), micro_batches):
        yield PipelineStep(Kind.BACKWARD_WEIGHT, m)
