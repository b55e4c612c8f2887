"""The number of shards of a server, as training would choose it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace

from mpi4py import MPI

from psrt.cli.flags import FlagParser
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of
from psrt.config.names import AUTO
from psrt.core.partition import Span
from psrt.job.shards import choose_shards, served_job
from psrt.mpi.agreement import bcast_text
from psrt.mpi.hosts import split_hosts
from psrt.rows.knobs import read


def chosen_shards(
    comm: MPI.Comm,
    config: TrainConfig,
    n: int,
    layers: Sequence[Span] = (),
    *,
    compute_s: float | None = None,
) -> int:
    """Return the number that ``auto`` stands for, the same on every rank; collective.

    Args:
        comm: the servers, then the workers.
        config: resolved.
        n: the number of parameters.
        layers: the gradient's spans in the order in which they are ready.
        compute_s: the time of a gradient; None assumes what training does.
    """
    node, layout = split_hosts(comm)
    node.Free()
    host = {rank: i for i, ranks in enumerate(layout.hosts) for rank in ranks}
    hosts = [host[rank] for rank in range(comm.size)]
    servers = config.servers or 0
    costs = replace(DEFAULT_COSTS, cores=len(os.sched_getaffinity(0)))
    job = served_job(config, n, layers, hosts[:servers], hosts[servers:], costs=costs)
    if compute_s is not None:
        job = replace(job, compute_s=compute_s)
    return int(bcast_text(comm, str(choose_shards(job).shards)))


def add_flag(parser: FlagParser) -> None:
    """Let users choose it."""
    parser.add_argument(
        "--shards-per-server",
        metavar="K|auto",
        default=AUTO,
        help="number of shards that a server of psrt owns (auto, as in training)",
    )


def read_shards(given: argparse.Namespace) -> int | None:
    """Return what they chose; None leaves it to psrt.

    Raises:
        ConfigError: if it is no number of shards.
    """
    each = read(
        "shards_per_server", knobs_of(TrainConfig)["shards_per_server"], given.shards_per_server
    )
    return None if each == AUTO else int(each)
