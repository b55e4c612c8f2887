"""A rank that does not answer: whoever waits for it gives up in time and says for whom."""

import time

import pytest

from psrt.errors import TransportError
from psrt.messages import Push, Report
from psrt.mpi.port import MpiPort
from psrt.partition import ShardPlan
from psrt.transport import RoleMap, drive

pytestmark = pytest.mark.mpi(min_size=2)
TIMEOUT_S = 0.1
#: A deadline that nobody misses by the machine being loaded.
SOON_S = 0.5
REPORT = Report(*[0] * 16, False, True, (0, 0))


@pytest.fixture
def open_port(comm):
    """Return what makes a port that soon gives up; it is closed, with all the time it needs."""
    ports = []

    def made(servers=0, host=None, timeout_s=TIMEOUT_S):
        spans = ShardPlan.even(8, servers).spans if servers else ()
        role_map = RoleMap(8, tuple(range(servers, comm.size)), tuple(range(servers)), spans)
        ports.append(MpiPort(comm, role_map, timeout_s=timeout_s, host=host))
        return ports[-1]

    yield made
    comm.Barrier()  # whoever gave up waits here for the rank that was late
    for port in ports:
        port._backoff._timeout_s = 20.0
        if port._executor is not None:
            port._executor._backoff._timeout_s = 20.0
        port.close()


def test_a_receive_names_what_the_role_waits_for(comm, open_port, host):
    port = open_port(servers=1, host=host)
    if comm.rank == 0:
        port.waiting_for = lambda: "worker 0 at clock 7"
        start = time.monotonic()
        with pytest.raises(TransportError, match=r"no answer within 0.1 s.*worker 0 at clock 7"):
            drive(port.receive())
        assert time.monotonic() - start >= TIMEOUT_S


def test_a_message_that_is_not_read_names_the_reader(comm, open_port, one_host):
    one_host()  # between hosts a short message leaves before it is read
    port = open_port(servers=1)
    if comm.rank:
        port.send(0, Push(comm.rank - 1, 0, 0, 1, 0.0), 0)
        with pytest.raises(TransportError, match="rank 0 to read"):
            port.send(0, Push(comm.rank - 1, 1, 0, 1, 0.0), 0)


def test_whoever_stops_after_its_work_is_late_all_the_same(comm, open_port):
    port = open_port(servers=1)
    if comm.rank:
        drive(port.compute(time.sleep, 2 * TIMEOUT_S))
    else:
        with pytest.raises(TransportError, match=r"0.1 s \(--timeout-s\)"):
            drive(port.receive())


def test_until_names_whom_it_was_told(open_port):
    with pytest.raises(TransportError, match="ranks 5 and 6 to read"):
        drive(open_port().until(lambda: False, lambda: "ranks 5 and 6 to read"))


def test_a_rank_that_does_not_come_to_the_end_is_waited_for_in_vain(comm, open_port):
    port = open_port()
    if comm.rank == 0:
        with pytest.raises(TransportError, match="other ranks"):
            port.meet()
    comm.Barrier()
    if comm.rank:
        port.meet()


def test_last_reports_that_do_not_come_are_waited_for_in_vain(comm, open_port):
    port = open_port()
    if comm.rank == 0:
        with pytest.raises(TransportError, match="last reports"):
            port.finish_reports(lambda: False)
