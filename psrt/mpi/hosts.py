"""Finds which ranks are on which host: once, with the same result on every rank."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI


@dataclass(frozen=True, slots=True)
class Layout:
    """The ranks of a communicator by host, as seen from one of them."""

    #: This rank's number.
    rank: int
    #: Ranks of each host, ascending; hosts in the order of their lowest rank.
    hosts: tuple[tuple[int, ...], ...]
    #: Whether this rank's machine has more ranks than cores. Ranks that are only counted as being
    #: on another host share its cores, too.
    oversubscribed: bool = False
    #: Ranks of this rank's machine, including those that are only counted as being on another host.
    machine: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.hosts))

    @property
    def host(self) -> int:
        """Index of this rank's host."""
        return next(i for i, ranks in enumerate(self.hosts) if self.rank in ranks)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """Ranks of this rank's host, itself included; the index in this list is the local rank."""
        return self.hosts[self.host]

    @property
    def local_rank(self) -> int:
        """This rank's index among its node-local ranks."""
        return self.local_ranks.index(self.rank)

    @property
    def rails(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that communicate between hosts: rail i is the i-th rank of every host.

        There are as many rails as the smallest host has ranks.
        """
        return tuple(zip(*self.hosts, strict=False))


def split_hosts(comm: MPI.Comm, host: int | None = None) -> tuple[MPI.Intracomm, Layout]:
    """Find out which ranks share memory; collective.

    Args:
        comm: the ranks.
        host: ranks with the same number count as being on one host if they really are; None leaves
            it to MPI. A different number for each rank turns shared memory off.

    Returns:
        The communicator of this rank's host, to be freed by the caller, and the layout.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert isinstance(node, MPI.Intracomm), "shared memory is among the ranks of one host"
    oversubscribed = node.size > len(os.sched_getaffinity(0))
    own, everyone = node.Get_group(), comm.Get_group()
    machine = tuple(own.Translate_ranks(None, everyone))
    own.Free()
    everyone.Free()
    if host is not None:
        whole, part = node, node.Split(host)
        assert isinstance(part, MPI.Intracomm), "a split of an intracommunicator is one"
        whole.Free()
        node = part
    lowest = np.array([comm.rank], np.int64)
    node.Allreduce(MPI.IN_PLACE, lowest, MPI.MIN)
    first = np.empty(comm.size, np.int64)
    comm.Allgather(lowest, first)
    hosts = tuple(tuple(np.flatnonzero(first == h).tolist()) for h in sorted(set(first.tolist())))
    return node, Layout(comm.rank, hosts, oversubscribed, machine)
