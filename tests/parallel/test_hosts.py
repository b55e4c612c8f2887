"""Which ranks are on which host."""

import numpy as np
import pytest
from mpi4py import MPI

from psrt.mpi.hosts import Layout, split_hosts

pytestmark = pytest.mark.mpi


def test_rails_join_the_hosts_as_far_as_the_smallest_goes():
    hosts = ((0, 3, 4), (1,), (2, 5))
    assert Layout(0, hosts).rails == ((0, 1, 2),)
    assert Layout(0, ((0, 1), (2, 3))).rails == ((0, 2), (1, 3))
    assert Layout(0, ((0, 1, 2),)).rails == ((0,), (1,), (2,))


def test_a_rank_s_place_is_among_the_ranks_of_its_host():
    layout = Layout(5, ((0, 3, 4), (1,), (2, 5)))
    assert (layout.size, layout.host, layout.local_ranks, layout.local_rank) == (6, 2, (2, 5), 1)


def test_all_ranks_find_the_same_hosts(comm, host):
    node, layout = split_hosts(comm, host)
    assert layout.rank == comm.rank
    assert (node.size, node.rank) == (len(layout.local_ranks), layout.local_rank)
    mine = np.array([layout.hosts[i][0] for i in range(len(layout.hosts)) for _ in range(1)])
    lowest = mine.copy()
    comm.Allreduce(MPI.IN_PLACE, lowest, MPI.MAX)
    np.testing.assert_array_equal(mine, lowest)
    assert sorted(sum(layout.hosts, ())) == list(range(comm.size))
    numbers = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([-1 if host is None else host]), numbers)
    for ranks in layout.hosts:
        assert len(set(numbers[list(ranks)])) == 1
    node.Free()


def test_ranks_of_a_host_need_not_be_neighbours(comm):
    node, layout = split_hosts(comm, comm.rank % 2)
    assert layout.hosts[0] == tuple(range(0, comm.size, 2))
    assert layout.hosts[1:] == ((tuple(range(1, comm.size, 2)),) if comm.size > 1 else ())
    node.Free()
