"""Messages between two ranks, and communicators of some of the ranks."""

import contextlib
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from psrt.core.errors import ConfigError, LeftError, ProtocolError, PsrtError, TransportError
from psrt.mpi import point_to_point
from psrt.mpi.communicator import Communicator

pytestmark = pytest.mark.mpi
KINDS = ["float32", "uint8", "complex128", "float16"]


def of(rank, n, kind="int64", turn=0):
    return ((np.arange(n) + 100 * rank + turn) % 120).astype(kind)


@pytest.fixture
def small_parts(monkeypatch):
    """Split messages as MPI has to where they are longer than a gibibyte."""
    parts = partial(point_to_point.pieces, most=4096)
    monkeypatch.setattr(point_to_point, "pieces", parts)


def everyone_to_everyone(ranks, n, kind):
    """Send all that there is both ways, and wait in any order; return what came."""
    came = [np.zeros(n, kind) for _ in range(ranks.size)]
    works = [ranks.send_async(of(ranks.rank, n, kind), to, 3) for to in range(ranks.size)]
    works += [ranks.recv_async(into, i, 3) for i, into in enumerate(came)]
    random.Random(ranks.rank).shuffle(works)
    for work in works:
        work.wait()
        assert work.test()
    return came


@pytest.mark.parametrize("n", [0, 1, 1025, 1_000_000])  # the last one: no MPI sends it unasked
def test_all_ranks_send_to_all_at_once(open_communicator, n):
    ranks = open_communicator()
    for kind in KINDS:
        before = ranks.bytes_sent, ranks.bytes_received
        for i, into in enumerate(everyone_to_everyone(ranks, n, kind)):
            np.testing.assert_array_equal(into, of(i, n, kind))
        moved = (ranks.size - 1) * np.dtype(kind).itemsize * n
        assert (ranks.bytes_sent, ranks.bytes_received) == (before[0] + moved, before[1] + moved)


def test_messages_in_parts_do_not_mix(open_communicator, small_parts):
    ranks = open_communicator()
    for i, into in enumerate(everyone_to_everyone(ranks, 5000, "float64")):
        np.testing.assert_array_equal(into, of(i, 5000, "float64"))
    if ranks.rank:
        for turn in range(3):
            ranks.send_async(of(ranks.rank, 3000, turn=turn), 0, 5).wait()
    else:
        came = [np.zeros(3000, np.int64) for _ in range(3 * (ranks.size - 1))]
        works = [ranks.recv_async(into, None, 5) for into in came]
        for work in reversed(works):
            work.wait()
        turns = dict.fromkeys(range(ranks.size), 0)
        for work, into in zip(works, came, strict=True):
            np.testing.assert_array_equal(into, of(work.result, 3000, turn=turns[work.result]))
            turns[work.result] += 1


@pytest.mark.mpi(min_size=2)
def test_the_first_receive_gets_the_first_message_that_is_for_it(open_communicator):
    ranks, tags = open_communicator(), (7, 8, 7, 7)
    if ranks.rank == 1:
        for number, tag in enumerate(tags):
            ranks.send_async(np.array([number]), 0, tag)
        ranks.send_async(np.array([9]), 0, 7).wait()
    if ranks.rank == 0:
        came = np.full(5, -1)
        sources = [1, None, None, 1, 1]
        works = [ranks.recv_async(came[i : i + 1], sources[i], (*tags, 7)[i]) for i in range(5)]
        for i in (4, 1, 3, 0, 2):
            works[i].wait()
            assert works[i].result == 1
        assert came.tolist() == [0, 1, 2, 3, 9]
    ranks.all_reduce(np.ones(3, np.float32))


def test_what_an_earlier_receive_waits_for_is_not_for_a_later_one():
    looks = []  # a message may arrive between two looks, so there is one for each rank and tag

    def look(source, tag, status):
        looks.append((source, tag))

    comm = SimpleNamespace(rank=0, size=3, Improbe=look, Get_attr=lambda key: 100)
    messages = point_to_point.PointToPoint(comm, None, range(3))
    for source, tag in [(1, 7), (None, 7), (2, 7), (1, 8)]:
        messages.receive(np.zeros(1), source, tag)
    messages.match()
    assert looks == [(1, 7), (0, 7), (2, 7), (1, 8)]


@pytest.mark.mpi(min_size=2)
def test_a_message_of_another_length_is_an_error_of_all(open_communicator):
    ranks = open_communicator()
    if ranks.rank == 0:
        ranks.send_async(np.zeros(2), 1, 4)
    if ranks.rank == 1:
        text = "rank 0 sent 16 bytes with tag 4, rank 1 expected 24"
        with pytest.raises(ProtocolError, match=text):
            ranks.recv_async(np.zeros(3), 0, 4).wait()
    else:
        with pytest.raises(LeftError, match="rank 1 left with ProtocolError: rank 0 sent 16 bytes"):
            ranks.all_reduce(np.zeros(3))
    with pytest.raises(ProtocolError, match="cannot be used after an error"):
        ranks.send_async(np.zeros(1), 0)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("call", ["recv_async", "send_async"])
def test_a_rank_that_has_left_is_not_waited_for(comm, call):
    def block():
        with Communicator(comm, timeout_s=20) as ranks:
            if ranks.rank == 1:
                raise ValueError("no more")
            getattr(ranks, call)(np.zeros(1_000_000), 1).wait()

    error, text = (ValueError, "no more") if comm.rank == 1 else (LeftError, "rank 1 left with Val")
    with pytest.raises(error, match=text):
        block()


@pytest.mark.mpi(min_size=2)
def test_the_deadline_names_the_rank_and_the_message(open_communicator):
    ranks = open_communicator(timeout_s=0.5)
    if ranks.rank == 0:
        text = "waiting for rank 1 to send 24 bytes with tag 2$"
        with pytest.raises(TransportError, match=text):
            ranks.recv_async(np.zeros(3), 1, 2).wait()


def groups_of(size):
    """Return groups: all, a pair from the ends, every other one, all but the first; backwards."""
    found = [range(size), (size - 1, 0), range(0, size, 2), range(size - 1, 0, -1)]
    return list(dict.fromkeys(tuple(dict.fromkeys(it)) for it in found if len(it)))


def test_groups_reduce_and_send_among_themselves(open_communicator):
    ranks = open_communicator()
    mine = [it for it in groups_of(ranks.size) if ranks.rank in it]
    groups = [ranks.group(members, name) for name in ("a", "b") for members in mine]
    for members, group in zip(mine * 2, groups, strict=True):
        assert (group.rank, group.size) == (members.index(ranks.rank), len(members))
        for buffer in (np.empty(5000, np.int64), group.empty(5000, np.int64)):
            buffer[:] = of(ranks.rank, 5000)
            np.testing.assert_array_equal(
                group.all_reduce(buffer), sum(of(r, 5000) for r in members)
            )
        for i, into in enumerate(everyone_to_everyone(group, 100, "float32")):
            np.testing.assert_array_equal(into, of(i, 100, "float32"))
    for group in groups:
        group.close()
    ranks.all_reduce(np.ones(3))


@pytest.mark.mpi(min_size=2)
def test_members_that_make_other_groups_get_an_error(comm, open_communicator):
    ranks = open_communicator(timeout_s=0.5)
    if ranks.rank < 2:
        with pytest.raises(ProtocolError, match=rf"rank {ranks.rank} makes the group \[0, 1\] "):
            ranks.group([0, 1], f"of {ranks.rank}")
    comm.Barrier()
    if ranks.rank == 0:
        with pytest.raises(TransportError, match="waiting for rank 1 to send 16 bytes"):
            ranks.group([0, 1])


@pytest.mark.mpi(min_size=2)
def test_errors_of_a_group_have_the_numbers_of_all(open_communicator):
    ranks = open_communicator(timeout_s=0.5)
    last = ranks.size - 1
    if ranks.rank == last:
        with ranks.group([last]) as group, pytest.raises(ConfigError, match=f"rank {last}: send"):
            group.send_async(np.zeros(1), 1)
    if ranks.rank in (0, last):
        group = ranks.group([last, 0])
        if ranks.rank == 0:
            with pytest.raises(TransportError, match=f"waiting for rank {last} to send"):
                group.recv_async(np.zeros(1), 0).wait()
        with contextlib.suppress(PsrtError):
            group.close()


def test_what_is_asked_for_in_vain_is_one_line(open_communicator):
    ranks = open_communicator()
    size, me = ranks.size, ranks.rank
    one = np.zeros(3)
    for action, text in [
        (lambda: ranks.send_async(one, size), f"{size} is not a rank from 0 to {size - 1}"),
        (lambda: ranks.send_async(one, None), "None is not a rank"),
        (lambda: ranks.recv_async(one, -1), "-1 is not a rank"),
        (lambda: ranks.recv_async(one, 0, -2), "tag -2 is not a number from 0 to"),
        (lambda: ranks.recv_async([0.0], 0), "a list is no numpy array"),
        (lambda: ranks.recv_async(np.zeros((4, 4))[::2], 0), "is not contiguous"),
        (lambda: ranks.recv_async(np.frombuffer(b"12345678"), 0), "read-only"),
        (lambda: ranks.group([me, me]), "a rank is in it twice"),
        (lambda: ranks.group([me, size]), f"{size} is not a rank"),
        (lambda: ranks.group([]), "only its members make it"),
    ]:
        with pytest.raises(ConfigError, match=text) as caught:
            action()
        assert str(caught.value).startswith(f"rank {me}: ")
    ranks.send_async(np.frombuffer(b"12345678"), me).wait()
    came = np.zeros(1)
    assert ranks.recv_async(came, me).wait() is None
    assert came.tobytes() == b"12345678"
    ranks.close()
    for action in (lambda: ranks.send_async(one, 0), lambda: ranks.group([me])):
        with pytest.raises(PsrtError, match="the communicator is closed"):
            action()
