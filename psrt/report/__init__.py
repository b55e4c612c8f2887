"""The output of a run: records, console lines, files. Without MPI and clocks.

Workers send ``Report`` messages; rank 0's ``MetricsAggregator`` merges them into ``Record``s, which
become lines of ``metrics.jsonl`` and of the console; a finished run has a ``Summary``. Tools that
compare or plot runs read these files, never a live run, so ``psrt.report.figure``, which needs
matplotlib, is not imported here.
"""

from __future__ import annotations

from psrt.history.folds.figures import Counts, Gap, Staleness, Waiting
from psrt.history.folds.lines import MetricsAggregator
from psrt.history.folds.record import Record
from psrt.report.console import cut_text, epoch_line, final_table, topology_text
from psrt.report.files import OutputFolder
from psrt.report.metrics import MetricsFile, read_metrics, seconds_to_accuracy
from psrt.report.summary import (
    Averages,
    GraphAverages,
    Missing,
    ModelCut,
    Summary,
    parameters_sha256,
)

__all__ = [
    "Averages",
    "Counts",
    "Gap",
    "GraphAverages",
    "MetricsAggregator",
    "MetricsFile",
    "Missing",
    "ModelCut",
    "OutputFolder",
    "Record",
    "Staleness",
    "Summary",
    "Waiting",
    "cut_text",
    "epoch_line",
    "final_table",
    "parameters_sha256",
    "read_metrics",
    "seconds_to_accuracy",
    "topology_text",
]
