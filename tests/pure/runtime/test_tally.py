"""What ranks counted, and all of it together."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from psrt.config import TrainConfig
from psrt.job.virtual import simulate
from psrt.runtime.tally import Tally, fingerprint

CONFIG = TrainConfig(dataset="synthetic:40x4x2", hidden=(3,), batch_size=5, epochs=2)


def tallies(run):
    servers = [Tally.of_server(server._port, server) for server in run.servers]
    return [*servers, *(Tally.of_worker(worker._port, worker) for worker in run.workers)]


def test_sums_and_maxima():
    rows = [
        Tally(*range(1, len(Tally._fields) + 1)),
        Tally(*range(len(Tally._fields), 0, -1)),
    ]
    total = Tally.of_all(rows)
    summed = {"samples", "bytes_sent", "bytes_received", "dropped"}
    for name, value, a, b in zip(Tally._fields, total, *rows, strict=True):
        assert value == (a + b if name in summed else max(a, b)), name


def test_a_job_with_servers():
    run = simulate(dataclasses.replace(CONFIG, mode="async", servers=2), workers=3, seed=1)
    rows = tallies(run)
    total = Tally.of_all(rows)
    steps = 2 * 3  # of 15 samples, the last of 10
    assert (total.samples, total.clock, total.epochs) == (80, steps, 2)
    assert total.updates == 3 * steps
    assert (total.dropped, total.fingerprint) == (0, 0)
    assert total.bytes_sent == total.bytes_received > 0
    assert total.microseconds == max(round(w.seconds * 1e6) for w in run.workers) > 0
    assert total.clock_spread_max == max(s.clock_spread_max for s in run.servers) > 0
    assert total.skew_max == max(m.skew_max for m in run.meters)
    assert rows[0].samples == rows[-1].updates == 0


def test_a_job_without_servers():
    run = simulate(dataclasses.replace(CONFIG, mode="allreduce"), workers=2, seed=1)
    first, second = tallies(run)
    assert first.fingerprint == second.fingerprint == fingerprint(run.theta) > 0
    assert first.updates == second.updates == 8


def test_local_sgd_counts_averages():
    asked = dataclasses.replace(CONFIG, mode="local-sgd", local_steps=3)
    run = simulate(asked, workers=2, seed=1)
    assert Tally.of_all(tallies(run)).updates == 3  # after 3, 6 and the last 2 of 8 steps
    over_servers = simulate(dataclasses.replace(asked, servers=1), workers=2, seed=1)
    assert Tally.of_all(tallies(over_servers)).updates == 3


def test_the_dropped_are_added_up():
    asked = dataclasses.replace(
        CONFIG, mode="async", servers=2, staleness_rate="drop", staleness_limit=0
    )
    run = simulate(asked, workers=4, seed=2)
    total = Tally.of_all(tallies(run))
    assert total.dropped == sum(server.shard.dropped for server in run.servers) > 0


def test_the_fingerprint_is_63_bits_of_the_bytes():
    theta = np.array([1, 2, 3], np.float32)
    digest = hashlib.sha256(theta.tobytes()).digest()
    assert fingerprint(theta) == int.from_bytes(digest[:8], "big") // 2 < 2**63
    assert fingerprint(theta) != fingerprint(np.nextafter(theta, np.float32(9)))
