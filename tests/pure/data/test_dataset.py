"""The checks that every source goes through."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from psrt.data.dataset import checked_dataset
from psrt.errors import ConfigError


def parts(**changes):
    arrays = {
        "x_train": np.arange(12.0).reshape(6, 2),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": np.ones((3, 2)),
        "y_test": np.array([0, 1, 0]),
    }
    return arrays | changes


def test_types_and_sizes():
    data = checked_dataset("toy", **parts())
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert (data.name, data.samples, data.features, data.outputs, data.classes) == (
        "toy", 6, 2, 3, 3,
    )  # fmt: skip


def test_images_are_flattened_and_scaled():
    images = np.array([[[0, 51], [102, 255]]] * 6, dtype=np.uint8)
    data = checked_dataset("toy", **parts(x_train=images, x_test=images[:3]), scale=255)
    np.testing.assert_array_equal(data.x_train[0], np.float32([0, 0.2, 0.4, 1]))
    assert data.x_test.shape == (3, 4)


def test_float_answers_are_a_regression():
    data = checked_dataset("toy", **parts(y_train=np.arange(6.0), y_test=np.zeros((3, 1))))
    assert (data.classes, data.outputs) == (0, 1)
    assert data.y_train.shape == (6, 1)
    assert data.y_train.dtype == np.float32
    data = checked_dataset("toy", **parts(y_train=np.ones((6, 4)), y_test=np.ones((3, 4))))
    assert data.outputs == 4


def test_a_source_may_know_more_classes_than_the_training_part_shows():
    labels = np.array([0, 1, 8])
    assert checked_dataset("toy", **parts(y_test=labels), classes=10).classes == 10


@pytest.mark.parametrize("dtype", [">i2", "<i8", ">i8", "u8", ">u4", "i1", "bool"])
def test_any_type_of_labels(dtype):
    y = np.array([0, 1, 1, 0, 1, 0])
    data = checked_dataset("toy", **parts(y_train=y.astype(dtype), y_test=y[:3].astype(dtype)))
    assert data.y_train.dtype.isnative
    np.testing.assert_array_equal(data.y_train, y)


def test_one_class_still_needs_two_outputs():
    data = checked_dataset("toy", **parts(y_train=np.zeros(6, int), y_test=np.zeros(3, int)))
    assert data.classes == 2


def test_a_column_of_labels_is_taken():
    data = checked_dataset("toy", **parts(y_train=np.array([[0], [1], [0], [1], [0], [1]])))
    assert data.y_train.shape == (6,)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", ">f4"])
def test_any_real_type_of_samples(dtype):
    x = np.array([[0, 1]] * 6).astype(dtype)
    data = checked_dataset("toy", **parts(x_train=x))
    assert data.x_train.dtype == np.float32
    assert data.x_train.dtype.isnative
    np.testing.assert_array_equal(data.x_train, [[0, 1]] * 6)


def test_what_fits_is_not_copied():
    x = np.ones((6, 2), dtype=np.float32)
    y = np.array([0, 1, 2, 0, 1, 2], dtype=np.int64)
    data = checked_dataset("toy", **parts(x_train=x, y_train=y))
    assert np.shares_memory(data.x_train, x)
    assert np.shares_memory(data.y_train, y)


def test_the_layout_becomes_contiguous():
    data = checked_dataset("toy", **parts(x_train=np.ones((2, 6), dtype=np.float32).T))
    assert data.x_train.flags.c_contiguous


def test_conversion_needs_little_more_than_its_result():
    x = np.zeros((40_000, 20), dtype=np.uint8)
    tracemalloc.start()
    try:
        data = checked_dataset(
            "toy", x, np.zeros(40_000, np.int64), x[:9], np.zeros(9, np.int64), scale=255
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.25 * data.x_train.nbytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.ones((6, 3))}, "x_train has 3 values per sample, x_test 2"),
        ({"x_train": np.ones(6)}, r"x_train must be \(samples, features\), got shape \(6,\)"),
        ({"x_train": np.ones((0, 2))}, r"x_train is empty, shape \(0, 2\)"),
        ({"x_test": np.ones((3, 0))}, r"x_test is empty, shape \(3, 0\)"),
        ({"x_train": np.ones((6, 2), complex)}, "x_train must hold real numbers, got dtype compl"),
        ({"x_train": np.full((6, 2), "a")}, "x_train must hold real numbers, got dtype <U1"),
        ({"x_test": np.full((3, 2), None)}, "x_test must hold real numbers, got dtype object"),
        ({"x_train": np.array([[0, 1]] * 5 + [[2, np.nan]])}, ".*row 5, column 1: nan"),
        ({"x_train": np.array([[0, 1]] * 5 + [[-np.inf, 2]])}, ".*row 5, column 0: -inf"),
        ({"x_train": np.array([[0, 1]] * 5 + [[2, 1e300]])}, ".*float32 at row 5.*: 1e"),
        ({"y_train": np.zeros(5, int)}, "y_train has 5 rows for 6 samples"),
        ({"y_train": np.array(0)}, r"y_train must be \(samples,\) or \(samples, k\), got \(\)"),
        ({"y_train": np.zeros((6, 2), int)}, r"y_train must have one label .* \(6, 2\)"),
        ({"y_train": np.zeros((6, 0))}, r"y_train must be \(samples,\) or"),
        ({"y_train": np.full(6, "a")}, "y_train must hold labels or targets, got dtype <U1"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, "y_train has the label -1, labels start"),
        ({"y_test": np.array([0, 1, 10**6])}, "y_test has the label 1000000, the limit is 999999"),
        (
            {"y_train": np.array([1, 2, 3, 1, 2, 3]), "y_test": np.array([1, 2, 3])},
            "the labels begin at 1, expected 0 and up: subtract 1",
        ),
        ({"y_test": np.array([0, 8, 9])}, "y_test has the label 8, which y_train never has"),
        ({"y_train": np.array([0, 1, 2, 4, 0, 1]), "y_test": np.array([4, 3, 0])}, "y_test .* 3, "),
        ({"y_test": np.zeros(3)}, "y_train and y_test must both be labels or both be targets"),
        ({"y_test": np.array([0, 1, np.nan])}, "y_test is not finite in float32 at row 2"),
        (
            {"y_train": np.zeros((6, 2)), "y_test": np.zeros((3, 1))},
            "y_train has 2 targets per sample, y_test 1",
        ),
    ],
)
def test_what_will_not_do(changes, message):
    with pytest.raises(ConfigError, match=f"^toy: {message}") as caught:
        checked_dataset("toy", **parts(**changes))
    assert "\n" not in str(caught.value)


def test_the_row_of_a_bad_value_is_right_beyond_the_first_block():
    x = np.zeros((10_000, 2))
    x[9_876, 1] = np.nan
    with pytest.raises(ConfigError, match="row 9876, column 1"):
        checked_dataset("toy", x, np.zeros(10_000, int), np.ones((3, 2)), np.zeros(3, int))
