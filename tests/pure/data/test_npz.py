"""npz files: what is in them is checked, and nothing in them is ever run."""

from __future__ import annotations

import os
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrt.data import load_dataset
from psrt.data.npz import load_npz
from psrt.errors import ConfigError


def arrays(**changes):
    return {
        "x_train": np.arange(12, dtype=np.float64).reshape(6, 2),
        "y_train": np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8),
        "x_test": np.ones((3, 2)),
        "y_test": np.array([0, 1, 0], dtype=np.uint8),
    } | changes


def save(folder, **changes):
    path = folder / "data.npz"
    np.savez(path, **arrays(**changes))
    return path


def refusal(path):
    with pytest.raises(ConfigError) as caught:
        load_dataset(str(path), seed=0)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_classes(tmp_path):
    data = load_dataset(str(save(tmp_path, extra=np.ones(3))), seed=0)
    np.testing.assert_array_equal(data.x_train, np.arange(12).reshape(6, 2))
    assert (data.classes, data.y_train.dtype, data.name) == (3, np.int64, f"{tmp_path}/data.npz")


def test_regression_and_compression(tmp_path):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, **arrays(y_train=np.ones((6, 2)), y_test=np.zeros((3, 2))))
    data = load_dataset(str(path), seed=0)
    assert (data.classes, data.outputs, data.y_train.dtype) == (0, 2, np.float32)


class Trap:
    """Unpickling one makes the folder that it names."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_objects_are_never_unpickled(tmp_path):
    trap = tmp_path / "sprung"
    path = save(tmp_path, y_train=np.array([Trap(str(trap))] * 6, dtype=object))
    assert refusal(path) == "y_train holds Python objects, which psrt never unpickles"
    assert not trap.exists()


def test_a_bare_pickle_is_never_unpickled(tmp_path):
    path = tmp_path / "data.npz"
    trap = tmp_path / "sprung"
    path.write_bytes(pickle.dumps(Trap(str(trap))))
    assert refusal(path) == "not an .npz file"
    assert not trap.exists()


def test_an_npy_under_the_wrong_name(tmp_path):
    path = tmp_path / "data.npz"
    with path.open("wb") as stream:
        np.save(stream, np.ones(3))
    assert refusal(path) == "not an .npz file"


def test_an_empty_file(tmp_path):
    path = tmp_path / "data.npz"
    path.touch()
    assert refusal(path) == "not an .npz file"


def test_missing_arrays_are_named(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x_train=np.ones((3, 2)), y_test=np.ones(3))
    assert refusal(path) == "holds no array y_train or x_test, but x_train, y_test"


def test_a_member_that_is_no_array(tmp_path):
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for part in arrays():
            archive.writestr(part, b"hello")
    assert refusal(path) == "x_train is not a numpy array"


def test_a_record_array(tmp_path):
    path = save(tmp_path, x_train=np.zeros((6, 2), dtype=[("a", "f4")]))
    assert refusal(path).startswith("x_train must hold real numbers, got dtype [('a'")


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_truncated(tmp_path, keep):
    path = save(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    assert refusal(path).startswith("not a readable .npz file: ")


def test_a_checksum_that_does_not_fit(tmp_path):
    path = save(tmp_path)
    content = bytearray(path.read_bytes())
    at = content.index(np.arange(12.0).tobytes())
    content[at + 50] ^= 1
    path.write_bytes(content)
    assert refusal(path).startswith("not a readable .npz file: Bad CRC-32")


def test_values_are_checked(tmp_path):
    path = save(tmp_path, x_test=np.array([[0, 1], [2, np.nan], [3, 4]]))
    assert refusal(path) == "x_test is not finite in float32 at row 1, column 1: nan"


@given(at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_any_damage_is_told_in_one_line(tmp_path_factory, at, flip):
    folder = tmp_path_factory.mktemp("npz")
    content = bytearray(save(folder).read_bytes())
    content[int(at * len(content))] ^= flip
    path = folder / "damaged.npz"
    path.write_bytes(content)
    message = f"{path}: "
    try:
        load_npz(path)  # some bytes do not matter
    except ConfigError as error:
        message = str(error)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
