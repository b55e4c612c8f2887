"""Comparing the clocks of hosts: nobody waits for long, and every message is progress."""

from time import perf_counter

import numpy as np
import pytest

from psrt.mpi.clocks import clocks_of_hosts, compare_clocks


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
