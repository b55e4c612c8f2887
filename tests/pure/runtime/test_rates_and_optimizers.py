"""Every staleness-aware rate with every optimizer, in shards of several blocks, against float64.

The oracle is written from the published rules alone: whole vectors, no blocks, no spans, nothing
of psrt. A shard makes an update block by block, so whatever a rate or an optimizer remembers of an
update as a whole must look the same from its first block and from its last.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from psrt.messages import Push
from psrt.optim import (
    BLOCK,
    OPTIMIZERS,
    STALENESS_RATES,
    Schedule,
    make_optimizer,
    make_staleness_rate,
)
from psrt.partition import even_spans
from psrt.runtime.shard import Shard
from psrt.runtime.updater import Contribution, Updater
from support.cases import pairs

pytestmark = pytest.mark.slow

N, WORKERS, UPDATES = 2 * BLOCK + 77, 3, 7
PEAK, WARMUP = 0.05, 2.0
#: Elements that the oracle follows: the ends of the blocks and of the shards, and some between.
CORNERS = (0, BLOCK, 2 * BLOCK, N, N // 2, N // 3)
FOLLOWED = np.unique([i for c in CORNERS for i in range(c - 3, c + 3) if 0 <= i < N])

RATES = {
    "constant": {},
    "inverse": {},
    "mean-inverse": {"window": 3},
    "power": {"power": 0.7},
    "exponential": {"decay": 0.3},
    "drop": {"limit": 1},
    "delay-compensated": {"dc_lambda": 0.5},
    "delay-compensated adaptive": {"adaptive": True},
    "gap-aware": {"max_lr": PEAK},
}


class Oracle:
    """One parameter server in float64; ``turn`` and ``step`` are the published rules."""

    def __init__(self, rate, optimizer, theta):
        self.rate, self.optimizer, self.theta = rate, optimizer, theta
        self.read = [theta.copy() for _ in range(WORKERS)]
        self.seen, self.observed, self.steps = [], 0, 0
        self.square = self.rms = self.m = self.v = np.zeros_like(theta)

    def turn(self, grad, tau, read):
        self.seen.append(tau)
        if self.rate == "inverse":
            return grad / max(tau, 1)
        if self.rate == "mean-inverse":
            return grad / max(1.0, np.mean(self.seen[-3:]))
        if self.rate == "power":
            return grad * (1 + tau) ** -0.7
        if self.rate == "exponential":
            return grad * math.exp(-0.3 * tau)
        if self.rate == "drop":
            return grad * (tau <= 1)
        if self.rate == "delay-compensated":
            return grad + 0.5 * grad * grad * (self.theta - read)
        if self.rate == "delay-compensated adaptive":
            self.square = 0.95 * self.square + 0.05 * grad * grad
            strength = 2 / np.sqrt(self.square + 1e-7)
            return grad + strength * grad * grad * (self.theta - read)
        if self.rate == "gap-aware" and self.observed:
            unit = np.sqrt(self.rms / (1 - 0.999**self.observed)) + 1e-8
            return grad / (1 + np.abs(self.theta - read) / (PEAK * unit))
        return grad

    def step(self, g, lr):
        self.steps += 1
        if self.optimizer in ("momentum", "nesterov"):
            self.v = 0.9 * self.v + g
            return lr * (g + 0.9 * self.v if self.optimizer == "nesterov" else self.v)
        if self.optimizer == "adagrad":
            self.v = self.v + g * g
            return lr * g / (np.sqrt(self.v) + 1e-8)
        if self.optimizer in ("adam", "adamw"):
            self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g * g
            mean, square = self.m / (1 - 0.9**self.steps), self.v / (1 - 0.999**self.steps)
            return lr * mean / (np.sqrt(square) + 1e-8)
        if self.optimizer in ("sign-sgd", "demo"):
            return lr * np.sign(g)
        return lr * g

    def update(self, pushes, progress):
        """Each push: worker, gradient, τ."""
        lr = PEAK * min(1.0, progress / WARMUP)
        turned = [self.turn(grad, tau, self.read[worker]) for worker, grad, tau in pushes]
        moved = self.step(sum(turned) / len(turned), lr)
        if lr >= 1e-3 * PEAK:
            self.observed += 1
            self.rms = 0.999 * self.rms + 0.001 * (moved / lr) ** 2
        self.theta = self.theta - moved


def script(seed=0):
    """Yield updates: who pushes, on which version each computed, who reads the new version."""
    draw, read = np.random.default_rng(seed), [0] * WORKERS
    for version in range(UPDATES):
        workers = [int(w) for w in draw.permutation(WORKERS)[: 1 + version % 2]]
        yield version, [(worker, read[worker]) for worker in workers], workers[-1:]
        for worker in workers[-1:]:
            read[worker] = version + 1


def shard_of(rate, optimizer, initial, gradients):
    n, knobs = initial.size, RATES[rate]
    rule = make_staleness_rate(rate.split()[0], n, **knobs)
    elementwise = rule if rule.elementwise else None
    schedule = Schedule("constant", PEAK, epochs=9, warmup_epochs=WARMUP)
    return Shard(
        [np.zeros(n, np.float32) for _ in range(2)],
        initial,
        Updater(n, make_optimizer(optimizer, n), schedule, rate=elementwise),
        payload=gradients.__getitem__,
        workers=WORKERS,
        by_samples=False,
        rate=rule,
    )


@functools.cache
def drawn(version, worker):
    gradient = np.random.default_rng((version, worker)).standard_normal(N).astype(np.float32)
    gradient.flags.writeable = False
    return gradient


def trained(rate, optimizer, initial, spans, *, keeps):
    """Return what a server of these shards makes of the script."""
    gradients = [[np.zeros(span.size, np.float32) for _ in range(WORKERS)] for span in spans]
    shards = [
        shard_of(rate, optimizer, span.of(initial), given)
        for span, given in zip(spans, gradients, strict=True)
    ]
    for version, pushes, readers in script():
        messages = [Push(worker, 0, read, 1, 0.5 * version) for worker, read in pushes]
        for shard, span, given in zip(shards, spans, gradients, strict=True):
            for worker, _ in pushes:
                given[worker][:] = span.of(drawn(version, worker))
            for message in messages[: len(messages) - 1 if keeps else 0]:
                shard.keep(message)
                given[message.worker].fill(np.nan)  # its worker computes the next one
            shard.apply(messages, version % 2)
            for worker in readers:
                shard.read_by(worker)
    return np.concatenate([shard.theta for shard in shards])


def test_the_oracle_knows_every_rate_and_every_optimizer():
    assert {name.split()[0] for name in RATES} == set(STALENESS_RATES)
    assert set(OPTIMIZERS) == {
        "sgd", "momentum", "nesterov", "adagrad", "adam", "adamw", "sign-sgd", "demo"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "optimizer"),
    pairs(RATES, OPTIMIZERS, one_in=3),
)
def test_several_blocks_are_one_vector(rate, optimizer):
    """To float32's rounding as in float64, and to the bit alike in any number of shards."""
    initial = np.random.default_rng(1).standard_normal(N).astype(np.float32)
    oracle = Oracle(rate, optimizer, initial[FOLLOWED].astype(float))
    for version, pushes, readers in script():
        given = [
            (worker, drawn(version, worker)[FOLLOWED].astype(float), version - read)
            for worker, read in pushes
        ]
        oracle.update(given, 0.5 * version)
        for worker in readers:
            oracle.read[worker] = oracle.theta.copy()
    whole = trained(rate, optimizer, initial, even_spans(N, 1), keeps=False)
    np.testing.assert_allclose(whole[FOLLOWED], oracle.theta, rtol=2e-5, atol=2e-6)
    for shards in (2, 3):
        cut = trained(rate, optimizer, initial, even_spans(N, shards), keeps=False)
        np.testing.assert_array_equal(cut, whole)
    for shards in (1, 2):  # gradients that wait for their quorum while their workers go on
        kept = trained(rate, optimizer, initial, even_spans(N, shards), keeps=True)
        np.testing.assert_allclose(kept[FOLLOWED], oracle.theta, rtol=2e-5, atol=2e-6)


def test_equal_elements_stay_equal_across_blocks():
    """What was wrong once: every block after the first counted its own update as an earlier one."""
    n = BLOCK + 4464
    rate = make_staleness_rate("gap-aware", n, max_lr=0.1)
    it = Updater(n, make_optimizer("sgd", n), Schedule("constant", 0.1, epochs=1), rate=rate)
    gradient, theta, read = np.ones(n, np.float32), *np.zeros((2, n), np.float32)
    for _ in range(2):
        it.apply(theta, [Contribution(gradient, 1.0, read)], theta, progress=0.0)
    np.testing.assert_allclose(theta, -0.15, rtol=1e-6)
