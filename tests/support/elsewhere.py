"""A package of somebody else's with a row of each kind, and a job of each."""

from __future__ import annotations

from pathlib import Path

PACKAGE = """
from dataclasses import dataclass

import numpy as np

from psrt.codec.codec import DenseCodec
from psrt.codec.table import CodecRow
from psrt.collective.schedule import Algorithm
from psrt.collective.step import Step
from psrt.config.modes import AllReduce, Mode, Servers
from psrt.optim.staleness import ScalarRate
from psrt.optim.table import OptimizerRow, RateRow, ScheduleRow
from psrt.core.partition import Span
from psrt.pipeline import PIPELINES
from psrt.pipeline.schedule import PipelineSchedule
from psrt.rows.knobs import knob
from psrt.rows.values import REAL, WHOLE
from psrt.topology.graph import Graph
from psrt.topology.names import TopologyRow


@dataclass(frozen=True)
class Halves(CodecRow):
    name, code, summary = "halves", 99, "half precision of somebody else"
    home, times = "elsewhere:HalvesCodec", ((1, 1), (1, 1))
    feeds_back = True
    scale: float = knob(1.0, REAL, "what numbers are multiplied by on the wire", exclusive_min=0)


class HalvesCodec(DenseCodec):
    row = Halves()

    def __init__(self, n, *, scale):
        super().__init__(n, 2 * n)
        self.scale = np.float32(scale)

    def _pack(self, vector, payload, rng):
        payload.view("<f2")[:] = vector * self.scale

    def _unpack(self, payload, out):
        out[:] = payload.view("<f2") / self.scale


class Plain(OptimizerRow):
    name, summary, home, lr = "plain", "plain steps of somebody else", "psrt.optim.sgd:Sgd", 0.1


@dataclass(frozen=True)
class Less(RateRow):
    name, summary, home = "less", "1/(1 + C tau)", "elsewhere:LessRate"
    slope: float = knob(1.0, REAL, "C", min=0)


class LessRate(ScalarRate):
    def __init__(self, *, slope):
        super().__init__()
        self.slope = slope

    def scale(self, staleness):
        return 1 / (1 + self.slope * staleness)


class Line(ScheduleRow):
    name, summary = "line", "down to 0 in a line"

    def share(self, since, length, hair):
        return max(0.0, 1 - since / length)


def chain_steps(rank, size, n):
    if rank > 0:
        yield Step.receiving(rank - 1, Span(0, n), combine=True)
    if rank < size - 1:
        yield Step.sending(rank + 1, Span(0, n))
        yield Step.receiving(rank + 1, Span(0, n), combine=False)
    if rank > 0:
        yield Step.sending(rank - 1, Span(0, n))


def chain_seconds(p, nbytes, costs, itemsize):
    return costs.chain(2 * (p - 1), 2 * (p - 1) * nbytes, (p - 1) * nbytes)


chain = Algorithm("chain", chain_steps, "up the ranks and back", closed_form=chain_seconds)
all_first = PipelineSchedule(
    "all-first", PIPELINES["gpipe"].order, "all forward first", alive=PIPELINES["gpipe"].alive,
    idle=PIPELINES["gpipe"].idle, formula="as gpipe", source="",
)
path = TopologyRow("path", "rank i and rank i + 1, but the ends", "elsewhere:a_path")


@dataclass(frozen=True)
class Lazy(Mode):
    name, summary, servers = "lazy", "ssp by a share of the steps", Servers.ALWAYS
    codecs = saves = True
    uses = ("staleness_rate", "placement", "shards_per_server")
    words = "slack {}"
    slack: float = knob(0.5, REAL, "how many steps ahead, for each of four", min=0)

    @property
    def lead(self):
        return int(4 * self.slack)


@dataclass(frozen=True)
class Twice(AllReduce):
    name, summary, synonyms = "twice", "a strategy of its own", ()
    builder = "elsewhere:doubling"
    times: int = knob(2, WHOLE, "times that it says so", min=1)


def doubling(of):
    from psrt.runtime.strategies.all_reduce import AllReduce

    assert of.config.scheme.times == 3

    class Doubled(AllReduce):
        async def step(self, step):
            self.doubled = True
            return await super().step(step)

        async def leave(self, clock):
            assert self.doubled
            await super().leave(clock)

    size = of.config.batch_size
    return Doubled(of.port, of.updater, algorithm="ring", batch_size=size, events=of.events)


def a_path(size):
    return (Graph.of(size, [(i, i + 1) for i in range(size - 1)]),)
"""
POINTS = {
    "psrt.codecs": "halves = elsewhere:Halves",
    "psrt.optimizers": "plain = elsewhere:Plain",
    "psrt.staleness_rates": "less = elsewhere:Less",
    "psrt.schedules": "line = elsewhere:Line",
    "psrt.all_reduces": "chain = elsewhere:chain",
    "psrt.pipelines": "all-first = elsewhere:all_first",
    "psrt.topologies": "path = elsewhere:path",
    "psrt.modes": "lazy = elsewhere:Lazy\ntwice = elsewhere:Twice",
}
#: By kind, the flags of a job of three workers, and what explains the row.
ROWS = {
    "codec": ("--mode sync --codec halves:scale=2 --codec-everywhere", "codec halves"),
    "optimizer": ("--mode allreduce:shard=optimizer --optimizer plain", ""),
    "rate": ("--mode async --staleness-rate less:slope=0.5", ""),
    "schedule": ("--mode allreduce --schedule line", ""),
    "all-reduce": ("--mode allreduce --allreduce chain", "chain"),
    "pipeline": (
        "--mode allreduce --parallel pipeline:2 --pipeline-schedule all-first --micro-batches 2",
        "pipeline --pipeline-schedule all-first",
    ),
    "topology": ("--mode gossip:topology=path", "gossip --topology path"),
    "mode": ("--mode lazy:slack=0.25", "lazy:slack=0.25"),
    "strategy": ("--mode twice:times=3,overlap=false", ""),
}
#: What all of these jobs are, beside their workers.
JOB = "--dataset synthetic:60x5x3 --steps 4 --batch-size 4 --hidden 6 --record"


def make_package(folder: Path) -> Path:
    """Install the package in a folder, which is then to be on Python's path; return that."""
    info = folder / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: elsewhere\nVersion: 1.0\n")
    points = "\n".join(f"[{group}]\n{line}" for group, line in POINTS.items())
    (info / "entry_points.txt").write_text(points)
    (folder / "elsewhere.py").write_text(PACKAGE)
    return folder
