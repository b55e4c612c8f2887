"""What ranks find out about hosts: who is on which, their clocks, their links, ``psrt doctor``."""

import time
from time import perf_counter

import numpy as np
import pytest
from mpi4py import MPI

from psrt.doctor.findings import judge
from psrt.doctor.gather import gather
from psrt.doctor.messages import collect
from psrt.doctor.watch import Watch
from psrt.errors import TransportError
from psrt.mpi.agreement import raise_on_all
from psrt.mpi.clocks import clocks_of_hosts, compare_clocks
from psrt.mpi.hosts import Layout, split_hosts
from psrt.mpi.links import pieces
from psrt.mpi.links.pieces import MOST_BYTES, unannounced_bytes


def test_rails_join_the_hosts_as_far_as_the_smallest_goes():
    hosts = ((0, 3, 4), (1,), (2, 5))
    assert Layout(0, hosts).rails == ((0, 1, 2),)
    assert Layout(0, ((0, 1), (2, 3))).rails == ((0, 2), (1, 3))
    assert Layout(0, ((0, 1, 2),)).rails == ((0,), (1,), (2,))


def test_a_rank_s_place_is_among_the_ranks_of_its_host():
    layout = Layout(5, ((0, 3, 4), (1,), (2, 5)))
    assert (layout.size, layout.host, layout.local_ranks, layout.local_rank) == (6, 2, (2, 5), 1)


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


@pytest.mark.mpi
def test_ranks_of_a_host_need_not_be_neighbours(comm):
    node, layout = split_hosts(comm, comm.rank % 2)
    assert layout.hosts[0] == tuple(range(0, comm.size, 2))
    assert layout.hosts[1:] == ((tuple(range(1, comm.size, 2)),) if comm.size > 1 else ())
    node.Free()


# --- clocks ---------------------------------------------------------------------------------------


def test_hosts_take_turns():
    asked = []

    def swap(leader, mine, theirs):
        if theirs is not None:
            asked.append(leader)

    compare_clocks(0, [0, 2, 4, 6], lambda: 0.0, swap)
    for leader in (2, 4, 6):
        at = [i for i, it in enumerate(asked) if it == leader]
        assert len(at) == 50
        assert max(np.diff([-1, *at])) <= 1 + len(asked) // 10


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


@pytest.mark.mpi
def test_a_little_less_than_what_open_mpi_sends_at_once(comm, limits, monkeypatch):
    usual = expected(comm, 63 * KB)
    assert limits() == usual
    monkeypatch.setenv(LIMIT, str((64 + comm.rank) * KB))  # the least of what ranks are told
    assert limits() == usual
    monkeypatch.setenv(LIMIT, "130 KB")  # Open MPI's own to refuse
    assert limits() == usual


@pytest.mark.mpi
def test_whole_where_it_is_not_open_mpis_own_tcp(comm, limits, monkeypatch, shared_folder):
    """Or one rank has a device that writes to memory."""
    (shared_folder / "full" / "mlx5_0").mkdir(parents=True, exist_ok=True)
    mine = "full" if comm.rank == comm.size - 1 else "none"
    monkeypatch.setattr(pieces, "_DEVICES", ("/nowhere", str(shared_folder / mine)))
    assert limits() == expected(comm, MOST_BYTES)
    monkeypatch.setattr(pieces, "_DEVICES", ())
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    assert limits() == expected(comm, MOST_BYTES)


@pytest.mark.mpi
def test_ranks_of_a_machine_are_no_other_machine(comm, limits, one_host):
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


def test_who_sees_the_folder(comm, shared_folder):
    folder = str(shared_folder / "runs/new")
    facts = examine(comm, out=folder)
    if comm.rank == 0:
        assert facts.out_error == ""
        assert all(each.sees_out for each in facts.ranks)
        assert list(shared_folder.iterdir()) == []  # as it was before
    facts = examine(comm, out="/proc/nobody/writes/here")
    if comm.rank == 0:
        assert facts.out_error != ""
        assert any("cannot write" in finding.what for finding in judge(facts))


def test_who_is_silent_is_named(comm):
    if comm.size == 1:
        pytest.skip("one rank hears itself")
    last = comm.size - 1
    late = comm.Dup()
    try:
        if comm.rank == 0:
            with pytest.raises(TransportError, match=rf"no word of 1 rank \({last}\)"):
                collect(late, "", timeout_s=0.5)
        elif comm.rank != last:
            collect(late, "here", timeout_s=20)
    finally:
        comm.Barrier()
        if comm.rank == 0:
            status = MPI.Status()
            assert not late.Iprobe(status=status)
        late.Free()
    with raise_on_all(comm):
        time.sleep(0)
