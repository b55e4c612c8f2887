"""Rank 0's ear: turns reports into records, writes them down and says them aloud."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from psrt.messages import Report
from psrt.report.console import epoch_line
from psrt.report.files import OutputFolder
from psrt.report.journal import Journal, Record


class Recorder:
    """Takes every worker's reports; keeps, writes and prints the records that they make."""

    def __init__(
        self,
        workers: int,
        *,
        log_every: int | None = None,
        folder: OutputFolder | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Open the metrics file.

        Args:
            workers: how many report, W.
            log_every: steps between records; None: at the ends of epochs only.
            folder: prepared; None writes nothing.
            say: takes a line for the user.
        """
        self._journal = Journal(workers, log_every=log_every or 0)
        self._metrics = folder.metrics() if folder is not None else None
        self._say = say
        #: All records so far.
        self.records: list[Record] = []

    @property
    def finished(self) -> bool:
        """Whether every worker has sent its last report."""
        return self._journal.finished

    def add(self, report: Report) -> None:
        """Take one report."""
        self._keep(self._journal.add(report))

    def gone(self, worker: int) -> None:
        """Wait no longer for a worker that died."""
        self._keep(self._journal.gone(worker))

    def _keep(self, records: Iterable[Record]) -> None:
        """Keep, write and print records."""
        for record in records:
            self.records.append(record)
            if self._metrics is not None:
                self._metrics.write(record)
            self._say(epoch_line(record))

    def close(self) -> None:
        """Close the metrics file."""
        if self._metrics is not None:
            self._metrics.close()
