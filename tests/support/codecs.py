"""What every codec must do, by the documentation of its wire format alone, not by its code.

Frames are read in plain Python, and what they hold is compared with the vector by the definition of
each codec, in double precision.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from psrt.arrays import Vector
from psrt.errors import CodecError

Knobs: TypeAlias = dict[str, Any]
#: Takes n and knobs, returns a codec.
Maker: TypeAlias = Callable[..., Any]

HEADER = struct.Struct("<BBHIIQ")
#: Rows, columns and where they begin, of vectors of at least 720 elements.
MATRICES = ((3, 20, 30), (610, 2, 50))
#: Codec → number on the wire, and sets of knobs that make different frames.
CODECS: dict[str, tuple[int, list[Knobs]]] = {
    "float16": (1, [{}]),
    "bfloat16": (2, [{}]),
    "float8-e4m3": (3, [{"bucket": 128}, {"bucket": 7}]),
    "float8-e5m2": (4, [{"bucket": 128}, {"bucket": 7}]),
    "float4-e3m0": (5, [{"bucket": 128}, {"bucket": 7}]),
    "int8": (6, [{"bucket": 1024}, {"bucket": 33}]),
    "qsgd": (7, [{"levels": 7, "bucket": 128}, {"levels": 3, "bucket": 50}]),
    "ternary": (8, [{"bucket": 4096}, {"bucket": 100}]),
    "ternary-base3": (9, [{"bucket": 4096}, {"bucket": 100}]),
    "sign": (10, [{"bucket": 1024}, {"bucket": 24}]),
    "top-k": (11, [{"density": it} for it in (0.001, 0.02, 0.3, 0.9, 0.99)]),
    "threshold": (12, [{"threshold": it} for it in (2.5, 0.5, 0.01)]),
    "random-k": (13, [{"density": 0.1, "scaled": True}, {"density": 0.3, "scaled": False}]),
    "low-rank": (14, [{"rank": 2}, {"rank": 1}]),
    "dgc": (
        15,
        [
            {"density": 0.01, "momentum": 0.9, "clip_norm": None, "warmup_epochs": 0},
            {"density": 0.3, "momentum": 0.5, "clip_norm": 2.0, "warmup_epochs": 0},
        ],
    ),
    "demo": (16, [{"chunk": 4, "kept": 5, "momentum": 0.9}]),
    "nonzero": (17, [{}]),
}
SIZES = (0, 1, 5, 8, 129, 300, 20_000)
_FORMATS = {"float8-e4m3": (4, 3), "float8-e5m2": (5, 2), "float4-e3m0": (3, 0)}
_LARGEST = {"float8-e4m3": 448.0, "float8-e5m2": 57344.0, "float4-e3m0": 16.0}
_SPARSE = ("top-k", "threshold", "dgc", "nonzero")
#: Levels of a scale, where the knobs do not say.
_LEVELS = {"int8": 127, "ternary": 1, "ternary-base3": 1}


def normal(n: int, seed: int = 0) -> Vector:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def through(codec: Any, vector: Vector, seed: int = 0) -> Vector:
    """Return what a codec makes of a vector, encoded and decoded once."""
    out = np.full(vector.size, 7, np.float32)
    codec.decode(codec.encode(vector, np.random.default_rng(seed)).copy(), out)
    return out


def matrices_in(n: int) -> tuple[tuple[int, int, int], ...]:
    """Return the matrices of a vector of n elements; the short ones have none."""
    return MATRICES if n >= 720 else ()


def nbytes(name: str, n: int, knobs: Knobs) -> int | None:
    """Return the bytes of a frame's payload by the formula; None where they depend on data.

    Of demo without matrices.
    """
    buckets = -(-n // knobs["bucket"]) if "bucket" in knobs else 0
    match name:
        case "float16" | "bfloat16":
            return 2 * n
        case "float8-e4m3" | "float8-e5m2":
            return n + buckets
        case "float4-e3m0":
            return -(-n // 2) + buckets
        case "int8" | "qsgd" | "ternary":
            bits = math.ceil(math.log2(2 * knobs.get("levels", _LEVELS.get(name, 0)) + 1))
            return -(-n * bits // 8) + 4 * buckets
        case "ternary-base3":
            return -(-n // 5) + 4 * buckets
        case "sign":
            return -(-n // 8) + 4 * buckets
        case "random-k":
            k: int = math.ceil(knobs["density"] * n)
            return 8 + 4 * k
        case "low-rank":
            rank: int = knobs["rank"]
            saved = (r * c - rank * (r + c) for _, r, c in matrices_in(n))
            return 4 * (n - sum(max(0, it) for it in saved))
        case "demo":
            whole, rest = divmod(n, knobs["chunk"])
            kept: int = knobs["kept"]
            return sum(6 * kept if m > kept else 4 * m for m in [knobs["chunk"]] * whole + [rest])
    return None


# --- frames, in plain Python --------------------------------------------------------------------


def read(frame: Any, name: str, n: int, knobs: Knobs) -> Vector:
    """Return the (n,) float32 numbers of a frame."""
    data = bytes(frame)
    code, form, _, elements, sent, size = HEADER.unpack_from(data)
    payload = data[HEADER.size :]
    assert (code, elements, size) == (CODECS[name][0], n, len(payload))
    if name in _SPARSE:
        return _sparse(payload, form, sent, n)
    assert form == 0
    assert sent == (math.ceil(knobs["density"] * n) if name == "random-k" else n)
    reader: Callable[[], Iterable[float]] | None = {
        "float16": lambda: struct.unpack(f"<{n}e", payload),
        "bfloat16": lambda: [
            struct.unpack("<f", b"\0\0" + payload[2 * i : 2 * i + 2])[0] for i in range(n)
        ],
        "sign": lambda: _signs(payload, n, knobs["bucket"]),
        "random-k": lambda: _random(payload, n, sent),
        "low-rank": lambda: _thin(payload, n, knobs["rank"]),
    }.get(name)
    if reader is not None:
        return np.array(reader(), np.float32)
    if name in _FORMATS:
        return _small(payload, n, knobs["bucket"], *_FORMATS[name])
    return _levels(payload, n, knobs["bucket"], knobs.get("levels", _LEVELS.get(name, 0)), name)


def _sparse(payload: bytes, form: int, k: int, n: int) -> Vector:
    values, rest = struct.unpack_from(f"<{k}f", payload), payload[4 * k :]
    if form == 0:
        indices = list(struct.unpack(f"<{k}I", rest))
    elif form == 1:
        indices, last, number, shift = [], -1, 0, 0
        for byte in rest:
            number, shift = number | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                last, number, shift = last + number + 1, 0, 0
                indices.append(last)
        assert shift == 0
    elif form == 3:
        assert k == n
        out = np.array(values, np.float32)
        indices = np.flatnonzero(out).tolist()
        gaps = [b - a - 1 for a, b in itertools.pairwise([-1, *indices])]
        k = len(indices)
        assert 4 * n < 4 * k + min(
            4 * k, sum(max(1, -(-gap.bit_length() // 7)) for gap in gaps), -(-n // 8)
        )
        return out
    else:
        assert (form, len(rest)) == (2, -(-n // 8))
        indices = [i for i in range(8 * len(rest)) if rest[i // 8] >> i % 8 & 1]
    assert len(indices) == k
    # The shortest form, and of equal ones the first.
    gaps = [b - a - 1 for a, b in itertools.pairwise([-1, *indices])]
    lengths = [4 * k, sum(max(1, -(-gap.bit_length() // 7)) for gap in gaps), -(-n // 8)]
    assert form == lengths.index(min(lengths))
    assert 4 * k + min(lengths) <= 4 * n
    out = np.zeros(n, np.float32)
    out[indices] = values
    return out


def _bits(data: bytes, width: int, n: int) -> list[int]:
    whole = int.from_bytes(data, "little")
    assert whole >> (n * width) == 0
    text = format(whole, f"0{max(1, n * width)}b")[::-1]
    return [int(text[i * width : (i + 1) * width][::-1], 2) for i in range(n)]


def _small(payload: bytes, n: int, bucket: int, exponent: int, mantissa: int) -> Vector:
    count = -(-n // bucket)
    codes = _bits(payload[count:], 1 + exponent + mantissa, n)
    out = np.empty(n, np.float32)
    for i, code in enumerate(codes):
        sign, rest = divmod(code, 1 << (exponent + mantissa))
        field, fraction = divmod(rest, 1 << mantissa)
        bias = 2 ** (exponent - 1) - 1
        if mantissa == 0:
            number = 2.0 ** (field - bias) if field else 0.0
        else:
            number = (fraction / 2**mantissa + (field > 0)) * 2.0 ** (max(field, 1) - bias)
        scale = payload[i // bucket]
        factor = math.nan if scale == 255 else 2.0 ** (scale - 127)
        out[i] = (-number if sign else number) * factor
    return out


def _levels(payload: bytes, n: int, bucket: int, levels: int, name: str) -> Vector:
    count = -(-n // bucket)
    scales, rest = struct.unpack_from(f"<{count}f", payload), payload[4 * count :]
    if name == "ternary-base3":
        numbers = [rest[i // 5] // 3 ** (i % 5) % 3 for i in range(n)]
    else:
        numbers = _bits(rest, math.ceil(math.log2(2 * levels + 1)), n)
    steps = [np.float32(scale) / np.float32(levels) for scale in scales]
    return np.array([(it - levels) * steps[i // bucket] for i, it in enumerate(numbers)], "f4")


def _signs(payload: bytes, n: int, bucket: int) -> list[float]:
    count = -(-n // bucket)
    scales, rest = struct.unpack_from(f"<{count}f", payload), payload[4 * count :]
    return [
        -scales[i // bucket] if rest[i // 8] >> (7 - i % 8) & 1 else scales[i // bucket]
        for i in range(n)
    ]


def _random(payload: bytes, n: int, k: int) -> list[float]:
    [seed], out = struct.unpack_from("<Q", payload), [0.0] * n
    bits, indices = np.random.PCG64(seed), set[int]()
    while len(indices) < min(k, n - k):
        indices.add((bits.random_raw() >> 32) * n >> 32)
    if 2 * k > n:
        indices = {*range(n)} - indices
    for i, value in zip(sorted(indices), struct.unpack(f"<{k}f", payload[8:]), strict=True):
        out[i] = value
    return out


def _thin(payload: bytes, n: int, rank: int) -> Vector:
    values, at = np.frombuffer(payload, "<f4"), 0
    out, rest = np.empty(n, np.float32), np.ones(n, bool)
    for start, rows, columns in matrices_in(n):
        if rank * (rows + columns) >= rows * columns:
            continue
        p = values[at : at + rows * rank].reshape(rows, rank)
        at += p.size
        q = values[at : at + columns * rank].reshape(columns, rank)
        at += q.size
        out[start : start + rows * columns] = (p.astype("f8") @ q.T.astype("f8")).ravel()
        rest[start : start + rows * columns] = False
    out[rest] = values[at:]
    return out


# --- what is decoded, by the definition of each codec ---------------------------------------------


def check(name: str, make: Maker) -> None:
    """Check a codec.

    Args:
        name: of the codec.
        make: takes n and knobs by name, returns a new codec; called with ``matrices`` where n is
            large enough for ``MATRICES``.

    Raises:
        AssertionError, or whatever a broken codec raises.
    """
    for i, knobs in enumerate(CODECS[name][1]):
        for n in SIZES if name != "demo" else ():
            if i and n > 300 and "bucket" in knobs:
                continue  # of blocks and buckets the first knobs have said all
            vector = normal(n)
            codec = make(n, **knobs)
            frame = codec.encode(vector, np.random.default_rng(n)).copy()
            expected = nbytes(name, n, knobs)
            if expected is not None:
                assert frame.size == HEADER.size + expected == codec.nbytes
            out = np.full(n, 7, np.float32)
            codec.decode(frame, out)
            there = read(frame, name, n, knobs)
            np.testing.assert_allclose(out, there, rtol=2e-6, atol=1e-6 * (name == "low-rank"))
            if name in _FITS:
                _FITS[name](vector, out, knobs, frame, name)
        if name in _REST:
            _REST[name](make, knobs)
        _refuses(make, knobs)
    if name != "random-k":
        _shows_what_is_not_finite(make, CODECS[name][1][0])


def _refuses(make: Maker, knobs: Knobs) -> None:
    out = np.empty(300, np.float32)
    codec = make(300, **knobs)
    frame = codec.encode(normal(300), np.random.default_rng(0)).copy()
    fields = HEADER.unpack_from(frame.data)
    for i in range(len(fields)):
        for other in (fields[i] + 1, fields[i] ^ 0x80):
            damaged, changed = frame.copy(), [*fields]
            changed[i] = other
            HEADER.pack_into(damaged.data, 0, *changed)
            _refuses_frame(codec, damaged, out)
    for damaged in (frame[:-1], np.append(frame, np.uint8(0)), frame[: HEADER.size]):
        shorter = damaged.copy()
        for fix in (False, True):
            if fix:
                HEADER.pack_into(shorter.data, 0, *fields[:5], shorter.size - HEADER.size)
            _refuses_frame(codec, shorter, out)


def _refuses_frame(codec: Any, frame: Any, out: Vector) -> None:
    try:
        codec.decode(frame, out)
    except CodecError:
        return
    raise AssertionError("a damaged frame was decoded")


def _shows_what_is_not_finite(make: Maker, knobs: Knobs) -> None:
    for special in (np.nan, np.inf, -np.inf):
        for n in (1, 300):
            vector = normal(n)
            vector[n // 2] = special
            out, codec = np.empty(n, np.float32), make(n, **knobs)
            codec.decode(codec.encode(vector, np.random.default_rng(0)), out)
            assert not np.isfinite(out[n // 2])
            if "bucket" in knobs:
                first = n // 2 // knobs["bucket"] * knobs["bucket"]
                assert np.isnan(out[first : first + knobs["bucket"]]).all()


def _is_the_cast(vector: Vector, out: Vector, knobs: Knobs, frame: Any, name: str) -> None:
    dtype = np.float16 if name == "float16" else ml_dtypes.bfloat16
    np.testing.assert_array_equal(out, vector.astype(dtype).astype(np.float32))


def _of_every_kind_of_number(make: Maker, knobs: Knobs) -> None:
    """Of each exponent, both signs, and mantissas at, below and above each tie."""
    upper = np.arange(0, 1 << 16, 7, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    vector = (upper[:, np.newaxis] | lower).ravel().view(np.float32)
    codec, out = make(vector.size, **knobs), np.empty(vector.size, np.float32)
    codec.decode(codec.encode(vector, None), out)
    with np.errstate(all="ignore"):
        _is_the_cast(vector, out, knobs, None, {1: "float16", 2: "bfloat16"}[codec.row.code])


def _is_nearest(vector: Vector, out: Vector, knobs: Knobs, frame: Any, name: str) -> None:
    exponent, mantissa = _FORMATS[name]
    bucket, largest = knobs["bucket"], _LARGEST[name]
    one = _small(
        bytes([127]) + _packed(range(1 << (1 + exponent + mantissa)), 1 + exponent + mantissa),
        1 << (1 + exponent + mantissa), 1 << 16, exponent, mantissa,
    )  # fmt: skip
    one = np.unique(one[np.abs(one) <= largest]).astype(np.float64)
    scales = frame[HEADER.size :][: -(-vector.size // bucket)].astype(int) - 127
    for i, scale in enumerate(scales):
        part = slice(i * bucket, (i + 1) * bucket)
        given, found = vector[part].astype(np.float64), out[part].astype(np.float64)
        top = np.abs(given).max()
        assert largest * 2.0 ** (scale - 1) < top <= largest * 2.0**scale
        nearest = np.abs(given[:, None] - one[None] * 2.0**scale).min(axis=1)
        np.testing.assert_allclose(np.abs(found - given), nearest, rtol=1e-6, atol=1e-12)


def _packed(numbers: Iterable[int], width: int) -> bytes:
    numbers = list(numbers)
    whole = sum(it << (width * i) for i, it in enumerate(numbers))
    return whole.to_bytes(-(-width * len(numbers) // 8), "little")


def _is_within_a_step(vector: Vector, out: Vector, knobs: Knobs, frame: Any, name: str) -> None:
    bucket, levels = knobs["bucket"], knobs.get("levels", _LEVELS.get(name))
    for i in range(0, vector.size, bucket):
        given = vector[i : i + bucket].astype(np.float64)
        scale = np.sqrt((given**2).sum()) if name == "qsgd" else np.abs(given).max()
        got = struct.unpack_from("<f", frame, HEADER.size + i // bucket * 4)[0]
        assert abs(got - scale) <= 1e-5 * scale
        assert (np.abs(out[i : i + bucket] - given) <= scale / levels * 1.00001).all()


def _is_right_in_the_mean(make: Maker, knobs: Knobs) -> None:
    n, draws = 2000, 100
    vector, codec, generator = normal(n), make(n, **knobs), np.random.default_rng(0)
    found = np.empty((draws, n), np.float32)
    for row in found:
        codec.decode(codec.encode(vector, generator), row)
    lost = found.astype(np.float64) - vector
    spread = np.sqrt((lost**2).mean() / draws)
    assert abs(lost.mean() * np.sqrt(n)) < 5 * spread
    assert (np.abs(lost.mean(axis=0)) < 7 * np.abs(lost).max() / np.sqrt(draws)).all()
    # As a coin that falls on either of two neighbours: by what of a step an element is past one.
    step = np.abs(lost).max(axis=0) + np.abs(lost).min(axis=0)
    ones = step > 0
    past = np.abs(lost).min(axis=0)[ones] / step[ones]
    variance = (past * (1 - past) * step[ones] ** 2).sum()
    assert abs((lost[:, ones] ** 2).mean(axis=0).sum() / variance - 1) < 0.1
    # Elements are rounded independently: by their neighbours, too, and from vector to vector.
    lost = lost[:, lost.std(axis=0) > 0]
    units = (lost - lost.mean(axis=0)) / lost.std(axis=0)
    for apart in (1, 2, 4):
        assert abs((units[:, apart:] * units[:, :-apart]).mean()) < 0.03
        assert abs((units[apart:] * units[:-apart]).mean()) < 0.03


def _is_sign_and_mean(vector: Vector, out: Vector, knobs: Knobs, frame: Any, name: str) -> None:
    assert (np.signbit(out) == np.signbit(vector)).all()
    for i in range(0, vector.size, knobs["bucket"]):
        given = vector[i : i + knobs["bucket"]].astype(np.float64)
        np.testing.assert_allclose(np.abs(out[i : i + given.size]), np.abs(given).mean(), rtol=1e-5)


def _are_the_largest(vector: Vector, out: Vector, knobs: Knobs, frame: Any, name: str) -> None:
    k = math.ceil(knobs["density"] * vector.size)
    expected = np.zeros_like(vector)
    first = np.argsort(-np.abs(vector), kind="stable")[:k]
    expected[first] = vector[first]
    np.testing.assert_array_equal(out, expected)


def _of_equal_ones_the_first(make: Maker, knobs: Knobs) -> None:
    for n in (9, 140_001):
        vector = np.random.default_rng(1).integers(-3, 4, n).astype(np.float32)
        out, codec = np.empty(n, np.float32), make(n, **knobs)
        codec.decode(codec.encode(vector, None), out)
        _are_the_largest(vector, out, knobs, None, "")
        # All that a sample at even distances sees is large.
        vector = normal(n)
        vector[:: max(1, n // 4096)] += 10
        codec.decode(codec.encode(vector, None), out)
        _are_the_largest(vector, out, knobs, None, "")


def _are_all(vector: Vector, out: Vector, knobs: Knobs, frame: Any, name: str) -> None:
    assert out.tobytes() == vector.tobytes()


def _reach_the_threshold(vector: Vector, out: Vector, knobs: Knobs, frame: Any, name: str) -> None:
    there = np.abs(vector) >= np.float32(knobs["threshold"])
    np.testing.assert_array_equal(out, np.where(there, vector, 0))


def _a_threshold_is_reached_by_itself(make: Maker, knobs: Knobs) -> None:
    given = np.float32(knobs["threshold"])
    below = np.nextafter(given, np.float32(0))
    vector, out = np.array([given, -given, below, -below, 0], np.float32), np.empty(5, np.float32)
    codec = make(5, **knobs)
    codec.decode(codec.encode(vector, None), out)
    assert out.tolist() == [given, -given, 0, 0, 0]
    vector, out = normal(140_001), np.empty(140_001, np.float32)
    codec = make(140_001, **knobs)
    codec.decode(codec.encode(vector, None), out)
    _reach_the_threshold(vector, out, knobs, None, "")


def _are_some_of_them(vector: Vector, out: Vector, knobs: Knobs, frame: Any, name: str) -> None:
    k = math.ceil(knobs["density"] * vector.size)
    factor = vector.size / k if knobs["scaled"] and k else 1.0
    there = np.flatnonzero(out)
    assert there.size == k
    np.testing.assert_allclose(out[there], vector[there] * factor, rtol=1e-6)


def _each_is_drawn_as_often(make: Maker, knobs: Knobs) -> None:
    n, draws = 50, 2000
    codec, generator = make(n, **knobs), np.random.default_rng(0)
    count, out, vector = np.zeros(n), np.empty(n, np.float32), np.ones(n, np.float32)
    for _ in range(draws):
        codec.decode(codec.encode(vector, generator), out)
        count += out != 0
    share = math.ceil(knobs["density"] * n) / n
    assert (np.abs(count / draws - share) < 5 * math.sqrt(share * (1 - share) / draws)).all()


def _comes_to_the_best_of_its_rank(make: Maker, knobs: Knobs) -> None:
    """By an implementation of its own: a QR factorization in double precision."""
    n, rank = 800, knobs["rank"]
    codec, out = make(n, **knobs), np.empty(n, np.float32)
    queries = [q.astype(np.float64) for q in codec.q]
    thin = [it for it in MATRICES if rank * (it[1] + it[2]) < it[1] * it[2]]
    assert len(queries) == len(thin)
    for step in range(4):
        vector = normal(n, step)
        codec.decode(codec.encode(vector, None), out)
        expected = vector.astype(np.float64)
        for i, (start, rows, columns) in enumerate(thin):
            part = slice(start, start + rows * columns)
            matrix = expected[part].reshape(rows, columns)
            p, r = np.linalg.qr(matrix @ queries[i])
            p *= np.sign(np.diag(r))  # Gram and Schmidt's columns have a positive diagonal
            queries[i] = matrix.T @ p
            expected[part] = (p @ queries[i].T).ravel()
        np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-4)


def _is_the_published_algorithm(make: Maker, knobs: Knobs) -> None:
    """Lin et al., algorithm 4, in plain loops."""
    n = 40
    codec, out = make(n, **knobs), np.empty(n, np.float32)
    u, v = [0.0] * n, [0.0] * n
    for step in range(12):
        given = normal(n, step) * np.float32(0.05 if step % 2 else 1)
        gradient = given.astype(np.float64)
        if knobs["clip_norm"] is not None:
            gradient *= min(1.0, knobs["clip_norm"] / np.sqrt((gradient**2).sum()))
        u = [knobs["momentum"] * a + g for a, g in zip(u, gradient, strict=True)]
        v = [a + b for a, b in zip(v, u, strict=True)]
        order = sorted(range(n), key=lambda i: -abs(v[i]))[: math.ceil(knobs["density"] * n)]
        expected = [v[i] if i in order else 0.0 for i in range(n)]
        codec.decode(codec.encode(given, None), out)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-6)
        for i in order:
            u[i] = v[i] = 0.0


def _demo_is_published(make: Maker, knobs: Knobs) -> None:
    """Peng et al., algorithm 1, with a matrix and what is none; the transform by its definition."""
    n, chunk, kept, beta = 800, knobs["chunk"], knobs["kept"], knobs["momentum"]
    codec, out = make(n, **knobs), np.empty(n, np.float32)
    pieces, at = [], 0
    for start, rows, columns in MATRICES:
        pieces += [(at, 1, start - at), (start, rows, columns)]
        at = start + rows * columns
    pieces.append((at, 1, n - at))
    momentum = np.zeros(n)
    for step in range(4):
        vector = normal(n, step)
        momentum = beta * momentum + vector
        sent, count = np.zeros(n), 0
        for start, rows, columns in pieces:
            place = np.arange(start, start + rows * columns).reshape(rows, columns)
            for top in range(0, rows, chunk):
                for left in range(0, columns, chunk):
                    where = place[top : top + chunk, left : left + chunk]
                    a, b = map(_cosines, where.shape)
                    coefficients = a @ momentum[where] @ b.T
                    order = np.argsort(-np.abs(coefficients), axis=None)[:kept]
                    chosen = np.zeros(where.shape)
                    chosen.flat[order] = coefficients.flat[order]
                    sent[where] = a.T @ chosen @ b
                    count += (6 if kept < where.size else 4) * order.size
        frame = codec.encode(vector, None)
        assert frame.size == HEADER.size + count == codec.nbytes
        codec.decode(frame, out)
        np.testing.assert_allclose(out, sent, rtol=1e-3, atol=2e-5)
        momentum -= sent


def _nothing_is_lost(make: Maker, knobs: Knobs) -> None:
    """At every density, and with bits that numpy's comparisons do not tell from others."""
    for n in (1, 9, 64, 300):
        for k in {0, 1, n // 9, n // 3, n - n // 30, n - 1, n}:
            vector = np.zeros(n, np.float32)
            places = np.random.default_rng((n, k)).permutation(n)[:k]
            vector[places] = normal(k)
            vector[places[:1]], vector[places[1:2]] = -0.0, np.nan
            frame, out = make(n, **knobs).encode(vector, None), np.empty(n, np.float32)
            make(n, **knobs).decode(frame, out)
            assert out.tobytes() == vector.tobytes()
            where = np.sort(places)
            gaps = np.diff(where, prepend=-1) - 1
            lengths = 4 * k, sum(1 + (it >= 128) for it in gaps.tolist()), -(-n // 8)
            assert frame.size == HEADER.size + min(4 * n, 4 * k + min(lengths))


def _cosines(n: int) -> npt.NDArray[np.float64]:
    return np.array(
        [
            [math.sqrt((2 if k else 1) / n) * math.cos(math.pi * (2 * i + 1) * k / (2 * n))
             for i in range(n)]
            for k in range(n)
        ]
    )  # fmt: skip


#: Codec → what holds of one vector and what is decoded of it.
_FITS: dict[str, Callable[..., None]] = {
    "float16": _is_the_cast,
    "bfloat16": _is_the_cast,
    **dict.fromkeys(_FORMATS, _is_nearest),
    **dict.fromkeys(("int8", "qsgd", "ternary", "ternary-base3"), _is_within_a_step),
    "sign": _is_sign_and_mean,
    "top-k": _are_the_largest,
    "threshold": _reach_the_threshold,
    "random-k": _are_some_of_them,
    "nonzero": _are_all,
}
#: Codec → what holds of many vectors.
_REST: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("float16", "bfloat16"), _of_every_kind_of_number),
    **dict.fromkeys(("int8", "qsgd", "ternary", "ternary-base3"), _is_right_in_the_mean),
    "top-k": _of_equal_ones_the_first,
    "threshold": _a_threshold_is_reached_by_itself,
    "random-k": _each_is_drawn_as_often,
    "low-rank": _comes_to_the_best_of_its_rank,
    "dgc": _is_the_published_algorithm,
    "demo": _demo_is_published,
    "nonzero": _nothing_is_lost,
}
