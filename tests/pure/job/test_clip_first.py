"""Clipping comes first: whatever else is on, it is as if the problem clipped its own gradients."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from psrt.config import TrainConfig, resolve
from psrt.job.problems import supervised_problem
from psrt.job.virtual import simulate
from psrt.optim import STALENESS_RATES
from psrt.simulation import SimulationCosts
from support.cases import each

#: A third of the gradients are longer than the limit, some by a factor of 100.
LIMIT = 0.5
KNOBS = {
    "dataset": "synthetic:44x6x3", "hidden": (5,), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "optimizer": "momentum",
}  # fmt: skip
MODES = {
    "serial": {"mode": "serial"},
    "allreduce": {"mode": "allreduce", "allreduce": "all-pairs"},
    "sync": {"mode": "sync"},
    "backup": {"mode": "sync", "backup": 1},
    "async": {"mode": "async"},
    "ssp": {"mode": "ssp", "staleness": 1},
    "softsync": {"mode": "softsync", "softsync": 2},
    "easgd": {"mode": "easgd", "local_steps": 2},
    "easgd, asynchronous": {"mode": "easgd", "asynchronous": True},
    "local-sgd": {"mode": "local-sgd", "local_steps": 2},
    "local-sgd, servers": {"mode": "local-sgd", "local_steps": 2, "servers": 2},
    "gossip": {"mode": "gossip"},
    "tracking": {"mode": "gossip", "gradient_tracking": True},
    "push-sum": {"mode": "gossip", "push_sum": True, "topology": "exponential"},
    "pairs": {"mode": "gossip", "asynchronous": True, "topology": "star"},
}
#: Codecs that lose nothing; of the second the bits are those of the first.
LOSSLESS = {"nonzero": {}, "top-k": {"codec_density": 1.0}}
WEAKENING = ("async", "ssp", "softsync")
RATES = {name: {"staleness_rate": name} for name in STALENESS_RATES} | {
    "drop": {"staleness_rate": "drop", "staleness_limit": 1},
    "adaptive": {"staleness_rate": "delay-compensated", "dc_adaptive": True},
}
#: Neither bytes nor codecs take time, so a codec does not change the order of events.
COSTS = SimulationCosts(bandwidth=math.inf, codec_speed=math.inf)


class Clips:
    """A problem with a few huge gradients, which clips its own if it has a limit."""

    def __init__(self, problem, limit):
        self._problem, self._limit, self._calls = problem, limit, {}

    def __getattr__(self, name):
        if name == "gradient_spans":
            raise AttributeError(name)
        return getattr(self._problem, name)

    def loss_and_grad(self, theta, batch, out):
        loss = self._problem.loss_and_grad(theta, batch, out)
        if int(abs(float(out[0])) * 1e6) % 3 == 0:
            out *= np.float32(100)
        norm = math.sqrt(float(np.sum(np.square(out, dtype=np.float64))))
        if self._limit is not None and norm > self._limit:
            out *= np.float32(self._limit / norm)
        return loss


def trained(*, by, **more):
    """Return the parameters, clipped ``by`` the knob or the problem."""
    workers = 1 if more["mode"] == "serial" else 3
    config = TrainConfig(**KNOBS | more | ({"clip_norm": LIMIT} if by == "knob" else {}))
    if config.mode == "allreduce":
        config = dataclasses.replace(config, overlap=False)
    plain = resolve(TrainConfig(**KNOBS, mode="allreduce"), ranks=3)
    problem = supervised_problem(plain, workers=workers)
    return simulate(
        config, Clips(problem, LIMIT if by == "problem" else None), workers=workers, costs=COSTS
    ).theta.tobytes()


@each("mode", MODES)
def test_clipping_is_part_of_the_gradient(mode):
    clipped = trained(by="knob", **MODES[mode])
    assert clipped == trained(by="problem", **MODES[mode])
    assert clipped != trained(by="nobody", **MODES[mode])


@pytest.mark.parametrize("rate", RATES)
def test_a_codec_that_loses_nothing_changes_no_bit(rate):
    """Not which of two transforms comes first either, at any rate."""
    for mode in WEAKENING if rate != "constant" else (*WEAKENING, "sync", "backup", "allreduce"):
        knobs = MODES[mode] | (RATES[rate] if mode in WEAKENING else {})
        clipped = trained(by="problem", **knobs)
        for codec in (None, *LOSSLESS):
            more = {} if codec is None else {"codec": codec, **LOSSLESS[codec]}
            assert trained(by="knob", **knobs, **more) == clipped, (mode, codec)
