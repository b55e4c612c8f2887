"""Groups from making to closing: what is compiled, forgotten, counted, freed."""

import gc
import itertools
import os
import time
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from mpi4py import MPI

from psrt.collective import ALGORITHMS
from psrt.core.errors import ConfigError
from psrt.mpi.collectives.plans import staged as staged_plan
from psrt.mpi.communicator import Communicator

pytestmark = pytest.mark.mpi


def test_what_a_group_says_of_its_ranks(comm, open_communicator, host):
    communicator = open_communicator(host=host)
    assert (communicator.rank, communicator.size) == (comm.rank, comm.size)
    assert sum(communicator.hosts) == comm.size
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    first = np.array([comm.rank])
    node.Bcast(first)
    node.Free()
    hosts = np.empty((comm.size, 2), np.int64)
    comm.Allgather(np.array([*first, -1 if host is None else host]), hosts)
    assert communicator.hosts == tuple(Counter(map(tuple, hosts)).values())


def test_new_buffers_hold_zeros_and_do_not_overlap(comm, open_communicator, host):
    communicator = open_communicator(host=host)
    shapes = [
        ((), "float16"),
        (0, "int32"),
        ((3, 0), "int64"),
        ((7, 11), "f8"),
        (7, "i4"),
        (7, "i4"),
    ]
    shapes += [(n, "float32") for n in (0, 1, 1024, 1025, 3, 4096)]
    buffers = [communicator.empty(*it) for it in shapes]
    for i, ((shape, dtype), buffer) in enumerate(zip(shapes, buffers, strict=True)):
        assert (buffer.shape, buffer.dtype) == (np.empty(shape).shape, dtype)
        assert not buffer.any()
        buffer[...] = 20 * comm.rank + i
    comm.Barrier()
    for i, buffer in enumerate(buffers):
        assert (buffer == 20 * comm.rank + i).all()


def test_groups_can_be_made_and_closed_again_and_again(comm):
    before = len(os.listdir("/proc/self/fd"))
    for host in [None, comm.rank] * 5:
        with Communicator(comm, timeout_s=20, host=host) as communicator:
            assert (communicator.all_reduce(np.ones(3, np.float32)) == comm.size).all()
            communicator.all_reduce(communicator.empty(20_000))
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_closed_communicator_refuses(comm):
    """What was compiled, too, and whether it waits or not."""
    known = [np.ones(3, np.float32), np.ones(9000, np.float32)]
    communicator = Communicator(comm, timeout_s=20)
    for buffer in known:
        communicator.all_reduce(buffer)
    communicator.close()
    communicator.close()
    calls = [communicator.all_reduce, communicator.all_reduce_async, communicator.broadcast]
    for call in calls:
        for buffer in (*known, np.ones(4, np.float32)):
            with pytest.raises(ConfigError, match=rf"{call.__name__}.*the communicator is closed"):
                call(buffer)
    with pytest.raises(ConfigError, match=r"empty.*the communicator is closed"):
        communicator.empty(3)


def test_closing_ends_what_is_under_way(comm, host):
    communicator = Communicator(comm, timeout_s=20, host=host)
    buffers = [np.ones(1000, np.float32) for _ in range(4)]
    handles = [
        communicator.all_reduce_async(buffer, "sum", name)
        for buffer, name in zip(buffers, ["ring", "node", "mpi", "tree"], strict=True)
    ]
    communicator.close()
    for buffer, handle in zip(buffers, handles, strict=True):
        assert handle.done
        handle.wait()
        assert (buffer == comm.size).all()


@pytest.mark.mpi(min_size=3)
def test_a_group_of_some_ranks_in_another_order(comm):
    part = comm.Split(comm.rank % 2, -comm.rank)
    with Communicator(part, timeout_s=20) as communicator:
        for name in ("auto", "node", "ring", "mpi", "halving-doubling-blocks"):
            buffer = np.full(10, comm.rank, np.float32)
            communicator.all_reduce(buffer, "sum", name)
            assert (buffer == sum(range(comm.rank % 2, comm.size, 2))).all()
        buffer = np.full(10, comm.rank, np.float32)
        communicator.broadcast(buffer)
        highest = max(range(comm.rank % 2, comm.size, 2))
        assert (buffer == highest).all()
    part.Free()


def calls_of(communicator, count):
    """Return so many different calls: of other lengths, buffers, operations and algorithms."""
    names = ["auto", "node", "node+tree", "ring", "mpi", *ALGORITHMS]
    room = communicator.empty(count + 10)
    calls = []
    for i in range(count):
        n = 1 + i
        buffer = room[:n] if i % 3 == 0 else np.empty(n, np.float32)
        calls.append((buffer, ["max", "sum", "min"][i % 3], names[i % len(names)]))
    return calls


def make(communicator, call, turn):
    buffer, op, name = call
    buffer[:] = np.arange(buffer.size) % 50 + communicator.rank + turn
    communicator.all_reduce(buffer, op, name)
    total = communicator.size * (communicator.size - 1) // 2
    base = np.arange(buffer.size) % 50 + turn
    expected = {
        "max": base + communicator.size - 1,
        "min": base,
        "sum": base * communicator.size + total,
    }[op]
    np.testing.assert_array_equal(buffer, expected, err_msg=f"{buffer.size} {op} {name}")


@pytest.fixture
def slots(monkeypatch):
    """The number of slots: to be quick about it, a few."""
    monkeypatch.setattr("psrt.mpi.collectives.contexts.SLOTS", 20)
    return 20


@pytest.mark.one_in(2)
def test_more_calls_than_there_are_slots(open_communicator, host, slots):
    """The oldest are forgotten, and compiled anew when they are made again."""
    communicator = open_communicator(host=host)
    calls = calls_of(communicator, slots + 30)
    for turn in range(2):
        for call in calls:
            make(communicator, call, turn)
        for call in calls[:20]:
            make(communicator, call, turn)


@pytest.mark.one_in(2)
def test_a_slot_is_not_given_away_under_a_slow_rank(
    comm, open_communicator, host, slots, monkeypatch
):
    """A root that does not wait for anybody calls so many things that slots are used again."""
    communicator = open_communicator(host=host)
    staged = np.empty(5000, np.float32)
    other = np.empty(5001, np.float32)
    make(communicator, (staged, "sum", "node"), 0)
    if comm.rank == comm.size - 1:
        carry = staged_plan._carry

        def late(copies):
            time.sleep(0.02)
            carry(copies)

        monkeypatch.setattr(staged_plan, "_carry", late)
    for turn in range(2):
        make(communicator, (staged, "sum", "node"), turn)
        for n in range(1, slots + 1):
            communicator.broadcast(np.full(n + slots * turn, turn, np.int32))
        make(communicator, (other, "sum", "node"), turn)


@pytest.mark.one_in(5)
def test_arrays_that_come_and_go(open_communicator, host):
    """New arrays find themselves where old ones were, and not on all ranks alike."""
    communicator = open_communicator(host=host)
    rng = np.random.default_rng(communicator.rank)
    kept = []
    for turn in range(80):
        buffer = np.full(700, turn + communicator.rank, np.float32)
        name = ["auto", "ring", "node", "mpi"][turn % 4]
        communicator.all_reduce(buffer, "max", name)
        assert (buffer == turn + communicator.size - 1).all(), name
        if rng.random() < 0.3:
            kept.append(buffer)
        if len(kept) > 5:
            kept.clear()


def test_what_was_called_with_is_let_go(open_communicator, enough_on_few, one_host):
    """A communicator remembers what it has compiled, but not without limit."""
    enough_on_few()
    one_host()  # between hosts each has a workspace, too
    communicator, held = open_communicator(), []
    window = communicator.empty(1000)
    tracemalloc.start()
    for turn in range(120):
        communicator.all_reduce(np.full(1 << 14, turn, np.float32), "max")
        blocks = np.ones((communicator.size, 1 << 12), np.float32)
        communicator.all_to_all(blocks, np.zeros_like(blocks))
        for view in (window[:99], window[10:].reshape(2, -1), window[turn % 3 : 500]):
            view[...] = turn + communicator.rank
            communicator.all_reduce(view, "max")
            assert (view == turn + communicator.size - 1).all()
        if turn in (79, 119):
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # Of the 40 turns in between each has made 100 KB of arrays, of which some are still held: which
    # ones depends on where the allocator has put them.
    assert held[1] - held[0] < 500_000


#: A shape, and what is done to an array of it in place: another type, shape, and longer numbers.
CHANGES = [
    ((8,), lambda buffer: setattr(buffer, "dtype", np.int32)),
    ((2, 600), lambda buffer: setattr(buffer, "shape", (600, 2))),
    ((3000,), lambda buffer: setattr(buffer, "dtype", np.float64)),
]


def test_an_array_that_was_changed_in_place_is_another_one(open_communicator, enough_on_few):
    enough_on_few()
    communicator = open_communicator()
    for shape, change_it in CHANGES:
        changed(communicator, shape, change_it)


def changed(communicator, shape, change_it):
    for name, is_window in itertools.product(["auto", "ring", "mpi"], [True, False]):
        buffer = communicator.empty(shape) if is_window else np.empty(shape, np.float32)
        for _ in range(2):
            buffer[...] = communicator.rank
            communicator.all_reduce(buffer, "sum", name)
        change_it(buffer)
        for _ in range(2):
            buffer[...] = 10_000_000 + communicator.rank
            communicator.all_reduce(buffer, "max", name)
            np.testing.assert_array_equal(buffer, 10_000_000 + communicator.size - 1)
            buffer[...] = 7
            communicator.all_reduce_async(buffer, "sum", name).wait()
            np.testing.assert_array_equal(buffer, 7 * communicator.size)


def test_an_array_that_was_spoilt_in_place_is_refused_and_cannot_be_moved(open_communicator):
    """The compiled call writes to where it was."""
    communicator = open_communicator()
    for reason, change in {
        "read-only": lambda buffer: buffer.setflags(write=False),
        ">f4": lambda buffer: setattr(buffer, "dtype", ">f4"),
    }.items():
        buffer = np.ones(8, np.float32)
        for _ in range(2):
            communicator.all_reduce(buffer)
        with pytest.raises(ValueError, match="resize"):
            buffer.resize(100_000, refcheck=False)
        change(buffer)
        for _ in range(2):
            with pytest.raises(ConfigError, match=reason):
                communicator.all_reduce(buffer)
