"""What virtual time says of sums is what real ranks do: the same bits, and as many bytes."""

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.mpi.port import MpiPort
from psrt.partition import Span
from psrt.simulation import SimulationCosts, Simulator
from psrt.transport import CONTROL, RoleMap, drive

pytestmark = pytest.mark.mpi


def numbers(rank, n):
    """Return float32 numbers whose sum shows the order of addition in its last bits."""
    rng = np.random.default_rng((n, rank))
    return (rng.standard_normal(n) * 10 ** rng.uniform(-3, 3, n)).astype(np.float32)


async def sums(port, name, n):
    """Sum gradient and control values; return the taken and the control sums, and the bytes."""
    before = port.bytes_sent

    def take(span, found):
        span.of(port.theta)[:] = found

    whole = port.reduction(Span(n, n + CONTROL), name, None)
    taken = port.reduction(Span(0, n), name, take)
    port.gradient[:] = numbers(port.rank, n + CONTROL)
    for reduction in (whole, taken):
        reduction.begin()
        await reduction.finish()
    return port.theta.tobytes(), port.gradient[n:].tobytes(), port.bytes_sent - before


@pytest.mark.parametrize("n", [1, 50, 70_001])
@pytest.mark.parametrize("name", ["node", *ALGORITHMS])
def test_virtual_sums_are_the_real_ones(comm, name, n):
    role_map = RoleMap(n, tuple(range(comm.size)))
    port = MpiPort(comm, role_map, timeout_s=20)
    try:
        real = drive(sums(port, name, n))
    finally:
        port.close()
    for reduce in (None, lambda rng: 1e-3):
        world = Simulator(role_map, seed=0, costs=SimulationCosts(reduce=reduce))
        roles = {rank: sums(world.ports[rank], name, n) for rank in range(comm.size)}
        found = world.run(roles)[comm.rank]
        assert found[:2] == real[:2]
        if comm.size > 1:
            assert found[2] == real[2]
