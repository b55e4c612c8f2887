"""Runs that work, and what they leave behind."""

import json
import sys
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

from psrt.report import parameters_sha256, read_metrics

pytestmark = pytest.mark.xdist_group("runs")

SHORT = ["--epochs", "2", "--batch-size", "16", "--hidden", "32", "--lr", "0.2"]
PAUSED = ["--inject", "1:pause:5:0.5,*:tail:0.0001:3", "--inject", "1:slow:2:5"]
PAUSED += ["--steps", "20", *SHORT[2:]]
SHARDS = ["--mode", "sync", "--servers", "2", *SHORT]
#: By name, what is trained in one job of four ranks.
TRAINED = {
    "shards": SHARDS,
    "messages": [*SHARDS, "--no-shared-memory", "--last-events", "0", "--quiet"],
    "seed": [*SHARDS, "--seed", "1"],
    "adam": ["--servers", "2", "--optimizer", "adam", "--seed", "3", *SHORT[:-2]],
    "again": ["--config", "adam/config.toml"],
    "file": ["--config", "run.toml", "--mode", "ssp:staleness=5"],
    "own data": [
        *("--mode", "allreduce", "--allreduce", "mpi", "--dataset", "own.npz"),
        *("--batch-size", "8", "--hidden", "4", "--epochs", "1"),
    ],
    **{f"{mode} paused": ["--mode", mode, *PAUSED] for mode in ("sync", "async")},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, launch_in):
    """A folder of those runs, and by name what was said of them."""
    launch = launch_in(tmp_path_factory.mktemp("modes"))
    x = np.random.default_rng(0).standard_normal((80, 3, 2)).astype(np.float32)
    y = (x.sum(axis=(1, 2)) > 0).astype(np.int64)
    own = {"x_train": x, "y_train": y, "x_test": x[:20], "y_test": y[:20]}
    np.savez(launch.folder / "own.npz", **own)
    (launch.folder / "run.toml").write_text(
        'mode = "ssp"\nstaleness = 2\nepochs = 1\nhidden = [16]\nbatch_size = 16\n'
    )
    commands = {name: ["train", *words, "--out", name] for name, words in TRAINED.items()}
    done = dict(zip(commands, launch.one_after_another(4, commands), strict=True))
    for it in done.values():
        assert (it.status, it.errors) == (0, []), it.stderr
    return launch.folder, done


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def digest(folder):
    return summary(folder)["parameters_sha256"]


def test_the_files_of_a_run_belong_together(runs):
    folder, done = runs[0] / "shards", runs[1]["shards"]
    names = "config.toml metrics.jsonl model.safetensors progress.json roster.json summary.json"
    assert sorted(path.name for path in folder.iterdir()) == names.split()
    config = tomllib.loads((folder / "config.toml").read_text())
    assert (config["mode"], config["servers"], config["batch_size"]) == ("sync:backup=0", 2, 16)
    summary = json.loads((folder / "summary.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "layers.0.weight": (64, 32),
        "layers.0.bias": (32,),
        "layers.1.weight": (32, 10),
        "layers.1.bias": (10,),
    }
    theta = np.concatenate([tensors[name].ravel() for name in sorted(tensors, key=_order)])
    assert parameters_sha256(theta) == summary["parameters_sha256"]
    assert summary["parameters"] == theta.size
    records = read_metrics(folder / "metrics.jsonl")
    assert [record["epoch"] for record in records] == [1, 2]
    assert records[-1]["step"] == summary["steps"] == summary["updates"] == 90
    assert records[-1]["samples"] == summary["samples"] == 2 * 1437
    assert records[-1]["accuracy"] == pytest.approx(summary["test_accuracy"])
    staleness = summary["staleness"]
    assert (staleness["mean"], staleness["max"], staleness["histogram"]) == (0.0, 0, [2 * 2 * 90])
    by_one = {"mean": 0.0, "max": 0, "histogram": {"0": 2 * 90}}
    assert staleness["by_worker"] == staleness["by_shard"] == [by_one] * 2
    assert [w["seconds"] > 0 for w in summary["waiting"]] == [True, True]
    assert str(folder.name) in done.stdout


def _order(name):
    _, layer, part = name.split(".")
    return int(layer), part == "bias"  # as they lie in the vector


def test_synchronous_runs_repeat_to_the_bit_whatever_carries_them(runs, launch):
    """And as in virtual time, with another number of servers."""
    folder, done = runs
    assert done["messages"].stderr == ""
    lines = done["shards"].stdout.splitlines()
    assert sum(line.startswith("epoch ") for line in lines) == 2
    assert any(line.startswith("accuracy") for line in lines)
    assert summary(folder / "shards")["test_accuracy"] > 0.5  # ten classes
    assert digest(folder / "messages") == digest(folder / "shards") != digest(folder / "seed")
    words = ("--mode", "sync", "--servers", 1, "--workers", 2, *SHORT, "--out", "virtual")
    assert launch.psrt("simulate", *words).status == 0
    assert digest(launch.folder / "virtual") == digest(folder / "shards")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("ranks", "flags"),
    [(3, ()), (3, ("--no-shared-memory",)), (5, ("--servers", "3", "--placement", "last"))],
)
def test_so_they_do_on_other_numbers_of_ranks(runs, launch, ranks, flags):
    done = launch.train(ranks, "--mode", "sync", *flags, *SHORT, "--out", "run", "--verbose")
    assert done.status == 0, done.stderr
    told = done.stderr.splitlines()  # rank 0 says how far it is, no other
    assert told[0].startswith("psrt: starting  time 0:")
    assert told.count(told[0]) == 1
    assert digest(launch.folder / "run") == digest(runs[0] / "shards")


def test_a_file_of_flags_is_overridden_by_flags_and_a_run_repeated_from_its_own(runs):
    config = tomllib.loads((runs[0] / "file/config.toml").read_text())
    assert (config["mode"], config["hidden"]) == ("ssp:staleness=5", [16])
    assert digest(runs[0] / "adam") == digest(runs[0] / "again")


def test_data_of_one_s_own(runs):
    tensors = load_file(runs[0] / "own data/model.safetensors")
    assert tensors["layers.0.weight"].shape == (6, 4)
    assert tensors["layers.1.weight"].shape == (4, 2)


def test_injected_delays_are_felt_where_they_are_waited_for(runs):
    sync, free = (summary(runs[0] / f"{mode} paused") for mode in ("sync", "async"))
    assert min(sync["seconds"], free["seconds"]) > 0.5
    assert sync["clock_spread_max"] == 1
    assert free["clock_spread_max"] >= 10  # of 15: half a second is long
    config = (runs[0] / "sync paused/config.toml").read_text()
    assert 'inject = ["1:pause:5:0.5", "*:tail:0.0001:3", "1:slow:2:5"]' in config


@pytest.mark.exhaustive
def test_the_launcher_may_say_who_is_what(launch):
    flags = ["--mode", "async", *SHORT, "--out", "run"]
    done = launch.mpmd((2, ["server", *flags]), (2, ["worker", *flags]))
    assert done.status == 0, done.stderr
    summary = json.loads((launch.folder / "run/summary.json").read_text())
    assert (summary["servers"], summary["workers"]) == (2, 2)


@pytest.mark.exhaustive
def test_without_a_launcher_it_trains_serially_and_says_how_to_start_ranks(launch):
    """By a line that runs on any number of cores, and for root, who has not set anything."""
    (launch.folder / "run").mkdir()
    (launch.folder / "run/notes.txt").write_text("mine")
    unset = ["-uOMPI_ALLOW_RUN_AS_ROOT", "-uOMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]
    words = ("-m", "psrt", "train", "--steps", "2", "--out", "run", "--overwrite")
    done = launch.command("env", *unset, sys.executable, *words)
    assert done.status == 0, done.stderr
    found = summary(launch.folder / "run")
    assert (found["mode"], found["ranks"], found["mpi"], found["steps"]) == ("serial", 1, "", 2)
    line = done.stdout.splitlines()[0].partition("to start ranks: ")[2]
    assert "launch -n 4 train" in line
    done = launch.command("env", *unset, "sh", "-c", f"{line} --steps 3 --out run --overwrite")
    assert done.status == 0, done.stderr
    found = summary(launch.folder / "run")
    assert (found["ranks"], found["steps"]) == (4, 3)
    assert (launch.folder / "run/notes.txt").read_text() == "mine"  # it is not of a run


def test_show_prints_what_a_run_would_do_and_train_takes_it(launch):
    done = launch.psrt("show", "--mode", "softsync:k=2", "--ranks", "4")
    assert done.status == 0, done.stderr
    (launch.folder / "shown.toml").write_text(done.stdout)
    again = launch.psrt("show", "--config", "shown.toml", "--ranks", "4")
    assert again.stdout == done.stdout


@pytest.mark.exhaustive
def test_a_rank_loads_numpy_mpi4py_and_safetensors_only(launch):
    (launch.folder / "job.py").write_text(
        "import sys, psrt\n"
        "config = psrt.TrainConfig(mode='async', epochs=1, out='run', overwrite=True)\n"
        "psrt.run(config)\n"
        "roots = {name.split('.')[0] for name in sys.modules}\n"
        "ours = {'psrt', 'numpy', 'mpi4py', 'safetensors', 'cython_runtime', '__main__'}\n"
        "more = {r for r in roots - ours - set(sys.stdlib_module_names)\n"
        "        if not r.startswith('_') and r != 'sitecustomize'}\n"
        "assert not more, more\n"
    )
    done = launch.ranks(3, "job.py")
    assert done.status == 0, done.stderr
