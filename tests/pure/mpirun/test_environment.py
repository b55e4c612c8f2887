"""What launchers say of a process, in variables that this test sets, and what is wrong with it."""

import pytest

from psrt import mpirun
from psrt.mpirun import launched, mismatch, started_rank, started_ranks
from psrt.vendors import is_own, on_one_host, settings

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2"}
MPICH = {"PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALNRANKS": "4"}
SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}


@pytest.fixture
def environment(monkeypatch):
    for name in (*mpirun.SIZES, *mpirun.RANKS, "MPI_LOCALNRANKS"):
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


@pytest.mark.parametrize(
    ("library", "pmi"), [("Open MPI", "pmix"), ("MPICH", "pmi2"), ("Intel MPI", "pmi2")]
)
@pytest.mark.parametrize("variables", [SRUN, SRUN | MPICH], ids=["no PMI", "another MPI's PMI"])
def test_srun_is_told_the_language_of_the_library(environment, variables, library, pmi):
    environment(variables)
    assert f"srun --mpi={pmi}, or its mpirun" in mismatch(1, library, "its mpirun")


def test_only_slurm_is_told_to_take_srun(environment):
    environment(MPICH)
    assert "srun" not in mismatch(1, "Some MPI", "its mpirun")


@pytest.mark.parametrize(
    ("variables", "is_one_host"),
    [
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, True),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, False),
        (MPICH, True),
        (MPICH | {"MPI_LOCALNRANKS": "1"}, False),
        (SRUN | {"SLURM_STEP_NUM_NODES": "1"}, True),
        (SRUN | {"SLURM_STEP_NUM_NODES": "2"}, False),
        # It may be what starts ranks elsewhere, and they would have its variables.
        ({}, False),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}, False),
        # Of nested launchers the innermost counts.
        (OPEN_MPI | SRUN | {"SLURM_STEP_NUM_NODES": "1"}, False),
    ],
)
def test_ranks_on_one_host_do_without_tcp(variables, is_one_host):
    assert on_one_host(variables) == is_one_host
    own = settings(variables, tcp=not is_one_host)
    assert [text.endswith(",tcp") for text in own.values()] == [False, is_one_host, is_one_host]
    assert all(is_own(*it) for it in own.items())
    assert settings(dict.fromkeys(own, "mine"), tcp=not is_one_host) == {}
    assert not any(is_own(name, "mine") for name in own)
