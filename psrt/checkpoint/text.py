"""A tree of state as one line of text, for sending it between processes. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from psrt.checkpoint.tree import Tree, flatten, unflatten
from psrt.core.errors import CheckpointError


def to_text(tree: Mapping[str, Any]) -> str:
    """Return a tree as text.

    Raises:
        CheckpointError: if it has something that a checkpoint cannot hold.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save

    arrays, rest = flatten(tree)
    try:
        packed = save({path: np.asarray(array, order="C") for path, array in arrays.items()})
    except SafetensorError as error:  # a type of numbers that it does not know
        raise CheckpointError(f"a state cannot be sent: {error}") from None
    return json.dumps([rest, base64.b64encode(packed).decode("ascii")])


def from_text(text: str) -> Tree:
    """Return the tree of ``to_text``.

    >>> from_text(to_text({"seen": 3, "mean": {"a": np.ones(2, np.float32)}}))
    {'seen': 3, 'mean': {'a': array([1., 1.], dtype=float32)}}
    """
    from safetensors.numpy import load

    rest, packed = json.loads(text)
    return unflatten(load(base64.b64decode(packed)), rest)
