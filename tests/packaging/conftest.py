"""What `.ci/release.py` has built into dist/, and an environment that has psrt from there only."""

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.launching import ROOT, environment


@dataclass(frozen=True)
class Installed:
    """The Python of an environment, and an empty folder."""

    python: Path
    folder: Path

    def run(self, *words):
        """Run its Python in the folder, as one who has nothing but the wheel."""
        own = environment(PYTHONPATH="", VIRTUAL_ENV="", PATH=f"{self.python.parent}:/usr/bin:/bin")
        return subprocess.run(
            (str(self.python), *words), cwd=self.folder, env=own, text=True, capture_output=True,
            timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def _built(pattern):
    found = list((ROOT / "dist").glob(pattern))
    assert len(found) == 1, f"dist/ has {found}: make test-packaging builds one"
    return found[0]


@pytest.fixture(scope="session")
def wheel():
    return _built("*.whl")


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """The folder that the sdist unpacks to."""
    archive, folder = _built("*.tar.gz"), tmp_path_factory.mktemp("sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="session")
def tracked():
    """The paths of all files of the repository."""
    words = ("git", "ls-files")
    done = subprocess.run(words, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
    return set(done.stdout.splitlines())


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """The wheel and what it depends on, from PyPI, in an environment of its own."""
    venv = tmp_path_factory.mktemp("consumer") / "venv"
    own = {**os.environ, "PYTHONPATH": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for words in (("-m", "venv", str(venv)), ("-m", "pip", "install", "--quiet", str(wheel))):
        python = venv / "bin/python" if "pip" in words else Path(sys.executable)
        subprocess.run((str(python), *words), env=own, check=True, timeout=300)
    return Installed(venv / "bin/python", tmp_path_factory.mktemp("elsewhere"))
