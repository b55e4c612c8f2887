"""``psrt doctor`` gathers the same facts at any number of ranks, and gives up on who is silent."""

import time

import pytest
from mpi4py import MPI

from psrt.doctor.findings import judge
from psrt.doctor.gather import gather
from psrt.doctor.messages import collect
from psrt.doctor.watch import Watch
from psrt.errors import TransportError
from psrt.mpi.agreement import raise_on_all


def examine(comm, host=None, out=None):
    watch = Watch(100, first=comm.rank == 0)
    try:
        return gather(watch, out=out, timeout_s=30, host=host)
    finally:
        watch.close()


@pytest.mark.parametrize("hosts", [1, 2, 3])
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
