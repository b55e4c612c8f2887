"""Recorded runs repeated in one process: other delays, the same bits; and runs that cannot be."""

import json
import shutil

import numpy as np
import pytest

import psrt
from psrt import ConfigError, TrainConfig
from psrt.cli.flags import parse_train
from psrt.cli.simulate import parse_simulate
from psrt.config.modes import Async, Gossip
from psrt.core.errors import ReplayError
from psrt.history import read_history
from psrt.history.header import sealed
from psrt.history.pair_replay import PairScript
from psrt.job.recorded import recorded_config
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.simulation.cost_flags import VirtualCosts

BASE = {"dataset": "synthetic:400x6x3", "hidden": (5,), "batch_size": 4, "steps": 15, "lr": 0.05}
WORKERS = 3
ASYNC = {"mode": "async", "servers": 2, "hidden": ()}
#: Laws of computing: nothing that both have in common tells who is first.
THEN = VirtualCosts(compute="lognormal:0.001:0.5")
NOW = VirtualCosts(compute="exponential:0.002", link="0.01:1e5")


def recorded(out, flags, **more):
    """Record a run in virtual time."""
    workers = 1 if flags["mode"] == "serial" else WORKERS
    config = TrainConfig(**(BASE | flags | more), out=str(out), record=True)
    return run_in_virtual_time(config, Scenario(workers=workers, costs=THEN))


@pytest.fixture(scope="session")
def asynchronous(tmp_path_factory):
    """An asynchronous run: its folder, and what came out."""
    out = tmp_path_factory.mktemp("runs") / "async"
    return out, recorded(out, ASYNC, inject=["1:slow:2:3", "*:pause:4:0.5"])


@pytest.fixture
def copy(asynchronous, tmp_path):
    """A copy of its folder, to be damaged."""
    return shutil.copytree(asynchronous[0], tmp_path / "copy")


def replayed(folder, **more):
    workers = len(read_history(folder).header.workers)
    scenario = Scenario(workers=workers, costs=NOW)
    return run_in_virtual_time(recorded_config(folder, **more), scenario)


def test_the_graph_is_that_of_the_run_whatever_became_of_its_file(tmp_path):
    edges = tmp_path / "edges.txt"
    edges.write_text("0 1\n1 2")
    then = recorded(tmp_path / "run", {"mode": Gossip(topology=str(edges))})
    edges.write_text("0 1\n1 2\n2 0")
    again = replayed(tmp_path / "run")
    assert again.theta.tobytes() == then.theta.tobytes()
    edges.unlink()
    assert replayed(tmp_path / "run").theta.tobytes() == then.theta.tobytes()


def test_what_auto_chose_is_taken_again(tmp_path):
    """Three numbers are summed otherwise than thousands; both are as they were."""
    flags = {"mode": "allreduce", "hidden": (2000,), "schedule": "cosine", "steps": None}
    recorded(tmp_path / "run", flags, epochs=0.2)
    header = read_history(tmp_path / "run").header
    assert header.control_algorithm != header.algorithm
    simulated = psrt.simulate(recorded_config(tmp_path / "run"), workers=WORKERS)
    plan = simulated.workers[0].strategy.plan
    assert (plan.algorithm, plan.control_algorithm) == (header.algorithm, header.control_algorithm)


def test_what_a_row_leaves_open_is_as_it_was(tmp_path):
    recorded(tmp_path / "codec", {"mode": "sync", "codec": "random-k:density=0.5"})
    assert recorded_config(tmp_path / "codec", codec="random-k:density=0.5").replay
    with pytest.raises(ConfigError, match=r"codec random-k instead of random-k:density=0\.5"):
        recorded_config(tmp_path / "codec", codec="random-k")
    recorded(tmp_path / "run", {"mode": "allreduce:bucket-bytes=64"})
    for given in ("allreduce:bucket-bytes=64", "allreduce"):
        assert recorded_config(tmp_path / "run", mode=given).mode.name == "allreduce"
    recorded(tmp_path / "outer", {"mode": "local-sgd:outer=nesterov,sync-delay=2"})
    assert recorded_config(tmp_path / "outer", mode="local-sgd:outer=nesterov,sync-delay=2")
    with pytest.raises(ConfigError, match="mode local-sgd:sync-delay=2 instead of local-sgd:outer"):
        recorded_config(tmp_path / "outer", mode="local-sgd:sync-delay=2")
    told = "mode allreduce:overlap=false instead of allreduce:overlap=true,bucket-bytes=64$"
    with pytest.raises(ConfigError, match=told):
        recorded_config(tmp_path / "run", mode="allreduce:overlap=false")


def test_a_serial_run_is_repeated_without_virtual_time(tmp_path):
    lines = []
    config = TrainConfig(**BASE, mode="serial", out=str(tmp_path / "run"), record=True)
    run = psrt.run(config)
    again = psrt.run(recorded_config(tmp_path / "run"), say=lines.append)
    np.testing.assert_array_equal(again.theta, run.theta)
    assert lines[0] == f"replay of {tmp_path / 'run'}"
    sha256 = run.summary.parameters_sha256
    assert lines[-1] == f"replay: the same parameters to the bit (sha256 {sha256})"


def test_the_config_is_that_of_the_run(asynchronous):
    """But for delays, which are not repeated unless they are asked for."""
    out, _ = asynchronous
    config = parse_train(["--replay", str(out), "--log-every", "3", "--seed", "0"])
    assert config == recorded_config(out, log_every=3)
    assert (config.mode, config.servers, config.hidden, config.steps) == (Async(), 2, (), 15)
    assert (config.out, config.record, config.replay) == (None, False, str(out))
    assert config.inject == ()
    replayed(out, inject=["0:delay:0.05"])
    assert parse_simulate(["--replay", str(out)])[1].workers == WORKERS
    told = "would not be that run: mode ssp instead of async; lr 0.1 instead of 0.05$"
    with pytest.raises(ConfigError, match=told):
        parse_train(["--replay", str(out), "--mode", "ssp", "--lr", "0.1"])
    with pytest.raises(ConfigError, match="would not be that run: 2 workers instead of 3"):
        run_in_virtual_time(recorded_config(out), Scenario(workers=2))
    with pytest.raises(ConfigError, match="3 workers: start 5 ranks, not 1"):
        psrt.run(recorded_config(out))


def edit_header(run, **changes):
    path = run / "history/header.json"
    values = json.loads(path.read_text())
    config = changes.pop("config", {})
    values["config"] |= config
    path.write_text(sealed(values | changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"numpy": "1.0"}, "numpy .* instead of 1.0"),
        ({"code_sha256": "0" * 64}, r"other source code of psrt \(.* instead of 00000000\)"),
        ({"data_sha256": "0" * 64}, r"other training data \(.* instead of 00000000\)"),
        ({"initial_sha256": "0" * 64}, r"other initial parameters \(.* instead of 00000000\)"),
        ({"n": 5}, r"\d+ parameters instead of 5"),
    ],
)
def test_a_run_of_something_else(copy, changes, told):
    edit_header(copy, **changes)
    with pytest.raises(ConfigError, match=f"would not be that run: {told}$"):
        replayed(copy)


def test_one_that_is_edited_on_both_sides_comes_to_something_else(copy):
    edit_header(copy, config={"lr": 0.25})
    (copy / "config.toml").unlink()
    with pytest.raises(ReplayError, match=r"ended with other parameters: sha256 .* instead of"):
        replayed(copy)


def test_it_is_not_written_over(asynchronous):
    out, _ = asynchronous
    before = (out / "summary.json").read_text()
    with pytest.raises(ConfigError, match="would overwrite --replay"):
        replayed(out, out=str(out / "history/.."), overwrite=True)
    assert (out / "summary.json").read_text() == before


@pytest.mark.parametrize(
    ("scenario", "told"),
    [
        ({"numerics": False}, "simulated without numerics"),
        ({"crashes": ((1, 0.005),)}, "worker 1 died in it, which a replay cannot repeat"),
    ],
)
def test_what_cannot_be_had_again(asynchronous, tmp_path, scenario, told):
    config = TrainConfig(**BASE, mode="async", out=str(tmp_path / "run"), record=True)
    run_in_virtual_time(config, Scenario(workers=2, **scenario))
    with pytest.raises(ConfigError, match=told):
        psrt.simulate(recorded_config(tmp_path / "run"), workers=2)
    now = Scenario(workers=WORKERS, **scenario)
    with pytest.raises(ConfigError, match="cannot be combined with --replay"):
        run_in_virtual_time(recorded_config(asynchronous[0]), now)


def test_a_void_offer_shows_where_it_was_learnt(tmp_path):
    """In some run a neighbour leaves while an offer is open, and the next one goes to another."""
    pairs = {"mode": "gossip:variant=pairs,topology=ring", "steps": None, "epochs": 1}
    pairs |= {"partition": "dirichlet:0.3", "record": True}
    for seed in (13, *range(13)):  # with the 13th, at the time of writing
        out = tmp_path / str(seed)
        config = TrainConfig(**BASE | pairs | {"seed": seed, "out": str(out)})
        costs = VirtualCosts(compute="lognormal:0.001:0.8")
        run_in_virtual_time(config, Scenario(workers=6, costs=costs))
        events = read_history(out).workers
        if any((PairScript.of(*it).rows[:, 4] == 2).any() for it in enumerate(events)):
            replayed(out)
            return
    pytest.fail("no offer was void")
