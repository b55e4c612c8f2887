"""What a history says of times: known costs come back, and a simulation like a run is like it.

All runs here are in virtual time, whose costs are known and whose histories are like those of MPI.
"""

import dataclasses
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import psrt
from psrt.cli.like import parts_of, samples_of
from psrt.cli.simulate import parse_simulate
from psrt.errors import ConfigError
from psrt.history import EVENT, EventLog, Header, History, Kind, read_history
from psrt.job.scenario import run_in_virtual_time
from psrt.job.virtual import simulate
from psrt.messages import Params, Push
from psrt.partition import Span
from psrt.runtime.timing_only import TimingOnlyProblem
from psrt.simulation import SimulationCosts, Simulator
from psrt.simulation.calibration import Calibration, RecordedCosts, ShardTimes, calibrate
from psrt.simulation.calibration.servers import ServerTimeline
from psrt.simulation.calibration.track import Receipts, Track
from psrt.simulation.calibration.workers import computing, rounds
from psrt.simulation.cost_flags import VirtualCosts
from psrt.transport import RoleMap
from support.cases import pairs

pytestmark = pytest.mark.slow

#: Some milliseconds of computing, 0.2 ms a message, 0.5 ms an update of 1000 parameters.
COSTS = ("--compute", "lognormal:0.004:0.3", "--link", "2e-4:inf", "--server-apply", "8e6")
MODEL = ("--timing-only", "--parameters", "1000")
STEPS = 300

#: Every way to train, as flags.
MODES = {
    "serial": "--mode serial --workers 1",
    "sync": "--mode sync --workers 4",
    "sync, 2 shards": "--mode sync --workers 3 --servers 2",
    "sync, 3 shards of one": "--mode sync --workers 3 --shards-per-server 3",
    "backup": "--mode sync --backup 1 --workers 4",
    "async": "--mode async --workers 4",
    "async, 2 shards": "--mode async --workers 3 --servers 2",
    "async, 2 shards each": "--mode async --workers 3 --servers 2 --shards-per-server 2",
    "async, one worker": "--mode async --workers 1",
    "saturated": "--mode async --workers 16",
    "ssp": "--mode ssp --staleness 2 --workers 4",
    "softsync": "--mode softsync --softsync 2 --workers 4",
    "allreduce": "--mode allreduce --allreduce ring --workers 4",
    "node": "--mode allreduce --allreduce node --workers 4",
    "local-sgd": "--mode local-sgd --local-steps 4 --workers 4",
    "local-sgd, server": "--mode local-sgd --local-steps 4 --servers 1 --workers 4",
    "local-sgd, late": "--mode local-sgd --local-steps 4 --sync-delay 3 --workers 4",
    "local-sgd, waited for": "--mode local-sgd --local-steps 1 --sync-delay 1 --workers 9",
    "local-sgd, eager": "--mode local-sgd --local-steps 4 --eager --workers 4",
}


def play(*words):
    """Simulate as the command line does."""
    return run_in_virtual_time(*parse_simulate(list(map(str, words))))


def record(folder, mode, *words):
    """Make a run with a history; return its summary."""
    given = (*mode.split(), *COSTS, *MODEL, "--steps", STEPS, *words)
    return play(*given, "--record", "--out", folder).summary


def like(folder, *words):
    return play("--like", folder, *words).summary


@pytest.mark.parametrize(
    ("mode", "slow"), pairs(MODES, [(), ("--inject", "0:delay:0.006")], one_in=2)
)
@pytest.mark.one_in(3)
def test_what_is_like_a_run_is_as_fast_and_as_stale(tmp_path, mode, slow):
    measured = record(tmp_path / "run", MODES[mode], *slow)
    predicted = like(tmp_path / "run")
    # With backups it depends on who is overtaken how many steps are taken.
    near, same = (0.05, 0.05) if "backup" in mode else (0.03, 0.0)
    assert predicted.samples_per_second == pytest.approx(measured.samples_per_second, rel=near)
    if measured.staleness.mean is not None:
        assert predicted.staleness.mean == pytest.approx(measured.staleness.mean, rel=0.03)
    assert (predicted.workers, predicted.servers) == (measured.workers, measured.servers)
    assert predicted.samples == pytest.approx(measured.samples, rel=same)
    assert predicted.updates == pytest.approx(measured.updates, rel=0.02)


#: A model of three layers, whose shards are pushed while it is computed.
LAYERS = ("--dataset", "synthetic:2000x784x10", "--hidden", "512,512", "--timing-only")
ONE_HOST = ("--compute", "lognormal:0.004:0.1", "--link", "1e-5:inf", "--server-apply", "2e9")
HOSTS = ("--compute", "lognormal:0.02:0.1", "--link", "5e-5:3e8", "--server-apply", "2e9")


@pytest.mark.parametrize(("mode", "workers"), pairs(["sync", "async", "ssp"], [1, 2], one_in=2))
@pytest.mark.parametrize("costs", [ONE_HOST, HOSTS], ids=["one host", "hosts"])
@pytest.mark.one_in(3)
def test_what_more_shards_would_gain(tmp_path, mode, workers, costs):
    """Of a run with one shard and with four, what each says of the other."""
    runs = {}
    for each in (1, 4, 8):
        words = ("--mode", mode, "--workers", workers, "--shards-per-server", each, "--steps", 60)
        given = (*words, *LAYERS, *costs, "--record", "--out", tmp_path / str(each))
        played = play_over_hosts(*given) if costs is HOSTS else play(*given)
        runs[each] = played.summary.samples_per_second
    assert runs[4] > 1.05 * runs[1]
    for here in (1, 4):
        for there, rate in runs.items():
            found = like(tmp_path / str(here), "--shards-per-server", there)
            # Where two workers meet at the server by chance, they meet at other times.
            near = 0.06 if here == there else 0.1 if workers == 1 or mode == "sync" else 0.15
            assert found.samples_per_second == pytest.approx(rate, rel=near), (here, there)


@dataclasses.dataclass(frozen=True)
class OverHosts(VirtualCosts):
    """Each rank on a host of its own."""

    def at(self, role_map, *, say=None):
        return dataclasses.replace(super().at(role_map), hosts=range(role_map.size))


def play_over_hosts(*words):
    """Simulate and record what the command line describes, each rank on a host of its own."""
    config, scenario = parse_simulate(list(map(str, words)))
    texts = (getattr(scenario.costs, name) for name in ("compute", "link", "server_apply"))
    run = run_in_virtual_time(config, dataclasses.replace(scenario, costs=OverHosts(*texts)))
    path = Path(config.out) / "history" / "header.json"
    header = Header.from_json(path.read_text())
    path.write_text(dataclasses.replace(header, hosts=tuple(range(len(header.hosts)))).to_json())
    return run


@pytest.mark.parametrize(("mode", "workers"), pairs(["sync", "async", "ssp"], [1, 2, 4], one_in=3))
@pytest.mark.one_in(3)
def test_a_run_over_hosts_is_as_fast_again(tmp_path, mode, workers):
    """Most of a step is bytes, which wait for those of other workers: that is charged once."""
    words = ("--mode", mode, "--workers", workers, "--servers", 2, *LAYERS, "--steps", 40)
    costs = ("--compute", "lognormal:0.002:0.4", "--link", "5e-5:1e8", "--server-apply", "2e9")
    run = play_over_hosts(*words, *costs, "--record", "--out", tmp_path / "run")
    found = like(tmp_path / "run").samples_per_second
    assert found == pytest.approx(run.summary.samples_per_second, rel=0.05)
    wire = times_of(tmp_path / "run").wire
    assert (wire.workers, wire.servers) == (tuple(range(2, 2 + workers)), (0, 1))
    assert wire.bandwidth == pytest.approx(1e8, rel=0.05)


def test_a_link_is_as_fast_for_frames_of_a_codec(tmp_path):
    words = ("--mode", "async", "--workers", 2, "--servers", 2, *LAYERS, "--steps", 40)
    costs = ("--compute", "lognormal:0.002:0.4", "--link", "5e-5:1e8", "--server-apply", "2e9")
    more = ("--codec", "float16", "--codec-everywhere")
    run = play_over_hosts(*words, *costs, *more, "--record", "--out", tmp_path / "run")
    assert times_of(tmp_path / "run").wire.bandwidth == pytest.approx(1e8, rel=0.05)
    found = like(tmp_path / "run").samples_per_second
    assert found == pytest.approx(run.summary.samples_per_second, rel=0.1)


def test_a_run_s_own_problem_comes_in_the_shards_that_it_pushed(tmp_path):
    config = psrt.TrainConfig(
        mode="async", shards_per_server=4, steps=3, record=True, out=str(tmp_path / "run")
    )
    for spans in ((Span(300, 400), Span(200, 300), Span(0, 200)), (Span(0, 400),)):
        problem = TimingOnlyProblem(400, batch_size=1, steps=3, spans=spans)
        costs = SimulationCosts(compute=lambda *_: 1.0)
        config = dataclasses.replace(config, overwrite=True)
        simulate(config, problem, workers=1, numerics=False, costs=costs)
        found = parts_of(read_history(tmp_path / "run"))
        whole = len(spans) == 1
        assert found == (() if whole else (*spans[:2], Span(100, 200), Span(0, 100)))


def test_getting_ready_is_no_part_of_training():
    """It is no part of what is predicted, either."""

    class Late(Simulator):
        def run(self, roles):
            self.time = 100.0
            return super().run(roles)

    config = psrt.TrainConfig(mode="async", steps=5, batch_size=1)
    run = simulate(config, workers=2, numerics=False, world=Late)
    assert all(0 < worker.seconds < 10 for worker in run.workers)


def test_another_run_is_not_alike(tmp_path):
    """What makes runs differ gets through: it is not that all of them come out the same."""
    fast = record(tmp_path / "fast", MODES["async"])
    slow = record(tmp_path / "slow", MODES["async"], "--compute", "lognormal:0.008:0.3")
    assert like(tmp_path / "fast").samples_per_second > 1.5 * slow.samples_per_second
    assert like(tmp_path / "slow").samples_per_second < 0.7 * fast.samples_per_second


def times_of(folder):
    return calibrate(read_history(folder))


def test_known_costs_come_back(tmp_path):
    record(tmp_path / "run", MODES["async, one worker"], "--compute", "normal:0.004:0.001")
    times = times_of(tmp_path / "run")
    [compute], [reply], [shard] = times.compute, times.reply, times.shards
    assert len(compute) == len(reply) == STEPS
    assert compute.mean() == pytest.approx(0.004, rel=0.05)
    assert compute.std() == pytest.approx(0.001, rel=0.1)
    np.testing.assert_allclose(reply, 2e-4, rtol=1e-6)
    np.testing.assert_allclose(shard.wake_up[0], 2e-4, rtol=1e-6)  # with one worker it always waits
    assert np.isnan(shard.turnaround[0]).all()
    assert list(shard.update) == [1]
    np.testing.assert_allclose(shard.update[1], 4 * 1000 / 8e6, rtol=1e-6)


def test_every_worker_has_its_own_times(tmp_path):
    record(
        tmp_path / "run", MODES["sync"], "--inject", "2:delay:0.01", "--compute", "constant:0.004"
    )
    compute = times_of(tmp_path / "run").compute
    means = [float(seconds.mean()) for seconds in compute]
    assert means == pytest.approx([0.004, 0.004, 0.014, 0.004], rel=1e-6)


def test_an_update_is_known_by_how_many_gradients_go_into_it(tmp_path):
    record(tmp_path / "run", MODES["softsync"])
    [shard] = times_of(tmp_path / "run").shards
    assert set(shard.update) == {1, 2}
    assert len(shard.update[1]) >= len(shard.update[2]) - 1  # one is kept, then both are applied
    for gradients, seconds in shard.update.items():
        np.testing.assert_allclose(seconds, gradients * 5e-4, rtol=1e-6)


def test_a_reply_takes_from_the_last_shards_decision_on(tmp_path):
    record(tmp_path / "run", MODES["async, 2 shards"], "--parameters", 1201)  # 601 and 600
    for reply in times_of(tmp_path / "run").reply:
        np.testing.assert_allclose(reply, 2e-4, rtol=1e-6)


def test_a_server_that_is_busy_has_not_waited(tmp_path):
    record(tmp_path / "run", MODES["saturated"])
    [shard] = times_of(tmp_path / "run").shards
    wake_up = np.isfinite(np.concatenate(shard.wake_up)).sum()
    turnaround = np.concatenate(shard.turnaround)
    assert wake_up < 0.05 * np.isfinite(turnaround).sum()
    assert np.nanmax(turnaround) <= 2e-4  # at most what a message takes that was sent before
    assert np.nanmedian(turnaround) < 1e-9


def test_a_sum_takes_what_it_takes_after_the_last_worker(tmp_path):
    record(tmp_path / "run", MODES["node"], "--inject", "1:jitter:0.01", "--check-every", 0)
    times = times_of(tmp_path / "run")
    assert len(times.sums) == STEPS
    np.testing.assert_allclose(times.sums, 2 * 2e-4, rtol=1e-6)  # two meetings


def test_what_is_simulated_again_is_the_same_to_the_bit(tmp_path):
    record(tmp_path / "run", MODES["ssp"])
    first, second = (replace(like(tmp_path / "run", "--seed", 3), environment={}) for _ in range(2))
    assert repr(first) == repr(second)  # with a loss of nan, which is no number of its own


def test_a_run_with_numbers_is_simulated_with_numbers_if_that_is_asked(tmp_path):
    words = ("--mode", "async", "--workers", 2, "--hidden", 8, "--epochs", 2, *COSTS)
    play(*words, "--record", "--out", tmp_path / "run")
    assert like(tmp_path / "run").test_accuracy is None
    assert like(tmp_path / "run", "--no-timing-only").test_accuracy > 0.3


def test_flags_come_before_what_the_run_had(tmp_path):
    measured = record(tmp_path / "run", MODES["async"])
    ssp = like(tmp_path / "run", "--mode", "ssp", "--staleness", 1, "--steps", 50)
    assert (ssp.mode, ssp.workers, ssp.steps, ssp.staleness.max) == (
        "ssp",
        4,
        50,
        ssp.staleness.max,
    )
    assert ssp.samples == 50 * 4 * 32
    faster = like(tmp_path / "run", "--compute", "constant:0.0001")
    assert faster.samples_per_second > 1.5 * measured.samples_per_second
    wide = like(tmp_path / "run", "--workers", 8, "--server-apply", "inf")
    assert wide.workers == 8
    assert wide.samples_per_second > 1.5 * measured.samples_per_second


def test_delays_of_a_run_are_in_its_times_and_not_injected_again(tmp_path):
    record(tmp_path / "run", MODES["async"], "--inject", "1:delay:0.02")
    config, _ = parse_simulate(["--like", str(tmp_path / "run")])
    assert not config.inject
    config, _ = parse_simulate(["--like", str(tmp_path / "run"), "--inject", "0:delay:1"])
    assert len(config.inject) == 1


def test_knobs_of_another_mode_are_left_out(tmp_path):
    rates = ("--staleness-rate", "power", "--staleness-power", "0.7", "--optimizer", "adam")
    record(tmp_path / "run", MODES["ssp"], *rates)
    run = str(tmp_path / "run")
    config, _ = parse_simulate(["--like", run])
    assert (config.staleness, config.staleness_power, config.beta1) == (2, 0.7, 0.9)
    config, _ = parse_simulate(["--like", run, "--mode", "sync", "--optimizer", "sgd"])
    assert (config.staleness, config.staleness_rate, config.staleness_power) == (None, None, None)
    assert (config.beta1, config.lr) == (None, None)
    config, _ = parse_simulate(["--like", run, "--mode", "local-sgd", "--servers", "0"])
    assert (config.servers, config.placement) == (0, None)
    with pytest.raises(ConfigError, match="--allreduce ring has no effect with --servers 1"):
        parse_simulate(["--like", run, "--mode", "local-sgd", "--allreduce", "ring"])


def test_epochs_are_as_long_as_in_the_run(tmp_path):
    words = ("--mode", "sync", "--workers", 3, "--dataset", "synthetic:200x4x3", "--epochs", 3)
    measured = play(*words, *COSTS, "--timing-only", "--record", "--out", tmp_path / "run").summary
    assert samples_of(read_history(tmp_path / "run")) == 200
    assert like(tmp_path / "run").samples == measured.samples == 3 * 200
    assert like(tmp_path / "run", "--epochs", 5).samples == 5 * 200
    assert like(tmp_path / "run", "--epochs", 1, "--batch-size", 16).samples == 200


@pytest.mark.parametrize(
    ("length", "samples"),
    [("--epochs 1", 200), ("--epochs 0.5", 2 * 64), ("--steps 3", 3 * 64), ("--steps 4", 200)],
)
def test_runs_of_an_epoch_and_less_are_as_long(tmp_path, length, samples):
    words = ("--mode", "sync", "--workers", 2, "--dataset", "synthetic:200x4x3", *length.split())
    measured = play(*words, *COSTS, "--record", "--out", tmp_path / "run").summary
    assert like(tmp_path / "run").samples == measured.samples == samples


@pytest.mark.parametrize(
    ("mode", "words", "message"),
    [
        (
            "async",
            ("--mode", "allreduce"),
            "the run had no sums over all workers, so it cannot tell",
        ),
        ("allreduce", ("--mode", "async"), "the run had no servers, so it cannot tell"),
        ("gossip", (), "no run can tell yet what averages among neighbours take: expected --comp"),
        ("allreduce", ("--mode", "gossip"), "no run can tell yet what averages among neighbours"),
        ("serial", ("--mode", "sync"), "the run had no servers, so it cannot tell"),
        ("async", ("--replay", "x"), "give --like or --replay, not both"),
        (
            "async",
            ("--no-timing-only",),
            "trained 1000 parameters, but the model of its config has",
        ),
    ],
)
def test_what_a_run_cannot_tell_is_refused(tmp_path, mode, words, message):
    record(tmp_path / "run", MODES.get(mode, f"--mode {mode} --workers 3"))
    with pytest.raises(ConfigError, match=message):
        like(tmp_path / "run", *words)


def test_a_run_without_gradients_is_refused(tmp_path):
    record(tmp_path / "run", MODES["async"])
    history = read_history(tmp_path / "run")
    idle = tuple(events[events["kind"] == Kind.LEAVE] for events in history.workers)
    nothing = tuple(events[:0] for events in history.shards)
    with pytest.raises(ConfigError, match="no gradient was computed"):
        calibrate(dataclasses.replace(history, workers=idle, shards=nothing))


def test_a_server_that_took_more_than_was_sent_is_refused(tmp_path):
    record(tmp_path / "run", MODES["async"])
    history = read_history(tmp_path / "run")
    first, *others = history.workers
    with pytest.raises(ConfigError, match="shard 0 received a message of worker 0 that it did not"):
        calibrate(dataclasses.replace(history, workers=(first[:100], *others)))


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


@pytest.mark.parametrize("gains", [0.0, 1e-3, -0.5])
def test_messages_between_hosts_are_timed_by_one_clock(tmp_path, gains):
    record(tmp_path / "run", MODES["async"])
    here = read_history(tmp_path / "run")
    found, wanted = calibrate(on_two_hosts(here, gains=gains)), calibrate(here)
    for name in ("compute", "reply"):
        for mine, theirs in zip(getattr(wanted, name), getattr(found, name), strict=True):
            np.testing.assert_allclose(theirs, mine, atol=1e-9)
    for mine, theirs in zip(wanted.shards, found.shards, strict=True):
        for name in ("wake_up", "turnaround"):
            for one, other in zip(getattr(mine, name), getattr(theirs, name), strict=True):
                np.testing.assert_allclose(other, one, atol=1e-9)


def test_sums_between_hosts_need_no_common_clock(tmp_path):
    record(tmp_path / "run", MODES["node"], "--inject", "1:jitter:0.01")
    history = read_history(tmp_path / "run")
    here, apart = calibrate(history), calibrate(on_two_hosts(history))
    np.testing.assert_allclose(apart.sums, here.sums, rtol=1e-4)
    for mine, theirs in zip(here.compute, apart.compute, strict=True):
        assert theirs.mean() == pytest.approx(mine.mean(), rel=0.05)


def test_a_death_in_a_run_does_not_shift_what_others_sent(tmp_path):
    record(tmp_path / "run", MODES["async"], "--crash", "1:0.3")
    times = times_of(tmp_path / "run")
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


@pytest.mark.parametrize("seed", range(4))
def test_messages_that_wait_are_taken_up_in_turn(tmp_path, seed):
    """As a rank does that looks at its peers one after another; else it is by arrival."""
    config = psrt.TrainConfig(mode="async", steps=5, batch_size=1)

    def takes(**given):
        costs = psrt.SimulationCosts(
            compute=lambda rank, rng: 0.01, latency=lambda rng: 0.0, **given
        )
        path = tmp_path / f"{len(given)}.npy"
        with EventLog(path) as log:
            simulate(config, workers=3, seed=seed, costs=costs, numerics=False, log=log)
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
    record(tmp_path / "run", MODES["async, 2 shards"])
    times = times_of(tmp_path / "run")
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


def test_the_means_are_told_in_a_line(tmp_path):
    record(tmp_path / "run", MODES["async, one worker"], "--compute", "constant:0.004")
    assert times_of(tmp_path / "run").text() == (
        "a gradient 4 ms, a message to an idle server 0.2 ms, to a busy one unknown, "
        "an update 0.5 ms, a reply 0.2 ms"
    )


def test_a_run_with_a_silent_worker_has_not_all_times(tmp_path):
    record(tmp_path / "run", MODES["async"])
    history = read_history(tmp_path / "run")
    header = dataclasses.replace(history.header, simulated=False, crashes=(1,))
    with pytest.raises(ConfigError, match="worker 1 went missing in it"):
        calibrate(dataclasses.replace(history, header=header))
