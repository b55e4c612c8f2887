"""Activations of hidden layers, in place. Knows one layer's matrix, never layers or parameters.

A forward pass overwrites the layer's sums ``z`` with its values ``h``. The backward pass only
reads ``h``: it is also the next layer's input, whose weight gradient may be taken later.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from psrt.core.arrays import FloatArray
from psrt.model.workspace import Workspace

#: 0-d arrays: numpy turns them into operands without the cost of converting a Python number.
ZERO = np.zeros((), np.float32)
ONE = np.ones((), np.float32)
HALF = np.full((), 0.5, np.float32)
_SIGN_BIT = np.full((), 31, np.int32)


class Activation(Protocol):
    """The nonlinearity of a hidden layer, without state of its own."""

    @property
    def saves(self) -> bool:
        """Whether the forward pass saves an array of the shape of ``z`` for the backward pass."""

    def forward(self, z: FloatArray, saved: FloatArray, space: Workspace) -> None:
        """Overwrite the sums ``z`` (b, d) with the layer's values.

        Args:
            z: C-contiguous.
            saved: (b, d), to be filled where the activation saves something.
            space: scratch memory, whose content does not last until the next call.
        """

    def backward(
        self, h: FloatArray, saved: FloatArray, delta: FloatArray, space: Workspace
    ) -> None:
        """Multiply ``delta`` (b, d) by the slope at a forward pass.

        Args:
            h: (b, d), the values of that pass; only read.
            saved: (b, d), what that pass saved; only read.
            delta: C-contiguous.
            space: scratch memory, whose content does not last until the next call.
        """


class Relu:
    """max(z, 0); the slope at 0 is taken as 0.

    >>> z = np.array([[-2, 0, 3]], np.float32)
    >>> Relu().forward(z, z[:, :0], Workspace())
    >>> z
    array([[0., 0., 3.]], dtype=float32)

    Source: Glorot, Bordes, Bengio, AISTATS 2011.
    """

    saves = False

    def forward(self, z: FloatArray, saved: FloatArray, space: Workspace) -> None:
        """Clamp ``z`` at zero from below; NaN stays NaN."""
        # numpy's maximum takes four times as long with a number.
        np.maximum(z, space.zeros(*z.shape), out=z)

    def backward(
        self, h: FloatArray, saved: FloatArray, delta: FloatArray, space: Workspace
    ) -> None:
        """Zero ``delta`` wherever the value was not positive.

        The sign bit of 0 − h, spread over the word, is a bit mask. This costs three plain passes;
        comparing and multiplying by booleans makes numpy convert in a buffer, and writing where a
        mask is set takes ten times as long.
        """
        negative = space.scratch(*h.shape)
        np.subtract(ZERO, h, negative)  # and not −h: 0 − 0 is +0 for either sign of h
        mask, bits = negative.view(np.int32), delta.view(np.int32)
        np.right_shift(mask, _SIGN_BIT, mask)
        np.bitwise_and(bits, mask, bits)


class Tanh:
    """The hyperbolic tangent, whose slope 1 − h² follows from its value.

    >>> z = np.zeros((1, 2), np.float32)
    >>> Tanh().forward(z, z[:, :0], Workspace())
    >>> z
    array([[0., 0.]], dtype=float32)
    """

    saves = False

    def forward(self, z: FloatArray, saved: FloatArray, space: Workspace) -> None:
        """Overwrite ``z`` with tanh(z)."""
        np.tanh(z, z)

    def backward(
        self, h: FloatArray, saved: FloatArray, delta: FloatArray, space: Workspace
    ) -> None:
        """Multiply ``delta`` by 1 − h²."""
        slope = space.scratch(*h.shape)
        np.multiply(h, h, slope)
        np.subtract(ONE, slope, slope)
        np.multiply(delta, slope, delta)


class Gelu:
    """z·Φ(z) by its tanh approximation z·s, s = ½(1 + tanh u), u = √(2/π)(z + 0.044715 z³).

    The slope is s + z·s′ with s′ = 2s(1 − s)·u′ and u′ = √(2/π)(1 + 3·0.044715 z²); it is
    not a function of the value, so the forward pass saves it.

    >>> z = np.array([[-9, 0, 9]], np.float32)
    >>> Gelu().forward(z, np.empty_like(z), Workspace())
    >>> z.round(3) + 0
    array([[0., 0., 9.]], dtype=float32)

    Source: Hendrycks & Gimpel 2016 (1606.08415), section 2.
    """

    saves = True
    _SCALE = np.full((), math.sqrt(2 / math.pi), np.float32)
    _CUBIC = np.full((), math.sqrt(2 / math.pi) * 0.044715, np.float32)
    _THREE = np.full((), 3, np.float32)
    _TWO = np.full((), 2, np.float32)

    def forward(self, z: FloatArray, saved: FloatArray, space: Workspace) -> None:
        """Overwrite ``z`` with z·s and save the slope."""
        slope, gate = saved, space.scratch(*z.shape)
        np.multiply(z, z, slope)
        np.multiply(slope, self._CUBIC, slope)  # u/z − scale
        np.add(slope, self._SCALE, gate)
        np.multiply(gate, z, gate)
        np.tanh(gate, gate)
        np.multiply(gate, HALF, gate)
        np.add(gate, HALF, gate)
        np.multiply(slope, self._THREE, slope)
        np.add(slope, self._SCALE, slope)  # u′
        np.multiply(z, gate, z)
        # The slope s + 2·h·u′·(1 − s); 1 − s overwrites s, so that two buffers are enough.
        np.multiply(slope, z, slope)
        np.multiply(slope, self._TWO, slope)
        np.subtract(ONE, gate, gate)
        np.multiply(slope, gate, slope)
        np.subtract(slope, gate, slope)
        np.add(slope, ONE, slope)

    def backward(
        self, h: FloatArray, saved: FloatArray, delta: FloatArray, space: Workspace
    ) -> None:
        """Multiply ``delta`` by the slope that the forward pass saved."""
        np.multiply(delta, saved, delta)


#: Every activation by its name.
ACTIVATIONS: dict[str, Activation] = {"relu": Relu(), "tanh": Tanh(), "gelu": Gelu()}
