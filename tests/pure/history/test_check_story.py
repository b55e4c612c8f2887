"""What a violation says: which rule, with the numbers, and the events that led there."""

from __future__ import annotations

import json
import math

from psrt.history.check import RULES, check
from support.histories import written

GATE = """
    READ w0 c0 v0
    READ w1 c0 v0
    PUSH w0 c0 v0
    PUSH w1 c0 v0
    RECEIVE w0 c0 v0
    APPLY w0 c0 v1 t0
    REPLY w0 c1 v1
    READ w0 c1 v1 t0
    RECEIVE w1 c0 v0
    APPLY w1 c0 v2 t1
    REPLY w1 c1 v2
    READ w1 c1 v2 t1
    LEAVE w0 c1
    LEAVE w1 c1
    LEFT w0 c1
    LEFT w1 c1
    FINAL v2
"""

#: Of that run.
SUMMARY = {
    "mode": "async", "workers": 2, "servers": 1, "ranks": 3, "hosts": 1, "mpi": "", "seed": 0,
    "epochs": 0, "steps": 1, "allreduce": None, "allreduce_why": "", "shards_per_server": 1,
    "shards_why": "", "buckets": 0, "overlap": False, "samples": 2, "seconds": 0.013,
    "samples_per_second": 2 / 0.013,
    "train_loss": 0.5, "test_loss": 0.5, "test_accuracy": None, "parameters": 1,
    "parameters_sha256": "", "updates": 2, "dropped": 0, "torn": 0, "skew_max": 0,
    "skew": {"mean": 0, "max": 0, "histogram": {"0": 2}},
    "staleness": {
        "mean": 0.5, "max": 1, "histogram": [1, 1],
        "by_worker": [
            {"mean": 0, "max": 0, "histogram": {"0": 1}},
            {"mean": 1, "max": 1, "histogram": {"1": 1}},
        ],
        "by_shard": [{"mean": 0.5, "max": 1, "histogram": {"0": 1, "1": 1}}],
        "gap": {"mean": 0, "max": 0, "count": 0},
    },
    "waiting": [
        {"worker": 0, "seconds": 0.005, "share": 5 / 12, "for_workers": 0.0, "for_server": 0.005,
         "for_messages": 0.0, "for_reduce": 0.0, "waiting_for": {}},
        {"worker": 1, "seconds": 0.008, "share": 8 / 13, "for_workers": 0.006, "for_server": 0.001,
         "for_messages": 0.001, "for_reduce": 0.0, "waiting_for": {"0": 0.006}},
    ],
    "missing": [], "clock_spread_max": 1, "bytes_sent": 400, "bytes_received": 400,
    "frame_bytes": 0, "framed_bytes": 0, "averages": None, "graph_averages": None,
    "cut_bytes_sent": 0, "cut_bytes_received": 0, "model_cut": None, "memory": None,
    "test_figures": {}, "environment": {},
}  # fmt: skip


def test_a_worker_that_passed_the_gate():
    outcome = check(written(GATE, "ssp", workers=2, staleness=0))
    assert outcome.lines() == [
        "ssp (staleness 0), 2 workers and 1 shard: 17 events in 0.015 s",
        f"violated: progress: {RULES['progress']}",
        "  shard 0 answered worker 0 at clock 0 with clock 1, although worker 1 had finished 0 "
        "steps: 1 ahead, the most is 0",
        "        0.004000 s  RECEIVE     shard 0  worker 0  clock 0  version 0  samples 1  "
        "progress 0",
        "        0.005000 s  APPLY       shard 0  worker 0  clock 0  version 1  tau 0  samples 1  "
        "rate 0.1",
        "  >     0.006000 s  REPLY       shard 0  worker 0  clock 1  version 1",
        "        0.008000 s  RECEIVE     shard 0  worker 1  clock 0  version 0  samples 1  "
        "progress 0",
    ]


def test_the_same_for_programs():
    document = check(written(GATE, "ssp", workers=2, staleness=0)).document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert (document["ok"], document["mode"], document["events"]) == (False, "ssp", 17)
    violation = document["violation"]
    assert violation["rule"] == "progress"
    assert [event["kind"] for event in violation["events"]] == [
        "RECEIVE",
        "APPLY",
        "REPLY",
        "RECEIVE",
    ]
    assert violation["events"][2] == {
        "time": 0.006, "kind": "REPLY", "shard": 0, "worker": 0, "clock": 1, "version": 1,
    }  # fmt: skip


def test_the_first_of_several_is_told():
    text = GATE.replace("REPLY w0 c1 v1", "REPLY w0 c1 v1 m0").replace("v2 t1", "v2 t0", 1)
    both = check(written(text, "ssp", workers=2, staleness=0)).violation
    assert (both.rule, both.time) == ("progress", 0.006)
    wide = check(written(text, "ssp", workers=2, staleness=1)).violation
    assert (wide.rule, wide.time) == ("staleness", 0.009)


def test_what_never_happened_has_no_time():
    outcome = check(written(GATE.replace("FINAL v2", ""), "async", workers=2))
    assert outcome.violation.event is None
    assert math.isinf(outcome.violation.time)
    assert outcome.lines()[2:] == [
        "  shard 0, at version 2: never written",
        "        0.015000 s  LEFT        shard 0  worker 1  clock 1",
    ]


def test_times_that_are_none_can_be_told_of():
    history = written(GATE, "async", workers=2)
    for number in (math.nan, math.inf):
        history.shards[0]["time"][3] = number
        outcome = check(history)
        assert outcome.violation.rule == "well-formed events"
        assert any(f"at time {number}" in line for line in outcome.lines())
        json.dumps(outcome.document(), allow_nan=False)


def test_a_death_is_no_offence_but_in_a_real_run():
    text = GATE.replace("LEAVE w1 c1\n", "\n")
    scheduled = written(text, "async", workers=2, crashes=(0, 1))
    assert check(scheduled).ok
    assert check(scheduled, crashed=[1]).ok
    for outcome in (
        check(scheduled, crashed=[0]),
        check(written(text, "async", workers=2)),
        check(written(text, "async", workers=2), crashed=[1]),
        check(written(text, "async", workers=2, crashes=(0,))),
        check(written(text, "async", workers=2, simulated=False)),
    ):
        assert outcome.violation.rule == "membership"
        assert "worker 1 never said that it leaves" in outcome.violation.text


def test_a_summary_that_tells_otherwise():
    history = written(GATE, "async", workers=2)
    summary = SUMMARY
    assert check(history, summary=summary).ok
    good, by_worker = summary["staleness"], summary["staleness"]["by_worker"]
    for text, changes in (
        ("mode", {"mode": "ssp"}),
        ("workers", {"workers": 3}),
        ("updates", {"updates": 1}),
        ("dropped", {"dropped": None}),
        ("seed: the summary says False", {"seed": False}),
        ("staleness histogram: the summary lacks it", {"staleness": []}),
        ("histogram", {"staleness": good | {"histogram": [2]}}),
        ("histogram at 1", {"staleness": good | {"histogram": [1, 2]}}),
        ("by_worker at 0", {"staleness": good | {"by_worker": by_worker[::-1]}}),
        ("by_shard at 0", {"staleness": good | {"by_shard": [{"histogram": {"0": 2}}]}}),
        (
            "by_shard: the summary says 3, expected a list of 1",
            {"staleness": good | {"by_shard": 3}},
        ),
    ):
        outcome = check(history, summary=summary | changes)
        assert outcome.violation.rule == "summary"
        assert text in outcome.violation.text
    for name in summary:
        left = {key: value for key, value in summary.items() if key != name}
        assert f"{name}: the summary lacks it" in check(history, summary=left).violation.text
