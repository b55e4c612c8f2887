"""Bytes sent: of all ranks, and in frames of a codec next to the vectors that they encode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.report.summary import Summary
from psrt.views.page.bars import bar_chart
from psrt.views.page.detail import Detail
from psrt.views.page.lines import line_chart
from psrt.views.page.parts import Note, Part, Section, Table
from psrt.views.page.words import NONE, nbytes, number
from psrt.views.report.folder import RunFolder
from psrt.views.report.learning import lines_of


def section(runs: Sequence[RunFolder], detail: Detail) -> Section:
    """Return the section."""
    parts: list[Part] = []
    figure = line_chart(
        "Bytes sent by workers, by steps", "step", "bytes", lines_of(runs, "bytes_sent", "step"),
        most=detail.points, zero=True,
    )  # fmt: skip
    coded = [run for run in runs if run.summary is not None and run.summary.framed_bytes]
    if figure is not None and any(run.metrics and run.metrics["bytes_sent"].any() for run in runs):
        parts.append(figure)
    if coded:
        parts.append(_frames(coded))
    summaries = [(run.name, run.summary) for run in runs if run.summary is not None]
    if summaries:
        parts.append(_table(summaries))
    if not parts:
        parts.append(Note("Not known: there is no summary.", "missing"))
    return Section("bytes", "Bytes", parts)


def _frames(runs: Sequence[RunFolder]) -> Part:
    rows = []
    for run in runs:
        assert run.summary is not None, "it has frames"
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        rows += [
            (f"{prefix}{_codec(run)}", [float(max(0, run.summary.frame_bytes))]),
            (f"{prefix}as float32", [float(max(0, run.summary.framed_bytes))]),
        ]
    return bar_chart(
        "Frames of the codec", rows, ("bytes",), nbytes,
        axis=False,
        caption="Bytes sent, above the bytes of the vectors that they encode.",
    )  # fmt: skip


def _codec(run: RunFolder) -> str:
    codec = None if run.config is None else run.config.codec
    return "frames" if codec is None else str(codec.name)


def _table(summaries: Sequence[tuple[str, Summary]]) -> Table:
    columns = [dict(_rows(summary)) for _, summary in summaries]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [(name, *(column.get(name, NONE) for column in columns)) for name in names]
    several = len(summaries) > 1
    head = ("", *(name for name, _ in summaries)) if several else ()
    return Table(rows, head)


def _rows(it: Summary) -> Iterator[tuple[str, str]]:
    yield "sent by all ranks", nbytes(it.bytes_sent)
    yield "received by all ranks", nbytes(it.bytes_received)
    if it.bytes_sent and it.steps * it.workers:
        yield "sent per worker and step", nbytes(it.bytes_sent / (it.steps * it.workers))
    if it.framed_bytes:
        yield "frames", nbytes(it.frame_bytes)
        yield "vectors that they encode", nbytes(it.framed_bytes)
    if it.frame_bytes:
        yield "compression ratio", number(it.framed_bytes / it.frame_bytes, 3)
    if it.cut_bytes_sent:
        yield "between stages and slices", nbytes(it.cut_bytes_sent)
    if it.allreduce is not None:
        why = f" ({it.allreduce_why})" if it.allreduce_why else ""
        yield "all-reduce", f"{it.allreduce}{why}"
    if it.averages is not None:
        every = f"{it.averages.local_steps:,} steps"
        yield "averages", f"{nbytes(it.averages.period_bytes)} every {every}"
