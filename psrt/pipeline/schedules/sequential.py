"""Model parallelism without a pipeline: a micro-batch passes all stages before the next begins.

The plain way to train a model that does not fit into one rank, and the baseline of the others: one
stage computes at a time, and all others wait for it. With P = 3 and one micro-batch, one row per
stage, one column per unit of time, ``F`` forward, ``B`` and ``W`` backward to input and weights:

.. code-block:: text

    stage 0  F0  .  .  .  .  .  . B0 W0
    stage 1   . F0  .  .  . B0 W0  .  .
    stage 2   .  . F0 B0 W0  .  .  .  .

**Cost.** P·M·(f + b + w) where all stages cost the same, of which a stage computes M·(f + b + w):
the bubble is 1 − 1/P for every M. Micro-batches save memory here, not time.

**Memory.** One micro-batch's activations in each stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.pipeline.step import Kind, PipelineStep


def sequential_order(
    stage: int, stages: int, micro_batches: int, chunks: int = 1
) -> Iterator[PipelineStep]:
    """Yield the computations of ``stage``: each micro-batch forward, then immediately backward.

    Args:
        stage: in ``[0, stages)``.
        stages: P ≥ 1.
        micro_batches: M ≥ 1.
        chunks: 1.
    """
    for m in range(micro_batches):
        yield PipelineStep(Kind.FORWARD, m)
        yield PipelineStep(Kind.BACKWARD, m)
