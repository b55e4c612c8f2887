"""What launchers say of a process, in variables that this test sets, and what is wrong with it."""

import os
import sys

import pytest

from psrt import launchers
from psrt.launchers import again, launched, mismatch, start_line, started_rank, started_ranks

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2"}
MPICH = {"PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALNRANKS": "4"}
SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}


@pytest.fixture
def environment(monkeypatch):
    for name in (*launchers.SIZES, *launchers.RANKS, "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)

    def put(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize("variables", [OPEN_MPI, MPICH, SRUN, SRUN | {"PMIX_RANK": "2"}])
def test_a_rank_of_several(environment, variables):
    environment(variables)
    assert (launched(), started_ranks(), started_rank()) == (True, 4, 2)
    assert "one of 4 ranks, but Some MPI sees one" in mismatch(1, "Some MPI", "its mpirun")
    assert mismatch(4, "Some MPI", "its mpirun") is None


@pytest.mark.parametrize(
    "variables",
    [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, {"SLURM_STEP_NUM_TASKS": "1"}],
    ids=["a shell", "a batch script", "srun -n 1"],
)
def test_a_process_by_itself(environment, variables):
    environment(variables)
    assert (launched(), started_ranks(), started_rank()) == (False, 1, 0)
    assert mismatch(1, "Some MPI", "its mpirun") is None


def test_the_innermost_launcher_counts(environment):
    environment({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"} | OPEN_MPI)
    assert (started_ranks(), started_rank()) == (4, 2)
    environment({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"})
    assert (launched(), started_ranks()) == (True, 1)


def test_pmix_alone_tells_that_there_are_lower_ranks(environment):
    environment({"PMIX_RANK": "3"})
    assert (launched(), started_ranks(), started_rank()) == (True, 4, 3)


def test_only_slurm_is_told_to_take_srun(environment):
    environment(SRUN)
    assert "srun --mpi=pmix, or its mpirun" in mismatch(1, "Some MPI", "its mpirun")
    environment(MPICH)
    assert "srun" not in mismatch(1, "Some MPI", "its mpirun")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Make an environment of its own with an mpirun and a Python, and go there."""

    def make(*names, cores=2, root=False, on_path=True):
        binaries = tmp_path / "env" / "bin"
        binaries.mkdir(parents=True)
        for name in ("python", *names):
            (binaries / name).write_text("#!/bin/sh\n")
            (binaries / name).chmod(0o755)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PATH", str(binaries) if on_path else "/nowhere")
        monkeypatch.setattr(sys, "executable", str(binaries / "python"))
        monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        for name in launchers._ROOT:
            monkeypatch.delenv(name, raising=False)

    return make


OPEN = ("mpirun", "prterun")


def test_more_ranks_than_cores(installed):
    installed(*OPEN)
    assert start_line((2, "a.py")) == "mpirun -n 2 python a.py"
    assert start_line((3, "a.py")) == "mpirun --oversubscribe -n 3 python a.py"
    several = start_line((1, "a.py"), (2, "b.py"))
    assert several == "mpirun --oversubscribe -n 1 python a.py : -n 2 python b.py"


def test_root_has_to_say_so(installed, monkeypatch):
    installed(*OPEN, root=True, cores=8)
    assert start_line((3, "a.py")) == "mpirun --allow-run-as-root -n 3 python a.py"
    for name in launchers._ROOT:
        monkeypatch.setenv(name, "1")
    assert start_line((3, "a.py")) == "mpirun -n 3 python a.py"


def test_mpich_needs_neither(installed):
    installed("mpirun", root=True)
    assert start_line((3, "a.py")) == "mpirun -n 3 python a.py"


def test_an_environment_that_is_not_on_the_path(installed):
    installed(*OPEN, on_path=False)
    assert start_line((2, "a.py")) == "env/bin/mpirun -n 2 env/bin/python a.py"


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["/env/bin/psrt", "train", "--out", "a b"], "-m psrt train --out 'a b'"),
        (["/lib/psrt/__main__.py", "train"], "-m psrt train"),
        (["apps/own model.py", "--lr", "1"], "'apps/own model.py' --lr 1"),
    ],
)
def test_the_same_again_on_several_ranks(installed, monkeypatch, argv, what):
    installed(*OPEN)
    monkeypatch.setattr(sys, "argv", argv)
    assert again(2) == f"mpirun -n 2 python {what}"
