"""``psrt compare``: what differs between runs, in configuration and outcome. Needs no MPI."""

from __future__ import annotations

import math
from collections.abc import Sequence

from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.core.errors import ConfigError

_DESCRIPTION = """\
Compare runs by the files in their folders. Prints a line for each run: the knobs that differ, the
results, and their difference from the baseline, which is the first run unless --baseline names
another. For a run that has not finished, the last line of its metrics counts. Also prints which
machines and versions differ and, if the runs were recorded, which data.

Runs that differ only in their seed are one line: mean ± standard deviation."""


def compare_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(prog="psrt compare", description=_DESCRIPTION)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="output folders (--out) of the runs")
    parser.add_argument(
        "--target", metavar="A", help="also print the time until test accuracy A, such as 0.95"
    )
    parser.add_argument(
        "--sort", metavar="NAME",
        help="sort runs by a figure or knob, such as seconds, accuracy or lr; --sort=-accuracy "
        "sorts in descending order; with --target also by 'time to target'",
    )  # fmt: skip
    parser.add_argument(
        "--rank", metavar="NAME",
        help="put the best run first, by a figure such as accuracy, 'test loss' or seconds",
    )  # fmt: skip
    parser.add_argument(
        "--each", action="store_true", help="show each run, also if only the seed differs"
    )
    parser.add_argument("--baseline", metavar="RUN", help="compare with this run (the first one)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the table and return the exit status.

    Raises:
        ConfigError: if a folder is not that of a run.
        SystemExit: after ``--help`` was printed.
    """
    given = compare_parser().parse(argv)
    target = None if given.target is None else _accuracy(given.target)
    from psrt.report.strict_json import dumps
    from psrt.views.runs.comparison import compare  # numpy only now: --help needs none

    found = compare(
        given.runs,
        target,
        sort=given.sort,
        rank=given.rank,
        baseline=given.baseline,
        each=given.each,
    )
    say(dumps(found.document()) if given.json else "\n".join(found.lines()))
    return 0


def _accuracy(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found <= 1:
        raise ConfigError(f"target must be a number above 0 and at most 1, got {text!r}")
    return found
