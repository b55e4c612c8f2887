"""Chains and stages driven by hand, and an MLP in float64 that shares no code with psrt."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from psrt.model import MLP
from psrt.model.stage import Stage

_C = math.sqrt(2 / math.pi)


def _gelu(z: Any) -> Any:
    return 0.5 * z * (1 + np.tanh(_C * (z + 0.044715 * z**3)))


def _gelu_slope(z: Any) -> Any:
    t = np.tanh(_C * (z + 0.044715 * z**3))
    return 0.5 * (1 + t) + 0.5 * z * (1 - t**2) * _C * (1 + 3 * 0.044715 * z**2)


ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0).astype(float)),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "gelu": (_gelu, _gelu_slope),
}


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def layers_of(sizes: Sequence[int], vector: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the weight and bias of each layer."""
    found, at = [], 0
    for a, b in pairwise(sizes):
        found.append((vector[at : at + a * b].reshape(a, b), vector[at + a * b : at + a * b + b]))
        at += a * b + b
    assert at == vector.size
    return found


def in_float64(
    sizes: Sequence[int],
    theta: Any,
    x: Any,
    y: Any,
    *,
    activation: str = "relu",
    loss: str = "cross-entropy",
) -> tuple[float, Any, list[Any]]:
    """Return the mean loss, the gradient and every layer's values of an MLP, in float64."""
    layers, rows = layers_of(sizes, theta.astype(float)), len(x)
    f, slope = ACTIVATIONS[activation]
    sums, values = [], [x.astype(float)]
    for i, (weight, bias) in enumerate(layers):
        sums.append(values[-1] @ weight + bias)
        values.append(sums[-1] if i == len(layers) - 1 else f(sums[-1]))
    targets = np.eye(sizes[-1])[y] if y.ndim == 1 else y
    if loss == "cross-entropy":
        top = values[-1] - values[-1].max(axis=1, keepdims=True)
        logs = top - np.log(np.exp(top).sum(axis=1, keepdims=True))
        mean, delta = -(logs * targets).sum() / rows, (np.exp(logs) - targets) / rows
    else:
        delta = values[-1] - targets
        mean, delta = 0.5 * (delta**2).sum() / rows, delta / rows
    parts: list[np.ndarray] = []
    for i in range(len(layers) - 1, -1, -1):
        parts[:0] = [(values[i].T @ delta).ravel(), delta.sum(axis=0)]
        if i:
            delta = (delta @ layers[i][0].T) * slope(sums[i - 1])
    return mean, np.concatenate(parts), values


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
