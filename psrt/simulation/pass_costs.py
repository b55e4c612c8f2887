"""The time of the passes of a pipeline, as parts of the time of a gradient. Pure.

``SimulationCosts.compute`` draws the time that a worker would take for the gradient of a whole
batch and the whole model, in one product per layer. A pass computes a part of it:

    time of a pass = that time × share of the stage and kind × rows / batch size × slowdown

Without ``SimulationCosts.stages`` a layer's share is that of its parameters: each is used once
forward, once backward to the inputs (except in the first layer) and once backward to the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psrt.core.errors import ConfigError
from psrt.core.units import plural
from psrt.pipeline.cost import Slowdown, StageCosts
from psrt.pipeline.step import Kind, PipelineStep

_PARTS = {
    Kind.FORWARD: (Kind.FORWARD,),
    Kind.BACKWARD: (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT),
    Kind.BACKWARD_INPUT: (Kind.BACKWARD_INPUT,),
    Kind.BACKWARD_WEIGHT: (Kind.BACKWARD_WEIGHT,),
}


@dataclass(frozen=True, slots=True)
class PassCosts:
    """The costs of the passes of one stage, or of one slice of it where there are several."""

    #: By chunk: shares of the time of the whole gradient.
    shares: Sequence[StageCosts]
    #: Rows of a whole batch.
    rows: int
    #: How many times as long a row takes in a product of few rows.
    slowdown: Slowdown
    #: Whether a backward pass first repeats the forward pass.
    recomputes: bool = False
    #: Seconds that a pass takes beside its products; one to inputs and weights counts twice.
    beside_s: float = 0.0

    def beside(self, step: PipelineStep, rows: int) -> float:
        """Return what a pass over ``rows`` rows takes beside its products, in seconds."""
        return self.beside_s * len(_PARTS[step.kind]) if rows else 0.0

    def share_of(self, step: PipelineStep, rows: int) -> float:
        """Return the part of a gradient's time that a pass over ``rows`` rows takes."""
        kinds = _PARTS[step.kind]
        if self.recomputes and Kind.BACKWARD_INPUT in kinds:
            kinds = (Kind.FORWARD, *kinds)
        costs = self.shares[step.chunk]
        each = (costs.of(kind) * self.slowdown(kind, rows) for kind in kinds)
        return sum(each) * rows / self.rows if rows else 0.0


def shares_of(
    stages: Sequence[StageCosts], layers: Sequence[Sequence[int]], *, slices: int = 1
) -> list[StageCosts]:
    """Return the part of a gradient's time that each virtual stage takes.

    Args:
        stages: the cost of each stage, in any unit; empty: in proportion to its parameters.
        layers: by stage, the number of parameters of each of its layers.
        slices: the number of slices of each layer, which cost the same.

    Raises:
        ConfigError: if the number of costs is not the number of stages.

    >>> [round(it.seconds, 3) for it in shares_of([], [[1, 1], [1, 1]])]
    [0.455, 0.545]
    """
    sizes = [sum(it) for it in layers]
    given = stages or [
        StageCosts(n, n - (0 if i else layers[0][0]), n) for i, n in enumerate(sizes)
    ]
    if len(given) != len(sizes):
        raise ConfigError(
            f"--stage-costs has {plural(len(given), 'part')}, but the model is split into "
            f"{len(sizes)}"
        )
    whole = slices * sum(it.seconds for it in given)
    return [
        StageCosts(
            *(it / whole for it in (cost.forward, cost.backward_input, cost.backward_weight))
        )
        for cost in given
    ]
