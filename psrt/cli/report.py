"""``psrt report``: a page about runs, made from their files. Needs no MPI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from psrt.cli.flags import FlagParser
from psrt.cli.page_file import add_overwrite, check_page_file, write_page
from psrt.cli.printing import say
from psrt.cli.progress import add_flags, shown
from psrt.core.units import plural

_DESCRIPTION = """\
Write an HTML page about one run, or several side by side: what was run and how to repeat it, how it
ended, the result of psrt check, loss and accuracy, staleness, waiting, bytes, consensus, pipelines,
checkpoints, and the environment. The page is one file, needs no network and opens in any browser.
For a run that was killed or has damaged files, it shows what can be read, and lists what cannot.
Needs jinja2, psrt's extra report: pip install 'jinja2>=3.1'.

  psrt report runs/ssp
  psrt report runs/ssp runs/sync -o compared.html"""


def report_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(prog="psrt report", description=_DESCRIPTION)
    parser.add_argument("run", metavar="RUN", nargs="+", help="output folder (--out) of a run")
    parser.add_argument(
        "-o", "--output", metavar="FILE",
        help="write the page to this file (default: report-RUN.html; report.html for several runs)",
    )  # fmt: skip
    add_overwrite(parser)
    parser.add_argument(
        "--check", action="store_true",
        help="also check histories above 128 MiB, which takes several times their size in memory",
    )  # fmt: skip
    parser.synonyms = {"out": "output"}
    add_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Write a page and return the exit status.

    Raises:
        ConfigError: if a folder is not that of a run, the page cannot be written, or jinja2 is
            missing.
        SystemExit: after ``--help`` was printed.
    """
    given = report_parser().parse(argv)
    output = given.output or _default(given.run)
    check_page_file(output, "-o", overwrite=given.overwrite)
    from psrt.views.report.page import page_of  # numpy only now: --help needs none

    with shown(given):
        page = page_of(given.run, check=given.check)
    say(write_page(output, page, plural(len(given.run), "run")))
    return 0


def _default(runs: Sequence[str]) -> str:
    """Return the default file, which differs from that of the next run."""
    return f"report-{Path(runs[0]).absolute().name}.html" if len(runs) == 1 else "report.html"
