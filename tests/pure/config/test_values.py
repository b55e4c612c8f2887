"""Texts that stand for amounts, as flags write them."""

from __future__ import annotations

import math

import pytest

from psrt.config.knobs import read_by_worker, read_flag
from psrt.config.values import BYTES, REAL, WHOLE, Number, form, read_numbers
from psrt.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), ("12", 12), ("1k", 1024), ("2KB", 2048), ("1MiB", 1 << 20), ("0.5 G", 1 << 29)],
)
def test_bytes(text, nbytes):
    assert read_flag("bytes", BYTES, text) == nbytes


@pytest.mark.parametrize("text", ["", "K", "-1", "1T", "1.5", "1e6", "2000G", "1:2", "x"])
def test_what_are_no_bytes(text):
    with pytest.raises(ConfigError, match=r"^bytes must be "):
        read_flag("bytes", BYTES, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "ranks must be a whole number, got 'x'"),
        ("0", "ranks must be at least 1, got 0"),
        ("10", "ranks must be at most 9, got 10"),
    ],
)
def test_a_flag_has_bounds(text, message):
    assert read_flag("ranks", WHOLE, " 9", min=1, max=9) == 9
    with pytest.raises(ConfigError) as caught:
        read_flag("ranks", WHOLE, text, min=1, max=9)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["1e9", "-1", "inf", "nan", "s"])
def test_seconds(text):
    assert read_flag("alpha", REAL, "2.5e-5", min=0, exclusive_max=1e9) == 2.5e-5
    with pytest.raises(ConfigError, match=r"^alpha must be "):
        read_flag("alpha", REAL, text, min=0, exclusive_max=1e9)


LINK = (Number("LATENCY_S", 0, 1e6), Number("BYTES_PER_S", 1, math.inf))
SLOW = (Number("FACTOR", 1, 1e6), Number("STEP", 0, 2**63 - 1, whole=True, default=0))


def test_numbers_with_colons_between():
    assert form(SLOW) == "FACTOR[:STEP]"
    assert read_numbers(LINK, "0:inf") == (0.0, math.inf)
    assert read_numbers(SLOW, "2") == read_numbers(SLOW, "2:0") == (2.0, 0)


@pytest.mark.parametrize(
    "text", ["", "1", "1:2:3", "1:0.5", "-1:2", "nan:2", "1:nan", "a:b", "1_0:2"]
)
def test_what_are_no_such_numbers(text):
    with pytest.raises(ValueError, match=r"^must be LATENCY_S:BYTES_PER_S, LATENCY_S from 0 to "):
        read_numbers(LINK, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1", "must be WORKER:TIMES"),
        ("1:", "must be WORKER:TIMES"),
        ("1:3,", "must be WORKER:TIMES"),
        ("1:-3", "must be WORKER:TIMES"),
        ("1:0", "must be WORKER:TIMES, WORKER from 0, TIMES from 0.01 to 1000, got '1:0'"),
        ("4:3", "names worker 4 that does not exist, the last is 3"),
        ("1:3,1:2", "names worker 1 twice"),
    ],
)
def test_numbers_of_workers(text, words):
    times = Number("TIMES", 0.01, 1000)
    assert read_by_worker("slow", times, ["1:3, 2:1.5"], 4) == {1: 3.0, 2: 1.5}
    with pytest.raises(ConfigError, match=f"^slow {words}"):
        read_by_worker("slow", times, [text], 4)
