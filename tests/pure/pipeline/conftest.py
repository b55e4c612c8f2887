"""Every test that takes a ``subject`` runs on each schedule, with deferred weights, too."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from psrt.pipeline import PIPELINES, PipelineSchedule


class Subject(NamedTuple):
    row: PipelineSchedule
    chunks: int
    deferred: bool

    def __str__(self):
        chunks = f":{self.chunks}" if self.row.chunked else ""
        return f"{self.row.name}{chunks}{' deferred' if self.deferred else ''}"

    def plan(self, stages, micro_batches):
        return self.row.plan(stages, micro_batches, self.chunks, deferred=self.deferred)

    def alive(self, stages, micro_batches):
        return [
            self.row.most_alive(s, stages, micro_batches, self.chunks, deferred=self.deferred)
            for s in range(stages)
        ]

    def late(self, stages):
        """(stage, batch) → τ as PipeDream's paper has it, written once more; None without."""
        if self.row.name != "pipedream":
            return None
        return lambda stage, batch: min(batch, stages - 1 - stage)


SUBJECTS = [
    Subject(row, chunks, deferred)
    for row in PIPELINES.values()
    for chunks in ((2, 3) if row.chunked else (1,))
    for deferred in ((False, True) if row.defers else (False,))
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "subject" in metafunc.fixturenames:
        metafunc.parametrize("subject", SUBJECTS, ids=str)
