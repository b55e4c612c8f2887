"""Gossip by host against a few lines of float64 with the two-level matrix; who leaves, who dies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

from psrt.config import TrainConfig, resolve
from psrt.errors import ConfigError
from psrt.history import EventLog, Kind
from psrt.job.problems import initial_parameters, supervised_problem
from psrt.job.virtual import VirtualLauncher, simulate
from psrt.optim import BLOCK
from psrt.simulation import SimulationCosts
from psrt.topology import topology_of

STEPS = 6
BASE = {"mode": "gossip", "by_host": True, "steps": STEPS, "hidden": (9,), "lr": 0.2}
CTA, ATC = "combine-then-adapt", "adapt-then-combine"
HOSTS = [(3, 1, 2), (1, 2, 1, 3), (4,), (2, 2)]


def hosts_of(ranks):
    return [host for host, count in enumerate(ranks) for _ in range(count)]


def ends(run):
    """Return what each worker ends with, θ_i."""
    return np.array([it.strategy.held[0] for it in run.workers])


def oracle(config, ranks):
    """Return each worker's θ, in float64 but for the gradients."""
    workers = sum(ranks)
    problems = [supervised_problem(config, workers=workers) for _ in range(workers)]
    topology = topology_of(config.topology, workers, hosts=hosts_of(ranks))
    theta = np.stack([initial_parameters(problems[0]).astype(np.float64)] * workers)
    batches = [iter(it.batches(i, workers, 0)) for i, it in enumerate(problems)]
    for step in range(config.steps):
        matrix = topology.matrices[step % topology.period]
        gradients = np.zeros(theta.shape, np.float32)
        for own, problem, out, batch in zip(theta, problems, gradients, batches, strict=True):
            problem.loss_and_grad(own.astype(np.float32), next(batch), out)
        if config.order == CTA:
            theta = matrix @ theta - config.lr * gradients
        else:
            theta = matrix @ (theta - config.lr * gradients)
    return theta


@pytest.mark.parametrize("order", [CTA, ATC])
@pytest.mark.parametrize("ranks", HOSTS)
@pytest.mark.parametrize("name", ["ring", "star", "full"])
def test_each_worker_ends_where_the_two_level_matrix_says(name, ranks, order):
    config = TrainConfig(topology=name, order=order, **BASE)
    run = simulate(config, workers=sum(ranks), hosts=ranks, seed=3)
    theta = oracle(resolve(config, ranks=sum(ranks)), ranks)
    assert_allclose(ends(run), theta, 1e-6, 1e-6)
    assert_allclose(run.theta, theta.mean(axis=0), 1e-6, 1e-6)
    if order == ATC:  # ranks of a host have the same, to the bit
        for a, b in itertools.pairwise(range(sum(ranks))):
            same = hosts_of(ranks)[a] == hosts_of(ranks)[b]
            assert np.array_equal(*ends(run)[[a, b]]) == (same or len(ranks) == 1)


@pytest.mark.parametrize("order", [CTA, ATC])
def test_hosts_of_a_rank_each_are_plain_gossip_to_the_bit(order):
    for name in ("ring", "star", "exponential", "one-peer-exponential"):
        config = TrainConfig(topology=name, order=order, **BASE)
        by_host = simulate(config, workers=5, hosts=(1,) * 5)
        plain = TrainConfig(topology=name, order=order, **(BASE | {"by_host": None}))
        assert np.array_equal(by_host.theta, simulate(plain, workers=5).theta)


def test_edges_that_go_one_way_between_hosts_with_as_many_ranks():
    config = TrainConfig(topology="one-peer-exponential", order=ATC, **BASE)
    ranks = (2, 2, 2, 2)
    run = simulate(config, workers=8, hosts=ranks)
    assert_allclose(ends(run), oracle(resolve(config, ranks=8), ranks), 1e-6, 1e-6)
    with pytest.raises(ConfigError, match="one-peer-exponential of 3 hosts: hosts with 3, 1, 2 r"):
        simulate(config, workers=6, hosts=(3, 1, 2))


def test_one_host_averages_all_ranks():
    config = TrainConfig(order=ATC, **BASE)
    reduced = simulate(TrainConfig(mode="allreduce", steps=STEPS, hidden=(9,), lr=0.2), workers=4)
    for theta in ends(simulate(config, workers=4)):
        assert_allclose(theta, reduced.theta, 1e-6, 1e-6)


@pytest.mark.parametrize("order", [CTA, ATC])
def test_the_order_of_arrivals_does_not_show(order):
    config = TrainConfig(order=order, **BASE)
    slow = SimulationCosts(bandwidth=1e6)
    costs = [None, None, None, slow]
    runs = [
        simulate(config, workers=6, hosts=(3, 1, 2), seed=seed, costs=it)
        for seed, it in enumerate(costs)
    ]
    assert len({run.summary.parameters_sha256 for run in runs}) == 1


def test_ranks_that_are_dealt_out_to_hosts_in_turn(monkeypatch):
    host = [0, 1, 2, 0, 1, 0]
    monkeypatch.setattr(VirtualLauncher, "hosts", lambda self, config: host)
    config = TrainConfig(order=ATC, **BASE)
    run = simulate(config, workers=6)
    found = ends(run)
    for i, j in itertools.combinations(range(6), 2):
        assert np.array_equal(found[i], found[j]) == (host[i] == host[j])


class Own:
    """Moves towards the number of its worker; worker i has ``counts[i]`` batches."""

    def __init__(self, n, counts):
        self.n, self.counts = n, counts

    def initial(self):
        return np.arange(self.n, dtype=np.float32)

    def batches(self, worker, workers, epoch):
        return [np.full(1, worker + 1.0)] * self.counts[worker]

    def loss_and_grad(self, theta, batch, out):
        out[:] = theta - batch[0]
        return float(batch[0])

    def evaluate(self, theta):
        return {"loss": 0.0}


@pytest.mark.parametrize("n", [1, BLOCK, BLOCK + 3, 2 * BLOCK + 1])
def test_vectors_of_several_blocks(n):
    config = TrainConfig(order=ATC, lr=0.25, epochs=1, mode="gossip", by_host=True)
    run = simulate(config, Own(n, [3] * 4), workers=4, hosts=(2, 1, 1))
    matrix = topology_of("ring", 4, hosts=(0, 0, 1, 2)).matrices[0]
    theta = np.stack([np.arange(n, dtype=np.float64)] * 4)
    for _ in range(3):
        theta = matrix @ (theta - 0.25 * (theta - np.arange(1, 5)[:, None]))
    np.testing.assert_allclose(ends(run), theta, rtol=1e-6, atol=1e-6)


def left_oracle(counts, ranks, order, rate):
    """Return θ of each worker where they leave one after another, of three hosts on a ring."""
    host = np.array(hosts_of(ranks))
    theta = np.zeros(len(counts))  # where ``Own`` of one number begins
    target = np.arange(1.0, len(counts) + 1)
    for step in range(max(counts)):
        here = np.array(counts) > step
        left = np.bincount(host[here], minlength=len(ranks))
        before = theta.copy()
        if order == ATC:
            theta[here] -= rate * (theta - target)[here]
        means = np.array([theta[here & (host == a)].mean() if left[a] else 0 for a in range(3)])
        for a in np.flatnonzero(left):
            mixed = means[a]
            for b in np.flatnonzero(left):
                # Two neighbours each, also where a host of them has left.
                mixed += min(1 / 3, left[b] / left[a] / 3) * (means[b] - means[a])
            theta[here & (host == a)] = mixed
        if order == CTA:
            theta[here] -= rate * (before - target)[here]
    return theta


@pytest.mark.parametrize("order", [CTA, ATC])
@pytest.mark.parametrize(
    "counts",
    [
        (1, 2, 3, 4, 5, 6),
        (6, 5, 4, 3, 2, 1),
        (2, 6, 2, 6, 2, 6),
        (0, 3, 0, 3, 0, 3),
        (0, 0, 0, 2, 2, 1),
    ],
    ids=str,
)
def test_who_is_done_leaves_and_the_others_go_on(counts, order):
    """Those that lead relay for their members, and weights follow the ranks that are left."""
    config = TrainConfig(order=order, lr=0.25, epochs=1, mode="gossip", by_host=True)
    run = simulate(config, Own(1, counts), workers=6, hosts=(3, 1, 2))
    assert tuple(it.clock for it in run.workers) == counts
    due = left_oracle(counts, (3, 1, 2), order, 0.25)
    assert ends(run)[:, 0] == pytest.approx(due, abs=1e-5)


@pytest.mark.parametrize("order", [CTA, ATC])
@pytest.mark.parametrize("victims", [(1,), (0,), (3,), (4, 5), (0, 1, 2), (0, 4)], ids=str)
def test_deaths_of_members_leaders_and_hosts(victims, order):
    config = TrainConfig(order=order, **(BASE | {"steps": 30}))
    crashes = tuple((it, 0.004 + 0.0003 * it) for it in victims)
    run = simulate(config, workers=6, hosts=(3, 1, 2), crashes=crashes)
    assert [it.clock < 30 for it in run.workers] == [it in victims for it in range(6)]


@pytest.mark.parametrize("order", [CTA, ATC])
def test_bytes_between_hosts_are_those_of_its_neighbours(order):
    config = TrainConfig(topology="star", order=order, **BASE)
    ranks = (2, 3, 1, 1)
    run = simulate(config, workers=7, hosts=ranks)
    n, frame = run.theta.size, 64
    message = STEPS * (4 * n + frame)
    first = {0: 3, 2: 1, 5: 1, 6: 1}  # whoever leads, and the degree of its host
    for i, worker in enumerate(run.workers):
        if i in first:
            members = ranks[hosts_of(ranks)[i]] - 1
            due = (first[i] + members) * message + first[i] * frame
        else:
            due = message + frame
        assert worker.stats.bytes_sent == due


def test_means_travel_while_gradients_are_computed():
    """Between hosts it takes a gradient's time; by adapt-then-combine the step is twice as long."""

    def seconds(order):
        costs = SimulationCosts(
            compute=lambda rank, rng: 0.01, latency=lambda rng: 0.009, bandwidth=1e12
        )
        config = TrainConfig(order=order, **(BASE | {"steps": 50}))
        return simulate(config, workers=5, hosts=(2, 2, 1), costs=costs).seconds / 50

    assert seconds(CTA) == pytest.approx(0.01, rel=0.05)
    assert seconds(ATC) == pytest.approx(0.019, rel=0.05)


@pytest.mark.parametrize("order", [CTA, ATC])
def test_events_say_who_averaged_what(tmp_path, order):
    config = TrainConfig(order=order, **(BASE | {"steps": 2}))
    path = tmp_path / "events.npy"
    log = EventLog(path, origin=0.0)
    simulate(config, workers=3, hosts=(2, 1), log=log)
    log.close()
    events = np.load(path)
    mine = [Kind(int(it)).name for it in events["kind"][events["worker"] == 0]]
    step = {
        CTA: ["OFFER", "STEP", "TAKE", "OFFER", "TAKE", "MIXED", "MIXED"],
        ATC: ["STEP", "OFFER", "TAKE", "OFFER", "TAKE", "MIXED", "MIXED"],
    }[order]
    later = ["OFFER", "TAKE", "OFFER", "STEP", *step[-3:]] if order == CTA else step
    assert [it for it in mine if it != "FINAL"] == [*step, *later, "LEAVE"]


@pytest.mark.parametrize(
    ("knobs", "hosts", "message"),
    [
        ({"push_sum": True}, (3, 2), "--by-host has no effect with --push-sum"),
        ({"topology": "hypercube"}, (3, 1, 1), "hypercube of 3 hosts: a hypercube has a power"),
        ({"mode": "sync", "by_host": None}, (3, 3), "--hosts has no effect with --mode sync"),
        ({}, (3, 3), "--hosts has 6 ranks in all, the job 5"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(knobs, hosts, message):
    with pytest.raises(ConfigError, match=message) as refused:
        simulate(TrainConfig(**(BASE | knobs)), workers=5, hosts=hosts)
    assert "\n" not in str(refused.value)
