"""``psrt check``: holds a recorded run against the contract of its mode. Needs no MPI."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import NoReturn

from psrt.cli.printing import say
from psrt.errors import ConfigError

_DESCRIPTION = """\
Check the history of a run, which --record writes, against the promises of its mode: when a worker
may go on, which gradients make an update, what a read contains, that every gradient is used once,
and that its staleness is the recorded one. Prints what was checked, or the first violation and the
events that led to it. The exit status is 0 if all promises were kept, 1 if one was broken, and 2
if there is no complete history."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; psrt check --help says more")


def main(argv: Sequence[str]) -> int:
    """Check a run and return the exit status.

    Raises:
        ConfigError: if there is no history, or it is damaged or of another run.
        SystemExit: after ``--help`` was printed.
    """
    parser = _Parser(
        prog="psrt check",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run, given as --out")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(argv)
    from psrt.history.check.run import check_run  # numpy only now: --help needs none

    outcome = check_run(given.run)
    text = json.dumps(outcome.document()) if given.json else "\n".join(outcome.lines())
    say(text)
    return 0 if outcome.ok else 1
