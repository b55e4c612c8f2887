"""Which ranks are servers and which are workers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from psrt.config import TrainConfig, resolve
from psrt.config.axes import Axes
from psrt.core.errors import ConfigError
from psrt.job.cells import in_order

#: The role that a rank was started in: any, or one of the two (MPMD).
ANY, SERVER, WORKER = 0, 1, 2


def resolved(config: TrainConfig, ranks: int, started_as: Sequence[int] = ()) -> TrainConfig:
    """Return the resolved config of a job.

    Args:
        config: need not be resolved.
        ranks: of the job.
        started_as: the role that each rank was started in; empty if not given.

    Raises:
        ConfigError: if it does not fit the number of ranks, or the roles they were started in.
    """
    if any(started_as):
        if not all(started_as):
            raise ConfigError("some ranks were started as server or worker, others were not")
        servers = sum(role == SERVER for role in started_as)
        if config.servers not in (None, servers):
            raise ConfigError(
                f"--servers {config.servers}, but {servers} ranks were started as servers"
            )
        config = replace(config, servers=servers)
    return resolve(config, ranks=ranks)


def who_is_who(
    config: TrainConfig, hosts: Sequence[int], started_as: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks of the servers and of the workers.

    Args:
        config: resolved.
        hosts: number of the host of each rank.
        started_as: the role that each rank was started in; empty if not given.

    Raises:
        ConfigError: if no worker is left.
    """
    if any(started_as):
        servers = tuple(rank for rank, role in enumerate(started_as) if role == SERVER)
        workers = tuple(rank for rank, role in enumerate(started_as) if role == WORKER)
    else:
        servers, workers = assign_roles(hosts, config.servers or 0, config.placement or "first")
    return servers, workers


def in_learners(
    config: TrainConfig, workers: tuple[int, ...], hosts: Sequence[int]
) -> tuple[TrainConfig, tuple[int, ...]]:
    """Return the config and the ranks of the workers in which learners are consecutive.

    Learners that fit into a host are placed there as a whole.

    Args:
        config: resolved, except for the workers of each host.
        workers: their ranks.
        hosts: number of the host of each rank.

    Raises:
        ConfigError: if a learner is to have all workers of a host, and hosts have different
            numbers of them, or the mode cannot be with that number.
    """
    mode = config.scheme
    if not mode.has_teams:
        return config, workers
    ranks = mode.learner_ranks
    if isinstance(ranks, str):
        counts = Counter(hosts[rank] for rank in workers)
        if len(set(counts.values())) > 1:
            found = ", ".join(map(str, counts.values()))
            raise ConfigError(
                f"--mode {mode}: hosts have {found} workers, and learners need equally many; "
                "choose the slots of hosts, --servers and --placement so that they have"
            )
        ranks = max(counts.values())
        mode = replace(mode, learner_ranks=ranks)  # type: ignore[call-arg]
        config = resolve(replace(config, mode=mode), ranks=len(hosts))
    return config, in_order(workers, hosts, Axes(len(workers) // ranks, 1, ranks))


def assign_roles(
    hosts: Sequence[int], servers: int, placement: str = "first"
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose the server ranks.

    Args:
        hosts: the host of each rank, as a number; equal numbers are one host.
        servers: the number of servers, less than the number of ranks.
        placement: ``first`` or ``last`` ranks, or ``spread``: one per host in turn, the last rank
            of each, so that rank 0 stays a worker where it can.

    Returns:
        Ranks of the servers by shard, ranks of the workers by number.

    Raises:
        ConfigError: if no worker is left, or there is no such placement.

    >>> assign_roles([0, 0, 0, 1, 1], 2, "spread")
    ((2, 4), (0, 1, 3))
    """
    ranks = range(len(hosts))
    if servers >= len(hosts):
        raise ConfigError(f"{servers} servers among {len(hosts)} ranks leave no worker")
    if placement == "first":
        chosen = tuple(ranks[:servers])
    elif placement == "last":
        chosen = tuple(ranks[len(hosts) - servers :])
    elif placement == "spread":
        by_host = [[r for r in reversed(ranks) if hosts[r] == h] for h in dict.fromkeys(hosts)]
        turns = (rank for turn in zip_longest(*by_host) for rank in turn if rank is not None)
        chosen = tuple(sorted(rank for rank, _ in zip(turns, range(servers), strict=False)))
    else:
        raise ConfigError(f"placement must be spread, first or last, got {placement!r}")
    taken = set(chosen)
    return chosen, tuple(rank for rank in ranks if rank not in taken)
