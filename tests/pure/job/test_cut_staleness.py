"""Stages that are never drained count how stale gradients are, where servers have none of them."""

import pytest

from psrt.config import TrainConfig
from psrt.history.check.run import check_run
from psrt.job.combinations import TINY
from psrt.job.virtual import simulate

CUT = {"parallel": "data:2,pipeline:2", "pipeline_schedule": "pipedream", "local_steps": 2}


@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "local-sgd", "servers": 2},
        {"mode": "easgd"},
        {"mode": "easgd", "asynchronous": True},
    ],
    ids=str,
)
def test_what_servers_are_sent_is_no_gradient(mode, tmp_path):
    found = []
    for rate in ({}, {"staleness_rate": "power", "staleness_power": 2}):
        out = str(tmp_path / str(len(found)))
        config = TrainConfig(**TINY | CUT | mode | rate | {"record": True, "out": out})
        found.append(simulate(config, workers=4).summary)
        # Of three batches two are one update late in the first stage of each copy.
        assert found[-1].staleness.histogram == (8, 4)
        assert not found[-1].skew.histogram
        assert check_run(out).ok, check_run(out).lines()
    assert found[0].parameters_sha256 != found[1].parameters_sha256
