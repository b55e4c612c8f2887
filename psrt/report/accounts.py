"""From what every rank counted to the parts of a summary that tell of staleness and waiting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from psrt.report.staleness import Counts, Gap, Staleness, Waiting
from psrt.runtime.account import Account, ShardAccount, WorkerAccount


def staleness_of(accounts: Iterable[Account]) -> Staleness:
    """Join the servers' accounts."""
    shards = [account for account in accounts if isinstance(account, ShardAccount)]
    if not shards:
        return Staleness.of(())
    everything = Counts.of(_pairs(shards))
    histogram = np.zeros(1 + everything.max, np.int64)
    for tau, count in everything.histogram.items():
        histogram[tau] = count
    total = Staleness.of(histogram)
    workers = range(len(shards[0].staleness))
    return Staleness(
        total.mean,
        total.max,
        total.histogram,
        tuple(Counts.of(p for s in shards for p in s.staleness[worker]) for worker in workers),
        tuple(Counts.of(_pairs([shard])) for shard in shards),
        Gap.of(shard.gaps for shard in shards),
    )


def skew_of(accounts: Iterable[Account]) -> Counts:
    """Join the workers' reads by skew."""
    return Counts.of(
        pair for account in accounts if isinstance(account, WorkerAccount) for pair in account.skews
    )


def waiting_of(accounts: Iterable[Account]) -> tuple[Waiting, ...]:
    """Return who waited how long for what, by worker."""
    return tuple(_waiting(a) for a in accounts if isinstance(a, WorkerAccount))


def _waiting(account: WorkerAccount) -> Waiting:
    waited = account.waited
    seconds = sum(waited.values())
    return Waiting(
        account.worker,
        seconds,
        min(1.0, seconds / account.seconds) if account.seconds > 0 else 0.0,
        waited["workers"],
        waited["server"],
        waited["messages"],
        waited["reduce"],
        {int(whom): whom_s for whom, whom_s in account.whom},
    )


def _pairs(shards: Sequence[ShardAccount]) -> Iterable[Sequence[int]]:
    return (pair for shard in shards for found in shard.staleness for pair in found)
