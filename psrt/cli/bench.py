"""``psrt bench step|ps|train``: measures psrt beside what it is held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psrt.cli.flags import FlagParser
from psrt.errors import ConfigError
from psrt.job import launched

if TYPE_CHECKING:
    from mpi4py import MPI

#: Benchmark → ranks it needs; None runs in one process, without MPI.
RANKS = {"step": None, "ps": 2, "train": 3}


def main(argv: Sequence[str]) -> int:
    """Run a benchmark; rank 0 prints the table and writes the JSON.

    Returns:
        0.

    Raises:
        ConfigError: on every rank, for flags or ranks that will not do.
    """
    given = _parser().parse_args(argv)
    comm = _world(given.what)
    report = _run(given.what, comm, given.rounds)
    if comm is None or comm.rank == 0:
        _publish(report, given.json)
    return 0


def _parser() -> FlagParser:
    parser = FlagParser(
        prog="psrt bench",
        description="Candidates take turns in one run; medians with quartiles. "
        "step: one process; ps: mpirun -n 5 measures up to 2 servers and 3 workers; "
        "train: mpirun -n 3.",
    )
    parser.add_argument("what", choices=tuple(RANKS), help="what to measure")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each candidate (9)")
    return parser


def _world(what: str) -> MPI.Comm | None:
    """Return the ranks to measure on."""
    needed = RANKS[what]
    if needed is None:
        return None
    comm = None
    if launched():
        from psrt.transport.start import world

        comm = world()
    if comm is None or comm.size < needed:
        raise ConfigError(
            f"bench {what} measures among ranks: mpirun -n {5 if what == 'ps' else 3} "
            f"python -m psrt bench {what}"
        )
    return comm


def _run(what: str, comm: MPI.Comm | None, rounds: int) -> dict[str, tuple[Any, str]]:
    """Return, by title, the rows and their table."""
    if rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, got {rounds}")
    if what == "step":
        from psrt.bench import step

        rows = step.run(rounds=rounds)
        return {"step": (rows, step.table(rows))}
    assert comm is not None
    if what == "ps":
        from psrt.bench import ps

        rows = ps.measure(comm, rounds=rounds)
        return {"push and pull": (rows, ps.table(rows) if rows else "")}
    from psrt.bench import overhead, train

    rows = train.measure(comm, rounds=rounds)
    costs = overhead.measure(comm, rounds=rounds)
    return {
        "training": (rows, train.table(rows) if rows else ""),
        "psrt itself": (costs, overhead.table(costs) if costs else ""),
    }


def _publish(report: dict[str, tuple[Any, str]], path: str | None) -> None:
    from psrt.bench.machine import machine
    from psrt.bench.measure import write_json

    about = machine()
    print(about)
    for title, (_, text) in report.items():
        print(f"\n{title}\n{text}")
    if path is not None:
        write_json(path, {"machine": about, **{t: rows for t, (rows, _) in report.items()}})
