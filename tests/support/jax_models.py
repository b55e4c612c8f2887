"""A small model in JAX, with dropout, and its data."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

import psrt.jax

FEATURES, HIDDEN, CLASSES, SAMPLES = 6, 8, 3, 48


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and classes that a line can tell apart, but for noise."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    return x, (x[:, :CLASSES] + 0.3 * rng.standard_normal((SAMPLES, CLASSES))).argmax(axis=1)


def initial() -> Any:
    """Return the parameters: a tree of dictionaries and lists."""
    rng = np.random.default_rng(6)
    shapes = [(FEATURES, HIDDEN), (HIDDEN, CLASSES)]
    return [
        {
            "weight": jnp.asarray(rng.standard_normal(shape).astype(np.float32)),
            "bias": jnp.zeros(shape[1], jnp.float32),
        }
        for shape in shapes
    ]


def outputs(params: Any, x: Any, key: Any = None) -> Any:
    """Return (B, CLASSES)."""
    hidden = jax.nn.relu(x @ params[0]["weight"] + params[0]["bias"])
    if key is not None:
        hidden = jnp.where(jax.random.bernoulli(key, 0.5, hidden.shape), 2 * hidden, 0)
    return hidden @ params[1]["weight"] + params[1]["bias"]


def loss(params: Any, batch: Any, key: Any = None) -> Any:
    """Return the mean cross entropy."""
    x, y = batch
    logs = jax.nn.log_softmax(outputs(params, x, key))
    return -jnp.mean(jnp.take_along_axis(logs, y[:, None], axis=1))


def plain(params: Any, batch: Any) -> Any:
    """Return the same without dropout."""
    return loss(params, batch)


def dropped(params: Any, batch: Any, key: Any) -> Any:
    """Return the same with dropout, even where it is evaluated."""
    return loss(params, batch, key)


def accuracy(params: Any, batch: Any) -> Any:
    """Return the share of right classes."""
    x, y = batch
    return jnp.mean(outputs(params, x).argmax(axis=1) == y)


def problem(of: Any = plain, **more: Any) -> psrt.jax.Problem:
    """Return the problem, of 4 samples a step."""
    knobs: dict[str, Any] = {"batch_size": 4, "seed": 3, "accuracy": accuracy} | more
    return psrt.jax.Problem(of, initial(), data(), data(), **knobs)
