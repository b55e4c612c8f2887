"""Lets ranks without a part in a turn sleep, so that those with one have the cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mpi4py import MPI

from psrt.transport.patience import Patience


@contextmanager
def others_asleep(comm: MPI.Comm) -> Iterator[None]:
    """Meet at the end of the block without burning a core while waiting; collective."""
    yield
    request = comm.Ibarrier()
    Patience(crowded=True, timeout_s=3600.0).wait(request.Test, lambda: "the other ranks")
