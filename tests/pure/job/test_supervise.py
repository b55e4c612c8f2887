"""When a job that died is started again, and when an attempt at it is ended from outside.

Attempts of the first part only leave their files, those of the last one are processes.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from psrt.checkpoint import Checkpoints, Disk, Manifest, write_part
from psrt.cli.launch import main
from psrt.core.errors import ConfigError
from psrt.faults.processes import state_of
from psrt.faults.watcher import End
from psrt.job.attempt import Ended
from psrt.job.stall import Stall
from psrt.job.supervise import GAVE_UP, Restarts, supervise
from psrt.launch.segments import sweep
from support.cases import also, each
from support.launching import TIMEOUT_S

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
    (job.run / "summary.json").write_text("of an earlier run")  # does not count
    assert job.supervised(1).status == 0
    assert job.started == 3
    assert job.slept == [1.0, 1.0]  # there was progress
    assert job.told == [
        "the job ended with status 5 and without a summary, after step 10; restart 1 of 1 in 1 s",
        "the job ended with status 137 and without a summary, after step 20; restart 1 of 1 in 1 s",
    ]


FULL = Ended(2, None, 1.0, End(2))
STALLED = Ended(-9, None, 400.0, None, "no rank started within 331 s")
#: Attempts, the restarts that are allowed, what that ends with, the waits, and what is said last.
ENDS = [
    ([(10, 5, False), (0, 5, False), (0, 5, False)], 2, GAVE_UP, [1.0, 2.0],
     "given up after 2 restarts without a new checkpoint"),
    # What was possible once is tried again: the disk may be full for a moment.
    ([(10, 5, False), (0, FULL, False), (0, 0, True)], 2, 0, [1.0, 2.0], "restart 2 of 2 in 2 s"),
    ([(10, 5, False), (0, FULL, False), (0, FULL, False)], 2, GAVE_UP, [1.0, 2.0], "checkpoint"),
    ([(0, STALLED, False), (20, 0, True)], 1, 0, [1.0],
     "the job was ended, as no rank started within 331 s, before its first checkpoint; "
     "restart 1 of 1 in 1 s"),
    # What only mpirun says is not relied on. It is 0 after a lost host, and may be something else
    # when all is done; of MPICH's, 8 is a rank that signal 8 killed, and any may be several bits.
    *(([(10, 0, False), (20, it, True)], 3, 0, [1.0], "the job was done before it ended with "
       f"status {it}") for it in (137, 1)),
    *(([(10, 0, False), (20, it, True)], 3, it, [1.0], "restart 1 of 3 in 1 s") for it in (4, 8)),
    *(([(10, it, False), (20, 0, True)], 1, 0, [1.0], "restart 1 of 1 in 1 s") for it in (2, 3, 8)),
]  # fmt: skip


@pytest.mark.parametrize(("attempts", "limit", "status", "slept", "last"), ENDS)
def test_it_ends(tmp_path, attempts, limit, status, slept, last):
    job = Job(tmp_path / "run", attempts)
    assert job.supervised(limit).status == status
    assert (job.started, job.slept) == (len(attempts), slept)
    assert job.told[-1].endswith(last)


@each(
    "ended", [FULL, Ended(0, None, 1.0, End(3)), Ended(-9, None, 1.0, End(2)),
              Ended(9, None, 1.0, End(8)), Ended(-15, 15, 1.0), Ended(-2, 2, 1.0)],
)  # fmt: skip
def test_what_would_end_alike_or_was_asked_for_is_not_repeated(tmp_path, ended):
    job = Job(tmp_path / f"{ended.returncode} {ended.over}", [(10, ended, False), (20, 0, True)])
    assert job.supervised(3) is ended
    assert job.started == 1


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


@each(
    ("argv", "line"),
    [
        ("--restarts 0 train --out x", "--restarts must be a number from 1 to 1000000, got '0'"),
        ("--restarts 3 train --out x --resume auto", "--restarts needs a run that can resume"),
        ("--restarts 3 -n 2 -- mpirun psrt train", "-n has no effect on your own line, mpi"),
        (f"--restarts 3 -- mpirun --wdir /tmp psrt train {SAVED}", "must be an absolute path"),
        (f"--restarts 3 train {SAVED} --resume y", "got --resume y: each"),
        (f"--restarts 3 --elastic train {SAVED}", "--elastic needs --hostfile FILE"),
        ("--min-workers 2 train", "--min-workers has no effect without --restarts"),
    ],
)
def test_what_could_not_go_on_is_one_line(monkeypatch, argv, line):
    monkeypatch.setattr("psrt.cli.launch.launched", lambda: False)
    with pytest.raises(ConfigError, match=line):
        main(argv.split())


# --- when an attempt is ended, by a clock of the test's own ---------------------------------------


class Watched:
    """An attempt that is looked at every second."""

    def __init__(self, run):
        self.run, self.now = run, 1000.0
        self.parent = SimpleNamespace(heard_at=None, is_called=False, first_is_stopped=False)
        self.stall = Stall(
            self.parent, run, start_s=300.0, timeout_s=60.0, busy_s=3600.0,
            now=lambda: self.now,
        )  # fmt: skip

    def heard(self):
        self.parent.heard_at, self.parent.is_called = self.now, True

    def until_ended(self, most, each=lambda: None):
        """Return after how many seconds it is ended and why, or None if it is not."""
        for second in range(most):
            each()
            why = self.stall()
            if why is not None:
                return second, why
            self.now += 1
        return None


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path / "run")


def test_a_launcher_that_hangs_before_there_is_a_rank(watched, tmp_path):
    """What an earlier attempt left is no sign of life."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert Watched(tmp_path / "run").until_ended(1000) == (331, "no rank started within 331 s")
    assert watched.until_ended(4000, watched.heard) is None  # ranks that get on


def test_ranks_that_are_not_heard_are_seen_by_their_files(watched, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)

    def write():
        if watched.now % 3000 == 0:
            path = tmp_path / "run" / "checkpoints" / f"{watched.now}"
            path.touch()
            os.utime(path, ns=(0, int(2e18 + watched.now)))

    watched.now += 1900  # the first file comes in time
    watched.stall._began = watched.stall._changed_at = watched.now
    assert watched.until_ended(5000, write) is None
    found = watched.until_ended(9000)
    assert found is not None
    assert found[1].startswith("no sign of life for 36")


def test_ranks_that_are_all_stopped_or_busy_or_at_their_end(watched):
    watched.heard()
    watched.parent.first_is_stopped = True
    assert watched.until_ended(1000) == (61, "rank 0 was stopped for 61 s")
    watched.heard()
    watched.parent.first_is_stopped = False
    assert watched.until_ended(9000) == (3661, "no sign of life for 3661 s")
    watched.heard()
    watched.parent.is_called = False
    assert watched.until_ended(1000) == (331, "it had not ended after 331 s")


# --- one attempt, in a process of its own: signals are for any thread that does not block them ----


def in_a_process(script, *words):
    """Return what a script says of an attempt."""
    words = [sys.executable, "-c", ATTEMPT + script, *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return done.stdout.split()


ATTEMPT = """\
import json, sys
import psrt.job.attempt as it
from psrt.faults.parent import Parent
parent = Parent(1, print, several_hosts=False)
"""
#: A launcher that takes no signal, and has its parent asked to end.
DEAF = """\
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(1000)
"""
KILLING = """
ended = it.attempt([sys.executable, "-c", sys.argv[1]], {}, parent, **json.loads(sys.argv[2]))
print(ended.returncode, ended.asked, ended.status)
"""


@pytest.mark.parametrize("how", [{"grace_s": 0.5}, {"deaf_s": 999.0, "saves": True}])
def test_a_launcher_that_does_not_hear_is_killed(how):
    """MPICH's may lose a signal in its first second, in which there is nothing to save."""
    told = in_a_process(KILLING, DEAF, json.dumps(how))
    assert told == [str(-signal.SIGKILL), str(int(signal.SIGTERM)), "143"]


#: A launcher whose ranks save when they are asked to, or do not; its parent is asked to end.
ASKED = """\
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(int(sys.argv[1])) if sys.argv[1] else None)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
while True:
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(1)
"""
#: A rank was heard: its launcher has somebody to pass signals on to.
ASKING = """
parent.heard_at = 0.0
ended = it.attempt([sys.executable, "-c", *sys.argv[1:]], {}, parent, deaf_s=999.0, saves=True)
print(ended.status, ended.asked)
"""


@pytest.mark.parametrize(
    ("answer", "told"), [("8", "8 None"), also("5", "143 15"), also("", "143 15")]
)
def test_a_job_that_saves_is_asked_to_and_then_told(answer, told):
    assert in_a_process(ASKING, ASKED, answer) == told.split()


#: A launcher that hangs with what it has started, and takes no signal.
HANGS = """\
import signal, subprocess, sys, time
from psrt.faults.parent import parent_of_this
from psrt.faults.roster import this_process
signal.signal(signal.SIGTERM, signal.SIG_IGN)
parent_of_this().watch(this_process(1))
print(subprocess.Popen(["sleep", "97"]).pid, flush=True)
time.sleep(98)
"""
STALLING = """
it._OVER_S = 0.3
ended = it.attempt([sys.executable, "-c", sys.argv[1]], {}, parent, saves=True,
                   stall=lambda: "hangs" if parent.heard_at is not None else None)
print(ended.stalled, ended.returncode, ended.asked)
"""


def test_an_attempt_that_stalls_is_ended_with_what_it_has_started():
    pid, *ended = in_a_process(STALLING, HANGS)  # and nothing else: no rank is blamed
    assert ended == ["hangs", str(-signal.SIGKILL), "None"]
    assert state_of(int(pid)) in "ZX"  # there is perhaps nobody who takes note of its end


#: A launcher that has its parent stopped and continued, and sends it what is no order to end.
STOPS = """\
import os, signal, sys, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
for number in (0, signal.SIGWINCH, signal.SIGUSR1, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD):
    if number:
        os.kill(os.getppid(), number)
    for _ in range(2):
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(0.05)
        os.kill(os.getppid(), signal.SIGCONT)
        time.sleep(0.01)
sys.exit(7)
"""
#: Looks after a launcher in waits that are over while it is stopped.
CONTINUED = """
it._LONGEST_S = 0.02
ended = it.attempt([sys.executable, "-c", sys.argv[1]], {}, parent, saves=True)
print(ended.status, ended.asked)
"""


@pytest.mark.exhaustive
def test_a_launcher_that_was_stopped_and_continued_goes_on():
    """What a wait tells that a stop has interrupted is no signal."""
    assert in_a_process(CONTINUED, STOPS) == ["7", "None"]
