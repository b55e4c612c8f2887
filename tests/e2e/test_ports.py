"""On one host no rank has a port to which somebody else could connect, however it was started."""

import pytest

#: Prints the sockets of TCP that each rank listens on, but for what its launcher has open as well:
#: MPICH's lets its ranks inherit its own.
JOB = """
import os
import {first}
from mpi4py import MPI

MPI.COMM_WORLD.Barrier()


def sockets(process):
    folder = f"/proc/{{process}}/fd"
    found = (os.path.join(folder, handle) for handle in os.listdir(folder))
    return {{os.readlink(it) for it in found if os.path.islink(it)}}


own, found = sockets("self") - sockets(os.getppid()), []
for kind in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{{kind}}").readlines()[1:]:
        _, address, _, state, *_, inode = line.split()[:10]
        if state == "0A" and f"socket:[{{inode}}]" in own:
            found.append(f"{{kind}} {{address}}")
everybody = MPI.COMM_WORLD.gather(found)
if everybody:
    print(everybody)
"""


@pytest.mark.parametrize("first", ["psrt", "mpi4py"])
def test_no_rank_listens(launch, first):
    (launch.folder / "job.py").write_text(JOB.format(first=first))
    if first == "psrt":
        done = launch.ranks(2, "job.py")
    else:  # MPI starts before psrt is imported, if it ever is
        done = launch.psrt("launch", "-n", 2, "job.py")
    assert done.status == 0, done.stderr
    assert done.stdout == "[[], []]\n"
