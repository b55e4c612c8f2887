"""How well links between hosts are used: both directions at once."""

import json

import pytest

from support.hosts import Hosts

#: Of each link, each way; and of it what is left beside the headers of packets.
RATE_MBIT, PAYLOAD = 100, 0.955
#: Prints the fastest of some sums by each schedule, in multiples of its bound.
SCRIPT = f"""
import json, sys, time
import psrt
from mpi4py import MPI
comm, times = MPI.COMM_WORLD, {{}}
with psrt.Communicator(comm) as communicator:
    vector = communicator.empty(int(sys.argv[1]) // 4)
    vector[:] = 0
    bound_s = 2 * (comm.size - 1) / comm.size * vector.nbytes * 8 / {RATE_MBIT * PAYLOAD}e6
    for _ in range(4):
        for name in sys.argv[2:]:
            comm.Barrier()
            begin = time.perf_counter()
            communicator.all_reduce(vector, "sum", name)
            taken = comm.allreduce(time.perf_counter() - begin, MPI.MAX)
            times.setdefault(name, []).append(taken / bound_s)
if comm.rank == 0:
    print(json.dumps({{name: sorted(taken) for name, taken in times.items()}}))
"""


@pytest.fixture(scope="module")
def slow_links(hosts):
    with Hosts(4, rate=f"{RATE_MBIT}mbit") as slow:
        yield slow


# Without psrt's choice for Open MPI as well, under which a wrong order costs less.
@pytest.mark.parametrize("flags", ["send", "send,put,inplace"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_link_carries_both_directions_at_once(slow_links, vendor, count, flags):
    if vendor != "openmpi" and flags != "send":
        pytest.skip("of Open MPI alone")
    # Each step is an exchange with one peer.
    words = ("-c", SCRIPT, 2 << 20, "halving-doubling")
    done = slow_links.mpirun(vendor, (1,) * count, *words, OMPI_MCA_btl_tcp_flags=flags)
    assert done.status == 0, done.stderr
    times = json.loads(done.stdout)["halving-doubling"]
    # One direction after the other would be 2; what else runs here may hold one of them up.
    assert times[1] < 1.5, times
