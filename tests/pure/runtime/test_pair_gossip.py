"""Gossip without rounds: against float64, by its own events; nobody waits, Σθ stays, all end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.history import Kind
from psrt.history.events import ANSWER, parts
from psrt.job.virtual import simulate
from psrt.simulation import SimulationCosts
from psrt.topology import topology_of
from support.histories import Kept

STEPS = 12
RATE = 0.25


class Apart:
    """Each worker is drawn to a point of its own; the gradient is exact."""

    def __init__(self, uneven=False):
        self.uneven = uneven

    def initial(self):
        return np.zeros(5, np.float32)

    def batches(self, worker, workers, epoch):
        steps = STEPS + 3 * worker * self.uneven
        return [np.random.default_rng(worker).normal(size=(1, 5))] * steps

    def loss_and_grad(self, theta, batch, out):
        out[:] = theta - batch[0]
        return float(np.square(theta - batch[0]).sum())

    def evaluate(self, theta):
        return {"loss": float(np.abs(theta).max())}


def config(topology, **knobs):
    return TrainConfig(
        **({"mode": "gossip", "topology": topology, "asynchronous": True, "epochs": 1} | knobs),
        lr=RATE,
    )


def told(topology, *, workers=4, seed=0, problem=None, costs=None, crashes=(), **knobs):
    """Return a run and its events, in the order in which they happened."""
    log, made = Kept(), Apart() if problem is None else problem
    run = simulate(
        config(topology, **knobs), made, workers=workers, seed=seed, costs=costs, log=log,
        crashes=crashes,
    )  # fmt: skip
    return run, log.kept()


def followed(events, workers, problem):
    """Return each worker's θ by its events, in float64."""
    theta = np.zeros((workers, 5))
    points = np.stack([problem.batches(i, workers, 0)[0][0] for i in range(workers)])
    sent, came = {}, {}
    for event in events:
        kind, worker, other, flag = (int(event[it]) for it in ("kind", "worker", "shard", "flag"))
        number = parts(int(event["version"]))[1]
        if kind == Kind.STEP:
            theta[worker] -= RATE * (theta[worker] - points[worker])
        elif kind == Kind.OFFER:
            sent[worker, other, number] = theta[worker].copy()
        elif kind == Kind.TAKE:
            came[worker] = sent[other, worker, number], sent[worker, other, number]
            assert flag == ANSWER * (event["tau"] > 0)
        elif kind == Kind.MIXED:
            theirs, mine = came.pop(worker)
            theta[worker] += (theirs - mine) / 2
    return theta


def ends(run):
    return np.array([it.strategy.held[0] for it in run.workers])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("topology", ["ring", "star", "torus", "hypercube"])
def test_each_worker_ends_where_its_events_say(topology, seed):
    run, events = told(topology, seed=seed)
    assert (events["kind"] == Kind.MIXED).sum() > 8
    assert_allclose(ends(run), followed(events, 4, Apart()), 1e-6, 1e-5)
    assert_allclose(run.theta, ends(run).mean(axis=0), 1e-6, 1e-6)


@pytest.mark.parametrize("optimizer", ["momentum", "nesterov", "adam"])
def test_any_optimizer_takes_the_steps(optimizer):
    run, events = told("ring", optimizer=optimizer, problem=Apart())
    assert (events["kind"] == Kind.MIXED).sum() > 8
    assert np.isfinite(ends(run)).all()


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_averages_do_not_move_the_mean(workers):
    """The mean follows the gradients alone: of all points alike, it is that of one worker."""

    class Alike(Apart):
        """Gradients do not depend on θ, so that their sum is known."""

        def loss_and_grad(self, theta, batch, out):
            out[:] = batch[0]
            return 1.0

    run, events = told("ring", workers=workers, problem=Alike(), seed=2)
    assert (events["kind"] == Kind.MIXED).any()
    points = np.stack([Alike().batches(i, workers, 0)[0][0] for i in range(workers)])
    assert_allclose(ends(run).sum(axis=0), -RATE * STEPS * points.sum(axis=0), 1e-6, 1e-4)
    alone = -RATE * STEPS * points
    assert np.ptp(ends(run), axis=0).max() < np.ptp(alone, axis=0).max()


@pytest.mark.parametrize("seed", range(3))
def test_the_last_distance_is_of_the_models_after_the_last_average(seed):
    """Averages follow the last step, also where its clock is one at which it is measured."""
    run = simulate(config("ring", consensus_every=1), Apart(), workers=4, seed=seed)
    apart = ends(run) - ends(run).mean(axis=0)
    assert run.records[-1].consensus_distance == pytest.approx(np.sqrt(np.mean(apart**2)), rel=1e-5)


def test_nobody_waits_for_a_straggler():
    """Worker 1 of a ring takes 10 times as long: nobody else's step takes longer for it."""
    slow = {1: 10.0}

    def compute(rank, rng):
        return 0.01 * slow.get(rank, 1.0)

    costs = SimulationCosts(compute=compute)
    _, events = told("ring", workers=6, costs=costs)
    steps = events[events["kind"] == Kind.STEP]
    for worker in range(6):
        times = steps["time"][steps["worker"] == worker]
        assert times == pytest.approx(0.01 * slow.get(worker, 1.0) * np.arange(1, STEPS + 1))
    taken = events[events["kind"] == Kind.TAKE]
    by_the_slow = taken["tau"][taken["shard"] == 1]
    others = taken["tau"][(taken["shard"] != 1) & (taken["flag"] == ANSWER)]
    assert by_the_slow.max() > others.max()


def test_staleness_and_gaps_are_counted():
    run, events = told("ring", workers=4, seed=1)
    taken = events[events["kind"] == Kind.TAKE]
    mixed = events[events["kind"] == Kind.MIXED]
    assert sum(run.summary.staleness.histogram) == len(taken)
    assert run.summary.staleness.max == taken["tau"].max()
    for worker, counts in enumerate(run.summary.staleness.by_worker):
        mine = taken["tau"][taken["worker"] == worker]
        assert sum(counts.histogram.values()) == len(mine)
        assert counts.max == mine.max(initial=0)
    gap = run.summary.staleness.gap
    assert gap.count == len(mixed)
    assert gap.mean == pytest.approx(mixed["gap"].mean(), rel=1e-5)
    reports = run.reports
    assert sum(it.staleness_count for it in reports) == len(taken)
    assert sum(it.staleness_sum for it in reports) == taken["tau"].sum()
    assert sum(it.gap_count for it in reports) == len(mixed)
    assert run.summary.skew.histogram == {}


@pytest.mark.parametrize("topology", ["ring", "star"])
def test_who_has_less_data_leaves_and_the_others_go_on(topology):
    for seed in range(4):
        run, events = told(topology, problem=Apart(uneven=True), seed=seed)
        assert [it.clock for it in run.workers] == [STEPS + 3 * i for i in range(4)]
        assert_allclose(ends(run), followed(events, 4, Apart(True)), 1e-6, 1e-5)


@pytest.mark.parametrize("topology", ["ring", "star", "torus"])
def test_a_crash_at_any_time_stops_nobody_else(topology):
    for worker, at, seed in itertools.product(range(4), range(1, 16, 2), range(2)):
        run, _ = told(topology, seed=seed, crashes=((worker, 1e-3 * at),))
        clocks = [it.clock for it in run.workers]
        assert [it for i, it in enumerate(clocks) if i != worker] == [STEPS] * 3


def test_all_but_one_may_crash():
    for last in range(4):
        crashes = tuple((i, 0.003 + 0.001 * i) for i in range(4) if i != last)
        run, _ = told("ring", crashes=crashes)
        assert run.workers[last].clock == STEPS


def test_one_worker_trains_alone():
    knobs = {"epochs": None, "steps": 7, "hidden": (9,), "optimizer": "momentum"}
    alone = simulate(TrainConfig(mode="serial", **knobs | {"lr": RATE}), workers=1).theta
    assert np.array_equal(alone, simulate(config("ring", **knobs), workers=1).theta)


def test_without_numbers_it_takes_the_same_time():
    knobs = {"epochs": None, "steps": 10, "hidden": (9,)}
    runs = [
        simulate(config("ring", **knobs), workers=4, seed=5, numerics=numerics)
        for numerics in (True, False)
    ]
    assert runs[0].seconds == runs[1].seconds
    assert runs[0].summary.staleness.histogram == runs[1].summary.staleness.histogram
    assert runs[1].summary.staleness.gap.count == 0


def test_bytes_are_those_of_offers_and_answers():
    run, events = told("ring")
    vectors = (events["kind"] == Kind.OFFER).sum()
    frame, n, leaves = 64, 5, 2 * 4
    assert run.summary.bytes_sent == vectors * (frame + 4 * n) + leaves * frame


def test_who_answers_has_a_region_for_each_who_asks():
    run, _ = told("star", workers=5)
    assert run.world.role_map.offers == (1, 1, 1, 1, 1)
    run, _ = told("ring", workers=6)
    assert run.world.role_map.offers == (1, 2, 1, 2, 1, 2)


@pytest.mark.parametrize(
    ("topology", "workers", "knobs", "message"),
    [
        ("full", 3, {}, "full: ranks .* are a cycle of 3"),
        ("ring", 5, {}, "ring: ranks .* are a cycle of 5"),
        ("exponential", 5, {}, "exponential has edges that go one way, such as 0 > 2"),
        ("one-peer-exponential", 4, {}, "one-peer-exponential has another graph in each of 2"),
        ("ring", 4, {"by_host": True}, "--by-host has no effect with --asynchronous"),
        ("ring", 4, {"push_sum": True}, "--push-sum has no effect with --asynchronous"),
        ("ring", 4, {"gradient_tracking": True}, "--gradient-tracking has no effect with --async"),
        ("ring", 4, {"order": "adapt-then-combine"}, "--order .* no effect with --asynchronous"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(topology, workers, knobs, message):
    with pytest.raises(ConfigError, match=message) as refused:
        simulate(config(topology, **knobs), Apart(), workers=workers)
    assert "\n" not in str(refused.value)


def test_weights_in_a_file_are_refused(tmp_path):
    path = tmp_path / "edges"
    path.write_text("0 1 0.25\n1 2 0.25\n")
    with pytest.raises(ConfigError, match="has weights, and --asynchronous averages pairs by"):
        told(str(path), workers=3)
    path.write_text("0 1\n1 2\n")
    run, _ = told(str(path), workers=3)
    assert run.world.role_map.offers == (1, 2, 1)
    assert topology_of(str(path), 3).colours == (0, 1, 0)
