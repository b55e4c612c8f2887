"""psrt simulate as a user starts it: no mpirun, a thousand workers, the same run twice."""

from __future__ import annotations

import json
import sys

import pytest


def files_of(folder):
    """Return what a run left, by name, but for when and where that was."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    summary = json.loads(found["summary.json"])
    assert summary["environment"].pop("started") <= summary["environment"].pop("ended")
    return found | {"summary.json": json.dumps(summary)}


@pytest.mark.exhaustive
def test_a_thousand_workers_without_numerics(launch):
    done = launch.psrt(
        "simulate", "--mode", "ssp", "--staleness", "3", "--workers", 1000, "--servers", 8,
        "--timing-only", "--parameters", 100_000, "--steps", 5, "--compute", "lognormal:0.01:0.5",
        "--link", "5e-5:1e9", "--inject", "7:slow:3", "--crash", "9:0.02",
        "--record", "--out", "big", "--quiet",
    )  # fmt: skip
    assert (done.status, done.stderr) == (0, "")
    assert "mode       ssp, 8 servers, 1,000 workers" in done.stdout
    assert "crashed       worker 9 at 0.02 s" in done.stdout
    simulation = json.loads((launch.folder / "big" / "simulation.json").read_text())
    assert simulation["crashed"] == [9]
    assert simulation["events"] > 1000 * 5 * 8 * 2
    checked = launch.psrt("check", "big", "--quiet")
    assert (checked.status, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    "mode", [["--mode", "async", "--servers", 2], ["--mode", "allreduce", "--allreduce", "tree"]]
)
def test_the_same_seed_in_another_process_is_the_same_run(launch, mode):
    folder = launch.folder / "run"
    flags = ["--workers", 6, *mode, "--epochs", 3, "--record", "--out", "run", "--overwrite"]
    runs = []
    for seed in (1, 1, 2):
        done = launch.psrt("simulate", *flags, "--seed", seed, "--quiet")
        assert (done.status, done.stderr) == (0, "")
        runs.append(files_of(folder))
    assert runs[0] == runs[1]
    assert runs[0]["history/events.npy"] != runs[2]["history/events.npy"]
    assert json.loads(runs[0]["summary.json"])["test_accuracy"] > 0.3


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        ("--workers 0", 2, "workers must be at least 1, got 0"),
        ("--timeout-s 3", 2, "--timeout-s 3 has no effect in virtual time"),
        ("--compute pareto:1:0", 2, "compute must be pareto:SCALE:SHAPE, SCALE from 0 to 1000000"),
        ("--mode allreduce --crash 1:0.002", 5, "worker 1 (rank 1) crashed at 0.002 s"),
    ],
)
def test_an_error_is_one_line(launch, flags, status, message):
    done = launch.psrt("simulate", *flags.split(), "--quiet")
    assert done.status == status
    assert done.stderr.startswith(f"psrt: error: {message}")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_seen_enough_does_not_stop_the_run(launch):
    shell = (
        f"{sys.executable} -m psrt simulate --workers 3 --timing-only --parameters 9 "
        "--steps 2000 --log-every 1 --out run --quiet | head -n 1; exit ${PIPESTATUS[0]}"
    )
    done = launch.command("bash", "-c", shell)
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert (launch.folder / "run" / "summary.json").exists()
