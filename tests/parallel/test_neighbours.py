"""The port of workers that send each other what they mix, on every layout of hosts."""

import time

import numpy as np
import pytest

from psrt.errors import TransportError
from psrt.faults.vitals import HERE
from psrt.messages import Leave, Mix
from psrt.mpi.port import MpiPort
from psrt.partition import Span
from psrt.transport import NO_PAYLOAD, RoleMap, drive
from psrt.transport.frames import FRAME_BYTES
from psrt.transport.port import CONTROL

OFFERS = 2
#: Graph → the workers that worker i of p sends to.
GRAPHS = {
    "ring": lambda i, p: {(i - 1) % p, (i + 1) % p} - {i},
    "full": lambda i, p: set(range(p)) - {i},
    "one way around": lambda i, p: {(i + 1) % p} - {i},
}


def role_map_of(receivers, n, width=1):
    """Return who is who where worker i sends to ``receivers[i]``."""
    size = len(receivers)
    either = [set(them) | {j for j in range(size) if i in receivers[j]}
              for i, them in enumerate(receivers)]  # fmt: skip
    return RoleMap(
        n,
        tuple(range(size)),
        spans=(Span(0, width * n),),
        peers=tuple(tuple(sorted(them)) for them in either),
        offers=tuple(OFFERS + i % 3 for i in range(size)),
    )


@pytest.fixture
def open_port(comm, host):
    """Return what makes a port; it is closed afterwards."""
    ports = []

    def made(receivers, n, width=1, **options):
        wiring = role_map_of(receivers, n, width)
        ports.append(MpiPort(comm, wiring, timeout_s=20, host=host, **options))
        return ports[-1]

    yield made
    for port in ports:
        port.close()


def vector_of(worker, turn, size):
    return (np.arange(size) % 1000 + 1000 * worker + 100_000 * turn).astype(np.float32)


async def all_taken(port, receivers):
    await port.until(
        lambda: not any(port.in_flight(to, 0) for to in receivers), lambda: "neighbours"
    )


async def play_rounds(port, receivers, senders, rounds):
    """Send and collect, and compare what comes; nobody waits for more than its own senders."""
    early, size = [], port.offers[0].size
    for turn in range(rounds):
        await all_taken(port, receivers - senders)  # those that send, too, have said so
        port.offers[turn % OFFERS][:] = vector_of(port.rank, turn, size)
        for to in sorted(receivers):
            port.send(to, Mix(port.rank, turn, 7, 0.5), turn % OFFERS)
        missing = senders - {mix.worker for mix in early}
        early.clear()
        while missing:
            mix = await port.receive()
            expected = vector_of(mix.worker, mix.clock, size)
            np.testing.assert_array_equal(port.payload(0, mix.worker), expected)
            assert mix == Mix(mix.worker, turn + (mix.worker not in missing), 7, 0.5)
            if mix.clock == turn:
                missing.remove(mix.worker)
            else:
                early.append(mix)
    await all_taken(port, receivers)


@pytest.mark.mpi
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(("n", "width"), [(1, 1), (7, 2), (100_003, 1)])
def test_vectors_arrive_with_their_messages_and_are_counted(comm, open_port, graph, n, width):
    receivers = [GRAPHS[graph](i, comm.size) for i in range(comm.size)]
    mine = receivers[comm.rank]
    senders = {j for j in range(comm.size) if comm.rank in receivers[j]}
    port = open_port(receivers, n, width)
    rounds = 7
    drive(play_rounds(port, mine, senders, rounds))
    nbytes = rounds * (4 * width * n + FRAME_BYTES)
    assert (port.bytes_sent, port.bytes_received) == (len(mine) * nbytes, len(senders) * nbytes)


@pytest.mark.mpi(min_size=2)
def test_who_is_ahead_waits_and_what_came_stays_in_place(comm, open_port):
    """Worker 0 sends as fast as it can to the last one, which looks now and then."""
    n, last, count = 100_003, comm.size - 1, 9
    port = open_port([{last}, *[set()] * last], n)

    async def sender():
        for turn in range(count):
            await all_taken(port, {last} if turn >= OFFERS else ())
            port.offers[turn % OFFERS][:] = vector_of(0, turn, n)
            port.send(last, Mix(0, turn), turn % OFFERS)
        await all_taken(port, {last})

    async def reader():
        for turn in range(count):
            assert await port.receive() == Mix(0, turn)
            here = port.payload(0, 0)
            await port.pause(0.01)
            port._links.take_frames()  # as amid a gradient
            np.testing.assert_array_equal(here, vector_of(0, turn, n))

    if comm.rank in (0, last):
        drive(sender() if comm.rank == 0 else reader())


@pytest.mark.mpi(min_size=2)
def test_one_that_is_too_far_ahead_names_who_it_waits_for(comm, open_port):
    port = open_port([{1}, {0}, *[set()] * (comm.size - 2)], 3)

    def run_ahead():
        for turn in range(4):
            port.send(1, Mix(0, turn), 0)

    if comm.rank == 0:
        port._backoff._timeout_s = 0.3
        with pytest.raises(TransportError, match="waiting for rank 1 to read the last message"):
            run_ahead()
        port._backoff._timeout_s = 20
    port.meet()


@pytest.mark.mpi(min_size=2)
def test_frames_arrive_whole_though_their_memory_changes_at_once(comm, open_port):
    longest, turns = 300_000, 6
    sizes = [1, longest, 20, 70_001, longest - 1, 0]
    port = open_port([GRAPHS["ring"](i, comm.size) for i in range(comm.size)], 100_000,
                     frame_bytes=[longest])  # fmt: skip
    peers = port.role_map.peers[comm.rank]
    memory = np.zeros(longest, np.uint8)

    def frame_of(worker, turn):
        return (np.arange(sizes[(turn + worker) % 6]) + worker + 10 * turn).astype(np.uint8)

    async def play():
        expected = dict.fromkeys(peers, 0)
        for turn in range(turns):
            frame = frame_of(comm.rank, turn)
            memory[: frame.size] = frame
            for peer in peers:
                port.send_framed(peer, Mix(comm.rank, turn), memory[: frame.size])
                port.send(peer, Mix(comm.rank, turn), NO_PAYLOAD)
            memory[:] = 255
            while min(expected.values()) <= 2 * turn + 1:
                mix = await port.receive()
                number = expected[mix.worker]
                expected[mix.worker] += 1
                assert mix.clock == number // 2
                if number % 2 == 0:
                    its = frame_of(mix.worker, mix.clock)
                    np.testing.assert_array_equal(port.frame(0, mix.worker), its)

    drive(play())
    sent = sum(frame_of(comm.rank, turn).size + 2 * FRAME_BYTES for turn in range(turns))
    assert port.bytes_sent == len(peers) * sent


@pytest.mark.mpi(min_size=2)
def test_poll_returns_what_has_come_and_never_waits(comm, open_port):
    port = open_port([{1}, {0}, *[set()] * (comm.size - 2)], 5)
    other = 1 - comm.rank

    async def play():
        assert await port.poll() is None
        port.meet()
        if comm.rank > 1:
            return
        port.offers[1][:] = vector_of(comm.rank, 0, 5)
        port.send(other, Mix(comm.rank, 3, 4, 0.25), 1)
        while (mix := await port.poll()) is None:
            time.sleep(1e-4)
        assert mix == Mix(other, 3, 4, 0.25)
        np.testing.assert_array_equal(port.payload(0, other), vector_of(other, 0, 5))
        assert await port.poll() is None

    drive(play()) if comm.rank < 2 else (drive(port.poll()), port.meet())


@pytest.mark.mpi(min_size=2)
def test_what_nobody_receives_any_more_keeps_nobody_waiting_at_the_end(comm, open_port):
    port = open_port([GRAPHS["full"](i, comm.size) for i in range(comm.size)], 100_003)
    for turn in range(comm.rank % 3):
        for peer in port.role_map.peers[comm.rank]:
            port.send(peer, Mix(comm.rank, turn), turn)


@pytest.mark.mpi(min_size=2)
def test_a_neighbour_that_falls_silent_leaves(comm, open_port, monkeypatch):
    """What it sent before, and nobody received, is dropped."""
    port = open_port([GRAPHS["full"](i, comm.size) for i in range(comm.size)], 100_003)
    port.leave_of = lambda shard, worker: Leave(worker, 5, shard)
    gone = []
    port.on_gone = gone.append
    if comm.rank == 1:
        port.send(0, Mix(1, 5), 0)
    port.meet()
    if comm.rank == 0:
        soon = time.monotonic() + 0.1

        def while_idle():
            if time.monotonic() > soon and not gone:
                monkeypatch.setattr(HERE, "gone", frozenset({1}))
            MpiPort._while_idle(port)

        port._backoff._while_idle = while_idle
        for turn in range(4):  # the last one when it is known
            port.send(1, Mix(0, turn), 0)
        assert gone == [1]
        assert not port.in_flight(1, 0)
        assert drive(port.receive()) == Leave(1, 5)
        assert drive(port.poll()) is None
        monkeypatch.undo()
    port.meet()
    for link in port._links.remote:  # as in a run: it does not close what is on its way to nobody
        link.close = lambda: None


@pytest.mark.mpi(min_size=2)
def test_sums_over_the_workers_go_on_beside_messages(comm, open_port):
    n = 5000
    port = open_port([GRAPHS["ring"](i, comm.size) for i in range(comm.size)], n)
    peers = port.role_map.peers[comm.rank]
    assert port.gradient.size == n + CONTROL
    it = port.reduction(Span(0, n), "ring", None)

    async def play():
        for turn in range(3):
            port.offers[turn % OFFERS][:] = vector_of(comm.rank, turn, n)
            for peer in peers:
                port.send(peer, Mix(comm.rank, turn), turn % OFFERS)
            port.gradient[:] = comm.rank
            it.begin()
            await it.finish()
            assert (port.gradient[:n] == sum(range(comm.size))).all()
            for _ in peers:
                mix = await port.receive()
                expected = vector_of(mix.worker, turn, n)
                np.testing.assert_array_equal(port.payload(0, mix.worker), expected)
            assert await port.differing(7) == []

    drive(play())
