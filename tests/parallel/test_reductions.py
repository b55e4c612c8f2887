"""The trainer's sums: every all-reduce, with and without an update, on every layout of hosts."""

import itertools
import random

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.core.errors import ConfigError, ProtocolError, TransportError
from psrt.core.partition import Span
from psrt.mpi.collectives.slots import SLOTS
from psrt.mpi.port import MpiPort
from psrt.optim import BLOCK
from psrt.transport import CONTROL, RoleMap, drive

pytestmark = pytest.mark.mpi
NODES = ["node", *(f"node+{name}" for name in ALGORITHMS)]
NAMES = [*NODES, "mpi", *ALGORITHMS]


@pytest.fixture
def open_port(comm, port_of, host):
    """Return what makes a port of a job without servers."""
    return lambda n: port_of(RoleMap(n, tuple(range(comm.size))), host=host)


def usual(port, name):
    """Return what a name comes to: node is for one host."""
    return port.choice(name, 1000)[0]


def whole_numbers(rank, size, salt=0):
    """Return (size,) float32 of small whole numbers: their sum is exact in any order."""
    rng = np.random.default_rng((size, rank, salt))
    return rng.integers(-1000, 1000, size).astype(np.float32)


def total(ranks, size, salt=0):
    return sum(whole_numbers(rank, size, salt) for rank in range(ranks))


def owners_of(comm, taken):
    """Return how many ranks took each element."""
    counts = np.empty((comm.size, taken.size), np.int64)
    comm.Allgather(taken, counts)
    return counts


class Update:
    """θ ← 2·sums + the place, and a record of what was asked for."""

    def __init__(self, port):
        self.theta = port.theta
        self.taken = np.zeros(port.theta.size, np.int64)
        self.rounds = 0

    def __call__(self, span, sums):
        assert span.size == sums.size <= BLOCK
        span.of(self.taken)[:] += 1
        span.of(self.theta)[:] = 2 * sums + np.arange(span.start, span.stop) % 7
        sums[:] = np.nan  # scratch from here on


@pytest.mark.one_in(3)
@pytest.mark.parametrize("n", [1, 7, 1000, 3 * BLOCK + 5])
def test_an_update_reaches_every_rank(comm, open_port, enough_on_few, n):
    """Each element is taken by its owners, in blocks, once a round, the same in every round."""
    if n not in (7, 1000):
        enough_on_few()
    port = open_port(n)
    few = ["node", "ring", "mpi", "node+tree"]
    names = NAMES if n < BLOCK and comm.size < 5 else few
    for name in names:
        chosen, update = usual(port, name), Update(port)
        reduction = port.reduction(Span(0, n), chosen, update)
        first = None
        for turn in range(3):
            port.gradient[:n] = whole_numbers(comm.rank, n, turn)
            port.theta[:] = np.nan
            update.taken[:] = 0
            reduction.begin()
            while turn == 1 and not reduction.poll():
                pass
            drive(reduction.finish())
            expected = 2 * total(comm.size, n, turn) + np.arange(n) % 7
            np.testing.assert_array_equal(port.theta, expected, err_msg=name)
            first = update.taken.copy() if turn == 0 else first
            np.testing.assert_array_equal(update.taken, first)
            counts = owners_of(comm, update.taken)
            if chosen == "node":
                np.testing.assert_array_equal(counts.sum(axis=0), 1, err_msg=name)
            elif chosen.startswith("node+"):
                assert counts.max() == 1
                assert counts.sum(axis=0).min() >= 1
            else:
                np.testing.assert_array_equal(counts, 1, err_msg=name)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["node", "mpi", "node+halving-doubling", "tree"])
def test_buckets_under_way_in_any_order_of_polls(comm, open_port, enough_on_few, name):
    """As a backward pass fills them: begun one after the other, polled as each rank likes."""
    if name not in ("node", "tree"):
        enough_on_few()
    n = 9000
    port = open_port(n)
    rng = random.Random(comm.rank)
    edges = [0, 10, 700, 3000, 3001, 8000, n]
    spans = [Span(a, b) for a, b in itertools.pairwise(edges)]
    head = port.reduction(Span(n, n + CONTROL), usual(port, name), None)
    update = Update(port)
    buckets = [
        port.reduction(span, port.choice(name, span.size)[0], update) for span in reversed(spans)
    ]
    for turn in range(6):
        numbers = whole_numbers(comm.rank, n + CONTROL, turn)
        port.theta[:] = np.nan
        port.gradient[n:] = numbers[n:]
        head.begin()
        begun = []
        for span, bucket in zip(reversed(spans), buckets, strict=True):
            span.of(port.gradient)[:] = span.of(numbers)
            bucket.begin()
            begun.append(bucket)
            for each in rng.sample([head, *begun], rng.randint(0, len(begun))):
                each.poll()
        drive(head.finish())
        sums = total(comm.size, n + CONTROL, turn)
        np.testing.assert_array_equal(port.gradient[n:], sums[n:])
        for bucket in buckets:
            drive(bucket.finish())
        np.testing.assert_array_equal(port.theta, 2 * sums[:n] + np.arange(n) % 7)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["node", "ring"])
def test_as_many_buckets_as_there_is_room_for(comm, open_port, enough_on_few, name):
    enough_on_few()
    port = open_port(400)
    chosen = usual(port, name)
    room = (SLOTS - 1) // (2 if chosen.startswith("node+") else 1)  # one is for comparisons
    reductions = [port.reduction(Span(i, i + 1), chosen, None) for i in range(room)]
    port.gradient[:] = comm.rank
    for reduction in reductions:
        reduction.begin()
    for reduction in reversed(reductions):
        drive(reduction.finish())
    assert (port.gradient[:room] == comm.size * (comm.size - 1) // 2).all()
    with pytest.raises(ConfigError, match="bucket-bytes"):
        port.reduction(Span(0, 1), chosen, None)


def test_differing_names_who_is_odd_among_sums_under_way(comm, open_port):
    port = open_port(5)
    numbers = np.full(comm.size, 2**63 - 1)
    assert drive(port.differing(int(numbers[comm.rank]))) == []
    for odd in range(comm.size):
        mine = numbers[comm.rank] - (comm.rank == odd)
        expected = [] if comm.size == 1 else [1] if comm.size == 2 else [odd]
        assert drive(port.differing(int(mine))) == expected
    assert drive(port.differing(comm.rank)) == list(range(1, comm.size))
    reduction = port.reduction(Span(0, 5), usual(port, "ring"), None)
    for turn in range(5):
        port.gradient[:5] = comm.rank
        reduction.begin()
        assert drive(port.differing(turn)) == []
        drive(reduction.finish())
        assert (port.gradient[:5] == comm.size * (comm.size - 1) // 2).all()


@pytest.mark.mpi(min_size=2)
@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["node", "ring", "mpi"])
def test_a_worker_that_does_not_come_is_named(comm, enough_on_few, host, name):
    """The port is given up then: its memory stays until the job ends."""
    if name != "node":
        enough_on_few()
    port = MpiPort(comm, RoleMap(50, tuple(range(comm.size))), timeout_s=0.2, host=host)
    reduction = port.reduction(Span(0, 50), usual(port, name), None)
    comm.Barrier()
    if comm.rank != comm.size - 1:
        reduction.begin()
        with pytest.raises(
            TransportError, match=r"no answer within 0.2 s .--timeout-s.: .*reducti"
        ):
            drive(reduction.finish())
        with pytest.raises(ProtocolError, match="cannot be used after an error"):
            drive(port.differing(0))
    comm.Barrier()
