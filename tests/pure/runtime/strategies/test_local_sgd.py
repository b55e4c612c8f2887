"""Local SGD by parts and elastic averaging: what laws do not reach, and what they cost.

The oracle of fragments knows of no message and shares no code with psrt. A worker in it is a
generator that hands out what it sends, and waits only where it takes a mean. Beside the law of the
reference it knows of workers with more steps than others, fragments in their order, several under
way, and eager ones.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.config.modes import LocalSGD
from psrt.core.partition import Span
from psrt.job.virtual import simulate
from psrt.optim import BLOCK, Schedule
from psrt.optim.table import Always, Momentum, Nesterov, OuterNesterov
from psrt.runtime.strategies.averaging import OuterStep
from psrt.runtime.updater import Contribution, Updater
from psrt.simulation import SimulationCosts
from support.cases import each
from support.knobs import together

LR, MU = 0.2, 0.5
#: The layers of θ, the last one first, as a problem names them.
LAYERS = (Span(9, 12), Span(7, 9), Span(2, 7), Span(1, 2), Span(0, 1))
N = 12
START = np.linspace(-1, 1, N)
#: Sizes of the batches by worker, epoch after epoch; the third epoch is as the first.
EVEN = ((((2,) * 5),) * 2,) * 5
UNEVEN = (
    ((3, 1, 0, 4, 2, 2), (2, 5, 1)),
    ((5, 1, 1), (0, 3, 2, 1, 1)),
    ((), ()),
    ((0, 0), (1, 6, 1, 1, 0)),
    ((1,) * 7, (2,) * 4),
)


class Points:
    """The loss of θ is half its squared distance from the mean of a batch of points."""

    def __init__(self, sizes, *, last=10**9):
        self.sizes = sizes
        #: Steps after which gradients are zero.
        self.last = last
        self.points = np.random.default_rng(8).normal(size=(5, 80, 8, N)).astype(np.float32)

    def initial(self):
        return START.astype(np.float32)

    def gradient_spans(self):
        return LAYERS

    def batches(self, worker, workers, epoch):
        before = sum(len(self.sizes[worker][e % 2]) for e in range(epoch))
        return [(worker, before + i, m) for i, m in enumerate(self.sizes[worker][epoch % 2])]

    def samples(self, batch):
        return batch[2]

    def loss_and_grad(self, theta, batch, out, ready=None):
        worker, clock, size = batch
        np.subtract(theta, self.points[worker, clock, :size].mean(axis=0), out=out)
        out *= clock < self.last
        return 0.0

    def evaluate(self, theta):
        return {"loss": float(np.square(theta.astype(float)).mean())}

    def steps(self, worker, epochs, steps):
        """Return the progress, the points and the number of samples of each of its steps."""
        found = []
        for epoch in range(epochs):
            batches = self.batches(worker, 0, epoch)
            found += [
                (epoch + i / len(batches), self.points[worker, clock, :m].astype(float), m)
                for i, (_, clock, m) in enumerate(batches)
            ]
        return found[:steps]


#: What a worker waits for that has done all its steps: that the others have, too.
ALL = "all"


class Oracle:
    """Local SGD in fragments, by hand."""

    def __init__(self, workers, problem, knobs, *, epochs=12, steps=10**9):
        self.knobs = {"local_steps": 4, "fragments": 1, "sync_delay": 0, "mixing": 0.5} | knobs
        self.workers, self.problem, self.length = workers, problem, (epochs, steps)
        period, count = self.knobs["local_steps"], self.knobs["fragments"]
        order = sorted(LAYERS)
        deal = np.arange(len(order)) % count
        if "fragment_order" in knobs:  # one behind the other, the first ones longer
            deal = np.repeat(range(count), [len(it) for it in np.array_split(order, count)])
        #: By fragment, the elements of it, and the step of a period after which it is sent.
        self.members = [
            np.concatenate([np.arange(*s) for s, f in zip(order, deal, strict=True) if f == g])
            for g in range(count)
        ]
        self.offsets = [math.ceil((f + 1) * period / count) % period for f in range(count)]
        #: By round: what each worker sent, and its samples.
        self.sent: list[dict[int, tuple[np.ndarray, int]]] = []

    def outer(self, base, velocity, delta):
        """Return the next parameters and velocity."""
        asked = self.knobs.get("outer")
        if asked is None:
            return base - delta, velocity
        velocity = asked.momentum * velocity + delta
        return base - asked.lr * (delta + asked.momentum * velocity), velocity

    def mean(self, k):
        """Return the mean of round k, None without samples."""
        terms = self.sent[k].values()
        total = sum(samples for _, samples in terms)
        return sum(samples * vector for vector, samples in terms) / total if total else None

    def run(self):
        mine = [self.worker(i) for i in range(self.workers)]
        waits, ends = {i: next(it) for i, it in enumerate(mine)}, [None] * self.workers
        while waits:
            is_over, before = all(it is ALL for it in waits.values()), dict(waits)
            for i, k in before.items():
                if k is ALL:
                    given = any(i not in of_round for of_round in self.sent)
                    is_ready = given or is_over
                else:
                    is_ready = k < len(self.sent) and len(self.sent[k]) == self.workers
                    given = self.mean(k) if is_ready else None
                if is_ready:
                    try:
                        waits[i] = mine[i].send(given)
                    except StopIteration as stop:
                        ends[i] = stop.value
                        del waits[i]
        return np.mean(ends, axis=0)

    def worker(self, i):
        """Yield the number of each round whose mean it needs; at the end ``ALL``."""
        knobs, count, members = self.knobs, self.knobs["fragments"], self.members
        theta, base = START.copy(), START.copy()
        velocity, outer, own = np.zeros((3, N))
        samples, since = [0] * count, [0] * count
        flights: deque[tuple[int, int]] = deque()
        newest: dict[int, int] = {}  # fragment → its last round
        k = t = 0

        def send(f, vector):
            nonlocal k
            self.sent.extend([{}] if k == len(self.sent) else [])
            self.sent[k][i] = vector.copy(), samples[f]
            newest[f], samples[f], since[f], k = k, 0, 0, k + 1

        def others(f):
            """Return the others' part of a fragment's last round."""
            mean = (yield newest[f]) if f in newest else None
            return 0.0 if mean is None else mean - own[members[f]]

        def turn():
            f = k % count
            at = members[f]
            if not knobs.get("eager"):
                flights.append((k, f))
                send(f, theta[at])
                return
            rest, delta = (yield from others(f)), base[at] - theta[at]
            send(f, delta)
            own[at] = delta / self.workers
            base[at], outer[at] = self.outer(base[at], outer[at], own[at] + rest)
            theta[at] = base[at]

        def arrive(*, late):
            """Take what has been under way for so many steps."""
            while flights and since[flights[0][1]] >= late:
                number, f = flights.popleft()
                at = members[f]
                if (mean := (yield number)) is not None:
                    base[at], outer[at] = self.outer(base[at], outer[at], base[at] - mean)
                    keep = knobs["mixing"] if since[f] else 0.0
                    theta[at] = keep * theta[at] + (1 - keep) * base[at]

        for progress, points, m in self.problem.steps(i, *self.length):
            if m:
                velocity = MU * velocity + theta - points.mean(axis=0)
                theta -= LR * velocity
            since[:], samples[:] = [it + 1 for it in since], [it + m for it in samples]
            if progress < knobs.get("post_local_epoch", 0):
                for _ in range(count):
                    yield from turn()
                yield from arrive(late=0)
                continue
            t += 1
            yield from arrive(late=knobs["sync_delay"])
            for offset in self.offsets:
                if (t - offset) % knobs["local_steps"] == 0:
                    yield from turn()
                    yield from arrive(late=knobs["sync_delay"])
        yield from arrive(late=0)
        for _ in range(count):
            if since[k % count]:
                yield from turn()
        yield from arrive(late=0)
        while (yield ALL):
            yield from turn()
            yield from arrive(late=0)
        if not knobs.get("eager"):
            return theta
        for f, at in enumerate(members if self.workers > 1 else ()):
            rest = yield from others(f)
            base[at], outer[at] = self.outer(base[at], outer[at], rest)
        return base


def trained(problem, workers, knobs, *, seed=0, **length):
    knobs = {"mode": "local-sgd:local-steps=4", "allreduce": "tree"} | knobs | length
    config = TrainConfig(**together({"optimizer": Momentum(MU), "lr": LR} | knobs))
    return simulate(config, problem, workers=workers, seed=seed)


OUTERS = [{}, *({"outer": OuterNesterov(**it)} for it in (
    {}, {"lr": 0.4, "momentum": 0.0}, {"momentum": 0.5},
))]  # fmt: skip
KINDS = [
    {"fragments": 2},
    {"fragments": 3, "fragment_order": "sequential", "local_steps": 7},
    {"sync_delay": 1},
    {"sync_delay": 4},
    {"fragments": 3, "sync_delay": 2, "mixing": 0.0},
    {"fragments": 4, "sync_delay": 3, "mixing": 0.25},
    {"fragments": 5, "local_steps": 5, "sync_delay": 5, "fragment_order": "sequential"},
    {"fragments": 2, "sync_delay": 2, "post_local_epoch": 1},
    {"eager": True},
    {"eager": True, "fragments": 3},
    {"eager": True, "fragments": 2, "post_local_epoch": 1},
]
#: Differences go as they are, in two phases.
ALL_OF_THEM = {"codec": "top-k:density=1.0", "allreduce": "all-pairs"}


@each("length", [{"epochs": 3}, {"steps": 1}, {"steps": 11}])
@pytest.mark.parametrize("codec", [{}, ALL_OF_THEM], ids=["plain", "by a codec"])
@pytest.mark.parametrize("outer", OUTERS, ids=str)
@pytest.mark.parametrize("knobs", KINDS, ids=str)
@pytest.mark.one_in(14)
def test_fragments_are_what_numpy_says(knobs, outer, codec, length):
    """Workers with more steps than others, batches without samples, a worker without any."""
    for workers in (2, 5):
        problem = Points(UNEVEN)
        run = trained(problem, workers, knobs | outer | codec, seed=workers, **length)
        due = Oracle(workers, problem, knobs | outer, **length).run()
        np.testing.assert_allclose(run.theta, due, rtol=2e-4, atol=2e-5)
        for worker in run.workers:
            assert worker._port.theta.tobytes() == run.theta.tobytes()


@each(("more", "fragments"), [({}, 3), ({"sync_delay": 2}, 5), ({"eager": True}, 2)])
def test_a_period_sends_the_bytes_of_the_model(more, fragments):
    """By a tree p ranks send 2(p − 1) vectors in all."""
    period, periods, workers = 6, 3, 4
    knobs = {"fragments": fragments, "local_steps": period} | more
    run = trained(Points(EVEN), workers, knobs, steps=period * periods)
    sizes = [len(it) for it in Oracle(workers, Points(EVEN), knobs).members]
    # The fragments that were not sent after the last step are once more; then nobody has any.
    sums = [*range(fragments)] * periods + [*range(fragments - 1)]
    vectors = sum(sizes[f] + 3 for f in sums) + 3 + sum(sizes) * ("eager" in more)
    assert run.summary.bytes_sent == run.summary.bytes_received == 4 * 2 * (workers - 1) * vectors


def test_what_is_sent_while_steps_go_on_costs_no_time():
    """On slow links, where a sum takes about as long as three steps."""
    costs = SimulationCosts(compute=lambda *_: 1e-3, latency=lambda _: 1e-3, per_byte=1e-5)
    usual, late, eager, fragments = (
        simulate(
            TrainConfig(mode=LocalSGD(**it), lr=LR, allreduce="naive", steps=32),
            Points(EVEN),
            workers=5,
            costs=costs,
        ).seconds
        for it in ({}, {"sync_delay": 6}, {"eager": True}, {"sync_delay": 6, "fragments": 2})
    )
    assert max(late, eager) < 0.9 * usual
    assert fragments < usual


def test_the_first_lines_say_what_is_sent_when():
    lines: list[str] = []
    knobs = {"mode": "local-sgd:fragments=2,sync-delay=3", "allreduce": "ring"}
    simulate(TrainConfig(**knobs, steps=4), Points(EVEN), workers=2, say=lines.append)
    assert lines[:2] == [
        "all-reduce: ring, as asked",
        "averages: 2 fragments, each every 8 steps, 48 B in all, 36 B at once; taken 3 steps later",
    ]


@each("n", [3, BLOCK + 5])
def test_an_outer_step_of_several_blocks(n):
    """θ ← θ − 0.7·(Δ + 0.9·v) with v ← 0.9·v + Δ and Δ = θ − mean."""
    rng = np.random.default_rng(0)
    theta, *means = rng.normal(size=(5, n)).astype(np.float32)
    expected, velocity = theta.astype(np.float64), np.zeros(n)
    outer = OuterStep(Nesterov(0.9).make(n))
    updater = Updater(n, outer, Schedule(Always(), 0.7, epochs=1))
    for mean in means:
        before = mean.copy()
        updater.apply(theta, [Contribution(mean)], theta, progress=0.0)
        np.testing.assert_array_equal(mean, before)
        delta = expected - mean
        velocity = 0.9 * velocity + delta
        expected = expected - 0.7 * (delta + 0.9 * velocity)
    np.testing.assert_allclose(theta, expected, rtol=1e-4, atol=1e-5)
    assert outer.updates == len(means)
    [kept] = outer.state.values()  # what a checkpoint keeps
    np.testing.assert_allclose(kept, velocity, rtol=1e-4, atol=1e-5)


# --- elastic averaging --------------------------------------------------------------------------


def elastic(problem, workers, **knobs):
    """Return a run, its centre, and the parameters of its workers."""
    given = {"mode": "easgd:local-steps=2", "allreduce": None, "servers": 1}
    run = trained(problem, workers, given | knobs, epochs=1)
    centre = np.concatenate([it.shard.theta for it in run.servers])
    return run, centre, [it.strategy._port.theta for it in run.workers]


LOSSY = {"codec": "int8", "codec_everywhere": True}
LOSSLESS = {"codec": "nonzero", "codec_everywhere": True}
ASYNCHRONOUS = each("asynchronous", [False, True])


@ASYNCHRONOUS
@each("codecs", [{}, LOSSY, LOSSY | {"codec_reply": "int8"}])
def test_forces_are_equal_and_opposite(asynchronous, codecs):
    """Workers differ after a first step, and have no gradients after it: Σx + x̃ stays."""
    problem = Points(tuple(((2,) * count, ()) for count in (7, 2, 9, 5)), last=1)
    more = {"asynchronous": asynchronous, "optimizer": "sgd"}
    _, centre, x = elastic(problem, 4, local_steps=1, **more, **codecs)
    before = [START - LR * (START - it[0, :2].mean(axis=0)) for it in problem.points[:4]]
    np.testing.assert_allclose(
        np.sum([*x, centre], axis=0), np.sum([*before, START], axis=0), atol=1e-5
    )
    assert not np.allclose(centre, START)


@ASYNCHRONOUS
def test_who_has_no_samples_is_not_drawn_nor_anybody_without_a_force(asynchronous):
    problem, start = Points((((2,) * 4, ()), ((2,) * 4, ()), ((0,) * 4, ()))), START.astype("f4")
    _, _, x = elastic(problem, 3, asynchronous=asynchronous)
    assert x[2].tobytes() == start.tobytes()
    _, centre, x = elastic(Points(EVEN), 3, elastic=0.0, asynchronous=asynchronous)
    assert centre.tobytes() == start.tobytes()
    assert np.ptp(x, axis=0).min() > 0.01


def test_a_codec_without_loss_changes_nothing():
    (_, centre, x), (_, other, y), (_, last, z) = (
        elastic(Points(UNEVEN), 5, servers=2, **more)
        for more in ({}, LOSSLESS, LOSSLESS | {"codec_reply": "nonzero"})
    )
    assert centre.tobytes() == other.tobytes()
    assert [it.tobytes() for it in x] == [it.tobytes() for it in y]
    # What a reply adds to a centre is rounded once more than the centre itself.
    np.testing.assert_allclose(last, centre, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(z, x, rtol=1e-5, atol=1e-6)


def test_what_a_codec_leaves_out_stays_in_the_difference():
    """Kept back in addition it would count twice, and the centre would be driven away."""

    def apart(steps, **more):
        """Return how far apart all are that differ after a first step, and have no gradients."""
        problem = Points(tuple(((2,) * steps, ()) for _ in range(4)), last=1)
        more |= {"codec": "random-k:density=0.1", "codec_everywhere": True}
        given = {"local_steps": 1, "optimizer": "sgd"}
        _, centre, x = elastic(problem, 4, **given, **more)
        return np.ptp([*x, centre], axis=0).max()

    assert apart(80) < 0.1 * apart(1)
    assert apart(80, error_feedback=True) > 100 * apart(1)


@each(("workers", "more"), [(3, {}), (1, {"asynchronous": True}), (3, LOSSY)])
def test_it_is_evaluated_at_the_centre(workers, more):
    run, centre, _ = elastic(Points(EVEN), workers, **more)
    assert all(it.strategy.model.tobytes() == centre.tobytes() for it in run.workers)
    assert run.summary.test_loss == Points(EVEN).evaluate(centre)["loss"]
    assert run.records[-1].test_loss == pytest.approx(run.summary.test_loss, rel=1e-6)
    lines = []
    simulate(TrainConfig(mode="easgd", steps=3), Points(EVEN), workers=2, say=lines.append)
    text = "accuracy: of the centre at worker 0's last average; at the end, of the final centre"
    assert text in lines
