"""What a checkpoint costs: how long it holds a rank up, beside a plain copy of the same bytes.

    mpirun -n 2 python apps/bench/checkpoints.py

A rank that saves is timed from the call to the return; between two checkpoints it copies the arrays
of its part once more, into memory that has been written to before: that is the plain copy. Then
each round trains twice, with a checkpoint every 5 s and without, in turn.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, cast

import numpy as np
from mpi4py import MPI
from schemes import FixedBatch

from psrt.bench.figures import Column, Summary, spread, table
from psrt.checkpoint.tree import flatten
from psrt.cli.bench import Report, run_script
from psrt.config import TrainConfig
from psrt.job.mpi import run_over_mpi
from psrt.job.saving import Part, Saver
from psrt.mpi.agreement import bcast_text

#: 784-1024×5-10, of 5 million parameters.
_SIZES, _BATCH = (784, *[1024] * 5, 10), 128
_MODES = ("allreduce", "sync")
#: Steps of a turn in which stalls are timed, and between two checkpoints.
_STEPS, _EVERY = 40, 8
#: Seconds that the others should take, and ``--checkpoint-every`` in them.
_TURN_S, _OFTEN = 12.0, "5s"
#: Readings of one kind, at most.
_MOST = 1 << 12


class Stalls:
    """Times the checkpoints of this process, and plain copies."""

    def __init__(self) -> None:
        #: Seconds of the first checkpoint of each turn, of the later ones, and of plain copies.
        self.first: list[float] = []
        self.later: list[float] = []
        self.copies: list[float] = []
        #: Bytes of the arrays of a checkpoint's part here.
        self.nbytes = 0
        self._buffers: list[np.ndarray[Any, Any]] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Time whatever is saved meanwhile."""
        at, write, saved = Saver.at, Saver._write, []

        def writing(saver: Saver, part: Part, step: int) -> None:
            write(saver, part, step)
            saved.append(step)

        async def timed(saver: Saver, part: Part, step: int) -> bool:
            count, began = len(saved), perf_counter()
            stops = await at(saver, part, step)
            seconds = perf_counter() - began
            if len(saved) > count:
                (self.later if count else self.first).append(seconds)
            elif step % _EVERY == _EVERY // 2:
                self._copy(part)
            return stops

        Saver.at, Saver._write = timed, writing  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            Saver.at, Saver._write = at, write  # type: ignore[method-assign]

    def of_all(self, comm: MPI.Comm) -> list[Stalls]:
        """Return those of each rank; collective."""
        lists = self.first, self.later, self.copies
        mine = np.full((1 + len(lists), _MOST), np.nan)
        mine[0, 0] = self.nbytes
        for row, readings in zip(mine[1:], lists, strict=True):
            row[: len(readings)] = readings
        found, all_of = np.empty((comm.size, *mine.shape)), []
        comm.Allgather(mine, found)
        for rows in found:
            it = Stalls()
            it.nbytes = int(rows[0, 0])
            it.first, it.later, it.copies = (row[~np.isnan(row)].tolist() for row in rows[1:])
            all_of.append(it)
        return all_of

    def _copy(self, part: Part) -> None:
        arrays = list(flatten(part.tree())[0].values())
        if [it.shape for it in arrays] != [it.shape for it in self._buffers]:
            self._buffers = [it.copy() for it in arrays]
        began = perf_counter()
        for to, it in zip(self._buffers, arrays, strict=True):
            np.copyto(to, it)
        self.copies.append(perf_counter() - began)
        self.nbytes = sum(it.nbytes for it in arrays)


def _train(comm: MPI.Comm, mode: str, steps: int, **checkpoints: Any) -> float:
    """Train for a number of steps; return the seconds, at all ranks."""
    config = TrainConfig(
        mode=cast(Any, mode), steps=steps, optimizer="momentum", lr=1e-4, **checkpoints
    )
    run = run_over_mpi(comm, config, FixedBatch(_SIZES, _BATCH))
    return float(comm.bcast(0.0 if run is None else run.summary.seconds))


def measure(comm: MPI.Comm, *, rounds: int) -> list[dict[str, Any]]:
    """Measure each mode; collective.

    Args:
        comm: of two ranks or more.
        rounds: turns of each kind.

    Returns:
        At rank 0 a row per mode and rank: seconds, and ratios to a plain copy; else nothing.
    """
    rows = []
    with tempfile.TemporaryDirectory() as own:
        for mode in _MODES:
            out = {"out": bcast_text(comm, own if comm.rank == 0 else ""), "overwrite": True}
            stalls, over = Stalls(), []
            for _ in range(rounds):
                with stalls.watched():
                    seconds = _train(comm, mode, _STEPS, **out, checkpoint_every=_EVERY)
            steps = round(_TURN_S / seconds * _STEPS)
            for _ in range(rounds):
                plain = _train(comm, mode, steps)
                over.append(_train(comm, mode, steps, **out, checkpoint_every=_OFTEN) / plain)
            rows += [_row(mode, rank, it, over) for rank, it in enumerate(stalls.of_all(comm))]
    return rows if comm.rank == 0 else []


def _row(mode: str, rank: int, it: Stalls, over: list[float]) -> dict[str, Any]:
    copy = Summary.of(it.copies)
    return {
        "mode": mode,
        "rank": rank,
        "megabytes": it.nbytes / 1e6,
        "copy_s": copy,
        "first_s": Summary.of(it.first),
        "later_s": Summary.of(it.later),
        "first_over_copy": Summary.of([one / copy.median for one in it.first]),
        "later_over_copy": Summary.of([one / copy.median for one in it.later]),
        "training_over_plain": Summary.of(over),
    }


COLUMNS: tuple[Column, ...] = (
    ("mode", "mode"),
    ("rank", "rank"),
    ("MB", lambda row: f"{row['megabytes']:.1f}"),
    ("plain copy, ms", spread("copy_s", 1e3)),
    ("first stall, ms", spread("first_s", 1e3)),
    ("later, ms", spread("later_s", 1e3)),
    ("first / copy", spread("first_over_copy")),
    ("later / copy", spread("later_over_copy")),
    (f"with one every {_OFTEN} / without", spread("training_over_plain", digits=3)),
)


def report(comm: MPI.Comm, rounds: int) -> Report:
    """Measure, and return the rows and their table."""
    rows = measure(comm, rounds=rounds)
    return {"what a checkpoint costs": (rows, table(rows, COLUMNS))}


if __name__ == "__main__":
    sys.exit(run_script(lambda given, comm: report(comm, given.rounds), __doc__, ranks=2))
