"""Data in files: every spelling that is around, every way to be broken; nothing in them is run."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.data import load_dataset
from support.cases import each


def refusal(path):
    """Return the line by which a path is refused, without the path."""
    with pytest.raises(ConfigError) as caught:
        load_dataset(str(path), seed=0)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@each("spec", ["mnist", "no/such/folder", "digit", "x" * 5000, "a\0b"])
def test_a_name_that_leads_nowhere(spec):
    guess = " (did you mean digits?)" if spec == "digit" else ""
    assert f"is not there{guess}; known names are digits and synthetic" in refusal(spec)


# --- npz ----------------------------------------------------------------------------------------


def arrays(**changes):
    return {
        "x_train": np.arange(12, dtype=np.float64).reshape(6, 2),
        "y_train": np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8),
        "x_test": np.ones((3, 2)),
        "y_test": np.array([0, 1, 0], dtype=np.uint8),
    } | changes


@pytest.fixture
def npz(tmp_path):
    """Returns what writes bytes, or arrays of a data set with changes, into a file."""

    def write(content=None, save=np.savez, **changes):
        path = tmp_path / "data.npz"
        if content is None:
            save(path, **arrays(**changes))
        else:
            path.write_bytes(content)
        return path

    return write


def test_classes_and_regression(npz):
    path = npz(extra=np.ones(3))
    data = load_dataset(str(path), seed=0)
    np.testing.assert_array_equal(data.x_train, np.arange(12).reshape(6, 2))
    assert (data.classes, data.y_train.dtype, data.name) == (3, np.int64, str(path))
    path = npz(save=np.savez_compressed, y_train=np.ones((6, 2)), y_test=np.zeros((3, 2)))
    data = load_dataset(str(path), seed=0)
    assert (data.classes, data.outputs, data.y_train.dtype) == (0, 2, np.float32)


class Trap:
    """Unpickling one makes the folder that it names."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_is_ever_unpickled(npz, tmp_path):
    trap = Trap(str(tmp_path / "sprung"))
    path = npz(y_train=np.array([trap] * 6, dtype=object))
    assert refusal(path) == "y_train holds Python objects, which psrt never unpickles"
    assert refusal(npz(pickle.dumps(trap))) == "not an .npz file"
    assert not (tmp_path / "sprung").exists()


def test_what_is_no_npz(npz, tmp_path):
    assert refusal(tmp_path / "gone.npz") == "cannot be read: No such file or directory"
    assert refusal(npz(b"")) == "not an .npz file"
    with npz().open("wb") as stream:
        np.save(stream, np.ones(3))
    assert refusal(tmp_path / "data.npz") == "not an .npz file"
    np.savez(tmp_path / "data.npz", x_train=np.ones((3, 2)), y_test=np.ones(3))
    lacks = "holds no array y_train or x_test, but x_train, y_test"
    assert refusal(tmp_path / "data.npz") == lacks
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        for part in arrays():
            archive.writestr(part, b"hello")
    assert refusal(tmp_path / "data.npz") == "x_train is not a numpy array"
    (tmp_path / "data.csv").write_text("1,2\n")
    line = refusal(tmp_path / "data.csv")
    assert "data.csv' is not a folder or an .npz file; numpy.savez" in line


def test_a_file_that_is_cut_off_or_damaged_or_holds_what_will_not_do(npz):
    content = npz().read_bytes()
    for keep in (0.1, 0.9, 0.999):
        path = npz(content[: int(len(content) * keep)])
        assert refusal(path).startswith("not a readable .npz file: ")
    damaged = bytearray(content)
    damaged[content.index(np.arange(12.0).tobytes()) + 50] ^= 1
    assert refusal(npz(damaged)).startswith("not a readable .npz file: Bad CRC-32")
    path = npz(x_test=np.array([[0, 1], [2, np.nan], [3, 4]]))
    assert refusal(path) == "x_test is not finite in float32 at row 1, column 1: nan"


# --- folders of IDX -----------------------------------------------------------------------------

RNG = np.random.default_rng(0)
IMAGES = {it: RNG.integers(0, 256, (n, 4, 3), np.uint8) for it, n in (("train", 7), ("t10k", 3))}
LABELS = {it: np.array(of, np.uint8) for it, of in (("train", [4, 0, 2, 1, 3, 3, 0]),
                                                    ("t10k", [3, 1, 4]))}  # fmt: skip


def idx(array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_folder(folder, *, dash="-", ending=""):
    pack = gzip.compress if ending else bytes
    for part in ("train", "t10k"):
        for what, array, kind in (("images", IMAGES, "idx3"), ("labels", LABELS, "idx1")):
            path = folder / f"{part}-{what}{dash}{kind}-ubyte{ending}"
            path.write_bytes(pack(idx(array[part])))
    return folder


@pytest.mark.parametrize("piece", [5, 1 << 20])
@pytest.mark.parametrize(("dash", "ending"), [("-", ""), (".", ""), ("-", ".gz"), (".", ".gz")])
def test_every_spelling(tmp_path, dash, ending, piece, monkeypatch):
    monkeypatch.setattr("psrt.data.idx._PIECE", piece)  # files larger than one, and smaller
    data = load_dataset(str(write_folder(tmp_path, dash=dash, ending=ending)), seed=0)
    train, test = (data.x_train, data.y_train), (data.x_test, data.y_test)
    for part, (x, y) in (("train", train), ("t10k", test)):
        np.testing.assert_array_equal(x, IMAGES[part].reshape(len(x), 12) / np.float32(255))
        np.testing.assert_array_equal(y, LABELS[part])
    assert (data.name, data.classes) == (str(tmp_path), 5)


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_missing_file_is_named(tmp_path, name):
    (write_folder(tmp_path) / name).unlink()
    assert refusal(tmp_path) == f"no {name} or {name}.gz in this folder"


#: What is wrong with the bytes of train-images, and what the message says after the path.
BROKEN = [
    (lambda raw: b"", "truncated, 0 bytes are no IDX header"),
    (lambda raw: raw[:10], "truncated, 10 bytes are no IDX header"),
    (lambda raw: raw[:-1], "truncated, 83 bytes of data where the header says 84"),
    (lambda raw: raw + b"x", "more data than the 84 bytes that the header says"),
    (lambda raw: idx(LABELS["train"]), "magic number 0x00000801, expected 0x00000803"),
    (lambda raw: b"<html>not found", "magic number 0x3c68746d, expected 0x00000803"),
    (lambda raw: raw[:4] + b"\xff" * 12 + raw[16:],
     f"truncated, 84 bytes of data where the header says {(2**32 - 1) ** 3}"),
]  # fmt: skip


@each("ending", ["", ".gz"])
@each(("change", "message"), BROKEN)
def test_broken_content(tmp_path, change, message, ending):
    folder = tmp_path / f"{ending}of"
    folder.mkdir(exist_ok=True)
    path = write_folder(folder, ending=ending) / f"train-images-idx3-ubyte{ending}"
    content = change(idx(IMAGES["train"]))
    path.write_bytes(gzip.compress(content) if ending else content)
    assert refusal(folder) == f"{path}: {message}"


@each(("change", "message"), [
    (lambda packed: packed[:-12], "truncated gzip file"),
    (lambda packed: packed[:-8] + b"\0" * 8, "corrupt gzip file: CRC check failed"),
    (lambda packed: b"no gzip" + packed, "corrupt gzip file: Not a gzipped file"),
])  # fmt: skip
def test_broken_gzip(tmp_path, change, message):
    path = write_folder(tmp_path, ending=".gz") / "train-images-idx3-ubyte.gz"
    path.write_bytes(change(path.read_bytes()))
    assert refusal(tmp_path).startswith(f"{path}: {message}")


def test_files_that_do_not_go_together(tmp_path):
    labels, images = (tmp_path / f"t10k-{it}-ubyte" for it in ("labels-idx1", "images-idx3"))
    write_folder(tmp_path)
    labels.write_bytes(idx(LABELS["train"]))
    assert refusal(tmp_path) == f"{labels}: 7 labels for 3 images"
    labels.write_bytes(idx(np.zeros(0, np.uint8)))
    images.write_bytes(idx(np.zeros((0, 4, 3), np.uint8)))
    assert refusal(tmp_path) == "x_test is empty, shape (0, 4, 3)"
    labels.write_bytes(idx(LABELS["t10k"]))
    images.write_bytes(idx(np.zeros((3, 4, 4), np.uint8)))
    assert refusal(tmp_path) == "x_train has 12 values per sample, x_test 16"
