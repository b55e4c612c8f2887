"""A program with a communicator that it never closes, and a rank that ends before the others."""

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
