"""The codecs with a state of their own, against plain arithmetic."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from psrt.codec import make_codec
from psrt.codec.frame import HEADER_BYTES
from psrt.codec.low_rank import LowRank, orthonormalize
from psrt.codec.matrices import Matrix, matrices_within
from psrt.errors import ConfigError
from psrt.partition import Span


def rng(seed=0):
    return np.random.default_rng(seed)


def through(codec, vector):
    out = np.full(vector.size, 7, np.float32)
    codec.decode(codec.encode(vector, rng()).copy(), out)
    return out


class TestLowRank:
    MATRICES = (Matrix(3, 20, 30), Matrix(610, 2, 50))

    @pytest.mark.parametrize("rank", [1, 2, 4])
    def test_the_bytes_are_those_of_both_factors_and_the_rest(self, rank):
        codec = LowRank(720, matrices=self.MATRICES, rank=rank)
        thin = sum(
            rank * (m.rows + m.columns) if rank * (m.rows + m.columns) < m.rows * m.columns
            else m.rows * m.columns
            for m in self.MATRICES
        )  # fmt: skip
        assert codec.nbytes == HEADER_BYTES + 4 * (720 - 700 + thin)

    def test_what_is_no_matrix_comes_back_as_it_was(self):
        vector = rng().standard_normal(720).astype(np.float32)
        out = through(LowRank(720, matrices=self.MATRICES, rank=2), vector)
        for a, b in ((0, 3), (603, 610), (710, 720)):
            np.testing.assert_array_equal(out[a:b], vector[a:b])

    def test_a_matrix_of_that_rank_comes_back(self):
        left, right = rng(1).standard_normal((20, 2)), rng(2).standard_normal((2, 30))
        vector = (left @ right).astype(np.float32).ravel()
        out = through(LowRank(600, matrices=[Matrix(0, 20, 30)], rank=2), vector)
        np.testing.assert_allclose(out, vector, atol=1e-4)

    @pytest.mark.parametrize("rank", [1, 3])
    def test_step_by_step_it_comes_to_the_best_of_that_rank(self, rank):
        """Eckart & Young: none of rank r is nearer than that of the r largest singular values."""
        matrix = rng(3).standard_normal((40, 25)).astype(np.float32)
        codec = LowRank(1000, matrices=[Matrix(0, 40, 25)], rank=rank)
        values = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
        best = math.sqrt((values[rank:] ** 2).sum())
        errors = []
        for _ in range(300):
            out = through(codec, matrix.ravel())
            errors.append(float(np.linalg.norm(out.reshape(40, 25) - matrix)))
        assert errors[0] > 1.01 * best
        assert errors[-1] == pytest.approx(best, rel=1e-3)
        assert all(later <= earlier + 1e-3 for earlier, later in pairwise(errors))

    def test_a_rank_that_saves_nothing_sends_all(self):
        vector = rng().standard_normal(600).astype(np.float32)
        out = through(LowRank(600, matrices=[Matrix(0, 20, 30)], rank=12), vector)
        np.testing.assert_array_equal(out, vector)

    def test_zeros_and_what_is_not_a_number(self):
        codec = LowRank(600, matrices=[Matrix(0, 20, 30)], rank=2)
        assert not through(codec, np.zeros(600, np.float32)).any()
        vector = rng().standard_normal(600).astype(np.float32)
        vector[7] = np.nan
        assert np.isnan(through(codec, vector)[7])
        vector[7] = 0.0
        assert np.isfinite(through(codec, vector)).all()  # the state has not kept it

    def test_zeros_once_are_not_the_end(self):
        """Such are the gradients of all layers below one that begins as zeros."""
        codec = LowRank(600, matrices=[Matrix(0, 20, 30)], rank=1)
        through(codec, np.zeros(600, np.float32))
        vector = np.outer(np.arange(1, 21), np.arange(-9, 21)).astype(np.float32).ravel()
        for _ in range(2):
            np.testing.assert_allclose(through(codec, vector), vector, atol=1e-3)

    @pytest.mark.parametrize("exponent", [-110, -60, -30, 30, 60, 110])
    def test_small_and_large_matrices_are_sent_alike(self, exponent):
        """By powers of two, to the bit: neither squares nor products overflow, or vanish."""
        codec, other = (LowRank(600, matrices=[Matrix(0, 20, 30)], rank=2) for _ in range(2))
        for seed in range(4):
            vector = rng(seed).standard_normal(600).astype(np.float32)
            expected = np.ldexp(through(codec, vector), exponent)
            np.testing.assert_array_equal(through(other, np.ldexp(vector, exponent)), expected)

    @pytest.mark.parametrize("span", [(0, 720), (3, 603), (4, 603), (10, 300), (615, 700), (0, 2)])
    def test_of_a_matrix_that_is_cut_whole_rows_are_left(self, span):
        span = Span(*span)
        numbers = np.arange(720, dtype=np.float32)
        for found in matrices_within(self.MATRICES, span):
            rows = found.of(span.of(numbers))
            whole = next(it for it in self.MATRICES if rows[0, 0] in it.of(numbers)).of(numbers)
            [first] = np.flatnonzero(whole[:, 0] == rows[0, 0])
            np.testing.assert_array_equal(rows, whole[first : first + len(rows)])
            assert first == 0 or whole[first - 1, 0] < span.start
            last = first + len(rows)
            assert last == len(whole) or whole[last, -1] >= span.stop
        within = [it for it in self.MATRICES if span.start <= it.start and it.stop <= span.stop]
        found = matrices_within(self.MATRICES, span)
        assert {(it.rows, it.columns) for it in within} <= {(it.rows, it.columns) for it in found}

    def test_columns_are_made_orthonormal(self):
        p = rng().standard_normal((50, 4)).astype(np.float32)
        p[:, 2] = p[:, 0] + 1e-3 * p[:, 2]
        orthonormalize(p)
        np.testing.assert_allclose(p.T @ p, np.eye(4), atol=1e-5)

    @pytest.mark.parametrize(
        ("rank", "matrices"),
        [(0, []), (1, [Matrix(590, 4, 5)]), (1, [Matrix(5, 2, 2), Matrix(8, 2, 2)])],
    )
    def test_what_cannot_be(self, rank, matrices):
        with pytest.raises(ConfigError, match=r"rank 0, expected|a matrix of \d × \d at element"):
            LowRank(600, matrices=matrices, rank=rank)


class TestDgc:
    def test_it_is_the_published_algorithm(self):
        """Algorithm 4 of the paper, in plain loops."""
        n, momentum, density = 50, 0.9, 0.1
        codec = make_codec("dgc", n, density=density, momentum=momentum, warmup_epochs=0)
        u, v = [0.0] * n, [0.0] * n
        for step in range(20):
            gradient = rng(step).standard_normal(n).astype(np.float32)
            u = [np.float32(momentum) * a + g for a, g in zip(u, gradient, strict=True)]
            v = [a + b for a, b in zip(v, u, strict=True)]
            order = sorted(range(n), key=lambda i: -abs(v[i]))[:5]
            expected = [v[i] if i in order else 0.0 for i in range(n)]
            np.testing.assert_allclose(through(codec, gradient), expected, rtol=1e-5)
            for i in order:
                u[i] = v[i] = 0.0

    def test_a_vector_is_clipped_before_it_is_gathered(self):
        codec = make_codec("dgc", 2, density=1.0, clip_norm=1.0, warmup_epochs=0)
        np.testing.assert_allclose(through(codec, np.array([3, 4], np.float32)), [0.6, 0.8])
        np.testing.assert_allclose(through(codec, np.array([0.3, 0], np.float32)), [0.3, 0.0])
        # Whose squares a float32 does not hold.
        np.testing.assert_allclose(through(codec, np.full(2, 1e20, np.float32)), [0.5**0.5] * 2)

    def test_the_density_comes_down_by_epochs(self):
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

    @pytest.mark.parametrize(
        "knobs", [{"momentum": 1.0}, {"momentum": -0.1}, {"warmup_epochs": -1}]
    )
    def test_what_cannot_be(self, knobs):
        with pytest.raises(ConfigError):
            make_codec("dgc", 10, **knobs)
