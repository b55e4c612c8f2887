"""What holds for every codec: its ends, its special numbers, its knobs, and damaged frames.

That frames are as documented and decode to what they should stands in ``test_mutants.py``.
"""

from __future__ import annotations

import inspect
import math
import tracemalloc

import numpy as np
import pytest

from psrt.codec import CODECS, ErrorFeedback, draws
from psrt.codec.frame import HEADER_BYTES
from psrt.codec.matrices import Matrix
from psrt.codec.times import CodecTimes
from psrt.core.errors import CodecError, ConfigError
from support.cases import each
from support.codecs import matrices_in, nbytes, normal, through
from support.coding import make_codec, make_encoder

SIZES = [*range(10), 16, 127, 128, 129, 1000, 4097, 20_000]
#: By codec whose frames have a length that the numbers do not change, its knobs by default.
DEFAULTS = {
    "float16": {}, "bfloat16": {}, "float8-e4m3": {"bucket": 128}, "float8-e5m2": {"bucket": 128},
    "float4-e3m0": {"bucket": 128}, "int8": {"bucket": 1024}, "qsgd": {"levels": 7, "bucket": 128},
    "ternary": {"bucket": 4096}, "ternary-base3": {"bucket": 4096}, "sign": {"bucket": 1024},
    "random-k": {"density": 0.01}, "low-rank": {"rank": 2}, "demo": {"chunk": 64, "kept": 32},
}  # fmt: skip
RANDOM = ["int8", "qsgd", "ternary", "ternary-base3", "random-k"]
every_codec = pytest.mark.parametrize("name", CODECS)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_each_row_has_a_number_of_its_own_and_a_class_that_takes_its_knobs():
    codes = [row.code for row in CODECS.values()]
    assert sorted(codes) == list(range(1, len(codes) + 1))
    for row in CODECS.values():
        made = type(row.codec(1))
        assert made.row is row
        assert {*inspect.signature(made).parameters} - {"n", "matrices"} == set(row.knobs), row


@each("name", DEFAULTS)
def test_packed_means_packed(name):
    for n in SIZES:
        matrices = [Matrix(*it) for it in matrices_in(n)] if name == "low-rank" else []
        codec = make_codec(name, n, matrices=matrices)
        frame = codec.encode(normal(n), rng())
        assert frame.size == HEADER_BYTES + nbytes(name, n, DEFAULTS[name]) == codec.nbytes, n


@each("name", CODECS)
def test_times_of_a_row_are_microseconds_a_call_and_nanoseconds_an_element(name):
    found = CodecTimes.of(name)
    for line, (call_us, element_ns) in zip(
        (found.encode, found.decode), CODECS[name].times, strict=True
    ):
        assert line.at(0) == pytest.approx(call_us / 1e6)
        assert line.at(10**9) == pytest.approx(call_us / 1e6 + element_ns)


def test_what_is_kept_back_by_default():
    kept = {name for name in CODECS if make_encoder(name, 8).residual is not None}
    assert kept == {"float4-e3m0", "sign", "top-k", "threshold", "low-rank", "dgc", "demo"}
    for name, row in CODECS.items():
        for scaled in {True, False} if "scaled" in row.knobs else {None}:
            knobs = {} if scaled is None else {"scaled": scaled}
            assert make_encoder(name, 8, error_feedback=False, **knobs).n == 8
            if row.feeds_back is None or scaled:
                with pytest.raises(ConfigError, match="error feedback around "):
                    make_encoder(name, 8, error_feedback=True, **knobs)
            else:
                assert make_encoder(name, 8, error_feedback=True, **knobs).residual.shape == (8,)
    assert make_encoder("random-k", 8, scaled=False).residual is not None


@each("name", [name for name, row in CODECS.items() if row.feeds_back is not None])
def test_what_is_sent_and_what_is_kept_back_is_all_there_is(name):
    """p = C(p) + e to a place of p: so nothing is ever lost, and the sum of all is conserved."""
    n, knobs = 4096, {"scaled": False} if "scaled" in CODECS[name].knobs else {}
    codec = make_codec(name, n, matrices=[Matrix(5, 40, 50), Matrix(2100, 30, 30)], **knobs)
    sender, sent, given = ErrorFeedback(codec), np.zeros(n), np.zeros(n)
    out = np.empty(n, np.float32)
    for step in range(30):
        vector = normal(n, step)
        p = vector + sender.residual
        codec.decode(sender.encode(vector, rng(step)), out)
        ulp = np.spacing(np.maximum(np.abs(p), np.abs(out)))
        assert (np.abs((out + sender.residual) - p) <= ulp).all()
        sent += out
        given += vector
    np.testing.assert_allclose(sent + sender.residual, given, atol=1e-4)


@every_codec
def test_every_length_comes_back_and_zeros_stay_zeros(name):
    for n in SIZES:
        vector = normal(n)
        vector.flags.writeable = False
        out = through(make_codec(name, n), vector)
        assert np.isfinite(out).all(), n
        if name != "demo":  # a few waves reach where nothing was
            assert not (out * vector < 0).any(), n
    for n in (1, 8, 1000):
        assert not through(make_codec(name, n), np.zeros(n, np.float32)).any()


#: Up to where a vector of finite numbers comes back as one, if not to the largest float32.
FINITE_TO = {
    "float16": 65519.0, "bfloat16": 3.389e38, "qsgd": 1e18, "sign": 1e35, "random-k": 1e36,
    "low-rank": 1e18, "demo": 1e36,
}  # fmt: skip


@every_codec
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


@every_codec
def test_the_smallest_and_the_largest_numbers_raise_nothing(name):
    tiny, huge = np.float32(1e-45), np.finfo(np.float32).max
    vector = np.array([tiny, -tiny, huge, -huge, 1.0], np.float32)
    with np.errstate(all="raise"):
        make_codec(name, 5).encode(vector, rng())
    out = through(make_codec(name, 5), vector)
    assert (np.sign(out[2:4]) * np.sign(vector[2:4]) >= 0).all() or np.isnan(out[2:4]).all()


#: What one element comes back as: NaN and infinities that stay, and what numbers may become.
ALONE = {
    #                NaN      inf      1e-45    1e-40      1e-30      3.4e38
    "float16":      (np.nan,  np.inf,  0,       0,         0,         np.inf),
    "bfloat16":     (np.nan,  np.inf,  0,       9.183e-41, 1.002e-30, np.inf),
    "float8-e4m3":  (np.nan,  np.nan,  0,       1.033e-40, 1e-30,      2.98e38),
    "float8-e5m2":  (np.nan,  np.nan,  0,       9.184e-41, 1e-30,      2.98e38),
    "float4-e3m0":  (np.nan,  np.nan,  0,       0,         7.9e-31,   1.7e38),
    **dict.fromkeys(("int8", "ternary", "ternary-base3"),
                    (np.nan,  np.nan,  0,       0,         1e-30,     3.4e38)),
    "qsgd":         (np.nan,  np.nan,  0,       0,         0,         np.nan),
    "sign":         (np.nan,  np.nan,  1e-45,   1e-40,     1e-30,     3.4e38),
    "threshold":    (np.nan,  np.inf,  0,       0,         0,         3.4e38),
    **dict.fromkeys(("top-k", "random-k", "low-rank", "dgc", "demo", "nonzero"),
                    (np.nan,  np.inf,  1e-45,   1e-40,     1e-30,     3.4e38)),
}  # fmt: skip


@every_codec
def test_one_element_alone(name):
    given = (np.nan, np.inf, 1e-45, 1e-40, 1e-30, 3.4e38)
    found = [through(make_codec(name, 1), np.array([it], np.float32))[0] for it in given]
    np.testing.assert_allclose(found, np.array(ALONE[name], np.float32), rtol=0.07, atol=0)
    again = [through(make_codec(name, 1), np.array([-it], np.float32))[0] for it in given]
    np.testing.assert_array_equal(again, -np.array(found))


@each("name", ["int8", "qsgd", "ternary", "ternary-base3"])
def test_a_bucket_too_small_to_be_divided_comes_back_as_zeros(name):
    vector = np.array([1e-40, 0, -1e-41, 1e-38], np.float32)
    assert not through(make_codec(name, 3), vector[:3]).any()
    out = through(make_codec(name, 4), vector)
    assert np.isfinite(out).all()
    assert (np.abs(out) <= 2e-38).all()


@every_codec
def test_the_same_generator_gives_the_same_frame(name):
    vector = normal(5000)
    first, same, other = (
        make_codec(name, 5000).encode(vector, rng(seed)).tobytes() for seed in (3, 3, 4)
    )
    assert same == first
    assert (other != first) == (name in RANDOM)


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


@every_codec
def test_a_frame_of_another_length_or_codec_is_refused_before_anything_is_written(name):
    codec, out = make_codec(name, 300), np.full(300, 7, np.float32)
    frame = codec.encode(normal(300), rng()).copy()
    for size in [*range(HEADER_BYTES + 2), frame.size - 1]:
        with pytest.raises(CodecError):
            codec.decode(frame[:size], out)
    with pytest.raises(CodecError):
        codec.decode(np.append(frame, np.uint8(0)), out)
    for other, n in [*((it, 300) for it in CODECS if it != name), (name, 301)]:
        with pytest.raises(CodecError, match="expected codec"):
            make_codec(name, 300).decode(make_codec(other, n).encode(normal(n), rng()), out)
    assert (out == 7).all()


@every_codec
def test_a_damaged_frame_is_refused_or_decoded_and_leaves_nothing_behind(name):
    codec, out, draw = make_codec(name, 60), np.empty(60, np.float32), rng(2)
    frame = codec.encode(normal(60), rng()).copy()
    for _ in range(300):
        damaged = frame.copy()
        for bit in draw.integers(8 * frame.size, size=draw.integers(1, 5)):
            damaged[bit // 8] ^= 1 << bit % 8
        out.fill(7)
        try:
            codec.decode(damaged, out)
        except CodecError:
            assert (out == 7).all(), "written before it was checked"
    codec.decode(frame, out)
    np.testing.assert_array_equal(out, through(make_codec(name, 60), normal(60)))


@each(("name", "most"), [
    ("float16", 0), ("bfloat16", 0), ("sign", 0),
    ("top-k", 1 << 20), ("random-k", 3 << 20),  # the choice
])  # fmt: skip
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


@each(("name", "knobs", "match"), [
    ("qsgd", {"levels": 128}, "levels must be at most 127, got 128"),
    ("qsgd", {"levels": 0}, "levels must be at least 1, got 0"),
    ("int8", {"bucket": 0}, "bucket must be at least 1, got 0"),
    ("sign", {"bucket": 12}, "bucket must be a multiple of 8, got 12"),
    ("top-k", {"density": 0}, "^top-k: density must be above 0, got 0$"),
    ("random-k", {"density": 1.5}, "^random-k: density must be at most 1, got 1.5$"),
    ("threshold", {"threshold": 0.0}, "threshold must be above 0, got 0"),
    ("dgc", {"momentum": 1.0}, "momentum must be below 1, got 1"),
    ("dgc", {"momentum": -0.1}, "momentum must be at least 0, got -0.1"),
    ("dgc", {"warmup_epochs": -1}, "warmup-epochs must be at least 0"),
    ("low-rank", {"rank": 0}, "rank must be at least 1, got 0"),
    ("low-rank", {"matrices": [Matrix(90, 4, 5)]}, "a matrix of 4 × 5 at element"),
    ("low-rank", {"matrices": [Matrix(5, 2, 2), Matrix(8, 2, 2)]}, "of 2 × 2 at element 8"),
    ("demo", {"chunk": 0}, "chunk must be at least 1, got 0"),
    ("demo", {"chunk": 257}, "chunk must be at most 256, got 257"),
    ("demo", {"chunk": 4, "kept": 0}, "kept must be at least 1, got 0"),
    ("demo", {"chunk": 4, "kept": 17}, "^demo: kept 17 is more than chunk 4 squared$"),
    ("demo", {"momentum": 1.0}, "momentum must be below 1, got 1"),
    ("demo", {"matrices": [Matrix(90, 4, 5)]}, "a matrix of 4 × 5 at element 90"),
])  # fmt: skip
def test_what_no_codec_can_be(name, knobs, match):
    with pytest.raises(ConfigError, match=match):
        make_codec(name, 100, **knobs)
