"""Interleaved 1F1B: each stage has V pieces of the model, so that its first work comes sooner.

The model is split into V·P virtual stages, of which stage s has s, P + s, 2P + s, …: its chunks. A
micro-batch goes around all stages V times in each direction. A pass of one chunk takes 1/V of the
time, and the last stage has work after P − 1 such passes. Micro-batches go in groups of at least P:
a group passes chunk 0, then chunk 1, and so on; backward the last chunk comes first.
A stage first takes 2·(P − s − 1) + (V − 1)·G passes forward, G the size of a group, then
one forward and one backward in turn. With P = 2, V = 2 and M = 3, ``a`` and ``b`` the chunks:

.. code-block:: text

    stage 0  F0a F1a F2a F0b F1b F2b B0b W0b   . B1b W1b   . B2b W2b B0a W0a B1a W1a B2a W2a
    stage 1    . F0a F1a F2a F0b B0b W0b F1b B1b W1b F2b B2b W2b B0a W0a B1a W1a B2a W2a   .

**Cost.** The wait of 1F1B, P − 1 passes forward and as many to the input, but of chunks instead of
stages, each a V-th as long. With M ≥ P, and w ≤ f

    T = M·(f + b + w) + (P − 1)·(f + b)/V,    bubble = (2P − 2)/(3V·M + 2P − 2) where f = b = w

Where w is larger and M ≥ 2P, a stage that turns to the next group still has weights to compute that
others did not wait for. Then max((P − 1)·(f + b), (P − 2)·(b + w))/V is idle, at least up to
w = f + b. With fewer micro-batches than stages the first stage waits for each of them to come
around. Then (V − 1)·(P − M) more passes in each direction are idle, of which weights fill
(V − 1)·min(M·w, (P − M)·b). (Both formulas agree with the clocks for all times that the tests try.)
The price is messages: V·P − 1 instead of P − 1 in each direction for every micro-batch.

**Memory.** min(V·M, 2·(P − s − 1) + (V − 1)·G + 1) micro-batches are alive in the chunks of stage s
together, each with 1/V of a stage's activations.

**Any M.** The paper has groups of P, and M a multiple of P. A smaller last group would not have
come around when its passes are due: stages would idle, and for many P and M deadlock. So M is
divided into ⌊M/P⌋ groups, as even as possible, each of P or more. Then no stage waits for a group
to come around, and the bubble is the formula's for every M ≥ P. Where P divides M the groups are
the paper's.

Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM", SC 2021 (2104.04473).
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.core.partition import even_spans
from psrt.pipeline.step import Kind, PipelineStep


def interleaved_order(
    stage: int, stages: int, micro_batches: int, chunks: int = 1
) -> Iterator[PipelineStep]:
    """Yield the computations of ``stage``; with one chunk they are nearly those of 1F1B.

    Args:
        stage: in ``[0, stages)``.
        stages: P ≥ 1.
        micro_batches: M ≥ 1.
        chunks: V ≥ 1, of each stage.
    """
    groups = even_spans(micro_batches, max(1, micro_batches // stages))

    def passes(kind: Kind, order: range) -> list[PipelineStep]:
        return [
            PipelineStep(kind, m, chunk)
            for group in groups
            for chunk in order
            for m in range(*group)
        ]

    forward = passes(Kind.FORWARD, range(chunks))
    backward = passes(Kind.BACKWARD, range(chunks)[::-1])
    ahead = warm_up(stage, stages, micro_batches, chunks)
    yield from forward[:ahead]
    for i, step in enumerate(backward):
        yield from forward[ahead + i : ahead + i + 1]
        yield step


def warm_up(stage: int, stages: int, micro_batches: int, chunks: int) -> int:
    """Return the number of forward passes before the first pair of one forward, one backward.

    Args:
        stage: in ``[0, stages)``.
        stages: P ≥ 1.
        micro_batches: M ≥ 1.
        chunks: V ≥ 1, of each stage.
    """
    group = even_spans(micro_batches, max(1, micro_batches // stages))[0].size
    return min(chunks * micro_batches, 2 * (stages - stage - 1) + (chunks - 1) * group)
