"""Graphs: their edges by definitions of their own, ways between ranks, colours, and files."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.topology import Graph, topology_of
from psrt.topology.graph import merged, two_colours
from support.cases import each
from support.graphs import GRAPHS

SIZES = range(1, 17)


def has_edge(name, size, turn, i, j):
    """Tell whether i sends to j, by a definition that no other shares code with."""
    hop = (j - i) % size
    if name == "ring":
        return hop in (1, size - 1)
    if name == "exponential":
        return hop & (hop - 1) == 0
    if name == "one-peer-exponential":
        return hop == 2**turn % size
    if name == "star":
        return i * j == 0
    if name == "full":
        return True
    if name == "hypercube":
        return (i ^ j).bit_count() == 1
    columns = min(c for c in range(1, size + 1) if size % c == 0 and c * c >= size)
    rows = size // columns
    (a, b), (c, d) = divmod(i, columns), divmod(j, columns)
    near = ((a - c) % rows in (1, rows - 1), (b - d) % columns in (1, columns - 1))
    return (b == d and near[0]) or (a == c and near[1])


@each(("name", "size"), itertools.product(GRAPHS, SIZES))
def test_edges_are_those_of_the_definition(name, size):
    is_prime = all(size % factor for factor in range(2, size)) and size > 1
    impossible = {"hypercube": size.bit_count() != 1, "torus": is_prime}
    if impossible.get(name):
        with pytest.raises(ConfigError, match=rf"^{name}: a {name} .* got {size}.* would do$"):
            topology_of(name, size)
        return
    found = topology_of(name, size).graphs
    rounds = math.ceil(math.log2(size)) if name == "one-peer-exponential" and size > 1 else 1
    assert len(found) == rounds
    for turn, graph in enumerate(found):
        due = {
            (i, j)
            for i in range(size)
            for j in range(size)
            if i != j and has_edge(name, size, turn, i, j)
        }
        assert graph.edges == due
        assert [len(it) for it in graph.receivers] == [
            sum(i == rank for i, _ in due) for rank in range(size)
        ]


@each(("size", "degree"), [(n, d) for n in (1, 2, 3, 4, 5, 6, 9, 10) for d in range(n + 1)])
def test_random_graphs_are_regular_connected_and_drawn_by_the_seed(size, degree):
    name = f"random-regular:{degree}"
    if not min(2, size - 1) <= degree < size or size * degree % 2:
        with pytest.raises(ConfigError, match=f"{name}: no connected graph of {size} ranks"):
            topology_of(name, size)
        return
    graph = topology_of(name, size, seed=5).graphs[0]
    assert {len(it) for it in graph.receivers} == {degree}
    assert not graph.is_directed
    assert graph.unreached() is None
    assert graph == topology_of(name, size, seed=5).graphs[0]
    if 2 < degree < size - 2:
        assert len({topology_of(name, size, seed=seed).graphs[0].edges for seed in range(4)}) > 1


def every_graph(size, *, directed):
    pairs = itertools.permutations if directed else itertools.combinations
    edges = list(pairs(range(size), 2))
    for kept in itertools.product((False, True), repeat=len(edges)):
        chosen = [edge for edge, keeps in zip(edges, kept, strict=True) if keeps]
        yield Graph.of(size, chosen, directed=directed)


@each("size", [1, 2, 3, 4])
def test_ways_between_ranks(size):
    """Of every directed graph: what powers of its matrix say."""
    for graph in every_graph(size, directed=True):
        if size == 4 and len(graph.edges) > 5:
            continue
        step = np.eye(size, dtype=int)
        for i, j in graph.edges:
            step[i, j] = 1
        reach = np.linalg.matrix_power(step, size) > 0
        missing = graph.unreached()
        assert (missing is None) == reach.all()
        if missing is not None:
            assert not reach[missing]
        assert graph.reached(size - 1) == set(np.flatnonzero(reach[size - 1]).tolist())


@each("size", [1, 2, 3, 4, 5])
def test_colours(size):
    """Of every undirected graph: colours if any two sets are without edges inside, else a cycle."""
    for graph in every_graph(size, directed=False):
        possible = any(
            all(colours[i] != colours[j] for i, j in graph.edges)
            for colours in itertools.product((0, 1), repeat=size)
        )
        if possible:
            colours = two_colours(graph)
            assert all(colours[i] != colours[j] for i, j in graph.edges)
            continue
        with pytest.raises(ConfigError, match=r"^ranks [\d, ]+ are a cycle of \d") as error:
            two_colours(graph)
        words = str(error.value).removeprefix("ranks ").split(" are ")[0]
        cycle = [int(word) for word in words.split(", ")]
        assert len(cycle) % 2
        assert len(set(cycle)) == len(cycle)
        assert all(
            (i, j) in graph.edges for i, j in zip(cycle, [*cycle[1:], cycle[0]], strict=True)
        )


def test_graphs_without_some_ranks_and_put_together():
    ring = Graph.of(5, [(i, (i + 1) % 5) for i in range(5)])
    assert ring.without({2}) == Graph.of(4, [(0, 1), (2, 3), (3, 0)])
    one, other = (Graph.of(3, [edge], directed=True) for edge in ((0, 1), (1, 2)))
    assert merged([one, other]) == Graph.of(3, [(0, 1), (1, 2)], directed=True)
    with pytest.raises(ConfigError, match="the edge 0 3 is of ranks that do not exist"):
        Graph.of(3, [(0, 3)])


def from_file(tmp_path, text, size, **more):
    path = tmp_path / "graph"
    path.write_text(text)
    return topology_of(str(path), size, **more)


def test_files(tmp_path):
    found = from_file(tmp_path, "# a path\n0 1\n\n 1\t2  # and on\n", 3)
    assert found.graphs[0] == Graph.of(3, [(0, 1), (1, 2)])
    np.testing.assert_allclose(found.matrices[0], np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3)
    sent = "0 > 1 0.25\n0 > 2 0.5\n1 > 0 0.5\n2 > 0 0.125"
    for text, push_sum, due in (
        ("0 1 0.25\n1 2 0.5\n", False, [[0.75, 0.25, 0], [0.25, 0.25, 0.5], [0, 0.5, 0.5]]),
        ("0>1\n1 > 2\n2 >0", False, [[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]]),
        # Under push-sum a weight is what is sent, and what is left of it stays.
        (sent, True, [[0.25, 0.5, 0.125], [0.25, 0.5, 0], [0.5, 0, 0.875]]),
    ):
        found = from_file(tmp_path, text, 3, push_sum=push_sum)
        np.testing.assert_allclose(found.matrices[0], due)


@each(("text", "size", "error"), [
    ("0 1\n2 3", 4, "not connected: no value of rank 2 ever reaches rank 0"),
    ("", 2, "has no edges"),
    ("0 1\n1 4", 4, "line 2: the edge '1 4' is of ranks that do not exist, .* from 0 to 3"),
    ("0 > 1\n1 > 2\n2 > 1\n2 > 0\n", 3, "rank 1 has 2 senders and 1 receiver,.* push-sum"),
    ("0 1 0.5\n1 2 0.75", 3, "rank 1 weighs what rank 1 has by -0.25, expected 0 to 1"),
    ("0 > 1 0.5\n1 > 0 0.25", 2, "not doubly stochastic: .* of what rank 0 has add up to 1.25"),
    ("0 1 0.5\n1 2", 3, "the edge from rank 1 to rank 2 has no weight, and others have"),
    *((text, 2, "line 1: expected two ranks") for text in (
        "0 1 1", "0 1 nan", "0 1 -0.5", "0 -1", "0 < 1", "01")),
    ("0 1\n\none two", 2, "line 3: expected two ranks such as 0 1.* got 'one two'"),
    ("0 1\n1 0", 2, "line 2: from rank 1 to rank 0 there is an edge already"),
    ("1 1", 2, "line 1: an edge is between two ranks"),
])  # fmt: skip
def test_files_that_are_refused(tmp_path, text, size, error):
    with pytest.raises(ConfigError, match=error) as found:
        from_file(tmp_path, text, size)
    assert "\n" not in str(found.value)
    assert str(found.value).startswith(str(tmp_path))


@each(("name", "error"), [
    ("rings", "^rings: cannot be read: .*; known are ring, exponential, "),
    ("random-regular:x", "expected random-regular:D with the number of neighbours"),
    ("random-regular:-1", "expected random-regular:D"),
    ("random-regular:3", "no connected graph of 5 ranks has 3 neighbours for each, "
     "expected an even number from 2 to 4"),
])  # fmt: skip
def test_names_that_are_refused(name, error):
    with pytest.raises(ConfigError, match=error):
        topology_of(name, 5)
