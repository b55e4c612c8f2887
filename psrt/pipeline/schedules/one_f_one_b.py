"""1F1B: one forward, one backward, so that activations live no longer than they must.

Stage s first takes P − s − 1 micro-batches forward, one for each stage behind it. Then it takes one
forward and one backward in turn, and at the end the remaining ones backward. With P = 3 and M = 4:

.. code-block:: text

    stage 0  F0 F1 F2  .  . B0 W0 F3 B1 W1  . B2 W2  . B3 W3
    stage 1   . F0 F1  . B0 W0 F2 B1 W1 F3 B2 W2  . B3 W3  .
    stage 2   .  . F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3  .  .

**Cost.** The same as GPipe's: the last stage begins after P − 1 forward passes and never waits, and
the first stage ends P − 1 passes to the input after it. In between messages have time to travel: a
micro-batch has (P − 1)·w to spare on its way to the last stage and back.

    T = M·(f + b + w) + (P − 1)·(f + b),    bubble = (2P − 2)/(3M + 2P − 2) where f = b = w

**Memory.** min(M, P − s) micro-batches are alive in stage s, instead of M: it takes a new one
forward only after an old one came back. So M may be as large as a small bubble requires.

Source: Narayanan et al., "PipeDream: Generalized pipeline parallelism for DNN training", SOSP 2019,
for the order; with one update per batch, as here, it is PipeDream-Flush: Narayanan et al., ICML
2021 (2006.09503).
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.pipeline.step import Kind, PipelineStep


def one_f_one_b_order(
    stage: int, stages: int, micro_batches: int, chunks: int = 1
) -> Iterator[PipelineStep]:
    """Yield the computations of ``stage``.

    Args:
        stage: in ``[0, stages)``; first takes ``stages - stage - 1`` micro-batches forward.
        stages: P ≥ 1.
        micro_batches: M ≥ 1.
        chunks: 1.

    >>> [f"{it.kind.value[0]}{it.micro_batch}" for it in one_f_one_b_order(0, 2, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    ahead = min(stages - stage - 1, micro_batches)
    for m in range(ahead):
        yield PipelineStep(Kind.FORWARD, m)
    for m in range(micro_batches):
        if m + ahead < micro_batches:
            yield PipelineStep(Kind.FORWARD, m + ahead)
        yield PipelineStep(Kind.BACKWARD, m)
