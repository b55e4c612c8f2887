"""Runs that work, and what they leave behind."""

import json
import sys
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

from psrt.report import Summary, parameters_sha256, read_metrics
from support.cases import each

MODES = {
    "sync": [],
    "sync-backup": ["--backup", "1"],
    "async": ["--staleness-rate", "inverse"],
    "ssp": ["--staleness", "1"],
    "softsync": ["--softsync", "2"],
    "local-sgd": ["--local-steps", "4", "--post-local-epoch", "1"],
    "local-sgd-servers": ["--servers", "1", "--outer-lr", "0.7"],
    "allreduce": ["--allreduce", "butterfly"],
    "allreduce-mpi": ["--allreduce", "mpi"],
}
SHORT = ["--epochs", "2", "--batch-size", "16", "--hidden", "32", "--lr", "0.2"]


def mode_of(name):
    return name.removesuffix("-backup").removesuffix("-servers").removesuffix("-mpi")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, launch_in):
    """A folder of runs of every mode, and by name what was said of them."""
    launch = launch_in(tmp_path_factory.mktemp("modes"))
    commands = {
        name: ["train", "--mode", mode_of(name), *flags, *SHORT, "--out", name]
        for name, flags in MODES.items()
    }
    return launch.folder, dict(zip(MODES, launch.one_after_another(4, commands), strict=True))


@each("name", MODES)
def test_every_mode_trains_on_four_ranks(runs, name):
    folder, done = runs[0] / name, runs[1][name]
    assert done.status == 0, done.stderr
    assert done.errors == []
    lines = done.stdout.splitlines()
    assert sum(line.startswith("epoch ") for line in lines) == 2
    assert any(line.startswith("accuracy") for line in lines)
    summary = Summary.from_json((folder / "summary.json").read_text())
    assert summary.mode == mode_of(name)
    assert summary.ranks == summary.workers + summary.servers == 4
    assert summary.test_accuracy > 0.5  # ten classes
    assert summary.bytes_sent == summary.bytes_received > 0


def test_the_files_of_a_run_belong_together(launch):
    done = launch.train(4, "--mode", "sync", "--servers", "2", *SHORT, "--out", "run")
    assert done.status == 0, done.stderr
    folder = launch.folder / "run"
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.toml",
        "metrics.jsonl",
        "model.safetensors",
        "progress.json",
        "roster.json",
        "summary.json",
    ]
    config = tomllib.loads((folder / "config.toml").read_text())
    assert (config["mode"], config["servers"], config["batch_size"]) == ("sync", 2, 16)
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


def test_logged_steps_are_between_the_ends_of_epochs(launch):
    flags = ["--mode", "allreduce", *SHORT, "--log-every", "10", "--out", "run"]
    assert launch.train(2, *flags).status == 0
    steps = [record["step"] for record in read_metrics(launch.folder / "run/metrics.jsonl")]
    assert steps == [10, 20, 30, 40, 45, 50, 60, 70, 80, 90]


def test_synchronous_runs_repeat_to_the_bit_whatever_carries_them(launch):
    def digest(ranks, *flags):
        done = launch.train(ranks, *flags, *SHORT, "--out", "run", "--overwrite")
        assert done.status == 0, done.stderr
        told.append(done.stderr.splitlines())
        return json.loads((launch.folder / "run/summary.json").read_text())["parameters_sha256"]

    told = []
    first = digest(3, "--mode", "sync", "--quiet")
    assert first == digest(3, "--mode", "sync", "--verbose")
    # Rank 0 says how far it is, no other, and that is all.
    assert told[0] == []
    assert told[1][0].startswith("psrt: sets up  time 0:")
    assert told[1].count(told[1][0]) == 1
    flags = ("--servers", "2", "--no-shared-memory", "--last-events", "0")
    assert first == digest(4, "--mode", "sync", *flags)
    assert first == digest(5, "--mode", "sync", "--servers", "3", "--placement", "last")
    assert first != digest(3, "--mode", "sync", "--seed", "1")


def test_a_file_of_flags_is_overridden_by_flags(launch):
    (launch.folder / "run.toml").write_text(
        'mode = "ssp"\nstaleness = 2\nepochs = 1\nhidden = [16]\nbatch_size = 16\n'
    )
    done = launch.train(3, "--config", "run.toml", "--staleness", "5", "--out", "run")
    assert done.status == 0, done.stderr
    config = tomllib.loads((launch.folder / "run/config.toml").read_text())
    assert (config["mode"], config["staleness"], config["hidden"]) == ("ssp", 5, [16])


def test_a_run_can_be_repeated_from_its_own_config(launch):
    flags = ["--servers", "2", "--optimizer", "adam", "--seed", "3", *SHORT[:-2]]
    assert launch.train(4, *flags, "--out", "first").status == 0
    again = launch.train(4, "--config", "first/config.toml", "--out", "second")
    assert again.status == 0, again.stderr
    first, second = (
        json.loads((launch.folder / run / "summary.json").read_text())["parameters_sha256"]
        for run in ("first", "second")
    )
    assert first == second


def test_overwriting_keeps_what_is_not_of_a_run(launch):
    folder = launch.folder / "run"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    for steps in ("2", "3"):
        assert launch.psrt("train", "--steps", steps, "--out", "run", "--overwrite").status == 0
        assert json.loads((folder / "summary.json").read_text())["steps"] == int(steps)
    assert (folder / "notes.txt").read_text() == "mine"


def test_data_of_one_s_own(launch):
    x = np.random.default_rng(0).standard_normal((80, 3, 2)).astype(np.float32)
    y = (x.sum(axis=(1, 2)) > 0).astype(np.int64)
    np.savez(launch.folder / "own.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    flags = ["--dataset", "own.npz", "--batch-size", "8", "--hidden", "4", "--epochs", "1"]
    done = launch.train(2, *flags, "--out", "run")
    assert done.status == 0, done.stderr
    tensors = load_file(launch.folder / "run/model.safetensors")
    assert tensors["layers.0.weight"].shape == (6, 4)
    assert tensors["layers.1.weight"].shape == (4, 2)


def test_the_launcher_may_say_who_is_what(launch):
    flags = ["--mode", "async", *SHORT, "--out", "run"]
    done = launch.mpmd((2, ["server", *flags]), (2, ["worker", *flags]))
    assert done.status == 0, done.stderr
    summary = json.loads((launch.folder / "run/summary.json").read_text())
    assert (summary["servers"], summary["workers"]) == (2, 2)


def test_without_a_launcher_it_trains_serially_and_says_how_to_start_ranks(launch):
    done = launch.psrt("train", *SHORT, "--out", "run")
    assert done.status == 0, done.stderr
    assert "launch -n 4 train" in done.stdout.splitlines()[0]
    summary = json.loads((launch.folder / "run/summary.json").read_text())
    assert (summary["mode"], summary["ranks"], summary["mpi"]) == ("serial", 1, "")


def test_the_line_that_starts_ranks_runs_as_printed(launch):
    """On any number of cores, and for root, who has not set anything."""
    unset = ["-uOMPI_ALLOW_RUN_AS_ROOT", "-uOMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]
    words = ("-m", "psrt", "train", "--steps", "2")
    done = launch.command("env", *unset, sys.executable, *words)
    line = done.stdout.splitlines()[0].partition("to start ranks: ")[2]
    done = launch.command("env", *unset, "sh", "-c", f"{line} --out run")
    assert done.status == 0, done.stderr
    assert json.loads((launch.folder / "run/summary.json").read_text())["ranks"] == 4


def test_stragglers_are_waited_for_by_those_who_wait(launch):
    flags = [*SHORT[2:], "--steps", "20", "--inject", "1:delay:0.01,*:jitter:0.001"]
    assert launch.train(3, "--mode", "sync", *flags, "--out", "sync").status == 0
    assert launch.train(3, "--mode", "async", *flags, "--out", "async").status == 0
    sync, free = (
        json.loads((launch.folder / mode / "summary.json").read_text())
        for mode in ("sync", "async")
    )
    assert sync["clock_spread_max"] == 1
    assert free["clock_spread_max"] > 3  # ten times as slow: far behind


def test_injected_delays_are_felt_where_they_are_waited_for(launch):
    injected = ["--inject", "1:pause:5:0.5,*:tail:0.0001:3", "--inject", "1:slow:2:5"]
    flags = [*SHORT[2:], "--steps", "20", *injected]
    assert launch.train(3, "--mode", "sync", *flags, "--out", "sync").status == 0
    assert launch.train(3, "--mode", "async", *flags, "--out", "async").status == 0
    sync, free = (
        json.loads((launch.folder / mode / "summary.json").read_text())
        for mode in ("sync", "async")
    )
    assert min(sync["seconds"], free["seconds"]) > 0.5
    assert sync["clock_spread_max"] == 1
    assert free["clock_spread_max"] >= 10  # of 15: half a second is long
    config = (launch.folder / "sync/config.toml").read_text()
    assert 'inject = ["1:pause:5:0.5", "*:tail:0.0001:3", "1:slow:2:5"]' in config


def test_show_prints_what_a_run_would_do_and_train_takes_it(launch):
    done = launch.psrt("show", "--mode", "softsync", "--softsync", "2", "--ranks", "4")
    assert done.status == 0, done.stderr
    (launch.folder / "shown.toml").write_text(done.stdout)
    again = launch.psrt("show", "--config", "shown.toml", "--ranks", "4")
    assert again.stdout == done.stdout


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["show", "--mode", "ssp"], ["--version"]]
)
def test_what_needs_no_mpi_loads_no_mpi(launch, arguments):
    program = (
        "import sys\n"
        "from psrt.__main__ import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        "loaded = {'mpi4py', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)\n"
    )
    done = launch.python("-c", program, *arguments)
    assert done.status == 0, done.stderr
    assert done.stdout.strip()


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
