"""What workers report, with everything that a test does not care about filled in."""

from __future__ import annotations

import math
from typing import Any

from psrt.core.stats import Report, Stats


def make_report(worker: int, step: int, **fields: Any) -> Report:
    """Return a worker's report at a step; its time is that step's number, in seconds."""
    defaults: dict[str, Any] = {
        "epoch": 0, "loss": 1.0, "samples": 8,
        "staleness_sum": 0, "staleness_count": 0, "staleness_max": 0,
        "seconds": float(step), "since": fields.get("seconds", float(step)),
        "waited": 0.0, "skew_max": 0, "gap_sum": 0.0, "gap_count": 0,
        "test_loss": math.nan, "test_accuracy": math.nan,
        "epoch_end": False, "last": False, "columns": Stats().columns(),
    }  # fmt: skip
    return Report(worker=worker, step=step, **(defaults | fields))
