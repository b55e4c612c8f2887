"""The protocol of an optimizer, and one step with it. Knows spans, never layers or ranks.

Every optimizer here is element-wise: element i of the next parameters depends only on element i
of the inputs and of the state, by float32 operations that round the same everywhere. So a vector
that is split into shards and blocks, in any way, ends with the same bits as the whole one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span, block_spans
from psrt.optim.schedule import LearningRate
from psrt.optim.table import OptimizerRow

#: The most elements of one update. A block of parameters, one of gradients and one of scratch then
#: take 768 KiB, and stay in a core's second-level cache from one pass over them to the next.
BLOCK = 65536


class Optimizer(Protocol):
    """Turns a gradient into the next parameters, a block at a time."""

    #: Named float32 arrays ``(n,)``: with ``updates`` the whole state of a checkpoint.
    state: dict[str, Vector]
    #: Number of updates begun so far.
    updates: int

    def begin(self, lr: float) -> None:
        """Begin an update with learning rate ``lr``; once, before its blocks."""

    def update(self, span: Span, theta: Vector, grad: Vector, out: Vector) -> None:
        """Write the next parameters of one block; allocates no array.

        Args:
            span: the block's position in the optimizer's vector of ``n`` elements; at most
                ``BLOCK`` elements, each once per update, blocks in any order.
            theta: the block of the parameters, ``(span.size,)``.
            grad: the block of the gradient; never written.
            out: receives the block of the next parameters; may be ``theta``.
        """


class RatedOptimizer(Optimizer, LearningRate, Protocol):
    """An optimizer that sets its own learning rates: ``rate``, then ``begin``, with its result."""


class OwnOptimizer(Protocol):
    """What a problem brings if updates are not made by an optimizer of psrt."""

    @property
    def row(self) -> OptimizerRow:
        """What the files of a run say of it; equal on all ranks."""
        ...

    def make(self, spans: Sequence[Span]) -> RatedOptimizer:
        """Make one for some spans of the parameters, whose elements it has side by side."""
        ...


@lru_cache(maxsize=16)
def _blocks(n: int) -> tuple[Span, ...]:
    """Return the blocks of ``n`` elements, the same tuple on every call."""
    return block_spans(n, BLOCK)


@np.errstate(all="ignore")
def step(optimizer: Optimizer, theta: Vector, grad: Vector, out: Vector, lr: float) -> None:
    """Make one whole update, block after block.

    Args:
        optimizer: made for ``n`` elements.
        theta: parameters ``(n,)``.
        grad: gradient ``(n,)``.
        out: receives the next parameters ``(n,)``; may be ``theta``.
        lr: learning rate of this update.
    """
    optimizer.begin(lr)
    update = optimizer.update
    for span in _blocks(len(theta)):
        start, stop = span
        update(span, theta[start:stop], grad[start:stop], out[start:stop])


def scalar(value: float = 0.0) -> Vector:
    """Return a 0-d float32 array: as an operand it costs numpy half as much as a Python number."""
    return np.array(value, np.float32)


def block_scratch(n: int) -> Vector:
    """Return a buffer for the largest block of a vector of ``n`` elements."""
    return np.empty(min(n, BLOCK), np.float32)
