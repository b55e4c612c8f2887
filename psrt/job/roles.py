"""Which ranks are servers and which are workers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest

from psrt.config import TrainConfig, resolve
from psrt.core.errors import ConfigError
from psrt.rows.values import HOST

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


def resolved_on(
    hosts: Callable[[TrainConfig], Sequence[int]],
    config: TrainConfig,
    ranks: int,
    started_as: Sequence[int] = (),
) -> TrainConfig:
    """Return the resolved config of a job, as ``resolved``, with what depends on hosts.

    Args:
        hosts: returns the number of the host of each rank, given a resolved config.
        config: need not be resolved.
        ranks: of the job.
        started_as: the role that each rank was started in; empty if not given.

    Raises:
        ConfigError: as ``resolved``; or if a learner is to have all workers of a host, and hosts
            have different numbers of them.
    """
    found = resolved(config, ranks, started_as)
    mode = found.scheme
    if mode.learner_ranks != HOST:
        return found
    there = hosts(found)
    counts = Counter(there[rank] for rank in who_is_who(found, there, started_as)[1])
    if len(set(counts.values())) > 1:
        numbers = ", ".join(map(str, counts.values()))
        raise ConfigError(
            f"--mode {mode}: hosts have {numbers} workers, and learners need equally many; "
            "choose the slots of hosts, --servers and --placement so that they have"
        )
    mode = replace(config.scheme, learner_ranks=max(counts.values()))  # type: ignore[call-arg]
    return resolved(replace(config, mode=mode), ranks, started_as)


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
