"""All-reduce over MPI: every schedule, every length, whoever shares a host with whom."""

import hashlib

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.runtime.all_reduce import LIBRARY, Reducer
from psrt.transport import EXTRA, Wiring, drive
from psrt.transport.mpi import MpiPort

pytestmark = pytest.mark.mpi
NAMES = [*ALGORITHMS, LIBRARY]


@pytest.fixture
def open_port(comm, host):
    """Return what makes a port of a job without servers; it is closed afterwards."""
    ports = []

    def made(n):
        ports.append(MpiPort(comm, Wiring(n, tuple(range(comm.size))), timeout_s=20, host=host))
        return ports[-1]

    yield made
    for port in ports:
        port.close()


def whole_numbers(rank, size):
    """Return (size,) float32 of small whole numbers: their sum is exact in any order."""
    return np.random.default_rng((size, rank)).integers(-1000, 1000, size).astype(np.float32)


@pytest.mark.parametrize("n", [1, 7, 1000, 300_001])  # fewer than ranks, ragged, usual, large
def test_every_rank_ends_with_the_exact_sum(comm, open_port, n):
    port = open_port(n)
    expected = sum(whole_numbers(rank, n + EXTRA) for rank in range(comm.size))
    for name in NAMES:
        port.gradient[:] = whole_numbers(comm.rank, n + EXTRA)
        drive(Reducer(port, name).sum())
        np.testing.assert_array_equal(port.gradient, expected, err_msg=name)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_rank_ends_with_the_same_bits(comm, open_port, name):
    port = open_port(1001)
    port.gradient[:] = np.random.default_rng(comm.rank).standard_normal(port.gradient.size)
    drive(Reducer(port, name).sum())
    mine = np.frombuffer(hashlib.sha256(port.gradient.data).digest(), np.uint8)
    digests = np.empty((comm.size, mine.size), np.uint8)
    comm.Allgather(mine, digests)
    assert (digests == digests[0]).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_rounds_stay_in_step(comm, open_port, name):
    port = open_port(5)
    reducer = Reducer(port, name)
    for turn in range(100):
        port.gradient[:] = turn + comm.rank
        drive(reducer.sum())
        expected = comm.size * turn + comm.size * (comm.size - 1) // 2
        np.testing.assert_array_equal(port.gradient, expected)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_what_one_rank_sends_another_receives(comm, open_port, name):
    port = open_port(1000)
    drive(Reducer(port, name).sum())
    counts = port.gather([port.bytes_sent, port.bytes_received])
    if comm.rank == 0:
        sent, received = counts.sum(axis=0)
        assert sent == received
        assert (sent > 0) == (comm.size > 1)
