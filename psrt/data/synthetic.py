"""The synthetic dataset: Gaussian inputs labelled by a seeded random teacher, of any size."""

from __future__ import annotations

import re

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.partition import block_spans
from psrt.data.dataset import Dataset, checked_dataset

#: Numbers of samples, features and classes of plain ``synthetic``.
DEFAULT_SIZE = (4096, 32, 10)
#: Number of hidden units of the teacher: few enough for a student of the default size to learn.
_TEACHER_WIDTH = 32
#: Number of samples labelled at a time; bounds the teacher's working memory.
_BLOCK = 4096


def parse_size(spec: str) -> tuple[int, int, int]:
    """Read ``synthetic`` or ``synthetic:SAMPLESxFEATURESxCLASSES``.

    >>> parse_size("synthetic:1000x20x5")
    (1000, 20, 5)

    Raises:
        ConfigError: if it has another form, or asks for less than 5 x 1 x 2.
    """
    if spec == "synthetic":
        return DEFAULT_SIZE
    match = re.fullmatch(r"synthetic:(\d{1,12})x(\d{1,12})x(\d{1,12})", spec, re.ASCII)
    if match is None:
        raise ConfigError(
            f"dataset {spec!r}: write synthetic:SAMPLESxFEATURESxCLASSES, like synthetic:4096x32x10"
        )
    samples, features, classes = (int(part) for part in match.groups())
    if samples < 5 or features < 1 or classes < 2:
        raise ConfigError(
            f"dataset {spec!r}: at least 5 samples, 1 feature and 2 classes are needed"
        )
    return samples, features, classes


def load_synthetic(spec: str, *, seed: int) -> Dataset:
    """Make a dataset of the size in ``spec``, with a fifth of that number as test samples.

    Inputs are standard normal; a label is the largest score of a teacher with one hidden layer
    of tanh units and normal weights. It has no biases, so that every score has mean zero and no
    class takes most of the samples. There is no label noise.

    Args:
        spec: see `parse_size`.
        seed: of the inputs and of the teacher.

    Raises:
        ConfigError: for a bad ``spec``, or if there is not enough memory.
    """
    samples, features, classes = parse_size(spec)
    total = samples + samples // 5
    rng = np.random.default_rng(seed)
    try:
        x = rng.standard_normal((total, features), dtype=np.float32)
        y = _teach(rng, x, classes)
    except (MemoryError, ValueError) as error:  # ValueError: more than numpy can address
        raise ConfigError(f"dataset {spec!r} does not fit into memory") from error
    parts = x[:samples], y[:samples], x[samples:], y[samples:]
    return checked_dataset(spec, *parts, classes=classes)


def _teach(rng: np.random.Generator, x: np.ndarray, classes: int) -> np.ndarray:
    """Return the teacher's labels (N,) int64 for ``x`` (N, d)."""
    features = x.shape[1]
    first = rng.standard_normal((features, _TEACHER_WIDTH), dtype=np.float32)
    first /= np.float32(np.sqrt(features))  # so that the inputs of hidden units have unit variance
    second = rng.standard_normal((_TEACHER_WIDTH, classes), dtype=np.float32)
    labels = np.empty(len(x), dtype=np.int64)
    for start, stop in block_spans(len(x), _BLOCK):
        scores = np.tanh(x[start:stop] @ first) @ second
        np.argmax(scores, axis=1, out=labels[start:stop])
    return labels
