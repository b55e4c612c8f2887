"""--survive over hosts: pushes of a worker that dies on another one come by messages, or never."""

import json

import pytest

from psrt.history.check.run import check_run
from support.hosts import VENDORS

#: Kills itself in its step, if it is that worker.
SCRIPT = """
import os, signal, sys
import numpy as np
import psrt
from mpi4py import MPI

mode, out, dies, kills = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]


class Problem:
    made = 0

    def initial(self):
        return np.zeros(300_000, np.float32)  # several pieces

    def batches(self, worker, workers, epoch):
        Problem.worker = worker if epoch == 0 else self.worker
        return [np.ones(2)] * 40

    def loss_and_grad(self, theta, batch, out):
        Problem.made += 1
        if self.worker == dies and self.made == 30:
            os.kill(os.getppid() if kills else os.getpid(), signal.SIGKILL)
        out[:] = 0.001
        return 1.0

    def evaluate(self, theta):
        return {"loss": 0.0}


config = psrt.TrainConfig(
    # Longer than Open MPI takes to end a job.
    epochs=5000 if kills else 3, record=not kills,
    mode=mode, servers=1, lr=0.1, timeout_s=20, out=out, survive=True,
)
run = psrt.run(config, Problem())
if run is not None:
    print("kept", [it.worker for it in run.summary.missing], flush=True)
"""


@pytest.fixture
def job(hosts, tmp_path):
    if not (VENDORS["openmpi"] / "bin" / "mpirun").exists():
        pytest.skip("no Open MPI")
    out = hosts.folder / f"survive-{tmp_path.name}"
    (hosts.folder / "dies.py").write_text(SCRIPT)
    (hosts.folder / "five").write_text("node01:2\nnode02:2\nnode03:1\n")
    psrt = VENDORS["openmpi"] / "bin" / "psrt"

    def run(mode, *kills):
        line = (psrt, "launch", "--hostfile", "five", "--flags=--with-ft ulfm", "dies.py")
        words = (*line, mode, out, 3, *kills)  # worker 3 is alone on its host
        return out, hosts.run(hosts.names[0], *words, OMPI_MCA_mpi_yield_when_idle="1")

    return run


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("mode", ["sync", "async", "local-sgd"])
def test_a_worker_of_another_host_dies(job, mode):
    out, done = job(mode)
    assert done.status == 0, done.stderr
    assert "kept [3]" in done.stdout
    assert "worker 3 (rank 4, " in done.stderr
    assert "the others go on" in done.stderr
    outcome = check_run(out)
    assert outcome.ok, str(outcome)
    assert [it["worker"] for it in json.loads((out / "summary.json").read_text())["missing"]] == [3]


def test_a_host_whose_daemon_dies_takes_the_job_with_it(job):
    """Open MPI ends it, with status 0; psrt launch says whose end that was."""
    out, done = job("async", "its daemon")
    assert done.status in (4, 5), done.stderr
    assert "psrt: error: " in done.stderr
    assert not (out / "summary.json").exists()
