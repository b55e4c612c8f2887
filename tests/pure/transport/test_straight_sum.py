"""Sums by linear codecs straight through schedules: against sums of the parts, and the whole."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.codec import CODECS, Matrix
from psrt.codec.linear import Linear
from psrt.collective import ALGORITHMS
from psrt.collective.analysis.pick import way_of
from psrt.core.partition import Span
from psrt.core.ways import Way
from psrt.simulation.schedule_run import sum_by_schedule
from psrt.simulation.straight_run import StraightRun
from psrt.transport.coded_sum import SumCodec
from support.cases import each
from support.coding import make_codec, make_encoder
from support.sums import Ranks, normal

AT = 100
LINEAR = [row.name for row in CODECS.values() if Way.STRAIGHT in row.ways]
SCHEDULES = [name for name in ALGORITHMS if way_of(name, [Way.STRAIGHT])]
#: A matrix, an element, another one, and some more; the second is as short as it is.
MATRICES = (Matrix(0, 9, 7), Matrix(64, 2, 2))
KNOBS = {"random-k": {"density": 0.1, "scaled": False}}


def encoder_of(name, matrices=MATRICES, **knobs):
    def make(span, way):
        there = [it for it in matrices if it.stop <= span.size]
        return make_encoder(name, span.size, matrices=there, **{**KNOBS.get(name, {}), **knobs})

    return make


class Straight(Ranks):
    """All ranks of a sum straight through a schedule."""

    def __init__(self, size, n, make, algorithm, numerics=True):
        super().__init__(
            [SumCodec(make, seed=5, worker=rank) for rank in range(size)],
            lambda link, codec: StraightRun(
                link, codec, Span(AT, AT + n), algorithm, rank=link.rank, size=size, key=0,
                numerics=numerics,
            ),
            copies=True,
        )  # fmt: skip

    @property
    def kept(self):
        """What each rank keeps back."""
        return [run._sum._feedback.residual for run in self.sums]


def test_rows_and_classes_agree_on_what_is_linear():
    for name in CODECS:
        assert isinstance(make_codec(name, 10), Linear) == (name in LINEAR)


@pytest.mark.parametrize("name", LINEAR)
@each(
    ("algorithm", "size", "n"),
    [(a, p, n) for a in SCHEDULES for p in (1, 2, 3, 6) for n in (0, 75)],
)
def test_all_ranks_end_with_the_same_bits_and_close_to_the_mean(name, algorithm, size, n):
    knobs = {"density": 1.0} if name == "random-k" else {"rank": 1} if name == "low-rank" else {}
    ranks = Straight(size, n, encoder_of(name, **knobs), algorithm)
    for clock in range(2):
        vectors = normal(size, n, clock)
        found = ranks.round(vectors, clock=clock, order=(-1) ** clock)
        assert len({it.tobytes() for it in found}) == 1
        if name != "low-rank":
            np.testing.assert_allclose(found[0], np.mean(vectors, axis=0), atol=5e-3, rtol=5e-3)


@each("algorithm", SCHEDULES)
@each(("name", "knobs"), [("random-k", {"density": 1.0}), ("low-rank", {"rank": 7})])
def test_where_nothing_is_saved_it_is_the_dense_sum_to_the_bit(algorithm, name, knobs):
    """Of all elements, and of a matrix that no rank makes shorter."""
    ranks = Straight(5, 75, encoder_of(name, **knobs), algorithm)
    for clock, total in enumerate([5, 0.6, 5] if name == "random-k" else [5, 5]):
        vectors = normal(5, 75, clock)
        dense = sum_by_schedule(algorithm, vectors) * np.float32(1.0 / total)
        for found in ranks.round(vectors, total, clock):
            assert found.tobytes() == dense.tobytes()


@each("scaled", [True, False])
def test_random_k_is_the_mean_of_what_all_draw_alike(scaled):
    """Each element that comes is the whole mean of it, times n/k if scaled, and none is missing."""
    n, size = 400, 3
    ranks = Straight(size, n, encoder_of("random-k", density=0.1, scaled=scaled), "ring")
    drawn = set()
    for clock in range(4):
        vectors, residual = normal(size, n, clock), 0
        if not scaled:
            residual = np.array([it.copy() for it in ranks.kept])
        found = ranks.round(vectors, clock=clock)[0]
        there = np.flatnonzero(found)
        assert there.size == 40
        expected = np.mean(np.array(vectors) + residual, axis=0) * (10 if scaled else 1)
        np.testing.assert_allclose(found[there], expected[there], rtol=1e-5, atol=1e-6)
        if not scaled:
            assert not np.array(ranks.kept)[:, there].any()
        drawn.add(there.tobytes())
    assert len(drawn) == 4


@each("feeds_back", [True, False])
@each("rank", [1, 3])
def test_low_rank_is_the_published_algorithm(rank, feeds_back):
    """Vogels et al., algorithms 1 and 2, in double precision, with a QR factorization.

    There a worker keeps back what the mean has lost of its matrix; summed it is the same.
    """
    size, n, whole = 4, 75, MATRICES[0]
    make = encoder_of("low-rank", rank=rank, error_feedback=feeds_back)
    ranks = Straight(size, n, make, "halving-doubling")
    q = make_codec("low-rank", n, matrices=MATRICES, rank=rank).q[0].astype(np.float64)
    lost = [np.zeros((whole.rows, whole.columns)) for _ in range(size)]
    for clock in range(6):
        vectors = normal(size, n, clock)
        given = [whole.of(v).astype(np.float64) + e for v, e in zip(vectors, lost, strict=True)]
        p, r = np.linalg.qr(np.mean([m @ q for m in given], axis=0))
        p *= np.sign(np.diag(r))  # Gram and Schmidt's columns have a positive diagonal
        q = np.mean([m.T @ p for m in given], axis=0)
        if feeds_back:
            lost = [m - p @ q.T for m in given]
        found = ranks.round(vectors, clock=clock)[0]
        np.testing.assert_allclose(whole.of(found), p @ q.T, atol=2e-4)
        np.testing.assert_allclose(found[63:], np.mean(vectors, axis=0)[63:], rtol=1e-5, atol=1e-6)
        if feeds_back:
            kept = np.sum([whole.of(it) for it in ranks.kept], axis=0)
            np.testing.assert_allclose(kept, np.sum(lost, axis=0), atol=1e-3)


def test_what_ranks_keep_back_does_not_drift_apart():
    """One worker contributes twice as much for long: none keeps back more and more."""
    ranks = Straight(2, 63, encoder_of("low-rank", rank=1), "ring")
    steady = normal(1, 63)[0]
    for clock in range(100):
        ranks.round([2 * steady, steady], clock=clock)
    assert max(np.abs(it).max() for it in ranks.kept) < 30 * np.abs(steady).max()


def test_a_small_last_batch_does_not_multiply_what_was_kept_back():
    ranks = Straight(4, 63, encoder_of("low-rank", rank=1), "ring")
    for clock in range(5):
        ranks.round([np.linspace(-1, 1, 63, dtype=np.float32) ** 3] * 4, clock=clock)
    nothing = np.zeros(63, np.float32)
    assert np.abs(ranks.round([nothing] * 4, 1 / 32, 5)[0]).max() < 2


@each("algorithm", SCHEDULES)
@pytest.mark.parametrize("name", LINEAR)
@each("numerics", [True, False])
def test_bytes_are_those_of_the_formula(name, algorithm, numerics):
    """Every element of a part goes as often as one of the whole vector would, and nothing else."""
    size, n = 4, 75
    ranks = Straight(size, n, encoder_of(name), algorithm, numerics)
    ranks.round(normal(size, n) if numerics else [None] * size)
    whole = sum(
        step.send.size
        for rank in range(size)
        for step in ALGORITHMS[algorithm](rank, size, n)
        if step.send_to not in (None, rank)
    )
    # Of 9 × 7 with rank 2: P and Q, and the 12 elements beside it.
    elements, itemsize = {"float16": (n, 2), "random-k": (8, 4), "low-rank": (2 * 16 + 12, 4)}[name]
    assert sum(it.counts.stats.framed_bytes for it in ranks.codecs) == 4 * whole
    assert (
        sum(it.counts.stats.frame_bytes for it in ranks.codecs) == itemsize * elements * whole // n
    )
    for run, codec in zip(ranks.sums, ranks.codecs, strict=True):
        assert run._sum.frame_bytes == run._sum.most_bytes == codec.counts.stats.frame_bytes
        assert run._sum.framed_bytes == codec.counts.stats.framed_bytes


@each("algorithm", ["ring", "tree", "butterfly"])
def test_half_precision_is_added_as_such_and_overflows_to_infinity(algorithm):
    vectors = [np.array([40_000, -40_000, 1, 2049, 1e-9], np.float32) for _ in range(2)]
    found = Straight(2, 5, encoder_of("float16"), algorithm).round(vectors)[0]
    assert found.tolist() == [np.inf, -np.inf, 1, 2048, 0]


@each("name", LINEAR)
def test_what_is_not_a_number_is_none_anywhere_and_does_not_stay(name):
    ranks = Straight(3, 75, encoder_of(name, error_feedback=False), "ring")
    vectors = normal(3, 75)
    vectors[1][:] = np.nan
    for found in ranks.round(vectors):
        assert np.isnan(found).any()
    assert all(np.isfinite(it).all() for it in ranks.round(normal(3, 75), clock=1))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", LINEAR)
def test_what_diverges_does_so_without_warnings(name):
    """As everywhere: it shows in the loss."""
    ranks = Straight(2, 75, encoder_of(name, error_feedback=True), "ring")
    for clock, sign in enumerate([1, 1, -1, -1]):
        vectors = [np.full(75, sign * number, np.float32) for number in (3e38, np.inf)]
        ranks.round(vectors, 2.0 ** -(clock % 2), clock)
