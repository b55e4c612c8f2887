"""Who is who, and the port of a job of one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from psrt.errors import ProtocolError
from psrt.messages import Leave
from psrt.partition import Span, even_spans
from psrt.transport import CONTROL, RoleMap, SoloPort, drive


def test_workers_and_servers_are_found_by_rank():
    role_map = RoleMap(7, workers=(0, 2, 3), servers=(4, 1), spans=even_spans(7, 2))
    assert [role_map.worker_of(rank) for rank in range(5)] == [0, None, 1, 2, None]
    assert [role_map.shards_of(rank) for rank in range(5)] == [(), (1,), (), (), (0,)]
    assert (role_map.size, role_map.server_ranks, role_map.most_shards) == (5, (4, 1), 1)


def test_a_server_may_own_several_shards():
    role_map = RoleMap(9, workers=(0, 2), servers=(3, 1, 3), spans=even_spans(9, 3))
    assert [role_map.shards_of(rank) for rank in range(4)] == [(), (1,), (), (0, 2)]
    assert (role_map.size, role_map.server_ranks, role_map.most_shards) == (4, (3, 1), 2)


class TestSolo:
    def test_it_has_one_worker_with_parameters_and_a_gradient(self):
        port = SoloPort(5)
        assert (port.role_map.workers, port.role_map.servers, port.rank) == ((0,), (), 0)
        assert (port.theta.shape, port.gradient.shape) == ((5,), (5 + CONTROL,))

    def test_work_is_done_on_the_spot(self):
        async def role():
            doubled = await port.compute(np.multiply, port.theta, 2)
            await port.until(lambda: True, lambda: "nothing")
            assert await port.differing(7) == []
            return doubled

        port = SoloPort(3)
        port.theta[:] = 1, 2, 3
        assert drive(role()).tolist() == [2, 4, 6]

    def test_its_sums_are_its_own_numbers(self):
        port, taken = SoloPort(5), []
        port.gradient[:] = range(8)
        whole = port.reduction(Span(0, 8), port.choice("auto", 8)[0], None)
        part = port.reduction(
            Span(1, 4), "ring", lambda span, sums: taken.append((span, sums.tolist()))
        )
        for reduction in (whole, part):
            reduction.begin()
            assert reduction.poll()
            drive(reduction.finish())  # once is enough
        assert port.gradient.tolist() == list(range(8))
        assert taken == [(Span(1, 4), [1.0, 2.0, 3.0])]
        part.begin()
        drive(part.finish())
        assert len(taken) == 2

    def test_time_moves_forward(self):
        port = SoloPort(1)
        assert port.now() <= port.now()

    def test_reports_are_handed_on(self):
        port, got = SoloPort(1), []
        port.on_report = got.append
        port.report("report")
        assert got == ["report"]

    @pytest.mark.parametrize(
        "talk",
        [
            lambda port: port.send(1, Leave(0, 0)),
            lambda port: port.payload(0, 0),
            lambda port: port.in_flight(1, 0),
            lambda port: drive(port.receive()),
            lambda port: drive(port.until(lambda: False, lambda: "")),
        ],
    )
    def test_there_is_nobody_to_talk_to(self, talk):
        with pytest.raises(ProtocolError, match="nobody to talk to"):
            talk(SoloPort(1))

    def test_a_role_that_suspends_is_a_mistake(self):
        role = asyncio.sleep(0)
        with pytest.raises(AssertionError, match="suspended"):
            drive(role)
        role.close()
