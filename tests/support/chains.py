"""Chains and stages driven by hand, and an MLP held against one in float64."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from psrt.model import MLP
from psrt.model.stage import Stage
from support.reference import Batch, Network


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def in_float64(
    sizes: Sequence[int],
    theta: Any,
    x: Any,
    y: Any,
    *,
    activation: str = "relu",
    loss: str = "cross-entropy",
) -> tuple[float, Any, Any]:
    """Return the mean loss, the gradient and the outputs of an MLP, in float64."""
    knobs = {"hidden": sizes[1:-1], "activation": activation, "loss": loss, "clip_norm": None}
    network, theta = Network(knobs, sizes[0], sizes[-1]), theta.astype(float)
    outputs, _ = network.forward(theta, x)
    return network.loss(outputs, y)[0], network.gradient(theta, Batch(0.0, x, y)), outputs


def problem(
    sizes: Sequence[int],
    rows: int,
    *,
    activation: str = "relu",
    loss: str = "cross-entropy",
    targets: bool = False,
    seed: int = 0,
) -> tuple[MLP, Any, Any, Any]:
    """Return an MLP, parameters with biases that are not zero, and a batch."""
    rng = np.random.default_rng(seed)
    model = MLP(sizes, activation=activation, loss=loss, batch_size=max(1, rows))
    theta = model.initial(rng) + rng.normal(0, 0.1, model.n).astype(np.float32)
    x = rng.standard_normal((rows, sizes[0])).astype(np.float32)
    y: Any = rng.integers(0, sizes[-1], rows)
    if targets:
        y = rng.standard_normal((rows, sizes[-1])).astype(np.float32)
    return model, theta, x, y


def spans_of(stages: Sequence[Stage]) -> list[slice]:
    """Return where each stage's parameters lie in theta."""
    ends = np.cumsum([0, *(stage.n for stage in stages)])
    return [slice(a, b) for a, b in pairwise(ends)]


class Lockstep:
    """Slices in one process: each reduction waits until all of them have come to it."""

    def __init__(self, slices: int) -> None:
        self.groups = [_Member() for _ in range(slices)]
        #: The number of sums and of maxima of each slice, and elements in all of them.
        self.sums = self.maxima = self.elements = 0

    def run(self, coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Return what each slice's coroutine returns."""
        results: list[Any] = [None] * len(coroutines)
        while True:
            asked = []
            for i, coroutine in enumerate(coroutines):
                try:
                    asked.append(coroutine.send(None))
                except StopIteration as end:
                    results[i] = end.value
            if not asked:
                return results
            (name,) = {name for name, _ in asked}
            arrays = [array for _, array in asked]
            assert len(arrays) == len(coroutines), "all slices wait, or none"
            assert len({array.shape for array in arrays}) == 1
            assert all(array.flags.c_contiguous and array.dtype == np.float32 for array in arrays)
            total = arrays[0].copy()
            for array in arrays[1:]:
                total = total + array if name == "sum" else np.maximum(total, array)
            for array in arrays:
                array[...] = total
            self.sums += name == "sum"
            self.maxima += name == "max"
            self.elements += total.size


class _Member:
    def sum(self, array: Any) -> Awaitable[None]:
        return _Wait("sum", array)

    def max(self, array: Any) -> Awaitable[None]:
        return _Wait("max", array)


class _Wait:
    def __init__(self, name: str, array: Any) -> None:
        self.asked = name, array

    def __await__(self) -> Generator[Any, None, None]:
        yield self.asked
