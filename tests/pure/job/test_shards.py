"""The number of shards that ``auto`` stands for: by cost, said, recorded, repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest

import psrt
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.collective.costs import LinkCosts
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.history import read_history
from psrt.history.check import check
from psrt.job.recorded import recorded_config
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.job.shards import ServedJob, choose_shards, served_job, step_seconds
from psrt.runtime.job_codec import job_codec
from psrt.runtime.timing_only import TimingOnlyProblem
from psrt.simulation import SimulationCosts
from psrt.simulation.cost_flags import VirtualCosts
from support.cases import each

#: 784-512-512-10, as benchmarks take it: the last layer first.
_SIZES = (401_920, 262_656, 5_130)
N = sum(_SIZES)
LAYERS = tuple(Span(a, b) for a, b in pairwise((0, *accumulate(_SIZES))))[::-1]
#: Codecs of pushes, or of replies, too.
CODECS = {
    "sign": {"codec": "sign"},
    "sign both ways": {"codec": "sign", "codec_reply": "sign"},
    "int8 both ways": {"codec": "int8", "codec_reply": "int8"},
}
#: Of a link of 1 Gbit/s.
GIGABIT = replace(DEFAULT_COSTS, between=LinkCosts(5e-5, 8e-9, 1e-10))


def one_host(workers=2, servers=1, *, rounds=True, cores=2, n=N, parts=LAYERS, compute_s=2.6e-3):
    costs = replace(DEFAULT_COSTS, cores=cores)
    return ServedJob(n, [0] * workers, [0] * servers, parts, rounds, compute_s, costs)


def hosts(workers=4, servers=1, *, rounds=True, n=1 << 20, parts=(), compute_s=0.0, costs=GIGABIT):
    ranks = range(workers + servers)
    return ServedJob(n, ranks[:workers], ranks[workers:], parts, rounds, compute_s, costs)


def chosen(job):
    return choose_shards(job).shards


def test_on_one_host_a_shard_costs_more_than_it_gains_but_with_cores_for_everybody():
    """As measured: what the server does meanwhile is taken from a worker that all wait for.

    One that adds up while workers compute gains, if there is much to add up. Pushes keep workers
    from computing, even where each shard has a server, and a core, of its own.
    """
    assert chosen(one_host()) == chosen(one_host(rounds=False)) == 1
    assert step_seconds(one_host(), 2) > 1.03 * step_seconds(one_host(), 1)
    assert chosen(one_host(cores=3)) == 2
    assert chosen(one_host(cores=3, rounds=False)) == chosen(one_host(1)) == 1
    one, five = (step_seconds(one_host(1, each, n=5, parts=(), cores=8), 1) for each in (1, 5))
    assert five - one > 1.9e-4
    small = choose_shards(one_host(n=17_226, parts=()))
    assert (small.shards, small.why) == (1, "its 67.3 KiB are too small to split")


@each(("servers", "rounds"), [(1, True), (2, False), (4, True), (4, False)])
def test_between_hosts_pushes_and_replies_use_both_directions(servers, rounds):
    job = hosts(servers=servers, rounds=rounds)
    assert 4 <= chosen(job) <= 16
    bound = 4 * 4 * job.n / servers * 8e-9
    assert step_seconds(job, chosen(job)) < 1.25 * bound
    assert step_seconds(job, 1) > 1.4 * bound
    assert chosen(hosts(n=30_000)) == 1


@pytest.mark.parametrize("shards", [1, 2, 4, 8])
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    ("codecs", "workers", "compute_s"),
    [
        *((None, workers, seconds) for workers in (1, 2, 4) for seconds in (0.02, 0.1)),
        *((name, 4, seconds) for name in CODECS for seconds in (0.0, 0.02)),
    ],
)
@pytest.mark.one_in(9)
def test_the_simulator_agrees(codecs, workers, servers, shards, compute_s):
    n, steps = 1 << 20, 6
    layers = tuple(Span(a, a + (1 << 17)) for a in range(0, n, 1 << 17))[::-1]
    more = CODECS.get(codecs, {}) | {"servers": servers, "shards_per_server": shards}
    config = psrt.TrainConfig(mode="sync", steps=steps, **more)
    job = framed(config, compute_s, workers, layers)
    costs = SimulationCosts(
        compute=lambda *_: compute_s,
        latency=lambda _: 5e-5,
        bandwidth=1 / 8e-9,
        apply=lambda shard, nbytes, rng: nbytes * GIGABIT.node.byte_s,
    )
    problem = TimingOnlyProblem(n, batch_size=1, steps=steps, spans=layers)
    found = psrt.simulate(config, problem, workers=workers, costs=costs, numerics=False)
    # With a codec a shard's own time, 50 µs at each end, is not in the simulation.
    own = 5e-5 * (1 + workers) * shards * (codecs is not None)
    ratio = (step_seconds(job, shards) - own) / (found.seconds / steps)
    # Large messages share a real link; in the simulator they pass it one after the other, so that
    # who has received the first reply goes on earlier.
    least, most = (0.85, 1.15) if codecs is None else (0.8, 1.25)
    assert least < ratio < (1.45 if shards < 4 else most)


def framed(config, compute_s, workers=4, parts=(), costs=GIGABIT):
    """Return the job of a config between hosts."""
    config = psrt.resolve(config, ranks=workers + config.servers)
    ranks = range(workers + config.servers)
    job = served_job(
        config, 1 << 20, parts, ranks[workers:], ranks[:workers], costs=costs,
        codec=config.codec and job_codec(replace(config, codec_everywhere=True), ()),
    )  # fmt: skip
    return replace(job, compute_s=compute_s)


def test_frames_are_what_counts_and_not_their_numbers():
    """What takes no time on the wire need not overlap with it; encoding and decoding do."""
    dense, *coded = (
        choose_shards(framed(psrt.TrainConfig(mode="sync", servers=1, steps=1, **codecs), 0.0))
        for codecs in ({}, CODECS["sign both ways"], CODECS["sign"])
    )
    assert coded[0].shards < dense.shards
    assert "its 132 KiB 4.33 ms and a reply's 4 MiB 134 ms on the" in coded[1].why


BASE = {"mode": "sync", "hidden": (256, 256), "batch_size": 8, "steps": 4, "seed": 3}
SCENARIO = Scenario(workers=2, costs=VirtualCosts(compute="constant:0.01", link="5e-5:1.25e7"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose shards were chosen, its folder and its lines."""
    out, lines = tmp_path_factory.mktemp("runs") / "auto", []
    config = psrt.TrainConfig(**BASE, record=True, out=str(out))
    return run_in_virtual_time(config, SCENARIO, say=lines.append), out, lines


def test_the_choice_is_printed_recorded_and_checked(run):
    found, out, lines = run
    each, why = found.summary.shards_per_server, found.summary.shards_why
    assert each > 1
    assert f"shards: {each} per server, because {why}" in lines[:2]
    assert " ms is predicted instead of " in why
    history = read_history(out)
    assert history.header.config["shards_per_server"] == each
    assert len(history.header.spans) == each
    assert f"shards_per_server = {each}\n" in (out / "config.toml").read_text()
    summary = json.loads((out / "summary.json").read_text())
    assert check(history, summary=summary).ok
    assert not check(history, summary=summary | {"shards_per_server": each + 1}).ok


@pytest.mark.parametrize("changes", [{}, {"shards_per_server": "auto"}], ids=str)
def test_a_replay_takes_the_recorded_number(run, changes):
    found, out, _ = run
    again = run_in_virtual_time(recorded_config(out, **changes), SCENARIO).summary
    assert again.shards_per_server == found.summary.shards_per_server
    with pytest.raises(ConfigError, match="shards-per-server 1 instead of "):
        recorded_config(out, shards_per_server=1)
