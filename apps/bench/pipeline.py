"""Models split across two ranks: samples per second against one process with the whole batch.

    mpirun -n 2 python apps/bench/pipeline.py

That is the honest baseline. Two stages are twice as many cores, but they compute by micro-batches,
whose small products are slow. So beside what is read stands the bound of each cut (see
``psrt.pipeline.cost``): balance × bubble × efficiency, of costs of layers measured in the same run;
and what psrt's simulator predicts by these, see ``cuts.prediction``.
One process with the same micro-batches takes its turn, too, and where torch is installed its
``torch.distributed.pipelining`` over gloo, on the same cut.

All ways but pipedream compute the same step of plain SGD, and end with the same bits wherever they
sum in the same order. pipedream takes the whole batch again and again, with an update for each as
one process, and longer turns, as it is drained at their ends. psrt's own cost is that of a step of
as many layers that compute nothing, beside waits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from cuts.chain import FixedChain, IdleChain
from cuts.cut_scheme import LR, CutScheme
from cuts.layer_times import PASSES, PassCosts, of_stages
from cuts.prediction import Prediction, Predictor
from cuts.step_times import StepTimes
from mpi4py import MPI
from schemes import has_torch

from psrt.bench.figures import Column, Summary, spread, table
from psrt.bench.race import Candidate, Pace, Run, calls_in_a_turn, race, trial
from psrt.bench.ranks import RankTrack, part_of, wait
from psrt.cli.bench import Report, run_script
from psrt.config.axes import axes_of
from psrt.core.arrays import Vector
from psrt.core.errors import ProtocolError
from psrt.core.partition import even_spans
from psrt.core.progress import PROGRESS
from psrt.job.launcher import Launcher
from psrt.job.local import LocalLauncher
from psrt.job.mpi import MpiLauncher
from psrt.mpi.agreement import bcast_text, raise_on_all
from psrt.mpi.monitor import watched
from psrt.pipeline.balance import balanced
from psrt.pipeline.cost import Bound, bound
from psrt.pipeline.registry import PIPELINES, ScheduleName, schedule_of
from psrt.pipeline.schedule import PipelineSchedule

#: 784-1024×6-10.
SIZES = (784, *[1024] * 6, 10)
BATCHES = (1024, 256)
MICRO_BATCHES = 8
RANKS = 2


class Way(NamedTuple):
    """One way to compute a step."""

    knobs: dict[str, Any]
    ranks: int = RANKS
    #: Whether the batch is computed in micro-batches.
    parts: bool = True

    @property
    def schedule(self) -> ScheduleName:
        """The schedule and its chunks."""
        return schedule_of(self.knobs.get("pipeline_schedule", "gpipe"))

    @property
    def row(self) -> PipelineSchedule:
        """The row of the schedule."""
        return PIPELINES[self.schedule.name]


def _cut(schedule: str, **knobs: Any) -> dict[str, Any]:
    return {"parallel": f"pipeline:{RANKS}", "pipeline_schedule": schedule, **knobs}


WHOLE, PARTS, TORCH = "one process", "one process, micro-batches", "torch 1f1b"
WAYS: dict[str, Way] = {
    WHOLE: Way({"mode": "serial"}, 1, False),
    PARTS: Way({"parallel": "pipeline:1"}, 1),
    "sequential": Way(_cut("sequential"), parts=False),
    "gpipe": Way(_cut("gpipe")),
    "1f1b": Way(_cut("1f1b")),
    "zero-bubble": Way(_cut("zero-bubble")),
    "interleaved:2": Way(_cut("interleaved:2")),
    "pipedream": Way(_cut("pipedream"), parts=False),
    "gpipe, weights deferred": Way(_cut("gpipe", defer_weights=True)),
    "1f1b, weights deferred": Way(_cut("1f1b", defer_weights=True)),
    f"tensor:{RANKS}": Way({"parallel": f"tensor:{RANKS}"}, parts=False),
    f"data:{RANKS}": Way({"parallel": f"data:{RANKS}"}, parts=False),
}
#: How many times as many steps an asynchronous pipeline has in a turn, at whose end it is drained.
_LONGER = 4
#: Steps of a reading of psrt's own cost.
_IDLE_STEPS = 50


def measure(
    comm: MPI.Comm,
    *,
    sizes: Sequence[int] = SIZES,
    batches: Sequence[int] = BATCHES,
    micro_batches: int = MICRO_BATCHES,
    rounds: int = 9,
    turn_s: float = 0.5,
) -> list[dict[str, Any]]:
    """Measure every way with every batch; collective.

    Args:
        comm: at least 2 ranks; more have no part in it.
        sizes: widths of the model, from the input to the output.
        batches: rows of a batch.
        micro_batches: parts of a batch, M.
        rounds: turns of each way.
        turn_s: how long a turn of one process is to take, in seconds.

    Returns:
        At rank 0 a row per batch and way; an empty list elsewhere.
    """
    rows = []
    for batch in PROGRESS.each(batches, "measures", "batch"):
        rows += _of_batch(comm, tuple(sizes), batch, micro_batches, rounds, turn_s)
    return rows if comm.rank == 0 else []


def _of_batch(
    comm: MPI.Comm,
    sizes: tuple[int, ...],
    batch: int,
    micro_batches: int,
    rounds: int,
    turn_s: float,
) -> list[dict[str, Any]]:
    track, problem = RankTrack(comm), FixedChain(sizes, batch)
    times: StepTimes | None = None
    parts: dict[str, Run | None] = dict.fromkeys(StepTimes.NAMES)
    if comm.rank < RANKS:
        own_times = StepTimes(problem, micro_batches=micro_batches)
        parts[StepTimes.AT_ONCE] = own_times.runs[StepTimes.AT_ONCE]
        if comm.rank == 0:
            times, parts = own_times, {**own_times.runs}
            for run in times.runs.values():
                run(2)
    counts = _counts(comm, times)
    knobs = {name: _knobs(way, micro_batches, counts) for name, way in WAYS.items()}
    cuts = {name: it for name, it in knobs.items() if "pipeline" in it.get("parallel", "")}
    with _schemes(comm, IdleChain, sizes, batch, cuts) as schemes:
        idle = {name: Candidate(it.run if (it := schemes.get(name)) else None) for name in cuts}
        race(idle, rounds, track=track, calls=_IDLE_STEPS, warmup=1)
        own = {name: _own_us(comm, WAYS[name], schemes.get(name), micro_batches) for name in cuts}
    with (
        _schemes(comm, FixedChain, sizes, batch, knobs) as schemes,
        _torch(comm, sizes, counts, batch_size=batch, micro_batches=micro_batches) as torch,
    ):
        runs: dict[str, Run | None] = {
            name: it.run if (it := schemes.get(name)) else None for name in WAYS
        }
        runs |= torch | parts
        candidates = {name: Candidate(run) for name, run in runs.items()}
        steps = calls_in_a_turn(trial(runs[WHOLE], track), Pace(turn_s, fewest=4))
        found = race(candidates, rounds, track=track, calls=steps, warmup=1)
        results = {name: scheme.result() for name, scheme in schemes.items()}
        with raise_on_all(comm):
            if comm.rank == 0:
                _check_equal(results)
        beside = {name: _beside(comm, schemes.get(name)) for name in found.rounds[0]}
    if times is None:
        return []
    predictor, rows = times.predictor(found), []
    for name in found.rounds[0]:
        if name in parts:
            continue
        way, ratio = WAYS.get(name, Way(_cut("1f1b"))), found.ratio(WHOLE, name)
        limit = _bound(way, predictor.layers, counts, batch, micro_batches, steps)
        due = _NO_PREDICTION
        if name in WAYS:
            due = _predicted(predictor, way, knobs[name], counts, own.get(name), steps)
        seconds = Summary.of(found.of(name)).median
        rows.append(
            {
                "batch": batch,
                "way": name,
                "samples_per_second": Summary.of([batch / s for s in found.of(name)]),
                "over_one": ratio,
                **(_NO_BOUND if limit is None else limit._asdict()),
                "bound": limit and limit.speedup,
                "of_bound": limit and ratio and ratio.median / limit.speedup,
                "predicted": due.seconds and batch / due.seconds,
                "of_predicted": due.seconds and due.seconds / seconds,
                "simulate": due.flags,
                "own_us": own.get(name),
                **beside[name],
            }
        )
    return rows


_NO_BOUND = dict.fromkeys(Bound._fields)
_NO_PREDICTION = Prediction(0.0, "")


@contextmanager
def _schemes(
    comm: MPI.Comm,
    kind: type[FixedChain],
    sizes: tuple[int, ...],
    batch: int,
    knobs: dict[str, dict[str, Any]],
) -> Iterator[dict[str, CutScheme]]:
    """Set up every way that this rank has a part in; collective."""
    part = part_of(comm, range(RANKS))
    schemes: dict[str, CutScheme] = {}
    if part is None:
        yield schemes
        return
    problem = kind(sizes, batch)
    with watched(part) as monitor:
        for name, of_way in knobs.items():
            if WAYS[name].row.asynchronous:
                launcher: Launcher = MpiLauncher(part, None, monitor)
                schemes[name] = CutScheme(launcher, comm.rank, problem, of_way, longer=_LONGER)
            elif WAYS[name].ranks > 1:
                launcher = MpiLauncher(part, None, monitor)
                schemes[name] = CutScheme(launcher, comm.rank, problem, of_way)
            elif comm.rank == 0:
                schemes[name] = CutScheme(LocalLauncher(), 0, problem, of_way)
        yield schemes
        for scheme in schemes.values():
            scheme.close()
    part.Free()


@contextmanager
def _torch(
    comm: MPI.Comm, sizes: tuple[int, ...], counts: dict[int, list[int]], **knobs: int
) -> Iterator[dict[str, Run | None]]:
    """Set up torch's pipeline on the same cut, if there is one and torch; collective."""
    if 1 not in counts or not has_torch(comm):
        yield {}
        return
    from cuts.torch_pipeline import TorchPipeline

    part = part_of(comm, range(RANKS))
    if part is None:
        yield {TORCH: None}
        return
    pipeline = TorchPipeline(part, sizes, counts[1], lr=LR, **knobs)
    yield {TORCH: pipeline.run}
    pipeline.close()
    part.Free()


def _knobs(way: Way, micro_batches: int, counts: dict[int, list[int]]) -> dict[str, Any]:
    """Return the knobs of a way with its micro-batches, and cut by measured costs."""
    knobs = dict(way.knobs)
    if "parallel" in knobs:
        knobs["micro_batches"] = micro_batches if way.parts else 1
    if "pipeline_schedule" in knobs:
        knobs["stages"] = ",".join(map(str, counts[way.schedule.chunks]))
    return knobs


def _counts(comm: MPI.Comm, times: StepTimes | None) -> dict[int, list[int]]:
    """Return by chunks of a stage the layers of each chunk, balanced by cost; collective."""
    found: dict[int, list[int]] = {}
    if times is not None:
        costs = [it.seconds for it in times.layers.whole]
        for way in WAYS.values():
            if "pipeline_schedule" in way.knobs:
                chunks = way.schedule.chunks
                found[chunks] = [it.size for it in balanced(costs, chunks * way.ranks)]
    shared = json.loads(bcast_text(comm, json.dumps(list(found.items()))))
    return dict(shared)


def _bound(
    way: Way,
    costs: PassCosts,
    counts: dict[int, list[int]],
    batch: int,
    micro_batches: int,
    steps: int,
) -> Bound | None:
    """Return the bound of a way, None of one that copies or slices the model."""
    axes = axes_of(way.knobs.get("parallel", "pipeline:1"))
    if axes.tensor > 1 or axes.data > 1:
        return None
    chunks = way.schedule.chunks
    stages = [len(costs.whole)] if way.ranks == 1 else counts[chunks]
    rows = [it.size for it in even_spans(batch, micro_batches if way.parts else 1)]
    return bound(
        way.row,
        of_stages(costs.whole, stages),
        # An asynchronous one is drained at the end of a turn only.
        rows * steps * _LONGER if way.row.asynchronous else rows,
        chunks,
        deferred=bool(way.knobs.get("defer_weights")),
        slowdown=costs.slowdown,
    )


def _predicted(
    predictor: Predictor,
    way: Way,
    knobs: dict[str, Any],
    counts: dict[int, list[int]],
    own_us: float | None,
    steps: int,
) -> Prediction:
    """Simulate a turn of a way."""
    return predictor.step(
        knobs,
        counts[way.schedule.chunks] if "pipeline_schedule" in way.knobs else None,
        steps=steps * (_LONGER if way.row.asynchronous else 1),
        # A micro-batch passes a chunk forward, and back to its inputs and its weights.
        pass_s=1e-6 * (own_us or 0.0) / len(PASSES),
    )


def _own_us(comm: MPI.Comm, way: Way, scheme: CutScheme | None, micro_batches: int) -> float:
    """Return psrt's own cost per micro-batch and chunk, in µs, at the rank where it is the largest.

    That is all of a step beside waits for other stages, where layers compute nothing. Collective.
    """
    seconds = _largest(comm, 0.0 if scheme is None else median(scheme.awake))
    parts = micro_batches if way.parts else 1
    return 1e6 * seconds / parts / way.schedule.chunks


def _beside(comm: MPI.Comm, scheme: CutScheme | None) -> dict[str, float | None]:
    """Return what was read of a way beside time; collective."""
    took = 0.0 if scheme is None else median(scheme.awake) + median(scheme.waited)
    waits = 0.0 if scheme is None else median(scheme.waited) / took
    nbytes = _largest(comm, 0.0 if scheme is None else scheme.nbytes)
    sent = _total(comm, 0.0 if scheme is None else median(scheme.sent))
    return {
        "waits": _total(comm, waits) / RANKS if nbytes else None,
        "bytes_per_step": sent if nbytes else None,
        "rank_bytes": nbytes or None,
    }


def _largest(comm: MPI.Comm, number: float) -> float:
    """Return the largest number of any rank; collective."""
    (found,) = RankTrack(comm).slowest([number])
    return found


def _total(comm: MPI.Comm, number: float) -> float:
    """Return the sum over all ranks; collective."""
    total = np.array([number])
    wait(comm.Iallreduce(MPI.IN_PLACE, total, MPI.SUM))
    return float(total[0])


def _check_equal(results: dict[str, Vector | None]) -> None:
    """Raise if ways do not end alike: with the same bits where sums have the same order."""
    expected, bits = results[WHOLE], results[PARTS]
    for name, theta in results.items():
        assert theta is not None, "the first rank has all parts"
        assert expected is not None
        assert bits is not None
        way = WAYS[name]
        if way.row.asynchronous:  # of older weights, and several updates
            continue
        same = way.parts and not way.knobs.get("defer_weights")
        if not np.allclose(theta, expected, rtol=1e-3, atol=1e-4):
            raise ProtocolError(f"{name} ended with other parameters than {WHOLE}")
        if same and theta.tobytes() != bits.tobytes():
            raise ProtocolError(f"{name} ended with other bits than {PARTS}")


def _number(key: str, scale: float = 1.0, digits: int = 2) -> Callable[[Any], str]:
    return lambda row: "–" if row[key] is None else f"{row[key] * scale:.{digits}f}"


COLUMNS: tuple[Column, ...] = (
    ("way", "way"),
    ("batch", "batch"),
    ("samples/s", spread("samples_per_second", 1, 0)),
    ("× one process", spread("over_one")),
    ("predicted", lambda row: f"{row['predicted']:.0f}" if row["predicted"] else "–"),
    ("of it", lambda row: f"{row['of_predicted']:.2f}" if row["predicted"] else "–"),
    ("balance", _number("balance")),
    ("bubble", _number("bubble")),
    ("efficiency", _number("efficiency")),
    ("bound", _number("bound")),
    ("of bound", _number("of_bound")),
    ("own [µs]", _number("own_us", 1, 0)),
    ("waits", _number("waits")),
    ("MB/step", _number("bytes_per_step", 1e-6, 1)),
    ("MB/rank", _number("rank_bytes", 1e-6, 0)),
)


def report(given: argparse.Namespace, comm: MPI.Comm) -> Report:
    """Measure, and return the rows and their table."""
    rows = measure(comm, rounds=given.rounds)
    return {"models cut in two": (rows, table(rows, COLUMNS))}


if __name__ == "__main__":
    sys.exit(run_script(report, __doc__, ranks=2))
