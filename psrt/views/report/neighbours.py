"""Workers that average with neighbours: how far apart they were, and on which graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.report.summary import GraphAverages
from psrt.views.page.detail import Detail
from psrt.views.page.lines import line_chart
from psrt.views.page.parts import Note, Part, Section, Table
from psrt.views.page.words import NONE, nbytes, number
from psrt.views.report.folder import RunFolder
from psrt.views.report.learning import lines_of
from psrt.views.report.of_each import of_each


def section(runs: Sequence[RunFolder], detail: Detail) -> Section | None:
    """Return the section; None if no worker averages with neighbours."""
    lines = lines_of(runs, "consensus_distance", "step")
    graphs = list(of_each(runs, _of_one))
    if not lines and not graphs:
        return None
    parts: list[Part] = []
    figure = line_chart(
        "Distance from consensus, by steps", "step", "‖θ of a worker − mean‖/√n", lines,
        most=detail.points, log=True,
        caption="Root mean square over the workers: how far apart their models are.",
    )  # fmt: skip
    if figure is not None:
        parts.append(figure)
    else:
        parts.append(Note("The distance of workers was not measured during the run.", "missing"))
    return Section("consensus", "Consensus", [*parts, *graphs])


def _of_one(run: RunFolder) -> Iterator[Part]:
    if run.summary is not None and run.summary.graph_averages is not None:
        yield Table(list(_rows(run.summary.graph_averages)))


def _rows(found: GraphAverages) -> Iterator[tuple[str, str]]:
    yield "topology", found.topology
    yield "order", found.order or "in pairs, without rounds"
    if found.push_sum:
        yield "push-sum", "yes"
    yield "graphs in turn", f"{found.period:,}"
    if found.gap is not None:
        yield "spectral gap of a period", number(found.gap, 3)
    if found.step_bytes is not None:
        yield "bytes per worker and step", nbytes(found.step_bytes)
    yield "the final model is the mean of", f"{found.models:,}"
    apart = number(found.consensus_distance, 3)
    if apart != NONE:
        yield "how far apart they ended", apart
