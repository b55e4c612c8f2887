"""What is said of a run in virtual time, and kept of it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from psrt.report import Waiting
from psrt.report.simulation import Load, Simulation, simulation_text

RUN = Simulation(
    workers=2, compute="constant:1", link="0:inf", server_apply="inf", codec_speed="1",
    crash=(), hosts=(), numerics=True, parameters=9, seed=7, events=12_345, seconds=2.5, crashed=(),
    servers=(Load(0.25, 0.5, 0.75),),
)  # fmt: skip


def rows(run, summary, wall_seconds=0.5):
    """Return the lines by what they begin with."""
    lines = simulation_text(run, summary, wall_seconds).splitlines()
    return dict(line.split("  ", 1) for line in lines if "  " in line)


@pytest.fixture
def waiting(summary):
    def replace(*shares, **causes):
        found = [
            Waiting(i, 2.0 * share, share, **{"for_workers": 0.0, "for_server": 0.0,
                    "for_messages": 0.0, "for_reduce": 0.0} | causes, waiting_for={})
            for i, share in enumerate(shares)
        ]  # fmt: skip
        return dataclasses.replace(summary, waiting=tuple(found))

    return replace


def test_events_and_time(summary, waiting):
    told = rows(RUN, waiting(0.5))
    assert told["virtual time"].strip() == "2.5 s"
    assert told["events"].strip() == "12,345 in 0.50 s: 24,690 a second"


def test_waiting_by_cause(waiting):
    told = rows(RUN, waiting(0.25, 0.75, for_workers=0.25, for_messages=0.75))
    assert told["waiting"].strip() == "50.0 % of a worker's time, 75.0 % at most (worker 1)"
    assert told["waited for"].strip() == "other workers 25.0 %, messages 75.0 %"
    told = rows(RUN, waiting(0.0))
    assert told["waiting"].strip() == "0.0 % of a worker's time"
    assert "waited for" not in told


def test_servers(waiting):
    told = rows(RUN, waiting(0.5))
    assert told["servers busy"].strip() == "updates 25.0 %, link in 50.0 %, link out 75.0 %"
    two = dataclasses.replace(RUN, servers=(*RUN.servers, Load(0.75, 0.5, 0.25)))
    assert rows(two, waiting(0.5))["servers busy"].strip() == (
        "updates 50.0 % (at most 75.0 %), link in 50.0 % (at most 50.0 %), "
        "link out 50.0 % (at most 75.0 %)"
    )
    assert "servers busy" not in rows(dataclasses.replace(RUN, servers=()), waiting(0.5))


def test_stages(waiting):
    assert "stages busy" not in rows(RUN, waiting(0.5))
    cut = dataclasses.replace(RUN, stages=(0.5, 0.25, 0.75))
    assert rows(cut, waiting(0.5))["stages busy"].strip() == (
        "50.0 % of the time, stage 1 25.0 % at least, stage 2 75.0 % at most"
    )


def test_crashes(waiting):
    assert "crashed" not in rows(RUN, waiting(0.5))
    crash = tuple((worker, worker / 2) for worker in range(11))
    dead = dataclasses.replace(
        RUN, crash=crash, crashed=tuple(range(1, 11)), crashed_at=tuple(i / 2 for i in range(1, 11))
    )
    told = rows(dead, waiting(0.5))["crashed"].strip()
    assert told.startswith("worker 1 at 0.5 s, worker 2 at 1 s, ")
    assert told.endswith("worker 8 at 4 s, 2 more")


def test_as_json():
    text = RUN.to_json()
    assert text.endswith("}\n")
    values = json.loads(text)
    assert values["servers"] == [{"apply": 0.25, "link_in": 0.5, "link_out": 0.75}]
    assert set(values) == {field.name for field in dataclasses.fields(Simulation)}
