"""What must come out the same: bit for bit where no sum is taken in another order."""

from __future__ import annotations

import dataclasses
import math
from itertools import cycle

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.config import TrainConfig, resolve
from psrt.job.build import worker_role
from psrt.job.problems import supervised_problem
from psrt.job.virtual import simulate
from psrt.optim import make_staleness_rate
from psrt.transport import SoloPort, drive
from support.cases import pairs

pytestmark = [pytest.mark.slow, pytest.mark.rest_one_in(3)]

#: 90 samples: the last global batch of an epoch is smaller, and not the same for all workers.
BASE = TrainConfig(
    dataset="synthetic:90x5x3", hidden=(6,), activation="tanh", epochs=3, lr=0.1, seed=4
)
OPTIMIZERS = ["sgd", "momentum", "nesterov", "adagrad", "adam", "adamw"]
#: All that comes on top of a gradient step.
TRIMMINGS = {
    "plain": {},
    "weight decay": {"weight_decay": 0.02},
    "clipping": {"clip_norm": 0.3},
    "step": {"schedule": "step", "decay_epochs": 0.75, "decay_factor": 0.5},
    "warm-up, cosine": {"schedule": "cosine", "warmup_epochs": 0.7},
    "all": {"weight_decay": 0.01, "clip_norm": 0.5, "schedule": "cosine", "warmup_epochs": 1.2},
}
UNCLIPPED = ["plain", "weight decay", "step", "warm-up, cosine"]
SCHEDULES = list(ALGORITHMS)
#: In these the order of the sum does not depend on where in the vector an element is.
PLACELESS = [
    name for name in ("naive", "all-pairs", "root", "tree", "butterfly") if name in ALGORITHMS
]


def config(**more):
    # Adam's first steps have the length of the rate however small a gradient is.
    rate = {"lr": 0.004} if more.get("optimizer", "sgd").startswith("ada") else {}
    return dataclasses.replace(BASE, **rate | more)


def trained(workers=4, seed=0, **more):
    more = {"batch_size": 24 // workers} | more
    return simulate(config(**more), workers=workers, seed=seed).theta


def serial(**more):
    """Train one process on the large batches, over the port that has nobody to talk to."""
    return alone(config(mode="serial", batch_size=24, **more))


def alone(asked):
    """Train one process as it is asked."""
    asked = resolve(asked, ranks=1)
    problem = supervised_problem(asked, workers=1)
    port = SoloPort(problem.initial().size)
    np.copyto(port.theta, problem.initial())
    drive(worker_role(port, asked, problem).run())
    return port.theta


def assert_same_bits(*thetas):
    assert len({theta.tobytes() for theta in thetas}) == 1


def assert_close(*thetas):
    for theta in thetas[1:]:
        np.testing.assert_allclose(theta, thetas[0], rtol=2e-4, atol=2e-5)


def test_training_gets_somewhere():
    """Else all that follows would compare runs in which nothing happens."""
    start = supervised_problem(resolve(config(batch_size=24), ranks=2), workers=1).initial()
    for optimizer in OPTIMIZERS:
        assert np.abs(serial(optimizer=optimizer) - start).max() > 0.01


@pytest.mark.parametrize(("optimizer", "trimming"), pairs(OPTIMIZERS, UNCLIPPED, one_in=2))
def test_sync_is_serial_large_batch_is_allreduce(optimizer, trimming):
    more = {"optimizer": optimizer, **TRIMMINGS[trimming]}
    runs = [
        trained(workers, mode="allreduce", allreduce=name, **more)
        for workers, name in zip(cycle((2, 3, 4)), SCHEDULES, strict=False)
    ]
    assert_close(
        serial(**more),
        trained(2, mode="sync", servers=1, **more),
        trained(3, mode="sync", servers=2, **more),
        *runs,
    )


@pytest.mark.parametrize("workers", [2, 3, 4, 6, 8])
def test_sync_is_allreduce_by_every_schedule_for_every_number_of_workers(workers):
    """Clipping included: it is each worker's own gradient that is clipped, in both."""
    more = {"optimizer": "momentum", **TRIMMINGS["clipping"]}
    runs = [trained(workers, mode="allreduce", allreduce=name, **more) for name in SCHEDULES]
    assert_close(trained(workers, mode="sync", **more), *runs)


@pytest.mark.parametrize("decay", [0.3, 0.7, 0.9])
def test_sync_is_allreduce_where_a_decay_begins_between_two_float32_numbers(decay):
    """10 steps an epoch, and the progress of an all-reduce has been through float32."""
    more = {"dataset": "synthetic:240x5x3", "schedule": "step", "decay_epochs": decay}
    assert_close(
        serial(**more), trained(3, mode="sync", **more), trained(3, mode="allreduce", **more)
    )


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_an_allreduce_leaves_the_same_bits_everywhere(name, workers):
    asked = config(
        mode="allreduce", allreduce=name, batch_size=5, optimizer="adam", **TRIMMINGS["all"]
    )
    run = simulate(asked, workers=workers)
    assert_same_bits(*(worker._port.theta for worker in run.workers))


#: All in one, a layer each, layers gathered; and a cut that is none.
CUTS = [
    {"overlap": False},
    {"overlap": True, "bucket_bytes": 1},
    {"overlap": True, "bucket_bytes": 100},
    {"overlap": True, "bucket_bytes": 10**9},
]


def cuts(workers, **more):
    """Train with every cut of the gradient, three layers deep."""
    more = {"mode": "allreduce", "hidden": (9, 6), "check_every": 1, **more}
    return [trained(workers, **more, **cut) for cut in CUTS]


@pytest.mark.parametrize(("optimizer", "name"), pairs(OPTIMIZERS, PLACELESS, one_in=2))
@pytest.mark.parametrize("workers", [3, 4])
@pytest.mark.one_in(3)
def test_buckets_and_overlap_change_no_bit(workers, optimizer, name):
    assert_same_bits(*cuts(workers, optimizer=optimizer, allreduce=name))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("trimming", ["weight decay", "warm-up, cosine"])
@pytest.mark.one_in(3)
def test_buckets_and_overlap_change_no_bit_of_a_sum_of_two(trimming, name):
    """With three the ring adds in another order where another chunk begins."""
    more = {"optimizer": "adam", "allreduce": name, **TRIMMINGS[trimming]}
    assert_same_bits(*cuts(2, **more))
    assert_close(*cuts(3, **more))


@pytest.mark.parametrize("seed", range(4))
def test_when_sums_arrive_changes_no_bit(seed):
    """Another seed is another order of events: buckets that come in time, or not."""
    more = {"mode": "allreduce", "allreduce": "tree", "hidden": (9, 6), "bucket_bytes": 1}
    assert_same_bits(trained(4, **more), trained(4, seed=seed + 1, **more))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_that_updates_while_it_computes_is_serial(optimizer):
    """Alone a layer is updated the moment it is ready, so nothing below may need it any more."""
    more = {"optimizer": optimizer, "hidden": (9, 6)}
    asked = config(mode="allreduce", batch_size=24, bucket_bytes=1, **more)
    assert_same_bits(serial(**more), alone(asked))


@pytest.mark.parametrize(("optimizer", "trimming"), pairs(OPTIMIZERS, TRIMMINGS, one_in=2))
def test_any_number_of_shards_is_one(optimizer, trimming):
    more = {"mode": "sync", "optimizer": optimizer, **TRIMMINGS[trimming]}
    assert_same_bits(*(trained(3, servers=servers, **more) for servers in (1, 2, 3, 7)))


@pytest.mark.parametrize("trimming", ["clipping", "all"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.one_in(3)
def test_any_number_of_shards_of_a_server_is_one(optimizer, trimming):
    more = {"mode": "sync", "optimizer": optimizer, "hidden": (9, 6), **TRIMMINGS[trimming]}
    cuts = [(1, 1), (1, 2), (1, 3), (1, 8), (2, 2), (3, 4)]
    assert_same_bits(
        *(trained(3, servers=servers, shards_per_server=each, **more) for servers, each in cuts)
    )


@pytest.mark.parametrize("mode", ["async", "ssp", "softsync", "local-sgd"])
def test_any_number_of_shards_of_a_server_is_one_for_one_worker(mode):
    more = {"mode": mode, "optimizer": "adam", "servers": 2, **TRIMMINGS["all"]}
    assert_same_bits(*(trained(1, shards_per_server=each, **more) for each in (1, 2, 5)))


@pytest.mark.parametrize("mode", ["async", "ssp", "softsync", "local-sgd"])
def test_any_number_of_shards_is_one_for_one_worker_in_every_mode(mode):
    more = {"mode": mode, "optimizer": "adam", **TRIMMINGS["all"]}
    assert_same_bits(*(trained(1, servers=servers, **more) for servers in (1, 2, 5)))


@pytest.mark.parametrize(("optimizer", "trimming"), pairs(OPTIMIZERS, TRIMMINGS, one_in=2))
@pytest.mark.one_in(2)
def test_one_worker_is_serial_in_every_mode(optimizer, trimming):
    more = {"optimizer": optimizer, **TRIMMINGS[trimming]}
    one = [
        {"mode": "sync"},
        {"mode": "async"},
        {"mode": "ssp", "staleness": 0},
        {"mode": "ssp", "staleness": 2, "servers": 3},
        {"mode": "softsync", "softsync": 1, "servers": 2},
        *({"mode": "allreduce", "allreduce": name} for name in SCHEDULES),
        {"mode": "local-sgd", "local_steps": 1},
        {"mode": "local-sgd", "local_steps": 3, "servers": 2},
        {"mode": "serial"},
    ]
    assert_same_bits(serial(**more), *(trained(1, **mode, **more) for mode in one))


@pytest.mark.parametrize("rate", ["inverse", "power", "exponential", "delay-compensated"])
def test_a_worker_by_itself_is_never_stale(rate):
    assert_same_bits(
        serial(optimizer="momentum"),
        trained(1, mode="async", optimizer="momentum", staleness_rate=rate),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_softsync_w_is_async(optimizer, seed):
    more = {"optimizer": optimizer, "seed": seed, "servers": 2, **TRIMMINGS["all"]}
    assert_same_bits(trained(mode="async", **more), trained(mode="softsync", softsync=4, **more))


@pytest.mark.parametrize("seed", range(3))
def test_ssp_without_a_bound_is_async(seed):
    assert_same_bits(
        trained(mode="async", servers=2, seed=seed),
        trained(mode="ssp", staleness=10**6, servers=2, seed=seed),
    )


@pytest.mark.parametrize(
    ("optimizer", "samples"), [("sgd", 90), ("momentum", 96), ("nesterov", 96)]
)
@pytest.mark.parametrize("trimming", UNCLIPPED)
@pytest.mark.one_in(3)
def test_local_sgd_with_one_step_is_sync(optimizer, samples, trimming):
    """For what is linear in the gradients; and where all weigh the same, for velocities, too."""
    more = {"optimizer": optimizer, "dataset": f"synthetic:{samples}x5x3", **TRIMMINGS[trimming]}
    assert_close(
        trained(mode="sync", **more),
        trained(mode="local-sgd", local_steps=1, servers=2, **more),
        *(trained(mode="local-sgd", local_steps=1, allreduce=a, **more) for a in SCHEDULES),
    )


def test_local_sgd_with_one_step_is_sync_with_clipping():
    more = TRIMMINGS["clipping"]
    assert_close(
        trained(mode="sync", **more), trained(mode="local-sgd", local_steps=1, servers=1, **more)
    )
    assert not np.allclose(trained(mode="sync"), trained(mode="sync", **more), atol=1e-3)


@pytest.mark.parametrize("servers", [0, 2])
def test_post_local_that_never_ends_is_local_sgd_with_one_step(servers):
    more = {"mode": "local-sgd", "servers": servers}
    never = trained(local_steps=5, post_local_epoch=3, **more)
    always = trained(local_steps=1, **more)
    assert_close(never, always, trained(mode="sync"))
    if servers:  # else weights are counted in other units
        assert_same_bits(never, always)
    assert not np.array_equal(never, trained(local_steps=5, post_local_epoch=2, **more))


@pytest.mark.parametrize("servers", [0, 2])
def test_an_outer_step_all_the_way_is_the_average(servers):
    more = {"mode": "local-sgd", "local_steps": 3, "servers": servers}
    assert_close(trained(**more), trained(outer_lr=1.0, outer_momentum=0.0, **more))


def test_averaging_over_servers_is_averaging_by_an_allreduce():
    more = {"mode": "local-sgd", "local_steps": 3, "optimizer": "adam", "outer_lr": 0.7}
    averages = [trained(allreduce=name, **more) for name in SCHEDULES]
    assert_close(trained(servers=2, **more), *averages)


def test_no_backups_are_sync():
    assert_same_bits(
        trained(mode="sync", servers=2), trained(mode="sync", servers=2, backup=0, seed=9)
    )


#: Rules that leave every gradient as it is.
NEUTRAL = {
    "constant": {},
    "power": {"staleness_power": 0.0},
    "exponential": {"staleness_decay": 0.0},
    "drop": {"staleness_limit": 10**6},
    "delay-compensated": {"dc_lambda": 0.0},
    "gap-aware": {},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("seed", "rate"), pairs(range(2), NEUTRAL, one_in=2))
@pytest.mark.parametrize(
    "mode",
    [{"mode": "async"}, {"mode": "ssp", "staleness": 1}, {"mode": "softsync", "softsync": 2}],
)
@pytest.mark.parametrize("trimming", ["plain", "all"])
def test_neutral_rates_change_no_bit(monkeypatch, trimming, mode, rate, seed):
    """Among them delay compensation with λ = 0 and gap-aware rates with C = ∞."""
    monkeypatch.setattr("psrt.job.build.make_staleness_rate", without_gap)
    more = {"servers": 2, "optimizer": "momentum", "seed": seed, **mode, **TRIMMINGS[trimming]}
    assert_same_bits(trained(**more), trained(**more, staleness_rate=rate, **NEUTRAL[rate]))


def without_gap(name, n, **knobs):
    if name == "gap-aware":
        knobs["max_lr"] = math.inf
    return make_staleness_rate(name, n, **knobs)


@pytest.mark.parametrize(
    "rate", ["inverse", "mean-inverse", "power", "exponential", "delay-compensated", "gap-aware"]
)
def test_rates_that_are_not_neutral_change_something(rate):
    more = {"mode": "async", "optimizer": "momentum"}
    assert not np.array_equal(trained(**more), trained(**more, staleness_rate=rate))


def test_how_samples_are_cut_among_workers_does_not_change_what_a_step_sees():
    """4 workers with 6 samples, 2 with 12 and 8 with 3 go through the same global batches."""
    assert_close(*(trained(workers, mode="sync") for workers in (1, 2, 4, 8)))
