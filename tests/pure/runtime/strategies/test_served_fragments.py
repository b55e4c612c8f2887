"""Learners of fragments: nothing of what they have learnt is lost, doubled or bent by a stop.

All gradients are the same, so what is pushed of a fragment is a number of steps: those since its
last merge was adopted.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from psrt.checkpoint import Checkpoints, Disk
from psrt.config import TrainConfig
from psrt.core.partition import Span
from psrt.history import Kind, read_history
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.simulation.cost_flags import VirtualCosts

N, STEPS, EPOCHS, LR = 12, 20, 3, 0.5


class Even:
    """Two layers, whose gradient is 1 everywhere."""

    def initial(self):
        return np.zeros(N, np.float32)

    def gradient_spans(self):
        return [Span(4, N), Span(0, 4)]

    def batches(self, worker, workers, epoch):
        return [np.ones(2)] * STEPS

    def loss_and_grad(self, theta, batch, out, ready):
        out[:] = 1
        return 0.0

    def evaluate(self, theta):
        return {"loss": 0.0}


@pytest.mark.parametrize("every", [None, 7])
@pytest.mark.parametrize("delay", [0, 1, 2])
def test_each_step_is_pushed_once_until_a_merge_is_adopted(every, delay, tmp_path):
    mode = f"local-sgd:local-steps=4,fragments=2,quorum=2,sync-delay={delay}"
    config = TrainConfig(
        mode=mode + ",mixing=0" * (delay > 0), servers=2, epochs=EPOCHS, lr=LR, record=True,
        out=str(tmp_path / "run"), checkpoint_every=every,
    )  # fmt: skip
    scenario = Scenario(3, VirtualCosts(compute="lognormal:0.001:0.5"))
    run_in_virtual_time(config, scenario, Even())
    history = read_history(tmp_path / "run")
    for events, span in zip(history.shards, history.header.spans, strict=True):
        came = events[(events["kind"] == Kind.RECEIVE) & (events["flag"] == 0)]
        samples = Counter()
        for it in came:
            samples[int(it["worker"])] += int(it["samples"])
        assert samples == dict.fromkeys(range(3), EPOCHS * STEPS * 2)
        forces = events[events["kind"] == Kind.FORCE]
        steps = forces["gap"] / (LR * np.sqrt(span[1] - span[0]))
        whole = np.round(steps)
        np.testing.assert_allclose(steps, whole, atol=1e-4)
        assert whole.max() <= 4
        assert np.mean(whole == 4 - delay) > 0.5
    if every is not None:
        newest, damaged = Checkpoints(Disk(), tmp_path / "run").newest()
        assert not damaged
        assert newest.manifest.step >= EPOCHS * STEPS // 2
