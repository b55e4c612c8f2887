"""One run, real or simulated: who was how stale, and who waited for what."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from script import make_folder, say

from psrt.cli.flags import FlagParser
from psrt.core.errors import ConfigError
from psrt.core.files import read_text
from psrt.report import Summary, Waiting, read_metrics
from psrt.report.figure import check_installed
from studies import staleness_plot

#: Of each line of ``metrics.jsonl``, numbers or null.
SERIES = ("seconds", "gap_mean", "consensus_distance")
#: Workers that the text tells of, those that waited longest first.
TOLD = 10


def add_flags(flags: FlagParser) -> None:
    """Add the one flag besides the run."""
    flags.add_argument(
        "--out", type=Path, metavar="DIR", help="where staleness.png goes (default: the run's)"
    )


def show(options: Namespace) -> None:
    """Say the most important of it, and draw the rest."""
    check_installed()
    summary = summary_of(options.run / "summary.json")
    records = [series(record) for record in read_metrics(options.run / "metrics.jsonl")]
    say(text(summary))
    out = options.out or options.run
    make_folder(out)
    note = f"{summary.mode}, {several(summary.workers, 'worker')}"
    note += f", {several(summary.servers, 'server')}: {options.run}"
    staleness_plot.draw(summary, records, out / "staleness.png", note=note)
    say(f"\nwritten to {out / 'staleness.png'}")


def summary_of(path: Path) -> Summary:
    """Return the summary of a run.

    Raises:
        ConfigError: if there is none, or it is not one of this psrt.
    """
    try:
        summary = Summary.from_json(read_text(str(path), "JSON"))
    except ConfigError as error:
        told = str(error)
        raise ConfigError(told if told.startswith(str(path)) else f"{path}: {told}") from None
    if not (all(map(is_number, numbers_of(summary))) and all(map(is_whole, wholes_of(summary)))):
        raise ConfigError(f"{path}: has text or nothing where numbers belong")
    return summary


def numbers_of(summary: Summary) -> Iterator[Any]:
    """Yield what must be a number for the text and the picture."""
    staleness, gap = summary.staleness, summary.staleness.gap
    yield from (staleness.mean, staleness.max, gap.mean, gap.max, gap.count)
    for counts in (*staleness.by_worker, *staleness.by_shard, summary.skew):
        yield from (counts.mean, counts.max)
    if summary.graph_averages is not None:
        yield summary.graph_averages.consensus_distance or 0.0
    for waited in summary.waiting:
        yield from (getattr(waited, name) for name in Waiting.__slots__ if name != "waiting_for")
        yield from waited.waiting_for.values()


def wholes_of(summary: Summary) -> Iterator[Any]:
    """Yield what must be a whole number, 0 or more."""
    yield from (summary.workers, summary.servers)
    if summary.graph_averages is not None:
        yield summary.graph_averages.models
    yield from (waited.worker for waited in summary.waiting)
    for counts in (*summary.staleness.by_worker, *summary.staleness.by_shard, summary.skew):
        yield from counts.histogram
        yield from counts.histogram.values()


def series(record: dict[str, Any]) -> dict[str, float | None]:
    """Return what is drawn of one line of metrics.

    Raises:
        ConfigError: if it holds something else.
    """
    found = {name: record.get(name) for name in SERIES}
    if not all(value is None or is_number(value) for value in found.values()):
        raise ConfigError(f"metrics.jsonl has {found}, expected numbers")
    return found


def several(count: int, noun: str) -> str:
    """Return as many of something, in words."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def is_number(value: Any) -> bool:
    """Return whether it is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Return whether it can count something."""
    return type(value) is int and value >= 0


def text(summary: Summary) -> str:
    """Return a few lines: staleness, gap, skew, and who waited."""
    found = summary.staleness
    gap = f"mean {found.gap.mean:.3g}, max {found.gap.max:.3g}, {found.gap.count} measured"
    lines = [
        f"staleness  mean {found.mean:.2f}, max {found.max} versions",
        f"gap        {gap if found.gap.count else 'not measured'}",
        f"skew       mean {summary.skew.mean:.2f}, max {summary.skew.max} versions",
        *apart(summary),
        "",
        f"worker  mean τ  max τ  {'waiting':>14}  mostly for",
    ]
    waited = sorted(summary.waiting, key=lambda it: (-it.seconds, it.worker))
    lines += [line_of(it, summary) for it in waited[:TOLD]]
    if len(waited) > TOLD:
        lines.append(f"and {len(waited) - TOLD} that waited less")
    return "\n".join(lines)


def apart(summary: Summary) -> list[str]:
    """Return a line of how far apart workers ended, where each has a model of its own."""
    found = summary.graph_averages
    if found is None or found.consensus_distance is None:
        return []
    workers = several(found.models, "worker")
    return [f"consensus  {found.consensus_distance:.3g} at the end, of {workers}"]


def line_of(waited: Waiting, summary: Summary) -> str:
    """Return a line of one worker."""
    by_worker = summary.staleness.by_worker
    tau = by_worker[waited.worker] if waited.worker < len(by_worker) else None
    ages = f"{tau.mean:6.2f}  {tau.max:5}" if tau else f"{'–':>6}  {'–':>5}"
    share = f"{waited.seconds:.3g} s {100 * waited.share:3.0f} %"
    return f"{waited.worker:6}  {ages}  {share:>14}  {reason(waited)}"


def reason(waited: Waiting) -> str:
    """Return the cause that took most of a worker's waiting."""
    causes = {words: getattr(waited, name) for name, words, _ in staleness_plot.CAUSES}
    words = max(causes, key=lambda it: causes[it])
    if causes[words] <= 0:
        return "nothing"
    if waited.waiting_for and words == staleness_plot.CAUSES[0][1]:
        most = max(waited.waiting_for, key=lambda worker: waited.waiting_for[worker])
        return f"{words}, worker {most} above all"
    return words
