"""Pipelines that are never drained: weights, staleness and copies, against a model by hand."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.errors import ProtocolError
from psrt.job.build import rate_of
from psrt.model import MLP
from psrt.model.stage import Stage
from psrt.model.stage_memory import Boundary, StageShape
from psrt.optim import Schedule, make_optimizer
from psrt.partition import Part, Rectangle
from psrt.pipeline.registry import PIPELINES
from psrt.pipeline.schedule import most_alive
from psrt.pipeline.step import COMPUTING
from psrt.runtime.cut_problem import Ways
from psrt.runtime.length import Length
from psrt.runtime.meter import Meter
from psrt.runtime.pipedream import PipeDream
from psrt.runtime.strategies.base import Serial
from psrt.runtime.updater import Updater
from psrt.runtime.worker import Worker
from psrt.transport import SoloPort
from psrt.transport.stage_links import SoloStageLinks, channels_of

ROW = PIPELINES["pipedream"]
SIZES, ROWS, RATE = [6, 7, 5, 8, 4], 4, 0.3


class Suspend:
    def __await__(self):
        yield


class Links(SoloStageLinks):
    """Channels within this process; what waits lets the others work."""

    def __init__(self, stage, shared):
        super().__init__()
        self.stage, self.shared = stage, shared
        self.matrices = {
            it: shared.setdefault(it, [np.full((it.rows, it.width), np.nan, np.float32), [], 0])[0]
            for it in shared["channels"]
            if stage in (it.writer, it.reader)
        }
        self.expected = {}

    def begin(self, rows):
        for channel, slices in rows.items():
            self.expected.setdefault(channel, []).extend(slices)

    async def free(self, channel, rows):
        while self.shared[channel][2] >= channel.messages:
            await Suspend()

    def send(self, channel, rows, number=0.0):
        assert channel.writer == self.stage
        self.shared[channel][1].append((rows, number))
        self.shared[channel][2] += 1

    async def receive(self, channel):
        while not self.shared[channel][1]:
            await Suspend()
        rows, number = self.shared[channel][1].pop(0)
        assert rows == self.expected[channel].pop(0)
        return number

    def release(self, channel):
        self.matrices[channel][...] = self.matrices[channel]
        self.shared[channel][2] -= 1


class Batches:
    """A chain, with the given numbers of samples in the batches of an epoch, in one buffer."""

    def __init__(self, samples, seed=0):
        rng = np.random.default_rng(seed)
        self.model = MLP(SIZES, activation="tanh", batch_size=ROWS)
        self.layers, self.loss = self.model.layers, self.model.loss
        self.of_epoch = [
            (rng.standard_normal((m, SIZES[0])).astype(np.float32), rng.integers(0, SIZES[-1], m))
            for m in samples
        ]
        self.theta = rng.normal(0, 0.5, self.model.n).astype(np.float32)
        self.x, self.y = np.empty((ROWS, SIZES[0]), np.float32), np.empty(ROWS, np.int64)

    def elsewhere(self):
        """Return the same in another process: with buffers of its own."""
        other = copy.copy(self)
        other.x, other.y = self.x.copy(), self.y.copy()
        return other

    def initial(self):
        return self.theta.copy()

    def batches(self, worker, workers, epoch):
        return Sized(self)


class Sized:
    def __init__(self, problem):
        self.problem = problem

    def __len__(self):
        return len(self.problem.of_epoch)

    def __iter__(self):
        problem = self.problem
        for x, y in problem.of_epoch:
            problem.x[...], problem.y[...] = np.nan, -1
            problem.x[: len(x)], problem.y[: len(y)] = x, y
            yield problem.x[: len(x)], problem.y[: len(y)]


def train(problem, stages, rate=None, recompute=False, **length):
    """Return the parameters after a run of a pipeline, and its parts."""
    layers, spans = problem.layers(), []
    for it in np.array_split(range(len(layers)), stages):
        first = spans[-1][1] if spans else 0
        spans.append((first, first + sum(layers[j].n for j in it), it[0], it[-1] + 1))
    plan = ROW.plan(stages, stages + 1)
    alive = [most_alive(steps)[0] for steps in plan]
    window = {"rows": ROWS * (stages + 1), "micro_batches": stages + 1}
    widths = [layers[stop - 1].outputs for *_, stop in spans[:-1]]
    channels = channels_of(stages, widths, alive, **window)
    shared, parts, ports, roles = {"channels": channels}, [], [], []
    for stage, (start, stop, first, last) in enumerate(spans):
        links = Links(stage, shared)
        by_edge = {(it.edge, it.back): it for it in channels}
        ways = Ways(*(by_edge.get((e, b)) for e in (stage - 1, stage) for b in (False, True)))
        below, back_below, above, back_above = (links.matrices.get(it) for it in ways)
        shape = StageShape(
            **window, slots=alive[stage], first=stage == 0, given=stage == 0, recompute=recompute
        )
        part = PipeDream(
            problem.elsewhere(),
            links,
            part=Part([Rectangle(start, 1, stop - start, stop - start)]),
            stage=Stage(
                layers[first:last],
                shape,
                loss=problem.loss if stage == stages - 1 else None,
                boundary=Boundary(
                    inputs=below, outputs=above, input_gradients=back_below,
                    output_gradients=back_above,
                ),
            ),
            ways=ways,
            schedule=ROW,
            place=(stage, stages),
            is_first=False,
            length=Length(**length),
            rate=rate and rate(stop - start),
        )  # fmt: skip
        part.figures = no_figures
        port = SoloPort(stop - start)
        np.copyto(port.theta, problem.initial()[start:stop])
        updater = Updater(
            stop - start, make_optimizer("sgd", stop - start), Schedule("constant", RATE, epochs=1)
        )
        worker = Worker(port, part, Serial(port, updater), Meter(port, 0), length=Length(**length))
        parts.append(part)
        ports.append(port)
        roles.append(worker.run())
    together(roles)
    for _, sent, under_way in (it for key, it in shared.items() if key != "channels"):
        assert not sent
        assert not under_way
    return np.concatenate([port.theta for port in ports]), parts


async def no_figures(theta):
    return {}


def together(roles):
    """Run roles until all have ended, each as far as it gets."""
    waiting = list(roles)
    for _ in range(100_000):
        for role in list(waiting):
            try:
                role.send(None)
            except StopIteration:
                waiting.remove(role)
        if not waiting:
            return
    raise ProtocolError("the stages wait for each other")


def by_hand(problem, stages, batches, scale=lambda tau: 1.0, compensate=0.0):
    """In float64: each batch sees, in each stage, the weights of P − s − 1 updates ago."""
    theta, weights = problem.initial().astype(float), []
    start = 0
    for m, n in itertools.pairwise(SIZES):
        weights.append([theta[start : start + m * n].reshape(m, n).copy()])
        weights[-1].append(theta[start + m * n : start + (m + 1) * n].copy())
        start += (m + 1) * n
    owner = [s for s, it in enumerate(np.array_split(range(len(weights)), stages)) for _ in it]
    versions, seen = [], [[] for _ in range(stages)]
    in_epoch = 0
    for epoch_end, (x, y) in batches:
        versions.append([(w.copy(), b.copy()) for w, b in weights])
        taus = [min(in_epoch, stages - s - 1) for s in owner]
        used = [versions[-1 - tau][i] for i, tau in enumerate(taus)]
        values = [x.astype(float)]
        for i, (w, b) in enumerate(used):
            z = values[-1] @ w + b
            values.append(np.tanh(z) if i < len(used) - 1 else z)
        if len(x):
            p = np.exp(values[-1] - values[-1].max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[range(len(x)), y] -= 1
            delta = p / len(x)
            for i in range(len(used))[::-1]:
                w, _ = used[i]
                grads = [values[i].T @ delta, delta.sum(axis=0)]
                delta = (delta @ w.T) * (1 - values[i] ** 2)
                for of, g in enumerate(grads):
                    moved = weights[i][of] - used[i][of]
                    g = scale(taus[i]) * (g + compensate * g * g * moved)
                    weights[i][of] = weights[i][of] - RATE * g
        for s in range(stages):
            seen[s].append(min(in_epoch, stages - s - 1))
        in_epoch = 0 if epoch_end else in_epoch + 1
    return np.concatenate([v.ravel() for pair in weights for v in pair]), seen


def run_of(problem, epochs, steps=None):
    last = len(problem.of_epoch) - 1
    every = [(i == last, it) for _ in range(epochs) for i, it in enumerate(problem.of_epoch)]
    return every[:steps]


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "samples", [[4] * 7, [4, 4, 3], [4, 0, 4, 0, 0, 2, 1], [1], [0, 4], [0] * 5, [3, 4]], ids=str
)
def test_each_stage_trains_on_the_weights_its_batch_came_with(stages, samples):
    problem = Batches(samples)
    theta, parts = train(problem, stages, epochs=2)
    want, taus = by_hand(problem, stages, run_of(problem, 2))
    np.testing.assert_allclose(theta, want, rtol=0, atol=2e-6)
    for part, seen in zip(parts, taus, strict=True):
        assert part.taus == {tau: seen.count(tau) for tau in set(seen)}


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("steps", [1, 2, 5, 8, 9])
def test_a_run_may_end_amid_an_epoch(stages, steps):
    problem = Batches([4, 3, 4, 4, 2])
    theta, _ = train(problem, stages, steps=steps)
    want, _ = by_hand(problem, stages, run_of(problem, 2, steps))
    np.testing.assert_allclose(theta, want, rtol=0, atol=2e-6)
    part, _ = train(problem, stages, epochs=steps / 5)
    np.testing.assert_array_equal(part, theta)


def test_recomputed_activations_are_of_stashed_weights():
    problem = Batches([4, 3, 4, 4, 2])
    plain, _ = train(problem, 3, epochs=2)
    recomputed, _ = train(problem, 3, epochs=2, recompute=True)
    np.testing.assert_array_equal(recomputed, plain)


@pytest.mark.parametrize(
    ("knobs", "scale", "compensate"),
    [
        ({"staleness_rate": "inverse"}, lambda tau: 1 / max(1, tau), 0.0),
        ({"staleness_rate": "power", "staleness_power": 2.0}, lambda tau: (1 + tau) ** -2.0, 0.0),
        ({"staleness_rate": "delay-compensated", "dc_lambda": 3.0}, lambda tau: 1.0, 3.0),
    ],
    ids=["inverse", "power", "delay-compensated"],
)
def test_rates_know_the_staleness(knobs, scale, compensate):
    problem = Batches([4, 0, 4, 4, 2, 4, 4])
    config = TrainConfig(mode="async", epochs=1, lr=RATE, **knobs)
    theta, _ = train(problem, 4, rate=lambda n: rate_of(config, n), epochs=2)
    want, _ = by_hand(problem, 4, run_of(problem, 2), scale, compensate)
    np.testing.assert_allclose(theta, want, rtol=0, atol=2e-6)
    plain, _ = by_hand(problem, 4, run_of(problem, 2))
    assert np.abs(plain - want).max() > 1e-4


def test_no_more_copies_than_stages_behind():
    _, parts = train(Batches([4] * 6), 4, epochs=1)
    assert [it.stash_bytes // (4 * it._stage.n) for it in parts] == [3, 2, 1, 0]


@pytest.mark.parametrize("stages", [1, 2, 5, 16])
@pytest.mark.parametrize("batches", [1, 2, 3, 17, 40])
def test_an_endless_schedule_cut_short_is_that_of_so_many_batches(stages, batches):
    for stage in range(stages):
        wanted = [it for it in ROW(stage, stages, batches) if it.kind in COMPUTING]
        endless = (it for it in ROW(stage, stages, 1 << 40) if it.micro_batch < batches)
        found = itertools.islice((it for it in endless if it.kind in COMPUTING), len(wanted))
        assert list(found) == wanted
