"""A picture of one run: how stale, how far off, how far apart, and who waited for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from psrt.history.folds.figures import Counts, Waiting
from psrt.report.figure import save, titled
from psrt.report.summary import Summary
from studies.palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

#: What a worker waits for: field of ``Waiting``, in words, and how it is drawn.
CAUSES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("for_workers", "other workers", {"color": COLOURS[6]}),
    ("for_server", "the server's work", {"color": COLOURS[1], "hatch": "///"}),
    ("for_messages", "messages and queues", {"color": COLOURS[5], "hatch": "..."}),
    ("for_reduce", "sums over all", {"color": COLOURS[2], "hatch": "xxx"}),
)
#: Most columns of cells; where τ is larger, a column holds several.
_COLUMNS = 64
#: Most workers whose bars and dots can be distinguished.
_APART = 48


def draw(
    summary: Summary,
    records: Sequence[Mapping[str, float | None]],
    path: str | PathLike[str],
    *,
    note: str = "",
) -> None:
    """Draw six panels: τ by worker and by shard, skew, gap, waiting by cause, and for which worker.

    Where workers have models of their own, how far apart these are takes the place of the skew.
    Where a mode has nothing of a kind, as an all-reduce has no staleness, its panel says so.

    Args:
        summary: of the run.
        records: lines of its metrics, of which ``seconds``, ``gap_mean`` and
            ``consensus_distance`` are drawn.
        path: the file to write; its ending chooses the format.
        note: a line below the title.

    Raises:
        ConfigError: if matplotlib is not installed or the file cannot be written.
    """
    figure = titled(width=13.0, height=7.6, title="Staleness and waiting", note=note)
    (by_worker, by_shard, skew), (gap, causes, waiting_for) = figure.subplots(2, 3)
    _ages(by_worker, summary.staleness.by_worker, "worker")
    _ages(by_shard, summary.staleness.by_shard, "shard")
    if summary.graph_averages is not None:
        _apart(skew, records)
    else:
        _skew(skew, summary.skew, summary.servers)
    _gap(gap, records)
    _causes(causes, summary.waiting)
    _waiting_for(waiting_for, summary.waiting)
    save(figure, path)


def _ages(axes: Axes, rows: Sequence[Counts], whose: str) -> None:
    """Draw a line of cells for each worker or shard: the darker, the more of its pushes."""
    axes.set_title(f"staleness by {whose} (orange: mean)", fontsize=10)
    if not any(counts.histogram for counts in rows):
        _nothing(axes, "no gradient went through a server")
        return
    shares, width = shares_by_age(rows)
    right = shares.shape[1] * width - 0.5
    image = axes.imshow(
        100 * shares, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0,
        extent=(-0.5, right, len(rows) - 0.5, -0.5),
    )  # fmt: skip
    several = "" if width == 1 else f", {width} a cell"
    axes.figure.colorbar(image, ax=axes, label=f"of a {whose}'s pushes [%]")
    few = len(rows) <= _APART
    between = np.arange(0.5, len(rows) - 1 if few else 0)
    axes.hlines(between, -0.5, right, "white", linewidth=min(2.0, 24 / len(rows)))
    means = [counts.mean for counts in rows]
    axes.plot(means, range(len(rows)), "o" if few else "-", color=COLOURS[6], markersize=5)
    axes.set_xlabel(f"staleness τ [versions{several}]")
    axes.set_ylabel(whose)
    _whole(axes.xaxis, axes.yaxis)


def shares_by_age(rows: Sequence[Counts]) -> tuple[np.ndarray, int]:
    """Return what share of its pushes each row has at each τ, and how many τ make a column.

    Returns:
        ``(rows, columns)`` with rows that sum to 1, or to 0 where there are no pushes; and the
        width of a column.
    """
    ages = 1 + max(max(counts.histogram, default=0) for counts in rows)
    width = -(-ages // _COLUMNS)
    shares = np.zeros((len(rows), -(-ages // width)))
    for row, counts in enumerate(rows):
        for tau, count in counts.histogram.items():
            shares[row, tau // width] += count
    return shares / np.maximum(shares.sum(axis=1, keepdims=True), 1), width


def _skew(axes: Axes, skew: Counts, shards: int) -> None:
    """Draw how far apart the shards were in the reads."""
    axes.set_title("shards apart in one read", fontsize=10)
    if shards < 2 or not skew.histogram:
        _nothing(axes, "one shard" if shards == 1 else "no reads from servers")
        return
    total = sum(skew.histogram.values())
    shares = [100 * count / total for count in skew.histogram.values()]
    axes.bar(list(skew.histogram), shares, color=COLOURS[3])
    axes.set_xlim(-0.8, max(skew.max, 3) + 0.8)
    axes.set_xlabel("skew [versions]")
    axes.set_ylabel("reads [%]")
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    _whole(axes.xaxis)


def _gap(axes: Axes, records: Sequence[Mapping[str, float | None]]) -> None:
    """Draw how far the parameters had moved since they were read, over time."""
    axes.set_title("parameters moved since they were read", fontsize=10)
    _over_time(axes, records, "gap_mean", "mean gap ‖θ now − θ read‖/√n", "no gap was measured")


def _apart(axes: Axes, records: Sequence[Mapping[str, float | None]]) -> None:
    """Draw how far the models of the workers were apart, over time."""
    axes.set_title("models of the workers apart", fontsize=10)
    what = "consensus distance ‖θᵢ − mean‖/√n"
    _over_time(axes, records, "consensus_distance", what, "not measured: --consensus-every 0")


def _over_time(
    axes: Axes,
    records: Sequence[Mapping[str, float | None]],
    name: str,
    what: str,
    otherwise: str,
) -> None:
    """Draw a series, or say why there is none."""
    points = [(record["seconds"], record.get(name)) for record in records]
    known = [(seconds, it) for seconds, it in points if seconds is not None and it is not None]
    if not known:
        _nothing(axes, otherwise)
        return
    axes.plot(*zip(*known, strict=True), marker=".", color=COLOURS[4])
    axes.set_xlabel("time [s]")
    axes.set_ylabel(what)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(color="0.9")


def _causes(axes: Axes, workers: Sequence[Waiting]) -> None:
    """Draw for each worker what part of its time it waited, by cause."""
    axes.set_title("waiting", fontsize=10)
    places = [waited.worker for waited in workers]
    starts = np.zeros(len(workers))
    for name, words, style in CAUSES:
        parts = np.array([_percent(waited, getattr(waited, name)) for waited in workers])
        if parts.any():
            axes.barh(places, parts, left=starts, label=words, **_bars(workers, style))
            starts += parts
    if not starts.any():
        _nothing(axes, "no worker waited")
        return
    axes.set_xlabel("of a worker's time [%]")
    axes.set_xlim(0, min(100.0, max(10.0, 1.1 * float(starts.max()))))
    _by_worker(axes, workers)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)


def _waiting_for(axes: Axes, workers: Sequence[Waiting]) -> None:
    """Draw for each worker how long others waited for it."""
    axes.set_title("waiting for a worker", fontsize=10)
    blamed = {waited.worker: 0.0 for waited in workers}
    for waited in workers:
        for waiting_for, seconds in waited.waiting_for.items():
            blamed[waiting_for] = blamed.get(waiting_for, 0.0) + seconds
    if not any(blamed.values()):
        _nothing(axes, "no worker waited for another")
        return
    axes.barh(list(blamed), list(blamed.values()), **_bars(workers, CAUSES[0][2]))
    axes.set_xlabel("time that all others waited for it [s]")
    _by_worker(axes, workers)


def _percent(waited: Waiting, seconds: float) -> float:
    """Return a part of a worker's waiting in percent of its time."""
    return 100 * waited.share * seconds / waited.seconds if waited.seconds > 0 else 0.0


def _bars(workers: Sequence[Waiting], style: Mapping[str, Any]) -> dict[str, Any]:
    """Return how bars look: with edges and hatches while there are few."""
    if len(workers) <= _APART:
        return {**style, "height": 0.8, "edgecolor": "black", "linewidth": 0.5}
    return {"color": style["color"], "height": 1.0}


def _by_worker(axes: Axes, workers: Sequence[Waiting]) -> None:
    axes.set_ylabel("worker")
    axes.set_ylim(len(workers) - 0.4, -0.6)  # the first on top
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    _whole(axes.yaxis)


def _whole(*sides: Axis) -> None:
    """Let an axis name whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    for side in sides:
        side.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))


def _nothing(axes: Axes, why: str) -> None:
    """Say why a panel is empty."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color="0.4")
    axes.set_xticks([])
    axes.set_yticks([])
