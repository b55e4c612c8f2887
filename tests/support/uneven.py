"""A problem whose workers have different numbers of batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from psrt.config import TrainConfig
from psrt.job.problems import supervised_problem


class Uneven:
    """psrt's own problem, but worker w is done after w + 1 batches of an epoch."""

    def __init__(self, config: TrainConfig, workers: int) -> None:
        self.whole = supervised_problem(config, workers=workers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def batches(self, worker: int, workers: int, epoch: int) -> Iterable[Any]:
        return itertools.islice(self.whole.batches(worker, workers, epoch), worker + 1)
