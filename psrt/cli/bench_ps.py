"""``psrt bench ps``: reads its flags, measures pushes and pulls."""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

from mpi4py import MPI

from psrt.bench import ps
from psrt.bench.figures import table
from psrt.cli.bench_allreduce import named, vector_sizes
from psrt.config.suggest import did_you_mean
from psrt.errors import ConfigError
from psrt.explain.inputs import read_ranks


def run(
    given: argparse.Namespace, comm: MPI.Comm, *, shards_per_server: int | None
) -> dict[str, tuple[Any, str]]:
    """Measure; collective.

    Args:
        given: ``sizes``, ``servers``, ``workers`` and ``mode`` as texts or None; ``rounds``.
        comm: all ranks.
        shards_per_server: None leaves it to psrt.

    Returns:
        Title → rows and their table; empty except on rank 0.

    Raises:
        ConfigError: on every rank, for invalid flags.
    """
    mode = given.mode or "async"
    if mode not in ps.MODES:
        guess = did_you_mean(mode, ps.MODES)
        raise ConfigError(f"--mode {mode}, expected {' or '.join(ps.MODES)}{guess}")
    rows = ps.measure(
        comm,
        sizes=tuple(vector_sizes(given.sizes, ps.SIZES)),
        layouts=_layouts(given, comm.size),
        mode=mode,
        shards_per_server=shards_per_server,
        rounds=given.rounds,
    )
    return {"push and pull": (rows, table(rows, ps.COLUMNS))}


def _layouts(given: argparse.Namespace, ranks: int) -> tuple[tuple[int, int], ...]:
    """Return numbers of servers and workers."""
    if given.servers is None and given.workers is None:
        return ps.LAYOUTS
    servers = named("servers", read_ranks, given.servers or "1")
    workers = named("workers", read_ranks, given.workers or "1")
    needed = max(servers) + max(workers)
    if needed > ranks:
        raise ConfigError(
            f"{max(servers)} servers and {max(workers)} workers need {needed} ranks, got {ranks}"
        )
    return tuple(product(servers, workers))
