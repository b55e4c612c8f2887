"""``psrt bench``: measures psrt on this machine, next to its competitors."""

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
from psrt.core.errors import ConfigError
from psrt.core.files import check_writable
from psrt.launch import launch_line, launched
from psrt.rows.knobs import dashed, read_flag
from psrt.rows.values import WHOLE

if TYPE_CHECKING:
    from mpi4py import MPI

#: The benchmark of all-reduces, and that of codecs, which needs no ranks.
_SUMS, _CODECS = "allreduce", "codec"
#: Flag → its benchmark, for flags that only one of them has.
_FOR = {
    **dict.fromkeys(
        ("sizes", "ranks", "hosts", "limit_s", "fit", "machine_costs", "quick", "force"), _SUMS
    ),
    "elements": _CODECS,
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
            raise ConfigError("bench codec runs in one process: psrt bench codec")
        run(given, None, _measure_codecs, (given.json,))
        return 0
    from psrt.cli.bench_allreduce import run as run_allreduce

    comm = world(2, "bench allreduce", 4, "bench allreduce")
    run(given, comm, run_allreduce, (given.json, given.fit))
    return 0


def run_script(
    measure: Callable[[argparse.Namespace, Any], Report],
    about: str | None,
    *,
    ranks: int = 0,
    flags: Callable[[FlagParser], None] = lambda parser: None,
) -> int:
    """Run a benchmark of the repository as a script with ``--rounds`` and ``--json``.

    Args:
        measure: takes the parsed flags and the communicator, which is None without ranks.
        about: description in the help text.
        ranks: smallest number of ranks; 0 runs one process without MPI.
        flags: adds more flags to the parser.

    Returns:
        The exit status.
    """
    name = Path(sys.argv[0]).name
    parser = FlagParser(prog=name, description=about)
    _add_flags(parser)
    flags(parser)

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
        paths: files that will be written; checked first, since measuring takes minutes.
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
        description="Measure psrt and its competitors, which take turns in one run. Prints medians "
        "with quartiles.\nallreduce runs on ranks, codec in one process:\n\n"
        "  psrt launch -n 4 bench allreduce\n"
        "  psrt bench codec",
    )
    parser.add_argument("what", choices=(_SUMS, _CODECS), help="what to measure")
    _add_flags(parser)
    parser.add_argument_group("bench codec only").add_argument(
        "--elements", metavar="N", help="length of the float32 vector (1048576)"
    )
    add = parser.add_argument_group("bench allreduce only").add_argument
    add(
        "--sizes",
        metavar="BYTES",
        help="vector sizes: A,B,... or FIRST:LAST, which grows 4-fold (1K:64M)",
    )
    add("--ranks", metavar="N,...", help="numbers of ranks to measure (2,4 if there are as many)")
    add(
        "--hosts",
        metavar="N,...",
        help="numbers of hosts, real or simulated, to spread the ranks over (1,2,4)",
    )
    add(
        "--limit-s",
        metavar="SECONDS",
        type=float,
        help="time limit for all of it; the largest sizes that do not fit are left out (240)",
    )
    add(
        "--machine-costs",
        metavar="FILE",
        help="read the machine's costs from a file that --fit wrote",
    )
    add(
        "--fit",
        metavar="FILE",
        help="measure the machine's communication costs and write them to this file, with the "
        "times of all all-reduces between these hosts",
    )
    for name, text in (
        ("--quick", "measure every other size, in 3 turns and within 20 s"),
        ("--force", "with --fit, write the costs even if the machine seems busy"),
    ):
        add(name, action="store_true", default=None, help=text)
    return parser


def _add_flags(parser: FlagParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    parser.add_argument(
        "--rounds", metavar="N", type=int, help="number of measurements of each candidate (9)"
    )
    add_flags(parser)


def _check(given: argparse.Namespace) -> None:
    """Raise for flags that cannot be combined."""
    _check_rounds(given)
    for name, benchmark in _FOR.items():
        if given.what != benchmark and getattr(given, name) is not None:
            raise ConfigError(
                f"--{dashed(name)} is for bench {benchmark}, not for bench {given.what}"
            )
    if given.force and given.fit is None:
        raise ConfigError("--force has no effect without --fit")
    if given.what == _CODECS:
        _elements(given)
    if given.limit_s is not None and not given.limit_s > 0:
        raise ConfigError(f"--limit-s must be above 0, got {given.limit_s:g}")
    if given.fit is not None and given.machine_costs is not None:
        raise ConfigError("--fit measures the costs that --machine-costs reads: give only one")
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


def _measure_codecs(given: argparse.Namespace, comm: None) -> Report:
    """Return title → rows and their table, for codecs."""
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
