"""What rounds among neighbours take in virtual time, and that a thousand workers take little."""

from __future__ import annotations

import math

import pytest

from psrt.config import TrainConfig
from psrt.job.virtual import simulate
from psrt.simulation import SimulationCosts
from psrt.transport.frames import FRAME_BYTES

N = 1000
BYTES = 4 * N + FRAME_BYTES


def step_s(workers, order, *, compute, latency, message, **knobs):
    """Return the seconds of a step, of which two to begin with do not count."""
    costs = SimulationCosts(
        compute=lambda rank, rng: compute,
        latency=lambda rng: latency,
        bandwidth=BYTES / message if message else math.inf,
    )
    seconds = [
        simulate(
            TrainConfig(mode="gossip", order=order, steps=steps, **knobs),
            workers=workers, numerics=False, parameters=N, costs=costs,
        ).seconds
        for steps in (2, 12)
    ]  # fmt: skip
    return (seconds[1] - seconds[0]) / 10


@pytest.mark.parametrize("workers", [3, 4, 8])
@pytest.mark.parametrize(
    ("compute", "latency", "message"),
    [(1e-2, 1e-3, 0.0), (1e-3, 1e-2, 0.0), (1e-2, 1e-3, 1e-3), (1e-3, 1e-3, 5e-3)],
)
def test_a_step_on_a_ring_takes_what_two_messages_take(workers, compute, latency, message):
    """Beside the gradient if they set out before it, after it else: L + 2 m/B."""
    sent = latency + 2 * message
    costs = {"compute": compute, "latency": latency, "message": message}
    beside = step_s(workers, "combine-then-adapt", **costs)
    assert beside == pytest.approx(max(compute, sent))
    assert step_s(workers, "adapt-then-combine", **costs) == pytest.approx(compute + sent)


@pytest.mark.parametrize(
    ("topology", "vectors"), [("exponential", 3), ("one-peer-exponential", 1), ("full", 7)]
)
def test_links_are_used_evenly(topology, vectors):
    costs = {"compute": 1e-3, "latency": 1e-3, "message": 5e-3}
    found = step_s(8, "adapt-then-combine", topology=topology, **costs)
    assert found == pytest.approx(1e-3 + 1e-3 + vectors * 5e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("topology", ["ring", "one-peer-exponential", "exponential"])
def test_a_thousand_workers(topology):
    config = TrainConfig(mode="gossip", topology=topology, steps=3)
    run = simulate(config, workers=1000, numerics=False, parameters=10**6)
    assert run.summary.steps == 3
