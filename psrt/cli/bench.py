"""``psrt bench``: measures psrt beside what it is held against."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.errors import ConfigError
from psrt.files import check_writable
from psrt.launchers import launched

if TYPE_CHECKING:
    from mpi4py import MPI

#: Benchmark → ranks it needs; None runs in one process, without MPI.
RANKS = {"step": None, "allreduce": 2, "ps": 2, "train": 3, "history": 3, "simulate": None}
#: Ranks with which it shows all that it can.
_USUAL = {"allreduce": 4, "ps": 5, "train": 3, "history": 3}
#: Flags that are of ``allreduce`` only.
_OF_ALLREDUCE = ("sizes", "ranks", "hosts", "fit", "costs")

Report = dict[str, tuple[Any, str]]


def main(argv: Sequence[str]) -> int:
    """Run a benchmark; rank 0 prints the table and writes the JSON.

    Returns:
        0.

    Raises:
        ConfigError: on every rank, for flags or ranks that will not do.
    """
    given = _parser().parse(argv)
    _check(given)
    comm = _world(given.what)
    _check_files(given, comm)
    report = _run(given, comm)
    if comm is None or comm.rank == 0:
        _publish(report, given.json)
    return 0


def _parser() -> FlagParser:
    parser = FlagParser(
        prog="psrt bench",
        description="Candidates take turns in one run; medians with quartiles. "
        "step, simulate: one process; \nallreduce: mpirun -n 4; "
        "ps: mpirun -n 5 measures up to 2 servers and 3 workers; train, history: mpirun -n 3.",
    )
    add = parser.add_argument
    add("what", choices=tuple(RANKS), help="what to measure")
    add("--json", metavar="FILE", help="write the figures there, too")
    add("--rounds", type=int, default=9, help="turns of each candidate (9)")
    only = parser.add_argument_group("of allreduce")
    add = only.add_argument
    add(
        "--sizes",
        metavar="BYTES",
        help="of the vector: FIRST:LAST in steps of 4 times, or A,B,... (1K:64M)",
    )
    add("--ranks", metavar="N,...", help="how many take part (2,4, as far as there are so many)")
    add("--hosts", metavar="N,...", help="on how many hosts they are, or count as being (1,2,4)")
    add("--costs", metavar="FILE", help="of the machine, as --fit wrote it (measured anew)")
    add("--fit", metavar="FILE", help="keep the costs that were measured there")
    return parser


def _check(given: argparse.Namespace) -> None:
    """Raise for flags that do not go together."""
    if given.rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, got {given.rounds}")
    if given.what != "allreduce":
        for name in _OF_ALLREDUCE:
            if getattr(given, name) is not None:
                raise ConfigError(f"--{name} is for bench allreduce, not for bench {given.what}")
    if given.fit is not None and given.costs is not None:
        raise ConfigError("--fit measures what --costs would give: take one of them")
    paths = [os.path.abspath(path) for path in (given.fit, given.json) if path is not None]
    if len(set(paths)) < len(paths):
        raise ConfigError(f"--fit and --json would both write {given.json}")


def _check_files(given: argparse.Namespace, comm: MPI.Comm | None) -> None:
    """Find out what cannot be written before minutes are spent on measuring it; collective."""
    if comm is None:
        check_writable(given.json)
        return
    from psrt.mpi.agreement import together

    with together(comm):
        if comm.rank == 0:
            check_writable(given.json)
            check_writable(given.fit)


def _world(what: str) -> MPI.Comm | None:
    """Return the ranks to measure on."""
    needed = RANKS[what]
    if needed is None:
        return None
    comm = None
    if launched():
        from psrt.mpi.start import world

        comm = world()
    if comm is None or comm.size < needed:
        raise ConfigError(
            f"bench {what} measures among ranks: mpirun -n {_USUAL[what]} "
            f"python -m psrt bench {what}"
        )
    return comm


def _run(given: argparse.Namespace, comm: MPI.Comm | None) -> Report:
    """Return, by title, the rows and their table."""
    rounds: int = given.rounds
    if given.what == "step":
        from psrt.bench import step

        rows = step.run(rounds=rounds)
        return {"step": (rows, step.table(rows))}
    if given.what == "simulate":
        from psrt.bench import virtual_time

        rows = virtual_time.run(rounds=rounds)
        return {"virtual time": (rows, virtual_time.table(rows))}
    assert comm is not None
    if given.what == "allreduce":
        from psrt.cli.bench_allreduce import run

        return run(given, comm)
    if given.what == "ps":
        from psrt.bench import ps

        rows = ps.measure(comm, rounds=rounds)
        return {"push and pull": (rows, ps.table(rows) if rows else "")}
    if given.what == "history":
        from psrt.bench import recording

        rows = recording.measure(comm, rounds=rounds)
        return {"keeping a history": (rows, recording.table(rows) if rows else "")}
    from psrt.bench import overhead, train

    rows = train.measure(comm, rounds=rounds)
    costs = overhead.measure(comm, rounds=rounds)
    return {
        "training": (rows, train.table(rows) if rows else ""),
        "psrt itself": (costs, overhead.table(costs) if costs else ""),
    }


def _publish(report: Report, path: str | None) -> None:
    from psrt.bench.machine import machine
    from psrt.bench.measure import write_json

    about = machine()
    say(about)
    for title, (_, text) in report.items():
        say(f"\n{title}\n{text}")
    if path is not None:
        write_json(path, {"machine": about, **{t: rows for t, (rows, _) in report.items()}})
