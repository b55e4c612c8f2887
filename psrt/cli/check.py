"""``psrt check``: holds a recorded run against the contract of its mode. Needs no MPI."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import NoReturn

from psrt.cli.printing import say
from psrt.errors import ConfigError

_DESCRIPTION = """\
Hold the history of a run, as --record keeps it, against the contract of its mode: who may go on
and when, what makes an update, what a read must hold, that every gradient is used once and is as
stale as was recorded. Prints what was checked, or the first violation with the events that led
there. The exit status is 0 if nothing contradicts the contract, 1 if something does, and 2 if
there is no whole history."""


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
    parser.add_argument("run", metavar="RUN", help="folder of the run, as --out named it")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    given = parser.parse_args(argv)
    from psrt.history.check.run import check_run  # numpy only now: --help needs none

    outcome = check_run(given.run)
    text = json.dumps(outcome.document()) if given.json else "\n".join(outcome.lines())
    say(text)
    return 0 if outcome.ok else 1
