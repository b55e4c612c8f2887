"""Who has nothing but the wheel has all of psrt; who has the sdist has all of the repository."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import BytesParser
from pathlib import Path

from psrt import __version__

ROOT = Path(__file__).parents[2]
CONSUMER = Path(__file__).with_name("consumer.py")
#: What a wrong use of each public name looks like; without py.typed all of them would pass.
MISUSES = {
    "psrt.TrainConfig(epochs='three')": "arg-type",
    "psrt.run(psrt.TrainConfig(), 3)": "arg-type",
    "psrt.trian": "attr-defined",
    "len(psrt.simulate(psrt.TrainConfig(), workers=2))": "arg-type",
}


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (it for it in archive.namelist() if it.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


def types(installed, program):
    """Return what mypy says of a program, by the packages of the environment, not of this one."""
    words = ("-m", "mypy", "--strict", "--no-incremental", "--config-file=", "--hide-error-context")
    own = {**os.environ, "PYTHONPATH": "", "MYPYPATH": ""}
    return subprocess.run(
        (sys.executable, *words, f"--python-executable={installed.python}", str(program)),
        cwd=installed.folder, env=own, text=True, capture_output=True, timeout=300,
    )  # fmt: skip


def test_the_wheel_has_the_package_and_nothing_else(wheel, tracked):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {name for name in tracked if name.startswith("psrt/")}


def test_the_sdist_has_the_whole_repository(unpacked, tracked):
    files = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert tracked - files == set()
    made = {name for name in files - tracked if not name.startswith("psrt_mpi.egg-info/")}
    assert made == {"PKG-INFO", "setup.cfg"}


def test_its_tests_run_in_the_sdist(unpacked):
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "tests/pure/test_metadata.py",
         "tests/pure/core/test_files.py"),
        cwd=unpacked, env={**os.environ, "PYTHONPATH": str(unpacked)}, text=True,
        capture_output=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_distribution_has_a_name_of_its_own(wheel):
    found = metadata(wheel)
    assert (found["Name"], found["Version"]) == ("psrt-mpi", __version__)
    assert found["License-Expression"] == "MIT AND CC-BY-4.0"


def test_the_description_reads_well_outside_of_the_repository(wheel):
    text = metadata(wheel).get_payload()
    assert text.lstrip().startswith("# psrt\n")
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    to_docs = re.findall(r"(?<!!)\[([^\]]+)\]\(docs/", page)
    assert to_docs
    assert [words for words in to_docs if words not in text] == []  # what a link says stays


def test_psrt_runs_where_only_the_wheel_is(installed):
    done = installed.run("-m", "psrt", "--version")
    assert (done.returncode, done.stdout) == (0, f"psrt {__version__}\n")
    script = "import psrt, importlib.metadata as m; print(m.version('psrt-mpi'), psrt.__file__)"
    version, file = installed.run("-c", script).stdout.split()
    assert version == __version__
    assert str(installed.python.parent.parent) in file
    words = ("train", "--mode", "serial", "--epochs", "1", "--out", "run")
    done = installed.run("-m", "psrt", *words)
    assert done.returncode == 0, done.stderr
    assert (installed.folder / "run/model.safetensors").exists()


def test_a_consumer_type_checks(installed):
    shutil.copy(CONSUMER, installed.folder)
    done = types(installed, CONSUMER.name)
    assert done.returncode == 0, done.stdout


def test_misuses_do_not(installed):
    lines = ["import psrt", *MISUSES]
    (installed.folder / "misuses.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = types(installed, "misuses.py")
    found = re.findall(r"^misuses\.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    assert {lines[int(line) - 1]: code for line, code in found} == MISUSES, done.stdout
