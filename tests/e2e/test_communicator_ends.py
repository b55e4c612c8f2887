"""A program with a communicator that it never closes, and a rank that ends before the others."""

import re

import pytest

JOB = """
import sys

import numpy as np
import psrt

group = psrt.Communicator(timeout_s=60)
group.all_reduce(np.ones(9, np.float32), algorithm="ring")
if group.rank == 1:
    sys.exit()
try:
    group.all_reduce(np.ones(5, np.float32), algorithm="ring")
except psrt.errors.PsrtError as error:
    print(f"rank {group.rank}: {error}", flush=True)
print(f"rank {group.rank} ends", flush=True)
"""


def test_a_rank_that_ends_early_is_named_and_all_end(launch):
    (launch.folder / "job.py").write_text(JOB)
    done = launch.ranks(3, "job.py", timeout_s=50)
    assert (done.status, done.stderr) == (0, "")
    for rank in (0, 2):
        assert f"rank {rank}: rank 1 left with the end of its program" in done.stdout
        assert f"rank {rank} ends" in done.stdout


LEAVES = """
import sys

import numpy as np
import psrt

with psrt.Communicator(timeout_s=60) as group:
    for step in range(4):
        if group.rank == 1 and step == 2:
            {}
        group.all_reduce(np.ones(9, np.float32), algorithm="ring")
"""


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raise ValueError('bad sample 17')", "ValueError: bad sample 17"),
        ("sys.exit(0)", "SystemExit: 0"),
    ],
)
def test_a_rank_that_leaves_a_loop_is_a_line_on_the_others(launch, how, text):
    (launch.folder / "job.py").write_text(LEAVES.format(how))
    done = launch.ranks(3, "job.py", timeout_s=50)
    assert "psrt/mpi" not in done.stderr, "frames of psrt's own"
    assert done.stderr.count("Traceback") == how.startswith("raise")  # the rank's own
    if "Traceback" in done.stderr:
        assert done.status in (1, 5)  # of whoever ends first
        assert text in done.stderr
    else:
        assert done.status == 5
        assert re.search(
            rf"^psrt: error: rank 1 left with {text} \(\S*job\.py, line 11, on rank [02]\)$",
            done.stderr,
            re.MULTILINE,
        )
