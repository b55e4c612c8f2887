"""PipeDream: 1F1B that never stops for an update, at the price of stale gradients.

Batches are not split into micro-batches: K whole batches follow one another through the stages. A
stage updates its parameters after every backward pass, without waiting for other stages. The order
is that of 1F1B over the whole run. It is drained at the ends of epochs, to evaluate the model, so
"run" means one epoch below. With P = 3 and K = 4, and an update behind each ``W``:

.. code-block:: text

    stage 0  F0 F1 F2  .  . B0 W0 F3 B1 W1  . B2 W2  . B3 W3
    stage 1   . F0 F1  . B0 W0 F2 B1 W1 F3 B2 W2  . B3 W3  .
    stage 2   .  . F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3  .  .

**Stashed weights.** The gradient of batch k must be of the parameters that took k forward. So a
stage keeps that version until k is back: backward passes and updates are by version. Different
stages take a batch forward with different versions.

**Staleness.** When stage s takes k ≥ P − s − 1 forward, it has done k − (P − s − 1) backward
passes; when k comes back, it has done k. So its gradient is of parameters that are τ = P − s − 1
updates old, and the last stage's are fresh. The first batches have τ = k, which is less.

**Cost.** A bubble only at the start and the end of the run: (P − 1)·(f + b), so
(2P − 2)/(3K + 2P − 2) where f = b = w, which tends to 0.

**Memory.** min(K, P − s) batches are alive in stage s, and P − s versions of its parameters,
including the current one.

Source: Narayanan et al., "PipeDream: Generalized pipeline parallelism for DNN training", SOSP 2019.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.pipeline.schedules.one_f_one_b import one_f_one_b_order
from psrt.pipeline.step import PipelineStep


def pipedream_order(
    stage: int, stages: int, micro_batches: int, chunks: int = 1
) -> Iterator[PipelineStep]:
    """Yield the computations of ``stage``, with an update after each backward pass.

    Args:
        stage: in ``[0, stages)``.
        stages: P ≥ 1.
        micro_batches: K ≥ 1, the number of batches.
        chunks: 1.
    """
    yield from one_f_one_b_order(stage, stages, micro_batches)


def pipedream_staleness(stage: int, stages: int, batch: int) -> int:
    """Return τ: how many updates old the parameters of a stage's gradient are.

    Args:
        stage: s, in ``[0, stages)``.
        stages: P ≥ 1.
        batch: k ≥ 0, the k-th of the run.

    >>> [pipedream_staleness(0, 4, k) for k in range(6)]
    [0, 1, 2, 3, 3, 3]
    """
    return min(batch, stages - stage - 1)
