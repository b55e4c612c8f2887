"""Every mode side by side, with and without a straggler: one table, one plot, the rows as files.

    mpirun -n 4 python apps/compare_modes.py --out runs/compare --seeds 3

Each mode runs from its file in apps/configs, one after the other on the same ranks. Seeds are the
outermost loop, so that whatever slows the machine down for a while does it to all modes; table and
plot show medians over the seeds. Flags that are not listed here are those of `psrt train` and go to
every mode, as in: --epochs 5 --hidden 32

The time to an accuracy is taken when worker 0 finds it at the end of one of its epochs, so another
rank should be the straggler. The serial baseline has rank 0 for itself and no straggler.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from script import DEFAULT, make_folder, names, number, ranks_of_job, run_script, say

import psrt
from psrt.cli.flags import FlagParser, parse_train
from psrt.errors import ConfigError
from psrt.report import human_bytes, plots, seconds_to_accuracy
from psrt.report.strict_json import dumps

if TYPE_CHECKING:
    from argparse import Namespace

    from mpi4py import MPI

CONFIGS = Path(__file__).parent / "configs"

#: Every file of ``configs``, in the order of table and plot.
MODES = (
    "serial", "sync", "sync-backup", "ssp", "softsync", "async",
    "local-sgd", "post-local", "local-sgd-outer", "local-sgd-servers",
    "allreduce-ring", "allreduce-tree", "allreduce-butterfly", "allreduce-mpi",
)  # fmt: skip

Row = dict[str, Any]

#: Column of the table: where its value is in a row, its heading, and how it is written.
COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("seconds_to_accuracy", "to target", lambda x: "never" if x is None else f"{x:.3f} s"),
    ("test_accuracy", "accuracy", lambda x: f"{100 * x:.2f} %"),
    ("worst_accuracy", "worst", lambda x: f"{100 * x:.2f} %"),
    ("staleness_mean", "staleness", lambda x: f"{x:.2f}"),
    ("bytes_sent", "sent", human_bytes),
    ("samples_per_second", "samples/s", lambda x: f"{x:,.0f}"),
)


class Job(NamedTuple):
    """One run to do."""

    #: The name of its file in ``configs``.
    mode: str
    #: Whether a worker is slowed down.
    straggler: bool
    config: psrt.TrainConfig


def main(argv: Sequence[str]) -> None:
    """Run all modes; rank 0 shows and writes what came out."""
    options, flags = parser().parse_known_args(list(argv))
    comm = ranks_of_job()
    if comm is None or comm.size == 1:
        raise ConfigError(f"comparing modes takes several ranks: mpirun -n 4 python {sys.argv[0]}")
    if options.straggler is None:
        options.straggler = f"{comm.size - 1}:0.003"
    rows = run_all(planned(options, flags, ranks=comm.size), comm, options)
    if comm.rank == 0:
        show(rows, options, note_on(rows, options, comm.size))


def parser() -> FlagParser:
    """Return the parser of what is not a flag of ``psrt train``."""
    flags = FlagParser(prog="compare_modes.py", description=__doc__)
    add = flags.add_argument
    add("--out", type=Path, default=Path("runs/compare"), metavar="DIR", help=DEFAULT)
    add("--target", type=float, default=0.95, metavar="ACCURACY", help=DEFAULT)
    add("--modes", type=names, default=",".join(MODES), metavar="MODE,...", help=DEFAULT)
    add("--seeds", type=number, default=1, metavar="N", help=DEFAULT)
    add("--servers", metavar="S", help="of the modes that have servers (default: 2)")
    add("--straggler", metavar="RANK:SECONDS", help="or none (default: the last rank, by 0.003)")
    return flags


def planned(options: Namespace, flags: Sequence[str], *, ranks: int) -> list[Job]:
    """Return all runs in order.

    Raises:
        ConfigError: if one of them cannot be, before any has begun.
    """
    jobs = []
    for seed in range(options.seeds):
        for mode in options.modes:
            if mode not in MODES:
                raise ConfigError(f"no mode {mode!r}, there are {', '.join(MODES)}")
            words = ["--config", str(CONFIGS / f"{mode}.toml"), *flags, "--seed", str(seed)]
            if options.servers and parse_train(words).servers:
                words += ["--servers", options.servers]
            jobs.append(Job(mode, False, parse_train(words)))
            if mode != "serial" and options.straggler != "none":
                words += ["--straggler", options.straggler]
                jobs.append(Job(mode, True, parse_train(words)))
            psrt.resolve(jobs[-1].config, ranks=1 if mode == "serial" else ranks)
    return jobs


def run_all(jobs: Iterable[Job], comm: MPI.Comm, options: Namespace) -> list[Row]:
    """Run the jobs; return a row for each at rank 0, none elsewhere."""
    from psrt.transport.agreement import AbortGuard, together

    rows: list[Row] = []
    guard = AbortGuard(comm)  # one rank's failure ends all of them
    with guard.watch():
        with together(comm):
            if comm.rank == 0:
                make_folder(options.out)
        for job in jobs:
            alone = job.config.mode == "serial"
            run = run_alone(job.config, comm) if alone else psrt.run(job.config, comm=comm)
            if run is not None:
                rows.append(row_of(job, run, options.target))
                say(f"seed {job.config.seed}  {line_of(rows[-1])}")
    guard.close()
    return rows


def run_alone(config: psrt.TrainConfig, comm: MPI.Comm) -> psrt.Run | None:
    """Run serially at rank 0 while the others sleep: waiting inside MPI would cost it a core."""
    from mpi4py import MPI

    run = psrt.run(config, comm=MPI.COMM_SELF) if comm.rank == 0 else None
    done = comm.Ibarrier()
    while not done.Test():
        time.sleep(0.005)
    return run


def row_of(job: Job, run: psrt.Run, target: float) -> Row:
    """Return what is kept of a run."""
    summary = run.summary
    if summary.test_accuracy is None:
        raise ConfigError(f"modes are compared by accuracy, {job.config.dataset} has no classes")
    return {
        "mode": job.mode,
        "straggler": job.straggler,
        "seed": summary.seed,
        "workers": summary.workers,
        "servers": summary.servers,
        "seconds_to_accuracy": seconds_to_accuracy(map(asdict, run.records), target),
        "test_accuracy": summary.test_accuracy,
        "staleness_mean": summary.staleness.mean,
        "staleness_max": summary.staleness.max,
        "dropped": summary.dropped,
        "bytes_sent": summary.bytes_sent,
        "samples_per_second": summary.samples_per_second,
        "seconds": summary.seconds,
        "mpi": summary.mpi,
    }


def medians(rows: Iterable[Row]) -> list[Row]:
    """Return a row for each mode with and without straggler: medians, and the worst accuracy."""
    groups: dict[tuple[str, bool], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["mode"], row["straggler"]), []).append(row)
    result = []
    for (mode, straggler), group in groups.items():
        middle = {key: median([row[key] for row in group]) for key, *_ in COLUMNS if key in row}
        worst = min(row["test_accuracy"] for row in group)
        result.append({"mode": mode, "straggler": straggler, **middle, "worst_accuracy": worst})
    return result


def median(values: Iterable[float | None]) -> float | None:
    """Return the median; None, for never, is larger than everything."""
    middle = statistics.median(math.inf if value is None else value for value in values)
    return None if middle == math.inf else middle


def note_on(rows: Iterable[Row], options: Namespace, ranks: int) -> str:
    """Return in words what the rows have in common."""
    mpi = next((row["mpi"] for row in rows if row["mpi"]), "no MPI")
    seeds = f"medians of {options.seeds} seeds" if options.seeds > 1 else "1 seed"
    slow = "no straggler"
    if options.straggler != "none":
        pairs = (pair.split(":") for pair in options.straggler.split(","))
        slow = "straggler: " + ", ".join(
            f"rank {rank} by {1000 * float(seconds):g} ms a step" for rank, seconds in pairs
        )
    return f"{ranks} ranks, {mpi}, {seeds}, target {100 * options.target:g} %, {slow}"


def line_of(row: Row) -> str:
    """Return a line of the table; of a single run, without what only several have."""
    cells = [f"{write(row[key]):>12}" for key, _, write in COLUMNS if key in row]
    return f"{row['mode']:<20}{'straggler' if row['straggler'] else '':<10}{''.join(cells)}"


def show(rows: Sequence[Row], options: Namespace, note: str) -> None:
    """Print the table, write all rows, and draw the plot."""
    summary = medians(rows)
    headings = "".join(f"{heading:>12}" for _, heading, _ in COLUMNS)
    say("\n".join(["", note, f"{'mode':<30}{headings}", *map(line_of, summary)]))
    document = {"note": note, "target": options.target, "medians": summary, "runs": rows}
    (options.out / "modes.json").write_text(dumps(document, indent=2) + "\n", encoding="utf-8")
    with open(options.out / "modes.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    files = ["modes.json", "modes.csv"]
    try:
        plots.compare_modes(summary, options.out / "modes.png", target=options.target, note=note)
        files.append("modes.png")
    except ConfigError as error:  # matplotlib is an extra
        say(f"no plot: {error}")
    say(f"written to {options.out}: {', '.join(files)}")


if __name__ == "__main__":
    sys.exit(run_script(main))
