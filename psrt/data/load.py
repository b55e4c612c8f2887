"""Load checked arrays by a dataset's name or path, from all sources."""

from __future__ import annotations

import os
from pathlib import Path

from psrt.core.errors import ConfigError
from psrt.data.dataset import Dataset
from psrt.data.digits import load_digits
from psrt.data.idx import load_idx
from psrt.data.npz import load_npz
from psrt.data.synthetic import load_synthetic, parse_size
from psrt.rows.suggest import did_you_mean


def dataset_size(spec: str, *, seed: int) -> tuple[int, int, int]:
    """Return the numbers of training samples, features and outputs, without making synthetic data.

    Args:
        spec: as for ``load_dataset``.
        seed: of synthetic data.

    Raises:
        ConfigError: as in ``load_dataset``.

    >>> dataset_size("synthetic:1000000x784x10", seed=0)
    (1000000, 784, 10)
    """
    if spec == "synthetic" or spec.startswith("synthetic:"):
        return parse_size(spec)
    data = load_dataset(spec, seed=seed)
    return data.samples, data.features, data.outputs


def load_dataset(spec: str, *, seed: int) -> Dataset:
    """Load a dataset by its name or path.

    Args:
        spec: ``digits``, ``synthetic``, ``synthetic:SAMPLESxFEATURESxCLASSES``, a folder of IDX
            files, or the path of an ``.npz``. A folder called digits is ``./digits``.
        seed: of synthetic data; data from files does not depend on it.

    Raises:
        ConfigError: one line that names the dataset or the file.
    """
    if spec == "digits":
        return load_digits()
    if spec == "synthetic" or spec.startswith("synthetic:"):
        return load_synthetic(spec, seed=seed)
    path = Path(spec)
    if os.path.isdir(spec):  # unlike Path.is_dir, answers for names that no file can have
        return load_idx(path)
    if path.suffix == ".npz":
        return load_npz(path)
    if os.path.exists(spec):
        # For a table, too, only its owner knows which column is the label.
        raise ConfigError(
            f"dataset {spec!r} is not a folder or an .npz file; "
            "numpy.savez('data.npz', x_train=x, y_train=y, x_test=u, y_test=v) makes one"
        )
    guess = did_you_mean(spec.partition(":")[0], ("digits", "synthetic"))
    raise ConfigError(
        f"dataset {spec!r} is not there{guess}; known names are digits and "
        "synthetic[:SAMPLESxFEATURESxCLASSES]"
    )
