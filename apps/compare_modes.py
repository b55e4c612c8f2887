"""Every mode side by side when workers are late: tables, a verdict, a plot, the rows as files.

    mpirun -n 4 python apps/compare_modes.py --out runs/compare
    python apps/compare_modes.py --simulate --workers 8 --out runs/compare

Each mode runs from its file in apps/configs in each scenario of studies/scenarios.py: for real on
the ranks of mpirun, one run after the other, or in virtual time. Seeds are the outermost loop, so
that a passing slowdown of the machine affects all modes alike. Medians over the seeds are shown
with their range; two modes tie if the median of one lies in the range of the other. Flags that are
not listed here are those of `psrt train` and apply to every run, as in: --hidden 32

The time to an accuracy is measured when worker 0 finds it at the end of one of its epochs, so the
last worker is the one that is slowed down. The serial baseline never is.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from script import DEFAULT, can_plot, names, number, ranks_of_job, run_script, say, share
from studies import mode_plot
from studies.compare_runs import SERIAL, planned, run_over_mpi, run_simulated
from studies.scenarios import SCENARIOS, scenario
from studies.standings import Row, medians
from studies.verdict import verdicts

from psrt.cli.flags import FlagParser
from psrt.core.errors import ConfigError
from psrt.core.units import size_text
from psrt.launch import again
from psrt.report.strict_json import dumps
from psrt.simulation.cost_flags import VirtualCosts

if TYPE_CHECKING:
    from argparse import Namespace

#: What belongs to a simulation, and its defaults: a gradient of the digits takes a tenth of a
#: millisecond, and one machine has no links; its memory is what a server is slow by.
SIMULATION = {
    "workers": 4,
    "compute": "lognormal:1e-4:0.1",
    "link": "1e-5:inf",
    "server_apply": "4e9",
}


def _seconds(x: float | None) -> str:
    return "never" if x is None else f"{x:.3f} s"


def _percent(x: float) -> str:
    return f"{100 * x:.2f} %"


#: Column of the table: where its value is in a row, its heading, and how it is written.
COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("seconds_to_accuracy", "to target", _seconds),
    ("fastest", "from", _seconds),
    ("slowest", "to", _seconds),
    ("test_accuracy", "accuracy", _percent),
    ("worst_accuracy", "worst", _percent),
    ("staleness_mean", "staleness", lambda x: f"{x:.2f}"),
    ("waiting_share", "waits", lambda x: f"{100 * x:.0f} %"),
    ("bytes_sent", "sent", size_text),
    ("samples_per_second", "samples/s", lambda x: f"{x:,.0f}"),
)


def main(argv: Sequence[str]) -> None:
    """Run all modes; rank 0 shows and writes what came out."""
    options, flags = parser().parse_known_args(list(argv))
    comm = ranks_of_job()
    ranks = 1 if comm is None else comm.size
    rows: list[Row] = []
    plots = False

    def keep(row: Row) -> None:
        rows.append(row)
        say(f"seed {row['seed']}  {row['scenario']:<7}{line_of(row)}")

    if options.simulate:
        if ranks > 1:
            raise ConfigError("--simulate is one process in virtual time: start it without mpirun")
        for name, default in SIMULATION.items():
            setattr(options, name, getattr(options, name) or default)
        costs = VirtualCosts(options.compute, options.link, options.server_apply)
        jobs = planned(options, flags, ranks=1)
        plots = can_plot()
        run_simulated(jobs, options, costs, keep)
    else:
        check_real(options, ranks)
        assert comm is not None, "there are several ranks"
        jobs = planned(options, flags, ranks=ranks)
        plots = can_plot()
        run_over_mpi(jobs, options, comm, keep)
    if rows:  # rank 0
        show(rows, options, note_on(rows, options, ranks), plots=plots)


def parser() -> FlagParser:
    """Return the parser of what is not a flag of ``psrt train``."""
    flags = FlagParser(prog="compare_modes.py", description=__doc__)
    add = flags.add_argument
    add("--out", type=Path, default=Path("runs/compare"), metavar="DIR", help=DEFAULT)
    add("--target", type=share, default=0.95, metavar="ACCURACY", help=DEFAULT)
    add("--modes", type=names, metavar="MODE,...", help="default: all of apps/configs")
    add("--scenarios", type=names, default=",".join(SCENARIOS), metavar="NAME,...", help=DEFAULT)
    add("--seeds", type=number, default=3, metavar="N", help=DEFAULT)
    add("--servers", metavar="S", help="of the modes that have servers (default: 2)")
    add("--simulate", action="store_true", help="in virtual time, without mpirun")
    of = "of --simulate, as in psrt simulate (default: {})".format
    add("--workers", type=number, metavar="W", help=of(SIMULATION["workers"]))
    add("--compute", metavar="LAW", help=of(SIMULATION["compute"]))
    add("--link", metavar="LATENCY_S:BYTES_PER_S", help=of(SIMULATION["link"]))
    add("--server-apply", metavar="BYTES_PER_S", help=of(SIMULATION["server_apply"]))
    return flags


def check_real(options: Namespace, ranks: int) -> None:
    """Raise if there are not ranks enough, or flags that only a simulation has."""
    if ranks == 1:
        raise ConfigError(f"comparing modes takes several ranks, {again(4)}, or --simulate")
    for name in SIMULATION:
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} has no effect without --simulate")


def note_on(rows: Sequence[Row], options: Namespace, ranks: int) -> str:
    """Return in words what the rows have in common."""
    mpi = next((row["mpi"] for row in rows if row["mpi"]), "no MPI")
    servers = max(row["servers"] for row in rows)
    where = f"{ranks} ranks, of which {servers} are servers where there are some, {mpi}"
    if options.simulate:
        where = f"{options.workers} workers in virtual time"
    seeds = f"medians of {options.seeds} seeds" if options.seeds > 1 else "1 seed"
    return f"{where}, {seeds}, target {100 * options.target:g} %"


def line_of(row: Row) -> str:
    """Return a line of the table; of a single run, without what only several have."""
    cells = [f"{write(row[key]):>11}" for key, _, write in COLUMNS if key in row]
    return f"{row['mode']:<20}{''.join(cells)}"


def tables(cells: Sequence[Row]) -> str:
    """Return a table for each scenario."""
    headings = "".join(f"{heading:>11}" for _, heading, _ in COLUMNS)
    lines = []
    for name in dict.fromkeys(cell["scenario"] for cell in cells):
        lines += ["", f"{name}: {scenario(name).words}", f"{'mode':<20}{headings}"]
        lines += [line_of(cell) for cell in cells if cell["scenario"] == name]
    return "\n".join(lines)


def show(rows: Sequence[Row], options: Namespace, note: str, *, plots: bool) -> None:
    """Print tables and verdict, write all rows, and draw the plot if that can be."""
    cells = medians(rows, baseline=SERIAL)
    words = verdicts(cells, rows)
    say("\n".join(["", note, tables(cells), "", "verdict", *words, ""]))
    document = {
        "note": note, "target": options.target, "verdict": words, "medians": cells, "runs": rows
    }  # fmt: skip
    (options.out / "modes.json").write_text(dumps(document, indent=2) + "\n", encoding="utf-8")
    with open(options.out / "modes.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    files = ["modes.json", "modes.csv"]
    if plots:
        mode_plot.draw(cells, options.out / "modes.png", target=options.target, note=note)
        files.append("modes.png")
    say(f"written to {options.out}: {', '.join(files)}")


if __name__ == "__main__":
    sys.exit(run_script(main))
