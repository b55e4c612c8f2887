"""What ranks find out about hosts: who is on which, their clocks, their links, ``psrt doctor``."""

from time import perf_counter

import pytest
from mpi4py import MPI

from psrt.core.errors import TransportError
from psrt.doctor.findings import judge
from psrt.doctor.gather import gather
from psrt.doctor.messages import collect
from psrt.doctor.watch import Watch
from psrt.mpi.clocks import clocks_of_hosts
from psrt.mpi.hosts import Layout, split_hosts
from psrt.mpi.links import pieces
from psrt.mpi.links.pieces import MOST_BYTES, unannounced_bytes


def test_rails_join_the_hosts_as_far_as_the_smallest_goes():
    hosts = ((0, 3, 4), (1,), (2, 5))
    layout = Layout(5, hosts)
    assert (layout.size, layout.host, layout.local_ranks, layout.local_rank) == (6, 2, (2, 5), 1)
    rails = {hosts: ((0, 1, 2),), ((0, 1), (2, 3)): ((0, 2), (1, 3)), ((0, 1),): ((0,), (1,))}
    assert {it: Layout(0, it).rails for it in rails} == rails


@pytest.mark.mpi
def test_all_ranks_find_the_same_hosts(comm, host):
    node, layout = split_hosts(comm, host)
    assert layout.rank == comm.rank
    assert (node.size, node.rank) == (len(layout.local_ranks), layout.local_rank)
    assert set(comm.allgather(layout.hosts)) == {layout.hosts}
    assert sorted(sum(layout.hosts, ())) == list(range(comm.size))
    numbers = comm.allgather(host)
    for ranks in layout.hosts:
        assert len({numbers[rank] for rank in ranks}) == 1
    node.Free()


# --- clocks ---------------------------------------------------------------------------------------


@pytest.mark.mpi(min_size=3)
def test_each_message_is_progress_and_clocks_are_found(comm):
    told = []
    ahead = 5.0 * comm.rank

    found = clocks_of_hosts(
        comm, list(range(comm.size)), lambda: perf_counter() + ahead, lambda: told.append(None)
    )
    assert len(told) == 100 * (comm.size - 1 if comm.rank == 0 else 1)
    for rank, (seconds, error) in found.items():
        assert abs(seconds - 5.0 * rank) <= error + 1e-3


# --- how long a message may be without an announcement: the same at both ends ---------------------


KB = 1 << 10
LIMIT = "OMPI_MCA_btl_tcp_eager_limit"


def expected(comm, limit):
    limit = limit if MPI.get_vendor()[0] == "Open MPI" else MOST_BYTES
    return tuple(MOST_BYTES if rank == comm.rank else limit for rank in range(comm.size))


@pytest.mark.mpi
def test_how_long_a_message_may_be_without_an_announcement(
    comm, one_host, monkeypatch, shared_folder
):
    """A little less than what Open MPI's TCP sends at once; whole by what writes to memory."""
    monkeypatch.setattr(pieces, "_DEVICES", ())
    monkeypatch.delenv("OMPI_MCA_pml", raising=False)
    # The least of what ranks are told; what is no number is Open MPI's own to refuse.
    for told in (None, str((63 + comm.size - comm.rank) * KB), "130 KB"):
        monkeypatch.delenv(LIMIT, raising=False)
        if told is not None:
            monkeypatch.setenv(LIMIT, told)
        assert unannounced_bytes(comm, [comm.rank]) == expected(comm, 63 * KB)
    with monkeypatch.context() as patch:  # one rank has such a device
        (shared_folder / "full" / "mlx5_0").mkdir(parents=True, exist_ok=True)
        mine = shared_folder / ("full" if comm.rank == comm.size - 1 else "none")
        patch.setattr(pieces, "_DEVICES", ("/nowhere", str(mine)))
        assert unannounced_bytes(comm, [comm.rank]) == expected(comm, MOST_BYTES)
    with monkeypatch.context() as patch:
        patch.setenv("OMPI_MCA_pml", "ucx")
        assert unannounced_bytes(comm, [comm.rank]) == expected(comm, MOST_BYTES)
    one_host()
    node, layout = split_hosts(comm, comm.rank)
    node.Free()
    assert layout.machine == tuple(range(comm.size))
    assert set(unannounced_bytes(comm, layout.machine)) == {MOST_BYTES}


# --- doctor ---------------------------------------------------------------------------------------


def examine(comm, host=None, out=None):
    watch = Watch(100, first=comm.rank == 0)
    try:
        return gather(watch, out=out, timeout_s=30, host=host)
    finally:
        watch.close()


@pytest.mark.parametrize("hosts", [1, 2])
def test_ranks_hosts_and_the_links_between_them(comm, hosts):
    facts = examine(comm, host=comm.rank % hosts)
    if comm.rank != 0:
        assert facts is None
        return
    there = min(hosts, comm.size)
    assert [each.rank for each in facts.ranks] == list(range(comm.size))
    assert [each.node for each in facts.ranks] == [r % hosts for r in range(comm.size)]
    assert len({each.pid for each in facts.ranks}) == comm.size
    assert not any(each.window_error for each in facts.ranks)
    assert {each.versions["MPI"] for each in facts.ranks} == {facts.ranks[0].versions["MPI"]}
    assert facts.ranks[0].library_path.startswith("/")
    assert sorted(p.ranks for p in facts.pairs) == [
        (a, b) for a in range(there) for b in range(a + 1, there)
    ]
    for link in facts.pairs:
        assert link.error == ""
        assert link.alpha_s + link.beta_s * link.nbytes > 0
        assert link.one_way_s > 0
    for each in facts.ranks[:there]:
        assert abs(each.clock_s) <= max(0.05, 2 * each.clock_error_s)
    assert [finding for finding in judge(facts) if finding.severity == "fails"] == []


@pytest.mark.mpi(min_size=2)
def test_who_is_silent_is_named(comm):
    last, late = comm.size - 1, comm.Dup()
    if comm.rank == 0:
        with pytest.raises(TransportError, match=rf"no answer from 1 rank \({last}\)"):
            collect(late, "", timeout_s=0.5)
    elif comm.rank != last:
        collect(late, "here", timeout_s=20)
    comm.Barrier()
    assert comm.rank or not late.Iprobe()
    late.Free()
