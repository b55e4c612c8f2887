"""Starts commands as a user does, with and without mpirun, and hands back what came."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: How long any process may take, in seconds: so long that only one that hangs is ended.
TIMEOUT_S = 300
#: What launchers and make set for their own children, by how the names begin; and what the
#: Makefile takes from the environment.
_FOREIGN = ("OMPI_COMM_", "PMIX_", "PMI_", "MPI_LOCAL", "SLURM_", "MAKE", "MFLAGS")
_CHOICES = ("MPI", "PYTHON")
_OURS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PYTHONPATH": str(ROOT),
}


#: What torch.distributed does to begin with: rank 0 listens where the others look for it.
MEETS = """\
import os, platform, socket, sys, time
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GLOO_SOCKET_IFNAME"
mine = " ".join([*(os.environ.get(name, "-") for name in names.split()), platform.node()])
rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", where[1])) as server:
        others = [server.accept()[0].makefile().read() for _ in range(size - 1)]
    sys.stdout.write("\\n".join([mine, *others]) + "\\n")
else:
    for attempt in range(1000):
        try:
            with socket.create_connection(where) as connection:
                connection.sendall(mine.encode())
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
"""
#: Runs commands in one job, or in one process; what is said on either stream has a part for each.
_ONE_AFTER_ANOTHER = """
import json, sys
from psrt.__main__ import main

comm = None
if sys.argv[2] != "0":
    import numpy as np
    from psrt.mpi.start import world

    comm = world()
for name, words in json.loads(sys.argv[1]).items():
    status = main(words)
    if comm is not None:
        mine = np.array([status])
        statuses = np.empty((comm.size, 1), mine.dtype)
        comm.Allgather(mine, statuses)
        assert (statuses == mine).all(), (name, statuses)
    if comm is None or comm.rank == 0:
        for stream in (sys.stdout, sys.stderr):
            print(f"== {status}", file=stream, flush=True)
    if comm is not None:
        comm.Barrier()
"""


@dataclass(frozen=True)
class Done:
    """What came out of a command."""

    status: int
    stdout: str
    stderr: str

    @property
    def errors(self) -> list[str]:
        """The lines in which psrt tells an error."""
        return [line for line in self.stderr.splitlines() if "psrt: error:" in line]


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until something holds; fail if that takes too long, or if a process ends before."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a command: a user's, and what is given."""
    own = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(_FOREIGN) and key not in _CHOICES
    }
    return {**own, **_OURS, **variables}


class Launch:
    """Starts commands in a folder."""

    def __init__(self, folder: Path, mpirun: Sequence[str], temporary: Path) -> None:
        self.folder = folder
        self.mpirun = mpirun
        # Not /tmp: an mpirun of Open MPI that was killed leaves a folder there by the number of its
        # process, and the next one that is given this number does not start (status 213).
        self._temporary = temporary

    def python(self, *words: Any, **more: Any) -> Done:
        """Run this Python, without mpirun."""
        return self.command(sys.executable, *words, **more)

    def psrt(self, *words: Any) -> Done:
        """Run psrt, without mpirun."""
        return self.python("-m", "psrt", *words)

    @property
    def is_open_mpi(self) -> bool:
        """Whether the launcher is that of Open MPI."""
        return len(self.mpirun) > 1

    def ranks(self, ranks: int, *words: Any, flags: Sequence[str] = (), **more: Any) -> Done:
        """Run this Python on so many ranks, with further flags of the launcher."""
        return self.command(*self.mpirun, *flags, "-n", ranks, sys.executable, *words, **more)

    def train(self, ranks: int, *flags: Any) -> Done:
        """Run ``psrt train`` on so many ranks."""
        return self.ranks(ranks, "-m", "psrt", "train", *flags)

    def mpmd(self, *parts: tuple[int, Sequence[Any]]) -> Done:
        """Run psrt with other words on some ranks than on others: pairs of ranks and words."""
        command: list[Any] = []
        for ranks, words in parts:
            command += [":", "-n", ranks, sys.executable, "-m", "psrt", *words]
        return self.command(*self.mpirun, *command[1:])

    def one_after_another(
        self, ranks: int, commands: Mapping[str, Sequence[Any]], **variables: str
    ) -> list[Done]:
        """Run commands of psrt in one job of so many ranks, and return what came of each.

        Half of the time of a short job is its start.

        Args:
            ranks: to start; 0 for one process, without mpirun.
            commands: by a name for each; they end with one status on all ranks.
            variables: of the environment.
        """
        words = {name: list(map(str, words)) for name, words in commands.items()}
        line = ("-c", _ONE_AFTER_ANOTHER, json.dumps(words), ranks)
        done = self.ranks(ranks, *line, **variables) if ranks else self.python(*line, **variables)
        assert done.status == 0, done.stderr
        out, err = (re.split(r"^== \d+$\n", it, flags=re.M) for it in (done.stdout, done.stderr))
        statuses = [int(it) for it in re.findall(r"^== (\d+)$", done.stderr, re.M)]
        assert len(statuses) == len(out) - 1 == len(err) - 1 == len(words), done.stderr
        return [Done(*it) for it in zip(statuses, out, err, strict=False)]

    def start(self, *words: Any, ranks: int = 0) -> subprocess.Popen[str]:
        """Start this Python, on so many ranks if that is said, and do not wait for its end."""
        launcher = [*self.mpirun, "-n", ranks] if ranks else []
        return self._started([*launcher, sys.executable, *words])

    def _started(
        self,
        words: Sequence[Any],
        *,
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
        alone: bool = False,
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            list(map(str, words)),
            cwd=cwd or self.folder,
            env=environment(**{"TMPDIR": str(self._temporary), **(variables or {})}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0 if alone else None,
            text=True,
            errors="replace",
        )

    def command(
        self, *words: Any, cwd: Path | None = None, timeout_s: float = TIMEOUT_S, **variables: str
    ) -> Done:
        """Run a command to its end; one that takes too long is ended, ranks and all, and fails."""
        process = self._started(words, cwd=cwd, variables=variables, alone=True)
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except BaseException as error:
            stdout = stderr = ""
            # With what it has started, which may have its output too; mpirun then ends its ranks.
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
                    break
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            pytest.fail(f"took longer than {timeout_s} s: {words}\n{stdout}\n{stderr}")
        return Done(process.returncode, stdout, stderr)
