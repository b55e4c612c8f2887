"""The scripts of ``apps/``, started as a user starts them."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parents[2]
APPS = ROOT / "apps"
CONFIGS = sorted(path.stem for path in (APPS / "configs").glob("*.toml"))

#: The mpirun of the environment that the tests run in, else whatever there is.
MPIRUN = shutil.which("mpirun", path=str(pathlib.Path(sys.executable).parent)) or shutil.which(
    "mpirun"
)
#: What lets any MPI start more ranks than there are cores, root or not.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OPENBLAS_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_osc": "^ucx",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}

parallel = pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun")
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def start(script, *words, ranks=0, timeout_s=120.0):
    """Run a script of ``apps/`` to its end, under mpirun if there are ranks."""
    command = [sys.executable, str(APPS / script), *map(str, words)]
    if ranks:
        command = [MPIRUN, "-n", str(ranks), *command]
    with subprocess.Popen(
        command, env=ENVIRONMENT, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # mpirun takes its ranks with it
            raise
    return Ended(process.returncode, out, err)


def succeeded(ended):
    assert ended.status == 0, ended.err
    return ended.out


def failed(ended, message):
    """Assert that the user was told once, in one line."""
    assert ended.status == 2, ended.err
    assert [line for line in ended.err.splitlines() if "error:" in line] == [message]
    assert "Traceback" not in ended.err
    assert ended.out == ""


def table_of(out):
    """Return the table at the end of a run."""
    rows = (line.partition(" ") for line in out.splitlines())
    return {name: value.strip() for name, _, value in rows}


@pytest.mark.parametrize(
    ("words", "ranks", "mode"),
    [
        ([], 0, "serial, 1 worker"),
        pytest.param(
            ["--config", APPS / "configs/ssp.toml"], 4, "ssp, 2 servers, 2 workers", marks=parallel
        ),
    ],
)
def test_train_mlp(words, ranks, mode):
    out = succeeded(start("train_mlp.py", *words, "--epochs", 2, "--hidden", 8, ranks=ranks))
    assert [line.split()[1] for line in out.splitlines() if line.startswith("epoch")] == ["1", "2"]
    table = table_of(out)
    assert table["mode"] == mode
    assert "after epoch" in table["best"]
    assert table["parameters"].startswith("610,")


@pytest.mark.parametrize("ranks", [0, pytest.param(3, marks=parallel)])
def test_train_mlp_tells_an_error_once(ranks):
    message = "train_mlp.py: error: unknown flag --epoch (did you mean --epochs?)"
    failed(start("train_mlp.py", "--epoch", 2, ranks=ranks), message)


@pytest.mark.parametrize(
    ("ranks", "mode"),
    [(0, "serial, 1 worker"), pytest.param(3, "sync, 1 server, 2 workers", marks=parallel)],
)
def test_own_model(ranks, mode):
    table = table_of(succeeded(start("own_model.py", ranks=ranks)))
    assert table["mode"] == mode
    # No classifier can be better than the clouds' overlap allows, 94.1 %, but by luck of the draw.
    assert 92 < float(table["accuracy"].rstrip(" %")) < 96


@parallel
def test_compare_modes(tmp_path):
    words = ["--epochs", 2, "--hidden", 8, "--straggler", "3:0.001", "--target", 0]
    modes = "serial,sync-backup,async,local-sgd-servers,allreduce-ring"
    words += ["--modes", modes, "--seeds", 2, "--servers", 1]
    out = succeeded(start("compare_modes.py", "--out", tmp_path / "new/out", *words, ranks=4))
    document = json.loads((tmp_path / "new/out/modes.json").read_text())
    with open(tmp_path / "new/out/modes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    runs, medians = document["runs"], document["medians"]
    assert [row["mode"] for row in rows] == [run["mode"] for run in runs]
    expected = [
        (mode, straggler)
        for mode in modes.split(",")
        for straggler in ((False,) if mode == "serial" else (False, True))
    ]
    assert [(run["mode"], run["straggler"]) for run in runs] == 2 * expected
    assert [(row["mode"], row["straggler"]) for row in medians] == expected
    assert {(run["workers"], run["servers"]) for run in runs} == {(1, 0), (3, 1), (4, 0)}
    assert all(row["seconds_to_accuracy"] > 0 for row in medians)
    assert all(row["worst_accuracy"] <= row["test_accuracy"] for row in medians)
    lines = out.splitlines()
    [heading] = [i for i, line in enumerate(lines) if "to target" in line]
    table = lines[heading + 1 : heading + 1 + len(expected)]
    assert [(line.split()[0], "straggler" in line) for line in table] == expected
    assert (tmp_path / "new/out/modes.png").exists() == HAS_MATPLOTLIB


def test_compare_modes_says_how_to_start_it(tmp_path):
    ended = start("compare_modes.py", "--out", tmp_path / "out")
    assert ended.status == 2
    assert "mpirun -n 4 python" in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@parallel
def test_compare_modes_checks_all_before_it_runs_any(tmp_path):
    words = ["--out", tmp_path / "out", "--modes", "sync,async", "--servers", 4]
    message = "compare_modes.py: error: --servers 4 leave no worker among 4 ranks"
    failed(start("compare_modes.py", *words, ranks=4), message)
    assert not (tmp_path / "out").exists()


@parallel
def test_every_mode_learns_with_its_config(tmp_path):
    succeeded(start("compare_modes.py", "--out", tmp_path, "--straggler", "none", ranks=4))
    runs = json.loads((tmp_path / "modes.json").read_text())["runs"]
    assert sorted(run["mode"] for run in runs) == CONFIGS
    assert {run["mode"]: run["test_accuracy"] for run in runs if run["test_accuracy"] < 0.95} == {}


STUDY = ["--workers", "1,6", "--rates", "constant,inverse", "--seeds", 2, "--epochs", 1]


def test_staleness_study(tmp_path):
    out = succeeded(start("staleness_study.py", *STUDY, "--hidden", 4, "--out", tmp_path / "a"))
    rows = json.loads((tmp_path / "a/staleness.json").read_text())["runs"]
    assert len(rows) == 2 * 2 * 2 * 2
    assert {(row["mode"], row["staleness_rate"], row["workers"], row["seed"]) for row in rows} == {
        (mode, rate, workers, seed)
        for mode in ("async", "softsync")
        for rate in ("constant", "inverse")
        for workers in (1, 6)
        for seed in (0, 1)
    }
    alone, together = ([r for r in rows if r["workers"] == count] for count in (1, 6))
    assert all(row["staleness_mean"] == 0 for row in alone)
    # An update takes one gradient in async, two in softsync.
    expected = {"async": 5, "softsync": 2.5}
    for row in together:
        assert row["staleness_mean"] == pytest.approx(expected[row["mode"]], rel=0.1)
    assert out.count("mean staleness") == 2
    for mode in ("async", "softsync"):
        assert (tmp_path / f"a/{mode}.png").exists() == HAS_MATPLOTLIB
    succeeded(start("staleness_study.py", *STUDY, "--hidden", 4, "--out", tmp_path / "b"))
    again = (tmp_path / "b/staleness.json").read_text()
    assert again == (tmp_path / "a/staleness.json").read_text()


def test_staleness_study_shows_runs_that_diverge(tmp_path):
    words = ["--workers", 2, "--rates", "constant", "--modes", "async", "--seeds", 1]
    words += ["--optimizer", "momentum", "--lr", "1e6", "--activation", "relu"]
    out = succeeded(start("staleness_study.py", *words, "--out", tmp_path))
    [row] = json.loads((tmp_path / "staleness.json").read_text())["runs"]
    assert row["test_accuracy"] is None
    assert "diverged" in out


@parallel
def test_staleness_study_is_not_for_mpirun(tmp_path):
    ended = start("staleness_study.py", *STUDY, "--out", tmp_path, ranks=2)
    assert ended.status == 2
    assert ended.err.count("start it without mpirun") == 1
