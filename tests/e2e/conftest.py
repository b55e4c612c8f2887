"""A launcher in an empty folder; see ``support.launching``."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.launching import Launch


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
def launch_in(mpirun, tmp_path_factory):
    """Return what starts commands in a given folder."""
    return lambda folder: Launch(folder, mpirun, temporary=tmp_path_factory.mktemp("tmp"))


@pytest.fixture
def launch(tmp_path, launch_in):
    """Starts commands in an empty folder."""
    return launch_in(tmp_path)
