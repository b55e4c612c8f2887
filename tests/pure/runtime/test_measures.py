"""What is measured of vectors: gaps, distances, checksums, and sums that are conserved."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from psrt.codec import CODECS, Matrix
from psrt.history import EVENT, Kind
from psrt.history.check.findings import Findings
from psrt.history.check.frames import check_conserved
from psrt.history.check.table import Table
from psrt.history.folds.sketch import SIZE, distance, sketch
from psrt.runtime.checksum import checksum
from psrt.runtime.conserved import conserved
from psrt.runtime.gap import GapMeter
from psrt.runtime.mean import mean_of
from support.cases import each
from support.coding import make_encoder

# --- how far parameters have moved since they were read -------------------------------------------


@each("n", [1, 7, 4096])
def test_the_gap_is_the_root_mean_square_of_what_was_moved(n):
    rng = np.random.default_rng(n)
    read, now = rng.standard_normal((2, n)).astype(np.float32)
    meter = GapMeter(n)
    meter.read_by(3, 5, read)
    read += 100  # the buffer goes on to another version
    expected = np.sqrt(np.mean((now.astype(float) - (read.astype(float) - 100)) ** 2))
    assert meter.measure(3, 5, now) == pytest.approx(expected, rel=1e-3)
    long = 1_000_000  # of which it is an estimate, from all over it
    meter, moved = GapMeter(long), np.zeros(long, np.float32)
    moved[long // 2 :] = 2.0
    meter.read_by(0, 0, np.zeros(long, np.float32))
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


# --- distances, by sketches -----------------------------------------------------------------------


def apart(thetas):
    """Return ‖θ_i − mean‖/√n, the root of its mean square, in float64."""
    wide = np.array(thetas, np.float64)
    return math.sqrt(np.mean((wide - wide.mean(axis=0)) ** 2))


#: (random numbers of workers and elements, one of each worker, number of elements) → what differs.
DIFFER = {
    "anywhere": lambda each, one, n: each,
    "by a constant": lambda each, one, n: one * np.ones(n),
    "in one element": lambda each, one, n: one * (np.arange(n) == n // 2),
    "where one number of the sketch would be": lambda each, one, n: (
        one * (np.arange(n) % SIZE == 7)
    ),
}


def shifted(kind, workers, n):
    """Return (workers, n) float32: a common vector, and what differs."""
    rng = np.random.default_rng(n)
    one, own = rng.standard_normal((workers, 1)), rng.standard_normal((workers, n))
    return (rng.standard_normal(n) + 1e-2 * DIFFER[kind](own, one, n)).astype(np.float32)


@each("kind", DIFFER)
@each("n", [1, 7, SIZE, SIZE + 1, 3 * SIZE + 5, 60 * SIZE])
def test_of_few_elements_it_is_exact_and_of_many_close(n, kind):
    """Four standard deviations of √(2/SIZE) of the square; of one worker that differs, at worst."""
    thetas = shifted(kind, 4, n)
    found = distance([sketch(it) for it in thetas])
    assert found == pytest.approx(apart(thetas), rel=1e-12 if n <= SIZE else 0.045)


def test_equal_vectors_are_at_no_distance():
    one = np.random.default_rng(0).standard_normal(SIZE + 3).astype(np.float32)
    assert distance([sketch(one)] * 3) == 0.0
    assert distance([sketch(one)]) is None
    assert distance([]) is None


@each("weights", [[1.0] * 4, [0.5, 2.0, 0.25, 1.25]])
def test_the_mean_knows_how_far_apart_its_vectors_are(weights):
    thetas = shifted("anywhere", 4, 1000).astype(np.float64)
    held = [((w * it).astype(np.float32), w) for w, it in zip(weights, thetas, strict=True)]
    mean = mean_of(iter(held))
    theta = sum(w * it for w, it in zip(weights, thetas, strict=True)) / sum(weights)
    assert mean.theta == pytest.approx(theta, abs=1e-6)
    assert mean.models == 4
    assert mean.distance == pytest.approx(math.sqrt(np.mean((thetas - theta) ** 2)), rel=1e-4)
    assert mean_of([held[0]] * 3).distance == 0.0
    assert mean_of([(held[0][0][:0], 1.0)] * 3).distance is None


# --- checksums ------------------------------------------------------------------------------------

VECTOR = np.linspace(-1, 1, 1000).astype(np.float32)


def test_equal_bits_have_equal_sums_of_63_bits():
    assert checksum(VECTOR) == checksum(VECTOR.copy())
    sums = [checksum(VECTOR[: i + 1]) for i in range(200)]
    assert all(0 <= number < 2**63 for number in sums)
    assert max(sums) > 2**62  # all of them are used
    assert checksum(VECTOR[:0]) >= 0


@each("bit", range(32))
@each("place", [0, 499, 999])
def test_a_flipped_bit_shows_and_an_exchange(place, bit):
    other = VECTOR.copy()
    other.view(np.uint32)[place] ^= np.uint32(1 << bit)
    assert checksum(other) != checksum(VECTOR)
    other = VECTOR.copy()
    other[[place, bit + 1]] = other[[bit + 1, place]]
    assert checksum(other) != checksum(VECTOR)


# --- what error feedback conserves, as a history shows it -----------------------------------------

FED_BACK = [row.name for row in CODECS.values() if row.feeds_back is not None]
STEPS = 30


def table_of(sums):
    events = np.zeros(len(sums), EVENT)
    events["kind"] = Kind.RESIDUAL
    columns = zip(*sums, strict=True)
    for name, numbers in zip(("rate", "gap", "weight", "seconds"), columns, strict=True):
        events[name] = numbers
    return Table(events, "worker 0")


def findings_of(sums, factors, n):
    findings = Findings()
    at = np.arange(len(sums))
    check_conserved(table_of(sums), at, at - 1, factors, n, findings)
    return findings.first


@each("n", [1, 2, 100, 5_000])
@pytest.mark.parametrize("codec", FED_BACK)
def test_numbers_of_all_magnitudes_add_up(codec, n):
    rng = np.random.default_rng(n)
    knobs = {"scaled": False} if "scaled" in CODECS[codec].knobs else {}
    rows = n // 40
    matrices = [Matrix(n - 20 * rows, rows, 20)] if rows else []
    sender = make_encoder(codec, n, error_feedback=True, matrices=matrices, **knobs)
    sums, factors = [], []
    for step in range(STEPS):
        # Within a vector, and from one to the next; subnormal ones, and near the largest.
        exponents = rng.uniform(-3, 3, n) + rng.choice([-43, rng.uniform(-44, 30)])
        vector = (rng.standard_normal(n) * 10.0**exponents).astype(np.float32)
        factors.append(float(rng.choice([1.0, 0.3, 7 / 4])))
        if step:
            sender.rescale(factors[-1])
        with np.errstate(all="ignore"):
            sender.encode(vector, rng)
            sums.append(conserved(vector, sender.decoded, sender.residual))
    assert findings_of(sums, np.array(factors), n) is None


@each("special", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_not_finite_has_no_sum(special):
    vector = np.full(1000, special, np.float32)
    sums = conserved(vector, vector, vector)
    assert findings_of([sums, sums], np.ones(2), len(vector)) is None


def test_a_change_of_one_element_shows():
    rng = np.random.default_rng(0)
    vector, kept = (rng.standard_normal(1 << 20).astype(np.float32) for _ in range(2))
    decoded = vector - kept
    assert findings_of([conserved(vector, decoded, kept)], np.ones(1), len(vector)) is None
    decoded[12345] += 1
    assert (
        "add up to" in findings_of([conserved(vector, decoded, kept)], np.ones(1), len(vector)).text
    )
