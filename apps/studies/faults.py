"""Stops and kills ranks of real jobs, under every MPI that is installed, and tells what was seen.

``make report-faults`` writes the table of ``docs/failures.md`` with it. A launch takes 3 to 8 s.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failures.md"
BEGIN, END = "<!-- faults -->\n", "<!-- / -->"
MODES = ("sync", "async", "softsync", "local-sgd", "allreduce")
TIMEOUT_S = 3
#: Longest that a launch may take, in seconds, before it counts as a hang.
LIMIT_S = 60
#: Of three ranks rank 0 is the server, where there is one.
CASES = (
    ("SIGSTOP", "initial", 2),
    ("SIGSTOP", "gradient", 2),
    ("SIGSTOP", "gradient", 0),
    ("SIGSTOP", "evaluate", 0),
    ("SIGKILL", "gradient", 2),
    ("SIGKILL", "initial", 0),
)
PHASES = {"initial": "set-up", "gradient": "training", "evaluate": "conclusion"}
JOB = """
import os, signal, sys
import numpy as np
import psrt
from psrt.mpi.start import world

mode, how, phase, rank = *sys.argv[1:4], int(sys.argv[4])
here = world().rank


def reaches(name):
    if name == phase and here == rank:
        os.kill(os.getpid(), getattr(signal, how))


class Problem:
    steps = 0

    def initial(self):
        reaches("initial")
        return np.zeros(1000, np.float32)

    def batches(self, worker, workers, epoch):
        if rank:
            reaches("initial")
        return [np.ones(2)] * 200

    def loss_and_grad(self, theta, batch, out):
        self.steps += 1
        if self.steps == 150:
            reaches("gradient")
        out[:] = 0.001
        return 1.0

    def evaluate(self, theta):
        reaches("evaluate")
        return {"loss": 0.0}


servers = int(mode != "allreduce" and mode != "local-sgd")
if servers and rank == 0 and phase == "gradient":
    # A server computes nothing: its own timer ends it while the workers train.
    signal.signal(signal.SIGALRM, lambda *_: reaches("gradient"))
    if here == 0:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
    Problem.steps = 1000
    Problem.batches = lambda self, *_: [np.ones(2)] * 2_000_000
psrt.run(psrt.TrainConfig(mode=mode, epochs=3, timeout_s=float(sys.argv[5])), Problem())
"""


def seen(python: Path, script: Path, mode: str, how: str, phase: str, rank: int) -> str:
    """Run one job; return what was seen, in a few words."""
    words = [python.parent / "mpirun", "-n", 3, python, script, mode, how, phase, rank, TIMEOUT_S]
    own = {name: value for name, value in os.environ.items() if not name.startswith("OMPI_COMM")}
    own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    own |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    own |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    own |= {"PRTE_MCA_hwloc_default_binding_policy": "none"}
    began = time.monotonic()
    try:
        done = subprocess.run(
            list(map(str, words)), env=own, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return "**hangs**"
    seconds = time.monotonic() - began
    lines = [line for line in done.stderr.splitlines() if "psrt: error:" in line]
    if len(lines) == 1 and re.search(rf"rank {rank}\b", lines[0]):
        told = "named"
    else:
        told = f"**{len(lines)} lines**" if lines else "no line"
    return f"{told}, status {done.returncode}, {seconds:.0f} s"


def rows(mpi: str, python: Path, script: Path) -> list[str]:
    """Return the rows of one MPI."""
    found = []
    for how, phase, rank in CASES:
        promised = "named, status 4" if how == "SIGSTOP" else "named; any status but 0"
        if how == "SIGKILL" and mpi == "MPICH":
            promised = "status not 0; perhaps a line"
        if how == "SIGSTOP" and mpi == "MPICH" and rank == 0:
            promised = "named; status not 0"  # the launcher's, of the process that it kills
        cells = [seen(python, script, mode, how, phase, rank) for mode in MODES]
        what = f"{how}, rank {rank}, {PHASES[phase]}"
        found.append(f"| {mpi} | {what} | {promised} | {' | '.join(cells)} |")
    return found


def main() -> int:
    """Run every case, and write the table into the page."""
    pythons = {
        name: ROOT / folder / "bin" / "python"
        for name, folder in (("Open MPI", ".venv"), ("MPICH", ".venv-mpich"))
    }
    there = {name: python for name, python in pythons.items() if python.exists()}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        script = Path(folder) / "job.py"
        script.write_text(JOB)
        parts = [pool.submit(rows, name, python, script) for name, python in there.items()]
        body = [row for part in parts for row in part.result()]
    head = ["| MPI | fault | promised |" + "".join(f" {mode} |" for mode in MODES)]
    head.append("|---|---|---|" + "---|" * len(MODES))
    table = "\n".join([*head, *body]) + "\n"
    print(table)
    text = PAGE.read_text()
    PAGE.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: BEGIN + table + END, text, flags=re.S))
    return 0


if __name__ == "__main__":
    sys.exit(main())
