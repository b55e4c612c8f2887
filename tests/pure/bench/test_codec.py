"""What the bench of codecs says, but for the times."""

from __future__ import annotations

import pytest

from psrt.bench.codec import limits, measure, push_limit, sum_limit
from psrt.bench.figures import Summary
from psrt.codec import TABLE

N = 1 << 17


@pytest.fixture(scope="module")
def rows():
    return {row["codec"]: row for row in measure(n=N, rounds=1)}


def test_every_codec_is_measured(rows):
    assert list(rows) == list(TABLE)
    for row in rows.values():
        assert all(row[it].median > 0 for it in ("copy", "encode", "send", "decode", "copies"))


def test_errors_are_as_expected(rows):
    told = {name: row for name, row in rows.items() if row["expected"] is not None}
    assert {"qsgd", "ternary", "sign", "top-k", "random-k"} <= set(told)
    for name, row in told.items():
        assert row["error"] == pytest.approx(row["expected"], rel=0.07), name


def test_what_is_smaller_by_how_much(rows):
    smaller = {name: round(4 * N / row["nbytes"], 1) for name, row in rows.items()}
    assert smaller["float16"] == 2.0
    assert smaller["int8"] == 4.0
    assert smaller["sign"] == 31.0
    assert smaller["top-k"] > 70
    assert smaller["dgc"] > 500


def row(encode, decode, nbytes=1_000_000):
    return {
        "codec": "x", "n": 1_000_000, "nbytes": nbytes,
        "send": Summary.of([encode]), "decode": Summary.of([decode]),
    }  # fmt: skip


def test_the_limits_are_where_both_take_as_long():
    """At that rate the time of the bytes that are saved is that of encoding and decoding."""
    it = row(0.02, 0.01)
    for workers in (2, 4, 64):
        bits = push_limit(it, workers)
        dense = 8 * 4_000_000 * workers / bits
        coded = 8 * 1_000_000 * workers / bits + 0.02 + workers * 0.01
        assert dense == pytest.approx(coded)
        bits = sum_limit(it, workers)
        each = 2 * (workers - 1) / workers
        dense = 8 * 4_000_000 * each / bits
        # All of the vector, and the mean of the own chunk; others' own chunks, and all chunks.
        encoding = 0.02 + 0.02 / workers
        decoding = (workers - 1) * 0.01 / workers + 0.01
        assert dense == pytest.approx(8 * 1_000_000 * each / bits + encoding + decoding)


def test_what_saves_nothing_pays_nowhere():
    [few, *_] = limits([row(0.02, 0.01, nbytes=5_000_000)])
    assert few == {"codec": "x", "workers": 4, "push": 0.0, "all_reduce": 0.0}
