"""Amounts as flags write them."""

from __future__ import annotations

import pytest

from psrt.errors import ConfigError
from psrt.explain.units import read_bytes, read_count, read_slow


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), ("12", 12), ("1k", 1024), ("2KB", 2048), ("1MiB", 1 << 20), ("0.5 G", 1 << 29)],
)
def test_bytes(text, nbytes):
    assert read_bytes("bytes", text) == nbytes


@pytest.mark.parametrize("text", ["", "K", "-1", "1T", "1.5", "1e6", "2000G", "1:2", "x"])
def test_what_are_no_bytes(text):
    with pytest.raises(ConfigError, match=r"^bytes must be "):
        read_bytes("bytes", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "ranks must be a whole number, got 'x'"),
        ("-1", "ranks must be a whole number, got '-1'"),
        ("0", "ranks must be 1 to 9, got 0"),
        ("10", "ranks must be 1 to 9, got 10"),
    ],
)
def test_counts(text, message):
    assert read_count("ranks", " 9", least=1, most=9) == 9
    with pytest.raises(ConfigError) as caught:
        read_count("ranks", text, least=1, most=9)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1", "must be WORKER:TIMES"),
        ("1:", "must be WORKER:TIMES"),
        ("1:3,", "must be WORKER:TIMES"),
        ("1:-3", "must be WORKER:TIMES"),
        ("4:3", "names worker 4 that is not there, the last is 3"),
        ("1:3,1:2", "names worker 1 twice"),
        ("1:0", "must be 0.01 to 1000 times, got 0"),
    ],
)
def test_slow_workers(text, words):
    with pytest.raises(ConfigError, match=f"^slow {words}"):
        read_slow(text, 4)
