"""Mixing matrices: verified, by their spectra, in a simulation, and broken in every way."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.topology import Graph, MixingError, topology_of
from psrt.topology.mixing import bridged, column_stochastic, folded, metropolis, two_level
from psrt.topology.part import Part
from psrt.topology.spectrum import disagreement, rounds_to, simulated_rounds
from psrt.topology.verify import verify
from support.cases import each
from support.graphs import GRAPHS

NAMES = (*GRAPHS, "random-regular:4")
ONE_WAY = ("exponential", "one-peer-exponential")


def possible(name, size, **more):
    """Return a topology; None where it has no such number of ranks."""
    try:
        return topology_of(name, size, **more)
    except ConfigError:
        return None


EVERY = [
    (name, size) for name in NAMES for size in range(1, 17) if possible(name, size) is not None
]


def product(found):
    whole = np.eye(found.size)
    for matrix in found.matrices:
        whole = matrix @ whole
    return whole


@each(("name", "size"), EVERY)
def test_matrices_are_what_they_should_be(name, size):
    found = topology_of(name, size)
    for graph, matrix in zip(found.graphs, found.matrices, strict=True):
        assert (matrix >= 0).all()
        np.testing.assert_allclose(matrix.sum(axis=0), 1)
        np.testing.assert_allclose(matrix.sum(axis=1), 1)
        if name not in ONE_WAY:
            np.testing.assert_allclose(matrix, matrix.T)
        for i, j in itertools.permutations(range(size), 2):
            assert (matrix[i, j] > 0) == ((j, i) in graph.edges)
    degree = {"one-peer-exponential": 1, "exponential": math.ceil(math.log2(size))}.get(name)
    if degree is not None:
        assert all(found.sent(rank) == degree * (size > 1) for rank in range(size))
    # A regular graph weighs all alike.
    if name != "star" and size > 1:
        weights = {round(w, 12) for it in found.matrices for w in it.ravel() if w}
        assert weights == {round(1 / (1 + found.sent(0)), 12)}


@each("hosts", [(1, 1, 1, 1, 1), (2, 2, 2), (1, 3, 2, 5)])
@each("name", ["ring", "star", "full"])
def test_weights_between_hosts_are_by_degree_and_by_ranks(name, hosts):
    """Metropolis-Hastings: who has more neighbours, or ranks, decides; the rest stays at home."""
    host = [i for i, ranks in enumerate(hosts) for _ in range(ranks)]
    found, n = topology_of(name, len(host), hosts=host), len(hosts)
    neighbours = [
        {"ring": {(i - 1) % n, (i + 1) % n} - {i}, "full": {*range(n)} - {i},
         "star": {0} if i else {*range(1, n)}}[name]
        for i in range(n)
    ]  # fmt: skip
    between = np.zeros((n, n))
    for i, own in enumerate(neighbours):
        for j in own:
            more = hosts[j] / hosts[i] / (len(neighbours[j]) + 1)
            between[i, j] = min(1 / (len(own) + 1), more)
        between[i, i] = 1 - between[i].sum()
    for i, a in enumerate(host):
        for j, b in enumerate(host):
            assert found.matrices[0][i, j] == pytest.approx(between[a, b] / hosts[b], abs=1e-12)


@each("size", range(1, 17))
def test_known_spectra(size):
    """The second largest singular value in closed form."""

    def factor(name):
        return topology_of(name, size).contraction

    waves = [abs(1 + 2 * math.cos(2 * math.pi * k / size)) / 3 for k in range(1, size)]
    if size > 2:
        assert factor("ring") == pytest.approx(max(waves), abs=1e-9)
        assert factor("star") == pytest.approx(1 - 1 / size)
    assert factor("full") == pytest.approx(0, abs=1e-9)
    if size.bit_count() == 1 and size > 1:
        digits = math.log2(size)
        assert factor("hypercube") == pytest.approx((digits - 1) / (digits + 1), abs=1e-9)
    if size % 2 == 0:  # Ying et al. 2021, theorem 1
        hops = math.ceil(math.log2(size))
        assert factor("exponential") == pytest.approx((hops - 1) / (hops + 1), abs=1e-9)
    exact = size.bit_count() == 1
    whole = product(topology_of("one-peer-exponential", size))
    assert np.allclose(whole, 1 / size, rtol=0, atol=1e-15) == exact
    assert (factor("one-peer-exponential") == 0) == exact


@each(("name", "size"), EVERY)
def test_the_gap_bounds_what_a_simulation_takes(name, size):
    found = topology_of(name, size)
    singular = np.linalg.svd(product(found), compute_uv=False)
    second = singular[1] if size > 1 else 0.0
    assert found.contraction == pytest.approx(second, abs=1e-9)
    assert found.gap == 1 - found.contraction
    rng = np.random.default_rng(size)
    values = rng.standard_normal((size, 3))
    after = values
    for matrix in found.matrices:
        after = matrix @ after
    np.testing.assert_allclose(after.mean(axis=0), values.mean(axis=0), atol=1e-12)
    assert disagreement(after) <= (found.contraction + 1e-9) * disagreement(values) + 1e-12
    for share in (0.5, 0.01):
        assert found.simulated_rounds(share) <= found.rounds_to(share)
    if size in (3, 8, 16) and name in ("ring", "star"):  # in the long run the gap is what counts
        assert found.rounds_to(1e-6) <= 3 * found.simulated_rounds(1e-6) + 2


def test_rounds():
    assert rounds_to(0.5, 1, 0.25) == 2
    assert rounds_to(0.5, 3, 0.2) == 9
    assert rounds_to(1.0, 1, 0.5) is None
    assert simulated_rounds([np.eye(2)], 0.5) is None
    # The slowest numbers of all take as long as the gap says.
    ring = topology_of("ring", 16)
    values = np.cos(2 * np.pi * np.arange(16) / 16)[:, None]
    rounds, start = 0, disagreement(values)
    while disagreement(values) > start / 2:
        values, rounds = ring.matrices[0] @ values, rounds + 1
    assert rounds == ring.rounds_to(0.5) == 14


@each(("name", "size"), [(name, n) for name, n in EVERY if n <= 7])
def test_push_sum_comes_to_the_mean(name, size):
    found = topology_of(name, size, push_sum=True)
    _comes_to_the_mean(found)


def test_push_sum_on_a_graph_that_only_it_can_mix(tmp_path):
    path = tmp_path / "edges"
    path.write_text("0 > 1\n1 > 2\n2 > 0\n0 > 3\n3 > 1\n")
    with pytest.raises(ConfigError, match="expected push-sum"):
        topology_of(str(path), 4)
    found = topology_of(str(path), 4, push_sum=True)
    _comes_to_the_mean(found)
    graph = topology_of("exponential", 7).graphs[0].without({3})
    verify([graph], [column_stochastic(graph)], push_sum=True)
    # λ: in the long run each period shrinks disagreement by it.
    rounds = found.simulated_rounds(1e-9)
    assert rounds == pytest.approx(math.log(1e-9) / math.log(found.contraction), rel=0.2)


def _comes_to_the_mean(found):
    rng = np.random.default_rng(3)
    values, weight = rng.standard_normal((found.size, 2)), np.ones((found.size, 1))
    mean = values.mean(axis=0)
    whole = product(found)
    for _ in range(9):  # of 512 periods
        values, weight = whole @ values, whole @ weight
        assert abs(weight.sum() - found.size) < 1e-9
        np.testing.assert_allclose(values.mean(axis=0), mean, atol=1e-9)
        whole = whole @ whole
    np.testing.assert_allclose(values / weight, np.tile(mean, (found.size, 1)), atol=1e-9)


# --- each rule, broken ----------------------------------------------------------------------


def edge_of(matrix):
    """Return (i, j), i ≠ j, with a weight."""
    return next((i, j) for i, j in np.argwhere(matrix).tolist() if i != j)


def less(matrix):
    matrix[edge_of(matrix)] -= 0.01


def kept(matrix):
    i, j = edge_of(matrix)
    matrix[i, i] += matrix[i, j]
    matrix[i, j] = 0.0


def negative(matrix):
    i, j = edge_of(matrix)
    matrix[i, i] += 2 * matrix[i, j]
    matrix[i, j] *= -1


def not_a_number(matrix):
    matrix[edge_of(matrix)] = np.nan


def rows_swapped(matrix):
    matrix[[0, -1]] = matrix[[-1, 0]]


def alone(matrix):
    matrix[0] = matrix[:, 0] = 0.0
    matrix[0, 0] = 1.0


MUTANTS = (less, kept, negative, not_a_number, rows_swapped, alone)


@each(("name", "size"), [(name, size) for name, size in EVERY if size in (3, 4, 6, 9)])
@each("break_it", MUTANTS)
def test_a_broken_matrix_is_refused(name, size, break_it):
    found = topology_of(name, size)
    verify(found.graphs, found.matrices, symmetric=name not in ONE_WAY)
    for turn in range(found.period):
        matrices = [matrix.copy() for matrix in found.matrices]
        break_it(matrices[turn])
        if np.allclose(matrices[turn], found.matrices[turn], rtol=0, atol=1e-12):
            assert break_it is rows_swapped  # which are alike
            continue
        with pytest.raises(MixingError) as error:
            verify(found.graphs, matrices, symmetric=name not in ONE_WAY)
        assert "\n" not in str(error.value)


def test_what_is_claimed_is_checked():
    pair = Graph.of(2, [(0, 1)])
    ring = topology_of("one-peer-exponential", 4)
    with pytest.raises(MixingError, match="expected the same"):
        verify(ring.graphs, ring.matrices, symmetric=True)
    with pytest.raises(MixingError, match="not connected"):
        verify(ring.graphs[1:], ring.matrices[1:])
    with pytest.raises(MixingError, match="1 matrices for 2 graphs"):
        verify(ring.graphs, ring.matrices[1:])
    with pytest.raises(MixingError, match="expected 2 ranks"):
        verify([pair], [np.eye(3)])
    with pytest.raises(MixingError, match="rank 0 does not weigh what rank 1 sends to it"):
        verify([pair], [np.eye(2)])
    # Columns are what push-sum keeps to, rows are not.
    sends = np.array([[0.5, 0.1], [0.5, 0.9]])
    verify([pair], [sends], push_sum=True)
    with pytest.raises(MixingError, match=r"that rank 0 takes add up to 0\.6"):
        verify([pair], [sends])
    with pytest.raises(MixingError, match=r"of what rank 0 has add up to 0\.6"):
        verify([pair], [sends.T], push_sum=True)
    with pytest.raises(MixingError, match="which has no edge"):
        verify([Graph.of(3, [(0, 1), (1, 2)])], [np.full((3, 3), 1 / 3)])


# --- hosts, and ranks that are gone ---------------------------------------------------------


def test_hosts_whose_edges_go_one_way():
    found = topology_of("one-peer-exponential", 8, hosts=[0, 0, 1, 1, 2, 2, 3, 3])
    np.testing.assert_allclose(product(found), 1 / 8, atol=1e-15)
    with pytest.raises(ConfigError, match="hosts with 2, 3, 1 ranks cannot mix by these weights"):
        topology_of("one-peer-exponential", 6, hosts=[0, 0, 1, 1, 1, 2])
    with pytest.raises(ConfigError, match="no graph has 6 ranks on hosts of 5"):
        topology_of("ring", 6, hosts=[0, 0, 1, 1, 1])
    with pytest.raises(ConfigError, match="push-sum mixes ranks"):
        topology_of("ring", 6, hosts=[0, 0, 0, 1, 1, 1], push_sum=True)
    host = [0, 0, 1, 1, 1, 1, 1]
    two_level(metropolis(Graph.of(2, [(0, 1)]), (2, 5)), host)
    with pytest.raises(ConfigError, match="shift the mean"):
        two_level(metropolis(Graph.of(2, [(0, 1)])), host)


def test_hosts_whose_ranks_are_dealt_out_in_turn():
    host = [0, 1, 2, 0, 1, 0]
    found, sorted_ = topology_of("ring", 6, hosts=host), topology_of("ring", 6, hosts=sorted(host))
    order = np.argsort(host, kind="stable")
    np.testing.assert_array_equal(found.matrices[0][np.ix_(order, order)], sorted_.matrices[0])
    level = found.hosts
    assert level.first == (0, 1, 2, 0, 1, 0)
    assert level.is_metropolis
    assert level.graphs[0].edges == {(i, j) for i in range(3) for j in range(3) if i != j}
    # A rank takes of each rank of another host what its host takes of that one, shared out.
    between, ranks = level.matrices[0], np.bincount(host)
    for i, j in itertools.product(range(6), repeat=2):
        due = between[host[i], host[j]] / ranks[host[j]]
        assert found.matrices[0][i, j] == pytest.approx(due)


@each(("name", "size"), [(name, n) for name, n in EVERY if 2 <= n <= 6])
def test_ranks_that_are_gone_leave_a_mixing_matrix(name, size):
    found = topology_of(name, size)
    for count in (1, 2):
        for away in itertools.combinations(range(size), count):
            if count == size:
                continue
            left = [rank for rank in range(size) if rank not in away]
            for graph, matrix in zip(found.graphs, found.matrices, strict=True):
                bridge = bridged(matrix, away) if found.period == 1 else None
                if bridge is not None:
                    verify([on(bridge)], [bridge], symmetric=name not in ONE_WAY)
                if name in ONE_WAY:
                    if not np.allclose(matrix, matrix.T):
                        with pytest.raises(ConfigError, match="edges that go one way"):
                            folded(matrix, away)
                    continue
                fold = folded(matrix, away)
                np.testing.assert_allclose(fold.sum(axis=0), 1)
                np.testing.assert_allclose(fold, fold.T)
                off = ~np.eye(len(left), dtype=bool)
                np.testing.assert_array_equal(fold[off], matrix[np.ix_(left, left)][off])
                assert (fold[~off] >= np.diag(matrix)[left] - 1e-12).all()
                rest = graph.without(away)
                if rest.unreached() is None:
                    verify([rest], [fold], symmetric=True)


def on(matrix):
    """Return the graph of a matrix's weights."""
    return Graph.of(len(matrix), [(int(j), int(i)) for i, j in np.argwhere(matrix)], directed=True)


# --- one rank's part ------------------------------------------------------------------------

#: Alone it must add up to what the matrices say.
PARTS = ("ring", "exponential", "one-peer-exponential", "star", "full", "torus", "random-regular:3")


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


@each("push_sum", [False, True])
@each("name", PARTS)
def test_the_parts_are_the_matrix_and_who_sends_is_received(name, push_sum):
    topology = topology_of(name, 8, push_sum=push_sum)
    parts = [Part(topology, rank) for rank in range(8)]
    for at in range(2 * topology.period):
        assert np.array_equal(rows(topology, at=at), topology.matrices[at % topology.period])
        sent = {(part.rank, to) for part in parts for to in part.receivers(at)}
        assert sent == {(source, part.rank) for part in parts for source in part.senders(at)}
        assert all(a in parts[b].peers and b in parts[a].peers for a, b in sent)


@each("name", PARTS)
def test_without_who_left_the_parts_are_a_mixing_matrix_still(name):
    topology = topology_of(name, 8, push_sum=True)
    for at in range(topology.period):
        total = rows(topology, {2, 7}, at).sum(axis=0)
        assert np.delete(total, [2, 7]) == pytest.approx(np.ones(6)), "columns add up to one"
    if name in ("ring", "star", "full", "torus"):
        topology, stay = topology_of(name, 8), [0, 1, 2, 4, 6, 7]
        expected = folded(topology.matrices[0], {3, 5})
        assert rows(topology, {3, 5})[np.ix_(stay, stay)] == pytest.approx(expected)


def test_who_leaves_takes_part_in_the_rounds_before():
    part = Part(topology_of("ring", 4), 0)
    part.leave(1, 5)
    assert part.senders(4) == part.receivers(4) == (1, 3)
    assert part.senders(5) == part.receivers(5) == (3,)
