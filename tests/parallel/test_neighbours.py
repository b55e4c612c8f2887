"""The port of workers that send each other what they mix, on every layout of hosts."""

import time

import numpy as np
import pytest

from psrt.core.errors import TransportError
from psrt.core.messages import Leave, Mix
from psrt.core.partition import Span
from psrt.faults.vitals import HERE
from psrt.mpi.port import MpiPort
from psrt.transport import NO_PAYLOAD, RoleMap, drive
from psrt.transport.frames import FRAME_BYTES

OFFERS = 2


def everybody(p):
    """Return the workers that each of p sends to: all others."""
    return [set(range(p)) - {i} for i in range(p)]


def role_map_of(receivers, n):
    """Return who is who where worker i sends to ``receivers[i]``."""
    size = len(receivers)
    either = [set(them) | {j for j in range(size) if i in receivers[j]}
              for i, them in enumerate(receivers)]  # fmt: skip
    return RoleMap(
        n,
        tuple(range(size)),
        spans=(Span(0, n),),
        peers=tuple(tuple(sorted(them)) for them in either),
        offers=tuple(OFFERS + i % 3 for i in range(size)),
    )


@pytest.fixture
def open_port(port_of, host):
    return lambda receivers, n, **more: port_of(role_map_of(receivers, n), host=host, **more)


def vector_of(worker, turn, size):
    return (np.arange(size) % 1000 + 1000 * worker + 100_000 * turn).astype(np.float32)


@pytest.mark.mpi(min_size=2)
def test_who_is_ahead_waits_and_what_came_stays_in_place(comm, open_port):
    """Worker 0 sends as fast as it can to the last one, which looks now and then."""
    n, last, count = 100_003, comm.size - 1, 9
    port = open_port([{last}, *[set()] * last], n)

    async def taken():
        await port.until(lambda: not port.in_flight(last, 0), lambda: "neighbours")

    async def sender():
        for turn in range(count):
            if turn >= OFFERS:
                await taken()
            port.offers[turn % OFFERS][:] = vector_of(0, turn, n)
            port.send(last, Mix(0, turn), turn % OFFERS)
        await taken()

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
        port._backoff.timeout_s = 0.3
        with pytest.raises(TransportError, match="waiting for rank 1 to read the last message"):
            run_ahead()
        port._backoff.timeout_s = 20
    port.meet()


@pytest.mark.mpi(min_size=2)
def test_frames_arrive_whole_though_their_memory_changes_at_once(comm, open_port):
    longest, turns = 300_000, 6
    sizes = [1, longest, 20, 70_001, longest - 1, 0]
    port = open_port(everybody(comm.size), 100_000,
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
def test_what_nobody_receives_any_more_keeps_nobody_waiting_at_the_end(comm, open_port):
    port = open_port(everybody(comm.size), 100_003)
    for turn in range(comm.rank % 3):
        for peer in port.role_map.peers[comm.rank]:
            port.send(peer, Mix(comm.rank, turn), turn)


@pytest.mark.mpi(min_size=2)
def test_a_neighbour_that_falls_silent_leaves(comm, open_port, monkeypatch):
    """What it sent before, and nobody received, is dropped."""
    port = open_port(everybody(comm.size), 100_003)
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

        port._backoff.while_idle = while_idle
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
