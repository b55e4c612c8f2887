"""Recorded runs repeated in one process: other delays, the same bits; and runs that cannot be."""

import json
import shutil

import numpy as np
import pytest

import psrt
from psrt import ConfigError, TrainConfig
from psrt.cli.flags import parse_train
from psrt.cli.simulate import parse_simulate
from psrt.errors import ReplayError
from psrt.history import Kind, read_history
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
    return out, recorded(out, ASYNC)


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
    then = recorded(tmp_path / "run", {"mode": "gossip", "topology": str(edges)})
    edges.write_text("0 1\n1 2\n2 0")
    again = replayed(tmp_path / "run")
    assert again.theta.tobytes() == then.theta.tobytes()
    edges.unlink()
    assert replayed(tmp_path / "run").theta.tobytes() == then.theta.tobytes()


def test_a_replay_may_be_repeated_and_its_history_folder_will_do(tmp_path, asynchronous):
    out, run = asynchronous
    replayed(out / "history", out=str(tmp_path / "once"), record=True)
    assert (replayed(tmp_path / "once").theta == run.theta).all()


def test_what_auto_chose_is_taken_again(tmp_path):
    """Three numbers are summed otherwise than thousands; both are as they were."""
    flags = {"mode": "allreduce", "hidden": (2000,), "schedule": "cosine", "steps": None}
    recorded(tmp_path / "run", flags, epochs=0.2)
    header = read_history(tmp_path / "run").header
    assert header.control_algorithm != header.algorithm
    simulated = psrt.simulate(recorded_config(tmp_path / "run"), workers=WORKERS)
    plan = simulated.workers[0].strategy.plan
    assert (plan.algorithm, plan.control_algorithm) == (header.algorithm, header.control_algorithm)


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
    out, _ = asynchronous
    config = parse_train(["--replay", str(out), "--log-every", "3", "--seed", "0"])
    assert config == recorded_config(out, log_every=3)
    assert (config.mode, config.servers, config.hidden, config.steps) == ("async", 2, (), 15)
    assert (config.out, config.record, config.replay) == (None, False, str(out))


def test_delays_are_not_repeated_unless_asked_for(tmp_path):
    recorded(tmp_path / "run", ASYNC, inject=["1:slow:2:3", "*:pause:4:0.5"])
    config = recorded_config(tmp_path / "run")
    assert config.inject == ()
    replayed(tmp_path / "run", inject=["0:delay:0.05"])


def test_the_number_of_workers_is_that_of_the_run(asynchronous):
    out, _ = asynchronous
    assert parse_simulate(["--replay", str(out)])[1].workers == WORKERS
    _, scenario = parse_simulate(["--replay", str(out), "--workers", "2"])
    with pytest.raises(ConfigError, match="would not be that run: 2 workers instead of 3"):
        run_in_virtual_time(recorded_config(out), scenario)
    with pytest.raises(ConfigError, match="3 workers: start 5 ranks, not 1"):
        psrt.run(recorded_config(out))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--seed 3", "seed 3 instead of 0"),
        ("--mode ssp --lr 0.1", "mode ssp instead of async; lr 0.1 instead of 0.05"),
        ("--epochs 2", "epochs 2 instead of none"),
        ("--dataset digits", "dataset digits instead of synthetic:400x6x3"),
        ("--servers 1", "servers 1 instead of 2"),
        ("--clip-norm 2", "clip-norm 2 instead of none"),
    ],
)
def test_flags_that_contradict_the_run(asynchronous, flags, told):
    out, _ = asynchronous
    with pytest.raises(ConfigError) as error:
        parse_train(["--replay", str(out), *flags.split()])
    assert str(error.value) == f"--replay {out} would not be that run: {told}"


def test_keys_of_a_file_contradict_it_as_well(asynchronous, tmp_path):
    out, _ = asynchronous
    (tmp_path / "c.toml").write_text("seed = 4\n")
    with pytest.raises(ConfigError, match="seed 4 instead of 0"):
        parse_train(["--replay", str(out), "--config", str(tmp_path / "c.toml")])


def edit_header(run, **changes):
    path = run / "history/header.json"
    values = json.loads(path.read_text())
    config = changes.pop("config", {})
    values["config"] |= config
    path.write_text(sealed(values | changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"psrt": "0.0.9"}, "psrt .* instead of 0.0.9"),
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


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"seed": 1}, "config.toml does not go with the history: seed 0 instead of 1"),
        ({"lr": "fast"}, "not the config of a run: lr must be a number, got 'fast'"),
        ({"staleness": 3}, "not the config of a run: --staleness 3 has no effect"),
        ({"seed": None}, "not the config of a run: it lacks seed"),
        ({"warp": 3}, "knobs that this psrt lacks: warp"),
    ],
)
def test_an_edited_config(copy, config, told):
    edit_header(copy, config=config)
    with pytest.raises(ConfigError, match=told):
        recorded_config(copy)


def test_an_edited_config_on_both_sides_comes_to_something_else(copy):
    edit_header(copy, config={"lr": 0.25})
    (copy / "config.toml").unlink()
    with pytest.raises(ReplayError, match=r"came to other parameters: sha256 .* instead of"):
        replayed(copy)


def test_a_run_without_its_config_says_so(copy, capsys):
    lines = []
    for told in (0, 1):
        config = recorded_config(copy)
        run_in_virtual_time(config, Scenario(workers=3, costs=NOW), say=lines.append)
        parse_simulate(["--like", str(copy)])
        text = f"no config.toml lies beside the history of {copy}: the config in its header"
        assert sum(text in line for line in lines) == told
        assert capsys.readouterr().out.count(text) == told
        (copy / "config.toml").unlink(missing_ok=True)


def test_what_it_came_to_must_be_known(copy):
    (copy / "summary.json").unlink()
    with pytest.raises(ConfigError, match="what it came to is not known"):
        replayed(copy)


@pytest.mark.parametrize("name", [".", "history/.."])
def test_it_is_not_written_over(asynchronous, name):
    out, _ = asynchronous
    before = (out / "summary.json").read_text()
    with pytest.raises(ConfigError, match="would be written over what --replay"):
        replayed(out, out=str(out / name), overwrite=True)
    assert (out / "summary.json").read_text() == before


def test_a_run_without_a_history(tmp_path):
    psrt.run(TrainConfig(**BASE, mode="serial", out=str(tmp_path / "run")))
    with pytest.raises(ConfigError, match="holds no history; a run keeps one with --record"):
        recorded_config(tmp_path / "run")
    with pytest.raises(ConfigError, match="no run at"):
        recorded_config(tmp_path / "nowhere")


def test_a_run_without_numbers(tmp_path):
    config = TrainConfig(**BASE, mode="async", out=str(tmp_path / "run"), record=True)
    run_in_virtual_time(config, Scenario(workers=2, numerics=False))
    with pytest.raises(ConfigError, match="simulated without numerics"):
        psrt.simulate(recorded_config(tmp_path / "run"), workers=2)


def test_a_run_in_which_a_worker_died(tmp_path):
    config = TrainConfig(**BASE, mode="async", out=str(tmp_path / "run"), record=True)
    run_in_virtual_time(config, Scenario(workers=2, crashes=((1, 0.005),)))
    with pytest.raises(ConfigError, match="worker 1 died in it, which a replay cannot repeat"):
        psrt.simulate(recorded_config(tmp_path / "run"), workers=2)


@pytest.mark.parametrize(
    ("scenario", "told"),
    [
        ({"numerics": False}, "--timing-only cannot be combined with --replay"),
        ({"crashes": ((1, 0.005),)}, "--crash cannot be combined with --replay"),
    ],
)
def test_a_replay_has_numbers_and_no_deaths(asynchronous, scenario, told):
    out, _ = asynchronous
    with pytest.raises(ConfigError, match=told):
        run_in_virtual_time(recorded_config(out), Scenario(workers=WORKERS, **scenario))


# --- gossip without rounds -----------------------------------------------------------------------

PAIRS = {
    "mode": "gossip", "asynchronous": True, "topology": "ring", "dataset": "synthetic:400x6x3",
    "hidden": (5,), "batch_size": 4, "lr": 0.05, "record": True,
}  # fmt: skip


def test_a_void_offer_shows_where_it_was_learnt(tmp_path):
    """In some run a neighbour leaves while an offer is open, and the next one goes to another."""
    for seed in (13, *range(13)):  # with the 13th, at the time of writing
        out = tmp_path / str(seed)
        more = {"partition": "dirichlet:0.3", "epochs": 1, "seed": seed, "out": str(out)}
        costs = VirtualCosts(compute="lognormal:0.001:0.8")
        run_in_virtual_time(TrainConfig(**PAIRS | more), Scenario(workers=6, costs=costs))
        events = read_history(out).workers
        if any((PairScript.of(*it).rows[:, 4] == 2).any() for it in enumerate(events)):
            replayed(out)
            return
    pytest.fail("no offer was void")


def test_what_a_run_offers_is_said_before_its_replay(tmp_path):
    config = TrainConfig(**PAIRS, steps=15, out=str(tmp_path / "run"))
    run_in_virtual_time(config, Scenario(workers=4, costs=THEN))
    lines = []
    config = recorded_config(tmp_path / "run")
    run_in_virtual_time(config, Scenario(workers=4, costs=NOW), say=lines.append)
    count = sum(
        int(
            ((it["kind"] == Kind.OFFER) & (it["flag"] == 0)).sum() + (it["kind"] == Kind.TAKE).sum()
        )
        for it in read_history(tmp_path / "run").workers
    )
    assert any(f"{count} offers and averages in their recorded order" in line for line in lines)
    assert any("the same parameters to the bit" in line for line in lines)
