"""The memory of a stage: the arrays of each micro-batch, and their size. Pure.

A *slot* holds one micro-batch from its forward pass until the last of its backward passes. Each
layer has one array with the rows of all slots. So micro-batches that were computed one by one are,
side by side, one matrix. Arrays that are not needed for that long exist once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from psrt.core.arrays import ITEMSIZE, FloatArray
from psrt.core.errors import ConfigError
from psrt.model.chain import ChainLayer


@dataclass(frozen=True, slots=True)
class StageShape:
    """The numbers that the size of a stage's memory depends on, beside its layers."""

    #: The most rows of a batch.
    rows: int
    #: Micro-batches of a batch, M.
    micro_batches: int = 1
    #: The most micro-batches that are alive at once; None for all of them.
    slots: int | None = None
    #: Whether weights' gradients are taken apart from those of inputs, and may come later.
    split: bool = False
    #: Whether only the input of a micro-batch is kept, and the rest recomputed.
    recompute: bool = False
    #: Whether this is the model's first stage, whose input has no gradient.
    first: bool = True
    #: Whether inputs are given with each batch and read in place, such as the model's input.
    given: bool = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.rows < 1 or self.micro_batches < 1 or (self.slots is not None and self.slots < 1):
            raise ConfigError(
                f"no stage has batches of {self.rows} rows in {self.micro_batches} micro-batches, "
                f"of which {self.slots} are alive"
            )
        if self.split and self.recompute:
            raise ConfigError(
                "activations are recomputed to be freed, and weights that are taken later need them"
            )

    @property
    def micro_rows(self) -> int:
        """The most rows of a micro-batch."""
        return -(-self.rows // self.micro_batches)

    @property
    def kept_rows(self) -> int:
        """Rows of an array with a place for every slot, but not more than a batch has."""
        slots = self.micro_batches if self.slots is None else self.slots
        return min(self.rows, slots * self.micro_rows)

    def activation_bytes(self, layers: Sequence[ChainLayer]) -> int:
        """Return the bytes of activations and of their gradients, for layers of these widths.

        With K the rows of all slots, m those of one, and layer i giving d_i of d_{i−1} elements:
        K·d_0 + (m if recomputed else K)·Σ(d_i + saved_i) + (K if split else m)·Σ d_i, and m·d_0
        for the gradient of the input; no K·d_0 where inputs are given.
        """
        kept, one = self.kept_rows, self.micro_rows
        inputs = layers[0].inputs
        own = 0 if self.given else kept * inputs
        values = sum(layer.outputs + layer.saved for layer in layers)
        deltas = sum(layer.outputs for layer in layers)
        elements = own + (one if self.recompute else kept) * values
        elements += (kept if self.split else one) * deltas + (0 if self.first else one * inputs)
        return elements * ITEMSIZE


class Slot(NamedTuple):
    """One micro-batch's rows of every array."""

    rows: int
    #: The input, then each layer's output: (rows, width).
    values: tuple[FloatArray, ...]
    #: What each layer saved: (rows, saved).
    saved: tuple[FloatArray, ...]
    #: The gradients of the values above; of the input None in the first stage.
    deltas: tuple[FloatArray | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Arrays of the caller that a stage uses instead of its own, such as shared memory.

    The rank at the other end of an array may have other slots. So if the array has the rows of a
    whole batch, each micro-batch lies where it does in the batch. In a shorter one they take turns:
    the m-th lies at the ``m mod k``-th place of k.
    """

    inputs: FloatArray | None = None
    outputs: FloatArray | None = None
    input_gradients: FloatArray | None = None
    output_gradients: FloatArray | None = None


#: (rows, width) → a new float32 array.
Empty = Callable[[int, int], FloatArray]


def sums(layer: ChainLayer, way: str) -> bool:
    """Return whether a layer's result is one term of a sum; a layer that is not a slice has none.

    Args:
        layer: of a chain, or a slice of one.
        way: ``sums_forward`` or ``sums_backward``.
    """
    return bool(getattr(layer, way, False))


class StageMemory:
    """The arrays of a stage, made once; slots are views of them."""

    def __init__(
        self,
        layers: Sequence[ChainLayer],
        shape: StageShape,
        boundary: Boundary | None = None,
        summed: Empty | None = None,
    ) -> None:
        """Make the arrays, apart from those that the caller has.

        Args:
            layers: of the stage.
            shape: of batches and of what is kept.
            boundary: arrays of the caller.
            summed: makes arrays that are summed over slices; None makes them like all others.

        Raises:
            ConfigError: if an array has another width, too few rows, or another type.
        """
        given = boundary or Boundary()
        self.shape = shape
        self._given = [
            it
            for it in (given.inputs, given.outputs, given.input_gradients, given.output_gradients)
            if it is not None
        ]
        kept, one = shape.kept_rows, shape.micro_rows
        inner = one if shape.recompute else kept
        late = kept if shape.split else one
        self._values = [self._array(given.inputs, 0 if shape.given else kept, layers[0].inputs)]
        make = _new if summed is None else summed
        self._values += [
            (make if sums(layer, "sums_forward") else _new)(inner, layer.outputs)
            for layer in layers[:-1]
        ]
        self._values += [self._array(given.outputs, inner, layers[-1].outputs)]
        self._saved = [_new(inner, layer.saved) for layer in layers]
        self._deltas: list[FloatArray | None] = [None]
        if not shape.first:
            self._deltas = [self._array(given.input_gradients, one, layers[0].inputs)]
        self._deltas += [
            (make if sums(above, "sums_backward") else _new)(late, layer.outputs)
            for layer, above in pairwise(layers)
        ]
        self._deltas += [self._array(given.output_gradients, late, layers[-1].outputs)]
        #: Where outputs are recomputed; None: in place.
        self._again: FloatArray | None = None
        if shape.recompute and given.outputs is not None:
            self._again = _new(one, layers[-1].outputs)
        arrays = [it for it in (*self._values, *self._saved, *self._deltas) if it is not None]
        #: The number of micro-batches after which the use of all arrays repeats.
        self._turns = math.lcm(*(self._turns_in(it) or 1 for it in arrays), shape.micro_batches)
        #: Bytes of all arrays.
        self.nbytes = sum(it.nbytes for it in arrays)
        self.nbytes += 0 if self._again is None else self._again.nbytes
        self._slots: dict[tuple[int, int, int, int], Slot] = {}

    def slot(self, m: int, rows: int, start: int, first: int) -> Slot:
        """Return the arrays of the m-th micro-batch.

        Args:
            m: its number.
            rows: of the micro-batch.
            start: its first row, where an array has the rows of every slot.
            first: its first row in the batch.
        """
        key = m % self._turns, rows, start, first
        if key not in self._slots:
            views = (
                tuple(it if it is None else self._rows(it, *key[1:], m) for it in arrays)
                for arrays in (self._values, self._saved, self._deltas)
            )
            self._slots[key] = Slot(rows, *views)  # type: ignore[arg-type]
        return self._slots[key]

    def again(self, slot: Slot) -> Slot:
        """Return the arrays for recomputing a micro-batch.

        Its outputs in an array of the caller stay unchanged: the next stage may be reading them,
        for the gradient of its weights.
        """
        if self._again is None:
            return slot
        return slot._replace(values=(*slot.values[:-1], self._again[: slot.rows]))

    def _rows(self, array: FloatArray, rows: int, start: int, first: int, m: int) -> FloatArray:
        if (turns := self._turns_in(array)) > 0:
            start = m % turns * self.shape.micro_rows
        elif any(array is it for it in self._given):
            start = first
        return array[start : start + rows]

    def _turns_in(self, array: FloatArray) -> int:
        """Return the number of micro-batches that take turns in an array; 0 if each has a place."""
        of_caller = any(array is it for it in self._given)
        whole = self.shape.rows if of_caller else self.shape.kept_rows
        return 0 if len(array) >= whole else len(array) // self.shape.micro_rows

    @staticmethod
    def _array(given: FloatArray | None, rows: int, width: int) -> FloatArray:
        if given is None:
            return _new(rows, width)
        good = given.ndim == 2 and given.shape[1] == width and len(given) >= rows
        if not (good and given.dtype == np.float32 and given.flags.c_contiguous):
            raise ConfigError(
                f"an array is {given.dtype} {given.shape}, expected at least {rows} contiguous "
                f"float32 rows of {width}"
            )
        return given


def _new(rows: int, width: int) -> FloatArray:
    return np.empty((rows, width), np.float32)
