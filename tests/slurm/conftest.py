"""A Slurm of three nodes for all tests; see ``support.slurm``."""

import pytest

from support import slurm as support


@pytest.fixture(scope="session")
def slurm():
    """Slurm, or the reason why there can be none here."""
    reason = support.why_not()
    if reason is None:
        try:
            running = support.Slurm()
        except support.NoSlurmError as error:
            reason = f"Slurm does not start here: {error}"
    if reason is not None:
        pytest.skip(reason)
    with running:
        yield running


@pytest.fixture(params=[support.OPEN_MPI, support.MPICH], ids=lambda mpi: mpi.vendor)
def mpi(request):
    """Each MPI that `make install` has made an environment for."""
    if not request.param.python.exists():
        pytest.skip(f"make install MPI={request.param.vendor} has not been run")
    return request.param


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skip a test in which Slurm itself has crashed, and the next ones find it running."""
    try:
        return (yield)
    except (Exception, pytest.fail.Exception):
        slurm = item.funcargs.get("slurm")
        if slurm is not None and (nodes := slurm.started_again()):
            pytest.skip(f"slurmd has crashed on {', '.join(nodes)}")
        raise


@pytest.fixture
def folder(slurm):
    """An empty folder that all nodes see."""
    return slurm.folder()


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    """Every test ends with no process of its jobs on any node."""
    yield
    if "slurm" in request.fixturenames:
        running = request.getfixturevalue("slurm")
        support.wait_until(lambda: not running.processes())
