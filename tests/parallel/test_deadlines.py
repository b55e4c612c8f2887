"""A rank that does not answer: whoever waits for it gives up in time and says for whom."""

import time

import pytest

from psrt.errors import TransportError
from psrt.messages import Push, Report
from psrt.mpi.port import MpiPort
from psrt.partition import ShardPlan, Span
from psrt.transport import RoleMap, drive

pytestmark = pytest.mark.mpi(min_size=2)
TIMEOUT_S = 0.1
#: A deadline that nobody misses by the machine being loaded.
SOON_S = 0.5
REPORT = Report(*[0] * 17, False, True)


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


def test_a_message_that_is_not_read_names_the_reader(comm, open_port):
    port = open_port(servers=1)
    if comm.rank:
        port.send(0, Push(comm.rank - 1, 0, 0, 1, 0.0, 0.0), 0)
        with pytest.raises(TransportError, match="rank 0 to read"):
            port.send(0, Push(comm.rank - 1, 1, 0, 1, 0.0, 0.0), 0)


def test_whoever_computes_is_not_late_and_says_so_to_every_rank(
    comm, open_port, host, enough_on_few
):
    """A first step, a batch that is long in coming, and an evaluation: nobody saw them coming."""
    enough_on_few()
    port = open_port(servers=1, host=host, timeout_s=SOON_S)
    if comm.rank == 0:
        for _ in range(3 * (comm.size - 1)):
            drive(port.receive())
    else:
        for clock, run in enumerate((port.compute, port.aside, port.compute)):
            drive(run(time.sleep, 2.2 * SOON_S))
            port.send(0, Push(comm.rank - 1, clock, 0, 1, 0.0, 0.0))
    port.meet()


def test_short_steps_are_not_announced_and_a_long_one_makes_the_next_announced(comm, open_port):
    port, said = open_port(servers=1), []
    port._busy._tell = said.append
    for seconds in (0, 0, 0, 0.5 * TIMEOUT_S, 0, 0):
        drive(port.compute(time.sleep, seconds))
    assert said == [b"\1", b"\0"] * 2


def test_whoever_stops_after_its_work_is_late_all_the_same(comm, open_port):
    port = open_port(servers=1)
    if comm.rank:
        drive(port.compute(time.sleep, 2 * TIMEOUT_S))
    else:
        with pytest.raises(TransportError, match=r"0.1 s \(--timeout-s\)"):
            drive(port.receive())


def test_whoever_computes_for_ever_is_gone(comm, open_port, enough_on_few):
    enough_on_few()
    port = open_port(servers=1)
    port._busy._gone_after_s = 5 * TIMEOUT_S
    if comm.rank:
        drive(port.compute(time.sleep, 20 * TIMEOUT_S))
    else:
        start = time.monotonic()
        with pytest.raises(TransportError):
            drive(port.receive())
        assert 5 * TIMEOUT_S <= time.monotonic() - start < 15 * TIMEOUT_S


@pytest.mark.parametrize("algorithm", ["node", "ring", "mpi"])
def test_in_a_sum_whoever_computes_is_not_late(comm, open_port, algorithm, enough_on_few):
    enough_on_few()
    port = open_port(timeout_s=SOON_S)
    total = port.reduction(Span(0, 8), algorithm, None)
    for step in range(2):
        if comm.rank == step:
            drive(port.compute(time.sleep, 2.2 * SOON_S))
        port.gradient[:8] = 1.0
        total.begin()
        drive(total.finish())
        assert (port.gradient[:8] == comm.size).all()


def test_last_reports_may_take_as_long_as_somebody_evaluates(comm, open_port, enough_on_few):
    enough_on_few()
    port, reports = open_port(timeout_s=SOON_S), []
    if comm.rank == comm.size - 1:
        drive(port.aside(time.sleep, 2.2 * SOON_S))
        port.report(REPORT)
    if comm.rank == 0:
        port.on_report = reports.append
    port.finish_reports(lambda: bool(reports))


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
