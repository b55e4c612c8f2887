"""Every rank runs every test, in step (see ``support.agreement``); rank 0 alone writes a report."""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from support.agreement import Ranks

#: From here on ranks are many for a small machine, and tests leave out what fewer ranks show.
MANY = 5
#: Layout → the host that a rank counts as being on (None: where it is), the fewest ranks that
#: make a difference, and the most on which it is worth its time.
LAYOUTS = {
    "every other": (lambda rank: rank % 2, 3, MANY - 1),
    "one-host": (lambda rank: None, 1, 64),
    "threes": (lambda rank: rank // 3, 4, 64),
    "apart": (lambda rank: rank, 2, MANY - 1),
}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if not config.getoption("--with-mpi"):
        return
    from psrt.mpi.start import world

    ranks = Ranks(world().Dup())
    config.pluginmanager.register(ranks, "ranks")
    if ranks.comm.rank:
        # The reporter, which is made after this, writes to what is stdout now.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    """Leave out pytest-mpi's closing section: a screenful, and with a NUL in it."""
    for plugin in session.config.pluginmanager.get_plugins():
        if type(plugin).__module__ == "pytest_mpi":
            plugin._is_testing_mpi = False


def pytest_ignore_collect(collection_path, config):
    """Leave these modules, which start MPI, alone where there are no ranks."""
    alone = not config.getoption("--with-mpi")
    return True if alone and collection_path.name.startswith("test_") else None


def pytest_generate_tests(metafunc):
    """Try a test that takes ``host`` on each layout: the host that this rank counts as being on."""
    if "host" in metafunc.fixturenames:
        from psrt.mpi.start import world

        ranks = world()
        found = {
            name: host_of(ranks.rank)
            for name, (host_of, fewest, most) in LAYOUTS.items()
            if fewest <= ranks.size <= most
        }
        metafunc.parametrize("host", found.values(), ids=found)


@pytest.fixture
def comm(request):
    """All ranks, on a communicator of the test's own."""
    from psrt.mpi.start import world

    comm = world().Dup()
    yield comm
    if not request.session.testsfailed:
        comm.Free()


@pytest.fixture
def tmp_path():
    """Refuse pytest's own: ranks that clean up the same folders at once stumble over each other."""
    pytest.fail("a folder for a test under mpirun is shared_folder, or tempfile's")


@pytest.fixture
def shared_folder(comm):
    """A new folder, the same on all ranks."""
    from psrt.mpi.agreement import bcast_text

    name = tempfile.mkdtemp() if comm.rank == 0 else ""
    path = Path(bcast_text(comm, name))
    yield path
    if comm.rank == 0:
        shutil.rmtree(path)


@pytest.fixture
def on_hosts(host, monkeypatch):
    """Let the ranks of jobs count as being on these hosts."""
    from psrt.mpi.port import MpiPort

    def made(*given, **more):
        return MpiPort(*given, **{**more, "host": host})

    monkeypatch.setattr("psrt.job.mpi.MpiPort", made)


@pytest.fixture
def real_hosts(comm):
    """The number of hosts that the ranks are on, as MPI has it."""
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    found = np.array([node.rank == 0], np.int64)
    node.Free()
    comm.Allreduce(MPI.IN_PLACE, found)
    return int(found[0])


@pytest.fixture
def one_host(real_hosts):
    """Return what skips the rest of a test that is about ranks which really share memory."""

    def skip():
        if real_hosts > 1:
            pytest.skip("the ranks are on several hosts")

    return skip


@pytest.fixture
def enough_on_few(comm):
    """Return what skips the rest of a test that is much the same on any number of ranks."""

    def skip():
        if comm.size >= MANY:
            pytest.skip("seen on fewer ranks")

    return skip


@pytest.fixture
def open_communicator(comm):
    """Return what makes a communicator; it is closed afterwards, by itself where it is broken."""
    from psrt.core.errors import PsrtError
    from psrt.mpi.communicator import Communicator

    groups = []

    def made(**options):
        groups.append(Communicator(comm, **({"timeout_s": 20.0} | options)))
        return groups[-1]

    yield made
    for communicator in groups:
        with contextlib.suppress(PsrtError):
            communicator.close()


@pytest.fixture
def port_of(comm):
    """Return what makes a port, given who is who; it is closed afterwards."""
    from psrt.mpi.port import MpiPort

    ports = []

    def made(role_map, **options):
        ports.append(MpiPort(comm, role_map, **({"timeout_s": 20} | options)))
        return ports[-1]

    yield made
    for port in ports:
        port.close()


@pytest.fixture
def same_bits(comm):
    """Return what tells whether all ranks hold the same bytes, to all of them alike."""

    def same(array):
        mine = np.frombuffer(hashlib.sha256(np.ascontiguousarray(array)).digest(), np.uint8)
        digests = np.empty((comm.size, mine.size), np.uint8)
        comm.Allgather(mine, digests)
        return bool((digests == digests[0]).all())

    return same
