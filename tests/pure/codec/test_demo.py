"""Decoupled momentum, against plain sums of cosines."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psrt.codec import make_codec
from psrt.codec.demo import cosines
from psrt.codec.frame import HEADER_BYTES
from psrt.codec.matrices import Matrix
from psrt.errors import CodecError, ConfigError

#: 3 numbers, a matrix of chunks of 4 with smaller ones at both edges, 2 numbers, and a small one.
MATRICES = (Matrix(3, 10, 9), Matrix(95, 3, 3))
N = 110
SMALL = {"chunk": 4, "kept": 5, "momentum": 0.9}


def normal(seed, n=N):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def demo(n=N, matrices=MATRICES, **knobs):
    return make_codec("demo", n, matrices=matrices, **SMALL | knobs)


def through(codec, vector):
    out = np.full(vector.size, 7, np.float32)
    codec.decode(codec.encode(vector, None).copy(), out)
    return out


def chunks(chunk=4):
    """Yield the indices (rows, columns) of every chunk of the vector."""
    pieces = [(0, 1, 3), *MATRICES, (93, 1, 2), (104, 1, 6)]
    for start, rows, columns in pieces:
        place = np.arange(start, start + rows * columns).reshape(rows, columns)
        for top in range(0, rows, chunk):
            for left in range(0, columns, chunk):
                yield place[top : top + chunk, left : left + chunk]


def transform(block):
    """Return the orthonormal DCT-II of a block as four nested loops have it."""
    rows, columns = block.shape
    found = np.zeros((rows, columns))
    for u in range(rows):
        for v in range(columns):
            total = sum(
                block[i, j]
                * math.cos(math.pi * (2 * i + 1) * u / (2 * rows))
                * math.cos(math.pi * (2 * j + 1) * v / (2 * columns))
                for i in range(rows)
                for j in range(columns)
            )
            scale = (1 if u else 0.5) * (1 if v else 0.5) * 4 / (rows * columns)
            found[u, v] = math.sqrt(scale) * total
    return found


def back(coefficients):
    """Return the block of coefficients: the transform of an orthonormal basis is its transpose."""
    rows, columns = coefficients.shape
    found = np.zeros((rows, columns))
    for u in range(rows):
        for v in range(columns):
            unit = np.zeros((rows, columns))
            unit[u, v] = 1
            for i in range(rows):
                for j in range(columns):
                    one = np.zeros((rows, columns))
                    one[i, j] = 1
                    found[i, j] += coefficients[u, v] * (transform(one) * unit).sum()
    return found


def test_every_element_is_in_one_chunk():
    assert sorted(i for block in chunks() for i in block.ravel()) == list(range(N))


def test_it_is_the_published_algorithm():
    codec, momentum = demo(), np.zeros(N)
    for step in range(3):
        gradient = normal(step)
        momentum = 0.9 * momentum + gradient
        expected = np.zeros(N)
        for block in chunks():
            coefficients = transform(momentum[block])
            order = np.argsort(-np.abs(coefficients), axis=None)[:5]
            sent = np.zeros(block.size)
            sent[order] = coefficients.ravel()[order]
            expected[block] = back(sent.reshape(block.shape))
        momentum -= expected
        np.testing.assert_allclose(through(codec, gradient), expected, atol=2e-6)
        np.testing.assert_allclose(codec.residual, momentum, atol=2e-6)


@pytest.mark.parametrize("n", [2, 7, 64])
def test_the_basis_is_orthonormal(n):
    np.testing.assert_allclose(cosines(n) @ cosines(n).T, np.eye(n), atol=1e-6)


def test_packed_means_packed():
    # Of 16 four coefficients each, and all of chunks that have no more.
    assert demo(kept=4).nbytes == HEADER_BYTES + sum(
        4 * 6 if block.size > 4 else 4 * block.size for block in chunks()
    )
    large = make_codec("demo", 784 * 512, matrices=[Matrix(0, 784, 512)])
    assert large.nbytes == HEADER_BYTES + 8 * (12 + 1) * 32 * 6


def test_all_of_a_chunk_is_sent_as_it_is():
    """So one worker that sends everything takes the steps of signed descent, zeros included."""
    codec = demo(kept=16)
    for step in range(3):
        gradient = normal(step)
        gradient[::3] = 0
        np.testing.assert_array_equal(through(codec, gradient), gradient)
        assert not codec.residual.any()


def test_what_is_sent_and_what_is_kept_are_all_there_was():
    codec, sent = demo(momentum=0.0), np.zeros(N)
    vector, kept = normal(0), np.zeros(N)
    for _ in range(4):
        sent = through(codec, vector)
        # β = 0 forgets: what is left is of the last vector alone.
        np.testing.assert_allclose(sent + codec.residual, vector, atol=1e-6)
        assert not np.array_equal(codec.residual, kept)
        kept = vector


def test_a_mean_may_be_taken_of_what_is_decoded():
    """The transform is linear: the mean of blocks is the block of the mean coefficients."""
    frames = [demo().encode(normal(i), None).copy() for i in range(4)]
    outs = [np.empty(N, np.float32) for _ in frames]
    for frame, out in zip(frames, outs, strict=True):
        demo().decode(frame, out)
    mean = np.mean(outs, axis=0)
    for block in chunks():
        coefficients = np.mean([transform(out[block]) for out in outs], axis=0)
        np.testing.assert_allclose(mean[block], back(coefficients), atol=2e-6)


@pytest.mark.parametrize("places", [[1, 0, 2, 3, 4], [0, 1, 2, 3, 16], [0, 1, 1, 3, 4]])
def test_damaged_indices_are_refused(places):
    codec = demo(n=16, matrices=[Matrix(0, 4, 4)])
    frame = codec.encode(normal(0, 16), None).copy()
    frame[-10:].view("<u2")[:] = places
    out = np.full(16, 7, np.float32)
    with pytest.raises(CodecError, match="do not ascend below 16"):
        codec.decode(frame, out)
    assert (out == 7).all()


def test_the_chunks_before_a_damaged_one_are_not_written():
    codec = demo(n=19, matrices=[Matrix(3, 4, 4)])
    frame, out = codec.encode(normal(0, 19), None).copy(), np.full(19, 7, np.float32)
    frame[-2:] = 0
    with pytest.raises(CodecError, match="do not ascend below 16"):
        codec.decode(frame, out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("knobs", "match"),
    [
        ({"chunk": 0}, "chunks of 0, expected 1 to 256"),
        ({"chunk": 257}, "chunks of 257, expected 1 to 256"),
        ({"kept": 0}, "0 coefficients of a chunk of 4 × 4, expected 1 to 16"),
        ({"kept": 17}, "17 coefficients of a chunk of 4 × 4, expected 1 to 16"),
        ({"momentum": 1.0}, "a momentum of 1.0, expected at least 0 and less than 1"),
        ({"matrices": [Matrix(100, 4, 5)]}, "a matrix of 4 × 5 at element 100"),
    ],
)
def test_what_cannot_be(knobs, match):
    with pytest.raises(ConfigError, match=match):
        demo(**knobs)
