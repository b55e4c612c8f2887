"""Starts commands as a user does, with and without mpirun, and hands back what came."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Longest that a launch may take, in seconds.
TIMEOUT_S = 120
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


@dataclass(frozen=True)
class Done:
    """What came out of a command."""

    status: int
    stdout: str
    stderr: str

    @property
    def errors(self):
        """The lines in which psrt tells an error."""
        return [line for line in self.stderr.splitlines() if "psrt: error:" in line]


class Launch:
    """Starts commands in a folder."""

    def __init__(self, folder: Path, mpirun: Sequence[str]) -> None:
        self.folder = folder
        self._mpirun = mpirun

    def python(self, *words, **more):
        """Run this Python, without mpirun."""
        return self.command(sys.executable, *words, **more)

    def psrt(self, *words):
        """Run psrt, without mpirun."""
        return self.python("-m", "psrt", *words)

    def ranks(self, ranks, *words, **more):
        """Run this Python on so many ranks."""
        return self.command(*self._mpirun, "-n", ranks, sys.executable, *words, **more)

    def train(self, ranks, *flags):
        """Run ``psrt train`` on so many ranks."""
        return self.ranks(ranks, "-m", "psrt", "train", *flags)

    def mpmd(self, *parts):
        """Run psrt with other words on some ranks than on others: pairs of ranks and words."""
        command = []
        for ranks, words in parts:
            command += [":", "-n", ranks, sys.executable, "-m", "psrt", *words]
        return self.command(*self._mpirun, *command[1:])

    def start(self, *words, ranks=0):
        """Start this Python, on so many ranks if that is said, and do not wait for its end."""
        launcher = [*self._mpirun, "-n", ranks] if ranks else []
        return self._started([*launcher, sys.executable, *words])

    def _started(self, words, *, cwd=None, variables=None):
        own = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(_FOREIGN) and key not in _CHOICES
        }
        return subprocess.Popen(
            list(map(str, words)),
            cwd=cwd or self.folder,
            env=own | _OURS | (variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def command(self, *words, cwd=None, timeout_s=TIMEOUT_S, **variables):
        """Run a command to its end; one that takes too long is ended, ranks and all, and fails."""
        process = self._started(words, cwd=cwd, variables=variables)
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # mpirun then ends its ranks
            try:
                stdout, stderr = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                stdout, stderr = process.communicate()
            pytest.fail(f"took longer than {timeout_s} s: {words}\n{stdout}\n{stderr}")
        return Done(process.returncode, stdout, stderr)


@pytest.fixture(scope="session")
def mpirun():
    """The launcher of this environment's MPI, and what it needs to start any number of ranks."""
    beside = Path(sys.executable).parent / "mpirun"
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if path is None:
        pytest.skip("no mpirun")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    is_open_mpi = "Open MPI" in version.stdout
    return [path, *(["--oversubscribe", "--bind-to", "none"] if is_open_mpi else [])]


@pytest.fixture(scope="session")
def launch_in(mpirun):
    """Return what starts commands in a given folder."""
    return lambda folder: Launch(folder, mpirun)


@pytest.fixture
def launch(tmp_path, launch_in):
    """Starts commands in an empty folder."""
    return launch_in(tmp_path)
