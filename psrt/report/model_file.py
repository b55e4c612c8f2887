"""``psrt.load``: the arrays of a trained model, from ``model.safetensors``."""

from __future__ import annotations

import os
from pathlib import Path

from psrt.core.arrays import AnyArray
from psrt.core.errors import ConfigError
from psrt.report.files import MODEL


def load(source: str | os.PathLike[str]) -> dict[str, AnyArray]:
    """Return the arrays of a trained model, by name.

    Args:
        source: the folder of a run (``--out``), or its ``model.safetensors``.

    Returns:
        Names as in that file: those of the MLP's layers, of ``names_and_shapes``, of a module's
        state, or ``theta`` alone.

    Raises:
        ConfigError: if there is no such file, or it cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = Path(source)
    path = path / MODEL if path.is_dir() else path
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        why = str(error).splitlines()[0].removesuffix(f": {path}")
        raise ConfigError(f"{path}: cannot be read: {why}") from None
