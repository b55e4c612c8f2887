"""A worker that falls silent in a mode where nobody needs it: the others' work is not lost."""

import json
import re
import time

import pytest

from psrt.faults.processes import state_of

JOB = """
import os, pathlib, signal, sys, time
import numpy as np
import psrt
from psrt.errors import MissingWorkersError
from psrt.mpi.start import world

mode, servers, phase, what = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
rank, last = world().rank, world().size - servers - 1


def reaches(name):
    if name == phase and Problem.worker == last:
        if "resumes" in what and not os.fork():
            os.setsid()
            time.sleep(7)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)


def together(worker, workers):
    # Else one may be at its 150th step before another has begun.
    pathlib.Path(f"worker-{worker}-begins").touch()
    while not all(pathlib.Path(f"worker-{it}-begins").exists() for it in range(workers)):
        time.sleep(0.001)


class Problem:
    steps, worker, workers = 0, -1, 0

    def initial(self):
        return np.zeros(10_000, np.float32)

    def batches(self, worker, workers, epoch):
        Problem.worker, Problem.workers = worker, workers
        return [np.ones(2)] * 200

    def loss_and_grad(self, theta, batch, out):
        self.steps += 1
        if self.steps == 1:
            together(Problem.worker, Problem.workers)
        if self.steps == 150:
            reaches("gradient")
        if self.steps == 400 and phase == "ends":
            # It trains to its end, and falls silent while rank 0 evaluates.
            signal.signal(signal.SIGALRM, lambda *_: reaches("ends"))
            signal.setitimer(signal.ITIMER_REAL, 1.0)
        if "resumes" in what:
            time.sleep(0.03)
        out[:] = 0.001
        return 1.0

    def evaluate(self, theta):
        if phase == "ends" and rank == 0:
            time.sleep(8)
        return {"loss": 0.0}


config = psrt.TrainConfig(
    # Of four in pairs, all that ask then ask the last one first.
    seed=2, mode=mode, servers=servers, epochs=2, lr=0.1, timeout_s=3, out="run", record=True,
    placement="spread" if "spread" in what else None, shared_memory="remote" not in what,
    shards_per_server=2 if "shards" in what else None,
    asynchronous=True if "asynchronous" in what else None,
)
if "catches" in what:
    try:
        psrt.run(config, Problem())
    except MissingWorkersError as error:
        time.sleep(1)
        if rank == 0:
            print("kept", error.run.theta.size, error.run.summary.missing[0].worker)
        else:
            assert error.run is None
else:
    psrt.run(config, Problem())
"""
#: Seconds after that of the launcher in which every rank must have ended.
ENDS_WITHIN_S = 60


@pytest.fixture
def job(launch):
    (launch.folder / "job.py").write_text(JOB)

    def run(ranks, *words):
        done = launch.ranks(ranks, "job.py", *words)
        deadline = time.monotonic() + ENDS_WITHIN_S  # MPICH's mpirun does not wait for its ranks
        for member in roster(launch):
            while state_of(member["pid"]) not in "XZ":
                assert time.monotonic() < deadline, (member, done.stderr)
                time.sleep(0.05)
        return done

    return run


def roster(launch):
    return json.loads((launch.folder / "run" / "roster.json").read_text())


def also(*case):
    """Mark a case that shows what others show, elsewhere."""
    return pytest.param(*case, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize(
    ("ranks", "mode", "servers", "what"),
    [
        (3, "async", 1, ()),
        also(4, "softsync", 2, ()),
        (4, "gossip", 0, ()),
        also(4, "ssp", 1, ()),
        also(5, "async", 2, ("spread",)),
        also(4, "softsync", 2, ("remote",)),
        also(4, "async", 1, ("resumes",)),
        also(3, "ssp", 1, ("shards",)),
        also(4, "easgd", 1, ("asynchronous",)),
        also(4, "gossip", 0, ("remote",)),
        also(3, "gossip", 0, ("resumes",)),
        also(4, "gossip", 0, ("asynchronous",)),
        also(4, "gossip", 0, ("asynchronous", "remote")),
    ],
)
def test_the_others_train_on_and_the_run_has_results(launch, job, ranks, mode, servers, what):
    done = job(ranks, mode, servers, "gradient", *what)
    assert done.status == 4, done.stderr
    assert "Traceback" not in done.stderr
    worker = ranks - servers - 1
    (victim,) = (it for it in roster(launch) if it["role"] == f"worker {worker}")
    name = f"worker {worker} (rank {victim['rank']}, {victim['host']}, pid {victim['pid']})"
    (notice,) = [line for line in done.stderr.splitlines() if "the others go on" in line]
    assert f"within 3 s (--timeout-s): {name} is stopped by a signal" in notice
    (line,) = done.errors
    assert line == f"psrt: error: the run went on without {name}, which fell silent"
    summary = json.loads((launch.folder / "run" / "summary.json").read_text())
    (missing,) = summary["missing"]
    assert {k: v for k, v in missing.items() if k != "clock"} == {
        "worker": worker,
        "rank": victim["rank"],
        "host": victim["host"],
        "pid": victim["pid"],
    }
    assert 0 < missing["clock"] <= 150
    assert summary["steps"] == 400
    assert summary["samples"] == 400 * 2 * (summary["workers"] - 1)
    assert (launch.folder / "run" / "model.safetensors").exists()

    checked = launch.psrt("check", "run")
    assert checked.status == 0, checked.stdout + checked.stderr
    replayed = launch.ranks(ranks, "-m", "psrt", "train", "--replay", "run")
    assert replayed.status == 2
    (line,) = replayed.errors
    assert f"worker {worker} went missing in it, which a replay cannot repeat" in line


@pytest.mark.exhaustive
def test_one_that_falls_silent_at_its_end_is_missed_as_well(launch, job):
    done = job(3, "async", 1, "ends")
    assert done.status == 4, done.stderr
    (line,) = done.errors
    assert "without worker 1 (rank 2," in line
    summary = json.loads((launch.folder / "run" / "summary.json").read_text())
    assert summary["steps"] == 400
    checked = launch.psrt("check", "run")
    assert checked.status == 0, checked.stdout + checked.stderr


@pytest.mark.exhaustive
def test_a_program_may_go_on_with_what_the_others_came_to(job):
    done = job(3, "async", 1, "gradient", "catches")
    assert done.status == 4, done.stderr
    assert "kept 10000 1" in done.stdout
    assert done.errors == []


@pytest.mark.exhaustive
def test_psrt_launch_tells_no_other_reason(launch):
    (launch.folder / "job.py").write_text(JOB)
    done = launch.psrt("launch", "-n", 3, "job.py", "async", 1, "gradient")
    assert done.status == 4, done.stderr
    (line,) = done.errors
    assert "the run went on without worker 1 (rank 2," in line


@pytest.mark.exhaustive
def test_if_nobody_is_left_to_go_on_the_job_ends(job):
    done = job(2, "async", 1, "gradient")
    assert done.status == 4
    (line,) = done.errors
    assert re.search(r"within 3 s .*worker 0 \(rank 1", line)
