"""Activations of hidden layers, in place. Knows one layer's matrix, never layers or parameters.

A forward pass overwrites the layer's sums ``z`` with its values ``h``. By the time the
backward pass scales a layer's delta, the next layer's weight gradient has been taken, so
``h`` is no longer needed for anything else and may be overwritten to hold the slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from psrt.arrays import FloatArray

#: 0-d arrays: numpy turns them into operands without the cost of converting a Python number.
ZERO = np.zeros((), np.float32)
ONE = np.ones((), np.float32)
HALF = np.full((), 0.5, np.float32)
_SIGN_BIT = np.full((), 31, np.int32)


class Activation(Protocol):
    """The nonlinearity of one hidden layer; may keep state of the last forward pass."""

    def forward(self, z: FloatArray) -> None:
        """Overwrite the sums ``z`` ``(b, d)`` with the layer's values; ``b <= batch_size``."""

    def backward(self, h: FloatArray, delta: FloatArray) -> None:
        """Multiply ``delta`` ``(b, d)`` by the slope at the last forward pass.

        ``h`` holds that pass's values and may be overwritten.
        """


class Relu:
    """max(z, 0); the slope at 0 is taken as 0.

    >>> z = np.array([[-2, 0, 3]], np.float32)
    >>> Relu(1, 3).forward(z)
    >>> z
    array([[0., 0., 3.]], dtype=float32)

    Source: Glorot, Bordes, Bengio, AISTATS 2011.
    """

    def __init__(self, batch_size: int, width: int) -> None:
        #: Zeros to clamp at: numpy's maximum takes four times as long with a number.
        self._zeros = np.zeros((batch_size, width), np.float32)

    def forward(self, z: FloatArray) -> None:
        """Clamp ``z`` at zero from below; NaN stays NaN."""
        np.maximum(z, self._zeros[: len(z)], out=z)

    def backward(self, h: FloatArray, delta: FloatArray) -> None:
        """Zero ``delta`` wherever the value was not positive; ``h`` is overwritten.

        The sign bit of 0 − h, spread over the word, is a bit mask. This costs three plain passes;
        comparing and multiplying by booleans makes numpy convert in a buffer, and writing where a
        mask is set takes ten times as long.
        """
        np.subtract(ZERO, h, h)  # and not −h: 0 − 0 is +0 whatever the sign of h
        mask, bits = h.view(np.int32), delta.view(np.int32)
        np.right_shift(mask, _SIGN_BIT, mask)
        np.bitwise_and(bits, mask, bits)


class Tanh:
    """The hyperbolic tangent, whose slope 1 − h² follows from its value.

    >>> z = np.zeros((1, 2), np.float32)
    >>> Tanh(1, 2).forward(z)
    >>> z
    array([[0., 0.]], dtype=float32)
    """

    def __init__(self, batch_size: int, width: int) -> None:
        pass  # the slope is a function of the value: nothing is kept

    def forward(self, z: FloatArray) -> None:
        """Overwrite ``z`` with tanh(z)."""
        np.tanh(z, z)

    def backward(self, h: FloatArray, delta: FloatArray) -> None:
        """Multiply ``delta`` by 1 − h²; ``h`` is overwritten."""
        np.multiply(h, h, h)
        np.subtract(ONE, h, h)
        np.multiply(delta, h, delta)


class Gelu:
    """z·Φ(z) by its tanh approximation z·s, s = ½(1 + tanh u), u = √(2/π)(z + 0.044715 z³).

    The slope is s + z·s′ with s′ = 2s(1 − s)·u′ and u′ = √(2/π)(1 + 3·0.044715 z²); it is
    not a function of the value, so the forward pass keeps it.

    >>> z = np.array([[-9, 0, 9]], np.float32)
    >>> Gelu(1, 3).forward(z)
    >>> z.round(3) + 0
    array([[0., 0., 9.]], dtype=float32)

    Source: Hendrycks & Gimpel 2016 (1606.08415), section 2.
    """

    _SCALE = np.full((), math.sqrt(2 / math.pi), np.float32)
    _CUBIC = np.full((), math.sqrt(2 / math.pi) * 0.044715, np.float32)
    _THREE = np.full((), 3, np.float32)
    _TWO = np.full((), 2, np.float32)

    def __init__(self, batch_size: int, width: int) -> None:
        #: Slope at the last forward pass.
        self._slope = np.empty((batch_size, width), np.float32)
        #: Scratch: s of the class's formula.
        self._gate = np.empty((batch_size, width), np.float32)

    def forward(self, z: FloatArray) -> None:
        """Overwrite ``z`` with z·s and keep the slope."""
        slope, gate = self._slope[: len(z)], self._gate[: len(z)]
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

    def backward(self, h: FloatArray, delta: FloatArray) -> None:
        """Multiply ``delta`` by the slope that the forward pass kept."""
        np.multiply(delta, self._slope[: len(h)], delta)


#: Every activation by its name, built for layers of ``(batch_size, width)``.
ACTIVATIONS: dict[str, Callable[[int, int], Activation]] = {
    "relu": Relu,
    "tanh": Tanh,
    "gelu": Gelu,
}
