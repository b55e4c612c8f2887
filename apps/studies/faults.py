"""Stops and kills ranks of real jobs, cuts off hosts, and says what was promised and what was seen.

``make report-faults`` writes the table of ``docs/failures.md`` with it: a row for each fault, a
cell for each MPI, which sums up all modes. ``--only REGEX`` runs the cells that match, and leaves
the others as they are. A launch takes 3 to 20 s, all take 10 minutes.
Hosts need root, see ``tests/support/hosts.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE, JOB = ROOT / "docs" / "failures.md", Path(__file__).parent / "faulty_job.py"
BEGIN, END = "<!-- faults -->\n", "<!-- / -->"
VENVS = {"Open MPI": ".venv", "MPICH": ".venv-mpich"}
MODES = ("sync", "async", "ssp", "softsync", "local-sgd", "allreduce", "gossip")
#: Those with a server, and those that end with results when a worker but rank 0 stops responding.
WITH_SERVERS, CONTINUE = MODES[:4], (*MODES[1:4], "gossip")
TIMEOUT_S = 5
#: Longest that a launch may take, in seconds, before it counts as a hang.
LIMIT_S = 60
#: How long processes may take to vanish after their launcher, in seconds.
_GONE_S = 5.0
PHASES = {
    "initial": "set-up", "batches": "set-up", "gradient": "training", "evaluate": "conclusion",
}  # fmt: skip
#: Where a job runs: by psrt launch on one host or two, or by a bare mpirun.
ONE, HOSTS, BARE = "one host", "two hosts", "bare mpirun"


@dataclass(frozen=True)
class Fault:
    """Something that happens to a rank, or to its host."""

    where: str
    #: A signal's name, ``cut`` for a host without its link, ``crash`` for one without power.
    how: str
    rank: int
    phase: str = "gradient"
    #: Those that it is tried in.
    modes: Sequence[str] = MODES
    servers: int = 1

    @property
    def what(self) -> str:
        """The fault in words."""
        if self.how == "cut":
            return "node02 is cut off, training"
        if self.how == "crash":
            return "node02 loses power, training"
        who = "rank 0" if self.rank == 0 else "server" if self.rank < self.servers else "worker"
        place = ", node02" if self.where == HOSTS and self.rank == 2 else ""
        return f"{self.how}, {who}{place}, {PHASES[self.phase]}"

    @property
    def ranks(self) -> int:
        """The number of ranks of the job, with two workers."""
        return 2 + self.servers

    @property
    def tried(self) -> str:
        """The modes that it is tried in, in words."""
        if tuple(self.modes) == WITH_SERVERS:
            return "with servers"
        left = [mode for mode in MODES if mode not in self.modes]
        if len(left) >= len(self.modes):
            return ", ".join(self.modes)
        return f"all but {', '.join(left)}" if left else "all"

    def promise(self, mode: str) -> tuple[tuple[int, ...], bool]:
        """Return the statuses that may come, none for any but 0, and whether there are results."""
        if self.where == BARE and self.how == "SIGKILL":
            return (), False
        if self.how == "SIGKILL":
            return (5,), False
        if self.how == "crash":
            return (4, 5), False
        is_spared = self.rank >= self.servers and self.phase in ("gradient", "never")
        return (4,), is_spared and mode in CONTINUE

    @property
    def promised(self) -> str:
        """The statuses in words, and whether some modes have results."""
        statuses = " or ".join(map(str, self.promise("sync")[0])) or "not 0"
        has_results = any(self.promise(mode)[1] for mode in self.modes)
        return statuses + (", results" if has_results else "")


FAULTS = (
    Fault(ONE, "SIGKILL", 2),
    Fault(ONE, "SIGKILL", 1, modes=WITH_SERVERS, servers=2),
    Fault(ONE, "SIGKILL", 0),
    Fault(ONE, "SIGKILL", 0, "initial", ("sync", "allreduce")),
    Fault(ONE, "SIGKILL", 2, "batches", ("sync", "allreduce")),
    Fault(ONE, "SIGKILL", 0, "evaluate", ("sync", "allreduce")),
    Fault(ONE, "SIGSTOP", 2),
    Fault(ONE, "SIGSTOP", 1, modes=WITH_SERVERS, servers=2),
    Fault(ONE, "SIGSTOP", 0, modes=("sync", "async", "local-sgd", "allreduce", "gossip")),
    Fault(ONE, "SIGSTOP", 2, "batches", ("sync", "allreduce")),
    Fault(ONE, "SIGSTOP", 0, "evaluate", ("sync", "allreduce")),
    Fault(HOSTS, "SIGKILL", 2),
    Fault(HOSTS, "SIGKILL", 0, modes=("sync", "allreduce")),
    Fault(HOSTS, "SIGSTOP", 2, modes=("sync", "async", "local-sgd", "allreduce", "gossip")),
    Fault(HOSTS, "cut", 2, "never", ("sync", "async", "allreduce", "gossip")),
    Fault(HOSTS, "crash", 2, "never", ("sync", "async", "allreduce", "gossip")),
    Fault(BARE, "SIGKILL", 2, modes=("sync", "async", "allreduce")),
    Fault(BARE, "SIGKILL", 0, "initial", ("sync", "allreduce")),
    Fault(BARE, "SIGSTOP", 2, modes=("sync", "allreduce")),
)


@dataclass(frozen=True)
class Seen:
    """What came of a launch."""

    status: int
    stderr: str
    seconds: float
    #: Whether there is a summary of the run.
    results: bool
    #: Whether a process was left.
    left: bool

    @property
    def lines(self) -> list[str]:
        """What psrt said of the error."""
        return [line for line in self.stderr.splitlines() if "psrt: error:" in line]

    def broken(self, fault: Fault, mode: str, mpi: str) -> str:
        """Return which promises were broken, in words; empty if none was."""
        statuses, results = fault.promise(mode)
        wrong = []
        count = len(self.lines)
        is_named = count == 1 and re.search(rf"rank {fault.rank}\b", self.lines[0])
        may_be_mute = fault.where == BARE and mpi == "MPICH" and count == 0
        if not (is_named or may_be_mute):
            wrong.append({0: "no line", 1: "another rank named"}.get(count, f"{count} lines"))
        if not (self.status in statuses if statuses else self.status):
            wrong.append(f"status {self.status}")
        if results != self.results:
            wrong.append("results" if self.results else "no results")
        if self.left:
            wrong.append("a process is left")
        return ", ".join(wrong)


def summed_up(fault: Fault, mpi: str, seen: Mapping[str, Seen]) -> str:
    """Return what came of a fault in all modes, with each broken promise in bold.

    Args:
        fault: what happened.
        mpi: the MPI of the ranks.
        seen: what came of it, by mode.
    """
    statuses = " or ".join(map(str, sorted({it.status for it in seen.values()})))
    seconds = sorted({round(it.seconds) for it in seen.values()})
    parts = [f"{statuses}, {' to '.join(map(str, dict.fromkeys((seconds[0], seconds[-1]))))} s"]
    if mute := sum(not it.lines for it in seen.values()):
        parts.append(f"no line in {mute} of {len(seen)}")
    broken = {mode: it.broken(fault, mode, mpi) for mode, it in seen.items()}
    parts += [f"**{mode}: {words}**" for mode, words in broken.items() if words]
    return "; ".join(parts)


def words_of(fault: Fault, mode: str) -> list[Any]:
    """Return the words of a rank's process after its Python."""
    phase = "never" if fault.how in ("cut", "crash") else fault.phase
    how = ["--phase", phase, "--rank", fault.rank, "--how", fault.how]
    servers = ["--servers", fault.servers] if mode in WITH_SERVERS else []
    return [JOB, "--mode", mode, *servers, *how, "--timeout-s", TIMEOUT_S, "--out", "run"]


def on_one_host(python: Path, fault: Fault, mode: str, folder: Path) -> Seen:
    """Run a job on this machine."""
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI"))
    }
    own |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    launcher: list[Any] = [python, "-m", "psrt", "launch"]
    if fault.where == BARE:
        launcher = [python.parent / "mpirun"]
        own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        own |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        own |= {"PRTE_MCA_hwloc_default_binding_policy": "none"}
    interpreter = [python] if fault.where == BARE else []
    words = [*launcher, "-n", fault.ranks, *interpreter, *words_of(fault, mode)]
    process = subprocess.Popen(
        [*map(str, words)], env=own, cwd=folder, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    began = time.monotonic()
    try:
        _, stderr = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        _, stderr = process.communicate()
    seconds = time.monotonic() - began
    results = (folder / "run" / "summary.json").exists()
    left = not gone_soon(lambda: any(runs_in(folder)))
    return Seen(process.returncode, stderr, seconds, results, left)


def runs_in(folder: Path) -> Iterator[str]:
    """Return the processes of this machine whose current folder is the given one."""
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and (process / "cwd").readlink() == folder:
                yield process.name
        except OSError:
            continue  # it has ended


def gone_soon(is_left: Any) -> bool:
    """Wait until nothing is left; return whether that was soon."""
    deadline = time.monotonic() + _GONE_S
    while is_left():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def on_hosts(hosts: Any, python: Path, fault: Fault, mode: str, folder: Path) -> Seen:
    """Run a job on two hosts of ``tests/support/hosts.py``: ranks 0 and 1, and rank 2."""
    one, two = hosts.names
    (folder / "my-hosts").write_text(f"{one}:2\n{two}:1\n")
    words = ["launch", "--hostfile", "my-hosts", *words_of(fault, mode)]
    began = time.monotonic()
    process = hosts.start(
        one, python.parent / "psrt", *words, cwd=folder, OMPI_MCA_mpi_yield_when_idle="1"
    )
    try:
        if fault.how in ("cut", "crash"):
            while not (folder / "trains").exists() and time.monotonic() < began + LIMIT_S:
                time.sleep(0.05)
            (hosts.cut_link if fault.how == "cut" else hosts.crash)(two)
        _, stderr = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        hosts.sweep()
        _, stderr = process.communicate()
    seconds = time.monotonic() - began
    if fault.how == "cut":
        hosts.mend_link(two)
    elif two not in hosts._first:
        hosts.boot(two)
    left = not gone_soon(
        lambda: any(JOB.name in line for name in hosts.names for line in hosts.processes(name))
    )
    results = (folder / "run" / "summary.json").exists()
    return Seen(process.returncode, stderr, seconds, results, left)


def rows(mpi: str, wanted: Sequence[Fault]) -> None:
    """Run faults under one MPI, and write the cell of each into the page."""
    from support.hosts import Hosts, why_not

    with contextlib.ExitStack() as stack:
        hosts: Any = None
        for fault in wanted:
            if fault.where == HOSTS and hosts is None:
                reason = why_not()
                if reason is not None:
                    print(f"no hosts: {reason}", file=sys.stderr)
                    return
                hosts = stack.enter_context(Hosts(2))
            seen = {mode: launched(mpi, fault, mode, hosts) for mode in fault.modes}
            write(fault, mpi, summed_up(fault, mpi, seen))


def launched(mpi: str, fault: Fault, mode: str, hosts: Any) -> Seen:
    """Run a fault in one mode; return what was seen."""
    is_here = fault.where != HOSTS
    with tempfile.TemporaryDirectory(dir=None if is_here else hosts.folder) as name:
        python = ROOT / VENVS[mpi] / "bin" / "python"
        folder = Path(name)
        seen = (
            on_one_host(python, fault, mode, folder)
            if is_here
            else on_hosts(hosts, python, fault, mode, folder)
        )
    told = summed_up(fault, mpi, {mode: seen})
    print(mpi, fault.where, fault.what, mode, told, sep=" | ", file=sys.stderr)
    if "**" in told:
        print(seen.stderr, file=sys.stderr)
    return seen


def key(fault: Fault) -> str:
    """Return the beginning of a fault's row."""
    return f"| {fault.where} | {fault.what} |"


_writing = threading.Lock()


def write(fault: Fault, mpi: str, told: str) -> None:
    """Put a cell into the page, whose others stay."""
    with _writing:
        page = PAGE.read_text()
        begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
        body = "\n".join(changed(page[begin:end].splitlines()[2:], fault, mpi, told))
        PAGE.write_text(page[:begin] + body + "\n" + page[end:])


def changed(rows: Sequence[str], fault: Fault, mpi: str, told: str) -> list[str]:
    """Return a table with one cell changed, whose rows are those of all faults.

    Args:
        rows: the table without its head.
        fault: whose row it is.
        mpi: whose column it is.
        told: what the cell says.
    """
    cells = {}
    for row in rows:
        _, where, what, _, _, *seen, _ = row.split("|")
        cells[f"|{where}|{what}|"] = dict(zip(VENVS, map(str.strip, seen), strict=True))
    cells.setdefault(key(fault), dict.fromkeys(VENVS, ""))[mpi] = told
    return [
        f"| where | fault | modes | promised | {' | '.join(VENVS)} |",
        "|---|---|---|---|" + "---|" * len(VENVS),
        *(
            f"{key(one)} {one.tried} | {one.promised} | {' | '.join(cells[key(one)].values())} |"
            for one in FAULTS
            if key(one) in cells
        ),
    ]


def main() -> int:
    """Run the faults, and write the table into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cells whose row and MPI match this")
    only = re.compile(parser.parse_args().only)
    sys.path.insert(0, str(ROOT / "tests"))
    with ThreadPoolExecutor() as pool:
        for part in [
            pool.submit(rows, mpi, [it for it in FAULTS if only.search(f"{key(it)} {mpi} |")])
            for mpi in VENVS
        ]:
            part.result()
    return 0


if __name__ == "__main__":
    sys.exit(main())
