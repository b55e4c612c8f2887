"""psrt simulate as a user starts it: no mpirun, the same run twice, --like."""

import json
import re
import sys

import pytest

from support.cases import also

EXHAUSTIVE = pytest.mark.exhaustive
SHORT = ["--epochs", "3", "--hidden", "8", "--record"]
#: Runs of three ranks.
MODES = {
    "async": ["--mode", "async", "--servers", "1", "--inject", "1:delay:0.002"],
    "allreduce": ["--mode", "allreduce"],
    "shards": ["--mode", "ssp", "--servers", "1", "--shards-per-server", "2"],
    "local": ["--mode", "local-sgd:local-steps=4", "--servers", "1"],
}


def files_of(folder):
    """Return what a run left, by name, but for when and where that was."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    summary = json.loads(found["summary.json"])
    assert summary["environment"].pop("started") <= summary["environment"].pop("ended")
    return found | {"summary.json": json.dumps(summary)}


@pytest.mark.parametrize(
    "mode",
    [
        ["--mode", "async", "--servers", 2],
        also(["--mode", "allreduce", "--allreduce", "tree"]),
    ],
)
def test_the_same_seed_in_another_process_is_the_same_run(launch, mode):
    folder = launch.folder / "run"
    flags = ["--workers", 4, *mode, "--epochs", 2, "--record", "--out", "run", "--overwrite"]
    runs = []
    for _ in range(2):
        done = launch.psrt("simulate", *flags, "--quiet")
        assert (done.status, done.stderr) == (0, "")
        runs.append(files_of(folder))
    assert runs[0] == runs[1]
    assert json.loads(runs[0]["summary.json"])["test_accuracy"] > 0.3


def test_a_reader_that_has_seen_enough_does_not_stop_the_run(launch):
    shell = (
        f"{sys.executable} -m psrt simulate --workers 3 --timing-only --parameters 9 "
        "--steps 400 --log-every 1 --out run --quiet | head -n 1; exit ${PIPESTATUS[0]}"
    )
    done = launch.command("bash", "-c", shell)
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert (launch.folder / "run" / "summary.json").exists()


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@EXHAUSTIVE
def test_runs_are_simulated(launch):
    commands = {it: ["train", *flags, *SHORT, "--out", it] for it, flags in MODES.items()}
    for done in launch.one_after_another(3, commands):
        assert done.status == 0, done.stderr
    commands = {name: ["simulate", "--like", name, "--out", f"{name}-like"] for name in MODES}
    for name, done in zip(MODES, launch.one_after_another(0, commands), strict=True):
        assert (done.status, done.errors) == (0, []), done.stderr
        measured, predicted = summary(launch.folder / name), summary(launch.folder / f"{name}-like")
        for key in ("mode", "workers", "servers", "samples", "steps", "parameters", "allreduce"):
            assert predicted[key] == measured[key], key
        assert predicted["samples_per_second"] > 0
        assert re.search(rf"^like {name}: a gradient [\d.e-]+ ms, ", done.stdout, re.MULTILINE)
        config = (launch.folder / f"{name}-like" / "config.toml").read_text()
        assert "\ninject = []\n" in config  # it is in the times
