"""The distance of vectors from sketches of them, and of what workers end with."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psrt.runtime.mean import mean_of
from psrt.runtime.sketch import SIZE, distance, sketch


def apart(thetas):
    """Return ‖θ_i − mean‖/√n, the root of its mean square, in float64."""
    wide = np.array(thetas, np.float64)
    return math.sqrt(np.mean((wide - wide.mean(axis=0)) ** 2))


def shifted(kind, workers, n):
    """Return (workers, n) float32: a common vector, and what differs."""
    rng = np.random.default_rng(n)
    one = rng.standard_normal((workers, 1))
    differ = {
        "anywhere": rng.standard_normal((workers, n)),
        "by a constant": one * np.ones(n),
        "in one element": one * (np.arange(n) == n // 2),
        "where one number of the sketch would be": one * (np.arange(n) % SIZE == 7),
    }
    return (rng.standard_normal(n) + 1e-2 * differ[kind]).astype(np.float32)


KINDS = ["anywhere", "by a constant", "in one element", "where one number of the sketch would be"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 7, SIZE])
def test_of_few_elements_it_is_exact(n, kind):
    thetas = shifted(kind, 3, n)
    assert distance([sketch(it) for it in thetas]) == pytest.approx(apart(thetas), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [SIZE + 1, 3 * SIZE + 5, 60 * SIZE])
def test_of_many_elements_it_is_close(n, kind):
    """Four standard deviations of √(2/SIZE) of the square; of one worker that differs, at worst."""
    thetas = shifted(kind, 4, n)
    assert distance([sketch(it) for it in thetas]) == pytest.approx(apart(thetas), rel=0.045)


def test_it_is_right_on_average():
    n, rng = 5 * SIZE, np.random.default_rng(1)
    vectors = rng.standard_normal((40, n)).astype(np.float32)
    ratios = [np.sum(sketch(it) ** 2) / np.mean(it.astype(float) ** 2) for it in vectors]
    assert np.mean(ratios) == pytest.approx(1.0, abs=4 * math.sqrt(2 / SIZE / 40))


def test_equal_vectors_are_at_no_distance():
    one = np.random.default_rng(0).standard_normal(SIZE + 3).astype(np.float32)
    assert distance([sketch(one)] * 3) == 0.0
    assert distance([sketch(one)]) is None
    assert distance([]) is None


@pytest.mark.parametrize("weights", [[1.0] * 4, [0.5, 2.0, 0.25, 1.25]])
def test_the_mean_knows_how_far_apart_its_vectors_are(weights):
    thetas = shifted("anywhere", 4, 1000).astype(np.float64)
    held = [((w * it).astype(np.float32), w) for w, it in zip(weights, thetas, strict=True)]
    mean = mean_of(iter(held))
    theta = sum(w * it for w, it in zip(weights, thetas, strict=True)) / sum(weights)
    assert mean.theta == pytest.approx(theta, abs=1e-6)
    assert mean.models == 4
    assert mean.distance == pytest.approx(math.sqrt(np.mean((thetas - theta) ** 2)), rel=1e-4)


def test_the_mean_of_equal_vectors_and_of_none():
    one = np.random.default_rng(0).standard_normal(9).astype(np.float32)
    assert mean_of([(one, 1.0)] * 3).distance == 0.0
    assert mean_of([(one, 1.0)]).distance == 0.0
    assert mean_of([(one[:0], 1.0)] * 3).distance is None
