"""The embedded digits are what DIGITS.md says."""

from __future__ import annotations

from importlib import resources

import numpy as np

from psrt.data import load_dataset

#: Images of each class among the 1797, as the original's description counts them.
COUNTS = np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])


def test_sizes_types_and_range():
    data = load_dataset("digits", seed=0)
    assert data.name == "digits"
    assert (data.x_train.shape, data.x_test.shape) == ((1437, 64), (360, 64))
    assert (data.y_train.shape, data.y_test.shape, data.classes) == ((1437,), (360,), 10)
    assert (data.x_train.min(), data.x_train.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(data.x_train * 16, np.rint(data.x_train * 16))


def test_every_class_has_its_share_in_both_parts():
    data = load_dataset("digits", seed=0)
    test = np.bincount(data.y_test)
    np.testing.assert_array_equal(np.bincount(data.y_train) + test, COUNTS)
    assert np.abs(test - COUNTS * 360 / 1797).max() < 1


def test_no_image_is_in_both_parts():
    data = load_dataset("digits", seed=0)
    train = {image.tobytes() for image in data.x_train}
    assert not any(image.tobytes() in train for image in data.x_test)


def test_classes_are_told_apart_by_their_mean_image():
    # Labels that had lost their images would end near 10 %.
    data = load_dataset("digits", seed=0)
    means = np.stack([data.x_train[data.y_train == c].mean(axis=0) for c in range(10)])
    distances = ((data.x_test[:, None] - means) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == data.y_test).mean() > 0.85


def test_the_file_is_small_and_says_where_it_is_from():
    folder = resources.files("psrt.data")
    assert len(folder.joinpath("digits.npz").read_bytes()) < 150_000
    text = folder.joinpath("DIGITS.md").read_text(encoding="utf-8")
    assert all(word in text for word in ("Alpaydin", "Kaynak", "CC BY 4.0", "UCI"))
