"""Which ranks are servers and which are workers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from psrt.errors import ConfigError


def assign_roles(
    hosts: Sequence[int], servers: int, placement: str = "first"
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose the server ranks.

    Args:
        hosts: the host of each rank, as a number; equal numbers are one host.
        servers: how many, from 0 to one less than there are ranks.
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
