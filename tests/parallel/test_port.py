"""The port over MPI: messages, payloads, what is counted, deadlines, on every layout of hosts."""

import time
from pathlib import Path

import numpy as np
import pytest

from psrt.core.errors import CodecError, TransportError
from psrt.core.messages import Params, Push
from psrt.core.partition import ShardPlan
from psrt.core.stats import Report
from psrt.mpi.links.remote import RemoteLink
from psrt.mpi.port import MpiPort
from psrt.transport import NO_PAYLOAD, RoleMap, drive
from psrt.transport.frames import FRAME_BYTES
from psrt.transport.port import ThetaMemory

N = 11
GRADIENT = 0


def wiring_of(size, servers, n=N, each=1):
    """Return the wiring with the first ranks as servers, of ``each`` shards."""
    spans = ShardPlan.even(n, servers * each).spans if servers else ()
    return RoleMap(n, tuple(range(servers, size)), tuple(range(servers)) * each, spans)


@pytest.fixture
def open_port(comm, port_of, host):
    """Return what makes a port on these hosts."""

    def made(servers, n=N, each=1, **options):
        return port_of(wiring_of(comm.size, servers, n, each), host=host, **options)

    return made


#: Longer than Open MPI sends without asking, so that it goes in pieces.
LONGEST = 300_000


def frame_of(worker, shard, turn):
    """Return a frame whose length is another one for each push."""
    size = [1, LONGEST, 20, 70_001, LONGEST - 1][(turn + shard + worker) % 5]
    return (np.arange(size) + worker + 10 * shard + 100 * turn).astype(np.uint8)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("each", [1, 4])
def test_frames_of_any_length_arrive_whole_and_are_counted(comm, open_port, each):
    """Pushes with a frame, and in between some without."""
    turns, shards = 5, range(each)
    port = open_port(1, 100_000, each, frame_bytes=[LONGEST] * each)
    mine, workers = comm.rank - 1, range(comm.size - 1)

    async def worker():
        for turn in range(turns):
            frames = [frame_of(mine, shard, turn) for shard in shards]
            for shard in reversed(shards):
                port.send_framed(0, Push(mine, turn, turn, 1, 0.0, shard), frames[shard])
            for _ in shards:
                await port.receive()
            for shard in shards:
                port.send(0, Push(mine, turn, turn, 0, 0.0, shard))
                await port.receive()

    async def server():
        for _ in range(2 * turns * each * len(workers)):
            push = await port.receive()
            if push.samples:
                expected = frame_of(push.worker, push.shard, push.clock)
                np.testing.assert_array_equal(port.frame(push.shard, push.worker), expected)
            reply = Params(push.shard, push.clock + 1, push.clock + 1, 0)
            port.send(push.worker + 1, reply, 0 if push.samples else NO_PAYLOAD)

    drive(server() if comm.rank == 0 else worker())
    port.meet()
    pushes = 2 * turns * each * FRAME_BYTES
    framed = [
        sum(frame_of(it, shard, turn).size for shard in shards for turn in range(turns)) + pushes
        for it in workers
    ]
    replies = pushes + turns * 4 * 100_000
    counts = comm.allgather((port.bytes_sent, port.bytes_received))
    assert counts[1:] == [(sent, replies) for sent in framed]
    assert counts[0] == (replies * len(workers), sum(framed))


@pytest.mark.mpi(min_size=2)
def test_a_frame_that_is_longer_than_any_can_be_is_refused(comm, open_port):
    port = open_port(1, frame_bytes=[100 if comm.rank == 0 else 200])
    if comm.rank == 1:
        port.send_framed(0, Push(0, 0, 0, 1, 0.0), np.zeros(101, np.uint8))
    if comm.rank == 0:
        with pytest.raises(CodecError, match="a frame of 101 bytes came, expected at most 100"):
            drive(port.receive())
        link = port._links.by_shard[0][1]
        if isinstance(link, RemoteLink):  # else closing would wait for what is on its way
            link._comm.Recv(np.zeros(101, np.uint8), 1, link._data)
            link.frame_request.Start()


@pytest.mark.mpi(min_size=2)
def test_parameters_land_while_a_worker_waits_for_something_else(comm, open_port):
    """From another host, in any call of MPI; what the worker computes with stays as it is."""
    port = open_port(1)

    async def worker():
        landing = port.land_apart()
        port.send(0, Push(comm.rank - 1, 0, 0, 1, 0.0), GRADIENT)
        if isinstance(port._links.by_shard[0][0], RemoteLink):
            await port.until(lambda: landing[-1] == 1, lambda: "parameters to land")
        await port.receive()
        np.testing.assert_array_equal(landing, 1)
        np.testing.assert_array_equal(port.theta, 0)

    async def server():
        port.versions[0][0][:] = 1
        for _ in port.role_map.workers:
            push = await port.receive()
            port.send(push.worker + 1, Params(0, 0, 1, 0), 0)

    drive(server() if comm.rank == 0 else worker())
    port.meet()


@pytest.mark.mpi(min_size=2)
def test_a_message_without_payload_leaves_the_last_one_in_place(comm, open_port):
    port = open_port(1)

    async def worker():
        mine = port.role_map.worker_of(port.rank)
        port.gradient[:N] = 7 + mine
        for clock, payload in ((0, GRADIENT), (1, NO_PAYLOAD)):
            port.send(0, Push(mine, clock, 0, 1 - clock, 0.0), payload)
            assert await port.receive() == Params(0, 0, clock + 1, 0)
        np.testing.assert_array_equal(port.theta, 0)

    async def server():
        port.versions[0][0][:] = 1
        for _ in range(2 * len(port.role_map.workers)):
            push = await port.receive()
            np.testing.assert_array_equal(port.payload(0, push.worker), 7 + push.worker)
            port.send(push.worker + 1, Params(0, 0, push.clock + 1, 0), NO_PAYLOAD)

    drive(server() if comm.rank == 0 else worker())


@pytest.mark.mpi(min_size=2)
def test_a_payload_is_in_flight_until_it_has_been_read(comm, port_of):
    """Only through memory can a sender tell for sure that nobody has read yet."""
    port = port_of(wiring_of(comm.size, 1))
    if comm.rank:
        port.send(0, Push(port.rank - 1, 0, 0, 1, 0.0), GRADIENT)
        assert port.in_flight(0, 0)
    port.meet()
    if comm.rank == 0:
        for _ in port.role_map.workers:
            drive(port.receive())
    else:
        drive(port.until(lambda: not port.in_flight(0, 0), lambda: "the server"))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("windows", [True, False])
def test_pushes_to_another_host_wait_for_answers_unless_told_not_to(comm, port_of, windows):
    each = 6
    wiring = wiring_of(comm.size, 1, n=each * 100_000, each=each)
    port = port_of(wiring, host=comm.rank, windows=windows)
    unanswered = 2 if windows else each

    async def worker():
        mine = port.role_map.worker_of(port.rank)
        for shard in range(each):
            port.send(0, Push(mine, 0, 0, 1, 0.0, shard), GRADIENT)
        for _ in range(each):
            await port.receive()

    async def server():
        workers = len(port.role_map.workers)
        for first in range(0, each, unanswered):
            pushes = [await port.receive() for _ in range(workers * unanswered)]
            # All that may be there before any is answered.
            assert {push.shard for push in pushes} == set(range(first, first + unanswered))
            for push in pushes:
                port.send(push.worker + 1, Params(push.shard, 1, 1, 0), 0)

    drive(server() if comm.rank == 0 else worker())


@pytest.mark.mpi
def test_reports_reach_rank_0_whole_and_in_order(comm, open_port):
    port = open_port(0)
    heard = []
    port.on_report = heard.append

    def report(worker, step):
        figures = (0.5, 10, 2, 3, 4, 7.5, 5.0, 0.5, 1, 0.25, 2, float(worker), 0.25)
        return Report(worker, 1, step, *figures, step == 2, step == 4, (step, 2 * step))

    port.meet()
    for step in range(5):
        port.report(report(comm.rank, step))
    port.finish_reports(lambda: len(heard) == 5 * comm.size)
    by_worker = {w: [r for r in heard if r.worker == w] for w in range(comm.size)}
    expected = {w: [report(w, step) for step in range(5)] for w in range(comm.size)}
    assert by_worker == (expected if comm.rank == 0 else {w: [] for w in expected})


@pytest.mark.mpi
def test_ports_leave_no_shared_memory_behind(comm):
    left = []
    for host in [None, comm.rank] * 4:
        port = MpiPort(comm, wiring_of(comm.size, min(1, comm.size - 1)), timeout_s=20, host=host)
        port.meet()
        port.close()
        left.append(Path("/proc/self/maps").read_text().count(" rw-s "))
    assert left[2:] == left[:2] * 3


@pytest.mark.mpi(min_size=3)
def test_a_late_worker_does_not_clear_what_all_read(comm, port_of, monkeypatch):
    take_vectors = MpiPort._take_vectors

    def late(port, memory):
        time.sleep(0.2 * (port.rank == comm.size - 1))
        take_vectors(port, memory)

    monkeypatch.setattr(MpiPort, "_take_vectors", late)
    port = port_of(wiring_of(comm.size, 1), theta_memory=ThetaMemory.SHARED)
    # On several hosts each worker has a θ of its own.
    shared = port.theta_memory is ThetaMemory.SHARED
    if port.rank == 1 or (port.rank and not shared):
        port.theta[:] = 1.0
    comm.Barrier()
    if port.rank:
        np.testing.assert_array_equal(port.theta, 1.0)


# --- a rank that does not answer: who waits for it gives up in time and says for whom -----------

TIMEOUT_S = 0.1


@pytest.fixture
def hasty_port(comm):
    """Return what makes a port that soon gives up; it is closed, with all the time it needs."""
    ports = []

    def made(servers=0, host=None):
        wiring = wiring_of(comm.size, servers, n=8)
        ports.append(MpiPort(comm, wiring, timeout_s=TIMEOUT_S, host=host))
        return ports[-1]

    yield made
    comm.Barrier()  # whoever gave up waits here for the rank that was late
    for port in ports:
        port._backoff.timeout_s = 20.0
        if port._executor is not None:
            port._executor._backoff.timeout_s = 20.0
        port.close()


@pytest.mark.mpi(min_size=2)
def test_a_receive_names_what_the_role_waits_for(comm, hasty_port, host):
    port = hasty_port(servers=1, host=host)
    if comm.rank == 0:
        port.waiting_for = lambda: "worker 0 at clock 7"
        start = time.monotonic()
        with pytest.raises(TransportError, match=r"no answer within 0.1 s.*worker 0 at clock 7"):
            drive(port.receive())
        assert time.monotonic() - start >= TIMEOUT_S


@pytest.mark.mpi(min_size=2)
def test_a_message_that_is_not_read_names_the_reader(comm, hasty_port, one_host):
    one_host()  # between hosts a short message leaves before it is read
    port = hasty_port(servers=1)
    if comm.rank:
        port.send(0, Push(comm.rank - 1, 0, 0, 1, 0.0), 0)
        with pytest.raises(TransportError, match="rank 0 to read"):
            port.send(0, Push(comm.rank - 1, 1, 0, 1, 0.0), 0)


@pytest.mark.mpi(min_size=2)
def test_whoever_stops_after_its_work_is_late_all_the_same(comm, hasty_port):
    port = hasty_port(servers=1)
    if comm.rank:
        drive(port.compute(time.sleep, 2 * TIMEOUT_S))
    else:
        with pytest.raises(TransportError, match=r"0.1 s \(--timeout-s\)"):
            drive(port.receive())


@pytest.mark.mpi(min_size=2)
def test_ranks_that_do_not_come_to_the_end_and_their_reports_are_waited_for_in_vain(
    comm, hasty_port
):
    port = hasty_port()
    with pytest.raises(TransportError, match="ranks 5 and 6 to read"):
        drive(port.until(lambda: False, lambda: "ranks 5 and 6 to read"))
    if comm.rank == 0:
        with pytest.raises(TransportError, match="last reports"):
            port.finish_reports(lambda: False)
        with pytest.raises(TransportError, match="other ranks"):
            port.meet()
    comm.Barrier()
    if comm.rank:
        port.meet()
