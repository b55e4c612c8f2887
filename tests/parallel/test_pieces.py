"""How long a message to another machine may be without an announcement: the same at both ends."""

import pytest
from mpi4py import MPI

from psrt.mpi.hosts import split_hosts
from psrt.mpi.links import pieces
from psrt.mpi.links.pieces import MOST_BYTES, unannounced_bytes

pytestmark = pytest.mark.mpi

KB = 1 << 10
LIMIT = "OMPI_MCA_btl_tcp_eager_limit"


@pytest.fixture
def limits(comm, monkeypatch):
    """Return what gives the limits that this rank knows, were each rank a machine of its own."""
    monkeypatch.setattr(pieces, "_DEVICES", ())
    monkeypatch.delenv(LIMIT, raising=False)
    monkeypatch.delenv("OMPI_MCA_pml", raising=False)
    return lambda: unannounced_bytes(comm, [comm.rank])


def expected(comm, limit):
    limit = limit if MPI.get_vendor()[0] == "Open MPI" else MOST_BYTES
    return tuple(MOST_BYTES if rank == comm.rank else limit for rank in range(comm.size))


def test_a_little_less_than_what_open_mpi_sends_at_once(comm, limits):
    assert limits() == expected(comm, 63 * KB)


def test_the_least_of_what_ranks_are_told(comm, limits, monkeypatch):
    monkeypatch.setenv(LIMIT, str((64 + comm.rank) * KB))
    assert limits() == expected(comm, 63 * KB)
    monkeypatch.setenv(LIMIT, "130 KB")  # Open MPI's own to refuse
    assert limits() == expected(comm, 63 * KB)


def test_whole_where_one_rank_has_a_device_that_writes_to_memory(
    comm, limits, monkeypatch, shared_folder
):
    (shared_folder / "full").mkdir(exist_ok=True)
    (shared_folder / "full" / "mlx5_0").mkdir(exist_ok=True)
    mine = "full" if comm.rank == comm.size - 1 else "none"
    monkeypatch.setattr(pieces, "_DEVICES", ("/nowhere", str(shared_folder / mine)))
    assert limits() == expected(comm, MOST_BYTES)


def test_whole_where_it_is_not_open_mpis_own_tcp(comm, limits, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    assert limits() == expected(comm, MOST_BYTES)


def test_ranks_of_a_machine_are_no_other_machine(comm, limits, one_host):
    one_host()
    node, layout = split_hosts(comm, comm.rank)
    node.Free()
    assert layout.machine == tuple(range(comm.size))
    assert set(unannounced_bytes(comm, layout.machine)) == {MOST_BYTES}
