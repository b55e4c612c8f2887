"""Losses fused with their gradient, in place. Knows one matrix of outputs, never parameters.

A loss returns its mean over the batch and overwrites the outputs with the gradient of that mean;
computing the two separately would read the outputs twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from psrt.core.arrays import AnyArray, FloatArray
from psrt.core.errors import ConfigError


class Loss(Protocol):
    """The mean loss of a batch."""

    def __call__(
        self, outputs: FloatArray, targets: AnyArray, batch_rows: int | None = None
    ) -> float:
        """Return the mean loss and overwrite ``outputs`` ``(b, k)`` with its gradient.

        Args:
            outputs: C-contiguous, with ``1 <= b <= batch_size`` rows.
            targets: class labels ``(b,)`` in ``[0, k)``, or values ``(b, k)`` for some losses.
            batch_rows: rows of the whole batch if these are a micro-batch of it: sum and gradient
                are divided by it, so that those of all micro-batches add up to the batch's mean.

        Raises:
            ConfigError: if the targets do not fit the outputs.
        """


class Labels:
    """The positions of the labelled classes in a flat ``(b, k)`` matrix."""

    def __init__(self, batch_size: int, width: int) -> None:
        #: Flat index of each row's first element.
        self._first = np.arange(batch_size, dtype=np.intp) * width
        self._index = np.empty(batch_size, np.intp)
        self._values = np.empty(batch_size, np.float32)

    def locate(self, labels: AnyArray, width: int) -> npt.NDArray[np.intp]:
        """Return the flat index of each row's class.

        Raises:
            ConfigError: if a label is not a class of the model.
        """
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise ConfigError(f"targets are {labels.dtype} {labels.shape}, expected class labels")
        # As unsigned, a negative label is huge: one reduction checks both ends. The view keeps the
        # byte order; otherwise small big-endian labels would be huge, too, and huge ones small.
        unsigned = labels.dtype.str.replace("i", "u")
        if np.maximum.reduce(labels.view(unsigned)) >= width:
            raise ConfigError(
                f"labels {labels.min()} to {labels.max()} for a model of {width} classes"
            )
        index = self._index[: len(labels)]
        np.add(self._first[: len(labels)], labels, index, casting="unsafe")  # uint64 is in range
        return index

    def pick(self, matrix: FloatArray, index: npt.NDArray[np.intp]) -> FloatArray:
        """Return each row's element at ``index``, in a buffer that the next call overwrites."""
        values = self._values[: len(index)]
        # Unlike "raise", mode "clip" needs no copy for `out`; locate() has checked the range.
        matrix.take(index, out=values, mode="clip")
        return values

    def subtract(self, matrix: FloatArray, index: npt.NDArray[np.intp], amount: float) -> None:
        """Subtract ``amount`` from each row's element at ``index``."""
        values = self.pick(matrix, index)
        np.subtract(values, amount, values)
        matrix.put(index, values, mode="clip")


class CrossEntropy:
    """Softmax cross-entropy −log p_y, with p = softmax(z); its gradient is p − onehot(y).

    The row maximum is subtracted first, so no exponential overflows.

    >>> z = np.zeros((1, 4), np.float32)
    >>> round(CrossEntropy(1, 4)(z, np.array([2])), 4)  # log 4
    1.3863
    >>> z
    array([[ 0.25,  0.25, -0.75,  0.25]], dtype=float32)
    """

    def __init__(self, batch_size: int, width: int) -> None:
        self._labels = Labels(batch_size, width)
        #: Scratch: each row's maximum, then its sum of exponentials, then the sum's logarithm.
        self._column = np.empty((batch_size, 1), np.float32)
        #: Ones: a product with them sums rows faster than a reduction does.
        self._ones = np.ones((width, 1), np.float32)

    def __call__(
        self, outputs: FloatArray, targets: AnyArray, batch_rows: int | None = None
    ) -> float:
        """Return the mean cross-entropy; see ``Loss``."""
        rows, width = outputs.shape
        whole = rows if batch_rows is None else batch_rows
        column = self._column[:rows]
        index = self._labels.locate(targets, width)
        np.maximum.reduce(outputs, axis=1, keepdims=True, out=column)
        np.subtract(outputs, column, outputs)
        of_labels = float(np.add.reduce(self._labels.pick(outputs, index)))
        np.exp(outputs, outputs)
        np.dot(outputs, self._ones, out=column)
        np.divide(outputs, column, outputs)
        self._labels.subtract(outputs, index, 1.0)
        np.divide(outputs, whole, outputs)
        np.log(column, column)
        of_sums = float(np.add.reduce(column, axis=None))
        return float((of_sums - of_labels) / whole)


class Squared:
    """Half the squared distance, ½‖z − t‖²; its gradient is z − t. Labels mean one-hot targets.

    >>> z = np.array([[1, 3]], np.float32)
    >>> Squared(1, 2)(z, np.array([[1, 1]], np.float32))
    2.0
    >>> z
    array([[0., 2.]], dtype=float32)
    """

    def __init__(self, batch_size: int, width: int) -> None:
        self._labels = Labels(batch_size, width)

    def __call__(
        self, outputs: FloatArray, targets: AnyArray, batch_rows: int | None = None
    ) -> float:
        """Return the mean of ½‖z − t‖²; see ``Loss``."""
        rows, width = outputs.shape
        whole = rows if batch_rows is None else batch_rows
        if targets.dtype.kind in "iu":
            self._labels.subtract(outputs, self._labels.locate(targets, width), 1.0)
        elif targets.shape == outputs.shape:
            np.subtract(outputs, targets, outputs)
        else:
            raise ConfigError(f"targets of shape {targets.shape}, expected {outputs.shape}")
        flat = outputs.reshape(-1)
        total = float(np.dot(flat, flat))
        np.divide(outputs, whole, outputs)
        return float(total / (2 * whole))


#: Every loss by its name, built for outputs of ``(batch_size, width)``.
LOSSES: dict[str, Callable[[int, int], Loss]] = {
    "cross-entropy": CrossEntropy,
    "squared": Squared,
}
