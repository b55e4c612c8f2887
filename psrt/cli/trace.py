"""``psrt trace``: the trace of a run, for a trace viewer. Needs no MPI."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.cli.progress import add_flags, shown
from psrt.core.errors import ConfigError

#: Same as in ``psrt.views.trace.trace``, which needs numpy.
_FORMATS = ("perfetto", "json")
_MOST_MB = 64.0
_DESCRIPTION = """\
Draw the history of a run, real or simulated, that --record wrote. Each rank has tracks for
computing, waiting, sums and updates, arrows from push to reply, and curves of staleness, gaps and
bytes. Open the file at https://ui.perfetto.dev, which reads it in the browser, or in
chrome://tracing."""


def trace_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(prog="psrt trace", description=_DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="output folder (--out) of the run")
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        help="file to write (default: RUN.pftrace or RUN.trace.json.gz in this folder)",
    )
    parser.add_argument(
        "--steps", metavar="A:B", help="draw only the time of steps A to B − 1 (default: all)"
    )
    parser.add_argument("--ranks", metavar="0,3-5", help="draw only these ranks (default: all)")
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        help="perfetto, which needs psrt-mpi[trace], or json, gzipped trace events of Chrome "
        "(default: perfetto if installed)",
    )
    parser.add_argument(
        "--max-mb",
        metavar="MB",
        default=_MOST_MB,
        help="largest size of the trace, uncompressed; later events are cut off (default: 64)",
    )
    parser.add_argument("--json", action="store_true", help="print a summary of the trace as JSON")
    add_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the trace and return the exit status.

    Raises:
        ConfigError: if there is no history, or nothing to draw, or the file cannot be written.
        SystemExit: after ``--help`` was printed.
    """
    given = trace_parser().parse(argv)
    most = _megabytes(given.max_mb)
    from psrt.views.trace import trace_run  # numpy only now: --help needs none

    with shown(given):
        traced = trace_run(
            given.run,
            given.out,
            steps=given.steps,
            ranks=given.ranks,
            format=given.format,
            most_bytes=most,
        )
    say(json.dumps(traced.document()) if given.json else "\n".join(traced.lines()))
    return 0


def _megabytes(text: str | float) -> float:
    """Return a size in bytes.

    Raises:
        ConfigError: if the text is not a size.
    """
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.01 <= found <= 1e6:
        raise ConfigError(f"max-mb must be a number from 0.01 to 1e6, got {text!r}")
    return found * 1e6
