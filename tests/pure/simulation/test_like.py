"""`psrt simulate --like` takes every sound run, and is as fast, as stale and as long as it was.

The runs are made in virtual time, whose costs are known, and their histories are those that the
same run over MPI would have.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from psrt import SimulationCosts, TrainConfig
from psrt.cli.like import parts_of, samples_of
from psrt.cli.simulate import parse_simulate
from psrt.config.modes import SSP, Sync
from psrt.core.partition import Span
from psrt.history import Header, read_history
from psrt.job.scenario import run_in_virtual_time
from psrt.job.virtual import simulate
from psrt.optim.table import Adam, Power, Sgd
from psrt.runtime.timing_only import TimingOnlyProblem
from psrt.simulation.calibration import calibrate
from psrt.simulation.cost_flags import VirtualCosts
from support.cases import also, each

#: Some milliseconds of computing, 0.2 ms a message, 0.5 ms an update of 1000 parameters.
COSTS = ("--compute", "lognormal:0.004:0.3", "--link", "2e-4:inf", "--server-apply", "8e6")
MODEL = ("--timing-only", "--parameters", "1000")

#: Every way to train, and what changes who sends what when, as flags.
MODES = {
    "serial": "--mode serial --workers 1",
    "sync, 2 servers": "--mode sync --workers 3 --servers 2",
    "backup": "--mode sync:backup=1 --workers 4",
    "async": "--mode async --workers 4",
    "async, drops": "--mode async --staleness-rate drop:limit=2 --workers 5",
    "async, 2 shards each": "--mode async --workers 3 --servers 2 --shards-per-server 2",
    "saturated": "--mode async --workers 16",
    "ssp": "--mode ssp:staleness=2 --workers 4",
    "softsync": "--mode softsync:k=2 --workers 4",
    "outer, servers": "--mode local-sgd:local-steps=4,outer=nesterov --servers 2 --workers 5",
    "allreduce": "--mode allreduce --allreduce ring --workers 4",
    "node": "--mode allreduce --allreduce node --workers 4",
    "no overlap": "--mode allreduce:overlap=false --allreduce tree --workers 4",
    "local": "--mode local-sgd:local-steps=4 --workers 4",
    "late": "--mode local-sgd:local-steps=4,sync-delay=3 --workers 4",
    "outer": "--mode local-sgd:local-steps=4,outer=nesterov --workers 4",
    "post-local, late":
        "--mode local-sgd:local-steps=4,post-local-epoch=1,sync-delay=3 --workers 4",
    "late fragments": "--mode local-sgd:local-steps=4,fragments=2,sync-delay=3 --workers 4",
    "eager fragments": "--mode local-sgd:local-steps=4,fragments=2,eager=true --workers 4",
}  # fmt: skip


def play(*words):
    """Simulate as the command line does."""
    return run_in_virtual_time(*parse_simulate(list(map(str, words))))


def record(folder, mode, *words):
    """Make a run with a history; return its summary."""
    length = () if "--epochs" in words else ("--steps", 80)
    given = (*mode.split(), *COSTS, *MODEL, *length, *words)
    return play(*given, "--record", "--out", folder).summary


def like(folder, *words):
    return play("--like", folder, *words).summary


# A model without layers, of some parameters, has no fragments.
@pytest.mark.parametrize("name", [it for it in MODES if "post" not in it and "frag" not in it])
@pytest.mark.one_in(9)
def test_what_is_like_a_run_is_as_fast_and_as_stale(tmp_path, name):
    for slow in ((), ("--inject", "0:delay:0.006")):
        run = tmp_path / str(len(slow))
        measured = record(run, MODES[name], *slow)
        predicted = like(run)
        # With backups it depends on who is overtaken how many steps are taken.
        near, same = (0.08, 0.08) if "backup" in name else (0.05, 0.0)
        rate = measured.samples_per_second
        assert predicted.samples_per_second == pytest.approx(rate, rel=near)
        if measured.staleness.mean is not None:
            mean = measured.staleness.mean
            assert predicted.staleness.mean == pytest.approx(mean, rel=0.05, abs=1e-2)
        assert (predicted.workers, predicted.servers) == (measured.workers, measured.servers)
        assert predicted.samples == pytest.approx(measured.samples, rel=same)
        # Under softsync each push is an update once the first worker has left, and how many come
        # after that is chance: of 16 seeds 161 to 168 updates, of runs and of what is like them.
        near = 0.05 if name == "softsync" else 0.03
        assert predicted.updates == pytest.approx(measured.updates, rel=near)


@dataclass(frozen=True)
class Erratic(VirtualCosts):
    """Messages that take very different times, on any link: as between busy processes."""

    #: Of a message.
    mean_s: float = 0.0

    def at(self, role_map, *, say=None):
        return SimulationCosts(
            compute=lambda rank, rng: 1e-3 * rng.lognormal(0.0, 0.3),
            latency=lambda rng: self.mean_s * rng.exponential(),
        )


def erratic(folder, flags, *, mean_s, crashes=()):
    """Make a run with a history in a folder; return its summary."""
    words = [*flags.split(), "--record", "--out", str(folder), "--timing-only"]
    config, scenario = parse_simulate(words)
    scenario = replace(scenario, costs=Erratic(mean_s=mean_s), crashes=crashes)
    return run_in_virtual_time(config, scenario).summary


@pytest.mark.parametrize("name", [it for it in MODES if it not in ("serial", "saturated")])
@pytest.mark.one_in(9)
def test_runs_whose_messages_overtake_one_another_can_be_imitated(tmp_path, name):
    """Their last batches are smaller, and some workers have no data in the end."""
    flags = f"{MODES[name]} --epochs 4 --dataset synthetic:650x4x3"
    # How fast a run of long messages is depends on the links, and it says nothing of those.
    for mean_s, near in ((1e-5, 0.04), (3e-3, 0.5)):
        folder = tmp_path / str(mean_s)
        measured = erratic(folder, flags, mean_s=mean_s)
        predicted = like(folder)
        if "backup" not in name:  # there it depends on who is overtaken
            assert predicted.samples == measured.samples
        rate = measured.samples_per_second
        assert predicted.samples_per_second == pytest.approx(rate, rel=near)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("local", "node"), ("outer", "ring"), ("late fragments", "node"), ("eager fragments", "ring")],
)
def test_what_follows_the_last_step_is_part_of_a_run(tmp_path, name, algorithm):
    """Sums of what is left, and one that says that nobody is training: of few steps, a third."""
    words = (*MODES[name].split(), "--allreduce", algorithm, "--steps", 6, "--timing-only")
    costs = ("--compute", "lognormal:0.001:0.2", "--link", "3e-4:1e8")
    measured = play(*words, *costs, "--record", "--out", tmp_path / "run")
    # Eager sums go on while steps do: what is seen of when they end is when they are taken.
    near = 0.2 if "eager" in name else 0.03
    assert like(tmp_path / "run").seconds == pytest.approx(measured.summary.seconds, rel=near)


@pytest.mark.parametrize(
    "flags",
    [
        "--mode async --codec int8 --codec-reply int8 --servers 2",
        "--mode allreduce:bucket-bytes=4096 --codec sign",
    ],
)
def test_a_recorded_time_has_that_of_codecs_in_it(tmp_path, flags):
    """So it is not spent twice; nor is a sum over as soon as its frames."""
    words = f"{flags} --hidden 64,64 --batch-size 8 --steps 20 --workers 3 --timing-only"
    costs = "--compute lognormal:0.001:0.2 --link 1e-5:1e8 --codec-speed"
    given = (*words.split(), *costs.split())
    took = play(*given, 0.05, "--record", "--out", tmp_path / "run").seconds
    assert took > 1.3 * play(*given, "inf").seconds
    assert like(tmp_path / "run").seconds == pytest.approx(took, rel=0.06)


def test_batches_are_as_large_as_those_of_the_run_whatever_its_batch_size(tmp_path):
    folder = tmp_path / "run"
    config = TrainConfig(mode="async", servers=1, record=True, out=str(folder), steps=15)
    problem = TimingOnlyProblem(6, batch_size=50, steps=10)
    measured = simulate(config, problem, workers=3, numerics=False).summary
    predicted = like(folder)
    assert (predicted.steps, predicted.samples) == (measured.steps, measured.samples)


def test_a_run_s_own_problem_comes_in_the_shards_that_it_pushed(tmp_path):
    for spans in ((Span(300, 400), Span(200, 300), Span(0, 200)), (Span(0, 400),)):
        config = TrainConfig(
            mode="async", shards_per_server=4, steps=3, record=True, overwrite=True,
            out=str(tmp_path / "run"),
        )  # fmt: skip
        problem = TimingOnlyProblem(400, batch_size=1, steps=3, spans=spans)
        simulate(config, problem, workers=1, numerics=False)
        found = parts_of(read_history(tmp_path / "run"))
        whole = len(spans) == 1
        assert found == (() if whole else (*spans[:2], Span(100, 200), Span(0, 100)))


#: A model of three layers, whose shards are pushed while it is computed.
LAYERS = ("--dataset", "synthetic:2000x784x10", "--hidden", "512,512", "--timing-only")


@dataclass(frozen=True)
class OverHosts(VirtualCosts):
    """Each rank on a host of its own."""

    def at(self, role_map, *, say=None):
        return replace(super().at(role_map), hosts=range(role_map.size))


def play_over_hosts(*words):
    """Simulate and record what the command line describes, each rank on a host of its own."""
    config, scenario = parse_simulate(list(map(str, words)))
    costs = scenario.costs
    costs = OverHosts(costs.compute, costs.link, costs.server_apply)
    run = run_in_virtual_time(config, replace(scenario, costs=costs))
    path = Path(config.out) / "history" / "header.json"
    header = Header.from_json(path.read_text())
    path.write_text(replace(header, hosts=tuple(range(len(header.hosts)))).to_json())
    return run


@pytest.mark.exhaustive
@pytest.mark.parametrize(("mode", "workers"), [("async", 1), ("ssp", 2)])
def test_what_more_shards_would_gain(tmp_path, mode, workers):
    """Of a run with one shard and with four, what each says of the other."""
    costs = ("--compute", "lognormal:0.02:0.1", "--link", "5e-5:3e8", "--server-apply", "2e9")
    runs = {}
    for shards in (1, 4, 8):
        words = ("--mode", mode, "--workers", workers, "--shards-per-server", shards, "--steps", 40)
        played = play_over_hosts(
            *words, *LAYERS, *costs, "--record", "--out", tmp_path / str(shards)
        )
        runs[shards] = played.summary.samples_per_second
    assert runs[4] > 1.05 * runs[1]
    for here in (1, 4):
        for there, rate in runs.items():
            found = like(tmp_path / str(here), "--shards-per-server", there)
            # Where two workers meet at the server by chance, they meet at other times.
            near = 0.06 if here == there else 0.1 if workers == 1 else 0.18
            assert found.samples_per_second == pytest.approx(rate, rel=near), (here, there)


@pytest.mark.parametrize(
    ("mode", "codec"), [("async", ("--codec", "float16", "--codec-everywhere")), also("sync", ())]
)
def test_a_run_over_hosts_is_as_fast_again(tmp_path, mode, codec):
    """Most of a step is bytes, which wait for those of other workers: that is charged once."""
    words = ("--mode", mode, "--workers", 2, "--servers", 2, *LAYERS, "--steps", 16, *codec)
    costs = ("--compute", "lognormal:0.002:0.4", "--link", "5e-5:1e8", "--server-apply", "2e9")
    run = play_over_hosts(*words, *costs, "--record", "--out", tmp_path / "run")
    found = like(tmp_path / "run").samples_per_second
    near = 0.1 if codec else 0.05
    assert found == pytest.approx(run.summary.samples_per_second, rel=near)
    wire = calibrate(read_history(tmp_path / "run")).wire
    assert (wire.workers, wire.servers) == ((2, 3), (0, 1))
    assert wire.bandwidth == pytest.approx(1e8, rel=0.05)


def test_flags_come_before_what_the_run_had(tmp_path):
    measured = record(tmp_path / "run", MODES["async"])
    ssp = like(tmp_path / "run", "--mode", "ssp:staleness=1", "--steps", 50)
    assert (ssp.mode, ssp.workers, ssp.steps) == ("ssp", 4, 50)
    assert ssp.samples == 50 * 4 * 32
    faster = like(tmp_path / "run", "--compute", "constant:0.0001")
    assert faster.samples_per_second > 1.5 * measured.samples_per_second
    wide = like(tmp_path / "run", "--workers", 8, "--server-apply", "inf")
    assert wide.workers == 8
    assert wide.samples_per_second > 1.5 * measured.samples_per_second


def test_what_no_longer_means_anything_is_left_out(tmp_path):
    """Delays are in the run's times already; knobs of another mode have no effect."""
    rates = ("--staleness-rate", "power:power=0.7", "--optimizer", "adam")
    record(tmp_path / "run", MODES["ssp"], *rates, "--inject", "1:delay:0.02")
    run = str(tmp_path / "run")
    config, _ = parse_simulate(["--like", run])
    assert (config.mode, config.staleness_rate, config.optimizer) == (SSP(2), Power(0.7), Adam())
    assert not config.inject
    words = ["--like", run, "--mode", "sync", "--optimizer", "sgd", "--inject", "0:delay:1"]
    config, _ = parse_simulate(words)
    assert (config.mode, config.staleness_rate, config.lr) == (Sync(), None, None)
    assert (config.optimizer, len(config.inject)) == (Sgd(), 1)
    config, _ = parse_simulate(["--like", run, "--mode", "local-sgd", "--servers", "0"])
    assert (config.servers, config.placement) == (0, None)


@each(
    ("length", "samples"),
    [("--epochs 1", 200), ("--epochs 0.5", 2 * 64), ("--steps 3", 3 * 64), ("--epochs 3", 600)],
)
def test_runs_of_epochs_and_of_less_are_as_long(tmp_path, length, samples):
    run = tmp_path / length
    words = ("--mode", "sync", "--workers", 2, "--dataset", "synthetic:200x4x3", *length.split())
    measured = play(*words, *COSTS, "--record", "--out", run).summary
    assert like(run).samples == measured.samples == samples
    if length == "--epochs 3":
        assert samples_of(read_history(run)) == 200
        assert like(run, "--epochs", 5, "--batch-size", 16).samples == 5 * 200
