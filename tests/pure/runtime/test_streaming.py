"""Local SGD held against plain numpy in float64: fragments, delay, mixing, eager steps, a codec.

The oracle below knows of no message and shares no code with psrt. A worker in it is a generator
that hands out what it sends, and waits only where it takes a mean.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.job.virtual import simulate
from psrt.partition import Span
from psrt.runtime.strategies.streaming import StreamingSGD
from psrt.simulation import SimulationCosts
from support.cases import each, pairs
from support.recording import record

LR, MU = 0.2, 0.5
#: The layers of θ, the last one first, as a problem names them.
LAYERS = (Span(9, 12), Span(7, 9), Span(2, 7), Span(1, 2), Span(0, 1))
N = 12
START = np.linspace(-1, 1, N)
#: Sizes of the batches by worker, epoch after epoch; the third epoch is as the first.
EVEN = tuple(((2,) * 5, (2,) * 5) for _ in range(5))
UNEVEN = (
    ((3, 1, 0, 4, 2, 2), (2, 5, 1)),
    ((5, 1, 1), (0, 3, 2, 1, 1)),
    ((), ()),
    ((0, 0), (1, 6, 1, 1, 0)),
    ((1,) * 7, (2,) * 4),
)


class Points:
    """The loss of θ is half its squared distance from the mean of a batch of points."""

    def __init__(self, sizes):
        self.sizes = sizes
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
        return 0.0

    def evaluate(self, theta):
        return {}

    def steps(self, worker, epochs, steps):
        """Return the progress and the batch of each of a worker's steps."""
        found = []
        for epoch in range(epochs):
            batches = self.batches(worker, 0, epoch)
            found += [(epoch + i / len(batches), it) for i, it in enumerate(batches)]
        return found[:steps]


class Oracle:
    """Local SGD in fragments, by hand."""

    def __init__(self, workers, problem, knobs, *, epochs=10**3, steps=10**9):
        self.knobs = knobs = {"local_steps": 4, "fragments": 1, "sync_delay": 0} | knobs
        self.workers, self.problem = workers, problem
        self.most = min(epochs, 40), steps
        self.count = knobs["fragments"]
        order = sorted(LAYERS)
        if knobs.get("fragment_order") == "sequential":
            few, more = divmod(len(order), self.count)
            sizes = [few + (f < more) for f in range(self.count)]
            deal = np.repeat(np.arange(self.count), sizes)
        else:
            deal = np.arange(len(order)) % self.count
        self.members = [
            np.concatenate([np.arange(*s) for s, f in zip(order, deal, strict=True) if f == g])
            for g in range(self.count)
        ]
        self.offsets = [
            math.ceil((f + 1) * knobs["local_steps"] / self.count) % knobs["local_steps"]
            for f in range(self.count)
        ]
        #: By round: what each worker sent, and its weight.
        self.sent: list[dict[int, tuple[np.ndarray, float]]] = []
        #: Share of the elements that top-k sends; None sends all, and parameters, not differences.
        self.density = knobs.get("codec_density")
        #: By round what a codec made of it; by whom and what what was kept back; the last totals.
        self.means: dict[int, np.ndarray] = {}
        self.kept: dict[tuple[str | int, int, int], np.ndarray | float] = {}
        self.totals: dict[int, float] = {}

    def outer(self, base, velocity, delta):
        """Return the next parameters and velocity."""
        lr, mu = self.knobs.get("outer_lr"), self.knobs.get("outer_momentum")
        if lr is None and mu is None:
            return base - delta, velocity
        lr, mu = 0.7 if lr is None else lr, 0.9 if mu is None else mu
        velocity = mu * velocity + delta
        return base - lr * (delta + mu * velocity), velocity

    def send(self, worker, k, vector, samples):
        while len(self.sent) <= k:
            self.sent.append({})
        assert worker not in self.sent[k]
        self.sent[k][worker] = vector.copy(), float(samples)

    def has(self, k):
        return k < len(self.sent) and len(self.sent[k]) == self.workers

    def mean(self, k):
        """Return the mean of round k, None without samples."""
        terms = list(self.sent[k].values())
        total = sum(weight for _, weight in terms)
        if total and self.density is not None:
            return self.in_two_phases(k)
        return sum(weight * vector for vector, weight in terms) / total if total else None

    def in_two_phases(self, k):
        """Return what all decode of the mean of round k, after the rounds of its fragment before.

        Each worker keeps back what it does not send, and the owner of a chunk what it does not send
        of the mean.
        """
        f = k % self.count
        for now in range(f, k + 1, self.count):
            total = sum(weight for _, weight in self.sent[now].values())
            if now in self.means or not total:
                continue
            scale = total / self.totals.get(f, total)
            self.totals[f] = total
            chunks = np.array_split(np.arange(len(self.members[f])), self.workers)
            self.means[now] = np.concatenate([
                self.top("owner", f, j, 1.0, sum(
                    self.top(i, f, j, scale, weight * vector[chunk])
                    for i, (vector, weight) in sorted(self.sent[now].items())
                ) / total)
                for j, chunk in enumerate(chunks)
            ])  # fmt: skip
        return self.means[k]

    def top(self, who, f, j, scale, vector):
        """Return what is sent of a chunk, and keep back the rest."""
        whole = vector + scale * self.kept.get((who, f, j), 0.0)
        sent, largest = np.zeros_like(whole), np.argsort(-np.abs(whole), kind="stable")
        largest = largest[: math.ceil(self.density * len(whole))]
        sent[largest] = whole[largest]
        self.kept[who, f, j] = whole - sent
        return sent

    def rounds_in_all(self):
        return len(self.sent)

    def run(self):
        mine = [self.eagerly(i) if self.knobs.get("eager") else self.late(i)
                for i in range(self.workers)]  # fmt: skip
        waits, ends = {i: next(it) for i, it in enumerate(mine)}, {}
        while waits:
            ready = [i for i, k in waits.items() if self.has(k)]
            assert ready, "all wait"
            for i in ready:
                try:
                    waits[i] = mine[i].send(self.mean(waits[i]))
                except StopIteration as stop:
                    ends[i] = stop.value
                    del waits[i]
        if self.knobs.get("eager"):
            return np.mean([ends[i] for i in range(self.workers)], axis=0)
        for i in range(self.workers):
            np.testing.assert_array_equal(ends[i], ends[0])
        return ends[0]

    def is_due(self, f, t):
        return (t - self.offsets[f]) % self.knobs["local_steps"] == 0

    def trajectory(self, worker):
        """Yield θ's local steps as a function, progress, samples and the number of later steps."""
        steps = self.problem.steps(worker, *self.most)
        velocity = np.zeros(N)
        for i, (progress, batch) in enumerate(steps):
            _, clock, size = batch

            def go(theta, clock=clock, size=size):
                nonlocal velocity
                if not size:
                    return theta
                points = self.problem.points[worker, clock, :size].astype(np.float64)
                velocity = MU * velocity + theta - points.mean(axis=0)
                return theta - LR * velocity

            yield go, progress < self.knobs.get("post_local_epoch", 0), size, len(steps) - 1 - i

    def late(self, worker):
        """Fragments that arrive after a delay, mixed in."""
        delay, mixing = self.knobs["sync_delay"], self.knobs.get("mixing", 0.5)
        theta, base, outer = START.copy(), START.copy(), np.zeros(N)
        samples, steps = [0] * self.count, [0] * self.count
        flights: list[tuple[int, int, int]] = []  # round, fragment, step when it is due
        k = t = 0

        def arrived(f, mean):
            nonlocal theta, base, outer
            at = self.members[f]
            if mean is None:
                return
            delta = base[at] - mean if self.density is None else mean
            base[at], outer[at] = self.outer(base[at], outer[at], delta)
            keep = mixing if steps[f] else 0.0
            theta[at] = keep * theta[at] + (1 - keep) * base[at]

        def sends():
            nonlocal k
            f = k % self.count
            at = self.members[f]
            mine = theta[at] if self.density is None else base[at] - theta[at]
            self.send(worker, k, mine, samples[f])
            samples[f] = steps[f] = 0
            k += 1
            return k - 1, f

        for go, early, size, _ in self.trajectory(worker):
            theta = go(theta)
            steps = [it + 1 for it in steps]
            samples = [it + size for it in samples]
            if early:
                now = [sends() for _ in range(self.count)]
                for number, f in now:
                    arrived(f, (yield number))
                continue
            t += 1
            while flights and flights[0][2] <= t:
                number, f, _ = flights.pop(0)
                arrived(f, (yield number))
            for f in [f for f in range(self.count) if self.is_due(f, t)]:
                assert f == k % self.count
                number, _ = sends()
                if delay:
                    flights.append((number, f, t + delay))
                else:
                    arrived(f, (yield number))
        for number, f, _ in flights:
            arrived(f, (yield number))
        rest = []
        while len(rest) < self.count and steps[k % self.count]:
            rest.append(sends())
        for number, f in rest:
            arrived(f, (yield number))
        # Until the others are done: those who train send a weight, or train on without samples.
        while k < self.last:
            number, f = sends()
            arrived(f, (yield number))
        return theta

    def eagerly(self, worker):
        """Own part at once, the others' a period later."""
        theta, base, outer = START.copy(), START.copy(), np.zeros(N)
        own, samples, steps = np.zeros(N), [0] * self.count, [0] * self.count
        before: dict[int, int] = {}  # fragment → its last round
        k = t = 0

        def others(f, mean):
            """Return the others' part of a fragment's last round."""
            return np.zeros(len(self.members[f])) if mean is None else mean - own[self.members[f]]

        def step(f, rest):
            nonlocal k, theta, base, outer
            at = self.members[f]
            delta = base[at] - theta[at]
            self.send(worker, k, delta, samples[f])
            base[at], outer[at] = self.outer(base[at], outer[at], delta / self.workers + rest)
            theta[at], own[at] = base[at], delta / self.workers
            before[f] = k
            samples[f] = steps[f] = 0
            k += 1

        def turn():
            f = k % self.count
            rest = others(f, (yield before[f])) if f in before else 0.0
            step(f, rest)

        for go, early, size, _ in self.trajectory(worker):
            theta = go(theta)
            steps = [it + 1 for it in steps]
            samples = [it + size for it in samples]
            if early:
                for _ in range(self.count):
                    yield from turn()
                continue
            t += 1
            for f in [f for f in range(self.count) if self.is_due(f, t)]:
                assert f == k % self.count
                yield from turn()
        for _ in range(self.count):
            if steps[k % self.count]:
                yield from turn()
        while k < self.last:
            yield from turn()
        if self.workers > 1:
            for f in range(self.count):
                at = self.members[f]
                rest = others(f, (yield before[f])) if f in before else np.zeros(len(at))
                base[at], outer[at] = self.outer(base[at], outer[at], rest)
        return base

    @property
    def last(self):
        """The number of rounds that those make who are still training."""
        if not hasattr(self, "_last"):
            self._last = max(map(self.rounds_of, range(self.workers)))
        return self._last

    def rounds_of(self, worker):
        rounds = t = 0
        since = [0] * self.count
        for _, early, _, _ in self.trajectory(worker):
            since = [it + 1 for it in since]
            if early:
                rounds, since = rounds + self.count, [0] * self.count
                continue
            t += 1
            for f in range(self.count):
                if self.is_due(f, t):
                    rounds, since[f] = rounds + 1, 0
        return rounds + sum(map(bool, since))


def trained(problem, workers, knobs, *, seed=0, costs="exponential", algorithm="tree", **length):
    asked = TrainConfig(
        mode="local-sgd", optimizer="momentum", momentum=MU, lr=LR, batch_size=8,
        allreduce=algorithm, **({"local_steps": 4} | knobs | length),
    )  # fmt: skip
    run, _ = record(asked, problem, workers=workers, seed=seed, costs=costs)
    return run


def hold(workers, sizes, knobs, *, seed=0, algorithm="tree", **length):
    problem = Points(sizes)
    run = trained(problem, workers, knobs, seed=seed, algorithm=algorithm, **length)
    expected = Oracle(workers, problem, knobs, **length).run()
    np.testing.assert_allclose(run.theta, expected, rtol=2e-4, atol=2e-5)
    for worker in run.workers:
        assert worker._port.theta.tobytes() == run.theta.tobytes()
    return run


OUTERS = [{}, {"outer_lr": 0.7}, {"outer_lr": 0.4, "outer_momentum": 0.0}, {"outer_momentum": 0.5}]
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
LENGTHS = [{"epochs": 2}, {"epochs": 3}, {"steps": 1}, {"steps": 8}, {"steps": 11}]


@each("length", LENGTHS)
@pytest.mark.parametrize(("knobs", "outer"), pairs(KINDS, OUTERS, one_in=2), ids=str)
@pytest.mark.one_in(3)
def test_is_what_numpy_says(knobs, outer, length):
    for workers in (2, 3, 4, 5):
        hold(workers, EVEN, knobs | outer, seed=workers, **length)


@each("length", LENGTHS)
@pytest.mark.parametrize("knobs", KINDS, ids=str)
@pytest.mark.parametrize("outer", OUTERS[:2], ids=str)
@pytest.mark.one_in(3)
def test_weighs_by_the_samples_since_a_fragment_was_sent(knobs, outer, length):
    """Workers with more steps than others, batches without samples, a worker without any."""
    for workers in (2, 5):
        hold(workers, UNEVEN, knobs | outer, seed=workers, **length)


@each("length", LENGTHS[::4])
@pytest.mark.parametrize("knobs", [{}, *KINDS], ids=str)
@pytest.mark.parametrize("outer", OUTERS[:2], ids=str)
@pytest.mark.one_in(3)
def test_differences_by_a_codec_are_what_numpy_says(knobs, outer, length):
    """With what workers and owners keep back, and with totals that change from round to round."""
    for workers, sizes in ((2, EVEN), (3, UNEVEN), (5, UNEVEN)):
        coded = {"codec": "top-k", "codec_density": 0.4}
        hold(workers, sizes, knobs | outer | coded, seed=workers, algorithm="all-pairs", **length)


@pytest.mark.parametrize(
    ("outer", "algorithm"),
    pairs(OUTERS, ["ring", "tree", "butterfly", "halving-doubling"], one_in=2),
    ids=str,
)
@each("length", LENGTHS)
@pytest.mark.one_in(2)
def test_one_fragment_without_delay_is_local_sgd_to_the_bit(monkeypatch, outer, algorithm, length):
    more = {"algorithm": algorithm, **length}
    for workers, sizes in ((1, EVEN), (3, EVEN), (5, UNEVEN)):
        usual = trained(Points(sizes), workers, outer, **more)
        with monkeypatch.context() as patch:
            patch.setattr(TrainConfig, "streams", property(lambda config: True))
            streamed = trained(Points(sizes), workers, outer, **more)
        assert isinstance(streamed.workers[0].strategy, StreamingSGD)
        assert not isinstance(usual.workers[0].strategy, StreamingSGD)
        assert streamed.theta.tobytes() == usual.theta.tobytes()
        assert streamed.summary.updates == usual.summary.updates


@each("length", LENGTHS)
def test_eager_alone_is_local_sgd_to_the_bit(length):
    outer = {"outer_lr": 0.7}
    usual = trained(Points(EVEN), 1, outer, **length)
    eager = trained(Points(EVEN), 1, outer | {"eager": True}, **length)
    assert eager.theta.tobytes() == usual.theta.tobytes()


def test_the_numbers_do_not_depend_on_who_is_late():
    for knobs in KINDS:
        runs = [
            trained(Points(UNEVEN), 5, knobs, seed=seed, costs=costs, epochs=2).theta.tobytes()
            for seed, costs in enumerate(("all alike", "now and then stuck", "slow links"))
        ]
        assert len(set(runs)) == 1


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("more", [{}, {"sync_delay": 2}, {"eager": True}], ids=str)
@each("fragments", [1, 2, 3, 5])
def test_a_period_sends_the_bytes_of_the_model_and_the_most_at_once_is_a_fragment(
    monkeypatch, algorithm, more, fragments
):
    """By these schedules p ranks send 2(p − 1) vectors in all."""
    period, periods, workers = 6, 3, 4
    sent: list[tuple[int, int]] = []

    def vectors(elements):
        return 4 * 2 * (workers - 1) * elements

    step = StreamingSGD.step

    async def counted(self, it):
        port, result = self._port, await step(self, it)
        if port.rank == 0:
            sent.append((it.clock, sum(other.bytes_sent for other in port.world.ports)))
        return result

    monkeypatch.setattr(StreamingSGD, "step", counted)
    knobs = {"fragments": fragments, "local_steps": period} | more
    if fragments == 1 and not more:
        knobs["sync_delay"] = 1
    run = trained(
        Points(EVEN), workers, knobs, costs="all alike", algorithm=algorithm,
        steps=period * periods, epochs=None,
    )  # fmt: skip
    sizes = [len(it) for it in Oracle(workers, Points(EVEN), knobs).members]
    control = vectors(3)
    # The fragments that were not sent after the last step are once more; then nobody has any.
    sums = [*range(fragments)] * periods + [*range(fragments - 1)]
    due = sum(vectors(sizes[f]) + control for f in sums) + control
    if more.get("eager"):
        due += sum(map(vectors, sizes))
    assert run.summary.bytes_sent == run.summary.bytes_received == due
    if "sync_delay" not in knobs and "eager" not in knobs:
        by_step = np.diff([bytes_sent for _, bytes_sent in sent])[: 2 * period - 1]
        assert by_step[-period:].sum() == sum(map(vectors, sizes)) + fragments * control
        assert by_step.max() <= vectors(max(sizes)) + control


def test_what_is_sent_while_steps_go_on_costs_no_time():
    """On slow links, where a sum takes about as long as three steps; and beside a straggler."""
    slow = SimulationCosts(compute=lambda *_: 1e-3, latency=lambda _: 1e-3, per_byte=1e-5)

    def uneven(rank, rng):
        return 1e-3 * rng.pareto(1.5)

    for costs in (slow, SimulationCosts(compute=uneven, latency=lambda _: 1e-5)):
        seconds = {
            name: simulate(
                TrainConfig(
                    mode="local-sgd", lr=LR, batch_size=8, local_steps=8, allreduce="naive",
                    steps=64, **knobs,
                ),
                Points(tuple(((2,) * 16, (2,) * 16) for _ in range(5))),
                workers=5, costs=costs,
            ).seconds
            for name, knobs in (
                ("usual", {}), ("late", {"sync_delay": 6}), ("eager", {"eager": True}),
                ("late fragments", {"sync_delay": 6, "fragments": 2}),
            )
        }  # fmt: skip
        assert seconds["late"] < 0.9 * seconds["usual"], seconds
        assert seconds["eager"] < 0.9 * seconds["usual"], seconds
        assert seconds["late fragments"] < seconds["usual"], seconds


def test_fragments_are_of_whole_layers():
    problem = Points(EVEN)
    with pytest.raises(ConfigError, match="--fragments 6 is more than the model has layers, 5"):
        trained(problem, 2, {"fragments": 6, "local_steps": 8}, steps=3)
    problem.gradient_spans = None
    with pytest.raises(ConfigError, match="--fragments 2 is more than the model has layers, 1"):
        trained(problem, 2, {"fragments": 2}, steps=3)


def test_the_first_lines_say_what_is_sent_when():
    lines: list[str] = []
    simulate(
        TrainConfig(
            mode="local-sgd", fragments=2, sync_delay=3, steps=4, batch_size=8, allreduce="ring"
        ),
        Points(EVEN), workers=2, say=lines.append,
    )  # fmt: skip
    assert lines[:2] == [
        "all-reduce: ring, as asked",
        "averages: 2 fragments, each every 8 steps, 48 B in all, 36 B at once; taken 3 steps later",
    ]
