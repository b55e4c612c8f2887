"""``simulate --like`` of runs over MPI, and the script that holds predictions against them.

Nothing is said of how good they are: that is for a machine that does nothing else.
"""

import json
import os
import re
from pathlib import Path

import pytest

from support.cases import some

pytestmark = pytest.mark.xdist_group("like")

APPS = Path(__file__).parents[2] / "apps"
SHORT = ["--epochs", "3", "--hidden", "8", "--record"]
MODES = {
    "async": (3, ["--mode", "async", "--servers", "1", "--inject", "1:delay:0.002"]),
    "shards": (4, ["--mode", "ssp", "--servers", "2"]),
    "allreduce": (2, ["--mode", "allreduce"]),
    "local": (3, ["--mode", "local-sgd", "--local-steps", "4", "--servers", "1"]),
}


def recorded(launch, name):
    ranks, flags = MODES[name]
    done = launch.train(ranks, *flags, *SHORT, "--out", name)
    assert done.status == 0, done.stderr


@pytest.fixture(scope="session")
def runs(tmp_path_factory, launch_in):
    """A folder with a recorded run of those of ``MODES`` that several tests look at."""
    launch = launch_in(tmp_path_factory.mktemp("like"))
    for name in ("async", "allreduce"):
        recorded(launch, name)
    return launch


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("name", some(MODES, one_in=2))
def test_a_run_is_simulated(runs, name):
    if not (runs.folder / name).exists():
        recorded(runs, name)
    done = runs.psrt("simulate", "--like", name, "--out", f"{name}-like")
    assert (done.status, done.stderr) == (0, "")
    measured, predicted = summary(runs.folder / name), summary(runs.folder / f"{name}-like")
    for key in ("mode", "workers", "servers", "samples", "steps", "parameters", "allreduce"):
        assert predicted[key] == measured[key], key
    assert predicted["samples_per_second"] > 0
    assert re.search(rf"^like {name}: a gradient [\d.e-]+ ms, ", done.stdout, re.MULTILINE)
    config = (runs.folder / f"{name}-like" / "config.toml").read_text()
    assert "\ninject = []\n" in config  # it is in the times


@pytest.mark.exhaustive
def test_a_run_whose_workers_ask_shards_again_is_simulated(launch):
    """Backups overtake workers on one shard, and not on the other: such a push is no step."""
    flags = ["--mode", "sync", "--backup", "2", "--servers", "2", "--inject", "*:tail:0.001:1.5"]
    done = launch.train(6, *flags, *SHORT, "--out", "backups")
    assert done.status == 0, done.stderr
    done = launch.psrt("simulate", "--like", "backups", "--out", "like")
    assert (done.status, done.stderr) == (0, "")
    measured, predicted = (summary(launch.folder / name) for name in ("backups", "like"))
    assert predicted["samples"] == pytest.approx(measured["samples"], rel=0.5)


def test_a_simulation_like_a_simulation_is_the_same(runs):
    for name, like in (("first", "async"), ("second", "first")):
        done = runs.psrt("simulate", "--like", like, "--record", "--out", name)
        assert (done.status, done.stderr) == (0, "")
    rates = [summary(runs.folder / name)["samples_per_second"] for name in ("first", "second")]
    assert rates[0] == pytest.approx(rates[1], rel=0.02)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--like nowhere", "no run at nowhere"),
        ("--like .", ". holds no history; a run keeps one with --record"),
        (
            "--like async --mode allreduce",
            "async: the run had no sums over all workers, so it cannot tell what they take",
        ),
        (
            "--like allreduce --mode sync",
            "allreduce: the run had no servers, so it cannot tell what they take",
        ),
        ("--like async --replay async", "give --like or --replay, not both"),
        ("--like async --backup 1", "--backup 1 has no effect with --mode async"),
    ],
)
def test_what_cannot_be_is_one_line(runs, flags, message):
    done = runs.psrt("simulate", *flags.split(), "--quiet")
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.startswith(f"psrt: error: {message}")
    assert done.stderr.count("\n") == 1


def test_a_damaged_history_is_one_line(runs):
    path = runs.folder / "async" / "history" / "rank-00001.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    try:
        done = runs.psrt("simulate", "--like", "async")
    finally:
        path.write_bytes(whole)
    assert (done.status, done.stdout) == (2, "")
    assert re.fullmatch(r"psrt: error: .*rank-00001.npy: damaged: .*\n", done.stderr)


def test_predictions_are_printed_beside_measurements(launch):
    words = ["--steps", 20, "--straggler-steps", 5, "--modes", "softsync,allreduce", "--out", "out"]
    done = launch.ranks(3, APPS / "calibrate.py", *words, "--hidden", 8)
    assert done.status == 0, done.stderr
    document = json.loads((launch.folder / "out" / "calibrate.json").read_text())
    rows = [(row["mode"], row["straggler"], row["workers"]) for row in document["runs"]]
    assert rows == [(m, s, 2) for m in ("softsync", "allreduce") for s in (False, True)]
    for row in document["runs"]:
        measured, predicted = row["samples_per_second"], row["samples_per_second_predicted"]
        near = abs(predicted - measured) <= 0.15 * measured
        assert row["samples_per_second_is_near"] == near
    assert re.search(r"^within 15 %: \d of 8$", done.stdout, re.MULTILINE)
    assert sorted(os.listdir(launch.folder / "out"))[:2] == ["allreduce-0", "allreduce-straggler-0"]


@pytest.mark.parametrize(
    ("ranks", "flags", "message"),
    [
        (2, "", "a server and 2 workers are needed: "),
        *(
            pytest.param(3, *case, marks=pytest.mark.exhaustive)
            for case in (
                (
                    "--modes sync,serial",
                    "unknown mode 'serial', expected one of sync, async, ssp, ",
                ),
                ("--slow 7:delay:1", "--inject 7:delay:1 names a worker that does not exist"),
                ("--steps 0", "steps: must be a whole number of at least 1, got '0'"),
            )
        ),
    ],
)
def test_the_script_tells_an_error_once(launch, ranks, flags, message):
    done = launch.ranks(ranks, APPS / "calibrate.py", *flags.split())
    assert done.status == 2
    assert [line for line in done.stderr.splitlines() if message in line]
    assert "Traceback" not in done.stderr
