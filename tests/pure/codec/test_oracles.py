"""Codecs against oracles that share nothing with them, and against published bounds."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from psrt.codec import TABLE, ErrorFeedback, make_codec
from psrt.codec.frame import HEADER_BYTES
from psrt.codec.indices import pack_indices, unpack_indices
from psrt.codec.matrices import Matrix
from psrt.codec.packing import (
    bits_bytes,
    pack_bits,
    pack_trits,
    trits_bytes,
    unpack_bits,
    unpack_trits,
)
from psrt.codec.small_floats import Float8E4M3, Float8E5M2
from psrt.errors import CodecError

N = 4096


def rng(seed=0):
    return np.random.default_rng(seed)


def normal(n=N, seed=0):
    return rng(seed).standard_normal(n).astype(np.float32)


def through(codec, vector, seed=0):
    out = np.empty(vector.size, np.float32)
    codec.decode(codec.encode(vector, rng(seed)), out)
    return out


def every_kind_of_number():
    """Of each exponent, both signs, and mantissas at, below and above each tie."""
    upper = np.arange(0, 1 << 16, 3, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (upper[:, np.newaxis] | lower).ravel().view(np.float32)


@pytest.mark.parametrize(
    ("name", "dtype"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)]
)
def test_casts_are_those_of_another_library(name, dtype):
    vector = every_kind_of_number()
    with np.errstate(all="ignore"):
        expected = vector.astype(dtype).astype(np.float32)
    out = through(make_codec(name, vector.size), vector)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(np.signbit(out), np.signbit(expected))


@pytest.mark.parametrize(
    ("codec", "dtype"),
    [(Float8E4M3, ml_dtypes.float8_e4m3fn), (Float8E5M2, ml_dtypes.float8_e5m2)],
)
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


@pytest.mark.parametrize(
    ("name", "largest", "last"), [("float8-e4m3", 448, 2**5), ("float4-e3m0", 16, 2**4)]
)
def test_the_scale_is_the_smallest_that_nothing_passes(name, largest, last):
    codec = make_codec(name, 1)
    for power in (-100, -1, 0, 1, 60):
        scale = np.float32(2.0**power)
        exact = np.array([largest * scale], np.float32)
        assert through(codec, exact) == exact
        above = np.nextafter(exact, np.float32(np.inf))
        assert through(codec, above) == exact  # rounded at twice the scale
        assert abs(through(codec, exact * 0.999) - exact) <= last * scale


def relative_error(name, vectors=40, **knobs):
    codec = make_codec(name, N, **knobs)
    errors = []
    for seed in range(vectors):
        vector = normal(seed=seed)
        lost = through(codec, vector, seed).astype(np.float64) - vector
        errors.append((lost**2).sum() / (vector.astype(np.float64) ** 2).sum())
    return np.mean(errors), 4 * np.std(errors) / math.sqrt(vectors)


#: Squared error over the squared length, of normal numbers.
ERRORS = {
    "qsgd, 127": ("qsgd", {"levels": 127, "bucket": 128}, 127**-2 * 128 / 6),
    "qsgd, 7": ("qsgd", {"levels": 7, "bucket": 128}, 0.44),
    "sign": ("sign", {"bucket": N}, 1 - 2 / math.pi),
    "sign, short buckets": ("sign", {"bucket": 32}, (1 - 2 / math.pi) * (1 - 1 / 32)),
    "top-k, 10 %": ("top-k", {"density": 0.1}, 0.567),
    "top-k, 1 %": ("top-k", {"density": 0.01}, 0.920),
    "random-k": ("random-k", {"density": 0.1}, N / math.ceil(0.1 * N) - 1),
    "random-k, as they are": ("random-k", {"density": 0.1, "scaled": False}, 0.9),
}


@pytest.mark.parametrize("what", ERRORS)
def test_the_error_is_the_published_one(what):
    name, knobs, expected = ERRORS[what]
    found, tolerance = relative_error(name, **knobs)
    assert abs(found - expected) < tolerance + 0.01 * expected


def test_the_error_of_ternary_is_the_published_one():
    """Its scale is the largest of all, whose mean over vectors is about that of a maximum."""
    found, tolerance = relative_error("ternary", bucket=N)
    assert abs(found - 2.15) < tolerance + 0.1


@pytest.mark.parametrize("levels", [1, 7, 127])
def test_the_variance_of_a_rounding_is_at_most_a_quarter_of_a_step(levels):
    vector, codec = normal(), make_codec("qsgd", N, levels=levels, bucket=128)
    steps = np.sqrt((vector.reshape(-1, 128).astype(np.float64) ** 2).sum(axis=1)) / levels
    lost = np.array([through(codec, vector, seed) - vector for seed in range(40)], np.float64)
    assert ((lost**2).mean(axis=0).reshape(-1, 128).mean(axis=1) <= 0.25 * steps**2).all()


@pytest.mark.parametrize("name", ["ternary", "ternary-base3"])
def test_the_variance_of_ternary_is_that_of_a_coin(name):
    vector = normal()
    scale = np.abs(vector).max().astype(np.float64)
    expected = (np.abs(vector) * scale - vector.astype(np.float64) ** 2).sum()
    codec = make_codec(name, N)
    lost = [((through(codec, vector, seed) - vector) ** 2).sum() for seed in range(60)]
    assert abs(np.mean(lost) - expected) < 5 * np.std(lost) / math.sqrt(len(lost))


@pytest.mark.parametrize("levels", [1, 2, 3, 7, 20, 127])
def test_the_variance_of_qsgd_is_within_its_bound(levels):
    """Alistarh et al., lemma 3.1: min(d/s², √d/s) times the squared length."""
    found, tolerance = relative_error("qsgd", levels=levels, bucket=128)
    assert found < min(128 / levels**2, math.sqrt(128) / levels) + tolerance


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("int8", {}), ("qsgd", {}), ("qsgd", {"levels": 1}), ("qsgd", {"levels": 127}),
        ("ternary", {}), ("ternary-base3", {}), ("random-k", {"density": 0.2}),
    ],
)  # fmt: skip
def test_the_mean_is_the_vector(name, knobs):
    vector = normal(512)
    codec, draws = make_codec(name, 512, **knobs), 4000
    assert codec.row.is_unbiased
    generator, total, squares, unit = rng(7), np.zeros(512), np.zeros(512), np.inf
    out = np.empty(512, np.float32)
    for _ in range(draws):
        codec.decode(codec.encode(vector, generator), out)
        total += out
        squares += out.astype(np.float64) ** 2
        unit = min(unit, np.abs(out[out != 0]).min())
    mean = total / draws
    spread = np.sqrt(np.maximum(squares / draws - mean**2, 0) / draws)
    # Of 512 elements none is further off than 4.5 standard deviations but in one run of 300; and
    # one that is hardly ever drawn by more than ten draws.
    assert (np.abs(mean - vector) <= 4.5 * spread + 10 * unit / draws).all()


@pytest.mark.parametrize("n", [1, 10, 5000, 50_000])
@pytest.mark.parametrize("density", [1e-4, 0.01, 0.3, 1.0])
def test_top_k_is_that_of_a_sort(n, density):
    for vector in (normal(n), np.ones(n, np.float32), rng().integers(-3, 4, n).astype(np.float32)):
        out = through(make_codec("top-k", n, density=density), vector)
        k = math.ceil(density * n)
        first = np.argsort(-np.abs(vector), kind="stable")[:k]
        expected = np.zeros(n, np.float32)
        expected[first] = vector[first]
        np.testing.assert_array_equal(out, expected)


def test_a_threshold_sends_what_reaches_it_and_may_send_nothing():
    vector = np.array([0.5, -0.5, 0.49, 0.0, -2.0], np.float32)
    codec = make_codec("threshold", 5, threshold=0.5)
    assert through(codec, vector).tolist() == [0.5, -0.5, 0.0, 0.0, -2.0]
    assert codec.encode(np.zeros(5, np.float32), rng()).size == HEADER_BYTES
    assert through(codec, np.zeros(5, np.float32)).tolist() == [0.0] * 5


@pytest.mark.parametrize(
    "name", [name for name, row in TABLE.items() if row.feeds_back is not None]
)
def test_what_is_sent_and_what_is_kept_back_is_all_there_is(name):
    """p = C(p) + e to a place of p: so nothing is ever lost, and the sum of all is conserved."""
    knobs = {"scaled": False} if "scaled" in TABLE[name].knobs else {}
    codec = make_codec(name, N, matrices=[Matrix(5, 40, 50), Matrix(2100, 30, 30)], **knobs)
    sender, sent, given = ErrorFeedback(codec), np.zeros(N), np.zeros(N)
    out = np.empty(N, np.float32)
    for step in range(30):
        vector = normal(seed=step)
        p = vector + sender.residual
        codec.decode(sender.encode(vector, rng(step)), out)
        ulp = np.spacing(np.maximum(np.abs(p), np.abs(out)))
        assert (np.abs((out + sender.residual) - p) <= ulp).all()
        sent += out
        given += vector
    np.testing.assert_allclose(sent + sender.residual, given, atol=1e-4)


def test_what_dgc_sends_and_keeps_is_the_momentum_it_gathered():
    codec, out = (
        make_codec("dgc", N, density=0.01, momentum=0.5, warmup_epochs=0),
        np.zeros(N, "f4"),
    )
    sent, momentum, gathered = np.zeros(N), np.zeros(N), np.zeros(N)
    for step in range(30):
        momentum = 0.5 * momentum + normal(seed=step)
        gathered += momentum
        codec.decode(codec.encode(normal(seed=step), rng()), out)
        sent += out
        momentum[out != 0] = 0
    np.testing.assert_allclose(sent + codec.residual, gathered, atol=1e-4)


@pytest.mark.parametrize("bits", range(1, 9))
def test_numbers_of_few_bits_are_those_of_one_long_number(bits):
    for n in [*range(20), 1000, 1003]:
        numbers = rng(n).integers(0, 1 << bits, n).astype(np.uint8)
        packed, back = np.empty(bits_bytes(n, bits), np.uint8), np.empty(n, np.uint8)
        pack_bits(numbers, bits, packed)
        whole = sum(int(it) << (bits * i) for i, it in enumerate(numbers))
        assert packed.tobytes() == whole.to_bytes(packed.size, "little")
        unpack_bits(packed, bits, back)
        np.testing.assert_array_equal(back, numbers)


def test_trits_are_digits_of_base_three():
    for n in range(24):
        trits = rng(n).integers(0, 3, n).astype(np.uint8)
        packed, back = np.empty(trits_bytes(n), np.uint8), np.empty(n, np.float32)
        pack_trits(trits, packed)
        digits = [
            sum(int(t) * 3**i for i, t in enumerate(trits[a : a + 5])) for a in range(0, n, 5)
        ]
        assert packed.tolist() == digits
        unpack_trits(packed, back)
        np.testing.assert_array_equal(back + 1, trits)


def varint(number):
    """Return a number as in Protocol Buffers."""
    found = []
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


@pytest.mark.parametrize("n", [1, 100, 20_000, 2**32 - 1])
@pytest.mark.parametrize("k", [0, 1, 2, 50])
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


@pytest.mark.parametrize(
    ("form", "packed", "k"),
    [
        (0, [1, 0, 0, 0, 1, 0, 0, 0], 2),  # twice the same
        (0, [2, 0, 0, 0, 1, 0, 0, 0], 2),  # not ascending
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
    ],
)
def test_indices_that_cannot_be(form, packed, k):
    with pytest.raises(CodecError):
        unpack_indices(form, np.array(packed, np.uint8), k, 10)
