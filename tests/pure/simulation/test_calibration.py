"""Costs of virtual time: known ones come back from a history, and what flags say is drawn."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

import psrt
from psrt.cli.simulate import parse_simulate
from psrt.config import TrainConfig
from psrt.core.errors import ConfigError
from psrt.core.messages import Leave, Params, Push
from psrt.core.partition import Span
from psrt.history import EVENT, EventLog, History, Kind, read_history
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.job.virtual import simulate
from psrt.simulation.calibration import Calibration, RecordedCosts, ShardTimes, calibrate
from psrt.simulation.calibration.servers import ServerTimeline
from psrt.simulation.calibration.track import Receipts, Track
from psrt.simulation.calibration.workers import computing, rounds
from psrt.simulation.cost_flags import VirtualCosts
from psrt.simulation.distributions import FORMS, read_compute
from psrt.transport import RoleMap
from support.cases import each

#: Some milliseconds of computing, 0.2 ms a message, 0.5 ms an update of 1000 parameters.
COSTS = "--compute lognormal:0.004:0.3 --link 2e-4:inf --server-apply 8e6"
STEPS = 120
ASYNC = "--mode async --workers 4"
NODE = "--mode allreduce --allreduce node --workers 4 --inject 1:jitter:0.01"


def record(folder, flags):
    """Make a run with a history in virtual time, and return what that tells."""
    words = f"{COSTS} --timing-only --parameters 1000 --steps {STEPS} {flags} --record".split()
    run_in_virtual_time(*parse_simulate([*words, "--out", str(folder)]))
    return read_history(folder)


def test_known_costs_come_back(tmp_path):
    history = record(tmp_path, "--mode async --workers 1 --compute normal:0.004:0.001")
    times = calibrate(history)
    [compute], [reply], [shard] = times.compute, times.reply, times.shards
    assert len(compute) == len(reply) == STEPS
    assert compute.mean() == pytest.approx(0.004, rel=0.05)
    assert compute.std() == pytest.approx(0.001, rel=0.1)
    np.testing.assert_allclose(reply, 2e-4, rtol=1e-6)
    np.testing.assert_allclose(shard.wake_up[0], 2e-4, rtol=1e-6)  # with one worker it always waits
    assert np.isnan(shard.turnaround[0]).all()
    assert list(shard.update) == [1]
    np.testing.assert_allclose(shard.update[1], 4 * 1000 / 8e6, rtol=1e-6)
    [events] = history.shards
    told = events[events["kind"] == Kind.APPLY]["seconds"]
    np.testing.assert_allclose(told, shard.update[1], rtol=1e-6)


def test_every_worker_has_its_own_times(tmp_path):
    flags = "--mode sync --workers 4 --inject 2:delay:0.01 --compute constant:0.004"
    times = calibrate(record(tmp_path, flags))
    means = [float(seconds.mean()) for seconds in times.compute]
    assert means == pytest.approx([0.004, 0.004, 0.014, 0.004], rel=1e-6)
    assert times.text().startswith("a gradient 6.5 ms, a message to an idle server 0.2 ms, ")
    assert times.text().endswith("an update 2 ms, a reply 0.2 ms")


def test_an_update_is_known_by_how_many_gradients_go_into_it(tmp_path):
    [shard] = calibrate(record(tmp_path, "--mode softsync:k=2 --workers 4")).shards
    assert set(shard.update) == {1, 2}
    assert len(shard.update[1]) >= len(shard.update[2]) - 1  # one is kept, then both are applied
    for gradients, seconds in shard.update.items():
        np.testing.assert_allclose(seconds, gradients * 5e-4, rtol=1e-6)


def test_a_reply_takes_from_the_last_shards_decision_on(tmp_path):
    history = record(tmp_path, "--mode async --workers 3 --servers 2 --parameters 1201")
    for reply in calibrate(history).reply:  # of 601 and 600
        np.testing.assert_allclose(reply, 2e-4, rtol=1e-6)


def test_a_server_that_is_busy_has_not_waited(tmp_path):
    [shard] = calibrate(record(tmp_path, "--mode async --workers 16")).shards
    wake_up = np.isfinite(np.concatenate(shard.wake_up)).sum()
    turnaround = np.concatenate(shard.turnaround)
    assert wake_up < 0.05 * np.isfinite(turnaround).sum()
    assert np.nanmax(turnaround) <= 2e-4  # at most what a message takes that was sent before
    assert np.nanmedian(turnaround) < 1e-9


def test_a_sum_takes_what_it_takes_after_the_last_worker(tmp_path):
    times = calibrate(record(tmp_path, f"{NODE} --check-every 0"))
    assert len(times.sums) == STEPS
    np.testing.assert_allclose(times.sums, 2 * 2e-4, rtol=1e-6)  # two meetings


def test_histories_that_cannot_be_are_refused(tmp_path):
    history = record(tmp_path, ASYNC)
    first, *others = history.workers
    idle = tuple(events[events["kind"] == Kind.LEAVE] for events in history.workers)
    header = dataclasses.replace(history.header, simulated=False, crashes=(1,))
    for line, change in (
        (
            "no gradient was computed",
            {"workers": idle, "shards": [it[:0] for it in history.shards]},
        ),
        ("received a message of worker 0 that it did not", {"workers": (first[:100], *others)}),
        ("worker 1 was lost in the run", {"header": header}),
    ):
        with pytest.raises(ConfigError, match=line):
            calibrate(dataclasses.replace(history, **change))


def on_two_hosts(history, *, gains=0.0):
    """Return a history whose last worker is on another host, whose clock gains as much a second.

    When the run began it was an hour ahead, which its times do not show any more.
    """
    hosts = (*(0 for _ in history.header.hosts[1:]), 1)
    *others, last = history.workers
    ahead = last.copy()
    ahead["time"] *= 1 + gains
    clocks = ((0, 0.0, 0.0, 0.0), (1, 0.0, 3600.0, 1e-5))
    clocks += ((0, 100.0, 0.0, 0.0), (1, 100.0 * (1 + gains), 3600.0 + 100.0 * gains, 1e-5))
    header = dataclasses.replace(history.header, hosts=hosts, clocks=clocks)
    return dataclasses.replace(history, header=header, workers=(*others, ahead))


@pytest.mark.parametrize("gains", [0.0, -0.5])
def test_messages_between_hosts_are_timed_by_one_clock(tmp_path, gains):
    def all_times(history):
        found = calibrate(history)
        of_shards = [it for shard in found.shards for it in (*shard.wake_up, *shard.turnaround)]
        return np.concatenate([*found.compute, *found.reply, *of_shards])

    here = record(tmp_path, ASYNC)
    there = all_times(on_two_hosts(here, gains=gains))
    np.testing.assert_allclose(there, all_times(here), atol=1e-9)


def test_a_death_in_a_run_does_not_shift_what_others_sent(tmp_path):
    history = record(tmp_path, f"{ASYNC} --crash 1:0.12")
    times = calibrate(history)
    assert len(times.compute[1]) < 0.5 * STEPS
    wake_up = np.concatenate(times.shards[0].wake_up)
    np.testing.assert_allclose(wake_up[np.isfinite(wake_up)], 2e-4, rtol=1e-6)


def test_a_track_is_read_in_a_circle():
    track = Track([np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0])], workers=4)
    assert [track.at(0, step) for step in range(6)] == [1.0, 2.0, 3.0, 4.0, 1.0, 2.0]
    assert [track.at(2, step) for step in range(4)] == [3.0, 4.0, 1.0, 2.0]  # half a circle on
    assert [track.at(3, step) for step in range(3)] == [6.0, 5.0, 6.0]


def test_what_is_not_known_of_a_worker_is_its_own_median():
    slow = np.array([np.nan, 0.9, np.nan, 0.7])
    track = Track([np.full(9, 0.1), slow, np.full(2, np.nan)], workers=3)
    assert [track.at(1, step) for step in range(4)] == pytest.approx([0.8, 0.9, 0.8, 0.7])
    assert track.at(2, 0) == pytest.approx(0.1)  # or everybody's, where nothing is known


def test_what_is_deferred_is_taken_once():
    wake_up, turnaround = (
        np.array([0.1, np.nan, np.nan, 0.3]),
        np.array([np.nan, 0.02, 0.04, np.nan]),
    )
    receipts = Receipts(ShardTimes((wake_up,), (turnaround,), {}, 10), workers=1)
    assert receipts.at(0, 0, idle=True) == 0.1  # as it was
    assert receipts.at(0, 1, idle=True) == pytest.approx(0.2)  # nothing deferred: the median
    assert receipts.at(0, 3, idle=False) == 0.02  # step 1's, which was not taken
    assert receipts.at(0, 2, idle=True) == 0.3  # step 3's


def test_a_server_takes_in_another_order_than_was_sent():
    """It had waited for the first, and was not busy before it took the second up."""
    server = np.zeros(4, EVENT)
    server["kind"] = [Kind.RECEIVE, Kind.APPLY, Kind.RECEIVE, Kind.APPLY]
    server["worker"] = [1, 1, 0, 0]
    server["version"] = [0, 1, 0, 2]
    server["samples"] = 32
    server["time"] = [1.5, 1.7, 1.8, 2.1]
    pushes = np.zeros(2, EVENT)
    pushes["kind"], pushes["worker"], pushes["time"] = Kind.PUSH, [0, 1], [1.0, 1.1]
    header = SimpleNamespace(spans=((0, 10),))
    history = History(header, (pushes[:1], pushes[1:]), (server,), pushes[:0])
    found = ServerTimeline(history, [0], {}).times[0]
    np.testing.assert_allclose(found.wake_up[0], [0.5])  # by the one that came first
    np.testing.assert_allclose(found.turnaround[0], [0.1])
    assert np.isnan([*found.wake_up[1], *found.turnaround[1]]).all()
    np.testing.assert_allclose(found.update[1], [0.2, 0.3])


def test_an_update_is_over_when_it_has_been_read():
    """Its server may be kept from writing that down: by who has read it, and computes."""
    server = np.zeros(5, EVENT)
    server["kind"] = [Kind.RECEIVE, Kind.APPLY, Kind.REPLY, Kind.RECEIVE, Kind.APPLY]
    server["clock"] = [0, 0, 1, 1, 1]
    server["version"] = [0, 1, 1, 1, 2]
    server["samples"] = 32
    server["time"] = [1.5, 2.5, 2.5, 2.6, 2.8]
    pushes = np.zeros(2, EVENT)
    pushes["kind"], pushes["clock"], pushes["time"] = Kind.PUSH, [0, 1], [1.4, 2.2]
    pushes["version"] = [0, 1]
    header = SimpleNamespace(spans=((0, 10),))
    history = History(header, (pushes,), (server,), pushes[:0])
    found = ServerTimeline(history, [0], {(0, 1): 2.0})
    assert found.replied == {(0, 1): 2.0}
    np.testing.assert_allclose(found.times[0].update[1], [0.5, 0.2])
    np.testing.assert_allclose(found.times[0].wake_up[0], [0.1, 0.4])  # it was away from its core


def test_a_sum_is_not_over_before_the_last_worker_has_come():
    """Though another may go on: all parts of the gradient were on their way."""
    workers = []
    for came, went in ((1.0, 1.5), (2.0, 2.1)):
        events = np.zeros(4, EVENT)
        events["kind"] = [Kind.STEP, Kind.REDUCE, Kind.REDUCED, Kind.STEP]
        events["clock"], events["samples"], events["weight"] = [0, 0, 0, 1], 32, 1.0
        events["time"] = [came, came, went, 3.0]
        workers.append(events)
    header = SimpleNamespace(hosts=(0, 0))
    took, _, over = rounds(History(header, tuple(workers), (), workers[0][:0]))
    assert (took.tolist(), over.tolist()) == ([0.0], [2.0])
    assert [computing(events, over)[1] for events in workers] == [1.0, 1.0]


def test_messages_that_wait_are_taken_up_in_turn(tmp_path):
    """As a rank does that looks at its peers one after another; else it is by arrival."""
    config = psrt.TrainConfig(mode="async", steps=5, batch_size=1)

    def takes(**given):
        costs = psrt.SimulationCosts(
            compute=lambda rank, rng: 0.01, latency=lambda rng: 0.0, **given
        )
        path = tmp_path / f"{len(given)}.npy"
        with EventLog(path) as log:
            simulate(config, workers=3, costs=costs, numerics=False, log=log)
        events = np.load(path)
        return events["worker"][events["kind"] == Kind.RECEIVE].tolist()

    in_turn = takes(receive=lambda rank, message, idle, rng: 1e-4 * isinstance(message, Push))
    assert in_turn[:12] == [0, 1, 2] * 4
    assert takes()[:12] != in_turn[:12]


def test_local_steps_take_until_they_are_shared():
    """As the last one's, the time counts that it takes to get the parameters ready."""
    kinds = [Kind.READ, Kind.STEP, Kind.STEP, Kind.PUSH, Kind.READ, Kind.STEP, Kind.PUSH]
    events = np.zeros(len(kinds), EVENT)
    events["kind"], events["samples"] = kinds, 32
    events["clock"] = [0, 0, 1, 0, 1, 2, 1]
    events["time"] = [1.0, 1.2, 1.5, 1.6, 2.0, 2.7, 2.8]
    np.testing.assert_allclose(computing(events, np.zeros(0)), [0.2, 0.4, 0.8])


def test_costs_are_those_of_the_step(tmp_path):
    times = calibrate(record(tmp_path, "--mode async --workers 3 --servers 2"))
    role_map = RoleMap(20, workers=(2, 3, 4), servers=(0, 1), spans=(Span(0, 10), Span(10, 20)))
    costs, rng = RecordedCosts(times, role_map).costs(), np.random.default_rng(0)
    for clock in range(5):
        assert costs.compute(3, rng) == times.compute[1][clock]
        for server in (0, 1):
            push, shard = Push(1, clock, 0, 32, 0.0, server), times.shards[server]
            for idle, seconds in ((True, shard.wake_up[1]), (False, shard.turnaround[1])):
                if np.isfinite(seconds[clock]):
                    assert costs.receive(server, push, idle, rng) == seconds[clock]
        replies = [Params(server, 1, clock + 1, 0, 0.0, -1, -1.0) for server in (0, 1)]
        assert costs.receive(3, replies[1], True, rng) == 0.0  # it goes on with the last one
        assert costs.receive(3, replies[0], True, rng) == times.reply[1][clock]
    # Who leaves after three steps says 3, and its last push was that of clock 2.
    idle = bool(np.isfinite(times.shards[0].wake_up[1][2]))
    took = (times.shards[0].wake_up if idle else times.shards[0].turnaround)[1][2]
    costs = RecordedCosts(times, role_map).costs()
    assert costs.receive(0, Leave(1, 3, 0), idle, rng) == took


def no_times(**given):
    nothing = np.zeros(0)
    return dataclasses.replace(Calibration((np.ones(1),), (nothing,), (), nothing), **given)


def test_gradients_that_the_run_did_not_work_in_at_once_are_in_proportion():
    shard = ShardTimes((np.ones(1),), (np.ones(1),), {2: np.array([0.5])}, 10)
    role_map = RoleMap(20, workers=(1,), servers=(0,), spans=(Span(0, 20),))
    costs = RecordedCosts(no_times(shards=(shard,)), role_map).costs()
    rng = np.random.default_rng(0)
    assert costs.apply(0, 4 * 20 * 2, rng) == pytest.approx(1.0)  # twice as long a span
    assert costs.apply(0, 4 * 20 * 3, rng) == pytest.approx(1.5)


def draws(text, count=20_000, worker=0, seed=0):
    rng = np.random.default_rng(seed)
    draw = read_compute(text)
    return np.array([draw(worker, rng) for _ in range(count)])


def test_laws_have_the_moments_that_their_numbers_say():
    assert {*draws("constant:0.25", 10)} == {0.25}
    normal = draws("normal:2:0.5")
    assert (normal.mean(), normal.std()) == pytest.approx((2, 0.5), rel=0.03)
    lognormal = draws("lognormal:2:0.5")
    assert np.median(lognormal) == pytest.approx(2, rel=0.03)
    assert np.log(lognormal).std() == pytest.approx(0.5, rel=0.03)
    assert draws("exponential:2").mean() == pytest.approx(2, rel=0.03)
    pareto = draws("pareto:2:3")
    assert pareto.min() == pytest.approx(2, rel=0.01)
    assert np.median(pareto) == pytest.approx(2 * 2 ** (1 / 3), rel=0.03)


def test_nothing_takes_less_than_no_time_nor_for_ever():
    cut = draws("normal:1:5")
    assert cut.min() == 0.0
    assert 0.3 < (cut == 0.0).mean() < 0.5
    for text in ("pareto:1e6:0.1", "lognormal:1e6:20"):
        assert np.isfinite(draws(text)).all()


@each("form", FORMS[:-1])
def test_every_law_takes_its_numbers_and_no_others(form):
    kind, *names = form.split(":")
    numbers = ["1"] * len(names)
    assert draws(":".join([kind, *numbers]), 3).min() >= 0
    for wrong in (numbers[:-1], [*numbers, "1"], ["x", *numbers[1:]], ["nan", *numbers[1:]]):
        with pytest.raises(ConfigError, match=rf"^compute .*{form}"):
            read_compute(":".join([kind, *wrong]))


@each(
    ("cost", "text"),
    [
        *(("compute", it) for it in ("", "run", "CONSTANT:1", "gauss:1:1", "constant:1_0")),
        *((cost, it) for cost in ("link", "server_apply") for it in ("0", "nan", "0.5", "fast")),
    ],
)
def test_costs_that_cannot_be(cost, text):
    says = {
        "compute": "^compute ",
        "link": r"^link must be .*BYTES_PER_S from 1 to inf, ",
        "server_apply": r"^server-apply must be BYTES_PER_S, BYTES_PER_S ",
    }
    with pytest.raises(ConfigError, match=says[cost]):
        VirtualCosts(**{cost: f"0:{text}" if cost == "link" else text})


def test_costs_of_a_wiring():
    rng = np.random.default_rng(0)
    role_map = RoleMap(9, workers=(1, 2), servers=(0,))
    costs = VirtualCosts("constant:0.5", "0.25:8", "4").at(role_map)
    assert (costs.compute(2, rng), costs.latency(rng), costs.bandwidth) == (0.5, 0.25, 8.0)
    assert costs.apply is not None
    assert costs.apply(0, 12, rng) == 3.0
    free = VirtualCosts(link="0:inf", server_apply="inf").at(role_map)
    assert (free.bandwidth, free.apply) == (math.inf, None)


@pytest.fixture(scope="module", params=[{"mode": "ssp", "servers": 2}, {"mode": "allreduce"}])
def recorded(request, tmp_path_factory):
    """Return the folder of a run of 3 workers, of which worker 1 is delayed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = TrainConfig(
        **request.param, steps=4, batch_size=3, inject=["1:delay:0.5"], out=str(folder),
        record=True, dataset="synthetic:60x3x2", hidden=(),
    )  # fmt: skip
    run_in_virtual_time(config, Scenario(3, VirtualCosts("exponential:0.01")))
    return folder


def test_worker_i_draws_from_what_worker_i_of_a_run_took(recorded):
    pools = [set(draws(f"run:{recorded}", 200, worker)) for worker in range(6)]
    for worker, pool in enumerate(pools):
        assert len(pool) == 4
        assert (min(pool) >= 0.5) == (worker % 3 == 1)
        assert pool == pools[worker % 3]
