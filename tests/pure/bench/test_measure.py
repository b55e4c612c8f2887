"""Interleaving, summaries and tables, on a clock of our own."""

import json

import numpy as np
import pytest

from psrt.bench.measure import (
    Summary,
    format_table,
    interleave,
    peak_growth,
    ratios,
    to_json,
    write_json,
)
from psrt.errors import ConfigError


class Clock:
    """Seconds that pass only where a candidate says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds


def test_interleaving_takes_turns_and_times_each_call():
    clock, calls = Clock(), []

    def candidate(name, seconds):
        def run():
            calls.append(name)
            clock.spend(seconds)

        return run

    candidates = {name: candidate(name, s) for name, s in (("a", 1.0), ("b", 2.0), ("c", 4.0))}
    seconds = interleave(candidates, 3, warmup=1, clock=clock)
    assert seconds == {"a": [1.0] * 3, "b": [2.0] * 3, "c": [4.0] * 3}
    assert [calls[i : i + 3] for i in range(0, 12, 3)] == [
        ["c", "b", "a"],  # the warm-up
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["a", "b", "c"],
    ]


def test_summary_is_median_and_quartiles():
    assert Summary.of([9.0, 1.0, 5.0, 3.0, 7.0]) == Summary(5.0, 3.0, 7.0, 5)
    assert Summary.of([2.0]) == Summary(2.0, 2.0, 2.0, 1)


def test_ratios_are_of_one_round():
    # The machine slows down tenfold half way; a ratio of medians would not be 2.
    assert ratios([2.0, 2.0, 20.0, 20.0], [1.0, 1.0, 10.0, 10.0]) == Summary(2.0, 2.0, 2.0, 4)


def test_peak_growth_counts_what_is_held_for_a_moment():
    assert peak_growth(lambda: np.zeros(50_000, np.uint8)) >= 50_000
    kept = {}
    assert peak_growth(lambda: kept.setdefault("array", np.zeros(50_000, np.uint8))) < 1 << 20
    buffer = np.zeros(50_000, np.uint8)
    assert peak_growth(lambda: buffer.fill(1)) < 2000


def test_table_aligns_names_left_and_numbers_right():
    got = format_table(["name", "ms"], [["a", 1], ["longer", 1000]]).splitlines()
    assert got == ["name      ms", "------  ----", "a          1", "longer  1000"]


def test_json_has_summaries_as_objects(tmp_path):
    rows = [{"name": "a", "seconds": Summary(2.0, 1.0, 3.0, 9)}]
    path = tmp_path / "bench.json"
    write_json(path, rows)
    assert json.loads(path.read_text()) == [
        {"name": "a", "seconds": {"median": 2.0, "low": 1.0, "high": 3.0, "readings": 9}}
    ]
    with pytest.raises(TypeError, match="ndarray"):
        to_json({"array": np.zeros(2)})


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match="cannot write"):
        write_json(tmp_path / "missing" / "bench.json", [])
