import dataclasses
import hashlib
import json
import math
import struct

import numpy as np
import pytest

from psrt.errors import ConfigError
from psrt.report import Staleness, Summary, parameters_sha256

NAMED = (
    "mode workers servers ranks hosts mpi seed epochs steps "
    "allreduce allreduce_why shards_per_server shards_why buckets overlap samples seconds "
    "samples_per_second train_loss test_loss test_accuracy parameters parameters_sha256 updates "
    "dropped torn staleness skew_max skew waiting missing clock_spread_max bytes_sent "
    "bytes_received frame_bytes framed_bytes averages graph_averages cut_bytes_sent "
    "cut_bytes_received model_cut memory test_figures environment"
)


def test_json_has_the_promised_fields(summary):
    values = json.loads(summary.to_json())
    assert list(values) == NAMED.split()
    staleness = values["staleness"]
    assert (staleness["mean"], staleness["max"], staleness["histogram"]) == (0.75, 2, [2, 1, 1])
    assert staleness["by_worker"][1] == {"mean": 1.5, "max": 2, "histogram": {"1": 1, "2": 1}}
    assert staleness["gap"] == {"mean": 0.25, "max": 0.5, "count": 2}
    assert values["skew"]["histogram"] == {"0": 130, "1": 5}
    assert values["waiting"][0]["waiting_for"] == {"1": 0.05}
    assert values["parameters"] == 9


def test_json_round_trip(summary):
    assert Summary.from_json(summary.to_json()) == summary


def test_what_was_not_measured_is_null(summary):
    text = dataclasses.replace(summary, test_accuracy=None, train_loss=math.nan).to_json()
    back = Summary.from_json(text)
    assert back.test_accuracy is None
    assert back.train_loss is None


def test_unknown_fields_are_passed_over(summary):
    values = json.loads(summary.to_json()) | {"color": "blue"}
    assert Summary.from_json(json.dumps(values)) == summary


@pytest.mark.parametrize("field", ["mode", "staleness", "bytes_received"])
def test_a_lacking_field_is_named(summary, field):
    values = json.loads(summary.to_json())
    del values[field]
    with pytest.raises(ConfigError, match=f"summary lacks '{field}'"):
        Summary.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "3", '{"staleness": 4}'])
def test_text_that_is_no_summary(text):
    with pytest.raises(ConfigError, match="summary"):
        Summary.from_json(text)


def test_staleness_counts():
    got = Staleness.of(np.array([0, 4, 0, 4, 0, 0]))
    assert got == Staleness(mean=2.0, max=3, histogram=(0, 4, 0, 4))


@pytest.mark.parametrize("counts", [[], [0], [0, 0]])
def test_staleness_without_pushes(counts):
    assert Staleness.of(np.array(counts, dtype=np.int64)) == Staleness(0.0, 0, ())


def test_sha256_of_the_float32_bytes():
    theta = np.array([1.0, -2.5, 0.0], dtype=np.float32)
    want = hashlib.sha256(struct.pack("<3f", 1.0, -2.5, 0.0)).hexdigest()
    assert parameters_sha256(theta) == want
    assert parameters_sha256(np.repeat(theta, 2)[::2]) == want
    assert parameters_sha256(theta[::-1]) != want
