"""One rank's part in a topology: alone it must add up to what the matrices say."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.topology import topology_of
from psrt.topology.mixing import folded
from psrt.topology.part import Part

NAMES = ["ring", "exponential", "one-peer-exponential", "star", "full", "torus", "random-regular:3"]


def rows(topology, left=(), at=0):
    """Return the matrix that the parts of all ranks make of a round."""
    parts = [Part(topology, rank) for rank in range(topology.size)]
    matrix = np.zeros((topology.size, topology.size))
    for part in parts:
        for rank in left:
            part.leave(rank, at)
        if part.rank not in left:
            matrix[part.rank, part.rank] = part.own(at)
            for sender in part.senders(at):
                matrix[part.rank, sender] = part.weight(sender, at)
    return matrix


@pytest.mark.parametrize("push_sum", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_parts_are_the_matrix(name, push_sum):
    topology = topology_of(name, 8, push_sum=push_sum)
    for at in range(2 * topology.period):
        assert np.array_equal(rows(topology, at=at), topology.matrices[at % topology.period])


@pytest.mark.parametrize("push_sum", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_who_sends_is_received(name, push_sum):
    topology = topology_of(name, 8, push_sum=push_sum)
    parts = [Part(topology, rank) for rank in range(8)]
    for at in range(topology.period):
        sent = {(part.rank, to) for part in parts for to in part.receivers(at)}
        assert sent == {(source, part.rank) for part in parts for source in part.senders(at)}
        assert all(a in parts[b].peers and b in parts[a].peers for a, b in sent)


@pytest.mark.parametrize("name", ["ring", "star", "full", "torus"])
def test_neighbours_fold_the_weight_of_who_left(name):
    topology = topology_of(name, 8)
    left = {3, 5}
    stay = [rank for rank in range(8) if rank not in left]
    expected = folded(topology.matrices[0], left)
    assert rows(topology, left)[np.ix_(stay, stay)] == pytest.approx(expected)


@pytest.mark.parametrize("name", NAMES)
def test_under_push_sum_columns_add_up_to_one_without_who_left(name):
    topology = topology_of(name, 8, push_sum=True)
    for at in range(topology.period):
        total = rows(topology, {2, 7}, at).sum(axis=0)
        assert np.delete(total, [2, 7]) == pytest.approx(np.ones(6))


def test_who_leaves_takes_part_in_the_rounds_before():
    part = Part(topology_of("ring", 4), 0)
    part.leave(1, 5)
    assert part.senders(4) == part.receivers(4) == (1, 3)
    assert part.senders(5) == part.receivers(5) == (3,)
