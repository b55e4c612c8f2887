"""The Makefile, with stand-ins for python3, apt-get and mpirun; and what runs the parallel tests.

The real ones are at work whenever these tests are started by ``make test``. Of the parallel tests'
runner, one rank's failure is everyone's, and nobody hangs.
"""

import os
import re
import shutil

import pytest

from support.launching import ROOT

OLD_PYTHON = """\
case "$*" in
  -V) echo Python 3.9.2 ;;
  *version_info*) exit 1 ;;
esac
"""


LOG = 'echo "$(basename "$0")" "$@" >>calls.log\n'


class Workshop:
    """A folder with the Makefile, an empty setup.py, and stand-ins that come first on the PATH."""

    def __init__(self, launch, makefile):
        self.folder = launch.folder
        self._launch = launch
        shutil.copy(makefile, self.folder / "Makefile")
        (self.folder / "setup.py").touch()
        self._path = f"{self.folder / 'bin'}:{os.environ['PATH']}"

    def stand_in(self, path, text):
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)

    def installed(self, venv=".venv", mpirun=LOG):
        """Pretend that everything is there."""
        self.stand_in(f"{venv}/bin/python", LOG)
        self.stand_in(f"{venv}/bin/mpirun", mpirun)
        for stamp in ("psrt", "tests"):
            (self.folder / venv / f".has-{stamp}").touch()

    def make(self, *words):
        return self._launch.command("make", *words, PATH=self._path)

    def calls(self):
        return (self.folder / "calls.log").read_text().splitlines()


@pytest.fixture
def workshop(launch, request):
    if shutil.which("make") is None:
        pytest.skip("no make")
    return Workshop(launch, request.config.rootpath / "Makefile")


def test_help_lists_every_command(workshop):
    text = (workshop.folder / "Makefile").read_text()
    commands = set(" ".join(re.findall(r"^\.PHONY: (.*)$", text, re.M)).split())
    commands = {command for command in commands if command.isascii() and "$" not in command}
    done = workshop.make()
    assert done.status == 0
    listed = set(re.findall(r"^  ([a-z0-9-]+) ", done.stdout, re.M))
    assert {"train", "test", "lint"} <= listed
    assert listed == {command for command in commands if re.fullmatch("[a-z0-9-]+", command)}


def told(done):
    """Return the lines on stderr that are not make's own."""
    return [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]


def test_an_old_python_is_refused_in_one_line(workshop):
    workshop.stand_in("bin/python3", OLD_PYTHON)
    done = workshop.make("install")
    assert done.status == 2
    assert told(done) == [
        "psrt needs Python 3.11 or newer, python3 is Python 3.9.2; make PYTHON=... names another"
    ]
    assert not (workshop.folder / ".venv").exists()


@pytest.mark.parametrize(
    ("words", "flags", "roles"),
    [
        ([], "--oversubscribe --bind-to none -n 4", "--mode sync --servers 2"),
        (["MPI=mpich"], "-n 4", "--mode sync --servers 2"),
        (["RANKS=8", "SERVERS=3", "MODE=ssp"], "-n 8", "--mode ssp --servers 3"),
    ],
)
def test_train_starts_the_ranks(workshop, words, flags, roles):
    venv = ".venv-mpich" if "MPI=mpich" in words else ".venv"
    workshop.installed(venv)
    done = workshop.make("train", *words, "ARGS=--seed 7")
    assert done.status == 0, done.stderr
    (call,) = workshop.calls()
    assert call.startswith("mpirun ")
    assert f"{flags} {venv}/bin/python -m psrt train {roles} --dataset digits" in call
    assert call.endswith("--overwrite --seed 7")


def test_a_failing_launch_ends_the_tests_with_its_status(workshop):
    workshop.installed(mpirun=LOG + 'case "$*" in *"-n 3 "*) exit 1 ;; esac\n')
    done = workshop.make("test-parallel")
    assert done.status == 2
    assert "test-parallel-3" in done.stderr
    ranks = [re.search(r"-n (\d)", call).group(1) for call in workshop.calls()]
    assert ranks == ["1", "2", "3"]


def test_a_launch_that_hangs_is_ended(workshop):
    workshop.installed(mpirun="exec sleep 100\n")
    done = workshop.make("test-parallel-2", "LAUNCH_TIMEOUT=1")
    assert done.status == 2
    assert "test-parallel-2 was stopped after 1 s" in done.stderr
    assert "make test-parallel-2 PATIENCE=3" in done.stderr


TESTS = ROOT / "tests"
PYTHONPATH = f"{ROOT}:{TESTS}"
HEAD = """\
import time
import pytest
from mpi4py import MPI


@pytest.fixture
def broken(comm):
    assert comm.rank == 0, "not made"


"""


@pytest.fixture
def run_tests(launch):
    """Run a test module on two ranks, which wait 3 s for each other."""

    def run(text):
        shutil.copy(TESTS / "parallel" / "conftest.py", launch.folder)
        (launch.folder / "test_it.py").write_text(HEAD + text)
        words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "--with-mpi", ".")
        own = {"PYTHONPATH": PYTHONPATH, "PSRT_TEST_PATIENCE_S": "3"}
        return launch.ranks(2, *words, **own)

    return run


def test_what_fails_on_one_rank_fails_on_all_which_go_on(run_tests):
    done = run_tests(
        "@pytest.mark.parametrize('rank', [0, 1])\n"
        "def test_fails(comm, rank):\n"
        "    assert comm.rank != rank, 'it was me'\n\n\n"
        "def test_of_a_fixture(broken):\n"
        "    pass\n\n\n"
        "def test_skips(comm):\n"
        "    if comm.rank:\n"
        "        pytest.skip('here')\n\n\n"
        "def test_passes(comm):\n"
        "    comm.Barrier()\n"
        "    assert comm.size == 2\n"
    )
    assert done.status != 0
    for rank in (0, 1):
        assert f"[rank {rank}] E       AssertionError: it was me" in done.stdout
    assert "[rank 1] E       AssertionError: not made" in done.stdout
    assert "[rank 1] skipped here" in done.stdout
    assert done.stdout.count("1 passed") == 1  # one rank reports


@pytest.mark.exhaustive
def test_a_rank_that_hangs_ends_the_run(run_tests):
    done = run_tests("def test_it(comm):\n    time.sleep(1000 * comm.rank)\n")
    assert done.status != 0
    assert "[rank 0] no answer from other ranks within 3 s" in done.stderr


def test_they_are_left_out_where_there_are_no_ranks(launch):
    shutil.copy(TESTS / "parallel" / "conftest.py", launch.folder)
    (launch.folder / "test_it.py").write_text("raise SystemExit('was imported')\n")
    done = launch.python("-m", "pytest", "-q", "-p", "no:cacheprovider", ".", PYTHONPATH=PYTHONPATH)
    assert "no tests ran" in done.stdout
    assert "was imported" not in done.stdout + done.stderr
