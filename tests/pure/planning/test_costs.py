"""Predictions from single times, beside what follows from them by hand."""

from dataclasses import replace

import pytest

from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.collective.costs import LinkCosts
from psrt.config import TrainConfig, resolve
from psrt.core.errors import ConfigError
from psrt.planning.candidates import Candidate
from psrt.planning.families import CODED, FAMILIES, family_of
from psrt.planning.fitting import fitted
from psrt.planning.known import Known, ShortRun, Site, Workload
from psrt.planning.prediction import simulated_speed

#: Elements, samples of a batch, seconds of a gradient, and bytes per second of a link.
N, BATCH, GRADIENT_S, RATE = 1_000_000, 10, 0.02, 1e8


def known(hosts, *, machines=None, cores=None, **details):
    count = max(hosts) + 1
    link = LinkCosts(1e-6, 1 / RATE, 0.0)
    return Known(
        Workload(N, BATCH, ((GRADIENT_S,),)),
        Site(
            tuple(hosts),
            tuple(machines or range(count)),
            tuple(cores or [64] * count),
            replace(DEFAULT_COSTS, between=link),
        ),
        details={"local_s": GRADIENT_S + 1e-9, **details},
        apply={"sgd": 1e15},
    )


def speed(known, workers, **knobs):
    servers = knobs.pop("servers", 0)
    ranks = workers + servers
    config = resolve(TrainConfig(steps=1, servers=servers, batch_size=BATCH, **knobs), ranks=ranks)
    return simulated_speed(known, Candidate(config, servers, workers, known), 48)


@pytest.mark.parametrize(("cores", "workers"), [(1, 3), (2, 3), (2, 2), (4, 2)])
def test_ranks_share_the_cores_of_a_machine(cores, workers):
    slow = max(1, workers / cores)
    of_one_host = known([0] * workers, cores=[cores])
    found = speed(of_one_host, workers, mode="local-sgd:local_steps=48")
    assert found == pytest.approx(workers * BATCH / (slow * GRADIENT_S), rel=0.02)


def test_hosts_on_one_machine_share_its_cores():
    there = known([0, 1], machines=[0, 0], cores=[1])
    apart = known([0, 1], cores=[1, 1])
    mode = "local-sgd:local_steps=48"
    assert speed(apart, 2, mode=mode) == pytest.approx(2 * speed(there, 2, mode=mode), rel=0.05)


def test_a_ring_between_hosts_takes_what_its_bytes_take():
    step = GRADIENT_S + 2 * (2 / 3) * 4 * N / RATE
    found = speed(known([0, 1, 2]), 3, mode="allreduce", allreduce="ring")
    assert found == pytest.approx(3 * BATCH / step, rel=0.02)


def test_a_server_takes_one_push_after_another():
    found = speed(known([0, 1, 2, 3]), 3, mode="async", servers=1, shards_per_server=16)
    assert found == pytest.approx(3 * BATCH / (3 * 4 * N / RATE), rel=0.15)


def test_a_codec_is_in_effect_only_between_hosts():
    there, one = known([0, 1, 2, 2]), known([0, 0, 0, 0])
    job = {"mode": "sync", "servers": 1}
    codec = {"codec": "sign", "codec_reply": "sign"}
    assert speed(there, 3, **job, **codec) > 2 * speed(there, 3, **job)
    assert speed(one, 3, **job, **codec) == speed(one, 3, **job)


@pytest.mark.parametrize("slower", [0.8, 0.5])
def test_short_runs_are_predicted_once_their_factors_are_fitted(slower):
    before = known([0, 1, 2, 3], cores=[2, 2, 2, 2])
    config = TrainConfig()  # a script's, whose batches are others
    assert config.batch_size != BATCH
    runs = []
    for it in FAMILIES:
        if it.name == "alone" or it.codec or not it.is_possible(4 - it.servers):
            continue
        workers, shards = 4 - it.servers, 4 if it.servers else None
        usual = speed(
            before, workers, mode=it.mode, servers=it.servers, parallel=it.parallel,
            shards_per_server=shards,
        )  # fmt: skip
        runs.append(ShortRun(it.name, slower * usual, workers, shards_per_server=shards))
    after = fitted(replace(before, runs=tuple(runs)), config)
    families = {it.name: it for it in reversed(FAMILIES)}
    for run in runs:
        it = families[run.family]
        found = speed(
            after, run.workers, mode=it.mode, servers=it.servers, parallel=it.parallel,
            shards_per_server=run.shards_per_server,
        )  # fmt: skip
        assert found == pytest.approx(run.samples_per_s, rel=0.03), it.name


def test_a_codec_has_the_factor_of_its_own_run():
    job = {"mode": "sync", "servers": 1, "codec": "int8"}
    usual, slow = known([0, 1, 2]), known([0, 1, 2], **{"rest rounds int8": 100.0})
    assert speed(slow, 2, **job) < 0.8 * speed(usual, 2, **job)
    assert speed(slow, 2, mode="sync", servers=1) == speed(usual, 2, mode="sync", servers=1)


def test_every_mode_has_a_family_that_is_run():
    names = {it.name for it in FAMILIES}
    for mode in ("sync", "async", "ssp", "softsync", "allreduce", "local-sgd", "easgd", "gossip"):
        family = family_of(resolve(TrainConfig(mode=mode), ranks=4))
        assert family in names
        assert CODED.get(family, family) in names
    for split, family in ("pipeline:2", "stages"), ("pipeline:2,tensor:2", "slices"):
        assert family_of(resolve(TrainConfig(parallel=split), ranks=4)) == family


def test_what_is_known_survives_its_file():
    run = ShortRun("sums", 12.5, 3, codec="int8", algorithm="ring")
    it = replace(known([0, 1, 1], **{"rest sums": 1.25}), runs=(run,))
    assert Known.from_json(it.to_json()) == it


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"workload": 1, "site": 2}', "nan"])
def test_another_file_is_refused(text):
    with pytest.raises(ConfigError, match="planning has measured"):
        Known.from_json(text)


def test_ranks_beyond_the_cores_of_their_machine_take_longer():
    site = known([0, 0, 0, 1, 2], machines=[0, 1, 1], cores=[2, 1]).site
    assert site.crowding([0, 0]) == site.crowding([1]) == 1.0
    assert site.crowding([0, 0, 0]) == 1.5
    assert site.crowding(site.hosts) == 2.0  # hosts 1 and 2 are one machine
