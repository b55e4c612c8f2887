"""Workers whose batches differ in number and in size, some empty, one worker with none at all.

The results are held against plain numpy in float64 that knows of no server: the divisor is the
samples that were there.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.sync import Apply, policy_for
from support.cases import each
from support.recording import record

LR, MU = 0.2, 0.5
#: Sizes of the batches by worker and epoch, from the third epoch on the same again.
SIZES = (
    ((3, 1, 0, 4), (2,)),
    ((5,), (0, 3, 2)),
    ((), ()),
    ((0, 0), (1, 6, 1, 1, 0)),
)
WORKERS = len(SIZES)
START = np.linspace(-1, 1, 5)


class Points:
    """The loss of θ is half its mean squared distance from a batch of points."""

    def __init__(self):
        self.rng = np.random.default_rng(8)
        #: By worker and clock: the batches it has come to.
        self.seen: dict[tuple[int, int], np.ndarray] = {}
        #: By worker and clock: the gradients it made of them.
        self.gradients: dict[tuple[int, int], np.ndarray] = {}
        self.points = self.rng.normal(size=(WORKERS, 64, 8, 5)).astype(np.float32)

    def initial(self):
        return START.astype(np.float32)

    def batches(self, worker, workers, epoch):
        before = sum(len(SIZES[worker][e % 2]) for e in range(epoch))
        sizes = SIZES[worker][epoch % 2]
        return [(worker, before + i, size) for i, size in enumerate(sizes)]

    def samples(self, batch):
        worker, clock, size = batch
        self.seen[worker, clock] = self.points[worker, clock, :size]
        return size

    def loss_and_grad(self, theta, batch, out):
        worker, clock, size = batch
        assert size, "an empty batch has no gradient"
        points = self.points[worker, clock, :size]
        np.subtract(theta, points.mean(axis=0), out=out)
        self.gradients[worker, clock] = out.copy()
        return float(np.mean((theta - points) ** 2))

    def evaluate(self, theta):
        return {}

    def of(self, worker):
        """Return a worker's batches in order."""
        clocks = itertools.takewhile(lambda c: (worker, c) in self.seen, itertools.count())
        return [self.seen[worker, clock].astype(np.float64) for clock in clocks]


def expect_steps(problem):
    """Return the parameters after synchronous steps on all samples that there are at a clock."""
    theta, velocity = START.copy(), np.zeros(5)
    for batches in itertools.zip_longest(*map(problem.of, range(WORKERS)), fillvalue=()):
        points = [point for batch in batches for point in batch]
        if points:
            velocity = MU * velocity + theta - np.mean(points, axis=0)
            theta = theta - LR * velocity
    return theta


def expect_averages(problem, local_steps, outer_lr=None):
    """Return the parameters after local steps and averages weighed by samples."""
    theta, outer_velocity = START.copy(), np.zeros(5)
    mine, velocity = {w: START.copy() for w in range(WORKERS)}, dict.fromkeys(range(WORKERS), 0.0)
    for first in range(0, 64, local_steps):
        weights = dict.fromkeys(range(WORKERS), 0)
        for worker in range(WORKERS):
            for batch in problem.of(worker)[first : first + local_steps]:
                if len(batch):
                    gradient = mine[worker] - batch.mean(axis=0)
                    velocity[worker] = MU * velocity[worker] + gradient
                    mine[worker] = mine[worker] - LR * velocity[worker]
                    weights[worker] += len(batch)
        if any(weights.values()):
            mean = sum(weights[w] * mine[w] for w in mine) / sum(weights.values())
            if outer_lr is None:
                theta = mean
            else:  # Nesterov's momentum on the way from the last average to the mean
                delta = theta - mean
                outer_velocity = 0.9 * outer_velocity + delta
                theta = theta - outer_lr * (delta + 0.9 * outer_velocity)
            mine = {worker: theta.copy() for worker in mine}
    return theta


def expect_updates(problem, updates, *, by_samples, rate=lambda staleness: 1.0):
    """Return the parameters that a shard's updates lead to, from the gradients that there were."""
    theta, velocity = START.copy(), np.zeros(5)
    for version, pushes in enumerate(updates):
        full = [push for push in pushes if push.samples]
        if full:
            weights = np.array([push.samples if by_samples else 1.0 for push in full])
            rates = [rate(version - push.version) for push in full]
            gradients = [problem.gradients[push.worker, push.clock] for push in full]
            share = weights / weights.sum() * rates
            velocity = MU * velocity + share @ np.array(gradients, np.float64)
            theta = theta - LR * velocity
    return theta


def config(**more):
    return TrainConfig(optimizer="momentum", momentum=MU, lr=LR, **more)


LENGTHS = [{"epochs": 2}, {"epochs": 5}, {"steps": 1}, {"steps": 7}, {"steps": 12}]


@each("length", LENGTHS)
@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "sync", "servers": 1},
        {"mode": "sync", "servers": 3},
        *({"mode": "allreduce", "allreduce": name} for name in ("ring", "tree", "butterfly")),
    ],
)
def test_a_step_divides_by_the_samples_that_were_there(costs, mode, length):
    problem = Points()
    run, _ = record(config(**(mode | length)), problem, workers=WORKERS, costs=costs)
    np.testing.assert_allclose(run.theta, expect_steps(problem), rtol=1e-4, atol=1e-5)
    check_counts(run, problem)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "butterfly"])
@pytest.mark.parametrize("schedule", ["step", "cosine"])
def test_workers_at_different_points_take_one_rate(schedule, algorithm):
    """The rate at their mean progress, whether servers or ranks take the step."""
    more = {"schedule": schedule, "warmup_epochs": 0.5, "epochs": 4}
    servers, _ = record(config(mode="sync", **more), Points(), workers=WORKERS)
    ranks, _ = record(
        config(mode="allreduce", allreduce=algorithm, **more), Points(), workers=WORKERS
    )
    np.testing.assert_allclose(ranks.theta, servers.theta, rtol=1e-4, atol=1e-5)


@each("length", LENGTHS)
@each("local_steps", [1, 2, 3])
@pytest.mark.parametrize("outer", [{}, {"outer_lr": 0.7}])
@pytest.mark.parametrize(
    "over",
    [
        {"servers": 1},
        {"servers": 2, "shared_memory": False},
        *({"allreduce": name} for name in ("ring", "tree", "butterfly")),
    ],
)
@pytest.mark.one_in(3)
def test_an_average_divides_by_the_samples_since_the_last(over, outer, local_steps, length):
    problem = Points()
    asked = config(mode="local-sgd", local_steps=local_steps, **(over | outer | length))
    run, _ = record(asked, problem, workers=WORKERS, seed=local_steps)
    expected = expect_averages(problem, local_steps, **outer)
    np.testing.assert_allclose(run.theta, expected, rtol=1e-4, atol=1e-5)
    check_counts(run, problem)


@each("length", LENGTHS)
@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "sync", "backup": 1},
        {"mode": "sync", "backup": 3},
        {"mode": "async"},
        {"mode": "ssp", "staleness": 0},
        {"mode": "ssp", "staleness": 1},
        {"mode": "softsync", "softsync": 1},
        {"mode": "softsync", "softsync": 2},
        {"mode": "async", "staleness_rate": "inverse"},
        {"mode": "softsync", "softsync": 2, "staleness_rate": "inverse"},
        {"mode": "async", "staleness_rate": "drop", "staleness_limit": 1},
    ],
)
@pytest.mark.one_in(9)
def test_updates_are_made_of_the_gradients_they_are_decided_on(monkeypatch, costs, mode, length):
    for seed, servers in ((1, 2), (2, 1)):
        shards = listen(monkeypatch)
        problem = Points()
        asked = config(servers=servers, shared_memory=seed < 2, **(mode | length))
        run, _ = record(asked, problem, workers=WORKERS, seed=seed, costs=costs)
        at = 0
        for server, updates in zip(run.servers, shards, strict=True):
            rate = inverse if mode.get("staleness_rate") == "inverse" else lambda _: 1.0
            expected = expect_updates(
                problem, updates, by_samples=mode["mode"] == "sync", rate=rate
            )
            span = server.shard.theta
            expected = expected[at : at + span.size]
            np.testing.assert_allclose(span, expected, rtol=1e-4, atol=1e-5)
            at += span.size
            used = [(p.worker, p.clock) for pushes in updates for p in pushes if p.samples]
            assert (
                len(used) == len(set(used)) == len(problem.gradients) - server.shard.stats.dropped
            )
        if "backup" not in mode:
            check_counts(run, problem)


def inverse(staleness):
    return 1 / max(staleness, 1)


def listen(monkeypatch):
    """Return a list that will hold, by shard, the pushes of every update."""
    shards = []

    def listened(mode, workers, **knobs):
        policy, updates = policy_for(mode, workers, **knobs), []
        handle = policy.handle

        def handled(event):
            decisions = handle(event)
            updates.extend(d.pushes for d in decisions if isinstance(d, Apply))
            return decisions

        policy.handle = handled
        shards.append(updates)
        return policy

    monkeypatch.setattr("psrt.job.build.policy_for", listened)
    return shards


def check_counts(run, problem):
    """Check that nobody's samples were left out or seen twice."""
    for worker, meter in enumerate(run.meters):
        assert meter.stats.samples == sum(map(len, problem.of(worker)))
        assert meter.steps == run.workers[worker].clock == len(problem.of(worker))
