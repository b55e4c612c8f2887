"""The metrics of runs as CSV: a line for each record, with the name of its run."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from psrt.views.runs.folder import labels, read_run

_RUN = "run"


def write_csv(runs: Sequence[str | Path], file: TextIO) -> int:
    """Write the records of runs, with all columns that any of them has, and return their number.

    Args:
        runs: their folders.
        file: an open file, without translation of line feeds.

    Raises:
        ConfigError: if one is not the folder of a run.
    """
    rows: list[dict[str, Any]] = [
        {_RUN: name, **record}
        for name, run in zip(labels(runs), [read_run(run) for run in runs], strict=True)
        for record in run.records
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row)) or [_RUN]
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return len(rows)
