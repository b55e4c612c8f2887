"""The progress of training, as the roles of a process know it without asking others."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from psrt.config import TrainConfig
from psrt.core.progress import Amount
from psrt.core.units import time_text
from psrt.job.launcher import Launcher, Roles, shard_servers
from psrt.report.console import epoch_line
from psrt.report.metrics_writer import MetricsWriter
from psrt.runtime.worker import Worker

#: The most workers of a process that are asked: a simulation may have a hundred thousand.
_ASKED = 1000


class Training:
    """Reads the progress of a process's roles; another thread may call it while they run."""

    def __init__(
        self,
        config: TrainConfig,
        launcher: Launcher,
        roles: Roles,
        recorder: MetricsWriter | None,
    ) -> None:
        """Set up.

        Args:
            config: resolved.
            launcher: says whether time is virtual, and which time it is.
            roles: of this process.
            recorder: has the newest record, at the first process.
        """
        self._config, self._launcher, self._recorder = config, launcher, recorder
        workers = [it for it in roles.values() if isinstance(it, Worker)]
        self._workers = workers[:: max(1, len(workers) // _ASKED)]
        self._servers = shard_servers(roles.values())[:1]

    def __call__(self) -> Amount:
        """Return how much of the run is done, as a mean over the asked workers."""
        config = self._config
        clocks = [it.clock for it in self._workers]
        epochs = [it.progress for it in self._workers]
        if not clocks:
            (shard,) = self._servers
            clocks, epochs = list(shard.clocks), [shard.progress]
        clock = int(_mean(clocks))
        note = detail = ""
        if self._launcher.simulated:
            note = f"{time_text(self._launcher.now())} of virtual time"
        for record in islice(reversed(self._recorder.records if self._recorder else ()), 1):
            detail = epoch_line(record)
        if config.steps is not None:
            return Amount(clock, config.steps, "step", note, detail)
        done = min(_mean(epochs), config.epochs or 0.0)
        return Amount(done, config.epochs, "epoch", f"step {clock}  {note}".rstrip(), detail)


def _mean(numbers: Collection[float]) -> float:
    return sum(numbers) / len(numbers)
