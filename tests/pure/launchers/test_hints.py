"""What psrt tells people to type, to start ranks."""

import os
import sys

import pytest

from psrt.launchers import again, hints, start_line


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Make an environment of its own with an mpirun and a Python, and go there."""

    def make(*names, cores=2, root=False, on_path=True):
        binaries = tmp_path / "env" / "bin"
        binaries.mkdir(parents=True)
        for name in ("python", *names):
            (binaries / name).write_text("#!/bin/sh\n")
            (binaries / name).chmod(0o755)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PATH", str(binaries) if on_path else "/nowhere")
        monkeypatch.setattr(sys, "executable", str(binaries / "python"))
        monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        for name in hints._ROOT:
            monkeypatch.delenv(name, raising=False)

    return make


OPEN = ("mpirun", "prterun")


def test_more_ranks_than_cores(installed):
    installed(*OPEN)
    assert start_line((2, "a.py")) == "mpirun -n 2 python a.py"
    assert start_line((3, "a.py")) == "mpirun --oversubscribe -n 3 python a.py"
    several = start_line((1, "a.py"), (2, "b.py"))
    assert several == "mpirun --oversubscribe -n 1 python a.py : -n 2 python b.py"


def test_root_has_to_say_so(installed, monkeypatch):
    installed(*OPEN, root=True, cores=8)
    assert start_line((3, "a.py")) == "mpirun --allow-run-as-root -n 3 python a.py"
    for name in hints._ROOT:
        monkeypatch.setenv(name, "1")
    assert start_line((3, "a.py")) == "mpirun -n 3 python a.py"


def test_mpich_needs_neither(installed):
    installed("mpirun", root=True)
    assert start_line((3, "a.py")) == "mpirun -n 3 python a.py"


def test_an_environment_that_is_not_on_the_path(installed):
    installed(*OPEN, on_path=False)
    assert start_line((2, "a.py")) == "env/bin/mpirun -n 2 env/bin/python a.py"


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["/env/bin/psrt", "train", "--out", "a b"], "-m psrt train --out 'a b'"),
        (["/lib/psrt/__main__.py", "train"], "-m psrt train"),
        (["apps/own model.py", "--lr", "1"], "'apps/own model.py' --lr 1"),
    ],
)
def test_the_same_again_on_several_ranks(installed, monkeypatch, argv, what):
    installed(*OPEN)
    monkeypatch.setattr(sys, "argv", argv)
    assert again(2) == f"mpirun -n 2 python {what}"
