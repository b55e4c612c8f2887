"""The result of ``psrt check``: whether the run kept the guarantees of its mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.core.errors import ConfigError
from psrt.core.units import plural, size_text
from psrt.history.check import RULES, Outcome
from psrt.history.check.run import check_run
from psrt.views.page.parts import Code, Note, Part, Section, Table
from psrt.views.report.folder import RunFolder
from psrt.views.report.of_each import of_each

#: Largest history that is checked by default: a check takes several times its size in memory.
MOST_NBYTES = 128 << 20
#: Lines of a violation that are shown.
_MOST_LINES = 40


def section(runs: Sequence[RunFolder], *, always: bool = False) -> Section:
    """Return the section; ``always`` checks histories of any size."""
    parts = of_each(runs, lambda run: _of_one(run, always))
    return Section("check", "Check of the history", list(parts))


def _of_one(run: RunFolder, always: bool) -> Iterator[Part]:
    if not run.has_history:
        yield Note(
            "No history, so the guarantees of the mode cannot be checked; --record writes one.",
            "missing",
        )  # fmt: skip
        return
    if run.history_nbytes > MOST_NBYTES and not always:
        yield Note(
            f"Not checked: the history has {size_text(run.history_nbytes)}, and a check needs more "
            f"memory than that. Use psrt check {run.name}, or --check here.", "missing",
        )  # fmt: skip
        return
    try:
        outcome = check_run(run.path)
    except ConfigError as error:
        yield Note(f"Not checked: {error}", "missing" if run.summary is None else "bad")
        return
    yield from _told(run, outcome)


def _told(run: RunFolder, outcome: Outcome) -> Iterator[Part]:
    if outcome.violation is not None:
        rule = outcome.violation.rule
        yield Note(f"violated: {rule}: {RULES[rule]}", "bad")
        lines = outcome.lines()[2:]
        yield Code("\n".join(lines[:_MOST_LINES]), f"psrt check {run.name}")
        return
    text = "The history agrees with the guarantees of its mode"
    yield Note(f"{text}: {outcome.contract}, {plural(outcome.events, 'event')}.", "good")
    for name, why in outcome.unchecked.items():
        yield Note(f"{name}: not checked, {why}.", "missing")
    rows = [(name, RULES[name], f"{count:,}") for name, count in outcome.checked.items() if count]
    caption = f"{plural(len(rows), 'rule')} and how often each was checked"
    yield Table(rows, ("rule", "what holds", "times"), caption, folded=True)
