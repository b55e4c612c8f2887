"""What keeps ranks from starting on a host: found there, or understood from what ssh has said."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from psrt.doctor import host, preflight
from psrt.doctor.host import look
from psrt.doctor.preflight import understood
from psrt.mpirun.hostfile import Host
from psrt.mpirun.reach import Answer

PYTHON, FOLDER = "/env/bin/python", "/home/me/runs"
#: As OpenSSH 9, dash, bash, and Python 3.11 say it → the cause, and what its cure begins with.
SAID = {
    "ssh: Could not resolve hostname node02: Name or service not known": ("not known", "correct"),
    "ssh: connect to host node02 port 22: Connection refused": ("nothing answers", "start its"),
    "ssh: connect to host node02 port 22: Connection timed out": ("does not answer", "see whether"),
    "ssh: connect to host node02 port 22: No route to host": ("does not answer", "see whether"),
    "no answer within 15 s": ("does not answer", "see whether"),
    "me@node02: Permission denied (publickey,password).": ("a password", "ssh-copy-id node02"),
    "Host key verification failed.": ("does not know its key", "ssh node02 once"),
    "ssh: No such file or directory": ("no ssh here", "install it"),
    "sh: 1: cd: can't cd to /home/me/runs": ("no folder /home/me/runs", "start from"),
    "bash: line 1: cd: /home/me/runs: No such file or directory": ("no folder", "start from"),
    "env: '/env/bin/python': No such file or directory": ("it has no /env/bin/", "install the"),
    "env: ‘/env/bin/python’: Permission denied": ("it has no /env/bin/", "install the"),
    "/env/bin/python: No module named psrt": ("python has no psrt", "install the"),
    "/env/bin/python: Error while finding module specification for 'psrt.doctor.host' "
    "(ModuleNotFoundError: No module named 'psrt')": ("python has no psrt", "install the"),
    "Connection closed by 10.0.0.2 port 22": ("does not answer", "see whether"),
    "Segmentation fault": ("cannot be used (Segmentation fault)", "see what it says"),
    "": ("cannot be used (status 255)", "see what it says"),
}


@pytest.mark.parametrize("said", SAID)
def test_what_ssh_says_is_a_cause_with_a_cure(said):
    banner = "Warning: Permanently added 'node02' to the list of known hosts.\n"
    for text in (said, f"{banner}{said}\r\n" if said else said):
        ((what, cure),) = understood("node02", Answer(255, "", text), PYTHON, FOLDER)
        cause, begin = SAID[said]
        assert cause in what
        assert cure.startswith(begin)
        assert "{" not in what + cure


def test_what_a_host_has_found_is_taken_over_and_noise_is_not():
    found = [("it is full", "make room")]
    noisy = f"Welcome!\n{json.dumps(found)}\n"
    assert understood("a", Answer(0, noisy, ""), PYTHON, FOLDER) == found
    assert understood("a", Answer(0, "[]\n", "a warning"), PYTHON, FOLDER) == []
    for said in ("", "Welcome!", "[1]", '{"a": 1}x'):
        ((what, _),) = understood("a", Answer(0, said, ""), PYTHON, FOLDER)
        assert what.startswith("its shell answers")


def shared(monkeypatch, free):
    monkeypatch.setattr(
        host.os, "statvfs", lambda _: os.statvfs_result((1, 1, 64 << 20, free, free, *[1] * 5))
    )


@pytest.mark.parametrize(
    ("free", "ranks", "is_open_mpi", "fails"),
    [
        (16 << 10, 2, True, True),
        (16 << 10, 1, True, False),  # it shares with nobody
        (0, 1, False, True),
        (19 << 20, 4, True, True),
        (20 << 20, 400, True, False),
        (20 << 20, 4, False, True),
        (30 << 20, 4, False, False),
    ],
)
def test_a_small_or_full_shared_memory(monkeypatch, free, ranks, is_open_mpi, fails):
    shared(monkeypatch, free)
    monkeypatch.setattr(host, "refuses", lambda *_: "")
    found = look(ranks, is_open_mpi=is_open_mpi)
    assert [what.startswith("/dev/shm has ") for what, _ in found] == [True] * fails


def test_a_temporary_folder_of_no_use(monkeypatch, tmp_path):
    shared(monkeypatch, 1 << 30)
    (tmp_path / "a file").touch()
    for text, fails in ((tmp_path, False), (tmp_path / "new", False), (tmp_path / "a file", True)):
        monkeypatch.setenv("TMPDIR", str(text))
        found = look(2, is_open_mpi=True)
        assert ["takes none" in what and "(TMPDIR)" in what for what, _ in found] == [True] * fails
    full = Path("/dev/full")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full.open("wb"))
    assert "No space left on device" in look(2, is_open_mpi=True)[0][0]


def test_ranks_of_each_host():
    two = (Host("a", 2), Host("b", 4))
    assert preflight._shares(two, 3) == {"a": 2, "b": 1}
    assert preflight._shares(two, 2) == {"a": 2}
    assert preflight._shares(two, 9) == {"a": 4, "b": 6}
