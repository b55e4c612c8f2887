"""GPipe: all micro-batches forward, then all backward.

A stage begins with a micro-batch as soon as the previous stage has finished it, so all stages
compute after P − 1 steps. With P = 3 and M = 4:

.. code-block:: text

    stage 0  F0 F1 F2 F3  .  .  .  . B0 W0 B1 W1 B2 W2 B3 W3
    stage 1   . F0 F1 F2 F3  .  . B0 W0 B1 W1 B2 W2 B3 W3  .
    stage 2   .  . F0 F1 F2 F3 B0 W0 B1 W1 B2 W2 B3 W3  .  .

**Cost.** The last stage begins P − 1 forward passes after the first. On the way back a stage sends
the gradient of its input before it computes that of its weights, which no stage waits for. So the
first stage ends P − 1 passes to the input after the last. Where all stages cost the same, no stage
waits in between:

    T = M·(f + b + w) + (P − 1)·(f + b),    bubble = (2P − 2)/(3M + 2P − 2) where f = b = w

In the paper both gradients are one pass, and all earlier stages wait for the whole pass: that is
(P − 1)·(f + b + w) of waiting, and a bubble of (P − 1)/(M + P − 1).

**Memory.** When the direction turns, all M micro-batches are alive in every stage.

The paper goes backward in descending order. Here it is ascending, as in all schedules, so that sums
of gradients have one order; bubble and memory are the same.

Source: Huang et al., "GPipe: Efficient training of giant neural networks using pipeline
parallelism", NeurIPS 2019 (1811.06965).
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.pipeline.step import Kind, PipelineStep


def gpipe_order(
    stage: int, stages: int, micro_batches: int, chunks: int = 1
) -> Iterator[PipelineStep]:
    """Yield the computations of ``stage``: all forward, then all backward.

    Args:
        stage: in ``[0, stages)``; all stages do the same.
        stages: P ≥ 1.
        micro_batches: M ≥ 1.
        chunks: 1.
    """
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        for m in range(micro_batches):
            yield PipelineStep(kind, m)
