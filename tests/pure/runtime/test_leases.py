"""Buffers that may still be read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrt.runtime.leases import Leases


@pytest.fixture
def reading():
    return set()


@pytest.fixture
def leases(reading):
    return Leases(3, lambda rank: rank in reading, {})


def test_the_newest_is_free_while_nobody_reads_it(leases, reading):
    leases.acquire(4, 1)
    assert leases.free(0) == 0
    assert leases.free(1) == 1  # it has read it by now


def test_another_is_taken_while_it_is_read(leases, reading):
    reading |= {4, 5}
    leases.acquire(4, 0)
    leases.acquire(5, 1)
    assert leases.free(0) == 2
    assert str(leases) == "[4, 5]"
    reading.add(6)
    leases.acquire(6, 2)
    assert leases.free(0) is None
    reading.remove(5)
    assert leases.free(0) == 1


def test_who_is_sent_another_has_read_the_last(leases, reading):
    reading |= {4}
    leases.acquire(4, 0)
    leases.acquire(4, 2)
    assert leases.free(0) == 0
    leases.release(4)
    leases.release(4)
    assert leases.free(2) == 2


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.booleans()), max_size=40))
def test_it_never_gives_what_is_read(moves):
    reading, held = set(), {}
    leases = Leases(3, lambda rank: rank in reading, {})
    for rank, buffer, reads in moves:
        leases.acquire(rank, buffer)
        held[rank] = buffer
        (reading.add if reads else reading.discard)(rank)
        free = leases.free(buffer)
        busy = {held[rank] for rank in reading}
        assert free is None if busy == {0, 1, 2} else free not in busy
        assert free == buffer or buffer in busy


def test_buffers_of_no_length_count_too():
    leases = Leases(len([np.empty(0)] * 3), lambda rank: True, {})
    leases.acquire(0, 0)
    assert leases.free(0) == 1


class TestLandings:
    """Buffer 0 is a server's own, 1 and 2 are where ranks 4 and 5 compute."""

    @pytest.fixture
    def leases(self, reading):
        return Leases(3, lambda rank: rank in reading, {4: 1, 5: 2})

    def test_a_worker_computes_in_its_landing_from_the_beginning_until_it_pushes(self, leases):
        assert leases.free(1) == leases.free(2) == 0
        leases.release(4)  # it has pushed
        assert leases.free(1) == 1
        assert leases.free(2) == 0
        leases.acquire(4, 1)
        assert leases.free(1) == 0

    def test_a_worker_that_left_keeps_its_own_but_not_a_shared_one(self, leases):
        leases.leave(4)
        assert leases.free(1) == 0
        shared = Leases(2, lambda rank: False, {4: 1, 5: 1})
        shared.leave(4)
        assert shared.free(1) == 0
        shared.release(5)
        assert shared.free(1) == 1
