"""Several all-reduces under way, ended in any order, and calls in a row that overtake each other.

Delays are drawn from each rank's own random numbers, so ranks are apart by everything from a few
polls to several calls. Results are whole numbers, other ones in every call.
"""

import dataclasses
import itertools
import random
import time

import numpy as np
import pytest

from psrt.collective import ALGORITHMS, OPS
from psrt.core.errors import ProtocolError
from psrt.mpi.collectives.plans import staged

pytestmark = pytest.mark.mpi
NAMES = ["auto", "node", "node+ring", "node+double-tree", "mpi", *ALGORITHMS]


def total(communicator, turn):
    """Return the sum of ``rank + 1 + turn`` over all ranks."""
    return communicator.size * (communicator.size + 1) // 2 + communicator.size * turn


def started(communicator, buffer, turn, name):
    """Start the sum of numbers of a turn; return what checks it at the end."""
    buffer[...] = communicator.rank + 1 + turn
    handle = communicator.all_reduce_async(buffer, "sum", name)

    def end(wait=True):
        if not wait:
            while not handle.test():
                pass
        handle.wait()
        assert handle.done
        assert handle.test()
        np.testing.assert_array_equal(buffer, total(communicator, turn), err_msg=f"{name} {turn}")

    return end


@pytest.mark.one_in(2)
def test_every_algorithm_under_way_at_once(open_communicator, host):
    """More than may be unfinished at a time, so the first ones are ended on the way.

    Of unlike lengths, so that numbers which meet the wrong ones are seen.
    """
    communicator = open_communicator(host=host)
    rng = random.Random(communicator.rank)
    for make in (communicator.empty, lambda size: np.empty(size, np.float32)):
        buffers = [make(10 + 97 * i) for i in range(len(NAMES))]
        ends = [started(communicator, b, 1, a) for b, a in zip(buffers, NAMES, strict=True)]
        rng.shuffle(ends)
        for end in ends:
            end(rng.random() < 0.5)


@pytest.mark.one_in(2)
def test_blocking_calls_among_those_under_way(open_communicator, host):
    communicator = open_communicator(host=host)
    rng = random.Random(communicator.rank)
    buffers = [np.empty(200, np.float32) for _ in range(3)] + [
        communicator.empty(200) for _ in range(3)
    ]
    blocking = [communicator.empty(77), np.empty(77, np.float32)]
    for turn in range(6):
        name = ["mpi", "auto", "ring", "node+tree", "segmented-ring", "naive"][turn]
        ends = [started(communicator, b, turn + i, name) for i, b in enumerate(buffers)]
        for buffer, call in itertools.product(blocking, [name, "node", "mpi"]):
            buffer[:] = communicator.rank + 1 + turn
            communicator.all_reduce(buffer, "sum", call)
            np.testing.assert_array_equal(buffer, total(communicator, turn))
        root = turn % communicator.size
        blocking[1][:] = communicator.rank
        communicator.broadcast(blocking[1], root)
        np.testing.assert_array_equal(blocking[1], root)
        rng.shuffle(ends)
        for end in ends:
            end(rng.random() < 0.5)


@pytest.mark.one_in(2)
def test_a_second_start_ends_the_first(open_communicator, enough_on_few, host):
    """The second one takes the sums of the first as they are, by whatever view of the buffer."""
    enough_on_few()
    communicator = open_communicator(host=host)
    places = communicator.empty(6000), np.empty(6000, np.float32)
    for name, buffer in itertools.product(("auto", "mpi", "node+ring"), places):
        buffer[:] = 1
        first = communicator.all_reduce_async(buffer, "sum", name)
        second = communicator.all_reduce_async(buffer, "sum", name)
        assert first.done
        third = communicator.all_reduce_async(buffer[1000:3000], "sum", name)
        assert second.done
        communicator.all_reduce(buffer.reshape(2, 3000), "sum", name)
        assert third.done
        expected = np.full(6000, communicator.size**3)
        expected[1000:3000] *= communicator.size
        np.testing.assert_array_equal(buffer, expected)


@pytest.mark.one_in(2)
@pytest.mark.mpi(min_size=2)
def test_two_groups_are_waited_for_in_different_orders(open_communicator, host):
    """Whoever waits for one moves on the other, too; or nobody would until the deadline."""
    groups = [open_communicator(host=host, timeout_s=5) for _ in range(2)]
    buffers = [communicator.empty(20_000) for communicator in groups]
    for turn, name in enumerate(["auto", "ring", "mpi"] * 2):
        ends = [started(g, b, turn, name) for g, b in zip(groups, buffers, strict=True)]
        for end in ends if groups[0].rank % 2 else ends[::-1]:
            end(wait=turn < 3)


@pytest.mark.mpi(min_size=2)
def test_what_differs_in_another_group_is_told_there(comm, open_communicator):
    one, other = open_communicator(timeout_s=5), open_communicator(timeout_s=5)
    odd = comm.rank == comm.size - 1
    wrong = one.all_reduce_async(np.ones(10 + odd, np.float32), "sum", "ring")
    right = other.all_reduce_async(np.ones(10, np.float32), "sum", "ring")
    if odd:
        right.wait()
    with pytest.raises(ProtocolError):
        wrong.wait()
    right.wait()


@pytest.mark.one_in(2)
def test_a_handle_outlives_many_other_calls(comm, open_communicator, host):
    """So many that it is forgotten, and ended first, though a root runs ahead of the others."""
    communicator = open_communicator(host=host)
    kept = [np.empty(1, np.float32) for _ in range(150)]
    for name in ("ring", "node", "butterfly"):
        begun = np.empty(3000, np.float32), communicator.empty(50)
        communicator.all_reduce(np.zeros(1, np.float32))
        if comm.rank:
            time.sleep(0.03)
        ends = [started(communicator, buffer, 5, name) for buffer in begun]
        for i in range(100):
            communicator.broadcast(np.full(2, i, np.int32))
        for i, buffer in enumerate(kept if name == "ring" else ()):
            buffer[:] = i
            communicator.all_reduce(buffer)
            assert buffer[0] == i * communicator.size
        for end in ends:
            end()


@pytest.mark.one_in(2)
def test_a_buffer_that_only_the_handle_remembers(open_communicator, host):
    """An array that its owner forgets while it is being summed still takes part."""
    communicator = open_communicator(host=host)
    for turn in range(20):
        kept = np.full(3000, communicator.rank + 1, np.float32)
        handles = [
            communicator.all_reduce_async(np.full(3000, turn, np.float32), "sum", "ring")
            for _ in range(2)
        ]
        handle = communicator.all_reduce_async(kept, "sum", "tree")
        junk = [np.full(3000, -7, np.float32) for _ in range(10)]
        for each in (*handles, handle):
            each.wait()
        np.testing.assert_array_equal(kept, total(communicator, 0))
        assert len(junk) == 10


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "n"),
    [("node", 1), ("auto", 3), ("node", 3000), ("ring", 5), ("butterfly", 40), ("mpi", 4)],
)
def test_a_row_of_calls_at_uneven_speeds(open_communicator, host, name, n):
    """Whoever is fast runs ahead as far as it can; nothing may be overwritten too soon."""
    communicator = open_communicator(host=host)
    rng = random.Random(communicator.rank)
    window, plain = communicator.empty(n), np.empty(n, np.float32)
    for turn in range(100 if communicator.size <= 4 else 60):
        if rng.random() < 0.05:
            time.sleep(rng.random() * 1e-3)
        for buffer in (window, plain):
            buffer[:] = communicator.rank + 1 + turn
            communicator.all_reduce(buffer, "sum", name)
            assert buffer[0] == buffer[-1] == total(communicator, turn), (turn, name)


@pytest.fixture
def slow_sums(comm, monkeypatch):
    """Let every fold of a sum take its time, before and after, another one on each rank."""
    slow = slowed(OPS["sum"].ufunc, random.Random(comm.rank))
    monkeypatch.setattr(np, "slow_add", slow, raising=False)
    monkeypatch.setitem(OPS, "sum", dataclasses.replace(OPS["sum"], function="slow_add"))


def slowed(function, rng):
    """Return a function that often dawdles before and after."""

    def wrapper(*args, **kwargs):
        if rng.random() < 0.25:
            time.sleep(rng.random() * 1.5e-3)
        value = function(*args, **kwargs)
        if rng.random() < 0.25:
            time.sleep(rng.random() * 1.5e-3)
        return value

    return wrapper


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ["node", "node+ring", "mpi", *ALGORITHMS])
def test_with_a_dawdler_at_every_fold(open_communicator, enough_on_few, host, slow_sums, name):
    """Whoever is late still reads what was meant for it, in windows and on stages, flat or not."""
    if name not in ("node", "ring", "halving-doubling-blocks", "double-tree"):
        enough_on_few()
    communicator = open_communicator(host=host)
    for n in (3, 30, 2500):
        for buffer in (communicator.empty(n), np.empty(n, np.float32)):
            for turn in range(2 if n > 3 else 10):
                buffer[:] = np.arange(n) % 50 + communicator.rank + 1 + turn
                communicator.all_reduce(buffer, "sum", name)
                expected = np.arange(n) % 50 * communicator.size + total(communicator, turn)
                np.testing.assert_array_equal(buffer, expected)


def test_staged_pieces_with_a_dawdler_at_every_turn(open_communicator, slow_sums, monkeypatch):
    """Ranks copy in, fold and copy out at different speeds, and pieces are many and small."""
    for name in ("PIECE_BYTES", "PAIR_PIECE_BYTES"):
        monkeypatch.setattr(f"psrt.mpi.collectives.compiler.{name}", 4096)
    communicator = open_communicator()
    monkeypatch.setattr(
        staged, "_carry", slowed(staged._carry, random.Random(-1 - communicator.rank))
    )
    # In three, four and nine pieces: the next call begins on every one of the stages.
    for buffer in [np.empty(n, np.float32) for n in (2100, 4000, 9000)]:
        for turn in range(4):
            buffer[:] = np.arange(buffer.size) % 50 + communicator.rank + 1 + turn
            communicator.all_reduce(buffer, "sum", "node")
            expected = np.arange(buffer.size) % 50 * communicator.size + total(communicator, turn)
            np.testing.assert_array_equal(buffer, expected)
