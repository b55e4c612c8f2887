from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from psrt.report import Counts, Gap, Record, Staleness, Summary, Waiting


@pytest.fixture
def record():
    return Record(
        epoch=3, step=135, loss=0.21427, test_loss=0.19, accuracy=0.947, seconds=0.2,
        samples_per_second=181234.5, samples=4320, staleness_mean=1.93, staleness_max=4,
        bytes_sent=1000, bytes_received=2000, epoch_end=True,
    )  # fmt: skip


@pytest.fixture
def summary():
    staleness = dataclasses.replace(
        Staleness.of(np.array([2, 1, 1])),
        by_worker=(Counts.of([(0, 2)]), Counts.of([(1, 1), (2, 1)])),
        by_shard=(Counts.of([(0, 2), (1, 1), (2, 1)]),),
        gap=Gap(0.25, 0.5, 2),
    )
    return Summary(
        mode="ssp", workers=2, servers=1, ranks=3, hosts=1, mpi="Open MPI 5.0", seed=7, epochs=3,
        steps=135, allreduce=None, allreduce_why="", shards_per_server=1, shards_why="", buckets=0,
        overlap=False, samples=4320,
        seconds=0.5, samples_per_second=8640.0, train_loss=0.2,
        test_loss=0.25, test_accuracy=0.9625, parameters=9, parameters_sha256="ab", updates=270,
        dropped=0, torn=0, staleness=staleness, skew_max=1, skew=Counts.of([(0, 130), (1, 5)]),
        waiting=(Waiting(0, 0.1, 0.2, 0.05, 0.03, 0.02, 0.0, {1: 0.05}),),
        missing=(), clock_spread_max=3, bytes_sent=1234567, bytes_received=999,
    )  # fmt: skip
