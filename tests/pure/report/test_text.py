"""What is printed of runs and of histograms."""

from __future__ import annotations

import dataclasses
import math

import pytest

from psrt.report import Waiting, epoch_line, final_table
from psrt.report.histogram import histogram_lines
from psrt.report.simulation import Load, Simulation, simulation_text
from support.cases import each


def test_epoch_line_leaves_out_what_was_not_measured(record):
    assert epoch_line(record) == (
        "epoch  3  step  135  loss 0.2143  accuracy 94.7 %  1.8e+05 samples/s  staleness 1.9"
    )
    bare = dataclasses.replace(
        record, accuracy=None, samples_per_second=None, staleness_mean=None, loss=math.nan
    )
    assert epoch_line(bare) == "epoch  3  step  135  test loss 0.1900"
    assert epoch_line(dataclasses.replace(bare, test_loss=None)) == "epoch  3  step  135"


def test_final_table(summary):
    fields = dataclasses.asdict(summary)
    assert final_table(fields | {"dropped": 1234}, "runs/first").splitlines() == [
        "mode       ssp, 1 server, 2 workers",
        "accuracy   96.25 %",
        "speed      8,640 samples/s (4,320 samples in 0.50 s)",
        "staleness  mean 0.75, max 2 versions; --staleness limits steps ahead, not this",
        "dropped    1,234 gradients",
        "bytes      1.18 MiB sent, 999 B received",
        "files      runs/first",
    ]
    fields |= {
        "mode": "allreduce", "servers": 0, "test_accuracy": None,
        "staleness": {"mean": 0.0, "max": 0, "histogram": []},
    }  # fmt: skip
    assert final_table(fields).splitlines() == [
        "mode       allreduce, 2 workers",
        "test loss  0.2500",
        "speed      8,640 samples/s (4,320 samples in 0.50 s)",
        "bytes      1.18 MiB sent, 999 B received",
    ]


@each("size", [1, 11, 12, 13, 24, 25, 100, 119, 121, 1000, 98_765])
def test_every_value_of_a_histogram_is_in_one_line_of_few(size):
    assert histogram_lines([0] * size) == []
    lines = histogram_lines([1] * size)
    assert len(lines) <= 12
    ends = [tuple(map(int, line.split()[0].split("-"))) for line in lines]
    if size <= 12:
        assert [a for (a,) in ends] == list(range(size))
        return
    assert [a for a, _ in ends[1:]] == [b + 1 for _, b in ends[:-1]]
    assert ends[0][0] == 0
    assert ends[-1][1] >= size - 1
    shares = [float(line.split()[-2]) for line in lines]
    assert sum(shares) == pytest.approx(100, abs=0.6)


RUN = Simulation(
    workers=2, compute="constant:1", link="0:inf", server_apply="inf", codec_speed="1",
    crash=(), hosts=(), numerics=True, parameters=9, seed=7, events=12_345, seconds=2.5, crashed=(),
    servers=(Load(0.25, 0.5, 0.75),),
)  # fmt: skip


@pytest.fixture
def rows(summary):
    """Returns the lines of a run by what they begin with, given how long workers waited."""

    def told(shares, causes=(), **changes):
        nothing = {f"for_{it}": 0.0 for it in ("workers", "server", "messages", "reduce")}
        waiting = tuple(
            Waiting(i, 2.0 * share, share, **nothing | dict(causes), waiting_for={})
            for i, share in enumerate(shares)
        )
        run = dataclasses.replace(RUN, **changes)
        text = simulation_text(run, dataclasses.replace(summary, waiting=waiting), 0.5)
        lines = [line.split("  ", 1) for line in text.splitlines() if "  " in line]
        return {name: rest.strip() for name, rest in lines}

    return told


def test_events_time_and_waiting_by_cause(rows):
    told = rows([0.25, 0.75], {"for_workers": 0.25, "for_messages": 0.75})
    assert told["virtual time"] == "2.5 s"
    assert told["events"] == "12,345 in 0.50 s: 24,690 a second"
    assert told["waiting"] == "50.0 % of a worker's time, 75.0 % at most (worker 1)"
    assert told["waited for"] == "other workers 25.0 %, messages 75.0 %"
    told = rows([0.0])
    assert told["waiting"] == "0.0 % of a worker's time"
    assert not {"waited for", "stages busy", "crashed"} & {*told}


def test_how_busy_servers_and_stages_are(rows):
    told = rows([0.5])
    assert told["servers busy"] == "updates 25.0 %, link in 50.0 %, link out 75.0 %"
    told = rows([0.5], servers=(*RUN.servers, Load(0.75, 0.5, 0.25)), stages=(0.5, 0.25, 0.75))
    assert told["servers busy"] == (
        "updates 50.0 % (at most 75.0 %), link in 50.0 % (at most 50.0 %), "
        "link out 50.0 % (at most 75.0 %)"
    )
    assert told["stages busy"] == (
        "50.0 % of the time, stage 1 25.0 % at least, stage 2 75.0 % at most"
    )
    assert "servers busy" not in rows([0.5], servers=())
