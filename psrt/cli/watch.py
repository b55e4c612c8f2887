"""``psrt watch``: follows a run under way by the files that it writes. Needs no MPI."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Sequence

from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.core.errors import ConfigError, status_of

_INTERVAL_S, _SILENT_S = 2.0, 60.0
_DESCRIPTION = """\
Follow a run by the files in its folder, on any machine that sees them, until it is over: how far
it is and how long it will take, loss, samples a second, staleness, and who is slow. On a terminal,
with psrt-mpi[watch], that is drawn in place; else it is a line for each change. Ctrl-C ends
watching, not the run. The exit status is 0 when the run is over, and 1 when it ended early, or its
processes are gone."""


def watch_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(prog="psrt watch", description=_DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="output folder (--out) of the run")
    parser.add_argument(
        "--interval", metavar="SECONDS", default=_INTERVAL_S, help="between looks (default: 2)"
    )
    parser.add_argument(
        "--silent",
        metavar="SECONDS",
        default=_SILENT_S,
        help="say so when nothing was written for that long (default: 60)",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Watch until the run is over, and return the exit status.

    Raises:
        ConfigError: if there is no such run.
        SystemExit: after ``--help`` was printed.
    """
    given = watch_parser().parse(argv)
    interval_s = _seconds("interval", given.interval)
    silent_s = _seconds("silent", given.silent)
    from psrt.views.runs.watch import Lines, Panel, watch  # numpy only now: --help needs none

    drawn = sys.stdout.isatty() and importlib.util.find_spec("rich") is not None
    try:
        with Panel(given.run) if drawn else Lines(say) as display:
            return watch(given.run, display, interval_s=interval_s, silent_s=silent_s)
    except KeyboardInterrupt as end:
        if end.args[:1] not in ((), (2,)):  # another signal than that of Ctrl-C
            raise
        return status_of(end)


def _seconds(name: str, text: str | float) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.05 <= found <= 86400:
        raise ConfigError(f"{name} must be a number of seconds from 0.05 to 86400, got {text!r}")
    return found
