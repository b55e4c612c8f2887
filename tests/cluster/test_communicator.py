"""The tests of `psrt.Communicator`, between hosts."""

import pytest

from support.launching import ROOT

pytestmark = pytest.mark.exhaustive

FILES = sorted((ROOT / "tests/parallel").glob("test_communicator_*.py"))


# Which hosts a rank is on is psrt's, and what carries messages between them the library's.
@pytest.mark.parametrize(
    ("vendor", "layout"), [("openmpi", "two"), ("mpich", "three")], indirect=True
)
def test_the_tests_of_the_communicator(hosts, vendor, layout):
    words = ["-m", "pytest", "-x", "-s", "--color=no", "--with-mpi", *FILES]
    done = hosts.mpirun(vendor, layout, *words, cwd=ROOT, timeout_s=300)
    assert done.status == 0, done.stdout + done.stderr
