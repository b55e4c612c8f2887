"""Processes that a launcher started together and that MPI keeps apart must not train."""

import pytest

from support.cases import pairs

#: As the launchers of the other MPI, and srun without the right PMI, set them.
STARTED = {
    "another mpirun": {"PMI_SIZE": "2", "PMI_RANK": "{rank}"},
    "srun": {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "{rank}"},
}
COMMANDS = {
    "train": ["-m", "psrt", "train", "--epochs", "1", "--out", "run"],
    "bench": ["-m", "psrt", "bench", "ps"],
    "library": ["-c", "import psrt; psrt.run(psrt.TrainConfig(epochs=1, out='run'))"],
}


def started(launch, variables, rank, *words):
    own = {name: value.format(rank=rank) for name, value in variables.items()}
    return launch.python(*words, **own)


@pytest.mark.parametrize(("command", "launcher"), pairs(["train", "bench"], STARTED, one_in=2))
def test_it_is_told_once_and_nothing_is_written(launch, command, launcher):
    variables = STARTED[launcher]
    first, second = (started(launch, variables, rank, *COMMANDS[command]) for rank in (0, 1))
    assert first.status == 2
    assert len(first.stderr.splitlines()) == 1, first.stderr
    for word in ("started as one of 2 ranks", "sees one", "mpirun"):
        assert word in first.errors[0]
    assert ("srun --mpi=pm" in first.errors[0]) == ("SLURM_PROCID" in variables)
    assert (second.status, second.stdout, second.stderr) == (2, "", "")
    assert not (launch.folder / "run").exists()


def test_a_script_gets_the_error(launch):
    done = started(launch, STARTED["srun"], 0, *COMMANDS["library"])
    assert done.status == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("psrt: error: started as one of 2 ranks")
    assert not (launch.folder / "run").exists()


def test_one_task_of_srun_is_a_process_by_itself(launch):
    variables = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    done = launch.python(*COMMANDS["train"], **variables)
    assert done.status == 0, done.stderr


@pytest.mark.parametrize("role", ["server", "worker"])
def test_half_of_a_job_by_itself_is_none(launch, role):
    for done in (launch.psrt(role, "--epochs", "1"), launch.ranks(1, "-m", "psrt", role)):
        assert done.status == 2
        assert len(done.errors) == 1
        assert f"psrt {role}" in done.errors[0]


def test_a_communicator_of_one_process_says_nothing(launch):
    """Where mpi4py comes first, Open MPI says of each window that it has no UCX."""
    script = (
        "from mpi4py import MPI; import psrt; c = psrt.Communicator(); b = c.empty(3); "
        "c.all_reduce(b); c.all_gather(b); c.close(); print(b)"
    )
    own = {"OMPI_MCA_osc": "", "OMPI_MCA_mca_base_param_files": "none"}
    done = launch.python("-c", script, **own)
    assert (done.status, done.stdout, done.stderr) == (0, "[0. 0. 0.]\n", "")
