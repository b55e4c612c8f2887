"""Lets ranks without a part in a turn sleep, so that those with one have the cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mpi4py import MPI

from psrt.errors import PsrtError
from psrt.mpi.agreement import together
from psrt.transport.backoff import Patience

Result = TypeVar("Result")


@contextmanager
def others_asleep(comm: MPI.Comm) -> Iterator[None]:
    """Meet at the end of the block without burning a core while waiting; collective."""
    yield
    request = comm.Ibarrier()
    Patience(crowded=True, timeout_s=3600.0).wait(request.Test, lambda: "the other ranks")


def work_while_others_sleep(
    comm: MPI.Comm, ranks: tuple[int, ...], work: Callable[[MPI.Comm], Result]
) -> Result | None:
    """Let some ranks work on a communicator of their own; collective over ``comm``.

    Args:
        comm: all ranks.
        ranks: of those that work, in the order that they have on their own communicator.
        work: what they do.

    Returns:
        What ``work`` returned, None on the ranks that slept.

    Raises:
        PsrtError: on all ranks, if ``work`` raised one on any.
    """
    takes_part = comm.rank in ranks
    key = ranks.index(comm.rank) if takes_part else 0
    part = comm.Split(0 if takes_part else MPI.UNDEFINED, key)
    result, error = None, None
    with others_asleep(comm):
        try:
            result = work(part) if takes_part else None
        except PsrtError as failure:
            error = failure
    with together(comm):
        if error is not None:
            raise error
    if takes_part:
        part.Free()
    return result
