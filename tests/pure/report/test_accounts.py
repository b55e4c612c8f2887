"""What ranks counted, joined."""

from __future__ import annotations

import pytest

from psrt.messages import Push
from psrt.report import Counts, Gap, Staleness
from psrt.report.accounts import skew_of, staleness_of, waiting_of
from psrt.runtime.account import ShardAccount, WorkerAccount, from_text, to_text
from psrt.runtime.books import Books

SHARDS = [
    ShardAccount(0, [[[0, 3], [2, 1]], [[1, 4]]], [2, 0.5, 0.4]),
    ShardAccount(1, [[[0, 4]], [[0, 1], [7, 3]]], [0, 0.0, 0.0]),
]
WORKERS = [
    WorkerAccount(
        0, 2.0, {"workers": 0.5, "server": 0.25, "messages": 0.125, "reduce": 0.0}, [[1, 0.5]],
        [[0, 3], [1, 1]],
    ),
    WorkerAccount(
        1, 0.0, {"workers": 0.0, "server": 0.0, "messages": 0.0, "reduce": 0.0}, [], [[4, 2]]
    ),
]  # fmt: skip


def test_staleness_by_worker_by_shard_and_in_all():
    staleness = staleness_of([*WORKERS, *SHARDS])
    assert staleness.histogram == (8, 4, 1, 0, 0, 0, 0, 3)
    assert staleness.mean == (4 + 2 + 21) / 16
    assert staleness.by_worker[0] == Counts(2 / 8, 2, {0: 7, 2: 1})
    assert staleness.by_worker[1] == Counts(25 / 8, 7, {0: 1, 1: 4, 7: 3})
    assert staleness.by_shard[0] == Counts.of([(0, 3), (1, 4), (2, 1)])
    assert staleness.by_shard[1].max == 7
    assert staleness.gap == Gap(0.25, 0.4, 2)


def test_without_servers_there_is_none():
    assert staleness_of(WORKERS) == Staleness(0.0, 0, ())


def test_reads_by_skew():
    assert skew_of([*SHARDS, *WORKERS]) == Counts(9 / 6, 4, {0: 3, 1: 1, 4: 2})


def test_who_waited_for_what():
    first, second = waiting_of([*SHARDS, *WORKERS])
    assert (first.seconds, first.share, first.for_workers, first.whom) == (
        0.875,
        pytest.approx(0.4375),
        0.5,
        {1: 0.5},
    )
    assert (second.seconds, second.share) == (0.0, 0.0)


@pytest.mark.parametrize("account", [*SHARDS, *WORKERS])
def test_accounts_travel_as_text(account):
    assert from_text(to_text(account)) == account


def test_a_shards_account_is_that_of_its_books():
    books = Books(2)
    for worker, version in ((1, 0), (0, 0), (1, 1)):
        books.count([Push(worker, 0, version, 4, 0.0, 0.0)])
    books.count_gap(0, 0.5)
    assert ShardAccount.of(3, books) == ShardAccount(3, [[[1, 1]], [[0, 1], [1, 1]]], [1, 0.5, 0.5])
