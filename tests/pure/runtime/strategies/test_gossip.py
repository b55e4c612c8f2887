"""Gossip, by one's own: vectors of several blocks, who leaves, codecs, distances, and refusals.

That each mode ends where its equation says, that it survives, and what it counts are laws.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from psrt.codec import CODECS
from psrt.config import TrainConfig, resolve
from psrt.core.errors import ConfigError
from psrt.job.virtual import VirtualLauncher, simulate
from psrt.optim import BLOCK
from psrt.simulation import SimulationCosts
from psrt.topology import topology_of
from support.cases import also, each, some
from support.knobs import together

CTA, ATC = "combine-then-adapt", "adapt-then-combine"
BOTH = pytest.mark.parametrize("order", [CTA, ATC])


class Apart:
    """Worker i has the loss ½ a_i ‖θ − c_i‖², in as many steps as ``counts`` says.

    With ``once`` it has no gradient after its first one.
    """

    def __init__(self, *counts, n=5, once=False):
        rng = np.random.default_rng(len(counts))
        self.counts, self.once = counts, once
        self.centres = rng.standard_normal((len(counts), n))
        self.curvatures = 1.0 + np.arange(len(counts)) % 3

    def gradients(self, thetas):
        return self.curvatures[:, None] * (thetas - self.centres)

    def initial(self):
        return np.zeros(self.centres.shape[1], np.float32)

    def batches(self, worker, workers, epoch):
        return [np.array([[worker, epoch, i]]) for i in range(self.counts[worker])]

    def loss_and_grad(self, theta, batch, out):
        [[worker, epoch, i]] = batch
        out[:] = self.curvatures[worker] * (theta - self.centres[worker])
        if self.once and epoch + i:
            out[:] = 0.0
        return 1.0

    def evaluate(self, theta):
        return {"loss": 0.0}


def gossip(problem, *, seed=0, hosts=(), costs=None, crashes=(), say=None, **knobs):
    """Return a run of as many workers as the problem has."""
    if "steps" not in knobs:
        knobs = {"epochs": 1} | knobs
    config = TrainConfig(**together({"mode": "gossip", "lr": 0.1} | knobs))
    return simulate(
        config, problem, workers=len(problem.counts), seed=seed, hosts=hosts, costs=costs,
        crashes=crashes, **({"say": say} if say else {}),
    )  # fmt: skip


def ends(run):
    """Return what each worker ends with, θ_i."""
    return np.array([np.divide(*it.strategy.held) for it in run.workers])


def apart(thetas):
    """Return the root of the mean square of how far vectors are from their mean."""
    wide = thetas.astype(np.float64)
    return math.sqrt(np.mean((wide - wide.mean(axis=0)) ** 2))


def largest(vector, density):
    """Return the largest elements of a vector, the others being 0."""
    found, k = np.zeros_like(vector), math.ceil(density * vector.size)
    chosen = np.argsort(-np.abs(vector))[:k]
    found[chosen] = vector[chosen]
    return found


def oracle(problem, matrices, steps, *, order=CTA, tracks=False, density=None, rate=1.0):
    """Return each worker's θ in float64; with ``density`` by top-k."""
    x, w = np.zeros_like(problem.centres), np.ones((len(problem.centres), 1))
    y, before, known = np.zeros((3, *x.shape))

    def mixed(x):
        if density is None:
            return matrix @ x
        known[:] += [largest(row, density) for row in x - known]
        return x + rate * (matrix @ known - known)

    for step in range(steps):
        matrix = matrices[step % len(matrices)]
        gradients = problem.gradients(x / w)
        if order == CTA:
            x, y, w = mixed(x), matrix @ y, matrix @ w
        y += gradients - before
        x = x - 0.1 * (y if tracks else gradients)
        if order == ATC:
            x, y, w = mixed(x), matrix @ y, matrix @ w
        before = gradients
    return x / w


CODED = {"codec": "top-k:density=0.1", "consensus_rate": 0.3}
#: Topology, knobs, ranks of hosts.
KINDS = [
    ("star", {}, ()),
    ("one-peer-exponential", {"order": ATC}, ()),
    ("exponential", {"variant": "push-sum", "order": ATC}, ()),
    ("ring", {"variant": "gradient-tracking"}, ()),
    ("one-peer-exponential", {"variant": "gradient-tracking", "order": ATC}, ()),
    ("ring", {"variant": "by-host"}, (2, 1, 1)),
    ("star", {"variant": "by-host", "order": ATC}, (1, 1, 2)),
    ("ring", CODED, ()),
    ("ring", CODED | {"order": ATC}, ()),
]


@pytest.mark.parametrize("n", some([BLOCK + 5, 40, BLOCK, 2 * BLOCK + 5], one_in=4))
@pytest.mark.parametrize(("topology", "knobs", "ranks"), KINDS, ids=str)
def test_vectors_of_several_blocks(topology, knobs, ranks, n):
    """Of θ, and of [θ; y], in which blocks end amid either."""
    problem = Apart(4, 4, 4, 4, n=n)
    run = gossip(problem, topology=topology, hosts=ranks, seed=2, **knobs)
    places = [host for host, count in enumerate(ranks) for _ in range(count)]
    matrices = topology_of(
        topology,
        4,
        push_sum=knobs.get("variant") == "push-sum",
        **({"hosts": places} if ranks else {}),
    ).matrices
    coded = {"density": 0.1, "rate": 0.3} if "codec" in knobs else {}
    tracks, order = knobs.get("variant") == "gradient-tracking", knobs.get("order", CTA)
    due = oracle(problem, matrices, 4, order=order, tracks=tracks, **coded)
    # Of many elements a few are nearly as large as others, which float32 then takes for larger.
    off = np.abs(ends(run) - due) > 4e-6
    assert off.mean() < (1e-3 if coded and n > 40 else 1e-12)
    if ranks and order == ATC:  # ranks of a host have the same, to the bit
        for a, b in itertools.combinations(range(4), 2):
            assert np.array_equal(*ends(run)[[a, b]]) == (places[a] == places[b])


def test_ranks_that_are_dealt_out_to_hosts_in_turn(monkeypatch):
    host = [0, 1, 2, 0, 1, 0]
    monkeypatch.setattr(VirtualLauncher, "hosts", lambda self, config: host)
    found = ends(gossip(Apart(*[6] * 6), order=ATC, variant="by-host"))
    for i, j in itertools.combinations(range(6), 2):
        assert np.array_equal(found[i], found[j]) == (host[i] == host[j])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("order", "off"), [(CTA, "0.58"), (ATC, "0.52")])
def test_where_it_comes_to_rest_is_what_the_documentation_says(order, off):
    """Plainly, and by tracking; that tracked gradients are right, a law says."""
    problem = Apart(*[800] * 8, n=3)
    due = problem.curvatures @ problem.centres / problem.curvatures.sum()
    plain, tracking = (
        np.linalg.norm(ends(gossip(problem, lr=0.05, order=order, **it)) - due, axis=1).max()
        for it in ({}, {"variant": "gradient-tracking"})
    )
    assert f"{plain:.2f}" == off
    assert tracking < 2e-7


# --- who leaves, and who dies -------------------------------------------------------------------


def left_oracle(problem, ranks, order):
    """Return θ of each worker where they leave one after another, of three hosts on a ring."""
    host = np.repeat(np.arange(3), ranks)
    theta = np.zeros_like(problem.centres)
    for step in range(max(problem.counts)):
        here = np.array(problem.counts) > step
        left = np.bincount(host[here], minlength=3)
        gradients = problem.gradients(theta)
        if order == ATC:
            theta[here] -= 0.1 * gradients[here]
        means = [theta[here & (host == a)].mean(axis=0) if left[a] else 0 for a in range(3)]
        for a in np.flatnonzero(left):
            mixed = means[a]
            for b in np.flatnonzero(left):
                # Two neighbours each, also where a host of them has left.
                mixed = mixed + min(1 / 3, left[b] / left[a] / 3) * (means[b] - means[a])
            theta[here & (host == a)] = mixed
        if order == CTA:
            theta[here] -= 0.1 * gradients[here]
    return theta


@BOTH
@each(
    ("counts", "ranks"),
    [
        ((1, 2, 3), ()),
        ((1, 2, 3), (1, 1, 1)),
        ((5, 0, 3), ()),
        ((1, 2, 3, 4, 5, 6), (3, 1, 2)),
        ((6, 5, 4, 3, 2, 1), (3, 1, 2)),
        ((0, 3, 0, 3, 0, 3), (3, 1, 2)),
        ((0, 0, 0, 2, 2, 1), (3, 1, 2)),
    ],
)
def test_who_is_done_leaves_and_the_others_go_on(counts, ranks, order):
    """Those that lead relay for their members, and weights follow the ranks that are left."""
    problem = Apart(*counts)
    run = gossip(problem, order=order, hosts=ranks, variant="by-host" if ranks else "plain")
    assert tuple(it.clock for it in run.workers) == counts
    assert_allclose(ends(run), left_oracle(problem, ranks or (1, 1, 1), order), 1e-5, 1e-5)


@each("topology", ["ring", "exponential", "full"])
def test_who_leaves_takes_no_weight_along(topology):
    run = gossip(Apart(1, 2, 3, 4, 5), topology=topology, variant="push-sum", epochs=3)
    assert [it.clock for it in run.workers] == [3, 6, 9, 12, 15]
    assert sum(it.strategy.held[1] for it in run.workers) == pytest.approx(5)


@each(("victims", "order"), [((1,), CTA), ((3,), ATC), ((0, 1, 2), CTA), ((0, 4), ATC)])
def test_deaths_of_members_leaders_and_hosts(victims, order):
    crashes = tuple((it, 0.004 + 0.0003 * it) for it in victims)
    run = gossip(Apart(*[30] * 6), order=order, variant="by-host", hosts=(3, 1, 2), crashes=crashes)
    assert [it.clock < 30 for it in run.workers] == [it in victims for it in range(6)]


def test_without_rounds_a_death_stops_nobody_else():
    """Amid an average, and of one for whose end others wait; all but one may die."""
    given = {"topology": "star", "variant": "pairs"}
    for worker, at in itertools.product(range(4), range(1, 16, 4)):
        run = gossip(Apart(*[12] * 4), crashes=((worker, 1e-3 * at),), **given)
        assert [it.clock for i, it in enumerate(run.workers) if i != worker] == [12] * 3
    for last in range(4):
        crashes = tuple((i, 0.003 + 0.001 * i) for i in range(4) if i != last)
        run = gossip(Apart(*[12] * 4), variant="pairs", crashes=crashes)
        assert run.workers[last].clock == 12


# --- what is sent, and when ---------------------------------------------------------------------


def test_bytes_between_hosts_are_those_of_its_neighbours():
    ranks, frame = (2, 3, 1, 1), 64
    run = gossip(Apart(*[6] * 7), topology="star", variant="by-host", hosts=ranks)
    message = 6 * (4 * 5 + frame)
    degree = {0: 3, 2: 1, 5: 1, 6: 1}  # whoever leads, and the degree of its host
    members = {0: 1, 2: 2, 5: 0, 6: 0}
    for i, worker in enumerate(run.workers):
        due = message + frame
        if i in degree:
            due = (degree[i] + members[i]) * message + degree[i] * frame
        assert worker.stats.bytes_sent == due


def test_means_travel_while_gradients_are_computed():
    """Between hosts it takes a gradient's time; by adapt-then-combine the step is twice as long."""
    costs = SimulationCosts(
        compute=lambda rank, rng: 0.01, latency=lambda rng: 0.009, bandwidth=1e12
    )
    for order, due in ((CTA, 0.01), (ATC, 0.019)):
        run = gossip(Apart(*[50] * 5), order=order, variant="by-host", hosts=(2, 2, 1), costs=costs)
        assert run.seconds / 50 == pytest.approx(due, rel=0.05)


def test_without_rounds_nobody_waits_for_a_straggler():
    """Worker 1 of a ring takes 10 times as long: nobody else's step takes longer for it."""
    costs = SimulationCosts(compute=lambda rank, rng: 0.1 if rank == 1 else 0.01)
    run = gossip(Apart(*[6] * 6), variant="pairs", costs=costs, epochs=2)
    ended = {it.worker: it.seconds for it in run.reports if it.step == 6}
    assert ended == pytest.approx({i: 0.6 if i == 1 else 0.06 for i in range(6)})


def test_without_rounds_reports_add_up_to_the_summary():
    run = gossip(Apart(*[12] * 4), variant="pairs", log_every=5, seed=1)
    told, reports = run.summary.staleness, run.reports
    assert sum(it.staleness_count for it in reports) == sum(told.histogram) > 10
    assert sum(it.staleness_sum for it in reports) == sum(
        tau * count for tau, count in enumerate(told.histogram)
    )
    assert max(it.staleness_max for it in reports) == told.max > 0
    assert sum(it.gap_count for it in reports) == told.gap.count > 10
    assert sum(it.gap_sum for it in reports) == pytest.approx(told.gap.mean * told.gap.count)


# --- codecs -------------------------------------------------------------------------------------

#: What codecs need that have no default, or one for larger models.
KNOBS = {
    "int8": {},
    "top-k": {"codec": "top-k:density=0.25"},
    "low-rank": {"codec": "low-rank:rank=1", "consensus_rate": 0.2},
    "random-k": {"codec": "random-k:density=0.4"},
    "threshold": {"codec": "threshold:threshold=0.05"},
}
KNOBS |= {name: {} for name, row in CODECS.items() if row.sends_differences and name not in KNOBS}


@pytest.mark.parametrize("codec", [it if i < 3 else also(it) for i, it in enumerate(KNOBS)])
def test_workers_come_to_agree_whatever_a_codec_loses(codec):
    """Without gradients after the first; all along their mean stays, by any codec."""
    problem = Apart(*[10] * 6, n=40, once=True)
    problem.matrices = lambda: [(0, 5, 8)]
    due = 0.5 * (problem.curvatures[:, None] * problem.centres).mean(axis=0)
    knobs = {"codec": codec, "lr": 0.5} | KNOBS[codec]
    first, last = (ends(gossip(problem, steps=steps, **knobs)) for steps in (1, 60))
    for thetas in (first, last):
        assert_allclose(thetas.mean(axis=0), due, 1e-6, 2e-6)
    assert apart(last) < 0.1 * apart(first)


def test_a_frame_is_counted_for_each_neighbour():
    run = gossip(Apart(*[7] * 4, n=40), topology="full", codec="int8:bucket=40")
    frame = run.workers[0].stats.frame_bytes // (7 * 3)
    assert 40 < frame < 80
    for worker in run.workers:
        stats = worker.stats
        assert stats.frame_bytes == 7 * 3 * frame
        assert stats.framed_bytes == 7 * 3 * 4 * 40
        assert stats.bytes_sent == 7 * 3 * (frame + 64) + 3 * 64  # three leaves


@each(
    ("knobs", "rate"),
    [
        ({"codec": "int8:bucket=4096"}, 1.0),
        ({"codec": "random-k:density=0.2"}, 0.2),
        ({"codec": "qsgd:levels=8,bucket=16"}, 0.8),
        ({"codec": "qsgd", "consensus_rate": 0.7}, 0.7),
    ],
)
def test_the_consensus_rate_is_what_a_codec_tells(knobs, rate):
    config = resolve(TrainConfig(**together({"mode": "gossip"} | knobs)), ranks=3)
    assert config.scheme.consensus_rate == pytest.approx(rate)
    assert config.error_feedback is config.codec.knobs.get("scaled") is None


# --- what is said -------------------------------------------------------------------------------


@each("knobs", [{}, {"variant": "push-sum"}, {"variant": "pairs"}])
def test_the_distance_of_the_models_is_measured_and_changes_nothing(knobs):
    config = {"log_every": 3, **knobs}
    runs = [gossip(Apart(*[7] * 4), consensus_every=every, **config) for every in (0, 1)]
    for what in (lambda it: it.theta.tobytes(), lambda it: it.summary.bytes_sent):
        assert len({what(it) for it in runs}) == 1
    assert {record.consensus_distance for record in runs[0].records} == {None}
    *some, last = runs[1].records
    assert [record.step for record in runs[1].records] == [3, 6, 7]
    assert last.consensus_distance == pytest.approx(apart(ends(runs[1])), rel=1e-5)
    for record in some if knobs.get("variant") != "pairs" else ():
        short = gossip(Apart(*[7] * 4), steps=record.step, **knobs)
        assert record.consensus_distance == pytest.approx(apart(ends(short)), rel=1e-5)
    told = runs[0].summary.graph_averages
    assert (told.models, told.consensus_distance) == (4, pytest.approx(apart(ends(runs[0]))))


def test_the_distance_is_of_those_who_train_or_of_nobody():
    """A dead worker is missing; those whose lines do not coincide share the clocks of K."""
    run = gossip(Apart(*[30] * 5), topology="full", log_every=5, crashes=((2, 0.004),))
    assert all(record.consensus_distance for record in run.records)
    run = gossip(Apart(1, 2, 3), topology="full", epochs=3, consensus_every=4)
    by_step = {record.step: record.consensus_distance for record in run.records}
    assert by_step[4] > 0  # of all three, whose epochs end at 2, 4 and 3, and later at 3, 6 and 9


def test_the_start_and_the_end_say_whose_model_it_is():
    lines = []
    run = gossip(Apart(*[7] * 4), topology="one-peer-exponential", say=lines.append)
    text = "one-peer-exponential, combine-then-adapt, spectral gap 1 in 2 steps, 20 B per step"
    assert f"topology: {text} and worker" in lines
    assert "accuracy: of worker 0's own model; at the end, of the mean of all" in lines
    distance = run.summary.graph_averages.consensus_distance
    told = [" ".join(line.split()) for line in lines[-1].split("\n")]
    assert f"model mean of 4 workers, which ended {distance:.1e} apart" in told


@each(
    ("workers", "knobs", "message"),
    [
        (6, {"variant": "by-host", "topology": "one-peer-exponential"}, "hosts with 3, 1, 2 r"),
        (5, {"variant": "by-host"}, "--hosts has 6 ranks in all, the job 5"),
        (5, {"topology": "torus"}, "torus: a torus has rows × columns of at least two each"),
        (5, {"variant": "push-sum", "order": CTA}, "order combine-then-adapt is not possible"),
        (5, {"variant": "pairs", "topology": "exponential"}, "has edges that go one way, such"),
        (4, {"variant": "pairs", "topology": "one-peer-exponential"}, "another graph in each"),
        (3, {"variant": "pairs", "topology": "weighted.txt"}, "has weights, and variant=pairs"),
        (5, {"codec": "int8", "topology": "one-peer-exponential"}, "in each of 3 rounds, and --c"),
        (5, {"codec": "int8", "topology": "exponential"},
         "gives 2 > 0 another weight than 0 > 2, but --c"),
        (5, {"codec": "ternary"}, "--codec ternary cannot send changes of parameters.* one of "),
        (5, {"codec": "low-rank"}, "--codec low-rank needs --mode gossip:consensus-rate=G"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(workers, knobs, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weighted.txt").write_text("0 1 0.25\n1 2 0.25\n")
    with pytest.raises(ConfigError, match=message) as refused:
        gossip(
            Apart(*[3] * workers),
            hosts=(3, 1, 2) if knobs.get("variant") == "by-host" else (),
            **knobs,
        )
    assert "\n" not in str(refused.value)
