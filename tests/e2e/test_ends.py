"""Ranks whose runs are over and whose processes do not end: named, and the job is ended."""

import json

import pytest

#: Ranks of which one does not end: after MPI has, before, with a thread, or stopped.
JOB = """
import atexit, os, signal, sys, threading
how = sys.argv[1]
number = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
late = number == "1"
if late and how == "after":
    atexit.register(threading.Event().wait)
import psrt
psrt.run(psrt.TrainConfig(mode="async", epochs=1, out="run"))
if late and how == "before":
    atexit.register(threading.Event().wait)
if late and how == "thread":
    threading.Thread(target=threading.Event().wait).start()
if late and how == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
"""
#: ``psrt launch`` with less patience.
LAUNCH = """
import sys
import psrt.faults.parent as parent
parent._LOOK_S, parent._NAMED_S, parent._BEFORE_THEM = 0.1, 0.3, 2.0 / 300
from psrt.__main__ import main
sys.exit(main(["launch", "-n", "3", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    "how",
    ["after", pytest.param("before", marks=pytest.mark.exhaustive), "thread",
     pytest.param("stopped", marks=pytest.mark.exhaustive)],
)  # fmt: skip
def test_a_rank_that_does_not_end_is_named_and_its_job_ended(launch, how):
    (launch.folder / "job.py").write_text(JOB)
    (launch.folder / "launch.py").write_text(LAUNCH)
    done = launch.python("launch.py", "job.py", how)
    (error,) = done.errors
    assert done.status == 4, done.stderr
    assert "no end of the process within" in error
    assert "(rank 1, " in error
    assert "rank 0" not in error
    said = [line for line in done.stderr.splitlines() if "the runs are over" in line]
    assert len(said) == 1
    assert "(rank 1, " in said[0]
    assert json.loads((launch.folder / "run" / "summary.json").read_text())["epochs"] == 1
