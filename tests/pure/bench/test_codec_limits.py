"""Where a codec pays: formulas against virtual time; limits against formulas; what is measured."""

from __future__ import annotations

import pytest

from psrt.bench.codec import measure
from psrt.bench.codec_limits import (
    KINDS,
    Reading,
    gather_seconds,
    limit,
    limits,
    simulated,
)
from psrt.bench.figures import Summary
from psrt.codec import CODECS
from support.cases import each, pairs

N = 1 << 20
#: Encoding and decoding in seconds: as sign, as a codec that is slow, and one that decodes slowly.
TIMES = ((0.002, 0.0006), (0.011, 0.0025), (0.001, 0.004))
#: Names of codecs, and the bytes of their frames.
FRAMES = {"float16": 2 * N + 20, "int8": N + 4096 + 20, "top-k": 55_322}
every_kind = pytest.mark.parametrize("kind", KINDS)


def row(codec, nbytes, encode=0.002, decode=0.0006, n=N):
    return {
        "codec": codec, "n": n, "nbytes": nbytes,
        "send": Summary.of([encode]), "decode": Summary.of([decode]),
    }  # fmt: skip


@every_kind
@pytest.mark.parametrize(("workers", "name"), pairs([2, 4, 16], FRAMES, one_in=9))
def test_a_simulated_step_takes_what_the_formula_says(kind, workers, name):
    formula, flags = KINDS[kind]
    for encode, decode in TIMES:
        it = Reading(4 * N, FRAMES[name], encode, decode)
        for bandwidth in (1.25e7, 1.25e9, 2.5e10):  # of 100 Mbit/s, where bytes are all, and faster
            dense, coded = formula(it, workers, bandwidth)
            found = simulated(name, N, it, workers, bandwidth, flags)
            replies = workers * 4 * N / bandwidth if kind == "push" else 0.0
            assert found == pytest.approx((dense + replies, coded + replies), rel=0.02)


@each("workers", [2, 3])
def test_a_simulated_gathering_takes_what_the_formula_says(workers):
    for encode, decode in TIMES:
        it = Reading(4 * N, 49_172, encode, decode)
        for bandwidth in (1.25e7, 1.25e9, 2.5e10):
            due = gather_seconds(it, workers, bandwidth)
            found = simulated("demo", N, it, workers, bandwidth, KINDS["all_reduce"][1])
            assert found == pytest.approx(due, rel=0.02)


@every_kind
def test_at_the_limit_both_take_as_long(kind):
    formula, _ = KINDS[kind]
    for nbytes in FRAMES.values():
        for times in TIMES:
            it = Reading(4 * N, nbytes, *times)
            for workers in (2, 4, 64):
                dense, coded = formula(it, workers, limit(it, workers, formula))
                assert dense == pytest.approx(coded)


def test_what_saves_nothing_pays_nowhere():
    assert all(it["push"] == it["all_reduce"] == 0.0 for it in limits([row("int8", 5_000_000)]))


def test_every_codec_is_measured():
    measured = {row["codec"]: row for row in measure(n=1 << 12, rounds=1)}
    assert list(measured) == list(CODECS)
    for row in measured.values():
        assert all(row[it].median > 0 for it in ("copy", "encode", "send", "decode", "copies"))
