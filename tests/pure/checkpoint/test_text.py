"""Trees that one process sends another as text."""

import math

import numpy as np
import pytest

from psrt.checkpoint import from_text, to_text
from psrt.errors import CheckpointError

TREES = [
    {},
    {"0": None, "1": {}, "2": {"deep": {"er": [1, 2.5, "é", True, None]}}},
    {"none": np.array(3), "flat": np.arange(4, dtype=np.float32), "empty": np.zeros((0, 3), bool)},
    {"strided": np.arange(24, dtype=np.int64).reshape(4, 6)[::2, ::-1], "nan": math.nan},
    {"fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "float16": np.float16([1])},
]


@pytest.mark.parametrize("tree", TREES)
def test_a_tree_comes_back(tree):
    text = to_text(tree)
    assert "\n" not in text
    found = from_text(text)
    np.testing.assert_equal(found, tree)
    for name, it in tree.items():
        if isinstance(it, np.ndarray):
            assert (found[name].dtype, found[name].shape) == (it.dtype, it.shape)


def test_what_a_checkpoint_cannot_hold_is_refused():
    with pytest.raises(CheckpointError):
        to_text({"a": object()})
