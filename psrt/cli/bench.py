"""``psrt bench``: measures psrt on this machine, side by side with its competitors."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.cli.process import run_command
from psrt.cli.progress import add_flags, shown
from psrt.config.knobs import dashed, knobs_of, read, read_flag
from psrt.config.names import AUTO
from psrt.config.train import TrainConfig
from psrt.config.values import WHOLE
from psrt.errors import ConfigError
from psrt.files import check_writable
from psrt.mpirun import launch_line, launched

if TYPE_CHECKING:
    from mpi4py import MPI

#: The benchmark of sums, which is called as a mode is.
_SUMS = "allreduce"
#: That of pushes and pulls.
_PUSHES = "ps"
#: That of models cut across ranks.
_CUTS = "pipeline"
#: Benchmark → the smallest number of ranks, and the number for its full table.
RANKS = {_SUMS: (2, 4), _PUSHES: (2, 5), "train": (3, 3), _CUTS: (2, 2)}
#: That of codecs, which needs no ranks.
_CODECS = "codec"
#: Flag → the benchmarks that it is for, where it is not for all.
_FOR = {
    **dict.fromkeys(
        ("ranks", "hosts", "limit_s", "fit", "machine_costs", "quick", "force"), (_SUMS,)
    ),
    **dict.fromkeys(("mode", "servers", "workers"), (_PUSHES,)),
    "sizes": (_SUMS, _PUSHES),
    "elements": (_CODECS,),
    "shards_per_server": (_PUSHES, "train"),
}

#: Title → rows and their table; tables are empty except on rank 0.
Report = dict[str, tuple[Any, str]]


def main(argv: Sequence[str]) -> int:
    """Run a benchmark; rank 0 prints the table and writes the JSON.

    Returns:
        0.

    Raises:
        ConfigError: on every rank, for invalid flags or too few ranks.
    """
    given = bench_parser().parse(argv)
    _check(given)
    if given.what == _CODECS:
        if launched():
            raise ConfigError("bench codec is for one process: psrt bench codec")
        run(given, None, _measure_codecs, (given.json,))
        return 0
    needed, usual = RANKS[given.what]
    comm = world(needed, f"bench {given.what}", usual, f"bench {given.what}")
    run(given, comm, _measure, (given.json, given.fit))
    return 0


def run_script(
    measure: Callable[[argparse.Namespace, Any], Report], about: str | None, *, ranks: int = 0
) -> int:
    """Run a benchmark of the repository as a script with ``--rounds`` and ``--json``.

    Args:
        measure: takes the parsed flags and the communicator, which is None without ranks.
        about: description in the help text.
        ranks: smallest number of ranks; 0 runs one process without MPI.

    Returns:
        The exit status.
    """
    name = Path(sys.argv[0]).name
    parser = FlagParser(prog=name, description=about)
    _add_flags(parser)

    def command() -> int:
        given = parser.parse(sys.argv[1:])
        _check_rounds(given)
        run(
            given, world(ranks, name, ranks, sys.argv[0]) if ranks else None, measure, (given.json,)
        )
        return 0

    return run_command(command, name)


def world(needed: int, what: str, usual: int, command: str) -> MPI.Comm:
    """Return a communicator of all ranks.

    Args:
        needed: smallest number of ranks.
        what: the benchmark, for the message.
        usual: number of ranks that the message suggests.
        command: command line that the message suggests.

    Raises:
        ConfigError: if there are fewer than ``needed``.
    """
    if launched():
        from psrt.mpi.start import world as all_ranks

        comm = all_ranks()
        if comm.size >= needed:
            return comm
    raise ConfigError(f"{what} needs {needed} ranks or more: {launch_line(usual, command)}")


def run(
    given: argparse.Namespace,
    comm: MPI.Comm | None,
    measure: Callable[[argparse.Namespace, Any], Report],
    paths: Sequence[str | None],
) -> None:
    """Measure, print and write; collective.

    Args:
        given: the parsed flags.
        comm: all ranks; None for one process without MPI.
        measure: takes both.
        paths: files to be written; they are tried before minutes are spent on measuring.
    """
    if comm is None:
        for path in paths:
            check_writable(path)
        with shown(given):
            report = measure(given, None)
        _publish(report, given.json)
        return
    from psrt.mpi.agreement import raise_on_all
    from psrt.mpi.monitor import watched

    with watched(comm):  # one rank's failure ends all of them
        with raise_on_all(comm):
            for path in paths if comm.rank == 0 else ():
                check_writable(path)
        with shown(given):
            report = measure(given, comm)
        with raise_on_all(comm):
            if comm.rank == 0:
                _publish(report, given.json)


def bench_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(
        prog="psrt bench",
        description="Measure psrt side by side with its competitors, which take turns in one run.\n"
        "Prints medians with quartiles. Run it on ranks, but for codecs:\n\n"
        "  psrt launch -n 4 bench allreduce\n"
        "  psrt launch -n 5 bench ps         up to 2 servers and 3 workers\n"
        "  psrt launch -n 3 bench train\n"
        "  psrt launch -n 2 bench pipeline\n"
        "  psrt bench codec",
    )
    parser.add_argument("what", choices=(*RANKS, _CODECS), help="what to measure")
    _add_flags(parser)
    parser.add_argument_group("bench ps and bench train only").add_argument(
        "--shards-per-server",
        metavar="K|auto",
        help="number of shards that a server of psrt owns (auto, as in training)",
    )
    parser.add_argument_group("bench allreduce and bench ps only").add_argument(
        "--sizes",
        metavar="BYTES",
        help="vector sizes: A,B,... or FIRST:LAST, each 4 times the one before (1K:64M; ps: "
        "1K,64K,1M,16M)",
    )
    add = parser.add_argument_group("bench ps only").add_argument
    add("--mode", metavar="NAME", help="mode of psrt, and of the plain loop: sync or async (async)")
    add("--servers", metavar="N,...", help="numbers of servers (1,2 as far as there are ranks)")
    add("--workers", metavar="N,...", help="numbers of workers (1,2,3 as far as there are ranks)")
    parser.add_argument_group("bench codec only").add_argument(
        "--elements", metavar="N", help="float32 numbers of the vector (1048576)"
    )
    add = parser.add_argument_group("bench allreduce only").add_argument
    add("--ranks", metavar="N,...", help="numbers of ranks to measure (2,4 as far as there are)")
    add(
        "--hosts",
        metavar="N,...",
        help="numbers of hosts, real or pretended, to spread the ranks over (1,2,4)",
    )
    add(
        "--limit-s",
        metavar="SECONDS",
        type=float,
        help="leave out the largest sizes that do not fit into this time (240)",
    )
    add(
        "--machine-costs",
        metavar="FILE",
        help="read the machine's costs from a file that --fit wrote",
    )
    add(
        "--fit",
        metavar="FILE",
        help="measure the machine's costs and write them to this file, with the times of all "
        "all-reduces between these hosts",
    )
    for name, text in (
        ("--quick", "measure every other size, in 3 turns and within 20 s"),
        ("--force", "with --fit, write costs that look like those of a busy machine, too"),
    ):
        add(name, action="store_true", default=None, help=text)
    return parser


def _add_flags(parser: FlagParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    parser.add_argument(
        "--rounds", metavar="N", type=int, help="number of turns of each candidate (9)"
    )
    add_flags(parser)


def _check(given: argparse.Namespace) -> None:
    """Raise for flags that do not go together."""
    _check_rounds(given)
    for name, benchmarks in _FOR.items():
        if given.what not in benchmarks and getattr(given, name) is not None:
            raise ConfigError(
                f"--{dashed(name)} is for bench {' and '.join(benchmarks)}, not for bench "
                f"{given.what}"
            )
    if given.force and given.fit is None:
        raise ConfigError("--force has no effect without --fit")
    if given.shards_per_server is not None:
        _shards(given)
    if given.what == _CODECS:
        _elements(given)
    if given.limit_s is not None and not given.limit_s > 0:
        raise ConfigError(f"--limit-s must be above 0, got {given.limit_s:g}")
    if given.fit is not None and given.machine_costs is not None:
        raise ConfigError("--fit measures the costs that --machine-costs reads: give one of them")
    paths = [os.path.abspath(path) for path in (given.fit, given.json) if path is not None]
    if len(set(paths)) < len(paths):
        raise ConfigError(f"--fit and --json would both write {given.json}")


def _check_rounds(given: argparse.Namespace) -> None:
    if given.rounds is None:
        given.rounds = 3 if getattr(given, "quick", None) else 9
    if given.rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, got {given.rounds}")


def _elements(given: argparse.Namespace) -> int:
    """Return the length of the vector that codecs are measured on."""
    return int(read_flag("elements", WHOLE, given.elements or "1048576", min=1, max=1 << 28))


def _shards(given: argparse.Namespace) -> int | None:
    """Return the number of shards of a server; None leaves it to psrt."""
    knob = knobs_of(TrainConfig)["shards_per_server"]
    each = read("shards_per_server", knob, given.shards_per_server or AUTO)
    return None if each == AUTO else int(each)


def _measure(given: argparse.Namespace, comm: MPI.Comm) -> Report:
    """Return title → rows and their table."""
    rounds: int = given.rounds
    if given.what == _SUMS:
        from psrt.cli.bench_allreduce import run as run_allreduce

        return run_allreduce(given, comm)
    if given.what == _PUSHES:
        from psrt.cli.bench_ps import run as run_ps

        return run_ps(given, comm, shards_per_server=_shards(given))
    from psrt.bench.figures import table

    if given.what == _CUTS:
        from psrt.bench import pipeline

        rows = pipeline.measure(comm, rounds=rounds)
        return {"models cut in two": (rows, table(rows, pipeline.COLUMNS))}
    from psrt.bench import overhead, train

    each = _shards(given)
    rows = train.measure(comm, shards_per_server=each, rounds=rounds)
    costs = overhead.measure(comm, rounds=rounds)
    return {
        "training": (rows, table(rows, train.COLUMNS)),
        "psrt itself": (costs, table(costs, overhead.COLUMNS)),
    }


def _measure_codecs(given: argparse.Namespace, comm: None) -> Report:
    """Return title → rows and their table, of codecs."""
    from psrt.bench import codec, codec_limits
    from psrt.bench.figures import table

    rows = codec.measure(n=_elements(given), rounds=given.rounds)
    limits = codec_limits.limits(rows)
    return {
        "codecs": (rows, table(rows, codec.COLUMNS)),
        codec_limits.TITLE: (limits, codec_limits.table(limits)),
    }


def _publish(report: Report, path: str | None) -> None:
    from psrt.bench.figures import machine, write_json

    about = machine()
    say(about)
    for title, (_, text) in report.items():
        say(f"\n{title}\n{text}")
    if path is not None:
        write_json(path, {"machine": about, **{t: rows for t, (rows, _) in report.items()}})
