"""The page about some runs: its sections, and how much of each fits into its size."""

from __future__ import annotations

from collections.abc import Sequence

from psrt.core.errors import ConfigError
from psrt.core.progress import PROGRESS
from psrt.core.units import plural
from psrt.views.page.detail import Detail
from psrt.views.page.frame import check_installed, render
from psrt.views.page.lines import STYLES
from psrt.views.page.parts import Section
from psrt.views.report import (
    environment,
    kept,
    learning,
    neighbours,
    outcome,
    setting,
    stages,
    staleness,
    traffic,
    verdict,
    waiting,
)
from psrt.views.report.folder import RunFolder, read_run

#: Most bytes of a page.
MOST_NBYTES = 1_000_000
#: Most runs on a page: as many lines as can be distinguished.
MOST_RUNS = STYLES


def page_of(names: Sequence[str], *, check: bool = False) -> str:
    """Return the page about some runs, as HTML.

    Args:
        names: of their folders.
        check: whether to check histories of any size.

    Raises:
        ConfigError: if jinja2 is not installed, a folder is not that of a run, one is named twice,
            or there are too many.
    """
    check_installed()
    if len(names) > MOST_RUNS:
        raise ConfigError(f"a page shows at most {MOST_RUNS} runs, got {len(names)}")
    runs = [read_run(name) for name in PROGRESS.each(names, "reading", "run")]
    for i, run in enumerate(runs):
        if any(run.path.resolve() == other.path.resolve() for other in runs[:i]):
            raise ConfigError(f"{run.name} is given twice")
    with PROGRESS.doing("writing the page"):
        return _written(runs, check)


def _written(runs: Sequence[RunFolder], check: bool) -> str:
    before = [
        outcome.section(runs),
        *([setting.differences(runs)] if len(runs) > 1 else []),
        setting.section(runs),
        verdict.section(runs, always=check),
    ]
    behind = [kept.section(runs), environment.section(runs)]
    detail = Detail()
    while True:
        sections = [*before, *_charts(runs, detail), *behind]
        page = render(_title(runs), _lead(runs), sections)
        if len(page.encode()) <= MOST_NBYTES or detail == detail.coarser():
            return page
        detail = detail.coarser()


def _charts(runs: Sequence[RunFolder], detail: Detail) -> list[Section]:
    found = [
        learning.section(runs, detail),
        staleness.section(runs, detail),
        waiting.section(runs, detail),
        traffic.section(runs, detail),
        neighbours.section(runs, detail),
        stages.section(runs, detail),
    ]
    return [it for it in found if it is not None]


def _title(runs: Sequence[RunFolder]) -> str:
    return runs[0].name if len(runs) == 1 else plural(len(runs), "run")


def _lead(runs: Sequence[RunFolder]) -> str:
    if len(runs) > 1:
        return ", ".join(run.name for run in runs)
    run = runs[0]
    words = [run.mode or "a run of psrt", outcome.state(run)]
    return ("simulated: " if run.virtual else "") + ", ".join(words)
