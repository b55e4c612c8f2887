"""Pages on Slurm: every command, in order, typed by a user who has the cluster's MPI only."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from support.launching import ROOT, Launch
from support.slurm import OPEN_MPI, Job

#: What the page's users get from their site: here, the MPI of the environment and this Python.
MODULE = f"""
module() {{
    [ "$*" = "load openmpi python" ] || return 1
    export PATH="{Path(sys.base_prefix) / "bin"}:$PATH" LD_LIBRARY_PATH="{OPEN_MPI.folder / "lib"}"
}}
export -f module
"""
#: What these pages say of Slurm: a part of one, and all of another.
HOW_TO, TUTORIAL = ("docs/launch.md", "With Slurm"), ("docs/cluster-job.md",)
#: Commands that need the network, which the nodes do not have.
INSTALLS = ("python3 -m venv ", "~/psrt-env/bin/pip ")
#: Commands that are kept for those that follow.
SETTINGS = ("module ", "export ")


def commands(page, section=None):
    text = (ROOT / page).read_text(encoding="utf-8")
    if section is not None:
        text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture
def clone(folder):
    """What a clone has, and nothing that was made since."""
    for name in ("psrt", "apps", "hostfiles"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture
def typed(slurm, clone, tmp_path_factory):
    """Returns what types commands one after another, as one user, and hands back what they said."""
    if not OPEN_MPI.python.exists():
        pytest.skip("make install MPI=openmpi has not been run")
    caches = {"PIP_CACHE_DIR": os.path.expanduser("~/.cache/pip")}
    variables = {"HOME": str(clone), "USER": "root", "PYTHONPATH": ""}

    def type_all(lines):
        before, said = MODULE, {}
        for command in lines:
            if command.startswith(SETTINGS):
                before += command + "\n"
                continue
            words = ("bash", "-ec", before + command)
            if command.startswith(INSTALLS):
                launch = Launch(clone, (), temporary=tmp_path_factory.mktemp("tmp"))
                done = launch.command(*words, **variables, **caches)
            else:
                done = slurm.run(*words, cwd=clone, **variables)
            assert done.status == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            said[command] = done.stdout
            if submitted := re.search(r"Submitted batch job (\d+)", done.stdout):
                ended = Job(slurm, submitted[1], clone).ended()
                logs = [log.read_text() for log in clone.glob("psrt-*.log")]
                assert ended == ("COMPLETED", 0, 0), f"{command}\n{logs}"
        return said

    return type_all


@pytest.mark.exhaustive
def test_every_command_works_as_printed(typed, clone):
    said = typed(commands(*HOW_TO))
    (hello,) = (text for command, text in said.items() if "helloworld" in command)
    assert "process 2 of 3" in hello
    runs = sorted(path.parent.name for path in clone.glob("runs/*/summary.json"))
    assert len(runs) == 6, runs


@pytest.mark.exhaustive
def test_the_tutorial_works_as_printed(typed, clone):
    """After the installation that it refers to."""
    lines = commands(*TUTORIAL)
    said = typed([line for line in commands(*HOW_TO) if line.startswith(INSTALLS)] + lines)
    (doctor,) = (text for command, text in said.items() if "psrt doctor" in command)
    assert "3 ranks on 3 hosts" in doctor
    logs = [log.read_text() for log in clone.glob("psrt-*.log")]
    assert sum("weights" in log for log in logs) == 1, logs
    assert (clone / "runs/cluster/summary.json").exists()


def test_there_are_commands():
    """Else the pattern of the blocks has stopped matching."""
    assert len(commands(*HOW_TO)) >= 12
    assert len(commands(*TUTORIAL)) >= 7
