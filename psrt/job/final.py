"""The final parameters, at the first process: gathered from roles, or the mean of workers'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.job.cells import Cell
from psrt.job.launcher import Launcher, Roles, shard_servers
from psrt.job.setup import Setup
from psrt.runtime.mean import mean_of, mean_of_parts
from psrt.runtime.worker import Worker


def final_theta(launcher: Launcher, setup: Setup, roles: Roles) -> Vector | None:
    """Return all parameters (n,) at the first process, None elsewhere; collective.

    If workers end with different parameters it is their mean, which the launcher then has, too.
    """
    role_map, cut = setup.role_map, setup.cut
    if role_map.peers or (cut is not None and cut.cells[0].role_map.peers):
        return _mean(launcher, setup, roles)
    if not launcher.numerics:
        return np.zeros(0, np.float32)
    if cut is None and not role_map.servers:
        return _theta_at(roles, role_map.workers[0]) if launcher.first else None
    whole = np.empty(setup.plan.n, np.float32) if launcher.first else None
    if cut is None:
        _bring(launcher, roles, role_map.servers, role_map.spans, whole)
        return whole
    for cell in cut.served_cells:
        own = np.empty(cell.part.size, np.float32) if launcher.first else None
        places = cell.role_map.servers or cell.role_map.workers[:1]
        spans = cell.role_map.spans or (Span(0, cell.part.size),)
        _bring(launcher, roles, [cell.ranks[rank] for rank in places], spans, own)
        if whole is not None and own is not None:
            cell.part.put(own, whole)
    return whole


def _bring(
    launcher: Launcher,
    roles: Roles,
    ranks: Sequence[int],
    spans: Sequence[Span],
    out: Vector | None,
) -> None:
    """Copy the spans of shards, or of a first worker, to the first process.

    Args:
        launcher: of this process.
        roles: of this process.
        ranks: of the servers by shard, or of the worker.
        spans: of each.
        out: receives them, at the first process.
    """
    for shard, (rank, span) in enumerate(zip(ranks, spans, strict=True)):
        mine: Vector | None = None
        if rank in roles:
            mine = _theta_at(roles, rank, shard)
        launcher.bring(rank, mine, None if out is None else span.of(out))


def _theta_at(roles: Roles, rank: int, shard: int = 0) -> Vector:
    """Return the parameters at a rank of this process: of a shard, or as a worker has them."""
    role = roles[rank]
    if not isinstance(role, Worker):
        return next(it.shard.theta for it in shard_servers([role]) if it.number == shard)
    if role.strategy.whole:
        return role.theta
    assert role.strategy.model is not None, "they were gathered on the first worker"
    return role.strategy.model


def _mean(launcher: Launcher, setup: Setup, roles: Roles) -> Vector | None:
    """Return the mean of the workers' parameters; with split models, part by part."""
    cut = setup.cut
    if cut is None:
        ranks = setup.role_map.workers
        means = [mean_of(_held(launcher, roles, ranks, setup.plan.n))] if launcher.first else []
        launcher.mean = means[0] if means else None
    else:
        each = [_held(launcher, roles, _workers_of(it), it.part.size) for it in cut.cells]
        means = [mean_of(held) for held in each] if launcher.first else []
        parts = [cell.part for cell in cut.cells]
        launcher.mean = mean_of_parts(parts, means) if means else None
    if not launcher.first:
        _give(launcher, roles)
    return None if launcher.mean is None else launcher.mean.theta


def _workers_of(cell: Cell) -> list[int]:
    """Return the ranks in the job of a cell's workers."""
    return [cell.ranks[worker] for worker in cell.role_map.workers]


def _held(
    launcher: Launcher, roles: Roles, ranks: Sequence[int], n: int
) -> Iterator[tuple[Vector, float]]:
    """Yield the parameters of each live worker, in worker order, with their weight.

    Args:
        launcher: of the first process.
        roles: of that.
        ranks: of the workers; at least one is alive.
        n: elements of what each holds.
    """
    share = np.empty(1)
    # Only where others have some: a simulation of more parameters than memory has none.
    theirs = np.empty(0 if all(rank in roles for rank in ranks) else n, np.float32)
    for rank in ranks:
        if isinstance(role := roles.get(rank), Worker):
            if launcher.is_there(rank):
                yield role.strategy.held
        elif launcher.bring(rank, None, share.view(np.float32)) and launcher.bring(
            rank, None, theirs
        ):
            yield theirs, float(share[0])


def _give(launcher: Launcher, roles: Roles) -> None:
    """Send the parameters of this process's workers to the first process."""
    for rank, role in roles.items():
        assert isinstance(role, Worker), "a server has no neighbours"
        vector, weight = role.strategy.held
        if launcher.bring(rank, np.array([weight]).view(np.float32), None):
            launcher.bring(rank, vector, None)
