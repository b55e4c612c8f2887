"""A worker that backups carry over the end of one or more epochs."""

import pytest

from psrt.config import TrainConfig
from psrt.job.virtual import simulate
from psrt.report import MetricsAggregator
from psrt.simulation import SimulationCosts

CONFIG = TrainConfig(
    mode="sync", backup=1, epochs=12, dataset="synthetic:96x8x3", batch_size=8, hidden=()
)


@pytest.mark.parametrize("slow", [1, 3])
def test_epochs_that_a_worker_was_carried_over_are_not_reported_by_it(slow):
    def compute(rank, rng):
        return rng.exponential(0.2 if rank == slow else 0.001)

    run = simulate(CONFIG, workers=3, seed=1, costs=SimulationCosts(compute=compute))
    aggregator = MetricsAggregator(3)
    records = [record for report in run.reports for record in aggregator.add(report)]
    assert [record.step for record in records] == list(range(4, 49, 4))
    assert [worker.clock for worker in run.workers] == [48, 48, 48]
    assert run.meters[slow - 1].steps < 10
    assert aggregator.finished
