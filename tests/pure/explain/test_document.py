"""The JSON of an explanation: its keys stay, its numbers are those of the trace."""

from __future__ import annotations

import json

import pytest

from psrt.collective import SCHEDULES
from psrt.explain.output import FORMAT, as_document
from support.explanations import EXAMPLE, explained


def test_a_ring_of_two():
    document = as_document(explained("ring", 2, 4))
    totals = document.pop("totals")
    own = [{"of": [0], "values": None}], [{"of": [1], "values": None}]
    both = {"of": [0, 1], "values": None}
    assert document == {
        "format": FORMAT,
        "name": "ring",
        "kind": "all-reduce",
        "op": "sum",
        "ranks": ["A", "B"],
        "order": None,
        "root": None,
        "elements": 4,
        "itemsize": 4,
        "workspace": 0,
        "chunks": [[0, 2], [2, 4]],
        "start": [own[0] * 2, own[1] * 2],
        "rounds": [
            {
                "round": 1,
                "steps": [
                    {
                        "from": rank, "to": 1 - rank, "send": [rank], "receive": [rank],
                        "combine": True, "carries": own[rank], "before": own[1 - rank],
                        "after": [both],
                    }
                    for rank in (0, 1)
                ],
            },
            {
                "round": 2,
                "steps": [
                    {
                        "from": rank, "to": 1 - rank, "send": [1 - rank], "receive": [1 - rank],
                        "combine": False, "carries": [both], "before": own[1 - rank],
                        "after": [both],
                    }
                    for rank in (0, 1)
                ],
            },
        ],
        "result": [{"0": both, "1": both}] * 2,
    }  # fmt: skip
    assert totals == {
        "rounds": 2,
        "messages": 4,
        "wires": 2,
        "bytes_sent": [16, 16],
        "bytes_received": [16, 16],
        "bytes_combined": [8, 8],
        "seconds": pytest.approx(2e-3 + 16e-6 + 8e-7),
        "costs": {"alpha": 1e-3, "beta": 1e-6, "gamma": 1e-7},
        "least": {"rounds": 1, "bytes_moved": 16.0, "bytes_combined": 8.0, "seconds": 1e-3},
        "ratio": pytest.approx(2.0168),
    }


def test_the_worked_example():
    document = as_document(explained("ring", example=EXAMPLE, order=(0, 1, 3, 2)))
    assert document["order"] == [0, 1, 3, 2]
    first = document["rounds"][0]["steps"][0]
    assert (first["from"], first["to"], first["send"]) == (0, 1, [0])
    assert first["carries"] == [{"of": [0], "values": [17]}]
    assert first["before"] == [{"of": [1], "values": [5]}]
    assert first["after"] == [{"of": [0, 1], "values": [22]}]
    for rank in document["result"]:
        assert [rank[str(i)]["values"] for i in range(4)] == [[37], [37], [36], [43]]


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_every_schedule_has_one_and_nothing_is_left_out(name):
    shown = explained(name, 12, 144)
    document = json.loads(json.dumps(as_document(shown)))
    steps = [step for found in document["rounds"] for step in found["steps"]]
    assert len(steps) == len(shown.trace.hops)
    assert document["totals"]["rounds"] == shown.trace.rounds
