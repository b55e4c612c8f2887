"""The parallel tests' own runner: one rank's failure is everyone's, and nobody hangs.

Each test here runs a small test module under mpirun, with the conftest of ``tests/parallel``.
"""

import shutil
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PYTHONPATH = f"{TESTS.parent}:{TESTS}"
HEAD = "import time\nimport pytest\n\n\n"


@pytest.fixture
def run_tests(launch):
    """Run a test module on two ranks, which wait 3 s for each other."""

    def run(text):
        shutil.copy(TESTS / "parallel" / "conftest.py", launch.folder)
        (launch.folder / "test_it.py").write_text(HEAD + text)
        return launch.ranks(
            2,
            *["-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "--with-mpi", "."],
            PYTHONPATH=PYTHONPATH,
            PSRT_TEST_PATIENCE_S="3",
        )

    return run


def test_what_passes_on_all_ranks_passes(run_tests):
    done = run_tests("def test_size(comm):\n    assert comm.size == 2\n")
    assert done.status == 0, done.stderr
    assert done.stdout.count("1 passed") == 1  # one rank reports


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_on_one_rank_fails_the_run_and_is_reported(run_tests, rank):
    done = run_tests(f"def test_it(comm):\n    assert comm.rank != {rank}, 'it was me'\n")
    assert done.status != 0
    assert f"[rank {rank}] E       AssertionError: it was me" in done.stdout
    assert "1 failed" in done.stdout


def test_a_failing_fixture_of_one_rank_fails_the_run(run_tests):
    done = run_tests(
        "@pytest.fixture\n"
        "def broken(comm):\n"
        "    assert comm.rank == 0, 'not made'\n\n\n"
        "def test_it(broken):\n"
        "    pass\n"
    )
    assert done.status != 0
    assert "[rank 1] E       AssertionError: not made" in done.stdout


def test_a_test_that_one_rank_skips_fails_the_run(run_tests):
    done = run_tests("def test_it(comm):\n    if comm.rank:\n        pytest.skip('here')\n")
    assert done.status != 0
    assert "[rank 1] skipped here" in done.stdout


def test_the_ranks_go_on_after_a_failure(run_tests):
    done = run_tests(
        "@pytest.mark.parametrize('turn', range(3))\n"
        "def test_it(comm, turn):\n"
        "    comm.Barrier()\n"
        "    assert (comm.rank, turn) != (1, 1)\n"
    )
    assert done.status != 0
    assert "1 failed, 2 passed" in done.stdout


def test_a_rank_that_hangs_ends_the_run(run_tests):
    done = run_tests("def test_it(comm):\n    time.sleep(1000 * comm.rank)\n")
    assert done.status != 0
    assert "[rank 0] no answer from other ranks within 3 s" in done.stderr


def test_a_module_that_one_rank_cannot_import_ends_the_run(run_tests):
    done = run_tests(
        "from mpi4py import MPI\n\n"
        "assert MPI.COMM_WORLD.rank == 0, 'no such module here'\n\n\n"
        "def test_it(comm):\n"
        "    pass\n"
    )
    assert done.status != 0
    assert "no such module here" in done.stderr


def test_they_are_left_out_where_there_are_no_ranks(launch):
    shutil.copy(TESTS / "parallel" / "conftest.py", launch.folder)
    (launch.folder / "test_it.py").write_text("raise SystemExit('was imported')\n")
    done = launch.python("-m", "pytest", "-q", "-p", "no:cacheprovider", ".", PYTHONPATH=PYTHONPATH)
    assert "no tests ran" in done.stdout
    assert "was imported" not in done.stdout + done.stderr
