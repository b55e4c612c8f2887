"""Hosts: files that name them, which answer; what launchers say of a process, and at its end."""

import os
import socket

import pytest

from psrt import launch
from psrt.core.errors import ConfigError
from psrt.core.vendors import is_own, on_one_host, settings
from psrt.launch import launched, mismatch, reach, started_rank, started_ranks
from psrt.launch.boxes import Boxes
from psrt.launch.hostfile import Host, parse_hosts, read_hostfile
from psrt.launch.reach import command, unreachable
from support.cases import each


@each(("text", "hosts"), [
    ("node01:4\nnode02:2", [("node01", 4), ("node02", 2)]),
    ("node01 slots=4\nnode02 slots = 2", [("node01", 4), ("node02", 2)]),
    ("node01\n\n  10.0.0.2 : 3  # the big one\n# node03:9\n", [("node01", 1), ("10.0.0.2", 3)]),
    ("a slots=2 max_slots=4\nb max-slots=4 slots=3\nc max_slots=9", [("a", 2), ("b", 3), ("c", 1)]),
    ("me@a:2\nme@b slots=2\na", [("a", 3, "me"), ("b", 2, "me")]),
    ("n1:2\r\nn2:2\r\n", [("n1", 2), ("n2", 2)]),
])  # fmt: skip
def test_either_format(text, hosts):
    assert list(parse_hosts(text, "hosts")) == [Host(*host) for host in hosts]


#: What is refused, and the lines that are.
REFUSED = {
    "not a valid name": (
        *("-oProxyCommand=evil", "--prefix:2", "a;rm", "$(id)", "-l@node01", "a@b@node01"),
        *("@node01", "node01,node02", "../x", "nöde"),
    ),
    "given twice": ("node01 slots=2 slots=3",),
    "1 to 100000 slots": (
        *("node01:0", "node01:-1", "node01:²", "node01 slots=many", "node01:1:2", "a:99999999"),
    ),
    "got an IPv6 address": ("[::1]:2", "fe80::1:2"),
    "expected host": ("node01 max_slots=", "a\x0bb", "a\x85b", "node01 4", ":4"),
}  # fmt: skip


@each(("says", "line"), [(says, line) for says, lines in REFUSED.items() for line in lines])
def test_what_is_none_is_refused_with_its_line(says, line):
    with pytest.raises(ConfigError, match=says) as caught:
        parse_hosts(f"node00:2\n{line}", "my-hosts")
    assert "my-hosts, line 2: " in str(caught.value)


def test_files_that_are_none_are_refused_and_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a:2\r\nb\r\n", encoding="utf-8-sig")
    assert read_hostfile(str(path)) == (Host("a", 2), Host("b", 1))
    path.write_text("# nobody\n")
    with pytest.raises(ConfigError, match="names no host"):
        read_hostfile(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_hostfile(str(tmp_path / "nowhere"))


#: In the place of ssh: what it does depends on the host, its last word but one.
SSH = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
case $1 in
    down) echo "ssh: connect to host down port 22: No route to host" >&2; exit 255;;
    silent) exec sleep 60;;
    no-python) exit 127;;
esac
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_who_does_not_answer_is_named_and_why(ssh, monkeypatch, tmp_path):
    hosts = ["up", "down", "no-python", socket.gethostname(), "localhost"]
    assert unreachable(hosts, 5.0) == {
        "down": "ssh: connect to host down port 22: No route to host",
    }
    monkeypatch.setattr(reach, "_ANSWER_S", 0.1)
    assert unreachable(["silent"], 5.0) == {"silent": "no answer within 0.1 s"}
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert unreachable(["up"], 5.0) == {"up": "ssh: No such file or directory"}


def test_a_name_comes_after_all_flags_and_what_is_none_never_comes_to_ssh():
    words = command("node-1", ["a b", "c"])
    assert words[:3] == ["ssh", "-o", "BatchMode=yes"]
    assert words[-3:-1] == ["--", "node-1"]
    assert words[-1].endswith(" && 'a b' c")
    for name in ("-oProxyCommand=x", "a b", "a;b", "", "$(x)", "a\n"):
        with pytest.raises(ConfigError, match="is not a valid name or address of a host"):
            command(name, ["true"])


OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2"}
MPICH = {"PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALNRANKS": "4"}
SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}
TORCHRUN = {launch.TORCHRUN: "none", "WORLD_SIZE": "4", "RANK": "2"}


@pytest.fixture
def environment(monkeypatch):
    for name in (*launch.SIZES, *launch.RANKS, "MPI_LOCALNRANKS", *TORCHRUN):
        monkeypatch.delenv(name, raising=False)

    def put(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize("variables", [OPEN_MPI, MPICH, SRUN, SRUN | {"PMIX_RANK": "2"}])
def test_a_rank_of_several(environment, variables):
    environment(variables)
    assert (launched(), started_ranks(), started_rank()) == (True, 4, 2)
    line = mismatch(1, "Some MPI", "its mpirun")
    assert "one of 4 ranks, but Some MPI sees one" in line
    assert ("srun" in line) == ("SLURM_PROCID" in variables)
    assert mismatch(4, "Some MPI", "its mpirun") is None


def test_a_process_of_torchrun_is_told_what_starts_ranks(environment):
    environment(TORCHRUN)
    assert (launched(), started_ranks(), started_rank()) == (True, 4, 2)
    assert "psrt launch -n 4 SCRIPT" in mismatch(1, "Some MPI", "its mpirun")
    environment(OPEN_MPI)  # under it, the ranks of which count
    assert mismatch(4, "Some MPI", "its mpirun") is None
    assert "torchrun" not in mismatch(1, "Some MPI", "its mpirun")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WORLD_SIZE": "4", "RANK": "2"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
        {"SLURM_STEP_NUM_TASKS": "1"},
    ],
    ids=["a shell", "variables of a shell", "a batch script", "srun -n 1"],
)
def test_a_process_by_itself(environment, variables):
    environment(variables)
    assert (launched(), started_ranks(), started_rank()) == (False, 1, 0)
    assert mismatch(1, "Some MPI", "its mpirun") is None


def test_the_innermost_launcher_counts_and_pmix_alone_tells_of_lower_ranks(environment):
    environment({"PMIX_RANK": "3"})
    assert (launched(), started_ranks(), started_rank()) == (True, 4, 3)
    environment({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"} | OPEN_MPI)
    assert (started_ranks(), started_rank()) == (4, 2)
    environment({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"})
    assert (launched(), started_ranks()) == (True, 1)


@each(("variables", "is_one_host"), [
    (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, True),
    (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, False),
    (MPICH, True),
    (SRUN | {"SLURM_STEP_NUM_NODES": "2"}, False),
    ({}, False),  # it may start ranks elsewhere, which would have its variables
    ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}, False),
    (OPEN_MPI | SRUN | {"SLURM_STEP_NUM_NODES": "1"}, False),  # the innermost launcher counts
])  # fmt: skip
def test_ranks_on_one_host_do_without_tcp(variables, is_one_host):
    assert on_one_host(variables) == is_one_host
    own = settings(variables, tcp=not is_one_host)
    assert [text.endswith(",tcp") for text in own.values()] == [False, is_one_host, is_one_host]
    assert all(is_own(*it) for it in own.items())
    assert settings(dict.fromkeys(own, "mine"), tcp=not is_one_host) == {}
    assert not any(is_own(name, "mine") for name in own)


_DASHES, _EQUALS = "-" * 74, "=" * 83
ABORT = f"""\
{_DASHES}
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[13912,1],1]
  Errorcode: 5

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
{_DASHES}
{_DASHES}
prterun has exited due to process rank 1 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
{_DASHES}
\0""".encode()
STATUS = f"""\
{_DASHES}
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-10373@1,2]
   Exit code:    2
{_DASHES}
""".encode()
ALIKE = b"1 more process has sent help message help-mpi-api.txt / mpi-abort\n"
MPICH_ABORT = (
    b"Abort(5) on node 1 (rank 1 in comm 0): application called MPI_Abort(comm=0x84, 5)"
    b" - process 1\n"
)
KILLED = f"""\
{_DASHES}
prterun noticed that process rank 1 with PID 10192 on node vm exited on
signal 9 (Killed).
{_DASHES}
""".encode()
LOST = f"""\
{_DASHES}
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-node01-28@0,0] on node node01
  Remote daemon: [prterun-node01-28@0,2] on node node03

This is usually due to either a failure of the TCP network
connection to the node.
{_DASHES}
""".encode()
MPICH_KILLED = f"""\
{_EQUALS}
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 10504 RUNNING AT vm
=   EXIT CODE: 9
{_EQUALS}
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
""".encode()
LEFT = f"""\
{_DASHES}
prterun has exited due to process rank 1 with PID 27952 on node vm exiting
improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in the job did.
{_DASHES}
""".encode()
MPICH_LOST = b"""\
[mpiexec@vm] control_cb (/src/pm/hydra/mpiexec/pmiserv_cb.c:280): assert (!closed) failed
[proxy:0@node02] main (/src/pm/hydra/proxy/pmip.c:169): demux engine error waiting for event
"""
NOTHING_NEW = (ABORT, STATUS, MPICH_ABORT)
REASONS = (KILLED, LOST, LEFT, MPICH_KILLED, MPICH_LOST)
#: Of users and of MPI, as far as it says more; some of it begins as a box does.
OTHERS = (
    b"\rstep 3/9 [--",
    b"loss 0.1 - acc 0.9\n",
    f"{_DASHES}\nepoch  loss\n{_DASHES}\n".encode(),
    f"{_DASHES}\nprterun was unable to find the executable\n{_DASHES}\n".encode(),
    f"{_EQUALS}\n".encode() * 3,
    b"Abort(671) on node 0 (rank 0 in comm 0): Fatal error in internal_Send: x\n",
    b"12 more processes\n",
    b"[mpiexec@vm] HYDU: hosts\n[proxy: on]\n",
    b"a\0b\xff\n",
    b"psrt: error: worker 1 (rank 2, vm, pid 1) died\n",
)


def passed(parts, *, told=True, lost=None, verbose=False):
    boxes = Boxes([] if lost is None else lost, verbose=verbose)
    return b"".join(map(boxes.feed, parts)) + boxes.end(told=told)


@each("size", [29, 10_000])
@each("box", [*NOTHING_NEW, *REASONS])
def test_a_box_goes_wherever_it_is_and_however_it_comes(box, size):
    for before, after in list(zip(OTHERS, OTHERS[::-1], strict=True))[::4]:
        text = before + box + box + after
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        assert passed(parts) == before + after
        assert passed(parts, verbose=True) == text


def test_a_reason_is_told_at_the_end_if_nobody_has_told_one():
    for reason in REASONS:
        text = b"a\n" + reason + STATUS + b"b\n"
        assert passed([text]) == b"a\nb\n"
        assert passed([text], told=False) == b"a\nb\n" + reason
    lost = []
    passed([LOST], lost=lost)
    assert lost == ["node03"]


def test_lines_that_stand_for_more_of_the_same_and_the_empty_one_before_mpich_s():
    assert passed([b"a\n", ABORT + ALIKE + b"b\n"]) == b"a\nb\n"
    assert passed([b"a\n\n" + MPICH_KILLED + b"b\n"]) == b"a\nb\n"


@each("text", OTHERS)
def test_what_is_no_box_is_not_held_back(text):
    """All that is there at the latest when no more has come for a while."""
    boxes = Boxes([])
    assert boxes.feed(text) + boxes.idle() == text
    assert not boxes.waits
