"""What the passes of each layer cost, alone in one process: in products of all rows, and of few.

The layers go through a step by micro-batches as in a pipeline: all forward, then all backward, the
gradients of weights added up. So their parameters are in the caches as little, or as much, as in a
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from psrt.core.arrays import AnyArray, FloatArray, Vector
from psrt.core.partition import even_spans
from psrt.model.chain import ChainLayer, layer_spans
from psrt.model.stage import Stage, StageLoss
from psrt.model.stage_memory import Boundary, StageShape
from psrt.pipeline.cost import Slowdown, StageCosts
from psrt.pipeline.step import Kind
from psrt.transport import drive

#: The three passes of a layer, in the order of ``StageCosts``.
PASSES = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)


class LayerTimes:
    """Steps of a model in one process, each layer a stage of its own, whose passes are timed."""

    def __init__(
        self,
        layers: Sequence[ChainLayer],
        loss: StageLoss,
        batch: tuple[FloatArray, Any],
        theta: Vector,
        *,
        micro_batches: int,
    ) -> None:
        """Reserve the memory of a step.

        Args:
            layers: of the model, at least two.
            loss: of the last one.
            batch: inputs and targets.
            theta: (n,) the parameters.
            micro_batches: number of parts that the batch is computed in.
        """
        self._x, self._y = batch
        rows = len(self._x)
        self._parts = even_spans(rows, micro_batches)
        #: Rows of a micro-batch.
        self.rows = self._parts[0].size
        widths = [layer.outputs for layer in layers[:-1]]
        values = [None, *(np.empty((rows, width), np.float32) for width in widths), None]
        deltas = [None, *(np.empty((rows, width), np.float32) for width in widths), None]
        sides = zip(pairwise(values), pairwise(deltas), strict=True)
        self._stages = [
            Stage(
                [layer],
                StageShape(rows=rows, micro_batches=micro_batches, split=True, first=not i),
                loss=loss if i == len(layers) - 1 else None,
                boundary=Boundary(
                    inputs=below,
                    outputs=above,
                    input_gradients=back_below,
                    output_gradients=back_above,
                ),
            )
            for i, (layer, ((below, above), (back_below, back_above))) in enumerate(
                zip(layers, sides, strict=True)
            )
        ]
        gradient, spans = np.empty_like(theta), layer_spans(layers)
        self._params = [span.of(theta) for span in spans]
        self._gradients = [span.of(gradient) for span in spans]
        self._bytes = [4.0 * rows * layer.outputs for layer in layers]
        #: By layer and pass, the seconds of a step, turn by turn.
        self._turns: list[list[list[float]]] = [[[] for _ in PASSES] for _ in layers]

    def run(self, steps: int) -> float:
        """Compute some steps; return the seconds of their passes."""
        seconds = np.zeros((len(self._stages), len(PASSES)))
        for _ in range(steps):
            drive(self._step(seconds))
        for passes, turns in zip(seconds, self._turns, strict=True):
            for taken, readings in zip(passes, turns, strict=True):
                readings.append(float(taken) / steps)
        return float(seconds.sum())

    async def _step(self, seconds: AnyArray) -> None:
        stages = self._stages
        for stage, *vectors in zip(stages, self._params, self._gradients, strict=True):
            stage.begin(len(self._x), *vectors)
        for m, span in enumerate(self._parts):
            np.copyto(stages[0].input(m), self._x[slice(*span)])
            for i, stage in enumerate(stages):
                start = perf_counter()
                await stage.forward(m)
                seconds[i, 0] += perf_counter() - start
        for m, span in enumerate(self._parts):
            for i, stage in reversed([*enumerate(stages)]):
                targets = self._y[slice(*span)] if stage.computes_loss else None
                start = perf_counter()
                await stage.backward_input(m, targets)
                half = perf_counter()
                stage.backward_weight(m)
                seconds[i, 1] += half - start
                seconds[i, 2] += perf_counter() - half

    def costs(self) -> list[StageCosts]:
        """Return what a step costs in each layer: the medians of the turns."""
        return [
            StageCosts(median(forward), median(to_input), median(to_weight), nbytes)
            for (forward, to_input, to_weight), nbytes in zip(self._turns, self._bytes, strict=True)
        ]


class PassCosts(NamedTuple):
    """What the passes of each layer cost in products of all rows and in products of few."""

    whole: Sequence[StageCosts]
    small: Sequence[StageCosts]
    #: Rows of the small ones.
    rows: int
    #: Rows of all.
    all_rows: int = 0

    def of_rows(self, rows: int) -> PassCosts:
        """Return what a batch of other rows costs, between those of a micro-batch and all.

        A product costs a constant and a time per row: it is on the line between the two.

        >>> costs = PassCosts([StageCosts(8, 8, 8)], [StageCosts(11, 8, 8)], 2, 8).of_rows(4)
        >>> costs.whole, costs.small
        ([StageCosts(forward=4.5, backward_input=4.0, backward_weight=4.0, nbytes=0.0)], \
[StageCosts(forward=5.5, backward_input=4.0, backward_weight=4.0, nbytes=0.0)])
        """
        part = rows / self.all_rows
        # Where between the two, by 1/rows.
        place = 0.0
        if self.rows < self.all_rows:
            place = (1 / rows - 1 / self.all_rows) / (1 / self.rows - 1 / self.all_rows)
        whole = [
            StageCosts(*(part * (a + place * (b - a)) for a, b in zip(one, few, strict=True)))
            for one, few in zip(self.whole, self.small, strict=True)
        ]
        small = [StageCosts(*(part * it for it in few)) for few in self.small]
        return PassCosts(whole, small, self.rows, rows)

    @property
    def slowdown(self) -> Slowdown:
        """How often as long the small products take, all layers together; see ``pipeline.cost``.

        >>> costs = PassCosts([StageCosts(4, 4, 4)], [StageCosts(5, 6, 7)], 32)
        >>> costs.slowdown(Kind.BACKWARD_INPUT, 32), costs.slowdown(Kind.BACKWARD_INPUT, 256)
        (1.5, 1.0)
        """
        factors = {
            kind: sum(it.of(kind) for it in self.small) / sum(it.of(kind) for it in self.whole)
            for kind in PASSES
        }
        return lambda kind, rows: factors[kind] if rows <= self.rows else 1.0


def of_stages(costs: Sequence[StageCosts], counts: Sequence[int]) -> list[StageCosts]:
    """Return what stages cost.

    Args:
        costs: of each layer.
        counts: number of layers of each stage.

    >>> of_stages([StageCosts(1, 2, 3, 4), StageCosts(5, 6, 7, 8)], [2])
    [StageCosts(forward=6, backward_input=8, backward_weight=10, nbytes=8)]
    """
    found, start = [], 0
    for count in counts:
        own = costs[start : start + count]
        start += count
        forward, to_input, to_weight, _ = (sum(it) for it in zip(*own, strict=True))
        found.append(StageCosts(forward, to_input, to_weight, own[-1].nbytes))
    return found
