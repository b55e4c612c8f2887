"""Synthetic data: the size asked for, seeded, and possible to learn."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.data import load_dataset
from psrt.data.synthetic import DEFAULT_SIZE
from psrt.errors import ConfigError


def test_the_size_asked_for_and_a_fifth_more_to_test():
    data = load_dataset("synthetic:1000x20x5", seed=0)
    assert (data.x_train.shape, data.x_test.shape, data.classes) == ((1000, 20), (200, 20), 5)


def test_the_default_size():
    data = load_dataset("synthetic", seed=0)
    assert (data.samples, data.features, data.classes) == DEFAULT_SIZE


def test_the_smallest():
    data = load_dataset("synthetic:5x1x2", seed=0)
    assert (data.x_train.shape, data.x_test.shape, data.classes) == ((5, 1), (1, 1), 2)


def test_the_seed_decides():
    first, again = (load_dataset("synthetic:500x8x3", seed=1) for _ in range(2))
    other = load_dataset("synthetic:500x8x3", seed=2)
    np.testing.assert_array_equal(first.x_train, again.x_train)
    np.testing.assert_array_equal(first.y_train, again.y_train)
    assert not np.array_equal(first.x_train, other.x_train)
    assert not np.array_equal(first.y_train, other.y_train)


@pytest.mark.parametrize("seed", range(5))
def test_inputs_are_standard_normal_and_no_class_takes_most(seed):
    data = load_dataset("synthetic:10000x16x4", seed=seed)
    assert abs(data.x_train.mean()) < 0.02
    assert abs(data.x_train.std() - 1) < 0.02
    shares = np.bincount(data.y_train, minlength=4) / 10_000
    assert shares.min() > 0.05
    assert shares.max() < 0.6


def test_labels_are_a_function_of_the_inputs_in_both_parts():
    data = load_dataset("synthetic:9000x4x3", seed=0)  # more samples than are labelled at a time
    distances = ((data.x_test[:200, None] - data.x_train[None]) ** 2).sum(axis=2)
    assert (data.y_train[distances.argmin(axis=1)] == data.y_test[:200]).mean() > 0.8


@pytest.mark.parametrize(
    "spec",
    [
        "synthetic:", "synthetic:10", "synthetic:10x2", "synthetic:10x2x", "synthetic:10x2x2x2",
        "synthetic:-10x2x2", "synthetic:10x2.5x2", "synthetic:10x 2x2", "synthetic:١٠x2x2",
        "synthetic:10x2x2\n",
    ],
)  # fmt: skip
def test_bad_spelling(spec):
    with pytest.raises(ConfigError, match="write synthetic:SAMPLESxFEATURESxCLASSES"):
        load_dataset(spec, seed=0)


@pytest.mark.parametrize("spec", ["synthetic:4x2x2", "synthetic:10x0x2", "synthetic:10x2x1"])
def test_too_small(spec):
    with pytest.raises(ConfigError, match="at least 5 samples, 1 feature and 2 classes"):
        load_dataset(spec, seed=0)


def test_more_than_memory_can_hold():
    with pytest.raises(ConfigError, match="does not fit into memory"):
        load_dataset("synthetic:999999999999x999999999999x2", seed=0)
