"""How far parameters have moved since they were read."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from psrt.runtime.gap import GapMeter


@pytest.mark.parametrize("n", [1, 7, 4096])
def test_the_gap_is_the_root_mean_square_of_what_was_moved(n):
    rng = np.random.default_rng(n)
    read, now = rng.standard_normal((2, n)).astype(np.float32)
    meter = GapMeter(n)
    meter.read_by(3, 5, read)
    read += 100  # the buffer goes on to another version
    expected = np.sqrt(np.mean((now.astype(float) - (read.astype(float) - 100)) ** 2))
    assert meter.measure(3, 5, now) == pytest.approx(expected, rel=1e-3)


def test_of_a_long_span_it_is_an_estimate_from_all_over_it():
    n = 1_000_000
    moved = np.zeros(n, np.float32)
    moved[n // 2 :] = 2.0
    meter = GapMeter(n)
    meter.read_by(0, 0, np.zeros(n, np.float32))
    assert meter.measure(0, 0, moved) == pytest.approx(np.sqrt(2), rel=1e-3)


def test_only_the_read_that_is_followed_is_measured_and_only_once():
    theta = np.zeros(4, np.float32)
    meter = GapMeter(4)
    meter.read_by(1, 2, theta)  # the first is always followed
    assert meter.measure(0, 2, theta) == -1.0
    assert meter.measure(1, 1, theta) == -1.0
    assert meter.measure(1, 2, theta + 3) == 3.0
    assert meter.measure(1, 2, theta + 3) == -1.0


def test_about_one_read_in_eight_is_followed_whoever_reads():
    theta, measured = np.zeros(1, np.float32), [0] * 4
    meter = GapMeter(1)
    for version, worker in zip(range(8000), itertools.cycle(range(4)), strict=False):
        meter.read_by(worker, version, theta)
        measured[worker] += meter.measure(worker, version, theta) >= 0
    assert sum(measured) == pytest.approx(1000, rel=0.1)
    assert min(measured) > 200  # no worker's turn coincides with the draw


def test_a_reader_that_leaves_or_reads_anew_makes_room():
    theta = np.zeros(1, np.float32)
    for leaves in (True, False):
        meter = GapMeter(1)
        meter.read_by(0, 0, theta)
        for version in range(1, 100):  # occupied by worker 0
            meter.read_by(1, version, theta)
            assert meter.measure(1, version, theta) == -1.0
        if leaves:
            meter.forget(1)
            meter.forget(0)
        followed = 0
        for version in range(100, 200):
            meter.read_by(0 if version == 100 and not leaves else 1, version, theta)
            followed += meter.measure(1, version, theta) >= 0
        assert followed > 5
