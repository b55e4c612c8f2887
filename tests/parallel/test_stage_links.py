"""The channels between stages: rows are not written before who reads them has given them up."""

import numpy as np
import pytest
from mpi4py import MPI

from psrt.mpi.stage_links import MpiStageLinks
from psrt.partition import Part, Span
from psrt.transport import drive
from psrt.transport.stage_links import Channel

#: Three micro-batches of two rows take turns.
CHANNEL = Channel(0, False, writer=0, reader=1, width=3, rows=6, messages=3, turn=2)


def rows_of(m):
    return CHANNEL.place(m, Span(2 * m, 2 * m + 2))


@pytest.mark.parametrize("one_host", [True, False])
def test_the_next_batch_waits_for_rows_of_the_one_before(comm, one_host):
    """Of five micro-batches the fourth lies where the first of the next batch goes."""
    if comm.size < 2:
        pytest.skip("a channel has two ends")
    part = comm.Split(comm.rank < 2, comm.rank)
    if comm.rank < 2:
        host = None if one_host else comm.rank
        links = MpiStageLinks(
            part,
            part,
            MPI.COMM_SELF,
            [CHANNEL],
            parts=[Part(), Part()],
            names=[0, 1],
            slices=[0],
            host=host,
        )
        (_writes if part.rank == 0 else _reads)(links, part, links.matrices[CHANNEL])
        links.close()
    part.Free()


def _writes(links, part, matrix):
    def send(m, number):
        drive(links.free(CHANNEL, rows_of(m)))
        matrix[rows_of(m)] = number
        links.send(CHANNEL, rows_of(m))

    for m in range(5):
        send(m, m)
    part.Barrier()
    link = links._local.get(CHANNEL)
    free = [] if link is None else [link.is_free(rows_of(m)) for m in range(3)]
    if link is None:
        send(0, 5)
    part.Barrier()
    if link is not None:
        send(0, 5)
    part.Barrier()
    assert free in ([], [False, False, True])


def _reads(links, part, matrix):
    links.begin({CHANNEL: [rows_of(m) for m in range(5)]})
    for m in range(5):
        drive(links.receive(CHANNEL))
        if m < 3:
            links.release(CHANNEL)
    links.begin({CHANNEL: [rows_of(0)]})
    part.Barrier()
    part.Barrier()
    kept = matrix[[rows_of(3).start, rows_of(4).start], 0].tolist()
    links.release(CHANNEL)
    links.release(CHANNEL)
    drive(links.receive(CHANNEL))
    new = matrix[rows_of(0)].copy()
    links.release(CHANNEL)
    part.Barrier()
    assert kept == [3, 4]
    np.testing.assert_array_equal(new, 5)
