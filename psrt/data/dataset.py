"""Dataset: arrays ready to train on, and the one place where they are checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from psrt.core.errors import ConfigError

#: Number of rows converted or checked at a time, so that a check never doubles the memory.
_ROWS = 4096
#: Larger labels count as a mistake: the model would need an output for each of them.
MAX_CLASSES = 1_000_000


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training and test samples of one problem; made by ``checked_dataset``."""

    #: Its source, as messages and reports name it.
    name: str
    #: (N, d) float32, C-contiguous, finite.
    x_train: np.ndarray
    #: (N,) int64 labels in ``[0, classes)``, or (N, k) float32 targets of a regression.
    y_train: np.ndarray
    #: (M, d) float32.
    x_test: np.ndarray
    #: Like ``y_train``, for the test samples.
    y_test: np.ndarray
    #: Number of classes; 0 for a regression.
    classes: int

    @property
    def samples(self) -> int:
        """Number of training samples, N."""
        return len(self.x_train)

    @property
    def features(self) -> int:
        """Number of values per sample, d."""
        return int(self.x_train.shape[1])

    @property
    def labels(self) -> np.ndarray:
        """The label of each training sample, (N,) int64.

        Raises:
            ConfigError: if the samples have targets instead.
        """
        if not self.classes:
            raise ConfigError(
                f"{self.name} has no labels, but the targets of a regression; expected integers as "
                "y, or --partition iid"
            )
        return self.y_train

    @property
    def scale(self) -> float:
        """The root mean square of the features, over the first rows."""
        return float(np.sqrt(np.mean(np.square(self.x_train[:_ROWS], dtype=np.float64))))

    @property
    def outputs(self) -> int:
        """Number of outputs that a model needs: classes, or targets of a regression."""
        return self.classes or int(self.y_train.shape[1])


def checked_dataset(
    name: str,
    x_train: np.ndarray,
    y_train: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    *,
    scale: float | None = None,
    classes: int | None = None,
) -> Dataset:
    """Check and convert the arrays of a source; every source ends with this call.

    Samples with more than one axis (images) are flattened. Integer ``y`` are class labels, float
    ``y`` the targets of a regression. Arrays that already have the right type and layout are not
    copied.

    Args:
        name: of the source in messages: a name or a path.
        x_train: (N, ...) of any real type.
        y_train: (N,) or (N, 1) integers, or (N,) or (N, k) floats.
        x_test: (M, ...), M at least 1, with the same trailing shape.
        y_test: like ``y_train``.
        scale: divisor of all ``x``; 255 brings bytes to [0, 1].
        classes: number of classes if the source knows it, above all labels; the training part
            need not contain each of them. None takes the largest label of the training part plus
            one, and at least 2.

    Returns:
        The dataset, with the types of `Dataset`.

    Raises:
        ConfigError: one line with ``name`` and the array, for an invalid type, shape or value.
    """
    x_train = checked_samples(name, "x_train", x_train, scale)
    x_test = checked_samples(name, "x_test", x_test, scale)
    if x_train.shape[1] != x_test.shape[1]:
        raise ConfigError(
            f"{name}: x_train has {x_train.shape[1]} values per sample, x_test {x_test.shape[1]}"
        )
    y_train = checked_answers(name, "y_train", y_train, len(x_train))
    y_test = checked_answers(name, "y_test", y_test, len(x_test))
    if y_train.dtype != y_test.dtype:
        raise ConfigError(f"{name}: y_train and y_test must both be labels or both be targets")
    if y_train.shape[1:] != y_test.shape[1:]:
        raise ConfigError(
            f"{name}: y_train has {y_train.shape[1]} targets per sample, y_test {y_test.shape[1]}"
        )
    if y_train.dtype != np.int64:
        classes = 0
    elif classes is None:
        classes = _classes(name, y_train, y_test)
    return Dataset(name, x_train, y_train, x_test, y_test, classes)


def _classes(name: str, y_train: np.ndarray, y_test: np.ndarray) -> int:
    """Return the number of classes of the training part.

    Raises:
        ConfigError: if no label is 0, or if the test part has a class that no model can learn, as
            it is not in the training part. Then the parts probably belong to different data, or
            were taken from sorted data.
    """
    low = min(int(y_train.min()), int(y_test.min()))
    if low > 0:  # a model would have outputs that never get a label
        raise ConfigError(
            f"{name}: the labels begin at {low}, expected 0 and up: subtract {low} from y_train "
            "and y_test"
        )
    seen = np.zeros(max(2, int(y_train.max()) + 1), bool)
    seen[y_train] = True
    known = y_test < len(seen)
    known[known] = seen[y_test[known]]
    if not known.all():
        never = int(y_test[~known].min())
        raise ConfigError(f"{name}: y_test has the label {never}, which y_train never has")
    return len(seen)


def checked_samples(name: str, part: str, x: np.ndarray, scale: float | None = None) -> np.ndarray:
    """Return ``x`` as (N, d) finite float32; ``name`` and ``part`` are for messages."""
    if x.dtype.kind not in "biuf":
        raise ConfigError(f"{name}: {part} must hold real numbers, got dtype {x.dtype}")
    if x.ndim < 2:
        raise ConfigError(f"{name}: {part} must be (samples, features), got shape {x.shape}")
    if x.size == 0:
        raise ConfigError(f"{name}: {part} is empty, shape {x.shape}")
    flat = x.reshape(len(x), -1)
    return _float32(name, part, flat, scale)


def checked_answers(name: str, part: str, y: np.ndarray, samples: int) -> np.ndarray:
    """Return ``y`` as (N,) int64 labels or (N, k) float32 targets."""
    if y.dtype.kind not in "biuf":
        raise ConfigError(f"{name}: {part} must hold labels or targets, got dtype {y.dtype}")
    if y.ndim not in (1, 2) or y.shape[-1] == 0:
        raise ConfigError(f"{name}: {part} must be (samples,) or (samples, k), got {y.shape}")
    if len(y) != samples:
        raise ConfigError(f"{name}: {part} has {len(y)} rows for {samples} samples")
    if y.dtype.kind == "f":
        return _float32(name, part, y.reshape(samples, -1), None)
    if y.size != samples:
        raise ConfigError(f"{name}: {part} must have one label per sample, got shape {y.shape}")
    return _labels(name, part, y.reshape(samples))


def _labels(name: str, part: str, y: np.ndarray) -> np.ndarray:
    """Return ``y`` as (N,) int64 labels, all in the allowed range."""
    low, high = int(y.min()), int(y.max())
    if low < 0:
        raise ConfigError(f"{name}: {part} has the label {low}, labels start at 0")
    if high >= MAX_CLASSES:
        raise ConfigError(f"{name}: {part} has the label {high}, the limit is {MAX_CLASSES - 1}")
    return np.ascontiguousarray(y, dtype=np.int64)


def _float32(name: str, part: str, values: np.ndarray, scale: float | None) -> np.ndarray:
    """Return ``values`` (N, d) as finite float32; a copy only if the type or layout requires it."""
    out = values
    if scale is not None or values.dtype != np.float32 or not values.flags.c_contiguous:
        out = np.empty(values.shape, dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # reported below, in one line
            for rows in _blocks(len(values)):
                if scale is None:
                    out[rows] = values[rows]
                else:
                    np.divide(values[rows], np.float32(scale), out=out[rows], casting="same_kind")
    for rows in _blocks(len(out)):
        finite = np.isfinite(out[rows])
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            raise ConfigError(
                f"{name}: {part} is not finite in float32 at row {rows.start + row}, "
                f"column {column}: {values[rows.start + row, column]}"
            )
    return out


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(a, min(rows, a + _ROWS)) for a in range(0, rows, _ROWS))
