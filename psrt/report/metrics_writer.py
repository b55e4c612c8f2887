"""Rank 0's receiver of reports: merges them into records, writes and prints those."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from psrt.core.errors import OutputError
from psrt.core.stats import Report, Sent, Sketch, Stats
from psrt.history.folds.lines import MetricsAggregator
from psrt.history.folds.record import Record
from psrt.report.console import epoch_line
from psrt.report.files import OutputFolder
from psrt.report.metrics import line_of
from psrt.report.progress import ProgressFile


class MetricsWriter:
    """Merges every worker's reports into records; stores, writes and prints them."""

    def __init__(
        self,
        workers: int,
        *,
        log_every: int | None = None,
        folder: OutputFolder | None = None,
        say: Callable[[str], None] = lambda _: None,
        progress: bool = False,
        earlier: Sequence[Record] = (),
        on_record: Callable[[dict[str, Any]], None] | None = None,
        on_report: Callable[[Sent], None] = lambda _: None,
    ) -> None:
        """Open the metrics file.

        Args:
            workers: the number of workers that report, W.
            log_every: steps between records; None: at the ends of epochs only.
            folder: prepared; None writes nothing.
            say: called with each line for the user.
            progress: whether to write ``progress.json`` as well.
            earlier: the records of the run that this one resumes.
            on_record: called with each new line of ``metrics.jsonl``, as it is read back.
            on_report: called with all that workers send, after what it completes.
        """
        self._aggregator = MetricsAggregator(workers, log_every=log_every or 0)
        if earlier:
            self._aggregator.go_on(earlier[-1])
        self._metrics = folder.metrics(earlier) if folder is not None else None
        self._progress: ProgressFile | None = None
        if progress and folder is not None:
            self._progress = ProgressFile(folder.write_progress, workers=workers)
        self._say, self._on_record, self._on_report = say, on_record, on_report
        #: Why the metrics could not all be written; None if they could.
        self.failed: OutputError | None = None
        #: All records so far.
        self.records: list[Record] = list(earlier)

    @property
    def finished(self) -> bool:
        """Whether every worker has sent its last report."""
        return self._aggregator.finished

    def reported(self, worker: int) -> Stats:
        """Return the columns of ``psrt.core.stats`` that a worker has reported."""
        return self._aggregator.reported(worker)

    def add(self, report: Sent) -> None:
        """Merge one report; store, write and print the records that it completes."""
        if isinstance(report, Sketch):
            self._aggregator.look(report)
        elif isinstance(report, Report):
            self._keep(self._aggregator.add(report))
            if self._progress is not None:
                self._progress.add(report)
        self._on_report(report)

    def gone(self, worker: int) -> None:
        """Stop waiting for a worker that died."""
        if self._progress is not None:
            self._progress.gone(worker)
        self._keep(self._aggregator.gone(worker))

    def _keep(self, records: Iterable[Record]) -> None:
        """Keep, write and print records."""
        for record in records:
            self.records.append(record)
            self._write(record)
            self._say(epoch_line(record))
            if self._on_record is not None:
                self._on_record(json.loads(line_of(record)))

    def _write(self, record: Record) -> None:
        """Write a record. A full disk ends the metrics, but not the run."""
        if self._metrics is None:
            return
        try:
            self._metrics.write(record)
        except OSError as error:
            self.failed = OutputError(f"cannot write {self._metrics.path}: {error.strerror}")
            self._say(f"{self.failed}; training continues without metrics")
            self.close()

    def close(self) -> None:
        """Close the metrics file."""
        if self._metrics is not None:
            with contextlib.suppress(OSError):  # from what could not be written
                self._metrics.close()
            self._metrics = None
