"""Pushes that set out while the gradient is being computed, in virtual time."""

from __future__ import annotations

import pytest

import psrt
from psrt.history import Kind
from psrt.history.check import check
from psrt.job.problems import supervised_problem
from psrt.simulation import SimulationCosts
from support.histories import recorded

BASE = {"hidden": (32, 32), "batch_size": 4, "steps": 5, "lr": 0.05}
#: A gradient takes 1 s, its bytes as long as that.
COSTS = SimulationCosts(compute=lambda *_: 1.0, latency=lambda _: 1e-3, bandwidth=4 * 3500.0)


def trained(**more):
    return psrt.simulate(psrt.TrainConfig(**(BASE | more)), workers=1, costs=COSTS)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_push_goes_on_while_the_gradient_is_computed(mode):
    """So the simulation shows what it gains: both directions of the link are in use, too."""
    whole, parts = (trained(mode=mode, shards_per_server=each) for each in (1, 4))
    assert parts.seconds < 0.8 * whole.seconds
    assert parts.theta.tobytes() == whole.theta.tobytes()


@pytest.mark.parametrize("mode", ["sync", "async", "ssp", "softsync"])
def test_its_history_keeps_the_contract(mode):
    config = psrt.TrainConfig(mode=mode, shards_per_server=4, **BASE)
    problem = supervised_problem(psrt.config.resolve(config, ranks=4), workers=3)
    history, _ = recorded(config, problem, workers=3)
    outcome = check(history)
    assert outcome.ok, "\n".join(outcome.lines())
    for events in history.workers:
        pushes = events[events["kind"] == Kind.PUSH].reshape(-1, 4)
        assert (pushes[:, 0]["shard"] == 3).all()
        assert (pushes[:, 0]["time"] < pushes[:, -1]["time"]).all()


@pytest.mark.parametrize("mode", ["sync", "async", "ssp", "softsync"])
@pytest.mark.one_in(3)
def test_a_worker_may_die_between_the_pushes_of_a_step(mode):
    config = psrt.TrainConfig(mode=mode, shards_per_server=4, **BASE)
    problem = supervised_problem(psrt.config.resolve(config, ranks=4), workers=3)
    unfinished = 0
    for at in range(1, 20):
        history, _ = recorded(config, problem, workers=3, crashes=[(1, 3e-4 * at)])
        outcome = check(history)
        assert outcome.ok, "\n".join(outcome.lines())
        unfinished += (history.workers[1]["kind"] == Kind.PUSH).sum() % 4 > 0
    assert unfinished
