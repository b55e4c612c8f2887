import dataclasses
import json
import math
from contextlib import closing

import numpy as np
import pytest

from psrt.errors import ConfigError
from psrt.report import MetricsFile, read_metrics, seconds_to_accuracy


def test_records_come_back(tmp_path, record):
    path = tmp_path / "metrics.jsonl"
    other = dataclasses.replace(record, step=140, accuracy=None)
    with closing(MetricsFile(path)) as metrics:
        metrics.write(record)
        metrics.write(other)
    wanted = [dataclasses.asdict(record), dataclasses.asdict(other)]
    assert read_metrics(path) == [fields | fields.pop("more") for fields in wanted]


def test_a_line_can_be_read_at_once(tmp_path, record):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsFile(path)) as metrics:
        metrics.write(record)
        assert len(read_metrics(path)) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_what_json_does_not_know_is_null(tmp_path, record, value):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsFile(path)) as metrics:
        metrics.write(dataclasses.replace(record, loss=value))

    def refuse(word):
        raise AssertionError(word)

    [line] = path.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse)["loss"] is None


def test_numpy_numbers_are_numbers(tmp_path, record):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsFile(path)) as metrics:
        metrics.write(dataclasses.replace(record, loss=np.float32(0.5), step=np.int64(7)))
    [got] = read_metrics(path)
    assert (got["loss"], got["step"]) == (0.5, 7)


def test_an_unfinished_line_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"ste')
    assert read_metrics(path) == [{"step": 1}]


def test_an_empty_file_has_no_records(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("")
    assert read_metrics(path) == []


@pytest.mark.parametrize(("line", "says"), [("{'step': 1}", "not JSON"), ("[1]", "JSON object")])
def test_a_broken_line_is_named(tmp_path, line, says):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + "\n")
    with pytest.raises(ConfigError, match=f"line 2: .*{says}"):
        read_metrics(path)


def test_no_file(tmp_path):
    with pytest.raises(ConfigError, match=r"metrics.jsonl: cannot be read: No such file"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_seconds_to_accuracy():
    accuracies = [None, 0.5, 0.95, None, 0.99]
    run = [{"seconds": i, "accuracy": accuracy} for i, accuracy in enumerate(accuracies)]
    assert seconds_to_accuracy(run, 0.95) == 2.0
    assert seconds_to_accuracy(run, 0.96) == 4.0
    assert seconds_to_accuracy(run, 1.0) is None


def test_seconds_to_accuracy_are_those_of_the_evaluation():
    run = [{"seconds": 9.0, "evaluated_seconds": 1.0, "accuracy": 0.95}]
    assert seconds_to_accuracy(run, 0.95) == 1.0
    run[0]["evaluated_seconds"] = None  # a record without an evaluation of its own
    assert seconds_to_accuracy(run, 0.95) == 9.0
