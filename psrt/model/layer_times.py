"""How long each layer of a chain takes on this machine. Knows layers and a clock, never ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from psrt.arrays import Vector
from psrt.model.chain import ChainLayer, layer_spans


@np.errstate(all="ignore")
def layer_seconds(
    layers: Sequence[ChainLayer],
    params: Vector,
    rows: int,
    *,
    clock: Callable[[], float],
    repetitions: int = 5,
) -> tuple[float, ...]:
    """Measure forward and backward of each layer, for ``psrt.pipeline.balance``.

    Each repetition goes once through the whole chain and back, so that a layer finds the caches as
    it does in training; one more goes before them, which counts for nothing.

    Args:
        layers: from the input to the output.
        params: (n,), of all of them; only read.
        rows: of a micro-batch, as small products take longer by the row.
        clock: seconds.
        repetitions: at least 1.

    Returns:
        For each layer, the median of the seconds of a micro-batch, all passes together.
    """
    rng = np.random.default_rng(0)
    own = [span.of(params) for span in layer_spans(layers)]

    def random(width: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return rng.standard_normal((rows, width), np.float32)

    values = [random(layers[0].inputs), *(random(layer.outputs) for layer in layers)]
    deltas = [None, *(random(layer.outputs) for layer in layers)]
    saved = [random(layer.saved) for layer in layers]
    gradients = [np.empty(layer.n, np.float32) for layer in layers]
    taken: list[list[float]] = [[] for _ in layers]
    for _ in range(repetitions + 1):
        for i, layer in enumerate(layers):
            start = clock()
            layer.forward(values[i], own[i], values[i + 1], saved[i])
            taken[i].append(clock() - start)
        above = deltas[-1]
        assert above is not None
        above[...] = values[0].flat[0]  # what the pass before left there is no gradient
        for i in range(len(layers) - 1, -1, -1):
            layer, dy = layers[i], deltas[i + 1]
            assert dy is not None
            start = clock()
            layer.backward_input(dy, values[i], values[i + 1], saved[i], own[i], deltas[i])
            layer.backward_weight(dy, values[i], values[i + 1], saved[i], gradients[i])
            taken[i][-1] += clock() - start
    return tuple(median(seconds[1:]) for seconds in taken)
