"""``psrt watch``: follows a running job by the files that it writes. Needs no MPI."""

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
Follow a run by the files in its folder until it ends, on any machine that sees the folder. Shows
progress and the time left, loss, samples per second, staleness, and the slowest worker. On a
terminal, with psrt-mpi[watch], the display is redrawn in place; otherwise each change is a line.
Ctrl-C ends watching, not the run. The exit status is 0 when the run has finished, and 1 when it
ended early or its processes are gone."""


def watch_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(prog="psrt watch", description=_DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="output folder (--out) of the run")
    parser.add_argument(
        "--interval", metavar="SECONDS", default=_INTERVAL_S, help="time between looks (default: 2)"
    )
    parser.add_argument(
        "--silent",
        metavar="SECONDS",
        default=_SILENT_S,
        help="report a run that writes nothing for this long (default: 60)",
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
        if end.args[:1] not in ((), (2,)):  # a signal other than Ctrl-C's
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
