"""The parts of a section that are about one run each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from psrt.views.page.parts import Heading, Part
from psrt.views.report.folder import RunFolder


def of_each(
    runs: Sequence[RunFolder], parts_of: Callable[[RunFolder], Iterable[Part]]
) -> Iterator[Part]:
    """Yield the parts of each run that has any, under its name if there are several runs."""
    for style, run in enumerate(runs):
        own = list(parts_of(run))
        if own and len(runs) > 1:
            yield Heading(run.name, style)
        yield from own
