"""Copies that are cut clip by the norm of all their parts: against a loop by hand in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.job.virtual import simulate
from psrt.model import MLP
from psrt.model.tensor import TensorSlice
from psrt.runtime.worker import Worker
from support.cases import each
from support.chains import in_float64

SIZES, LR, STEPS, COPIES = (6, 7, 5, 8, 4), 0.4, 6, 2
#: Rows of the batches of an epoch: the last one is not full.
ROWS = (9, 9, 5)


class Chain:
    """An MLP, and batches that each copy has of its own."""

    def __init__(self):
        rng = np.random.default_rng(3)
        self.model = MLP(SIZES, activation="tanh", batch_size=max(ROWS))
        self.layers, self.loss = self.model.layers, self.model.loss
        self.theta = rng.normal(0, 0.5, self.model.n).astype(np.float32)
        self.of = [
            [
                (rng.standard_normal((m, SIZES[0])).astype(np.float32), rng.integers(0, 4, m))
                for m in ROWS
            ]
            for _ in range(COPIES)
        ]

    def initial(self):
        return self.theta.copy()

    def tensor_slice(self, slices, index, group=None):
        return TensorSlice(self.model, slices, index, group)

    def batches(self, worker, workers, epoch):
        return self.of[worker]

    def loss_and_grad(self, theta, batch, out):
        raise AssertionError("it is computed by layers")

    def evaluate(self, theta):
        return {}


def by_hand(chain, limit, *, copies=COPIES, period=1, momentum=0.0):
    """Train in float64: each copy's gradient is clipped; models are averaged every few steps.

    Returns:
        The mean of the models at the end, and by step the norms of all copies' gradients.
    """
    thetas = [chain.theta.astype(float)] * copies
    speed, norms = [np.zeros(chain.theta.size)] * copies, []
    for step in range(STEPS):
        gradients = []
        for theta, of_copy in zip(thetas, chain.of, strict=False):
            x, y = of_copy[step % len(ROWS)]
            gradients.append(in_float64(SIZES, theta, x, y, activation="tanh")[1])
        norms.append([math.sqrt((it**2).sum()) for it in gradients])
        factors = [min(1.0, limit / norm) for norm in norms[-1]]
        clipped = [it * factor for it, factor in zip(gradients, factors, strict=True)]
        if period == 1:
            clipped = [sum(clipped) / copies] * copies
        speed = [momentum * v + g for v, g in zip(speed, clipped, strict=True)]
        thetas = [theta - LR * v for theta, v in zip(thetas, speed, strict=True)]
        if not (step + 1) % period:
            thetas = [sum(thetas) / copies] * copies
    return sum(thetas) / copies, norms


MODES = {
    "allreduce": {"mode": "allreduce", "optimizer": "momentum", "momentum": 0.5},
    "shard": {"mode": "allreduce", "shard": "optimizer"},
    "sync": {"mode": "sync"},
    "sync, shards": {"mode": "sync", "shards_per_server": 2},
    # Nothing is lost, but what is encoded is clipped before.
    "sync, framed": {"mode": "sync", "codec": "nonzero", "codec_everywhere": True},
    "local-sgd": {"mode": "local-sgd", "local_steps": 3},
    "fragments": {"mode": "local-sgd", "local_steps": 1, "fragments": 1},
    "local-sgd over servers": {"mode": "local-sgd", "local_steps": 3, "servers": 1},
    # All models are the mean of all after every round.
    "gossip": {"mode": "gossip", "topology": "full", "order": "adapt-then-combine"},
    "async, one copy": {"mode": "async"},
}
CUTS = {
    "data:2,pipeline:2": {"micro_batches": 3},
    "data:2,pipeline:4": {"micro_batches": 2, "pipeline_schedule": "zero-bubble"},
    "data:2,tensor:2": {},
    "data:2,pipeline:2,tensor:2": {"micro_batches": 3, "defer_weights": True},
    "data:2,pipeline:1,tensor:2": {"pipeline_schedule": "pipedream"},
    "data:2": {"micro_batches": 3},
}


@each("name", MODES)
def test_a_copy_is_clipped_by_the_norm_of_all_its_parts(name, monkeypatch):
    chain, knobs = Chain(), dict(MODES[name])
    copies = 1 if "one copy" in name else COPIES
    with_servers = knobs["mode"] in ("sync", "async") or "servers" in knobs
    # Some gradients are clipped and others are not.
    own = {"copies": copies, "period": knobs.get("local_steps", 1)}
    own["momentum"] = knobs.get("momentum", 0.0)
    limit = float(np.median(by_hand(chain, math.inf, **own)[1]))
    wanted, norms = by_hand(chain, limit, **own)
    assert 3 < np.sum(np.array(norms) > limit) < STEPS * copies - 1
    told = {}
    step_of = Worker._norm

    async def norm(worker):
        told.setdefault(worker.clock, []).append(await step_of(worker))
        return told[worker.clock][-1]

    monkeypatch.setattr(Worker, "_norm", norm)
    for axes, more in CUTS.items():
        if "data:2" in axes and copies == 1:
            axes = axes.replace("data:2", "data:1")
        base = {"parallel": axes, "batch_size": max(ROWS), "lr": LR, "steps": STEPS}
        cells = TrainConfig(parallel=axes).axes.cells
        if with_servers:
            base["servers"] = cells
        config = TrainConfig(**{"optimizer": "sgd"} | knobs | base | more, clip_norm=limit)
        told.clear()
        run = simulate(config, chain, workers=copies * cells)
        np.testing.assert_allclose(run.theta, wanted, rtol=1e-4, atol=2e-6, err_msg=axes)
        for step, of_copies in enumerate(norms):
            # The same bits in all parts of a copy.
            assert len(set(told[step])) <= copies
            np.testing.assert_allclose(
                sorted(told[step]), np.repeat(sorted(of_copies), cells), rtol=1e-4
            )


def test_stages_that_do_not_wait_for_each_other_have_no_norm():
    with pytest.raises(ConfigError, match="is not possible with --pipeline-schedule"):
        TrainConfig(parallel="pipeline:2", pipeline_schedule="pipedream", clip_norm=0.5)
