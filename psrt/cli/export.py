"""``psrt export``: the metrics of runs for other tools. Needs no MPI."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence

from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.core.errors import ConfigError
from psrt.core.files import check_writable, write_text
from psrt.core.units import plural

CSV, SVG, TENSORBOARD = "csv", "svg", "tensorboard"
#: What curves run over.
_OVER = ("seconds", "samples", "epoch", "step")
_DESCRIPTION = """\
Write the metrics of runs for other tools, even while the runs are training:

  psrt export csv runs/a runs/b -o metrics.csv
  psrt export svg runs/a runs/b --y accuracy --x samples -o curves.svg
  psrt export tensorboard runs/a runs/b --to boards
  tensorboard --logdir boards

csv writes a line for each record of metrics.jsonl. svg draws one of its columns; runs that differ
only in their seed are one curve, their mean in a band of one standard deviation. tensorboard, which
needs psrt-mpi[tensorboard], writes a folder for each run: scalars by step and by time, histograms
of staleness, and the configuration."""


def export_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(prog="psrt export", description=_DESCRIPTION)
    parser.add_argument("format", choices=(CSV, SVG, TENSORBOARD), help="csv, svg or tensorboard")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="output folders (--out) of the runs")
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="with csv or svg: write to this file (default: stdout)"
    )
    parser.add_argument(
        "--y", metavar="NAME",
        help="with svg: draw this column, such as loss, test_loss or accuracy (default: loss)",
    )  # fmt: skip
    parser.add_argument("--x", choices=_OVER, help="with svg: draw it over this (default: seconds)")
    parser.add_argument(
        "--each", action="store_true", help="with svg: a curve for each run, also of several seeds"
    )
    parser.add_argument(
        "--to", metavar="DIR", help="with tensorboard: write a folder for each run in this one"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the files and return the exit status.

    Raises:
        ConfigError: if a folder is not that of a run, or the output cannot be written.
        SystemExit: after ``--help`` was printed.
    """
    given = export_parser().parse(argv)
    if given.format != SVG:
        for flag in ("x", "y", "each"):
            if getattr(given, flag):
                raise ConfigError(f"--{flag} has no effect with {given.format}, only with svg")
    if given.format != TENSORBOARD and given.to is not None:
        raise ConfigError(f"--to has no effect with {given.format}: use -o FILE")
    if given.format == CSV:
        return _csv(given.runs, given.out)
    if given.format == SVG:
        return _svg(given)
    if given.out is not None:
        raise ConfigError("--out has no effect with tensorboard: use --to DIR")
    if given.to is None:
        raise ConfigError("tensorboard needs --to DIR, the folder to write to")
    from psrt.views.runs.tensorboard import export  # numpy only now: --help needs none

    for folder in export(given.runs, given.to):
        say(str(folder))
    return 0


def _svg(given: argparse.Namespace) -> int:
    from psrt.views.runs.curves import curves, drawing

    check_writable(given.out)
    x, y = given.x or "seconds", given.y or "loss"
    found = curves(given.runs, x, y, each=given.each)
    text = drawing(found, x, y).as_text()
    if given.out is None:
        say(text.rstrip("\n"))
    else:
        write_text(given.out, text)
        count = plural(len(found), "curve")
        say(f"{given.out}: {count} of {plural(len(given.runs), 'run')}, {y} by {x}")
    return 0


def _csv(runs: Sequence[str], out: str | None) -> int:
    from psrt.views.runs.metrics_csv import write_csv

    check_writable(out)
    text = io.StringIO(newline="")
    rows = write_csv(runs, text)
    if out is None:
        say(text.getvalue().rstrip("\n"))
    else:
        write_text(out, text.getvalue())
        say(f"{out}: {plural(rows, 'record')} of {plural(len(runs), 'run')}")
    return 0
