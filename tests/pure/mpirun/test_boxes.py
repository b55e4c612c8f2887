"""What an mpirun adds when ranks end is taken out of its stream, and nothing else is."""

import pytest

from psrt.mpirun.boxes import Boxes
from support.cases import each

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


@each("size", [5, 10_000])
@each("box", [*NOTHING_NEW, *REASONS])
def test_a_box_goes_wherever_it_is_and_however_it_comes(box, size):
    for before, after in list(zip(OTHERS, OTHERS[::-1], strict=True))[:: 4 if size < 9 else 1]:
        text = before + box + box + after
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        assert passed(parts) == before + after
        assert passed(parts, verbose=True) == text


def test_a_reason_is_told_at_the_end_if_nobody_has_told_one():
    for reason in REASONS:
        text = b"a\n" + reason + STATUS + b"b\n"
        assert passed([text]) == b"a\nb\n"
        assert passed([text], told=False) == b"a\nb\n" + reason


def test_lines_that_stand_for_more_of_the_same_and_the_empty_one_before_mpich_s():
    assert passed([b"a\n", ABORT + ALIKE + b"b\n"]) == b"a\nb\n"
    assert passed([b"a\n\n" + MPICH_KILLED + b"b\n"]) == b"a\nb\n"


def test_a_lost_host_is_noted():
    lost = []
    passed([LOST], lost=lost)
    assert lost == ["node03"]


@pytest.mark.parametrize("text", OTHERS)
def test_what_is_no_box_is_not_held_back(text):
    """All that is there at the latest when no more has come for a while."""
    boxes = Boxes([])
    assert boxes.feed(text) + boxes.idle() == text
    assert not boxes.waits
