"""Jobs in virtual time: what is summed how, who waits for whom, what is caught, what is refused."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.collective.analysis.machine import MachineCosts, NodeCosts
from psrt.collective.costs import LinkCosts
from psrt.config import TrainConfig
from psrt.errors import ProtocolError
from psrt.history import Kind
from psrt.history.check import check
from psrt.job.problems import supervised_problem
from psrt.job.virtual import simulate
from psrt.messages import Push
from psrt.runtime.checksum import checksum
from psrt.simulation import SimulationCosts, Simulator
from psrt.transport import CONTROL
from support.cases import each
from support.histories import recorded
from support.recording import Ledger, record

#: 23 samples a worker and epoch in batches of 5 or 6: the last step of an epoch is smaller.
BASE = TrainConfig(
    dataset="synthetic:70x5x3", hidden=(4,), batch_size=6, epochs=3, lr=0.05, log_every=3, seed=2
)
LOCAL = {"mode": "local-sgd", "local_steps": 2}


def config(**more):
    return dataclasses.replace(BASE, **more)


def bits(run):
    return run.theta.tobytes()


# --- how all sum ---------------------------------------------------------------------------------


class InOnePiece:
    """A problem as users write them: nothing about parts, no optional methods."""

    def initial(self):
        return np.zeros(6, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.full(3, worker + 1.0)] * 4

    def loss_and_grad(self, theta, batch, out):
        out[:] = batch.mean()
        return 0.0

    def evaluate(self, theta):
        return {}


@each("overlap", [None, False, True])
def test_a_problem_without_parts_is_summed_in_one_piece(overlap):
    asked = TrainConfig(mode="allreduce", allreduce="tree", overlap=overlap, epochs=2, lr=0.5)
    run = simulate(asked, InOnePiece(), workers=3)
    np.testing.assert_allclose(run.theta, [-8 * 0.5 * 2] * 6)
    assert run.workers[0].strategy.plan[:4] == ("tree", "as asked", 1, False)
    assert run.summary.bytes_sent == run.summary.bytes_received > 0


def test_what_auto_picks_by_may_be_given(tmp_path):
    """Where bytes cost nothing few messages are best, where messages cost nothing few bytes are."""
    picked = []
    for alpha, beta in ((1.0, 0.0), (0.0, 1.0)):
        messages = LinkCosts(alpha=alpha, beta=beta, gamma=0.0)
        path = tmp_path / "costs.json"
        path.write_text(MachineCosts(messages, messages, NodeCosts(0, 0), 1).to_json())
        asked = config(mode="allreduce", machine_costs=str(path))
        picked.append(simulate(asked, workers=8).workers[0].strategy.plan.algorithm)
    rounds = [len(list(ALGORITHMS[name](0, 8, 1000))) for name in picked]
    assert rounds[0] < rounds[1]


@pytest.mark.parametrize("knobs", [{"mode": "allreduce", "bucket_bytes": 1}, LOCAL], ids=str)
def test_a_rank_that_goes_astray_is_caught(knobs):
    """A bit of worker 1's parameters flips right before it is looked at."""

    class LeakyWorld(Simulator):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            port = self.ports[1]
            differing = port.differing

            async def after_a_flip(number):
                port.theta.view(np.int32)[3] ^= 1 << 20
                return await differing(checksum(port.theta))

            port.differing = after_a_flip

    asked = config(check_every=3, **knobs)
    with pytest.raises(ProtocolError, match=r"of worker 1 \(rank 1\) differ .* after update 3,"):
        simulate(asked, workers=3, world=LeakyWorld)
    simulate(dataclasses.replace(asked, check_every=0), workers=3, world=LeakyWorld)


@each("seed", range(4))
def test_with_a_backup_a_round_is_the_mean_of_the_first_on_every_shard(seed):
    """Nobody computes with parts of two rounds, since whoever has them reads once more."""
    books = Ledger([8] * 4, 2)
    asked = TrainConfig(mode="sync", backup=1, servers=2, lr=1.0, epochs=1)
    run, log = record(asked, books, workers=4, seed=seed)
    for read in books.reads:
        members = (read.contents != 0).sum(axis=1)  # of each round, on each shard
        assert (members[:, read.clock :] == 0).all()
        assert (members[:, : min(read.clock, 6)] == 3).all()
        means = read.contents.sum(axis=1)[:, : read.clock]
        np.testing.assert_allclose(means, 1, rtol=1e-6)
    assert {worker.clock for worker in run.workers} == {8}
    pushes = [it.message for it in log if isinstance(getattr(it, "message", None), Push)]
    used = sum(sum(server.shard.stats.histogram) for server in run.servers)
    dropped = sum(server.shard.stats.dropped for server in run.servers)
    assert dropped == sum(it.samples > 0 for it in pushes) - used
    assert not any(it.samples for it in pushes if it.clock > it.version)


@each("k", [1, 3, 8])
def test_softsync_staleness_is_what_the_others_apply(k):
    """Between a worker's read and its push come those of the others, a quorum an update.

    Zhang et al. 2016 say that is about k, and hardly ever above 2k: so it is where k divides W.
    """
    workers, quorum = 8, 8 // k
    books = Ledger([60] * workers, 1)
    asked = TrainConfig(mode="softsync", softsync=k, servers=1, lr=1.0, epochs=1)
    [server] = record(asked, books, workers=workers, seed=k, costs="all alike").run.servers
    histogram = np.array(server.shard.stats.histogram)
    mean = (histogram * np.arange(histogram.size)).sum() / histogram.sum()
    assert mean == pytest.approx((workers - 1) / quorum, rel=0.02)
    assert histogram[2 * (workers // quorum) + 1 :].sum() <= 0.01 * histogram.sum()


# --- reports, and who is slow -------------------------------------------------------------------


def test_reports_come_from_every_worker_and_end():
    run = simulate(config(mode="async", servers=2), workers=3, seed=1)
    reports = sorted(run.reports, key=lambda it: it.worker)
    of_worker = {w: list(its) for w, its in itertools.groupby(reports, lambda it: it.worker)}
    assert sorted(of_worker) == [0, 1, 2]
    for worker, its in of_worker.items():
        assert [it.last for it in its] == [False] * (len(its) - 1) + [True]
        assert [it.step for it in its] == sorted(it.step for it in its)
        assert sum(it.samples for it in its) == run.meters[worker].stats.samples
        evaluated = [not np.isnan(it.test_loss) for it in its]
        assert evaluated == [worker == 0 and it.epoch_end for it in its]


@each("knobs", [{"mode": "softsync", "softsync": 2}, {"mode": "allreduce", "allreduce": "ring"}])
def test_without_numerics_parameters_cost_nothing(knobs):
    asked = config(**knobs, optimizer="adam", epochs=None, steps=3)
    run = simulate(asked, workers=4, numerics=False, parameters=10**11)
    assert run.world.role_map.n == 10**11
    assert sum(port.bytes_sent for port in run.world.ports) > 10**11
    assert all(port.gradient.size == CONTROL for port in run.world.ports[1:])


# --- pushes that set out while the gradient is being computed ------------------------------------

PARTS = {"hidden": (32, 32), "batch_size": 4, "steps": 5, "lr": 0.05}


@each("mode", ["sync", "async"])
def test_a_push_goes_on_while_the_gradient_is_computed(mode):
    """So the simulation shows what it gains: both directions of the link are in use, too."""
    # A gradient takes 1 s, its bytes as long as that.
    costs = SimulationCosts(compute=lambda *_: 1.0, latency=lambda _: 1e-3, bandwidth=4 * 3500.0)
    whole, parts = (
        simulate(TrainConfig(**PARTS, mode=mode, shards_per_server=each), workers=1, costs=costs)
        for each in (1, 4)
    )
    assert parts.seconds < 0.8 * whole.seconds
    assert bits(parts) == bits(whole)


@each("mode", ["sync", "async", "ssp", "softsync"])
def test_the_last_layers_are_pushed_first(mode):
    asked = TrainConfig(**PARTS, mode=mode, shards_per_server=4, servers=1)
    history, _ = recorded(asked, supervised_problem(asked, workers=3), workers=3)
    assert check(history).ok
    for events in history.workers:
        pushes = events[events["kind"] == Kind.PUSH].reshape(-1, 4)
        assert (pushes[:, 0]["shard"] == 3).all()
        assert (pushes[:, 0]["time"] < pushes[:, -1]["time"]).all()
