"""One model on two ranks, in every way to share its work out: time, memory and bytes.

    mpirun -n 2 python apps/bench/parallelism.py

Every way computes the same step of SGD with momentum, of one batch, turn by turn. Beside what is
read stands what is predicted:

- *time*: the products of a rank, by what those of as many rows take in the same run, over the bound
  of the pipeline; the update of the elements that a rank updates; and its bytes, each as long as
  ``np.copyto`` takes for it. Sums are counted as if nothing overlapped.
- *memory*: ``psrt.sharding.memory``, and the activations of ``docs/parallelism.md``.
- *bytes*: of a sum of n numbers over W ranks of a host each reads n(W − 1)/W of the others'; where
  parameters are shared out, as many are sent to owners, and gathered twice, but for the two buckets
  that are still there on the way back; stages send activations, or their gradients, once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from psrt.arrays import ITEMSIZE
from psrt.bench.chain import FixedChain
from psrt.bench.cut_scheme import CutScheme
from psrt.bench.figures import Column, Summary, spread, table
from psrt.bench.layer_times import LayerTimes, PassCosts, of_stages
from psrt.bench.race import Candidate, Pace, calls_in_a_turn, race, trial
from psrt.bench.ranks import RankTrack, part_of
from psrt.cli.bench import Report, run_script
from psrt.config.names import BUCKET_BYTES
from psrt.job.local import LocalLauncher
from psrt.job.mpi import MpiLauncher
from psrt.model.stage_memory import StageShape
from psrt.mpi.monitor import watched
from psrt.optim import Schedule, make_optimizer
from psrt.partition import even_spans
from psrt.pipeline.balance import balanced
from psrt.pipeline.cost import StageCosts, bound
from psrt.pipeline.registry import PIPELINES
from psrt.runtime.strategies.buckets import buckets_of
from psrt.runtime.updater import Contribution, Updater
from psrt.sharding import Sharing, memory

#: 784-1024×6-10, of 6.1 million parameters.
SIZES = (784, *[1024] * 6, 10)
BATCH, MICRO_BATCHES, RANKS = 512, 8, 2
ONE = "one process"
_SHARDED = {"parallel": f"data:{RANKS}", "micro_batches": 1}
#: Ways, as flags.
WAYS: dict[str, dict[str, Any]] = {
    ONE: {"parallel": "pipeline:1", "micro_batches": 1},
    "data:2": _SHARDED,
    **{f"data:2 --shard {it.value}": {**_SHARDED, "shard": it.value} for it in Sharing},
    "pipeline:2, 1f1b of 8": {"parallel": "pipeline:2", "micro_batches": MICRO_BATCHES},
    "tensor:2": {"parallel": "tensor:2", "micro_batches": 1},
}


class Predicted(NamedTuple):
    """What a rank is expected to need, the one that needs the most."""

    seconds: float
    #: Of its vectors and activations.
    memory: float
    #: Sent in a step.
    nbytes: float


class Measured(NamedTuple):
    """What a model and a machine are like, by which is predicted."""

    #: By micro-batches of a batch: what layers cost in products of their rows.
    costs: Mapping[int, Sequence[StageCosts]]
    #: Of an element's update, and of a byte that is moved.
    update_s: float
    byte_s: float


def predicted(
    knobs: dict[str, Any], problem: FixedChain, found: Measured, counts: Sequence[int]
) -> Predicted:
    """Return what a way is expected to take.

    Args:
        knobs: of it.
        problem: the model.
        found: on this machine.
        counts: layers of each stage.
    """
    layers, rows, copy = problem.layers(), problem.rows, Predicted(0.0, 0.0, 0.0)
    n = sum(layer.n for layer in layers)
    axis, _, _ = str(knobs["parallel"]).partition(":")
    parts = knobs.get("micro_batches", 1)
    shard = None if "shard" not in knobs else Sharing(knobs["shard"])
    whole, of_two = (sum(it.seconds for it in found.costs[m]) for m in (1, 2))
    if knobs["parallel"] == "pipeline:1":
        kept = memory(None, n, workers=1, vectors=1).total
        return copy._replace(
            seconds=whole + n * found.update_s,
            memory=kept + StageShape(rows=rows, given=True).activation_bytes(layers),
        )
    if axis == "data":
        spans = problem.gradient_spans()
        buckets = [it.span.size for it in buckets_of(spans, BUCKET_BYTES)]
        kept = memory(shard, n, workers=RANKS, vectors=1, buckets=buckets).total
        sums = n
        if shard is Sharing.PARAMETERS:
            sums = 3 * n - sum(buckets[:2])
        nbytes = ITEMSIZE * sums * (RANKS - 1) / RANKS
        seconds = of_two / RANKS + n / RANKS * found.update_s
        shape = StageShape(rows=rows // RANKS, given=True)
        kept += shape.activation_bytes(layers)
        return Predicted(seconds + nbytes * found.byte_s, kept, nbytes)
    if axis == "tensor":
        pairs = [*zip(layers[::2], layers[1::2], strict=False)]
        up = sum(below_above[1].outputs for below_above in pairs)
        down = sum(below.inputs for below in layers[2::2])
        nbytes = ITEMSIZE * rows * (up + down) * (RANKS - 1) / RANKS
        part = n / RANKS
        kept = memory(None, round(part), workers=1, vectors=1).total
        # What is behind a pair is whole in every slice, the rest is cut.
        widths = [(it.outputs + it.saved) / (1 if i % 2 else RANKS) for i, it in enumerate(layers)]
        gradients = [it.outputs / (1 if i % 2 else RANKS) for i, it in enumerate(layers)]
        kept += ITEMSIZE * rows * (sum(widths) + sum(gradients))
        seconds = whole / RANKS + part * found.update_s + nbytes * found.byte_s
        return Predicted(seconds, kept, nbytes)
    small = PassCosts(found.costs[1], found.costs[parts], rows // parts)
    limit = bound(
        PIPELINES["1f1b"],
        of_stages(found.costs[1], counts),
        [it.size for it in even_spans(rows, parts)],
        1,
        slowdown=small.slowdown,
    )
    stages, start = [], 0
    for stage, count in enumerate(counts):
        own = layers[start : start + count]
        start += count
        size = sum(layer.n for layer in own)
        shape = StageShape(
            rows=rows,
            micro_batches=parts,
            slots=min(parts, RANKS - stage),
            first=not stage,
            given=not stage,
        )
        kept = memory(None, size, workers=1, vectors=1).total + shape.activation_bytes(own)
        stages.append((kept + ITEMSIZE * max(layer.n for layer in own), size))
    nbytes = ITEMSIZE * rows * layers[counts[0] - 1].outputs + 8 * parts
    seconds = whole / limit.speedup + max(size for _, size in stages) * found.update_s
    return Predicted(seconds, max(kept for kept, _ in stages), nbytes)


def _machine(problem: FixedChain, times: dict[int, LayerTimes]) -> Measured:
    """Return what the layers of a model took, and what updates and copies take."""
    n = problem.initial().size
    theta, gradient = np.zeros(n, np.float32), np.ones(n, np.float32)
    updater = Updater(
        n, make_optimizer("momentum", n, momentum=0.9), Schedule("constant", 0.01, epochs=1.0)
    )
    moved, there = np.ones(4 << 20, np.float32), np.zeros(4 << 20, np.float32)

    def update() -> None:
        updater.apply(theta, [Contribution(gradient, 1.0)], theta, progress=0.0)

    def move() -> None:
        np.copyto(there, moved)

    took = []
    for call in (update, move):
        readings = []
        for _ in range(9):
            start = perf_counter()
            call()
            readings.append(perf_counter() - start)
        took.append(median(readings))
    costs = {parts: it.costs() for parts, it in times.items()}
    return Measured(costs, took[0] / n, took[1] / moved.nbytes)


def measure(
    comm: MPI.Comm,
    *,
    rounds: int = 9,
    sizes: tuple[int, ...] = SIZES,
    batch: int = BATCH,
    turn_s: float = 0.5,
) -> list[dict[str, Any]]:
    """Measure every way; collective over at least two ranks.

    Args:
        comm: of which two take part.
        rounds: turns of each way.
        sizes: widths of the model.
        batch: rows of it.
        turn_s: of one process, in seconds.

    Returns:
        At rank 0 a row for each way; an empty list elsewhere.
    """
    problem, track = FixedChain(sizes, batch), RankTrack(comm)
    times: dict[int, LayerTimes] = {}
    if comm.rank == 0:
        own = problem.layers(), problem.loss, problem.batch, problem.initial()
        times = {m: LayerTimes(*own, micro_batches=m) for m in (1, 2, MICRO_BATCHES)}
        for it in times.values():
            it.run(1)
    cost = [it.seconds for it in times[1].costs()] if times else []
    counts: list[int] = comm.bcast([it.size for it in balanced(cost, RANKS)] if times else None)
    part = part_of(comm, range(RANKS))
    schemes: dict[str, CutScheme] = {}
    with ExitStack() as stack:
        if part is not None:
            monitor = stack.enter_context(watched(part))
            for name, knobs in WAYS.items():
                more = {"optimizer": "momentum", **knobs}
                if "pipeline" in name:
                    more["stages"] = ",".join(map(str, counts))
                if name != ONE:
                    launcher = MpiLauncher(part, None, monitor)
                    schemes[name] = CutScheme(launcher, comm.rank, problem, more)
                elif comm.rank == 0:
                    schemes[name] = CutScheme(LocalLauncher(), 0, problem, more)
        runs = {name: one.run if (one := schemes.get(name)) else None for name in WAYS}
        layers = {f"layers of {m}": it.run for m, it in times.items()}
        runs |= {f"layers of {m}": layers.get(f"layers of {m}") for m in (1, 2, MICRO_BATCHES)}
        steps = calls_in_a_turn(trial(runs[ONE], track), Pace(turn_s, fewest=2))
        candidates = {name: Candidate(run) for name, run in runs.items()}
        found = race(candidates, rounds, track=track, calls=steps, warmup=1)
        beside = {name: _beside(track, schemes.get(name)) for name in WAYS}
        for scheme in schemes.values():
            scheme.close()
    if part is not None:
        part.Free()
    if comm.rank:
        return []
    machine, rows = _machine(problem, times), []
    for name, knobs in WAYS.items():
        due, (kept, sent) = predicted(knobs, problem, machine, counts), beside[name]
        rows.append(
            {
                "way": name,
                "step_s": Summary.of(found.of(name)),
                "predicted_s": due.seconds,
                "rank_bytes": kept,
                "predicted_rank_bytes": due.memory,
                "sent_bytes": sent,
                "predicted_sent_bytes": due.nbytes,
            }
        )
    return rows


def _beside(track: RankTrack, scheme: CutScheme | None) -> list[float]:
    """Return the memory and the bytes of a step at the rank where they are the most; collective."""
    mine = [0.0, 0.0] if scheme is None else [scheme.memory, median(scheme.sent)]
    return track.slowest(mine)


COLUMNS: tuple[Column, ...] = (
    ("two ranks", "way"),
    ("ms a step", spread("step_s", 1e3, 1)),
    ("predicted", lambda row: f"{1e3 * row['predicted_s']:.1f}"),
    ("MB a rank", lambda row: f"{row['rank_bytes'] / 1e6:.1f}"),
    ("predicted", lambda row: f"{row['predicted_rank_bytes'] / 1e6:.1f}"),
    ("MB sent a rank and step", lambda row: f"{row['sent_bytes'] / 1e6:.2f}"),
    ("predicted", lambda row: f"{row['predicted_sent_bytes'] / 1e6:.2f}"),
)


def report(comm: MPI.Comm, rounds: int) -> Report:
    """Measure, and return the rows and their table."""
    rows = measure(comm, rounds=rounds)
    return {"ways to share the work out": (rows, table(rows, COLUMNS))}


if __name__ == "__main__":
    sys.exit(run_script(lambda given, comm: report(comm, given.rounds), __doc__, ranks=RANKS))
