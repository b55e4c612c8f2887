"""psrt explain as a user starts it: no MPI, at once, and one line for what will not do."""

import json

import pytest

from support.cases import some

#: Modules that a schedule must be explained without.
WITHOUT_MPI = """
import sys
sys.modules["mpi4py"] = sys.modules["matplotlib"] = None
from psrt.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "what", some(["ring", "naive", "ssp", "allreduce", "compare", "all-to-all"], one_in=2)
)
def test_it_needs_no_mpi(launch, what):
    done = launch.python("-c", WITHOUT_MPI, "explain", what)
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout


def test_the_worked_example(launch):
    (launch.folder / "example.csv").write_text(
        "A,17,11,1,9\nB,5,13,23,14\nC,3,6,10,8\nD,12,7,2,12\n"
    )
    flags = ["ring", "--order", "A,B,D,C", "--values", "example.csv", "--svg", "a.svg"]
    done = launch.psrt("explain", *flags)
    assert done.status == 0
    assert "all ranks end with (37, 37, 36, 43)" in done.stdout
    assert (launch.folder / "a.svg").read_text().startswith("<svg ")
    found = json.loads(launch.psrt("explain", *flags, "--json").stdout)
    assert found["totals"]["messages"] == 24


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (None, "cannot be read"),
        ("", "empty"),
        ("A,1,2\nB,3\n", "line 2"),
        ("A,1,x\n", "'x'"),
        ("A,1\nA,2\n", "a second rank"),
    ],
)
def test_bad_examples(launch, text, word):
    if text is not None:
        (launch.folder / "a.csv").write_text(text)
    done = launch.psrt("explain", "ring", "--values", "a.csv")
    assert (done.status, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("psrt: error: a.csv")
    assert word in done.stderr
