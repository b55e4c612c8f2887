"""IDX folders: every spelling that is around, and every way in which a file can be broken."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from psrt.data import load_dataset
from psrt.errors import ConfigError

RNG = np.random.default_rng(0)
IMAGES = {
    part: RNG.integers(0, 256, (n, 4, 3), np.uint8) for part, n in (("train", 7), ("t10k", 3))
}
LABELS = {
    "train": np.array([4, 0, 2, 1, 3, 3, 0], np.uint8),
    "t10k": np.array([3, 1, 4], np.uint8),
}


def idx(array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_folder(folder, *, dash="-", ending=""):
    pack = gzip.compress if ending else bytes
    for part in ("train", "t10k"):
        for what, array, kind in (
            ("images", IMAGES[part], "idx3"),
            ("labels", LABELS[part], "idx1"),
        ):
            (folder / f"{part}-{what}{dash}{kind}-ubyte{ending}").write_bytes(pack(idx(array)))
    return folder


@pytest.mark.parametrize("dash", ["-", "."])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_every_spelling(tmp_path, dash, ending):
    data = load_dataset(str(write_folder(tmp_path, dash=dash, ending=ending)), seed=0)
    for part, x, y in (
        ("train", data.x_train, data.y_train),
        ("t10k", data.x_test, data.y_test),
    ):
        np.testing.assert_array_equal(x, IMAGES[part].reshape(len(x), 12) / np.float32(255))
        np.testing.assert_array_equal(y, LABELS[part])
    assert data.name == str(tmp_path)
    assert data.classes == 1 + max(LABELS["train"].max(), LABELS["t10k"].max())


def test_files_larger_than_a_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("psrt.data.idx._PIECE", 5)
    data = load_dataset(str(write_folder(tmp_path, ending=".gz")), seed=0)
    np.testing.assert_array_equal(data.x_train, IMAGES["train"].reshape(7, 12) / np.float32(255))


def refusal(folder):
    with pytest.raises(ConfigError) as caught:
        load_dataset(str(folder), seed=0)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "name",
    [
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ],
)
def test_a_missing_file_is_named(tmp_path, name):
    (write_folder(tmp_path) / name).unlink()
    assert refusal(tmp_path) == f"{tmp_path}: no {name} or {name}.gz in this folder"


#: What is wrong with the bytes of train-images → what the message says after the path.
BROKEN = {
    "empty": (lambda raw: b"", "truncated, 0 bytes are no IDX header"),
    "half a header": (lambda raw: raw[:10], "truncated, 10 bytes are no IDX header"),
    "short": (lambda raw: raw[:-1], "truncated, 83 bytes of data where the header says 84"),
    "long": (lambda raw: raw + b"x", "more data than the 84 bytes that the header says"),
    "labels": (
        lambda raw: idx(LABELS["train"]),
        "magic number 0x00000801, expected 0x00000803",
    ),
    "floats": (
        lambda raw: raw[:2] + b"\x0d" + raw[3:],
        "magic number 0x00000d03, expected 0x00000803",
    ),
    "text": (lambda raw: b"<html>not found", "magic number 0x3c68746d, expected 0x00000803"),
    "a header that lies": (
        lambda raw: raw[:4] + b"\xff" * 12 + raw[16:],
        f"truncated, 84 bytes of data where the header says {(2**32 - 1) ** 3}",
    ),
}


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("what", BROKEN)
def test_broken_content(tmp_path, what, ending):
    change, message = BROKEN[what]
    path = write_folder(tmp_path, ending=ending) / f"train-images-idx3-ubyte{ending}"
    content = change(idx(IMAGES["train"]))
    path.write_bytes(gzip.compress(content) if ending else content)
    assert refusal(tmp_path) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda packed: packed[:-12], "truncated gzip file"),
        (lambda packed: packed[:-8] + b"\0" * 8, "corrupt gzip file: CRC check failed"),
        (lambda packed: b"no gzip" + packed, "corrupt gzip file: Not a gzipped file"),
        (lambda packed: packed[:12] + b"\xff" * 40 + packed[52:], "corrupt gzip file: "),
    ],
)
def test_broken_gzip(tmp_path, change, message):
    path = write_folder(tmp_path, ending=".gz") / "train-images-idx3-ubyte.gz"
    path.write_bytes(change(path.read_bytes()))
    assert refusal(tmp_path).startswith(f"{path}: {message}")


def test_as_many_labels_as_images(tmp_path):
    path = write_folder(tmp_path) / "t10k-labels-idx1-ubyte"
    path.write_bytes(idx(LABELS["train"]))
    assert refusal(tmp_path) == f"{path}: 7 labels for 3 images"


def test_no_images(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(0, np.uint8)))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((0, 4, 3), np.uint8)))
    assert refusal(tmp_path) == f"{tmp_path}: x_test is empty, shape (0, 4, 3)"


def test_images_of_different_sizes(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((3, 4, 4), np.uint8)))
    assert refusal(tmp_path) == f"{tmp_path}: x_train has 12 values per sample, x_test 16"
