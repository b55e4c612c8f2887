"""Who is who in a job over MPI: on which host a rank is, and whether it is a server or a worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from mpi4py import MPI

from psrt.config import TrainConfig, resolve, to_toml
from psrt.errors import ConfigError
from psrt.job.roles import assign_roles
from psrt.mpi.hosts import split_hosts

#: What a rank was started as: anything, or one of the two (MPMD).
ANY, SERVER, WORKER = 0, 1, 2
_STARTED_AS = {None: ANY, "server": SERVER, "worker": WORKER}

#: What every rank was started as.
Given = np.ndarray[Any, np.dtype[np.int64]]


def started_as(comm: MPI.Comm, role: str | None) -> Given:
    """Return what every rank was started as, of which this one's is ``role``; collective."""
    given = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([_STARTED_AS[role]], np.int64), given)
    return given


def hosts_of(comm: MPI.Comm) -> list[int]:
    """Return, for each rank, the lowest rank of its host; collective."""
    node, layout = split_hosts(comm)
    node.Free()
    lowest = {rank: ranks[0] for ranks in layout.hosts for rank in ranks}
    return [lowest[rank] for rank in range(comm.size)]


def resolved(config: TrainConfig, ranks: int, given: Given) -> str:
    """Return the resolved config as TOML.

    Raises:
        ConfigError: if it does not fit so many ranks, or what they were started as.
    """
    if given.any():
        if not given.all():
            raise ConfigError("some ranks were started as server or worker, others were not")
        servers = int((given == SERVER).sum())
        if config.servers not in (None, servers):
            raise ConfigError(
                f"--servers {config.servers}, but {servers} ranks were started as servers"
            )
        config = replace(config, servers=servers)
    return to_toml(resolve(config, ranks=ranks))


def who_is_who(
    config: TrainConfig, hosts: list[int], given: Given
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks of the servers and of the workers.

    Raises:
        ConfigError: if no worker is left.
    """
    if given.any():
        servers = tuple(int(rank) for rank in np.flatnonzero(given == SERVER))
        workers = tuple(int(rank) for rank in np.flatnonzero(given == WORKER))
    else:
        servers, workers = assign_roles(hosts, config.servers or 0, config.placement or "first")
    return servers, workers
