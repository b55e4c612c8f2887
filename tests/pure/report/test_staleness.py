"""What ranks counted, joined for the summary."""

from __future__ import annotations

import pytest

from psrt.report import Counts, Gap, Staleness, Waiting
from psrt.stats import Stats

SHARDS = [
    Stats(shard=0, staleness=[{2: 1, 0: 3}, {1: 4}], gaps=(2, 0.5, 0.4)),
    Stats(shard=1, staleness=[{0: 4}, {0: 1, 7: 3}]),
]
NONE = {"workers": 0.0, "server": 0.0, "messages": 0.0, "reduce": 0.0}
WORKERS = [
    Stats(
        worker=0,
        seconds=2.0,
        waited=NONE | {"workers": 0.5, "server": 0.25, "messages": 0.125},
        waited_for={1: 0.5},
    ),
    Stats(worker=1, waited=NONE),
]


def test_staleness_by_worker_by_shard_and_in_all():
    staleness = Staleness.of_ranks([*WORKERS, *SHARDS])
    assert staleness.histogram == (8, 4, 1, 0, 0, 0, 0, 3)
    assert staleness.mean == (4 + 2 + 21) / 16
    assert staleness.by_worker[0] == Counts(2 / 8, 2, {0: 7, 2: 1})
    assert staleness.by_worker[1] == Counts(25 / 8, 7, {0: 1, 1: 4, 7: 3})
    assert staleness.by_shard[0] == Counts.of([(0, 3), (1, 4), (2, 1)])
    assert staleness.by_shard[1].max == 7
    assert staleness.gap == Gap(0.25, 0.4, 2)


def test_without_servers_there_is_none():
    assert Staleness.of_ranks(WORKERS) == Staleness(0.0, 0, ())


def test_who_waited_for_what():
    first, second = map(Waiting.of, WORKERS)
    assert (first.seconds, first.share) == (0.875, pytest.approx(0.4375))
    assert (first.for_workers, first.waiting_for) == (0.5, {1: 0.5})
    assert (second.seconds, second.share) == (0.0, 0.0)
