"""Summaries, tables and JSON."""

import json

import numpy as np
import pytest

from psrt.bench.figures import Summary, format_table, spread, table, to_json, write_json
from psrt.errors import ConfigError


def test_summary_is_median_and_quartiles():
    assert Summary.of([9.0, 1.0, 5.0, 3.0, 7.0]) == Summary(5.0, 3.0, 7.0, 5)
    assert Summary.of([2.0]) == Summary(2.0, 2.0, 2.0, 1)


def test_table_aligns_names_left_and_numbers_right():
    got = format_table(["name", "ms"], [["a", 1], ["longer", 1000]]).splitlines()
    assert got == ["name      ms", "------  ----", "a          1", "longer  1000"]


def test_a_column_is_a_key_or_what_a_function_makes_of_a_row():
    rows = [{"name": "a", "s": Summary(0.002, 0.001, 0.003, 9)}, {"name": "b", "s": None}]
    lines = table(rows, [("name", "name"), ("ms", spread("s", 1e3, 1))]).splitlines()
    assert [line.split() for line in lines[2:]] == [["a", "2.0", "[1.0", "..", "3.0]"], ["b", "-"]]
    assert table([], [("name", "name")]) == "name\n----"


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
