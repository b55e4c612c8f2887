"""What a shard counts."""

from __future__ import annotations

from psrt.messages import Push
from psrt.runtime.books import Books


def push(worker, version):
    return Push(worker, 0, version, 4, 0.0, 0.0)


def test_staleness_is_counted_by_worker():
    books = Books(3)
    books.count([push(0, 0)])
    books.count([push(2, 0), push(0, 1)])
    books.count([])
    books.count([push(2, 0)])
    assert books.version == 4
    assert books.by_worker == [{0: 2}, {}, {1: 1, 3: 1}]
    assert books.histogram == [2, 1, 0, 1]


def test_nothing_applied_has_no_histogram():
    assert Books(2).histogram == []


def test_gaps_wait_for_their_workers_answer():
    books = Books(2)
    books.count_gap(1, 0.5)
    books.count_gap(0, 0.25)
    assert books.gaps == (2, 0.75, 0.5)
    assert books.fresh_gaps == {1: 0.5, 0: 0.25}
