"""The summary: its promised fields, where it was made, figures of users, and what is printed."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

import psrt
from psrt import ConfigError, TrainConfig
from psrt.config.modes import AllReduce
from psrt.core.stats import Stats
from psrt.history.check.run import check_run
from psrt.report import (
    Counts,
    Gap,
    Record,
    Staleness,
    Summary,
    Waiting,
    epoch_line,
    final_table,
    parameters_sha256,
)
from psrt.report import environment as environments
from psrt.report.environment import WORDS, ended, environment, environment_rows
from psrt.report.environment import environment_differences as differences
from psrt.report.histogram import histogram_lines
from psrt.report.simulation import Load, Simulation, simulation_text
from psrt.runtime.problem_rules import TAKEN
from psrt.views.report.page import page_of
from psrt.views.runs.comparison import compare
from psrt.views.runs.metrics_csv import write_csv
from support.cases import each
from support.least_squares import UnevenSquares

NAMED = (
    "mode workers servers ranks hosts mpi seed epochs steps "
    "allreduce allreduce_why shards_per_server shards_why buckets overlap samples seconds "
    "samples_per_second train_loss test_loss test_accuracy parameters parameters_sha256 updates "
    "dropped torn staleness skew_max skew waiting missing clock_spread_max bytes_sent "
    "bytes_received frame_bytes framed_bytes averages tuned graph_averages cut_bytes_sent "
    "cut_bytes_received model_cut memory stopped test_figures environment"
)


def test_json_has_the_promised_fields_and_comes_back(summary):
    values = json.loads(summary.to_json())
    assert list(values) == NAMED.split()
    staleness = values["staleness"]
    assert (staleness["mean"], staleness["max"], staleness["histogram"]) == (0.75, 2, [2, 1, 1])
    assert staleness["by_worker"][1] == {"mean": 1.5, "max": 2, "histogram": {"1": 1, "2": 1}}
    assert staleness["gap"] == {"mean": 0.25, "max": 0.5, "count": 2}
    assert values["skew"]["histogram"] == {"0": 130, "1": 5}
    assert values["waiting"][0]["waiting_for"] == {"1": 0.05}
    assert values["parameters"] == 9
    assert Summary.from_json(json.dumps(values | {"color": "blue"})) == summary
    text = dataclasses.replace(summary, test_accuracy=None, train_loss=math.nan).to_json()
    back = Summary.from_json(text)
    assert back.test_accuracy is back.train_loss is None


def test_what_is_no_summary_is_one_line(summary):
    values = json.loads(summary.to_json())
    del values["staleness"]
    with pytest.raises(ConfigError, match="summary lacks 'staleness'"):
        Summary.from_json(json.dumps(values))
    for text in ("nonsense", "[]", '{"staleness": 4}'):
        with pytest.raises(ConfigError, match="summary"):
            Summary.from_json(text)


def test_sha256_of_the_float32_bytes():
    theta = np.array([1.0, -2.5, 0.0], dtype=np.float32)
    want = hashlib.sha256(struct.pack("<3f", 1.0, -2.5, 0.0)).hexdigest()
    assert parameters_sha256(theta) == want
    assert parameters_sha256(np.repeat(theta, 2)[::2]) == want
    assert parameters_sha256(theta[::-1]) != want


# --- what ranks counted -------------------------------------------------------------------------

SHARDS = [
    Stats(shard=0, staleness=[{2: 1, 0: 3}, {1: 4}], gaps=(2, 0.5, 0.4)),
    Stats(shard=1, staleness=[{0: 4}, {0: 1, 7: 3}]),
]


def test_staleness_by_worker_by_shard_and_in_all():
    staleness = Staleness.of_ranks(SHARDS)
    assert staleness.histogram == (8, 4, 1, 0, 0, 0, 0, 3)
    assert staleness.by_worker[1] == Counts(25 / 8, 7, {0: 1, 1: 4, 7: 3})
    assert staleness.by_shard[0] == Counts.of([(0, 3), (1, 4), (2, 1)])
    assert staleness.gap == Gap(0.25, 0.4, 2)
    nothing = [Staleness.of(np.array(it, np.int64)) for it in ([], [0], [0, 0])]
    assert nothing == [Staleness.of_ranks([Stats(worker=0)])] * 3 == [Staleness(0.0, 0, ())] * 3


# --- when, where and by what it was made ---------------------------------------------------------


def test_a_run_says_when_where_and_by_what_it_was_made(monkeypatch, summary):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    found = ended(environment("Open MPI 5.0"))
    assert set(WORDS) < set(found)
    assert found["started"] <= found["ended"]
    assert found["argv"] == sys.argv
    assert (found["numpy"], found["mpi"]) == (np.__version__, "Open MPI 5.0")
    assert found["blas_variables"]["OPENBLAS_CORETYPE"] == "Haswell"
    assert all(found[name] for name in ("blas", "host", "processor"))
    assert found["folder"] == os.getcwd()
    assert "secret" not in json.dumps(found)
    told = dataclasses.replace(summary, environment=found)
    assert told == summary, "it is no difference between runs"
    assert Summary.from_json(told.to_json()).environment == found


def test_the_commit_is_that_of_the_folder_and_says_if_files_differ_from_it(tmp_path):
    def commit():
        environments._commit.cache_clear()
        return environments._commit(str(tmp_path))

    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    assert commit() == ""
    (tmp_path / "train.py").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    before = commit()
    assert len(before) == 40
    (tmp_path / "train.py").write_text("2")
    assert commit() == f"{before} with changes"


def test_what_differs_is_a_phrase_each_and_steers_no_terminal():
    here = environment("")
    assert differences(here, ended(here)) == []
    there = here | {"processor": "Z80\x1b[2J", "argv": ["other"]}
    (phrase,) = differences(here, there)
    assert phrase == f"processor {here['processor']} instead of Z80?[2J"
    assert differences(here, {}) == [], "of which nothing is known"
    assert dict(environment_rows({"argv": ["a", "b"]})) == {"command": "a b"}


# --- what evaluate() returns beside loss and accuracy -------------------------------------------

SERIAL = TrainConfig(mode="serial", epochs=2, lr=0.05)


class Measured(UnevenSquares):
    """Finds figures of its own."""

    found = {"f1": 0.25, "rmse": np.float32(1.5)}  # noqa: RUF012

    def evaluate(self, theta):
        return super().evaluate(theta) | self.found


def test_users_figures_are_kept_logged_and_printed(tmp_path):
    said, folders = [], [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        config = TrainConfig(mode="async", epochs=2, lr=0.05, out=str(folder), record=True)
        run = psrt.simulate(config, Measured(), workers=3)
        assert check_run(folder).ok
    text = (folders[0] / "metrics.jsonl").read_text()
    evaluated = [it for it in map(json.loads, text.splitlines()) if it["test_loss"] is not None]
    assert evaluated
    assert text.count('"f1": 0.25') == len(evaluated)
    assert run.summary.test_figures == {"f1": 0.25, "rmse": 1.5}
    assert Summary.from_json(run.summary.to_json()) == run.summary
    assert [it.figures for it in run.records if it.figures][-1] == {"f1": 0.25, "rmse": 1.5}
    assert "f1  " in final_table(json.loads(run.summary.to_json()))
    psrt.run(SERIAL, Measured(), say=said.append)
    assert any("f1 0.2500  rmse 1.5000" in line for line in said)
    table = io.StringIO()
    write_csv(folders, table)
    assert {"f1", "rmse"} <= set(table.getvalue().splitlines()[0].split(","))
    compared = compare(folders)
    assert compared.outcome["test f1"] == [0.25, 0.25]
    assert "test f1 0.25;" in " ".join(" ".join(compared.lines()).split()), "said once"
    assert "test rmse" in page_of([str(it) for it in folders])


@each("found", [{sorted(TAKEN)[0]: 1.0}, {"": 1.0}, {"f1": "high"}, {"f1": np.ones(2)}])
def test_a_figure_is_a_number_and_its_name_is_free(found):
    problem = Measured()
    problem.found = found
    with pytest.raises(ConfigError, match=r"a figure the name .*, expected text|expected a number"):
        psrt.run(SERIAL, problem)
    own = {it.name for it in dataclasses.fields(Record)} - {"loss", "accuracy"}
    assert own <= TAKEN, "every column of the metrics"


# --- what is printed ---------------------------------------------------------------------------


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
        "staleness  mean 0.75, max 2 versions (ssp limits steps ahead, not versions)",
        "dropped    1,234 gradients",
        "bytes      1.18 MiB sent, 999 B received",
        "files      runs/first",
    ]
    fields |= {
        "mode": "allreduce", "servers": 0, "test_accuracy": None,
        "staleness": {"mean": 0.0, "max": 0, "histogram": []},
    }  # fmt: skip
    assert final_table(fields, mode=AllReduce()).splitlines() == [
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
    assert told["events"] == "12,345 in 0.50 s: 24,690 per second"
    assert told["waiting"] == "50.0 % of a worker's time, at most 75.0 % (worker 1)"
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
        "50.0 % of the time, least 25.0 % (stage 1), most 75.0 % (stage 2)"
    )
    assert "servers busy" not in rows([0.5], servers=())
