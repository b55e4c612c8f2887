"""The two halves of an all-reduce: a reduce-scatter to owners, and an all-gather from them."""

from __future__ import annotations

import itertools

import pytest

from psrt.collective import ALGORITHMS
from psrt.collective.analysis.proof import prove
from psrt.collective.analysis.rendezvous import ScheduleError
from psrt.collective.spec import CollectiveSpec, Postcondition
from psrt.partition import Span

WITH_HALVES = [row for row in ALGORITHMS.values() if row.owned]


def specs(row, size, n):
    """Return what each half must do, written down by hand."""
    owned = [row.owned(rank, size, n) for rank in range(size)]
    sums = tuple((Postcondition(own, None),) for own in owned)
    copies = tuple(Postcondition(own, rank) for rank, own in enumerate(owned))
    whole = ((Span(0, n),),) * size
    return (
        CollectiveSpec(n, 0, whole, sums),
        CollectiveSpec(n, 0, tuple((own,) for own in owned), (copies,) * size),
    )


@pytest.mark.parametrize("row", WITH_HALVES, ids=lambda row: row.name)
@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("n", [0, 1, 7, 24, 100])
def test_each_half_ends_with_what_owners_have(row, size, n):
    halves = [row.halves(rank, size, n) for rank in range(size)]
    for i, spec in enumerate(specs(row, size, n)):
        prove(spec, [steps[i] for steps in halves])
    assert [a + b for a, b in halves] == row.plan(size, n)
    owned = sorted(row.owned(rank, size, n) for rank in range(size))
    assert sum(span.size for span in owned) == n
    assert all(a.stop <= b.start for a, b in itertools.pairwise(owned))


def test_the_proof_notices_a_wrong_owner():
    row = WITH_HALVES[0]
    scatter, _ = specs(row, 3, 9)
    moved = CollectiveSpec(9, 0, scatter.has, scatter.owed[1:] + scatter.owed[:1])
    with pytest.raises(ScheduleError):
        prove(moved, [row.halves(rank, 3, 9)[0] for rank in range(3)])
