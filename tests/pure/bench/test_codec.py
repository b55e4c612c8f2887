"""What the bench of codecs says, but for the times."""

from __future__ import annotations

import pytest

from psrt.bench.codec import measure
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
