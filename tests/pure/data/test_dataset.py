"""What every source goes through, and the two that psrt brings along: digits and synthetic."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.data import load_dataset
from psrt.data.dataset import checked_dataset
from psrt.data.synthetic import DEFAULT_SIZE
from support.cases import each


def checked(scale=None, classes=None, **changes):
    arrays = {
        "x_train": np.arange(12.0).reshape(6, 2),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": np.ones((3, 2)),
        "y_test": np.array([0, 1, 0]),
    } | changes
    return checked_dataset("toy", **arrays, scale=scale, classes=classes)


def test_types_and_sizes():
    data = checked()
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert (data.name, data.samples, data.features, data.outputs, data.classes) == (
        "toy", 6, 2, 3, 3,
    )  # fmt: skip
    assert checked(y_test=np.array([0, 1, 8]), classes=10).classes == 10
    # One class still needs two outputs.
    assert checked(y_train=np.zeros(6, int), y_test=np.zeros(3, int)).classes == 2


def test_images_are_flattened_and_scaled():
    images = np.array([[[0, 51], [102, 255]]] * 6, dtype=np.uint8)
    data = checked(255, x_train=images, x_test=images[:3])
    np.testing.assert_array_equal(data.x_train[0], np.float32([0, 0.2, 0.4, 1]))
    assert data.x_test.shape == (3, 4)


def test_float_answers_are_a_regression():
    data = checked(y_train=np.arange(6.0), y_test=np.zeros((3, 1)))
    assert (data.classes, data.outputs) == (0, 1)
    assert (data.y_train.shape, data.y_train.dtype) == ((6, 1), np.float32)
    assert checked(y_train=np.ones((6, 4)), y_test=np.ones((3, 4))).outputs == 4


@each("dtype", [">i2", "<i8", "u8", "bool"])
def test_any_type_of_labels(dtype):
    y = np.array([0, 1, 1, 0, 1, 0])
    for given in (y, y[:, None]):
        data = checked(y_train=given.astype(dtype), y_test=y[:3].astype(dtype))
        assert data.y_train.dtype.isnative
        np.testing.assert_array_equal(data.y_train, y)


@each("dtype", ["bool", "uint64", "float16", ">f4"])
def test_any_real_type_of_samples(dtype):
    data = checked(x_train=np.array([[0, 1]] * 6).astype(dtype))
    assert data.x_train.dtype == np.float32
    assert data.x_train.dtype.isnative
    np.testing.assert_array_equal(data.x_train, [[0, 1]] * 6)


def test_what_fits_is_not_copied_and_the_layout_becomes_contiguous():
    x, y = np.ones((6, 2), dtype=np.float32), np.array([0, 1, 2, 0, 1, 2], dtype=np.int64)
    data = checked(x_train=x, y_train=y)
    assert np.shares_memory(data.x_train, x)
    assert np.shares_memory(data.y_train, y)
    assert checked(x_train=np.ones((2, 6), dtype=np.float32).T).x_train.flags.c_contiguous


def test_conversion_needs_little_more_than_its_result():
    x, y = np.zeros((40_000, 20), dtype=np.uint8), np.zeros(40_000, np.int64)
    tracemalloc.start()
    try:
        data = checked(255, x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.25 * data.x_train.nbytes


@each(("changes", "message"), [
    ({"x_train": np.ones((6, 3))}, "x_train has 3 values per sample, x_test 2"),
    ({"x_train": np.ones(6)}, r"x_train must be \(samples, features\), got shape \(6,\)"),
    ({"x_train": np.ones((0, 2))}, r"x_train is empty, shape \(0, 2\)"),
    ({"x_test": np.ones((3, 0))}, r"x_test is empty, shape \(3, 0\)"),
    ({"x_train": np.ones((6, 2), complex)}, "x_train must hold real numbers, got dtype compl"),
    ({"x_test": np.full((3, 2), None)}, "x_test must hold real numbers, got dtype object"),
    ({"x_train": np.array([[0, 1]] * 5 + [[2, np.nan]])}, ".*row 5, column 1: nan"),
    ({"x_train": np.array([[0, 1]] * 5 + [[2, 1e300]])}, ".*float32 at row 5.*: 1e"),
    ({"x_train": np.array([[0, 1]] * 9_876 + [[2, np.nan]]), "y_train": [0] * 9_877},
     ".*row 9876, column 1"),  # beyond the first block
    ({"y_train": np.zeros(5, int)}, "y_train has 5 rows for 6 samples"),
    ({"y_train": np.array(0)}, r"y_train must be \(samples,\) or \(samples, k\), got \(\)"),
    ({"y_train": np.zeros((6, 2), int)}, r"y_train must have one label .* \(6, 2\)"),
    ({"y_train": np.zeros((6, 0))}, r"y_train must be \(samples,\) or"),
    ({"y_train": np.full(6, "a")}, "y_train must hold labels or targets, got dtype <U1"),
    ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, "y_train has the label -1, labels start"),
    ({"y_test": np.array([0, 1, 10**6])}, "y_test has the label 1000000, the limit is 999999"),
    ({"y_train": np.array([1, 2, 3, 1, 2, 3]), "y_test": np.array([1, 2, 3])},
     "the labels begin at 1, expected 0 and up: subtract 1"),
    ({"y_test": np.array([0, 8, 9])}, "y_test has the label 8, which y_train never has"),
    ({"y_train": np.array([0, 1, 2, 4, 0, 1]), "y_test": np.array([4, 3, 0])}, "y_test .* 3, "),
    ({"y_test": np.zeros(3)}, "y_train and y_test must both be labels or both be targets"),
    ({"y_test": np.array([0, 1, np.nan])}, "y_test is not finite in float32 at row 2"),
    ({"y_train": np.zeros((6, 2)), "y_test": np.zeros((3, 1))},
     "y_train has 2 targets per sample, y_test 1"),
])  # fmt: skip
def test_what_will_not_do(changes, message):
    with pytest.raises(ConfigError, match=f"^toy: {message}") as caught:
        checked(**changes)
    assert "\n" not in str(caught.value)


#: Images of each class among the 1797, as the original's description counts them.
COUNTS = np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])


def test_digits_are_what_their_description_says():
    data = load_dataset("digits", seed=0)
    assert data.name == "digits"
    assert (data.x_train.shape, data.x_test.shape) == ((1437, 64), (360, 64))
    assert (data.y_train.shape, data.y_test.shape, data.classes) == ((1437,), (360,), 10)
    assert (data.x_train.min(), data.x_train.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(data.x_train * 16, np.rint(data.x_train * 16))
    test = np.bincount(data.y_test)
    np.testing.assert_array_equal(np.bincount(data.y_train) + test, COUNTS)
    assert np.abs(test - COUNTS * 360 / 1797).max() < 1
    images = {image.tobytes() for image in data.x_train}
    assert not any(image.tobytes() in images for image in data.x_test)
    # Labels that had lost their images would end near 10 %.
    means = np.stack([data.x_train[data.y_train == c].mean(axis=0) for c in range(10)])
    distances = ((data.x_test[:, None] - means) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == data.y_test).mean() > 0.85


@each(("spec", "train", "test", "classes"), [
    ("synthetic:1000x20x5", (1000, 20), (200, 20), 5),  # a fifth more to test
    ("synthetic:5x1x2", (5, 1), (1, 1), 2),  # the smallest
    ("synthetic", DEFAULT_SIZE[:2], None, DEFAULT_SIZE[2]),
])  # fmt: skip
def test_synthetic_data_has_the_size_asked_for(spec, train, test, classes):
    data = load_dataset(spec, seed=0)
    assert (data.x_train.shape, data.classes) == (train, classes)
    assert test is None or data.x_test.shape == test


def test_the_seed_decides():
    first, again, other = (load_dataset("synthetic:500x8x3", seed=it) for it in (1, 1, 2))
    for name in ("x_train", "y_train"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))


@each("seed", range(3))
def test_inputs_are_standard_normal_and_no_class_takes_most(seed):
    data = load_dataset("synthetic:10000x16x4", seed=seed)
    assert abs(data.x_train.mean()) < 0.02
    assert abs(data.x_train.std() - 1) < 0.02
    shares = np.bincount(data.y_train, minlength=4) / 10_000
    assert 0.05 < shares.min() <= shares.max() < 0.6


def test_labels_are_a_function_of_the_inputs_in_both_parts():
    data = load_dataset("synthetic:9000x4x3", seed=0)  # more samples than are labelled at a time
    distances = ((data.x_test[:200, None] - data.x_train[None]) ** 2).sum(axis=2)
    assert (data.y_train[distances.argmin(axis=1)] == data.y_test[:200]).mean() > 0.8


@each(("sizes", "line"), [
    *((it, "write synthetic:SAMPLESxFEATURESxCLASSES") for it in (
        "", "10x2", "10x2x2x2", "-10x2x2", "10x2.5x2", "10x 2x2", "١٠x2x2", "10x2x2\n")),
    *((it, "at least 5 samples, 1 feature and 2 classes") for it in ("4x2x2", "10x0x2", "10x2x1")),
    ("999999999999x999999999999x2", "does not fit into memory"),
])  # fmt: skip
def test_synthetic_data_that_cannot_be(sizes, line):
    with pytest.raises(ConfigError, match=line):
        load_dataset(f"synthetic:{sizes}", seed=0)
