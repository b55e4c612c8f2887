"""Which hosts answer: what ssh is given, and what is made of its end."""

import os
import socket
import subprocess
import sys

import pytest

from psrt.errors import ConfigError
from psrt.mpirun import reach
from psrt.mpirun.reach import command, unreachable

#: In the place of ssh: what it does depends on the host, its last word but one.
SSH = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
case $1 in
    down) echo "ssh: connect to host down port 22: No route to host" >&2; exit 255;;
    silent) exec sleep 60;;
    no-python) exit 127;;
esac
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_who_does_not_answer_is_named_and_why(ssh, monkeypatch):
    monkeypatch.setattr(reach, "_ANSWER_S", 1.0)
    hosts = ["up", "down", "no-python", "silent", socket.gethostname(), "localhost"]
    assert unreachable(hosts, 5.0) == {
        "down": "ssh: connect to host down port 22: No route to host",
        "silent": "no answer within 1 s",
    }


def test_without_ssh_nobody_answers(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert unreachable(["up"], 5.0) == {"up": "ssh: No such file or directory"}


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "a b", "a;b", "", "$(x)", "a\n"])
def test_what_is_no_name_never_comes_to_ssh(name):
    with pytest.raises(ConfigError, match="is no name or address of a host"):
        command(name, ["true"])


def test_a_name_comes_after_all_flags():
    words = command("node-1", ["a b", "c"])
    assert words[:3] == ["ssh", "-o", "BatchMode=yes"]
    assert words[-3:-1] == ["--", "node-1"]
    assert words[-1].endswith(" && 'a b' c")


def test_what_is_run_there_sweeps(tmp_path):
    """It is given the age of the attempt, so that clocks may differ."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "psrt.mpirun.segments", "0"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
