"""Codecs on one core: their speed, size and error. No MPI."""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from psrt.bench.figures import Column, Row, Summary, spread
from psrt.codec import CODECS, Codec, Encoder, Matrix
from psrt.codec.randomness import draws
from psrt.core.arrays import ITEMSIZE, Bytes, Vector
from psrt.core.progress import PROGRESS

#: Knobs other than the defaults: the elements above a threshold depend on the numbers, here 1 %.
_KNOBS: dict[str, dict[str, Any]] = {"threshold": {"threshold": 2.5758}}
#: Squared error over the squared length of normal numbers, as published (docs/compression.md
#: names the papers) or by the codec's definition.
_ERRORS: dict[str, float] = {
    "qsgd": 0.44,
    "ternary": 2.15,
    "ternary-base3": 2.15,
    "sign": (1 - 2 / math.pi) * (1 - 1 / 1024),
    "top-k": 0.920,
    "random-k": 99.0,
}


def measure(*, n: int = 1 << 20, rounds: int = 9) -> list[dict[str, Any]]:
    """Measure every codec on normal numbers, its candidates taking turns with ``np.copyto``.

    Args:
        n: elements.
        rounds: number of turns.

    Returns:
        A row for each codec, times in seconds.
    """
    vector = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    codecs = PROGRESS.each(list(CODECS), "measuring", "codec")
    return [_row(name, vector, rounds) for name in codecs]


def _row(name: str, vector: Vector, rounds: int) -> dict[str, Any]:
    n, knobs = vector.size, _KNOBS.get(name, {})
    side = math.isqrt(n)
    matrices = [Matrix(0, side, side)] if side else []
    row = replace(CODECS[name], **knobs)
    codec, sender = row.codec(n, matrices=matrices), row.encoder(n, matrices=matrices)
    for it in (codec, sender):
        it.begin_epoch(1 << 20)  # after every warm-up
    generator, out = draws(0, 0, 0, 0), np.empty_like(vector)
    others = itertools.cycle([vector, *(np.roll(vector, n // 4 * i) for i in (1, 2, 3))])
    # The error of a codec with a state is that of its first vector.
    frame = codec.encode(vector, generator).copy()
    codec.decode(frame, out)
    lost = out.astype(np.float64) - vector
    error = float((lost @ lost) / np.dot(vector.astype(np.float64), vector))
    seconds = _race(_candidates(codec, sender, vector, others, frame, generator, out), rounds)
    return {
        "codec": name,
        "n": n,
        "nbytes": frame.size,
        "error": error,
        "expected": _ERRORS.get(name),
        **seconds,
    }


def _candidates(
    codec: Codec,
    sender: Encoder,
    vector: Vector,
    others: Iterator[Vector],
    frame: Bytes,
    generator: np.random.Generator,
    out: Vector,
) -> dict[str, Callable[[], object]]:
    """Return the calls to time, by name; those that keep something back get vectors in turn."""
    return {
        "copy": lambda: np.copyto(out, vector),
        "encode": lambda: codec.encode(vector, generator),
        "send": lambda: sender.encode(next(others), generator),
        "decode": lambda: codec.decode(frame, out),
    }


def _race(candidates: dict[str, Callable[[], object]], rounds: int) -> dict[str, Any]:
    """Return the seconds of each candidate; a turn counts as the best of three calls.

    ``copies`` is the time of encoding and decoding in units of a copy, in the same turns.
    """
    readings: dict[str, list[float]] = {name: [] for name in (*candidates, "copies")}
    for call in candidates.values():
        call()
    gc.collect()
    for _ in range(rounds):
        for name, call in candidates.items():
            readings[name].append(min(map(_seconds, [call] * 3)))
        copy, both = readings["copy"][-1], readings["encode"][-1] + readings["decode"][-1]
        readings["copies"].append(both / copy)
    return {name: Summary.of(taken) for name, taken in readings.items()}


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _gigabytes(key: str) -> Callable[[Row], str]:
    return lambda row: f"{ITEMSIZE * row['n'] / row[key].median / 1e9:.2f}"


COLUMNS: list[Column] = [
    ("codec", "codec"),
    ("encode GB/s", _gigabytes("encode")),
    ("with feedback", _gigabytes("send")),
    ("decode GB/s", _gigabytes("decode")),
    ("x copyto", spread("copies", digits=1)),
    ("bytes", "nbytes"),
    ("times smaller", lambda row: f"{ITEMSIZE * row['n'] / row['nbytes']:.1f}"),
    ("error", lambda row: f"{row['error']:.3g}"),
    ("expected", lambda row: "-" if row["expected"] is None else f"{row['expected']:.3g}"),
]
