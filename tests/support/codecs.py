"""What every codec must do, by the documentation of its wire format alone, not by its code.

The frame of a few numbers is known to the bit. What frames of others decode to is compared with the
vector by the definition of each codec, in double precision.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from psrt.core.arrays import Vector
from psrt.core.errors import CodecError

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
_NUMBERS = np.array([1.5, -2, 0.25, 3, -0.5, 1, 0, -4, 2.5, 0.75, -1], np.float32)
#: Codec → knobs, and of a frame of these numbers the form, the parameter, the elements that are
#: sent, and the payload. The least bits of demo depend on the machine.
_DGC = {"density": 0.2, "momentum": 0.9, "clip_norm": None, "warmup_epochs": 0}
FRAMES: dict[str, tuple[Knobs, tuple[int, int, int], str]] = {
    "float16": ({}, (0, 0, 11), "003e00c00034004200b8003c000000c40041003a00bc"),
    "bfloat16": ({}, (0, 0, 11), "c03f00c0803e404000bf803f000080c02040403f80bf"),
    "float8-e4m3": ({"bucket": 7}, (0, 7, 11), "787974f8607ce87000f87264e8"),
    "float8-e5m2": ({"bucket": 7}, (0, 7, 11), "717276f86c7af07400f8756ef0"),
    "float4-e3m0": ({"bucket": 7}, (0, 7, 11), "7d7de6635cf0460d"),
    "int8": ({"bucket": 7}, (0, 7, 11), "0000404000008040bf2b8afe6aa97f00ce975f"),
    "qsgd": ({"levels": 3, "bucket": 7}, (0, 7, 11), "063b82405d279c40143b2e9c00"),
    "ternary": ({"bucket": 7}, (0, 7, 11), "0000404000008040a61505"),
    "ternary-base3": ({"bucket": 7}, (0, 7, 11), "00004040000080409e7000"),
    "sign": ({"bucket": 8}, (0, 8, 11), "0000c43f5555b53f4920"),
    "top-k": ({"density": 0.2}, (2, 0, 3), "00004040000080c0000020408801"),
    "threshold": ({"threshold": 2.5}, (2, 0, 3), "00004040000080c0000020408801"),
    "random-k": (
        {"density": 0.3, "scaled": True}, (0, 1, 4),
        "5f82c2d9cfeb0fa30000044100000000000030c1000030c0",
    ),
    "dgc": (_DGC, (2, 0, 3), "00004040000080c0000020408801"),
    "nonzero": (
        {}, (2, 0, 10),
        "0000c03f000000c00000803e00004040000000bf0000803f000080c0000020400000403f000080bfbf07",
    ),
}  # fmt: skip
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


def nbytes(name: str, n: int, knobs: Knobs) -> int:
    """Return the bytes of a frame's payload by the formula; of demo without matrices."""
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
    raise AssertionError(f"the length of {name} depends on the numbers")


def _is_in_the_shortest_form(frame: Any, vector: Vector) -> None:
    """Check the length of what is not zero, which is sent with indices unless all is shorter."""
    where, n = np.flatnonzero(vector.view(np.uint32)), vector.size
    gaps = (np.diff(where, prepend=-1) - 1).tolist()
    varints = sum(max(1, -(-it.bit_length() // 7)) for it in gaps)
    with_indices = 4 * where.size + min(4 * where.size, varints, -(-n // 8))
    assert frame.size == HEADER.size + min(4 * n, with_indices)
    assert (HEADER.unpack_from(frame.data)[1] == 3) == (with_indices > 4 * n)


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
    if name in FRAMES:
        knobs, (form, parameter, sent), payload = FRAMES[name]
        frame = make(_NUMBERS.size, **knobs).encode(_NUMBERS, np.random.default_rng(0))
        data = bytes.fromhex(payload)
        header = CODECS[name][0], form, parameter, _NUMBERS.size, sent, len(data)
        assert frame.tobytes() == HEADER.pack(*header) + data
    assert name in _FITS or name in _REST, f"nothing here says what {name} decodes to"
    for i, knobs in enumerate(CODECS[name][1]):
        for n in SIZES if name != "demo" else ():
            if i and n > 300 and "bucket" in knobs:
                continue  # of blocks and buckets the first knobs have said all
            vector = normal(n)
            codec = make(n, **knobs)
            frame = codec.encode(vector, np.random.default_rng(n)).copy()
            out = np.full(n, 7, np.float32)
            codec.decode(frame, out)
            if name in _SPARSE:
                _is_in_the_shortest_form(frame, out)
            else:
                assert frame.size == HEADER.size + nbytes(name, n, knobs) == codec.nbytes
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
    np.testing.assert_array_equal(np.signbit(out), np.signbit(vector))  # of zeros, too


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
    fields, fractions = np.meshgrid(np.arange(2**exponent), np.arange(2**mantissa) / 2**mantissa)
    least = 1 if mantissa else 0  # without a fraction there are no subnormal numbers but zero
    one = (fractions + (fields > 0)) * 2.0 ** (np.maximum(fields, least) - 2 ** (exponent - 1) + 1)
    one = np.unique([one, -one])
    one = one[np.abs(one) <= largest]
    scales = frame[HEADER.size :][: -(-vector.size // bucket)].astype(int) - 127
    for i, scale in enumerate(scales):
        part = slice(i * bucket, (i + 1) * bucket)
        given, found = vector[part].astype(np.float64), out[part].astype(np.float64)
        top = np.abs(given).max()
        assert largest * 2.0 ** (scale - 1) < top <= largest * 2.0**scale
        nearest = np.abs(given[:, None] - one[None] * 2.0**scale).min(axis=1)
        np.testing.assert_allclose(np.abs(found - given), nearest, rtol=1e-6, atol=1e-12)


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
            _is_in_the_shortest_form(frame, vector)


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
