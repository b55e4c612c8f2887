"""Losses of outputs whose columns are split over several ranks. Pure.

Each slice has some columns of the outputs and gets the gradient of these columns. A row needs only
one number from each of the other slices, so the outputs are never gathered.

Source: Shoeybi et al. 2019 (1909.08053), section 3, for the softmax cross-entropy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from psrt.core.arrays import AnyArray, FloatArray
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.model.chain import SliceGroup
from psrt.model.loss import Labels


class SlicedLoss(Protocol):
    """The mean loss of a batch, of which each slice has some columns."""

    def __call__(
        self, outputs: FloatArray, targets: AnyArray, batch_rows: int, group: SliceGroup
    ) -> Awaitable[float]:
        """Return the mean loss, the same for all slices; outputs become their gradient.

        Args:
            outputs: (b, columns of this slice), C-contiguous.
            targets: of whole rows, as in ``Loss``; the same for all slices.
            batch_rows: rows of the whole batch, see ``Loss``.
            group: of all slices, which call together.

        Raises:
            ConfigError: on all slices, if the targets do not fit the model.
        """


class _SlicedLabels:
    """The rows whose labelled class is one of this slice's columns."""

    def __init__(self, batch_size: int, width: int, columns: Span) -> None:
        self._width, self._columns = width, columns
        self._whole = Labels(batch_size, width)
        self._own = Labels(batch_size, columns.size)
        self._local, self._clipped = np.empty((2, batch_size), np.int64)
        self._inside = np.empty(batch_size, np.float32)

    def locate(self, labels: AnyArray) -> tuple[npt.NDArray[np.intp], FloatArray]:
        """Return the flat index of each row's class, and 1 where it is inside, else 0.

        Raises:
            ConfigError: if a label is not a class of the model.
        """
        self._whole.locate(labels, self._width)  # the check
        rows, last = len(labels), self._columns.size - 1
        local, clipped, inside = self._local[:rows], self._clipped[:rows], self._inside[:rows]
        np.subtract(labels, self._columns.start, local, casting="unsafe")
        np.clip(local, 0, last, out=clipped)
        np.equal(clipped, local, inside)
        return self._own.locate(clipped, self._columns.size), inside

    def pick(self, matrix: FloatArray, index: npt.NDArray[np.intp]) -> FloatArray:
        """Return each row's element at ``index``, in a buffer that the next call overwrites."""
        return self._own.pick(matrix, index)


class SlicedCrossEntropy:
    """``CrossEntropy`` from a row's maximum, sum of exponentials, and output at the label."""

    def __init__(self, batch_size: int, width: int, columns: Span) -> None:
        """Reserve memory for batches; see ``SLICED_LOSSES``."""
        self._labels = _SlicedLabels(batch_size, width, columns)
        self._largest = np.empty((batch_size, 1), np.float32)
        #: Sums of exponentials, and the labels' outputs: summed over slices at once.
        self._sums = np.empty((2, batch_size), np.float32)

    async def __call__(
        self, outputs: FloatArray, targets: AnyArray, batch_rows: int, group: SliceGroup
    ) -> float:
        """Return the mean cross-entropy; see ``SlicedLoss``."""
        rows = len(outputs)
        index, inside = self._labels.locate(targets)
        largest = self._largest[:rows]
        np.maximum.reduce(outputs, axis=1, keepdims=True, out=largest)
        await group.max(largest)
        sums = self._sums.reshape(-1)[: 2 * rows].reshape(2, rows)
        with np.errstate(all="ignore"):
            np.subtract(outputs, largest, outputs)
            np.multiply(self._labels.pick(outputs, index), inside, sums[1])
            np.exp(outputs, outputs)
            np.add.reduce(outputs, axis=1, out=sums[0])
        await group.sum(sums)
        with np.errstate(all="ignore"):
            np.divide(outputs, sums[0][:, None], outputs)
            _subtract(outputs, self._labels.pick(outputs, index), index, inside)
            np.divide(outputs, batch_rows, outputs)
            np.log(sums[0], sums[0])
            of_sums, of_labels = float(np.add.reduce(sums[0])), float(np.add.reduce(sums[1]))
            return (of_sums - of_labels) / batch_rows


class SlicedSquared:
    """``Squared``, with its sum over columns taken over slices, too."""

    def __init__(self, batch_size: int, width: int, columns: Span) -> None:
        """Reserve memory for batches; see ``SLICED_LOSSES``."""
        self._width, self._columns = width, columns
        self._labels = _SlicedLabels(batch_size, width, columns)
        self._total = np.empty(1, np.float32)

    async def __call__(
        self, outputs: FloatArray, targets: AnyArray, batch_rows: int, group: SliceGroup
    ) -> float:
        """Return the mean of ½‖z − t‖²; see ``SlicedLoss``."""
        with np.errstate(all="ignore"):
            if targets.dtype.kind in "iu":
                index, inside = self._labels.locate(targets)
                _subtract(outputs, self._labels.pick(outputs, index), index, inside)
            elif targets.shape == (len(outputs), self._width):
                start, stop = self._columns
                np.subtract(outputs, targets[:, start:stop], outputs)
            else:
                raise ConfigError(
                    f"targets of shape {targets.shape}, expected {(len(outputs), self._width)}"
                )
            flat = outputs.reshape(-1)
            self._total[0] = np.dot(flat, flat)
            np.divide(outputs, batch_rows, outputs)
        await group.sum(self._total)
        return float(self._total[0]) / (2 * batch_rows)


def _subtract(
    matrix: FloatArray, picked: FloatArray, index: npt.NDArray[np.intp], inside: FloatArray
) -> None:
    """Subtract 1 at the labelled classes inside the slice; other rows write a value back as is."""
    np.subtract(picked, inside, picked)
    matrix.put(index, picked, mode="clip")


#: Every loss of ``LOSSES``, built for outputs of ``(batch_size, width)`` and a slice's columns.
SLICED_LOSSES: dict[str, Callable[[int, int, Span], SlicedLoss]] = {
    "cross-entropy": SlicedCrossEntropy,
    "squared": SlicedSquared,
}
