"""Gossip in rounds against a few lines of float64, against all-reduce, and what it conserves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from psrt.config import TrainConfig, resolve
from psrt.errors import ConfigError
from psrt.job.problems import initial_parameters, supervised_problem
from psrt.job.virtual import simulate
from psrt.topology import topology_of

WORKERS, STEPS = 4, 7
BASE = {"steps": STEPS, "hidden": (9,), "lr": 0.2}
CTA, ATC = "combine-then-adapt", "adapt-then-combine"
TOPOLOGIES = ["ring", "exponential", "one-peer-exponential", "star", "full", "torus"]


def ends(run):
    """Return what each worker ends with, θ_i."""
    return [it.strategy.held[0] / np.float32(it.strategy.held[1]) for it in run.workers]


def oracle(config, workers, *, order, push_sum=False):
    """Return each worker's x and w, in float64 but for the gradients; θ is x/w."""
    problems = [supervised_problem(config, workers=workers) for _ in range(workers)]
    topology = topology_of(config.topology, workers, push_sum=push_sum)
    x = np.stack([initial_parameters(problems[0]).astype(np.float64)] * workers)
    w = np.ones((workers, 1))
    batches = [iter(it.batches(i, workers, 0)) for i, it in enumerate(problems)]
    for step in range(config.steps):
        matrix = topology.matrices[step % topology.period]
        gradients = np.zeros(x.shape, np.float32)
        for theta, problem, out, batch in zip(x / w, problems, gradients, batches, strict=True):
            problem.loss_and_grad(theta.astype(np.float32), next(batch), out)
        if order == CTA:
            x = matrix @ x - config.lr * gradients
        else:
            x = matrix @ (x - config.lr * gradients)
        w = matrix @ w
    return x, w


@pytest.mark.parametrize(
    ("order", "push_sum"), [(CTA, False), (ATC, False), (ATC, True)], ids=["cta", "atc", "sgp"]
)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_each_worker_ends_where_the_equation_says(name, order, push_sum):
    config = TrainConfig(mode="gossip", topology=name, order=order, push_sum=push_sum, **BASE)
    run = simulate(config, workers=WORKERS, seed=3)
    x, w = oracle(resolve(config, ranks=WORKERS), WORKERS, order=order, push_sum=push_sum)
    assert_allclose(np.array(ends(run)), x / w, 1e-6, 1e-6)
    assert_allclose(run.theta, x.sum(axis=0) / w.sum(), 1e-6, 1e-6)


@pytest.mark.parametrize("push_sum", [False, True])
@pytest.mark.parametrize("order", [CTA, ATC])
def test_the_order_of_arrivals_does_not_show(order, push_sum):
    if push_sum and order == CTA:
        return
    for name in TOPOLOGIES:
        config = TrainConfig(mode="gossip", topology=name, order=order, push_sum=push_sum, **BASE)
        runs = [simulate(config, workers=WORKERS, seed=seed) for seed in range(3)]
        assert len({run.summary.parameters_sha256 for run in runs}) == 1


def test_on_the_full_graph_it_is_an_all_reduce():
    gossip = TrainConfig(mode="gossip", topology="full", order=ATC, **BASE)
    reduced = simulate(TrainConfig(mode="allreduce", **BASE), workers=WORKERS).theta
    for theta in ends(simulate(gossip, workers=WORKERS)):
        assert_allclose(theta, reduced, 1e-6, 1e-6)


@pytest.mark.parametrize("order", [CTA, ATC])
def test_without_gradients_one_peer_averages_exactly_after_a_period(order):
    """Eight workers, apart by their own data for a step, agree after lg 8 rounds without any."""
    config = TrainConfig(
        mode="gossip", topology="one-peer-exponential", order=order, schedule="step",
        decay_epochs=0.02, decay_factor=1e-30, lr=0.5, hidden=(5,), steps=8,
    )  # fmt: skip
    run = simulate(config, workers=8)
    thetas = np.array(ends(run))
    assert np.abs(thetas - thetas.mean(axis=0)).max() < 1e-6


def test_bytes_a_step_are_those_of_its_neighbours():
    config = TrainConfig(mode="gossip", topology="ring", **BASE)
    run = simulate(config, workers=WORKERS)
    n, frame = run.theta.size, 64
    for worker in run.workers:
        assert worker.stats.bytes_sent == STEPS * 2 * (4 * n + frame) + 2 * frame  # two leaves


def test_one_worker_trains_alone():
    alone = simulate(TrainConfig(mode="serial", **BASE), workers=1).theta
    gossip = simulate(TrainConfig(mode="gossip", **BASE), workers=1).theta
    assert np.array_equal(alone, gossip)


class Uneven:
    """Worker i has i + 1 batches."""

    def initial(self):
        return np.zeros(3, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.full(1, worker + 1.0)] * (worker + 1)

    def loss_and_grad(self, theta, batch, out):
        out[:] = theta - batch[0]
        return float(batch[0])

    def evaluate(self, theta):
        return {"loss": 0.0}


def test_who_has_less_data_leaves_and_the_others_go_on():
    for name in ("ring", "exponential", "full"):
        for push_sum in (False, True):
            config = TrainConfig(mode="gossip", topology=name, push_sum=push_sum, epochs=3)
            run = simulate(config, Uneven(), workers=5)
            assert [it.clock for it in run.workers] == [3, 6, 9, 12, 15]
            weights = [it.strategy.held[1] for it in run.workers]
            assert sum(weights) == pytest.approx(5)


def test_a_crash_does_not_stop_the_others():
    config = TrainConfig(mode="gossip", topology="ring", **(BASE | {"steps": 30}))
    run = simulate(config, workers=5, crashes=((2, 0.004),))
    assert [it.clock == 30 for it in run.workers] == [True, True, False, True, True]


@pytest.mark.parametrize("knobs", [{}, {"push_sum": True}, {"order": ATC}], ids=str)
def test_the_distance_of_the_models_is_measured_and_changes_nothing(knobs):
    config = TrainConfig(mode="gossip", topology="ring", log_every=3, **BASE, **knobs)
    runs = {
        every: simulate(replace(config, consensus_every=every), workers=WORKERS)
        for every in (0, 1, 100)
    }
    assert len({run.summary.parameters_sha256 for run in runs.values()}) == 1
    assert len({run.seconds for run in runs.values()}) == 1
    assert len({run.summary.bytes_sent for run in runs.values()}) == 1
    assert {record.consensus_distance for record in runs[0].records} == {None}
    found = [record.consensus_distance for record in runs[1].records]
    assert [record.step for record in runs[1].records] == [3, 6, 7]
    assert found == [record.consensus_distance for record in runs[100].records]
    for record, distance in zip(runs[1].records, found, strict=True):
        short = simulate(replace(config, steps=record.step), workers=WORKERS)
        thetas = np.array([it.strategy.held[0] / it.strategy.held[1] for it in short.workers])
        mean = thetas.astype(np.float64) - thetas.mean(axis=0, dtype=np.float64)
        assert distance == pytest.approx(math.sqrt(np.mean(mean**2)), rel=1e-5)
    gossip = runs[0].summary.graph_averages
    assert gossip.models == WORKERS
    assert gossip.consensus_distance == pytest.approx(found[-1], rel=1e-5)


def test_the_distance_is_of_those_who_train_or_of_nobody():
    """A dead worker is missing; those whose lines do not coincide share the clocks of K."""
    config = TrainConfig(mode="gossip", topology="full", log_every=5, **(BASE | {"steps": 30}))
    run = simulate(config, workers=5, crashes=((2, 0.004),))
    assert all(record.consensus_distance for record in run.records)

    config = TrainConfig(mode="gossip", topology="full", epochs=3, lr=0.1, consensus_every=4)
    run = simulate(config, Uneven(), workers=3)
    by_step = {record.step: record.consensus_distance for record in run.records}
    assert by_step[4] > 0  # of all three, whose epochs end at 2, 4 and 3, and later at 3, 6 and 9


def test_the_start_and_the_end_say_whose_model_it_is():
    lines = []
    config = TrainConfig(mode="gossip", topology="one-peer-exponential", **BASE)
    run = simulate(config, workers=WORKERS, say=lines.append)
    size = f"{4 * run.theta.size / 1024:.3g} KiB"
    text = f"one-peer-exponential, combine-then-adapt, spectral gap 1 in 2 steps, {size} a step"
    assert f"topology: {text} and worker" in lines
    assert "accuracy: of worker 0's own model, and at the end of the mean of all" in lines
    assert any("  consensus " in line for line in lines)
    gossip = run.summary.graph_averages
    assert f"model     mean of 4 workers, which end {gossip.consensus_distance:.1e} apart" in lines[
        -1
    ].split("\n")
    assert gossip.step_bytes * STEPS * WORKERS < run.summary.bytes_sent


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"topology": "hypercube"}, "hypercube: a hypercube has a power of two of ranks, got 5; 4"),
        ({"topology": "torus"}, "torus: a torus has rows × columns of at least two each"),
        ({"topology": "nowhere.txt"}, "nowhere.txt: cannot be read: .*known are ring, exp"),
        ({"push_sum": True, "order": CTA}, "--push-sum sends what a step has made"),
        ({"mode": "sync", "topology": "ring"}, "--topology ring has no effect with --mode sync"),
        ({"servers": 1}, "--servers 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(knobs, message):
    with pytest.raises(ConfigError, match=message) as refused:
        simulate(TrainConfig(**({"mode": "gossip"} | BASE | knobs)), workers=5)
    assert "\n" not in str(refused.value)
