"""``srun`` starts the ranks itself, and tells how they ended."""

import json
import os
import signal
import subprocess

import pytest

from support.launching import TIMEOUT_S
from support.slurm import OPEN_MPI, ended_after, wait_until

RANKS = ("--nodes", 3, "--ntasks", 5)
LONG = ("--epochs", 100000, "--hidden", 8, "--record", "--out", "run")


def srun(slurm, mpi, folder, *words, pmi=None, ranks=RANKS):
    return slurm.run("srun", f"--mpi={pmi or mpi.pmi}", *ranks, mpi.python, *words, cwd=folder)


def train(slurm, mpi, folder, *flags, **more):
    return srun(slurm, mpi, folder, "-m", "psrt", "train", *flags, **more)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize(
    "flags",
    [("--mode", "ssp", "--servers", 2, "--placement", "spread"), ("--mode", "allreduce")],
    ids=["ssp", "allreduce"],
)
def test_a_run_on_three_nodes(slurm, mpi, folder, flags):
    done = train(slurm, mpi, folder, *flags, "--epochs", 2, "--record", "--out", "run")
    assert done.status == 0, done.stderr
    summary = json.loads((folder / "run/summary.json").read_text())
    assert (summary["ranks"], summary["hosts"]) == (5, 3)
    checked = slurm.run(mpi.python, "-m", "psrt", "check", "run", cwd=folder)
    assert checked.status == 0, checked.stderr


@pytest.mark.one_in(1000)
def test_a_wrong_flag_is_status_2(slurm, mpi, folder):
    done = train(slurm, mpi, folder, "--lr", "nan", "--out", "run")
    assert done.status == 2, done.stderr
    assert len(done.errors) == 1
    assert not (folder / "run").exists()


@pytest.mark.one_in(1000)
def test_an_error_on_one_rank_ends_all(slurm, mpi, folder):
    """Slurm kills the others, and with pmi2 that is what its status tells, the highest of all."""
    done = train(slurm, mpi, folder, "--lr", 1e5)
    assert "diverged" in done.errors[0]
    assert done.status == 3 if mpi is OPEN_MPI else done.status in (3, 137)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("pmi", ["none", "pmi2"])
def test_ranks_that_do_not_find_each_other_do_not_train(slurm, mpi, folder, pmi):
    if pmi == mpi.pmi:
        pytest.skip("the right one")
    done = train(slurm, mpi, folder, "--out", "run", pmi=pmi)
    assert done.status == 2, done.stderr
    (line,) = done.errors
    assert "started as one of 5 ranks" in line
    assert f"srun --mpi={mpi.pmi}, or " in line
    assert not (folder / "run").exists()


@pytest.mark.one_in(1000)
def test_one_task_is_a_process_by_itself(slurm, mpi, folder):
    done = train(slurm, mpi, folder, "--epochs", 1, pmi="none", ranks=("--ntasks", 1))
    assert done.status == 0, done.stderr


@pytest.mark.one_in(1000)
def test_a_rank_that_is_killed_ends_the_others(slurm, mpi, folder):
    """With ``--kill-on-bad-exit`` at once, whatever the MPI notices."""
    words = [mpi.python, "-m", "psrt", "train", *LONG]
    flags = [f"--mpi={mpi.pmi}", "--kill-on-bad-exit=1", *RANKS]
    with ended_after(slurm.start("srun", *flags, *words, cwd=folder)) as process:
        metrics = folder / "run/metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size)
        pattern = f"^{mpi.python} -m psrt train .*--out run$"
        found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=True)
        os.kill(int(found.stdout.split()[-1]), signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode != 0
    assert not (folder / "run/summary.json").exists()
