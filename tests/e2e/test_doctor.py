"""``psrt doctor`` as a command: its page, its JSON, its status, and that it always ends."""

import json

import pytest

#: Ranks of which one never gets as far as MPI, or stops once it is in it.
SILENT = """\
import os, sys, time
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
{}
from psrt.__main__ import main
sys.exit(main(["doctor", "--timeout-s", "3"]))
"""


def test_alone(launch):
    done = launch.psrt("doctor", "--out", "runs/x")
    assert done.status == 0, done.stderr
    assert "1 rank on one host; psrt train takes them as serial" in done.stdout
    assert "no launcher" in done.stdout
    assert "fails  " not in done.stdout
    assert not (launch.folder / "runs").exists()


def test_a_folder_that_holds_a_run(launch):
    assert launch.psrt("train", "--steps", "1", "--out", "runs/x").status == 0
    for done in (
        launch.psrt("doctor", "--out", "runs/x"),
        launch.ranks(2, "-m", "psrt", "doctor", "--out", "runs/x"),
    ):
        assert done.status == 0, done.stderr
        assert "runs/x holds a run already (config.toml" in done.stdout


def test_on_ranks(launch):
    done = launch.psrt("launch", "-n", 3, "doctor", "--json", "found.json")
    assert done.status == 0, done.stderr
    assert "3 ranks on one host; psrt train takes them as sync, 1 server, 2 workers" in done.stdout
    assert "mpirun of" in done.stdout
    found = json.loads((launch.folder / "found.json").read_text())
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2]
    assert {rank["started"] for rank in found["ranks"]} == {3}
    assert all(set(finding) == {"severity", "what", "cure"} for finding in found["findings"])


def test_nothing_but_json(launch):
    done = launch.psrt("launch", "-n", 2, "doctor", "--json", "-")
    assert done.status == 0, done.stderr
    assert len(json.loads(done.stdout)["ranks"]) == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_mpi_keeps_apart_are_told_so_once(launch, rank):
    variables = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(rank)}
    done = launch.python("-m", "psrt", "doctor", **variables)
    if rank == 1:
        assert (done.status, done.stdout, done.stderr) == (0, "", "")
        return
    assert done.status == 1
    assert "fails  started as one of 2 ranks, but MPI sees this one only" in done.stdout
    assert "srun it is --mpi=pm" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("stop", "says"),
    [
        pytest.param(
            "if rank == 1: time.sleep(1000)", "waited 3 s for MPI to start",
            marks=pytest.mark.exhaustive, id="before MPI",
        ),
        pytest.param(
            "import psrt.mpi.start\nif rank == 1: time.sleep(1000)", "no word of 1 rank (1)",
            id="in MPI",
        ),
    ],
)  # fmt: skip
def test_it_ends_by_itself(launch, stop, says):
    (launch.folder / "script.py").write_text(SILENT.format(stop))
    done = launch.psrt("launch", "-n", 2, "script.py")
    assert done.status != 0
    assert says in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--timeout-s", "0"], "error: --timeout-s must be above 0"),
        (["--json", "nowhere/x"], "cannot write nowhere/x"),
        (["now"], "unexpected argument"),
    ],
)
def test_a_mistake_is_one_line(launch, words, says):
    done = launch.psrt("doctor", *words)
    assert done.status == 2
    assert says in done.errors[0]
