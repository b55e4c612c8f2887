"""One model on two ranks, in every way to divide its work: time, memory and bytes.

    mpirun -n 2 python apps/bench/parallelism.py

Every way computes the same step of SGD with momentum, of one batch, turn by turn. Beside what is
read stands what is predicted:

- *time*: what the simulator says of the same job, by what layers, an update and a copy take in the
  same run, see ``cuts.prediction``.
- *memory*: ``psrt.core.sharding.memory``, and the activations of ``docs/parallelism.md``.
- *bytes*: of a sum of n numbers over W ranks of a host each reads n(W − 1)/W of the others'; where
  parameters are sharded, as many are sent to owners, and gathered twice, except for the two buckets
  that are still there on the way back; stages send activations, or their gradients, once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

from cuts.chain import FixedChain
from cuts.cut_scheme import CutScheme
from cuts.step_times import StepTimes
from mpi4py import MPI

from psrt.bench.figures import Column, Summary, spread, table
from psrt.bench.race import Candidate, Pace, Run, calls_in_a_turn, race, trial
from psrt.bench.ranks import RankTrack, part_of
from psrt.cli.bench import Report, run_script
from psrt.config.names import BUCKET_BYTES
from psrt.core.arrays import ITEMSIZE
from psrt.core.sharding import Sharing, memory
from psrt.job.local import LocalLauncher
from psrt.job.mpi import MpiLauncher
from psrt.model.stage_memory import StageShape
from psrt.mpi.monitor import watched
from psrt.pipeline.balance import balanced
from psrt.runtime.strategies.buckets import buckets_of

#: 784-1024×6-10, of 6.1 million parameters.
SIZES = (784, *[1024] * 6, 10)
BATCH, MICRO_BATCHES, RANKS = 512, 8, 2
ONE = "one process"
OPTIMIZER: dict[str, Any] = {"optimizer": "momentum:momentum=0.9"}
_SHARDED = {"parallel": f"data:{RANKS}", "micro_batches": 1}
#: Ways, as flags.
WAYS: dict[str, dict[str, Any]] = {
    ONE: {"parallel": "pipeline:1", "micro_batches": 1},
    "data:2": _SHARDED,
    **{
        f"data:2 shard={it.value}": {**_SHARDED, "mode": f"allreduce:shard={it.value}"}
        for it in Sharing
    },
    "pipeline:2, 1f1b of 8": {"parallel": "pipeline:2", "micro_batches": MICRO_BATCHES},
    "tensor:2": {"parallel": "tensor:2", "micro_batches": 1},
}


class Predicted(NamedTuple):
    """What a rank is expected to need, the one that needs the most."""

    #: Of its vectors and activations.
    memory: float
    #: Sent in a step.
    nbytes: float


def predicted(knobs: dict[str, Any], problem: FixedChain, counts: Sequence[int]) -> Predicted:
    """Return the memory and the bytes that a way is expected to need.

    Args:
        knobs: of it.
        problem: the model.
        counts: layers of each stage.
    """
    layers, rows = problem.layers(), problem.rows
    n = sum(layer.n for layer in layers)
    axis, _, _ = str(knobs["parallel"]).partition(":")
    parts = knobs.get("micro_batches", 1)
    _, _, shared = knobs.get("mode", "").partition("shard=")
    shard = Sharing(shared) if shared else None
    if knobs["parallel"] == "pipeline:1":
        kept = memory(None, n, workers=1, vectors=1).total
        return Predicted(kept + StageShape(rows=rows, given=True).activation_bytes(layers), 0.0)
    if axis == "data":
        spans = problem.gradient_spans()
        buckets = [it.span.size for it in buckets_of(spans, BUCKET_BYTES)]
        kept = memory(shard, n, workers=RANKS, vectors=1, buckets=buckets).total
        sums = n
        if shard is Sharing.PARAMETERS:
            sums = 3 * n - sum(buckets[:2])
        shape = StageShape(rows=rows // RANKS, given=True)
        kept += shape.activation_bytes(layers)
        return Predicted(kept, ITEMSIZE * sums * (RANKS - 1) / RANKS)
    if axis == "tensor":
        pairs = [*zip(layers[::2], layers[1::2], strict=False)]
        up = sum(below_above[1].outputs for below_above in pairs)
        down = sum(below.inputs for below in layers[2::2])
        kept = memory(None, round(n / RANKS), workers=1, vectors=1).total
        # What is behind a pair is whole in every slice, the rest is cut.
        widths = [(it.outputs + it.saved) / (1 if i % 2 else RANKS) for i, it in enumerate(layers)]
        gradients = [it.outputs / (1 if i % 2 else RANKS) for i, it in enumerate(layers)]
        kept += ITEMSIZE * rows * (sum(widths) + sum(gradients))
        return Predicted(kept, ITEMSIZE * rows * (up + down) * (RANKS - 1) / RANKS)
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
        stages.append(kept + ITEMSIZE * max(layer.n for layer in own))
    nbytes = ITEMSIZE * rows * layers[counts[0] - 1].outputs + 8 * parts
    return Predicted(max(stages), nbytes)


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
    times = StepTimes(problem, micro_batches=MICRO_BATCHES, **OPTIMIZER)
    for call in times.runs.values():
        call(1)
    cost = [it.seconds for it in times.layers.whole]
    counts: list[int] = comm.bcast([it.size for it in balanced(cost, RANKS)])
    part = part_of(comm, range(RANKS))
    schemes: dict[str, CutScheme] = {}
    with ExitStack() as stack:
        if part is not None:
            monitor = stack.enter_context(watched(part))
            for name, knobs in WAYS.items():
                more = {**OPTIMIZER, **knobs}
                if "pipeline" in name:
                    more["stages"] = ",".join(map(str, counts))
                if name != ONE:
                    launcher = MpiLauncher(part, None, monitor)
                    schemes[name] = CutScheme(launcher, comm.rank, problem, more)
                elif comm.rank == 0:
                    schemes[name] = CutScheme(LocalLauncher(), 0, problem, more)
        runs: dict[str, Run | None] = {
            name: one.run if (one := schemes.get(name)) else None for name in WAYS
        }
        for name, call in times.runs.items():
            runs[name] = call if comm.rank == 0 or name == times.AT_ONCE else None
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
    predictor, rows = times.predictor(found), []
    for name, knobs in WAYS.items():
        due, (kept, sent) = predicted(knobs, problem, counts), beside[name]
        stages = counts if "pipeline:2" in name else None
        rows.append(
            {
                "way": name,
                "step_s": Summary.of(found.of(name)),
                "predicted_s": predictor.step({**OPTIMIZER, **knobs}, stages).seconds,
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
    return {"ways to divide the work": (rows, table(rows, COLUMNS))}


if __name__ == "__main__":
    sys.exit(run_script(lambda given, comm: report(comm, given.rounds), __doc__, ranks=RANKS))
