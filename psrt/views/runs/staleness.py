"""How stale gradients were: by epoch if a run was recorded, otherwise over the whole run."""

from __future__ import annotations

import math

import numpy as np

from psrt.core.errors import ConfigError
from psrt.history.events import Kind
from psrt.history.reading import folder_of, read_header
from psrt.history.stream import blocks_of, extent_of
from psrt.views.runs.folder import RunFolder

#: Number of gradients by τ.
Histogram = dict[int, int]
_BLOCK = 1 << 16


def histograms(run: RunFolder) -> dict[int, Histogram]:
    """Return the histograms of τ by step; none without servers.

    Raises:
        ConfigError: if the history is damaged.
    """
    ends = {record["epoch"]: record["step"] for record in run.records if record.get("epoch_end")}
    found: dict[int, Histogram] = {}
    for epoch, histogram in _by_epoch(run).items():
        if epoch + 1 in ends:  # otherwise it did not finish
            found[ends[epoch + 1]] = histogram
    if found or run.summary is None:
        return found
    counts = run.summary.get("staleness", {}).get("histogram", ())
    whole = {tau: count for tau, count in enumerate(counts) if count}
    return {run.summary["steps"]: whole} if whole else {}


def by_worker(run: RunFolder) -> dict[int, Histogram]:
    """Return the histogram of each worker of a finished run."""
    rows = (run.summary or {}).get("staleness", {}).get("by_worker", ())
    found = {
        worker: {int(tau): count for tau, count in row["histogram"].items()}
        for worker, row in enumerate(rows)
    }
    return {worker: histogram for worker, histogram in found.items() if histogram}


def _by_epoch(run: RunFolder) -> dict[int, Histogram]:
    """Return the histogram of each epoch by the run's history; empty without one."""
    try:
        folder, header = folder_of(run.path), read_header(run.path)
    except ConfigError:
        return {}
    found: dict[int, Histogram] = {}
    for name in header.files:
        for block in blocks_of(extent_of(folder, name), _BLOCK):
            applied = block[(block["kind"] == Kind.APPLY) & (block["worker"] >= 0)]
            pairs = np.stack([np.floor(applied["progress"]).astype(np.int64), applied["tau"]])
            for (epoch, tau), count in zip(*_counted(pairs), strict=True):
                histogram = found.setdefault(int(epoch), {})
                histogram[int(tau)] = histogram.get(int(tau), 0) + int(count)
    return found


def _counted(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct columns of an array, one per row, and how often each occurs."""
    different, counts = np.unique(pairs, axis=1, return_counts=True)
    return different.T, counts


def moments(histogram: Histogram) -> tuple[int, int, int, float, float]:
    """Return the smallest τ, the largest, their number, their sum and the sum of their squares.

    >>> moments({0: 2, 3: 1})
    (0, 3, 3, 3.0, 9.0)
    """
    return (
        min(histogram),
        max(histogram),
        sum(histogram.values()),
        math.fsum(tau * count for tau, count in histogram.items()),
        math.fsum(tau * tau * count for tau, count in histogram.items()),
    )
