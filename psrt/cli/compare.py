"""``psrt compare``: what differs between runs, in configuration and outcome. Needs no MPI."""

from __future__ import annotations

import math
from collections.abc import Sequence

from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.core.errors import ConfigError

_DESCRIPTION = """\
Compare runs by what they left in their folders: a line for each run, with the knobs that differ and
what came out, and how far that is from the baseline, which is the first run unless --baseline says
another. Of a run that is not over it takes the last line of its metrics. It also says what differs
of the machine and versions and, where runs were recorded, of the data."""


def compare_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(prog="psrt compare", description=_DESCRIPTION)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="output folders (--out) of the runs")
    parser.add_argument(
        "--target", metavar="A", help="also the time until the test accuracy was A, as 0.95"
    )
    parser.add_argument(
        "--sort", metavar="NAME",
        help="order runs by a figure or knob, as seconds, accuracy or lr, or --sort=-accuracy from "
        "the largest down; 'time to target' with --target",
    )  # fmt: skip
    parser.add_argument("--baseline", metavar="RUN", help="the run that others are compared with")
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

    found = compare(given.runs, target, sort=given.sort, baseline=given.baseline)
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
