"""One rank's part in keeping the history of a job over MPI."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mpi4py import MPI

from psrt.config import TrainConfig
from psrt.errors import ConfigError, PsrtError
from psrt.history import EventLog
from psrt.history.folder import FOLDER, rank_file, write_header
from psrt.job.provenance import history_header
from psrt.mpi.agreement import together
from psrt.mpi.port import MpiPort
from psrt.runtime.chronicle import ShardChronicle, WorkerChronicle
from psrt.runtime.problem import Problem
from psrt.runtime.server import Server
from psrt.runtime.strategies.base import ReducePlan
from psrt.runtime.worker import Worker
from psrt.transport.port import Vector


def open_log(comm: MPI.Comm, port: MpiPort, config: TrainConfig) -> EventLog | None:
    """Open this rank's file in the folder that rank 0 has made; collective.

    Returns:
        None where the config asks for no history.

    Raises:
        ConfigError: on every rank, if one of them cannot write its file.
    """
    log: EventLog | None = None
    try:
        with together(comm):
            if config.record:
                log = _opened(comm, port, config)
    except PsrtError:
        if log is not None:
            log.abandon()
        raise
    return log


def _opened(comm: MPI.Comm, port: MpiPort, config: TrainConfig) -> EventLog:
    origin = np.array([port.now()])
    comm.Bcast(origin)
    path = Path(config.out or "") / FOLDER / rank_file(comm.rank)
    try:
        return EventLog(path, origin=float(origin[0]))
    except ConfigError as error:
        raise ConfigError(
            f"--record needs an --out that every rank can write to: rank {comm.rank} {error}"
        ) from None


def write_head(
    folder: Path,
    config: TrainConfig,
    port: MpiPort,
    *,
    initial: Vector,
    problem: Problem | None,
    plan: ReducePlan | None,
    hosts: list[int],
) -> None:
    """Say at rank 0 what the events are of.

    Args:
        folder: of the history.
        config: resolved.
        port: of rank 0.
        initial: (n,) the parameters that training starts from.
        problem: what is trained.
        plan: how all workers sum; that is a worker's affair, and without servers rank 0 is one.
        hosts: number of the host of each rank.
    """
    header = history_header(
        config,
        port.wiring,
        initial=initial,
        problem=problem,
        files=tuple(map(rank_file, range(port.wiring.size))),
        plan=plan,
        hosts=tuple(hosts),
    )
    write_header(folder, header)


def close_log(log: EventLog, port: MpiPort, role: Server | Worker) -> None:
    """End this rank's file with the version that is saved."""
    now, wiring = port.now(), port.wiring
    if isinstance(role, Server):
        shard = wiring.servers.index(port.rank)
        ShardChronicle(log, shard).saved(role.shard.version, now)
    elif not wiring.servers and port.rank == 0:
        WorkerChronicle(log, 0).saved(role.strategy.updates, now)
    log.close()
