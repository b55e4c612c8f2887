"""The page of psrt doctor: what a person looks for stands in it, in order."""

from dataclasses import replace

from psrt.doctor.findings import judge
from psrt.doctor.page import page
from support.doctor import OPEN_MPI, healthy, pair, rank, with_rank

HEAD = """\
versions  psrt 0.1.0, Python 3.11, numpy 2.4, mpi4py 4.1
MPI       Open MPI v5.0.11, ABI openmpi, /env/lib/libmpi.so.40
launcher  mpirun of Open MPI, PMIx
ranks     5 ranks on 2 hosts; psrt train takes them as sync, 1 server, 3 workers
set       UCX_TLS=tcp"""


def test_a_page():
    """Two hosts, of which the second is in trouble."""
    about = {"versions": OPEN_MPI, "library_path": "/env/lib/libmpi.so.40", "abi": "openmpi"}
    about |= {"launcher": "mpirun of Open MPI", "pmi": "PMIx", "settings": {"UCX_TLS": "tcp"}}
    more = {"node": 3, "cores": (0, 1), "clock_s": -0.002, "sees_out": False}
    ranks = [rank(number, node=0, sees_out=True, **about) for number in range(3)]
    ranks += [rank(number, "node02", **{**about, **more}) for number in (3, 4)]
    facts = replace(healthy(), ranks=tuple(ranks), pairs=(pair((0, 3)),), out="runs/x")
    facts = with_rank(facts, 4, window_error="no space left")
    text = page(facts, judge(facts))
    head, hosts, pairs, verdict = text.split("\n\n")
    assert head == HEAD
    assert [line.split()[0] for line in hosts.splitlines()[2:]] == ["node01", "node02"]
    for words in ("0-2", "3-4", "-2 ms ± 10 µs", "not seen", "fail"):
        assert words in hosts
    for words in ("node01 - node02", "34 ms", "959 Mbit/s"):
        assert words in pairs
    lines = verdict.splitlines()
    assert lines[0] == "fails  shared memory does not work on node02: no space left"
    assert lines[1].startswith("cure   give the host a larger /dev/shm")
    assert lines[2].startswith("       ")
    assert max(map(len, text.splitlines())) <= 120


def test_who_is_well_is_told_so():
    facts = healthy(2, 1)
    assert page(facts, judge(facts)).endswith("\n\nnothing found that would fail or slow a job")


def test_hosts_that_do_not_reach_each_other_are_in_the_table():
    facts = replace(healthy(), pairs=(pair((0, 2), error="no answer within 15 s"),))
    assert "no answer within 15 s" in page(facts, [])
