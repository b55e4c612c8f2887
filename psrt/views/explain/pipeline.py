"""A pipeline explained: when each stage computes what, and the figures that follow."""

from __future__ import annotations

from dataclasses import dataclass

from psrt.pipeline import PIPELINES, PipelineSchedule
from psrt.pipeline.cost import PipelinePrice, StageCosts, price
from psrt.pipeline.proof import Proof, proved

#: Sizes that are drawn quickly.
MOST_STAGES, MOST_MICRO_BATCHES = 32, 128
#: Chunks of a stage in the comparison.
_CHUNKS = (2, 4)


@dataclass(frozen=True, slots=True)
class Explained:
    """A schedule of these stages and micro-batches; each pass takes one unit of time."""

    row: PipelineSchedule
    stages: int
    micro_batches: int
    chunks: int
    deferred: bool
    price: PipelinePrice
    proof: Proof

    @property
    def name(self) -> str:
        """The schedule, as users write it."""
        return f"{self.row.name}:{self.chunks}" if self.row.chunked else self.row.name

    @property
    def speedup(self) -> float:
        """Speedup over a single stage, if small products were as efficient as large ones."""
        return self.stages * (1 - self.price.bubble)

    @property
    def alive(self) -> tuple[float, ...]:
        """By stage: most activations that are alive at a time, in units of a whole stage's."""
        return tuple(it / self.chunks for it in self.proof.alive)


def explained(
    row: PipelineSchedule,
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    *,
    deferred: bool = False,
) -> Explained:
    """Prove a schedule and run it on simulated clocks.

    Args:
        row: of the registry.
        stages: P ≥ 1.
        micro_batches: M ≥ 1.
        chunks: V ≥ 1.
        deferred: whether the weight gradients are computed at the end, in one product.

    Raises:
        ConfigError: if there is no such pipeline.
    """
    row.check(stages, micro_batches, chunks, deferred=deferred)
    plan = row.plan(stages, micro_batches, chunks, deferred=deferred)
    # A pass of a micro-batch in a chunk takes 1.
    cost = StageCosts(micro_batches, micro_batches, micro_batches)
    return Explained(
        row=row,
        stages=stages,
        micro_batches=micro_batches,
        chunks=chunks,
        deferred=deferred,
        price=price(plan, [cost] * (stages * chunks), [1] * micro_batches),
        proof=proved(row, stages, micro_batches, chunks, deferred=deferred),
    )


def compared(stages: int, micro_batches: int) -> list[Explained]:
    """Return every schedule of these sizes, and also with deferred weights if that is possible.

    Args:
        stages: P ≥ 1.
        micro_batches: M ≥ 1.
    """
    return [
        explained(row, stages, micro_batches, chunks, deferred=deferred)
        for deferred in (False, True)
        for row in PIPELINES.values()
        if row.defers or not deferred
        for chunks in (_CHUNKS if row.chunked else (1,))
    ]
