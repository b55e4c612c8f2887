"""How well a simulation predicts: every kind of mode, recorded for real and then simulated like it.

    mpirun -n 3 python apps/calibrate.py --out runs/calibrate        # 2 workers
    mpirun -n 5 python apps/calibrate.py --out runs/calibrate-4      # 4 workers

Each mode is trained twice, without and with a worker that is slowed down, and its history is kept.
`psrt simulate --like` then reads from that history how long computing, messages, updates and sums
took, and runs the same job in virtual time. Its samples per second and mean staleness are printed
beside the measured ones, which the simulation never reads.

One rank is the server in the modes that have one; in the others the last rank is idle, so that all
modes have the same number of workers. Flags that are not listed here are those of `psrt train` and
apply to every mode, as in: --batch-size 64 --hidden 32
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from script import DEFAULT, make_folder, names, number, ranks_of_job, run_script, say

import psrt
from psrt.cli.flags import FlagParser, parse_train
from psrt.cli.simulate import parse_simulate
from psrt.core.errors import ConfigError
from psrt.job.scenario import run_in_virtual_time
from psrt.launch import again
from psrt.report.strict_json import dumps
from psrt.rows.suggest import did_you_mean

if TYPE_CHECKING:
    from argparse import Namespace

    from mpi4py import MPI

#: As --mode takes it, by its name.
MODES = {
    "sync": "sync",
    "async": "async",
    "ssp": "ssp:staleness=3",
    "softsync": "softsync:k=1",
    "allreduce": "allreduce",
}
#: A prediction is good if it is within this fraction of the measured value; for staleness, which
#: is 0 in some modes, also if it is within this number of versions.
TOLERANCE, STALENESS_TOLERANCE = 0.15, 0.02

Row = dict[str, Any]


class Job(NamedTuple):
    """One run to do and to predict."""

    mode: str
    #: Whether a worker is slowed down.
    straggler: bool
    #: As `psrt train` is given it.
    words: list[str]
    folder: Path


def main(argv: Sequence[str]) -> None:
    """Run and simulate all modes; rank 0 prints and writes how close the predictions are."""
    options, flags = parser().parse_known_args(list(argv))
    comm = ranks_of_job()
    if comm is None or comm.size < 3:
        raise ConfigError(f"a server and 2 workers are needed: {again(3)}")
    jobs = planned(options, flags, ranks=comm.size)
    rows = run_all(jobs, comm, options)
    if comm.rank == 0:
        show(rows, options)


def parser() -> FlagParser:
    """Return the parser of the flags that ``psrt train`` does not have."""
    flags = FlagParser(prog="calibrate.py", description=__doc__)
    add = flags.add_argument
    add("--out", type=Path, default=Path("runs/calibrate"), metavar="DIR", help=DEFAULT)
    add("--modes", type=names, default=",".join(MODES), metavar="MODE,...", help=DEFAULT)
    add("--steps", type=number, default=1500, metavar="N", help="of a worker; " + DEFAULT)
    add(
        "--straggler-steps", type=number, default=500, metavar="N",
        help="where one is slowed down; " + DEFAULT,
    )  # fmt: skip
    add("--slow", default="1:delay:0.003", metavar="WORKER:KIND:NUMBERS", help="how; " + DEFAULT)
    add("--repeats", type=number, default=1, metavar="N", help="of everything; " + DEFAULT)
    return flags


def planned(options: Namespace, flags: Sequence[str], *, ranks: int) -> list[Job]:
    """Return all runs in order.

    Raises:
        ConfigError: if one of them is impossible, before any has begun.
    """
    jobs = []
    for repeat in range(options.repeats):
        for mode in options.modes:
            if mode not in MODES:
                guess = did_you_mean(mode, MODES)
                raise ConfigError(
                    f"unknown mode {mode!r}{guess}, expected one of {', '.join(MODES)}"
                )
            for straggler in (False, True):
                steps = options.straggler_steps if straggler else options.steps
                folder = options.out / f"{mode}{'-straggler' if straggler else ''}-{repeat}"
                words = ["--mode", MODES[mode], "--steps", str(steps), "--record"]
                words += ["--out", str(folder), "--overwrite", "--seed", str(repeat), *flags]
                words += ["--inject", options.slow] if straggler else []
                psrt.resolve(parse_train(words), ranks=ranks - (mode == "allreduce"))
                jobs.append(Job(mode, straggler, words, folder))
    return jobs


def run_all(jobs: Iterable[Job], comm: MPI.Comm, options: Namespace) -> list[Row]:
    """Run and simulate the jobs; return a row for each at rank 0, none elsewhere."""
    from psrt.mpi.agreement import raise_on_all
    from psrt.mpi.monitor import watched

    rows: list[Row] = []
    with watched(comm):  # one rank's failure ends all of them
        with raise_on_all(comm):
            if comm.rank == 0:
                make_folder(options.out)
        fewer = comm.Split(int(comm.rank == comm.size - 1))
        for job in jobs:
            run = trained(job, comm, fewer)
            if run is not None:
                rows.append(row_of(job, run.summary, simulated(job.folder).summary))
                say(line_of(rows[-1]))
            rest(comm)
        fewer.Free()
    return rows


def trained(job: Job, comm: MPI.Comm, fewer: MPI.Comm) -> psrt.Run | None:
    """Train over MPI; return what came out at rank 0."""
    config = parse_train(job.words)
    if job.mode != "allreduce":
        return psrt.run(config, comm=comm)
    run = psrt.run(config, comm=fewer) if comm.rank != comm.size - 1 else None
    rest(comm)
    return run


def simulated(folder: Path) -> psrt.Run:
    """Simulate like a recorded run."""
    return run_in_virtual_time(*parse_simulate(["--like", str(folder)]))


def rest(comm: MPI.Comm) -> None:
    """Sleep until all ranks are here: waiting inside MPI would cost the others a core."""
    here = comm.Ibarrier()
    while not here.Test():
        time.sleep(0.005)


def row_of(job: Job, measured: psrt.Summary, predicted: psrt.Summary) -> Row:
    """Return what was measured beside what was predicted."""
    rate = measured.samples_per_second, predicted.samples_per_second
    staleness = measured.staleness.mean or 0.0, predicted.staleness.mean or 0.0
    return {
        "mode": job.mode,
        "straggler": job.straggler,
        "workers": measured.workers,
        "samples_per_second": rate[0],
        "samples_per_second_predicted": rate[1],
        "staleness_mean": staleness[0],
        "staleness_mean_predicted": staleness[1],
        "samples_per_second_is_near": is_near(*rate),
        "staleness_mean_is_near": is_near(*staleness, absolute=STALENESS_TOLERANCE),
        "seconds": measured.seconds,
        "mpi": measured.mpi,
    }


def is_near(measured: float, predicted: float, *, absolute: float = 0.0) -> bool:
    """Tell whether a prediction is good."""
    return abs(predicted - measured) <= max(absolute, TOLERANCE * measured)


#: Quantities of the table: where they are in a row, heading, and how they are written.
QUANTITIES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("samples_per_second", "samples/s", lambda x: f"{x:,.0f}"),
    ("staleness_mean", "staleness", lambda x: f"{x:.2f}"),
)


def line_of(row: Row) -> str:
    """Return a line of the table."""
    cells = [f"{row['mode']:<11}{'straggler' if row['straggler'] else '':<10}"]
    for key, _, write in QUANTITIES:
        measured, predicted = row[key], row[f"{key}_predicted"]
        ratio = f"{predicted / measured:.2f}" if measured else "-"
        far = "" if row[f"{key}_is_near"] else " FAR"
        cells.append(f"{write(measured):>12}{write(predicted):>12}{ratio:>7}{far:<4}")
    return "".join(cells).rstrip()


def show(rows: Sequence[Row], options: Namespace) -> None:
    """Print how many predictions are good, and write all rows."""
    near = sum(row[f"{key}_is_near"] for row in rows for key, *_ in QUANTITIES)
    heading = "".join(f"{name:>12}{'predicted':>12}{'ratio':>7}{'':4}" for _, name, _ in QUANTITIES)
    first = rows[0]
    note = f"{first['workers']} workers, {first['mpi']}, straggler {options.slow}"
    say("\n".join(["", note, f"{'mode':<21}{heading}".rstrip(), *map(line_of, rows)]))
    say(f"within {100 * TOLERANCE:.0f} %: {near} of {len(QUANTITIES) * len(rows)}")
    file = options.out / "calibrate.json"
    file.write_text(dumps({"note": note, "runs": rows}, indent=2) + "\n", encoding="utf-8")
    say(f"written to {file}")


if __name__ == "__main__":
    sys.exit(run_script(main))
