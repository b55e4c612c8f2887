"""What psrt tells people to type, to start ranks."""

import sys

import pytest

from psrt.mpirun import again, has_mpirun, launch_line


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Make an environment of its own with a Python and other programs, and go there."""

    def make(*names, on_path=True):
        binaries = tmp_path / "env" / "bin"
        binaries.mkdir(parents=True)
        for name in ("python", *names):
            (binaries / name).write_text("#!/bin/sh\n")
            (binaries / name).chmod(0o755)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PATH", str(binaries) if on_path else "/nowhere")
        monkeypatch.setattr(sys, "executable", str(binaries / "python"))

    return make


def test_an_environment_on_the_path(installed):
    installed("psrt")
    assert launch_line(2, "a.py") == "psrt launch -n 2 a.py"


def test_an_environment_that_is_not_on_the_path(installed):
    installed("psrt", on_path=False)
    assert launch_line(2, "a.py") == "env/bin/psrt launch -n 2 a.py"


def test_psrt_without_being_installed(installed):
    installed()
    assert launch_line(2, "train") == "python -m psrt launch -n 2 train"


@pytest.mark.parametrize("on_path", [True, False])
def test_whether_there_is_an_mpirun(installed, on_path):
    installed("mpirun", on_path=on_path)
    assert has_mpirun()


def test_no_mpirun(installed):
    installed()
    assert not has_mpirun()


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["/env/bin/psrt", "train", "--out", "a b"], "train --out 'a b'"),
        (["/lib/psrt/__main__.py", "train"], "train"),
        (["/lib/mine/__main__.py", "--lr", "1"], "-m mine --lr 1"),
        (["apps/own model.py", "--lr", "1"], "'apps/own model.py' --lr 1"),
    ],
)
def test_the_same_again_on_several_ranks(installed, monkeypatch, argv, what):
    installed("psrt")
    monkeypatch.setattr(sys, "argv", argv)
    assert again(2) == f"psrt launch -n 2 {what}"
