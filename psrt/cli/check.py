"""``psrt check``: checks a recorded run against the guarantees of its mode. Needs no MPI."""

from __future__ import annotations

import json
from collections.abc import Sequence

from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.cli.progress import add_flags, shown

_DESCRIPTION = """\
Check the history of a run, which --record writes, against the guarantees of its mode: when a worker
may continue, which gradients form an update, and which updates a read contains. Every gradient must
be used exactly once, with the recorded staleness. Prints the checks, or the first violation and the
events that led to it.

The exit status is 0 if all guarantees hold, 1 if one is violated, and 2 if there is no complete
history."""


def check_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(prog="psrt check", description=_DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="output folder (--out) of the run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Check a run and return the exit status.

    Raises:
        ConfigError: if there is no history, or it is damaged or of another run.
        SystemExit: after ``--help`` was printed.
    """
    given = check_parser().parse(argv)
    from psrt.history.check.run import check_run  # numpy only now: --help needs none

    with shown(given):
        outcome = check_run(given.run)
    text = json.dumps(outcome.document()) if given.json else "\n".join(outcome.lines())
    say(text)
    return 0 if outcome.ok else 1
