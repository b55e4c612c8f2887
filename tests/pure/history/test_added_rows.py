"""What is added by its row alone is checked as well as what was there: the check names no row.

A mode, an optimizer, a staleness-aware rate, a codec, an all-reduce, a topology and a schedule of
pipelines are added from outside of the package, each by a row and what it is of; a run of each is
recorded, found sound, and found out where one event is another.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psrt
from psrt.codec.table import TABLE
from psrt.collective.registry import ALGORITHMS
from psrt.config import modes
from psrt.optim import OPTIMIZERS, STALENESS_RATES
from psrt.pipeline.registry import PIPELINES
from psrt.topology import GRAPHS

CHECK = Path(psrt.__file__).parent / "history" / "check"
#: Names of rows that are those of knobs, or of their usual values, too.
WORDS = {"allreduce", "constant", "momentum", "power"}


def test_the_check_names_no_row():
    rows = (modes.MODES, OPTIMIZERS, STALENESS_RATES, TABLE, ALGORITHMS, GRAPHS, PIPELINES)
    names = re.compile("|".join(f'"(node\\+)?{it}"' for row in rows for it in row))
    for file in CHECK.glob("*.py"):
        found = [
            line
            for line in file.read_text().splitlines()
            if names.search(line) and not line.strip().startswith((">>>", "..."))
            and not any(f'"{it}"' in line for it in WORDS)
        ]  # fmt: skip
        assert not found, (file.name, found)


ADDED = """
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

from psrt.codec.casts import BFloat16
from psrt.codec.registry import CODECS
from psrt.codec.table import TABLE
from psrt.collective import registry
from psrt.collective.schedule import Algorithm
from psrt.collective.step import Step
from psrt.optim.staleness import ScalarRate
from psrt.optim.table import OPTIMIZERS, STALENESS_RATES, OptimizerRow, RateRow
from psrt.partition import Span
from psrt.pipeline import registry as pipelines
from psrt.topology import names
from psrt.topology.graph import Graph
from psrt.topology.registry import GRAPHS


class Third(ScalarRate):
    def scale(self, staleness):
        return 1.0 / (1.0 + staleness / 3.0)


def chain(rank, size, n):
    if rank > 0:
        yield Step.receiving(rank - 1, Span(0, n), combine=True)
    if rank < size - 1:
        yield Step.sending(rank + 1, Span(0, n))
        yield Step.receiving(rank + 1, Span(0, n), combine=False)
    if rank > 0:
        yield Step.sending(rank - 1, Span(0, n))


# By itself: its package reads all names.
spec = importlib.util.spec_from_file_location("psrt.config.modes", sys.argv[2])
modes = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(modes)
modes.MODES["led"] = replace(modes.MODES["ssp"], name="led", synonyms=())
OPTIMIZERS["sgd2"] = OptimizerRow("sgd2", "psrt.optim.sgd:Sgd", lr=0.05)
STALENESS_RATES["third"] = RateRow("third", "__main__:Third")
TABLE["half2"] = replace(TABLE["bfloat16"], name="half2", code=99, synonyms=())
CODECS["half2"] = type("Half2", (BFloat16,), {"row": TABLE["half2"]})
row = Algorithm("chain", chain, "up the ranks and back", closed_form=lambda p, n, costs, size: 1.0)
registry.ALGORITHMS["chain"] = row
registry.ALL_REDUCES += ("chain",)
names.NAMES["path"] = "rank i and rank i + 1, but for the last and the first"
GRAPHS["path"] = lambda size: (Graph.of(size, [(i, i + 1) for i in range(size - 1)]),)
pipelines.PIPELINES["fifo"] = replace(pipelines.PIPELINES["gpipe"], name="fifo")

from psrt.config import TrainConfig  # only now: the names that knobs may have are read once
from psrt.history import Kind, read_history
from psrt.history.check import check
from psrt.history.check.run import check_run
from psrt.job.scenario import Scenario, run_in_virtual_time

USUAL = dict(servers=0, epochs=2, batch_size=4, lr=0.1, dataset="synthetic:70x6x3", record=True)
RUNS = [
    (3, "rate", "STEP", {"mode": "allreduce", "optimizer": "sgd2", "allreduce": "chain"}),
    (3, "rate", "APPLY", {"mode": "async", "servers": 2, "staleness_rate": "third"}),
    (3, "tau", "APPLY", {"mode": "led", "servers": 2, "staleness": 1}),
    (3, "samples", "ENCODE",
     {"mode": "sync", "servers": 2, "codec": "half2", "codec_everywhere": True}),
    (3, "samples", "SUM_ENCODE",
     {"mode": "allreduce", "codec": "half2", "codec_everywhere": True}),
    (3, "weight", "TAKE", {"mode": "gossip", "topology": "path"}),
    (3, "tau", "REDUCED", {
        "mode": "local-sgd", "local_steps": 4, "fragments": 2, "sync_delay": 1, "hidden": (6, 4),
        "allreduce": "chain"}),
    (4, "flag", "PASS", {
        "mode": "allreduce", "parallel": "data:2,pipeline:2", "hidden": (6, 4),
        "pipeline_schedule": "fifo", "micro_batches": 2}),
]
for i, (workers, field, kind, knobs) in enumerate(RUNS):
    out = Path(sys.argv[1]) / str(i)
    config = TrainConfig(**{**USUAL, "hidden": (5,), "out": str(out), **knobs})
    run_in_virtual_time(config, Scenario(workers))
    outcome = check_run(out)
    assert outcome.ok, (knobs, outcome.lines())
    if "parallel" in knobs:
        continue
    history = read_history(out)
    for events in (*history.workers, *history.shards):
        at = (events["kind"] == Kind[kind]).nonzero()[0]
        if len(at):
            events[field][at[len(at) // 2]] += 1
    assert not check(history).ok, knobs
"""


def test_what_is_added_by_its_row_is_checked(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ADDED, str(tmp_path), modes.__file__],
        env=os.environ | {"PYTHONPATH": str(CHECK.parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not done.returncode, done.stderr[-3000:]
