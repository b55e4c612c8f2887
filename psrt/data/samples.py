"""Samples to predict on: those of an .npz file, which need no answers, or a dataset's test set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from psrt.core.errors import ConfigError
from psrt.data.dataset import checked_answers, checked_samples
from psrt.data.load import load_dataset
from psrt.data.npz import read_npz, which_are_there

#: The arrays of a file that are taken: the first pair whose samples it has.
_PAIRS = (("x", "y"), ("x_test", "y_test"))


class Samples(NamedTuple):
    """Samples, and what is known of them."""

    #: The name of the samples in messages: source and array.
    name: str
    #: (N, d) float32, C-contiguous, finite.
    x: np.ndarray
    #: (N,) int64 labels or (N, k) float32 targets; None if neither is known.
    y: np.ndarray | None


def load_samples(spec: str, *, seed: int) -> Samples:
    """Load samples by the name or path of their source.

    Args:
        spec: the path of an ``.npz`` with ``x``, and perhaps ``y``, or else with ``x_test`` and
            perhaps ``y_test``; anything else as for ``load_dataset``, whose test set is taken.
        seed: of synthetic data.

    Raises:
        ConfigError: one line that names the source and the array.
    """
    if Path(spec).suffix != ".npz":
        data = load_dataset(spec, seed=seed)
        return Samples(f"{data.name}: x_test", data.x_test, data.y_test)
    arrays = read_npz(Path(spec), lambda names: _chosen(spec, names))
    (part, x), *answers = arrays.items()
    found = checked_samples(spec, part, x)
    y = checked_answers(spec, *answers[0], len(found)) if answers else None
    return Samples(f"{spec}: {part}", found, y)


def _chosen(spec: str, names: Sequence[str]) -> Sequence[str]:
    for x, y in _PAIRS:
        if x in names:
            return [x, y] if y in names else [x]
    raise ConfigError(f"{spec}: holds no array x or x_test, but {which_are_there(names)}")
