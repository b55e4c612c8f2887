"""JSON that every parser reads: the numbers that JSON does not know are written as null."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return ``value`` as JSON text; nan and infinities become null, at any depth.

    Python's own ``json`` writes ``NaN``, which is not JSON and which other tools refuse.

    >>> dumps({"loss": float("nan"), "seconds": [1.5, float("inf")]})
    '{"loss": null, "seconds": [1.5, null]}'
    """
    return json.dumps(_known(value), indent=indent, allow_nan=False)


def _known(value: Any) -> Any:
    """Return ``value`` rebuilt of what JSON knows."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_known(item) for item in value]
    return value
