"""What single codecs promise, against published numbers, other libraries and plain arithmetic."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from psrt.codec.demo import cosines
from psrt.codec.frame import HEADER_BYTES
from psrt.codec.indices import pack_indices, unpack_indices
from psrt.codec.low_rank import LowRank, orthonormalize
from psrt.codec.matrices import Matrix, matrices_within
from psrt.codec.packing import bits_bytes, pack_bits, unpack_bits
from psrt.codec.small_floats import Float8E4M3, Float8E5M2
from psrt.core.errors import CodecError
from psrt.core.partition import Span
from support.cases import each
from support.codecs import normal, through
from support.coding import make_codec

N = 4096


def rng(seed=0):
    return np.random.default_rng(seed)


# --- small floats -------------------------------------------------------------------------------


def every_kind_of_number():
    """Of each exponent, both signs, and mantissas at, below and above each tie."""
    upper = np.arange(0, 1 << 16, 3, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (upper[:, np.newaxis] | lower).ravel().view(np.float32)


@each(("codec", "dtype"), [
    (Float8E4M3, ml_dtypes.float8_e4m3fn), (Float8E5M2, ml_dtypes.float8_e5m2),
])  # fmt: skip
def test_small_floats_are_those_of_another_library(codec, dtype):
    codes = np.arange(256, dtype=np.uint8)
    theirs = codes.view(dtype).astype(np.float32)
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(codec.numbers[finite], theirs[finite])
    assert np.isnan(codec.numbers[~finite]).all()
    # Where the largest number of the format is in each bucket, its scale is 1.
    largest = theirs[finite].max()
    given = every_kind_of_number()
    given = given[np.isfinite(given) & (np.abs(given) <= largest)]
    rows = np.full((-(-given.size // 127), 128), largest, np.float32)
    rows[:, 1:].flat[: given.size] = given
    out = through(codec(rows.size, bucket=128), rows.ravel()).reshape(rows.shape)
    with np.errstate(all="ignore"):
        expected = rows.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(out, expected)


@each(("name", "largest", "last"), [("float8-e4m3", 448, 2**5), ("float4-e3m0", 16, 2**4)])
def test_the_scale_is_the_smallest_that_nothing_passes(name, largest, last):
    codec = make_codec(name, 1)
    for power in (-100, -1, 0, 1, 60):
        scale = np.float32(2.0**power)
        exact = np.array([largest * scale], np.float32)
        assert through(codec, exact) == exact
        above = np.nextafter(exact, np.float32(np.inf))
        assert through(codec, above) == exact  # rounded at twice the scale
        assert abs(through(codec, exact * 0.999) - exact) <= last * scale


# --- what is lost -------------------------------------------------------------------------------


@each(("name", "knobs", "expected"), [
    ("qsgd", {"levels": 127, "bucket": 128}, 127**-2 * 128 / 6),
    ("qsgd", {"levels": 7, "bucket": 128}, 0.44),
    ("sign", {"bucket": N}, 1 - 2 / math.pi),
    ("sign", {"bucket": 32}, (1 - 2 / math.pi) * (1 - 1 / 32)),
    ("top-k", {"density": 0.1}, 0.567),
    ("top-k", {"density": 0.01}, 0.920),
    ("random-k", {"density": 0.1}, N / math.ceil(0.1 * N) - 1),
    ("random-k", {"density": 0.1, "scaled": False}, 0.9),
    ("ternary", {"bucket": N}, 2.15),  # the mean over vectors of the largest of all
])  # fmt: skip
def test_the_squared_error_over_the_squared_length_is_the_published_one(name, knobs, expected):
    codec, errors = make_codec(name, N, **knobs), []
    for seed in range(40):
        vector = normal(N, seed)
        lost = through(codec, vector, seed).astype(np.float64) - vector
        errors.append((lost**2).sum() / (vector.astype(np.float64) ** 2).sum())
    tolerance = 4 * np.std(errors) / math.sqrt(len(errors)) + (0.05 if name == "ternary" else 0.01)
    assert abs(np.mean(errors) - expected) < tolerance * max(1, expected)


# --- bits and indices ---------------------------------------------------------------------------


@each("bits", range(1, 9))
def test_numbers_of_few_bits_are_those_of_one_long_number(bits):
    for n in [*range(20), 1000, 1003]:
        numbers = rng(n).integers(0, 1 << bits, n).astype(np.uint8)
        packed, back = np.empty(bits_bytes(n, bits), np.uint8), np.empty(n, np.uint8)
        pack_bits(numbers, bits, packed)
        whole = sum(int(it) << (bits * i) for i, it in enumerate(numbers))
        assert packed.tobytes() == whole.to_bytes(packed.size, "little")
        unpack_bits(packed, bits, back)
        np.testing.assert_array_equal(back, numbers)


def varint(number):
    """Return a number as in Protocol Buffers."""
    found = []
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


@each("n", [1, 100, 20_000, 2**32 - 1])
@each("k", [0, 1, 2, 50])
def test_indices_in_the_shortest_form(n, k):
    indices = np.unique(rng(k).integers(0, n, min(k, n)))
    out = np.empty(4 * indices.size, np.uint8)
    form, nbytes = pack_indices(indices, n, out)
    gaps = b"".join(varint(int(gap) - 1) for gap in np.diff(indices, prepend=-1))
    shortest = min(4 * indices.size, len(gaps), -(-n // 8))
    if 4 * indices.size + shortest > 4 * n:
        assert (form, nbytes) == (3, 0)
        return
    assert nbytes == shortest
    if form == 1:
        assert out[:nbytes].tobytes() == gaps
    np.testing.assert_array_equal(unpack_indices(form, out[:nbytes], indices.size, n), indices)


@each(("form", "packed", "k"), [
    (0, [1, 0, 0, 0, 1, 0, 0, 0], 2),  # twice the same
    (0, [10, 0, 0, 0], 1),  # beyond the end
    (0, [1, 0, 0, 0], 2),
    (1, [9, 0], 2),  # the second one is 10
    (1, [1, 0x80], 1),  # more is to follow, but does not
    (1, [0x80, 0x80, 0x80, 0x80, 0x80, 0], 1),  # six bytes
    (1, [1, 2], 1),
    (1, [1], 0),
    (2, [1], 1),  # two bytes for ten elements
    (2, [1, 4], 2),  # the 11th
    (2, [3, 0], 1),
    (3, [0], 1),
])  # fmt: skip
def test_indices_that_cannot_be(form, packed, k):
    with pytest.raises(CodecError):
        unpack_indices(form, np.array(packed, np.uint8), k, 10)


# --- low rank -----------------------------------------------------------------------------------

MATRICES = (Matrix(3, 20, 30), Matrix(610, 2, 50))


def of_rank(rank):
    return LowRank(600, matrices=[Matrix(0, 20, 30)], rank=rank)


def test_zeros_and_what_is_not_a_number_leave_nothing_behind():
    """Zeros are the gradients of all layers below one that begins as zeros."""
    codec, vector = of_rank(1), np.outer(np.arange(1, 21), np.arange(-9, 21)).astype("f4").ravel()
    assert not through(codec, np.zeros(600, np.float32)).any()
    for _ in range(2):
        np.testing.assert_allclose(through(codec, vector), vector, atol=1e-3)
    broken = vector.copy()
    broken[7] = np.nan
    assert np.isnan(through(codec, broken)[7])
    assert np.isfinite(through(codec, vector)).all()


@each("exponent", [-110, -30, 60, 110])
def test_small_and_large_matrices_are_sent_alike(exponent):
    """By powers of two, to the bit: neither squares nor products overflow, or vanish."""
    codec, other = of_rank(2), of_rank(2)
    for seed in range(3):
        vector = normal(600, seed)
        expected = np.ldexp(through(codec, vector), exponent)
        np.testing.assert_array_equal(through(other, np.ldexp(vector, exponent)), expected)


@each("span", [(0, 720), (3, 603), (4, 603), (10, 300), (615, 700), (0, 2)])
def test_of_a_matrix_that_is_cut_whole_rows_are_left(span):
    span, numbers = Span(*span), np.arange(720, dtype=np.float32)
    found = matrices_within(MATRICES, span)
    for it in found:
        rows = it.of(span.of(numbers))
        whole = next(it for it in MATRICES if rows[0, 0] in it.of(numbers)).of(numbers)
        [first] = np.flatnonzero(whole[:, 0] == rows[0, 0])
        np.testing.assert_array_equal(rows, whole[first : first + len(rows)])
        assert first == 0 or whole[first - 1, 0] < span.start
        last = first + len(rows)
        assert last == len(whole) or whole[last, -1] >= span.stop
    within = [it for it in MATRICES if span.start <= it.start and it.stop <= span.stop]
    assert {(it.rows, it.columns) for it in within} <= {(it.rows, it.columns) for it in found}


def test_columns_that_are_nearly_alike_are_made_orthonormal():
    p = normal(200).reshape(50, 4)
    p[:, 2] = p[:, 0] + 1e-3 * p[:, 2]
    orthonormalize(p)
    np.testing.assert_allclose(p.T @ p, np.eye(4), atol=1e-5)


# --- momentum that is kept back -----------------------------------------------------------------


def test_dgc_clips_also_what_a_float32_cannot_square():
    codec = make_codec("dgc", 2, density=1.0, clip_norm=1.0, warmup_epochs=0)
    np.testing.assert_allclose(through(codec, np.full(2, 1e20, np.float32)), [0.5**0.5] * 2)


def test_the_density_of_dgc_comes_down_by_epochs():
    codec, vector = make_codec("dgc", 1000, density=0.001), np.arange(1, 1001, dtype=np.float32)
    sent = []
    for epoch in range(6):
        codec.begin_epoch(epoch)
        sent.append(np.count_nonzero(through(codec, vector)))
    assert sent == [250, 63, 16, 4, 1, 1]
    # The paper's 75, 93.75, 98.4375, 99.6 and 99.9 %.
    assert [round(1 - codec.density(epoch), 4) for epoch in range(5)] == [
        0.75, 0.9375, 0.9844, 0.9961, 0.999
    ]  # fmt: skip


def test_the_bases_of_demo_are_orthonormal_and_its_frames_short():
    for n in (2, 7, 64):
        np.testing.assert_allclose(cosines(n) @ cosines(n).T, np.eye(n), atol=1e-6)
    large = make_codec("demo", 784 * 512, matrices=[Matrix(0, 784, 512)])
    assert large.nbytes == HEADER_BYTES + 8 * (12 + 1) * 32 * 6


def test_all_of_a_chunk_of_demo_is_sent_as_it_is():
    """So one worker that sends everything takes the steps of signed descent, zeros included."""
    matrices = (Matrix(3, 10, 9), Matrix(95, 3, 3))  # with chunks that are cut at both edges
    codec = make_codec("demo", 110, matrices=matrices, chunk=4, kept=16, momentum=0.9)
    for step in range(3):
        gradient = normal(110, step)
        gradient[::3] = 0
        np.testing.assert_array_equal(through(codec, gradient), gradient)
        assert not codec.residual.any()


@each(
    ("n", "places"),
    [(16, [1, 0, 2, 3, 4]), (16, [0, 1, 2, 3, 16]), (16, [0, 1, 1, 3, 4]), (19, [0])],
)
def test_indices_of_demo_that_cannot_be_leave_all_chunks_unwritten(n, places):
    codec = make_codec(
        "demo", n, matrices=[Matrix(n - 16, 4, 4)], chunk=4, kept=5, momentum=0.9
    )  # where n is 19 there is a chunk before the damaged one
    frame, out = codec.encode(normal(n), None).copy(), np.full(n, 7, np.float32)
    frame[-2 * len(places) :].view("<u2")[:] = places
    with pytest.raises(CodecError, match="damaged indices, expected ascending ones below 16"):
        codec.decode(frame, out)
    assert (out == 7).all()
