"""What holds for every codec: its bytes, its ends, its special numbers, and damaged frames."""

from __future__ import annotations

import inspect
import math
import tracemalloc

import numpy as np
import pytest

from psrt.codec import CODECS, TABLE, draws, make_codec, make_encoder
from psrt.codec.frame import HEADER_BYTES
from psrt.errors import CodecError, ConfigError

SIZES = [*range(20), 127, 128, 129, 1000, 4097, 20_000, 100_000]
#: Bytes of a frame of n elements, by the formulas of the documentation.
FORMULAS = {
    "float16": lambda n: 2 * n,
    "bfloat16": lambda n: 2 * n,
    "float8-e4m3": lambda n: n + -(-n // 128),
    "float8-e5m2": lambda n: n + -(-n // 128),
    "float4-e3m0": lambda n: -(-n // 2) + -(-n // 128),
    "int8": lambda n: n + 4 * -(-n // 1024),
    "qsgd": lambda n: -(-n // 2) + 4 * -(-n // 128),
    "ternary": lambda n: -(-n // 4) + 4 * -(-n // 4096),
    "ternary-base3": lambda n: -(-n // 5) + 4 * -(-n // 4096),
    "sign": lambda n: -(-n // 8) + 4 * -(-n // 1024),
    "random-k": lambda n: 8 + 4 * math.ceil(0.01 * n),
    "low-rank": lambda n: 4 * n,  # without matrices
    "demo": lambda n: sum(6 * 32 if m > 32 else 4 * m for m in [64] * (n // 64) + [n % 64]),
}
SPARSE = [name for name in CODECS if name not in FORMULAS]
RANDOM = ["int8", "qsgd", "ternary", "ternary-base3", "random-k"]


def rng(seed=0):
    return np.random.default_rng(seed)


def normal(n, seed=0):
    return rng(seed).standard_normal(n).astype(np.float32)


def through(codec, vector, seed=0):
    out = np.full(vector.size, 7, np.float32)
    codec.decode(codec.encode(vector, rng(seed)).copy(), out)
    return out


def test_each_has_a_number_of_its_own():
    codes = [row.code for row in TABLE.values()]
    assert sorted(codes) == list(range(1, len(codes) + 1))


def test_each_row_has_a_class_that_takes_its_knobs():
    assert {name: it.row for name, it in CODECS.items()} == dict(TABLE)
    for name, it in CODECS.items():
        arguments = {*inspect.signature(it).parameters} - {"n", "matrices"}
        assert arguments == set(TABLE[name].knobs), name


def test_what_is_kept_back_by_default():
    kept = {name for name in CODECS if make_encoder(name, 8).residual is not None}
    assert kept == {"float4-e3m0", "sign", "top-k", "threshold", "low-rank", "dgc", "demo"}
    for name, row in TABLE.items():
        for scaled in {True, False} if "scaled" in row.knobs else {None}:
            knobs = {} if scaled is None else {"scaled": scaled}
            assert make_encoder(name, 8, error_feedback=False, **knobs).n == 8
            if row.feeds_back is None or scaled:
                with pytest.raises(ConfigError, match="error feedback around "):
                    make_encoder(name, 8, error_feedback=True, **knobs)
            else:
                assert make_encoder(name, 8, error_feedback=True, **knobs).residual.shape == (8,)
    assert make_encoder("random-k", 8, scaled=False).residual is not None


@pytest.mark.parametrize("name", FORMULAS)
def test_packed_means_packed(name):
    for n in SIZES:
        codec = make_codec(name, n)
        frame = codec.encode(normal(n), rng())
        assert frame.size == HEADER_BYTES + FORMULAS[name](n) == codec.nbytes, n


@pytest.mark.parametrize("name", FORMULAS)
def test_the_bytes_are_known_for_every_length(name):
    for n in [*range(3000), *range(3000, 100_001, 997)]:
        assert make_codec(name, n).nbytes == HEADER_BYTES + FORMULAS[name](n), n


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_indices_take_the_shortest_form(name):
    for n in SIZES:
        codec = make_codec(name, n)
        frame = codec.encode(normal(n), rng())
        sent = np.count_nonzero(through(codec, normal(n)))
        gaps = np.diff(np.flatnonzero(through(codec, normal(n))), prepend=-1) - 1
        delta = int(sum(max(1, -(-int(gap).bit_length() // 7)) for gap in gaps))
        sparse = 4 * sent + min(4 * sent, delta, -(-n // 8))
        assert frame.size == HEADER_BYTES + min(sparse, 4 * n), n
        assert codec.nbytes is None


@pytest.mark.parametrize("name", CODECS)
def test_every_length_comes_back(name):
    for n in SIZES:
        vector = normal(n)
        out = through(make_codec(name, n), vector)
        assert np.isfinite(out).all(), n
        if name != "demo":  # a few waves reach where nothing was
            assert not (out * vector < 0).any(), n


@pytest.mark.parametrize("name", CODECS)
def test_zeros_stay_zeros(name):
    for n in (1, 8, 1000):
        assert not through(make_codec(name, n), np.zeros(n, np.float32)).any()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [it for it in CODECS if it != "random-k"])
def test_what_is_not_finite_does_not_come_back_as_a_number(name, special):
    """So a run that diverges ends, whatever it sends."""
    for n in (1, 100, 3000):
        vector = normal(n)
        vector[n // 2] = special
        out = through(make_codec(name, n), vector)
        assert not np.isfinite(out[n // 2]), n
        if np.isinf(special) and name in ("float16", "bfloat16", *SPARSE):
            assert out[n // 2] == special


@pytest.mark.parametrize("name", CODECS)
def test_the_smallest_and_the_largest_numbers(name):
    tiny, huge = np.float32(1e-45), np.finfo(np.float32).max
    vector = np.array([tiny, -tiny, huge, -huge, 1.0], np.float32)
    with np.errstate(all="raise"):
        make_codec(name, 5).encode(vector, rng())
    out = through(make_codec(name, 5), vector)
    assert (np.sign(out[2:4]) * np.sign(vector[2:4]) >= 0).all() or np.isnan(out[2:4]).all()


#: Up to where a vector of finite numbers comes back as one, if not to the largest float32.
FINITE_TO = {
    "float16": 65519.0, "bfloat16": 3.389e38, "qsgd": 1e18, "sign": 1e35, "random-k": 1e36,
    "low-rank": 1e18, "demo": 1e36,
}  # fmt: skip


@pytest.mark.parametrize("name", CODECS)
def test_what_is_finite_comes_back_finite(name):
    largest = np.float32(FINITE_TO.get(name, np.finfo(np.float32).max))
    tiny, least = np.finfo(np.float32).tiny, np.finfo(np.float32).smallest_subnormal
    few = [largest, -largest, largest / 3, 1.0, tiny, -tiny, 1e-42, least, -least, 0.0, -0.0]
    for n in (1, 2, 7, 300, 1100, 5000):
        vectors = [np.full(n, it, np.float32) for it in few]
        vectors += [np.resize(np.array(few, np.float32), n), rng(n).uniform(-1, 1, n) * largest]
        for at in {0, n // 2, n - 1}:  # one that is huge among small ones
            vectors.append(normal(n) * np.float32(1e-3))
            vectors[-1][at] = largest
        for vector in vectors:
            out = through(make_codec(name, n), vector.astype(np.float32))
            assert np.isfinite(out).all(), (n, vector[:3])


@pytest.mark.parametrize("name", CODECS)
def test_the_same_generator_gives_the_same_frame(name):
    vector = normal(5000)
    first, same, other = (
        make_codec(name, 5000).encode(vector, rng(seed)).tobytes() for seed in (3, 3, 4)
    )
    assert same == first
    assert (other != first) == (name in RANDOM)


@pytest.mark.parametrize("name", CODECS)
def test_the_vector_is_only_read(name):
    vector = normal(3000)
    vector.flags.writeable = False
    make_codec(name, 3000).encode(vector, rng())


def is_decoded(codec, frame, out):
    """Return whether a frame is taken; one that is not leaves what it was for as it is."""
    out.fill(7)
    try:
        codec.decode(frame, out)
    except CodecError:
        assert (out == 7).all(), "written before it was checked"
        return False
    return True


@pytest.mark.parametrize("name", CODECS)
def test_a_frame_that_is_cut_off_or_longer_is_refused(name):
    codec, out = make_codec(name, 300), np.empty(300, np.float32)
    frame = codec.encode(normal(300), rng()).copy()
    for size in [*range(HEADER_BYTES + 2), frame.size - 1]:
        assert not is_decoded(codec, frame[:size], out)
    assert not is_decoded(codec, np.append(frame, np.uint8(0)), out)


@pytest.mark.parametrize("name", CODECS)
def test_a_frame_of_another_codec_or_length_is_refused(name):
    out = np.empty(300, np.float32)
    for other in CODECS:
        frame = make_codec(other, 300).encode(normal(300), rng())
        if other != name:
            with pytest.raises(CodecError, match="expected codec"):
                make_codec(name, 300).decode(frame, out)
    with pytest.raises(CodecError, match="expected codec"):
        make_codec(name, 300).decode(make_codec(name, 301).encode(normal(301), rng()), out)


@pytest.mark.parametrize("name", CODECS)
def test_whatever_the_header_says_nothing_but_an_error_comes_of_it(name):
    codec, out, draw = make_codec(name, 60), np.empty(60, np.float32), rng(2)
    frame = codec.encode(normal(60), rng()).copy()
    bits = range(8 * HEADER_BYTES)
    damages = [[bit] for bit in bits] + [draw.choice(8 * HEADER_BYTES, 2) for _ in range(300)]
    for damage in damages:
        damaged = frame.copy()
        for bit in damage:
            damaged[bit // 8] ^= 1 << bit % 8
        for size in (damaged.size, int(draw.integers(damaged.size + 1))):
            is_decoded(codec, damaged[:size].copy(), out)
    codec.decode(frame, out)  # what was damaged has left nothing behind
    np.testing.assert_array_equal(out, through(make_codec(name, 60), normal(60)))


#: What one element comes back as: NaN and infinities that stay, and what numbers may become.
ALONE = {
    #                NaN      inf      1e-45    1e-40      1e-30      3.4e38
    "float16":      (np.nan,  np.inf,  0,       0,         0,         np.inf),
    "bfloat16":     (np.nan,  np.inf,  0,       9.183e-41, 1.002e-30, np.inf),
    "float8-e4m3":  (np.nan,  np.nan,  0,       1.033e-40, 1e-30,      2.98e38),
    "float8-e5m2":  (np.nan,  np.nan,  0,       9.184e-41, 1e-30,      2.98e38),
    "float4-e3m0":  (np.nan,  np.nan,  0,       0,         7.9e-31,   1.7e38),
    "int8":         (np.nan,  np.nan,  0,       0,         1e-30,     3.4e38),
    "qsgd":         (np.nan,  np.nan,  0,       0,         0,         np.nan),
    "ternary":      (np.nan,  np.nan,  0,       0,         1e-30,     3.4e38),
    "ternary-base3": (np.nan, np.nan,  0,       0,         1e-30,     3.4e38),
    "sign":         (np.nan,  np.nan,  1e-45,   1e-40,     1e-30,     3.4e38),
    "top-k":        (np.nan,  np.inf,  1e-45,   1e-40,     1e-30,     3.4e38),
    "threshold":    (np.nan,  np.inf,  0,       0,         0,         3.4e38),
    "random-k":     (np.nan,  np.inf,  1e-45,   1e-40,     1e-30,     3.4e38),
    "low-rank":     (np.nan,  np.inf,  1e-45,   1e-40,     1e-30,     3.4e38),
    "dgc":          (np.nan,  np.inf,  1e-45,   1e-40,     1e-30,     3.4e38),
    "demo":         (np.nan,  np.inf,  1e-45,   1e-40,     1e-30,     3.4e38),
    "nonzero":      (np.nan,  np.inf,  1e-45,   1e-40,     1e-30,     3.4e38),
}  # fmt: skip


@pytest.mark.parametrize("name", ["int8", "qsgd", "ternary", "ternary-base3"])
def test_a_bucket_too_small_to_be_divided_comes_back_as_zeros(name):
    vector = np.array([1e-40, 0, -1e-41, 1e-38], np.float32)
    assert not through(make_codec(name, 3), vector[:3]).any()
    out = through(make_codec(name, 4), vector)
    assert np.isfinite(out).all()
    assert (np.abs(out) <= 2e-38).all()


@pytest.mark.parametrize("name", CODECS)
def test_one_element_alone(name):
    given = (np.nan, np.inf, 1e-45, 1e-40, 1e-30, 3.4e38)
    found = [through(make_codec(name, 1), np.array([it], np.float32))[0] for it in given]
    np.testing.assert_allclose(found, np.array(ALONE[name], np.float32), rtol=0.07, atol=0)
    again = [through(make_codec(name, 1), np.array([-it], np.float32))[0] for it in given]
    np.testing.assert_array_equal(again, -np.array(found))


@pytest.mark.parametrize("name", CODECS)
def test_a_damaged_frame_is_refused_or_decoded_and_does_nothing_else(name):
    codec, out = make_codec(name, 300), np.empty(300, np.float32)
    frame, draw, refused = codec.encode(normal(300), rng()).copy(), rng(1), 0
    for _ in range(400):
        damaged = frame.copy()
        for at in draw.integers(frame.size, size=draw.integers(1, 4)):
            damaged[at] = draw.integers(256)
        refused += not is_decoded(codec, damaged, out)
    assert refused


def test_random_numbers_are_those_of_what_is_encoded():
    keys = [
        (seed, worker, clock, shard, way)
        for seed in (0, 1, 2**63 - 1) for worker in (0, 1) for clock in (0, 1, 2**40)
        for shard in (0, 3) for way in (0, 1)
    ]  # fmt: skip
    first = {draws(*key[:4], way=key[4]).bit_generator.random_raw() for key in keys}
    assert len(first) == len(keys)
    # Written down: recorded runs are replayed by other versions, too.
    assert draws(1, 2, 3, 4).bit_generator.random_raw() == 12925477878066376348
    numbers = np.concatenate([draws(0, 0, clock, 0).random(64) for clock in range(1000)])
    assert abs(numbers.mean() - 0.5) < 5 * math.sqrt(1 / 12 / numbers.size)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("float16", 0), ("bfloat16", 0), ("sign", 0),
        ("top-k", 1 << 20), ("random-k", 3 << 20),  # the choice
    ],
)  # fmt: skip
def test_what_a_step_allocates(name, most):
    n = 1 << 20
    codec, vector, out, generator = make_codec(name, n), normal(n), np.empty(n, np.float32), rng()
    codec.decode(codec.encode(vector, generator), out)
    tracemalloc.start()
    try:
        codec.decode(codec.encode(vector, generator), out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most + (1 << 17)  # less than a 32nd of the vector


def test_what_no_codec_can_be():
    for name, knobs, match in [
        ("zip", {}, "unknown codec 'zip', expected one of float16, "),
        ("qsgd", {"levels": 128}, "128 levels, expected 1 to 127"),
        ("qsgd", {"levels": 0}, "0 levels, expected 1 to 127"),
        ("int8", {"bucket": 0}, "buckets of 0 elements, expected 1 to 65535"),
        ("sign", {"bucket": 12}, "buckets of 12 signs, expected a multiple of 8"),
        ("top-k", {"density": 0}, "a density of 0, expected more than 0 and at most 1"),
        ("random-k", {"density": 1.5}, "a density of 1.5, expected more than 0 and at most 1"),
        ("threshold", {"threshold": 0.0}, "a threshold of 0.0, expected a number above 0"),
    ]:
        with pytest.raises(ConfigError, match=match):
            make_codec(name, 10, **knobs)
