"""Model parallelism: which rank has which part, and how long stages were idle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from psrt.config.axes import axes_of
from psrt.core.errors import ConfigError
from psrt.pipeline.registry import schedule_of
from psrt.pipeline.schedule import Passes
from psrt.report.summary import ModelCut
from psrt.views.page.bars import bar_chart
from psrt.views.page.detail import Detail
from psrt.views.page.heat_map import group_names, grouped
from psrt.views.page.parts import Figure, Note, Part, Section, Table
from psrt.views.page.words import nbytes, percent
from psrt.views.report.folder import RunFolder
from psrt.views.report.of_each import of_each


def section(runs: Sequence[RunFolder], detail: Detail) -> Section | None:
    """Return the section; None if no run has model parallelism."""
    parts = list(of_each(runs, lambda run: _of_one(run, detail)))
    return Section("pipeline", "Pipeline", parts) if parts else None


def _of_one(run: RunFolder, detail: Detail) -> Iterator[Part]:
    cut = None if run.summary is None else run.summary.model_cut
    if cut is None:
        return
    rows = [
        ("copies, stages and slices", cut.parallel),
        ("schedule", cut.schedule),
        ("micro-batches", f"{cut.micro_batches:,}"),
    ]
    if (bubble := bubble_of(cut)) is not None:
        rows.append(("bubble, if all stages were equally slow", percent(bubble)))
    yield Table(rows)
    yield _parts(cut, detail)
    figure = _measured(run, detail)
    if figure is not None:
        yield figure
    else:
        yield Note(
            "The idle time of stages is not recorded; --record writes it.", "missing"
        )  # fmt: skip


def bubble_of(cut: ModelCut) -> float | None:
    """Return the share of the time in which stages are idle, by the schedule's closed form.

    All passes take equally long, and messages no time; None for an unknown schedule.
    """
    try:
        chosen = schedule_of(cut.schedule)
        schedule, chunks = chosen.row, chosen.chunks
        stages = axes_of(cut.parallel).pipeline
    except (ConfigError, ValueError):
        return None
    if schedule.asynchronous or not 0 < cut.micro_batches < 10**6:
        return None
    passes = Passes()
    idle = schedule.idle(stages, cut.micro_batches, chunks, passes)
    return idle / (idle + cut.micro_batches * passes.seconds)


def _parts(cut: ModelCut, detail: Detail) -> Table:
    groups = grouped(len(cut.parameters), detail.rows)
    rows = []
    for (start, stop), name in zip(groups, group_names(groups), strict=True):
        memory = cut.memory[start:stop]
        rows.append(
            (name, f"{sum(cut.parameters[start:stop]):,}", nbytes(sum(memory)) if memory else "–")
        )
    layers = " + ".join(map(str, cut.layers[: detail.rows]))
    return Table(
        rows,
        ("part", "parameters", "memory of a worker"),
        f"Layers: {layers}",
        numbers=True,
    )


def _measured(run: RunFolder, detail: Detail) -> Figure | None:
    """Return bars: the share of the time in which each worker, or stage, computed."""
    if run.events is not None and run.events.computed.any():
        with np.errstate(all="ignore"):
            busy = np.clip(np.nan_to_num(run.events.computed / run.events.spanned), 0.0, 1.0)
        what, of = "worker", "the time from its first micro-batch to its last"
    elif run.simulation is not None and run.simulation.stages:
        busy = np.clip(np.array(run.simulation.stages, float), 0.0, 1.0)
        what, of = "stage", "the virtual time, on average over copies and slices"
    else:
        return None
    groups = grouped(len(busy), detail.rows)
    rows = [
        (f"{what} {name}", [float(busy[start:stop].mean())])
        for (start, stop), name in zip(groups, group_names(groups), strict=True)
    ]
    return bar_chart(
        "Time spent computing", rows, ("computing",), percent, highest=1.0,
        caption=f"Of each {what}, the share of {of}. The rest is the bubble, messages, sums and "
        "updates.",
    )  # fmt: skip
