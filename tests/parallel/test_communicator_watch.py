"""Who computes between two calls is not late; who is stopped is found, and named, all the same."""

import os
import signal
import time

import numpy as np
import pytest

from psrt.core.errors import TransportError
from psrt.faults.vitals import HERE
from psrt.mpi import company
from psrt.mpi.communicator import Communicator
from support.cases import also

pytestmark = pytest.mark.mpi(min_size=2)
#: The deadline here; and for how long rank 0 computes, as far as others can see, beyond it.
TIMEOUT_S, LATE_S = 1.0, 1.5


def ones(n=5):
    return np.ones(n, np.float32)


@pytest.fixture
def pairs(comm):
    """Return what makes communicators of two ranks each, no two of which know of each other."""
    made = []

    def of(*members):
        for pair in members:
            if comm.rank in pair:
                part = comm.Create_group(comm.group.Incl(pair))
                made.append(Communicator(part, timeout_s=TIMEOUT_S))
        assert len(company._open) == len(made)
        return made

    return of


def wait_for_all(comm):
    with HERE.blocked("the others"):  # it does not compute
        comm.Barrier()


def give_up(group):
    group._executor.broken = "over"
    group.close()


@pytest.mark.parametrize("waits_in", ["handles", also("the end")])
def test_who_computes_is_not_late(comm, waits_in):
    with Communicator(comm, timeout_s=TIMEOUT_S, host=comm.rank // 2) as group:
        one_more = Communicator(comm, timeout_s=20)
        assert len(company._open) == 1, "one watch is enough for ranks that it covers"
        one_more.close()
        if comm.rank == 0:
            time.sleep(LATE_S)
        if waits_in == "handles":
            sum_up = group.all_reduce_async(ones(4000), algorithm="ring")
            group.broadcast_async(ones(), root=0).wait()
            sum_up.wait()
    assert not company._open, "the watch ends with the last communicator"


def test_who_waits_for_ranks_that_wait_elsewhere_is_excused_as_they_are(comm, pairs):
    """A chain: rank 0 computes, rank 1 waits for it, and rank 2 for that."""
    made = pairs(*([first, first + 1] for first in range(comm.size - 1)))
    if comm.rank == 0:
        time.sleep(LATE_S)
    for pair in made:
        pair.all_reduce(ones())
        pair.all_reduce(ones())
    for pair in made:
        pair.close()


def test_ranks_that_wait_for_each_other_in_several_communicators_excuse_nobody(comm, pairs):
    """A ring: each watch finds one rank that waits in it, and one that waits in the next."""
    if comm.size == 2:
        pytest.skip("two make no ring of pairs")
    made = pairs(*([rank, (rank + 1) % comm.size] for rank in range(comm.size)))
    with pytest.raises(TransportError, match="no answer within 1 s"):
        made[0 if comm.rank == 0 else -1].all_reduce(ones(), algorithm="ring")
    wait_for_all(comm)
    for pair in made:
        give_up(pair)


@pytest.mark.parametrize("victim", [0, also(1)])
def test_a_stopped_rank_is_named_though_another_computes(comm, one_host, victim):
    one_host()  # else its signals do not reach it
    pids = comm.allgather(os.getpid())
    group = Communicator(comm, timeout_s=TIMEOUT_S)
    others = [rank for rank in range(comm.size) if rank != victim]
    if comm.rank == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif comm.rank == others[-1]:
        try:
            with pytest.raises(TransportError, match=rf"rank {victim} \(.*is (stopped|silent)"):
                group.all_reduce(ones())
        finally:
            os.kill(pids[victim], signal.SIGCONT)
    comm.Barrier()
    give_up(group)


def test_who_computes_for_ever_is_not_waited_for_for_ever(comm):
    group = Communicator(comm, timeout_s=0.3, busy_timeout_s=0.3)
    if comm.rank:
        with pytest.raises(TransportError, match=r"no answer within 0.3 s"):
            group.all_reduce(ones())
    comm.Barrier()
    give_up(group)
