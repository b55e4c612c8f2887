"""Reports what one worker counts, at every logged step."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from psrt.core.arrays import Vector
from psrt.core.errors import CheckpointError
from psrt.core.stats import COLUMNS, Report, Sketch
from psrt.history.folds.sketch import sketch
from psrt.history.folds.worker import WorkerFold
from psrt.transport.port import Port

#: Reports of one worker that a checkpoint keeps, at most.
_KEPT = 1024
#: And elsewhere: as many as may be in flight while a checkpoint is made and the job then dies.
_FEW = 16
#: The kinds of a report's fields but the last two, the columns and the figures.
_KINDS = [
    *(int, int, int, float, int, int, int, int, float, float, float),
    *(int, float, int, float, float, bool, bool),
]


class Meter:
    """Reports what a worker counts, with its time and its bytes."""

    saved = ("counts", "reported_step", "before", "_sketched", "_told", "_since", "spent")

    def __init__(
        self,
        port: Port,
        worker: int,
        *,
        log_every: int | None = None,
        sketch_every: int = 0,
        beside: Port | None = None,
    ) -> None:
        """Start the clock.

        Args:
            port: carries the reports, counts bytes and has the clock.
            worker: this worker's number.
            log_every: steps between two reports; None reports at the ends of epochs only.
            sketch_every: steps after which a sketch of the parameters is sent, as with every
                report; 0 sends none.
            beside: a further port whose bytes count.
        """
        self._port = port
        self._ports = [port] if beside is None else [port, beside]
        #: Its number.
        self.worker = worker
        self._log_every = log_every
        self._sketch_every = sketch_every
        #: Clock of the newest sketch.
        self._sketched = -1
        self._start = port.now()
        #: Time from there to the end of training, once that is known.
        self._stopped: float | None = None
        #: Bytes before training.
        self._bytes = self._bytes_so_far
        #: Seconds of training and bytes before the checkpoint that this run resumed from.
        self._earlier = (0.0, 0, 0)
        #: Of these seconds, those with other ranks, whose counts are not part of these.
        self.spent = 0.0
        #: Clock and time of the newest report.
        self.reported_step, self._since = 0, 0.0
        #: The newest reports, which a checkpoint contains: they may not be in the records yet, and
        #: the last one may cover time after the last window of the records.
        self._reports: deque[Report] = deque(maxlen=_FEW)
        #: Those of the run that this one resumes.
        self._again: list[Report] = []
        #: What it reports, which its worker's strategy counts.
        self.counts = WorkerFold()

    def begin(self) -> None:
        """Restart the clock: set-up does not count."""
        self._start = self._port.now()
        for report in self._again:
            self._port.report(report)
        self._again = []

    def keep_reports(self) -> None:
        """Have a checkpoint keep more of the newest reports.

        Needed where each worker has a clock of its own when it is made: some have reported steps
        that others have not reached, and no record has those yet. A resumed run reports them again.
        """
        self._reports = deque(self._again, _KEPT)

    @property
    def _told(self) -> str:
        """The reports that are kept, as JSON."""
        return json.dumps([(*own, list(columns), more) for *own, columns, more in self._reports])

    @_told.setter
    def _told(self, text: str) -> None:
        try:
            rows = [(*own, tuple(columns), more) for *own, columns, more in json.loads(text)]
        except (ValueError, TypeError, RecursionError):
            rows = [()]
        for row in rows:
            kinds = [*map(type, row[:-2])]
            if kinds != _KINDS or row[0] != self.worker or len(row[-2]) != len(COLUMNS):
                raise CheckpointError("a worker's reports are invalid")
            if row[-1] and not are_figures(row[-1]):
                raise CheckpointError("a worker's reports have invalid figures")
            if not all(type(it) in (int, float) for it in row[-2]):
                raise CheckpointError("a worker's reports have columns that are not numbers")
        self._again = [Report(*row) for row in rows]
        self._reports.extend(self._again)

    @property
    def before(self) -> tuple[float, int, int]:
        """Seconds of training, and bytes sent and received, as far as the run has come."""
        return (self.seconds, *self.bytes)

    @before.setter
    def before(self, value: tuple[float, int, int]) -> None:
        self._earlier = value

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far, those before training included."""
        _, sent, received = self._earlier
        now_sent, now_received = self._bytes_so_far
        return now_sent + sent, now_received + received

    @property
    def _bytes_so_far(self) -> tuple[int, int]:
        ports = self._ports
        return sum(it.bytes_sent for it in ports), sum(it.bytes_received for it in ports)

    @property
    def seconds(self) -> float:
        """Time since the start, or from there to the end of training."""
        if self._stopped is not None:
            return self._stopped
        return self._earlier[0] + self._port.now() - self._start

    def stop(self) -> float:
        """Stop counting time; return the time of training."""
        self._stopped = self.seconds
        return self._stopped

    def due(self, clock: int) -> bool:
        """Return whether a logged step has been reached since the last report."""
        every = self._log_every
        return every is not None and clock // every > self.reported_step // every

    def look(self, clock: int, theta: Vector, *, is_due: bool = False) -> None:
        """Send a sketch of this worker's own parameters, if it is due or time for one.

        Args:
            clock: gradient steps finished.
            theta: (n,) its parameters, empty without numerics.
            is_due: whether a report follows.
        """
        every = self._sketch_every
        if not every or not theta.size or clock <= self._sketched:
            return
        if is_due or (clock and clock % every == 0):
            self._sketched = clock
            self._port.report(Sketch(self.worker, clock, sketch(theta).tobytes()))

    def report(
        self,
        epoch: int,
        clock: int,
        figures: Mapping[str, float],
        *,
        epoch_end: bool = False,
        last: bool = False,
    ) -> None:
        """Send a report and start the next interval.

        Args:
            epoch: epochs finished.
            clock: gradient steps finished.
            figures: ``loss``, ``accuracy`` and others on the test set; empty if not evaluated.
            epoch_end: whether this step ends an epoch.
            last: whether the worker is done.
        """
        stats, (sent, received) = self.counts.stats, self.bytes
        stats.bytes_sent = sent - self._bytes[0]
        stats.bytes_received = received - self._bytes[1]
        report = self.counts.report(
            self.worker,
            epoch,
            clock,
            figures,
            seconds=self.seconds,
            since=self._since,
            epoch_end=epoch_end,
            last=last,
        )
        self.reported_step, self._since = clock, report.seconds
        self._reports.append(report)
        self._port.report(report)


def are_figures(text: Any) -> bool:
    """Return whether something is the JSON of numbers by names."""
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return False
    return isinstance(found, dict) and all(type(it) is float for it in found.values())
