"""What ranks count, one by one and together."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import psrt
from psrt.config import TrainConfig
from psrt.job.virtual import simulate
from psrt.report.summary import FIELDS
from psrt.runtime.checksum import fingerprint
from psrt.stats import Stats

CONFIG = TrainConfig(dataset="synthetic:40x4x2", hidden=(3,), batch_size=5, epochs=2)
ROOT = Path(psrt.__file__).parents[1]


def stats_of(run):
    return [role.stats for role in (*run.servers, *run.workers)]


def test_numbers_add_up_or_the_largest_counts():
    """A figure that merges in another way than it should is seen here by its name."""
    ranks = [
        Stats(**{name: 2 + i for i, name in enumerate(Stats().figures())}),
        Stats(**{name: 9 - i for i, name in enumerate(Stats().figures())}),
    ]
    summed = {"samples", "dropped", "bytes_sent", "bytes_received"}
    summed |= {"frame_bytes", "framed_bytes", "cut_bytes_sent", "cut_bytes_received"}
    first, second = ranks
    for name, value in Stats.merged(ranks).figures().items():
        a, b = getattr(first, name), getattr(second, name)
        assert value == (a + b if name in summed else max(a, b)), name


def test_every_figure_is_a_field_of_the_summary():
    assert set(Stats().figures()) <= set(FIELDS)


def test_counts_add_up_by_key():
    ranks = [
        Stats(skew={0: 1, 3: 2}, staleness=[{}, {1: 1}], gaps=(1, 0.5, 0.5), waited={"a": 1.0}),
        Stats(skew={3: 1}, staleness=[{0: 2}, {1: 3, 4: 1}, {}], gaps=(2, 0.5, 0.25)),
    ]
    both = Stats.merged(ranks)
    assert (both.skew, both.gaps, both.waited) == ({0: 1, 3: 3}, (3, 1.0, 0.5), {"a": 1.0})
    assert both.staleness == [{0: 2}, {1: 4, 4: 1}, {}]
    assert both.histogram == [2, 4, 0, 0, 1]
    assert ranks[0].staleness == [{}, {1: 1}], "what a rank counted stays as it is"
    assert Stats().histogram == []


@pytest.mark.parametrize("mode", ["async", "allreduce"])
def test_they_travel_as_text(mode):
    for stats in stats_of(simulate(dataclasses.replace(CONFIG, mode=mode), workers=3, seed=1)):
        assert Stats.from_text(stats.to_text()) == stats
        assert "\n" not in stats.to_text()


def test_a_job_with_servers():
    run = simulate(dataclasses.replace(CONFIG, mode="async", servers=2), workers=3, seed=1)
    ranks = stats_of(run)
    total = Stats.merged(ranks)
    steps = 2 * 3  # of 15 samples, the last of 10
    assert (total.samples, total.steps, total.epochs) == (80, steps, 2)
    assert total.updates == 3 * steps
    assert (total.dropped, ranks[0].fingerprint) == (0, 0)
    assert total.bytes_sent == total.bytes_received > 0
    assert total.seconds == max(worker.seconds for worker in run.workers) > 0
    assert total.clock_spread_max > 0
    assert ranks[0].samples == ranks[-1].updates == 0
    assert [(one.shard, one.worker) for one in ranks] == [
        *((shard, -1) for shard in range(2)),
        *((-1, worker) for worker in range(3)),
    ]


def test_a_job_without_servers():
    run = simulate(dataclasses.replace(CONFIG, mode="allreduce"), workers=2, seed=1)
    first, second = stats_of(run)
    assert first.fingerprint == second.fingerprint == fingerprint(run.theta) > 0
    assert first.updates == second.updates == 8


def test_local_sgd_counts_averages():
    asked = dataclasses.replace(CONFIG, mode="local-sgd", local_steps=3)
    run = simulate(asked, workers=2, seed=1)
    assert Stats.merged(stats_of(run)).updates == 3  # after 3, 6 and the last 2 of 8 steps
    over_servers = simulate(dataclasses.replace(asked, servers=1), workers=2, seed=1)
    assert Stats.merged(stats_of(over_servers)).updates == 3


def test_the_dropped_are_added_up():
    asked = dataclasses.replace(
        CONFIG, mode="async", servers=2, staleness_rate="drop", staleness_limit=0
    )
    run = simulate(asked, workers=4, seed=2)
    dropped = sum(server.shard.stats.dropped for server in run.servers)
    assert Stats.merged(stats_of(run)).dropped == dropped > 0


def test_a_new_counter_is_what_the_page_shows(tmp_path):
    """Do what CONTRIBUTING.md shows, on a copy, and find the figure in the summary."""
    shutil.copytree(ROOT / "psrt", tmp_path / "psrt", ignore=shutil.ignore_patterns("__pycache__"))
    page = (
        (ROOT / "CONTRIBUTING.md")
        .read_text()
        .split("### A figure of the summary")[1]
        .split("\n### ")[0]
    )
    hunks = re.findall(r"`(psrt/\S+\.py)`.*?```diff\n(.*?)```", page, re.DOTALL)
    assert len({name for name, _ in hunks}) == 2
    for name, hunk in hunks:
        path, lines = tmp_path / name, hunk.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        after = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        assert path.read_text().count(before) == 1, f"{name} does not hold what the page shows"
        path.write_text(path.read_text().replace(before, after))
    job = "simulate --workers 3 --mode sync --dataset synthetic:100x4x2 --hidden 3 --epochs 1"
    words = [*job.split(), "--batch-size", "19", "--out", "run"]  # three of 19, then 15, 14, 14
    subprocess.run([sys.executable, "-m", "psrt", *words], cwd=tmp_path, check=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["short_steps"] == 3
    # Every worker has taken its second step, the shorter one, by the last line.
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(metrics[-1])["short_steps"] == 3
