"""When a job that died is started again, and when not: attempts that only leave their files."""

from __future__ import annotations

import mmap
import os
import time

import numpy as np
import pytest

from psrt.checkpoint import Checkpoints, Disk, Manifest, write_part
from psrt.cli.launch import main
from psrt.errors import ConfigError
from psrt.faults.watcher import End
from psrt.job.attempt import Ended
from psrt.job.supervise import GAVE_UP, Restarts, supervise
from psrt.mpirun.segments import sweep

SAVED = "--out x --checkpoint-every 5 --resume auto"


class Job:
    """Attempts, each of which saves up to a step and ends with a status, and maybe a summary."""

    def __init__(self, run, attempts):
        self.run, self.attempts = run, list(attempts)
        self.told, self.slept, self.started = [], [], 0
        run.mkdir()

    def start(self):
        step, ended, finishes = self.attempts.pop(0)
        self.started += 1
        if step:
            disk = Disk()
            checkpoints = Checkpoints(disk, self.run)
            entry = write_part(disk, checkpoints.begin(step, 0), "part", {"theta": np.zeros(3)})
            manifest = Manifest(step=step, n=3, workers=1, servers=0, config="", parts=(entry,))
            checkpoints.commit(step, 0, manifest, 2)
        if finishes:
            (self.run / "summary.json").write_text(str(self.started))
        return ended if isinstance(ended, Ended) else Ended(ended, None, 1.0)

    def supervised(self, limit, ready=lambda: None):
        return supervise(
            self.start, self.run, limit, tell=self.told.append, sleep=self.slept.append, ready=ready
        )


def test_a_job_that_dies_is_started_again_until_it_is_done(tmp_path):
    job = Job(tmp_path / "run", [(10, 5, False), (20, 137, False), (30, 0, True)])
    assert job.supervised(1).status == 0
    assert job.started == 3
    assert job.slept == [1.0, 1.0]  # there was progress
    assert job.told == [
        "the job ended with status 5 and without a summary, after step 10; restart 1 of 1 in 1 s",
        "the job ended with status 137 and without a summary, after step 20; restart 1 of 1 in 1 s",
    ]


def test_it_is_given_up_without_progress(tmp_path):
    job = Job(tmp_path / "run", [(10, 5, False), (0, 5, False), (0, 5, False), (0, 0, True)])
    assert job.supervised(2).status == GAVE_UP
    assert job.slept == [1.0, 2.0]
    assert job.told[-1].endswith("given up after 2 restarts without a new checkpoint")


@pytest.mark.parametrize(("status", "means"), [(137, 0), (1, 0), (5, 0), (4, 4), (8, 8)])
def test_mpiruns_status_is_not_relied_on(tmp_path, status, means):
    """It is 0 after a lost host, and may be something else when all is done."""
    job = Job(tmp_path / "run", [(10, 0, False), (20, status, True)])
    assert job.supervised(3).status == means
    assert job.started == 2
    line = f"the job was done when it ended with status {status}"
    assert (line in job.told) == (means == 0)


@pytest.mark.parametrize(
    "ended", [Ended(2, None, 1.0, End(2)), Ended(0, None, 1.0, End(3)),
              Ended(-9, None, 1.0, End(2)), Ended(9, None, 1.0, End(8)),
              Ended(-15, 15, 1.0), Ended(-2, 2, 1.0)],
)  # fmt: skip
def test_what_would_end_alike_or_was_asked_for_is_not_repeated(tmp_path, ended):
    job = Job(tmp_path / "run", [(10, ended, False), (20, 0, True)])
    assert job.supervised(3) is ended
    assert job.started == 1


@pytest.mark.parametrize("status", [2, 3, 8])
def test_what_only_mpirun_says_is_not_believed(tmp_path, status):
    """Of MPICH's, 8 is a rank that signal 8 killed, and any may be the sum of several bits."""
    job = Job(tmp_path / "run", [(10, status, False), (20, 0, True)])
    assert job.supervised(1).status == 0
    assert job.started == 2


def test_a_request_that_was_possible_is_tried_again(tmp_path):
    """Such as where the disk is full for a moment as the next attempt begins."""
    full = Ended(2, None, 1.0, End(2))
    job = Job(tmp_path / "run", [(10, 5, False), (0, full, False), (0, 0, True)])
    assert job.supervised(2).status == 0
    assert job.slept == [1.0, 2.0]
    job = Job(tmp_path / "other", [(10, 5, False), (0, full, False), (0, full, False)])
    assert job.supervised(2).status == GAVE_UP


def test_hosts_are_waited_for_and_count(tmp_path):
    """Asked again at each restart, and given up with the reason."""
    job = Job(tmp_path / "run", [(10, 5, False), (20, 0, True)])
    last = "tidied up at the end"
    answers = ["1 of 2 hosts answers (b: down)", "1 of 2 hosts answers (b: down)", None, last]
    assert job.supervised(3, lambda: answers.pop(0)).status == 0
    assert (job.slept, answers) == ([1.0, 2.0, 4.0], [])
    assert job.told[1:] == [
        "1 of 2 hosts answers (b: down); restart 2 of 3 in 2 s",
        "1 of 2 hosts answers (b: down); restart 3 of 3 in 4 s",
    ]
    job = Job(tmp_path / "other", [(10, 5, False)])
    assert job.supervised(2, lambda: "b is down").status == GAVE_UP
    assert job.told[-1] == "b is down; given up after 2 restarts without a new checkpoint"
    assert job.started == 1


def test_a_job_that_was_ended_here_is_started_again_and_says_why(tmp_path):
    hangs = Ended(-9, None, 400.0, None, "no rank was there within 331 s")
    job = Job(tmp_path / "run", [(0, hangs, False), (20, 0, True)])
    assert job.supervised(1).status == 0
    assert job.told[0] == (
        "the job was ended, as no rank was there within 331 s, before its first checkpoint; "
        "restart 1 of 1 in 1 s"
    )


def test_a_summary_of_before_does_not_count(tmp_path):
    job = Job(tmp_path / "run", [(10, 5, False), (20, 0, True)])
    (job.run / "summary.json").write_text("of an earlier run")
    assert job.supervised(3).status == 0
    assert job.started == 2


def test_waits_double_up_to_a_minute():
    restarts = Restarts(20)
    waits = [restarts.wait_s(7) for _ in range(8)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_what_dead_ranks_left_in_shared_memory_is_swept(tmp_path):
    began = time.time() - 1
    left = ["sm_segment.host.0.1", "osc_sm.host.2", "mpich_shm_abc", "ucx_shm_posix_1f", "psrt-1"]
    for name in (*left, "of-somebody-else", "sm_segment.old", "sm_segment.used"):
        (tmp_path / name).write_bytes(bytes(4096))
    os.utime(tmp_path / "sm_segment.old", (began - 9, began - 9))
    (tmp_path / "sm_segment.link").symlink_to(tmp_path / "of-somebody-else")
    with (tmp_path / "sm_segment.used").open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert sweep(began, tmp_path) == len(left)
    kept = {"of-somebody-else", "sm_segment.old", "sm_segment.used", "sm_segment.link"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert sweep(began, tmp_path / "nowhere") == 0


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("--restarts 0 train --out x", "--restarts must be a number from 1 to 1000000, got '0'"),
        ("--restarts many train", "--restarts must be a number"),
        ("--restarts 3 train --out x --resume auto", "--restarts needs a run that goes on"),
        (
            "--restarts 3 train --checkpoint-every 5 --resume auto",
            "--restarts needs a run that goes on",
        ),
        ("--restarts 3 bench", "--restarts is for train, which saves its run, or .*, got bench"),
        ("--restarts 3 -- mpirun -n 2 psrt bench", "psrt train in it, got mpirun"),
        ("--restarts 3 -n 2 -- mpirun psrt train", "-n has no effect on a line of your own, mpi"),
        ("--restarts 3 --env A=1 -- mpirun psrt train", "--env has no effect on a line of"),
        (f"--restarts 3 -- mpirun psrt train --lr x {SAVED}", "lr must be a finite number"),
        ("--restarts 3 -- mpirun psrt train --out x", "--restarts needs a run that goes on"),
        (f"--restarts 3 -- mpirun --wdir /tmp psrt train {SAVED}", "need an absolute path"),
        (
            f"--restarts 3 train {SAVED} --resume y",
            "got --resume y, which each",
        ),
        (f"--restarts 3 --elastic train {SAVED}", "--elastic needs --hostfile FILE"),
        (f"--restarts 3 --min-workers 2 train {SAVED}", "has no effect without --elastic"),
        ("--elastic train", "--elastic has no effect without --restarts"),
        ("--min-workers 2 train", "--min-workers has no effect without --restarts"),
        (f"--restarts 3 train --lr x {SAVED}", "lr must be a finite number"),
    ],
)
def test_what_could_not_go_on_is_one_line(argv, line, monkeypatch):
    monkeypatch.setattr("psrt.cli.launch.launched", lambda: False)
    with pytest.raises(ConfigError, match=line):
        main(argv.split())
