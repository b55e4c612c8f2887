"""Rounds, elements sent and folded, as each schedule derives them; and its closed form of time."""

from itertools import pairwise
from math import isqrt

import pytest

from psrt.collective import ALGORITHMS, PHASES
from psrt.collective.analysis.cost import price
from psrt.collective.analysis.proof import prove
from psrt.collective.costs import LinkCosts
from psrt.collective.schedules.binary_blocks import binary_blocks
from psrt.collective.schedules.double_tree import default_blocks, double_tree_steps
from psrt.collective.schedules.segmented_ring import SEGMENT, default_segments
from psrt.collective.schedules.two_trees import two_trees
from psrt.collective.spec import all_reduce
from psrt.core.partition import even_spans
from support.cases import each

every_size = each("size", [*range(1, 14), 16, 17, 31, 32])


def lg_ceil(p):
    return (p - 1).bit_length()


def lg_floor(p):
    return p.bit_length() - 1


def found(name, size, n, **more):
    how = ALGORITHMS.get(name) or PHASES[name]
    return prove(how.spec(size, n, **more), how.plan(size, n, **more))


@every_size
@each("n", [0, 1, 7, 100])
def test_ring(size, n):
    proof = found("ring", size, n)
    assert proof.rounds == 2 * (size - 1)
    chunks = even_spans(n, size)
    for rank in range(size):
        spared = chunks[(rank + 1) % size].size + chunks[(rank + 2) % size].size
        assert proof.sent[rank] == 2 * n - spared
        assert proof.combined[rank] == n - chunks[rank].size


@each("size", [1, 2, 7, 100])
def test_segments_are_neither_long_nor_short(size):
    for n in (0, 1, SEGMENT, 10 * SEGMENT + 1, 1234 * SEGMENT):
        chunk, segments = n // size, default_segments(size, n)
        assert chunk / segments < SEGMENT
        assert segments == 1 or chunk / segments >= SEGMENT / 2


@every_size
@each("blocks", [1, 2, 9])
def test_double_tree(size, blocks):
    n, trees = 2 * 9 * 4, two_trees(size)
    plan = [list(double_tree_steps(r, size, n, blocks=blocks)) for r in range(size)]
    proof = prove(all_reduce(size, n), plan)
    rounds = max(0, 4 * (blocks - 1) + trees.up + trees.down)
    assert proof.rounds <= rounds
    assert proof.messages == 4 * blocks * (size - 1)
    m, costs = n / (2 * blocks), LinkCosts(alpha=5.0, beta=2.0, gamma=2.0)
    assert price(plan, 1, costs, overlap=True).seconds <= (rounds + 1) * (5.0 + 2.0 * m)
    assert sum(proof.sent) == 2 * n * (size - 1)
    assert max(proof.sent) <= 2 * n
    assert max(proof.combined) <= n


def test_a_train_is_as_long_as_derived():
    """c = 4⌈lg p⌉ in k² = c·n/(8α/β) makes (4k + c)(α + βn/2k) least, to a block."""
    starting = 16_384
    for size, n in ((4, 10**6), (64, 10**7), (1000, 10**8)):
        c = 4 * lg_ceil(size)
        time = [(4 * k + c) * (starting + n / (2 * k)) for k in range(1, 500)]
        assert abs(time.index(min(time)) + 1 - default_blocks(size, n)) <= 1
    assert default_blocks(1, 10**9) == default_blocks(8, 0) == 1
    assert default_blocks(16, 10**8) == isqrt(4 * 10**8 // 32_768)


@every_size
def test_halving_doubling_blocks(size):
    blocks = [len(block) for block in binary_blocks(size)]
    assert sum(blocks) == size
    n = 3 * blocks[0]
    proof = found("halving-doubling-blocks", size, n)
    steps = ALGORITHMS["halving-doubling-blocks"].plan(size, n)
    rank = 0
    for i, w in enumerate(blocks):
        larger, smaller = blocks[i - 1] if i else 0, i + 1 < len(blocks)
        for _ in range(w):
            sent = 2 * n * (w - 1) // w + (n // w if larger else 0) + (n // w if smaller else 0)
            assert proof.sent[rank] == sent <= 2 * n
            assert proof.combined[rank] == n * (w - 1) // w + (n // w if smaller else 0) <= n
            assert len(steps[rank]) == 2 * lg_floor(w) + 2 * larger // w + 2 * smaller
            rank += 1
    wires = price(steps, 1, LinkCosts(alpha=0.0, beta=1.0, gamma=0.0)).seconds
    assert wires < 2 * n * (1 + 1.5 / blocks[-1])
    assert size == 1 or wires >= 2 * n * (size - 1) / size
    chain = sum(u // w for u, w in pairwise(blocks))
    assert proof.rounds <= 2 * (lg_floor(size) + chain)
    if len(blocks) == 1:
        assert proof == found("halving-doubling", size, n)


@every_size
def test_reduce_scatter_and_all_gather(size):
    for n in (5 * size, 5 * size + size // 2):
        chunks = even_spans(n, size)
        scatter, gather = found("reduce-scatter", size, n), found("all-gather", size, n)
        assert scatter.rounds == gather.rounds == size - 1
        assert list(scatter.sent) == list(gather.received) == [n - it.size for it in chunks]


@every_size
def test_phases_of_a_root(size):
    n = 3 * size
    for root in {0, size // 2, size - 1}:
        reduce, broadcast, scatter, gather = (
            found(name, size, n, root=root) for name in ("reduce", "broadcast", "scatter", "gather")
        )
        assert reduce.rounds == broadcast.rounds == lg_ceil(size)
        assert [sent for rank, sent in enumerate(reduce.sent) if rank != root] == [n] * (size - 1)
        assert reduce.combined[root] == n * lg_ceil(size) == max(reduce.combined)
        assert broadcast.sent[root] == n * lg_ceil(size) == max(broadcast.sent)
        assert sum(broadcast.sent) == n * (size - 1)
        # One subtree at most wraps around, and its message is two.
        assert lg_ceil(size) <= scatter.rounds <= lg_ceil(size) + lg_ceil(size) * bool(root)
        assert root or scatter.rounds == gather.rounds
        assert scatter.sent[root] == gather.received[root] == n - 3
        assert scatter.sent == gather.received
        assert sum(scatter.sent) == 3 * sum(bin(number).count("1") for number in range(size))


@every_size
def test_all_to_all(size):
    n = 2 * size * size
    proof = found("all-to-all", size, n)
    assert proof.rounds == size - 1
    assert set(proof.sent) == set(proof.received) == {2 * (size - 1)}


# --- the formulas against the clocks: the same number, found in two ways that share nothing -------

SIZES = [*range(1, 10), 13, 16, 17]
COSTS = [
    LinkCosts(1.0, 0.0, 0.0),
    LinkCosts(0.0, 1.0, 0.0),
    LinkCosts(0.0, 0.0, 1.0),
    LinkCosts(25e-6, 1 / 1.2e9, 1e-10),  # a network
    LinkCosts(3e-6, 2.5e-10, 1e-10),  # a host
    LinkCosts(1e-6, 1e-10, 3e-9),  # folding is what takes long
]


def priced(name, size, n, costs):
    algorithm = ALGORITHMS[name]
    return price(algorithm.plan(size, n), 4, costs, overlap=algorithm.overlaps).seconds


@pytest.mark.parametrize("name", [name for name, row in ALGORITHMS.items() if not row.bounded])
@each("size", SIZES)
def test_form_is_the_price(name, size):
    """Exactly where n cuts evenly into p and into q chunks; nearly where they are ragged."""
    row, even = ALGORITHMS[name], 3 * size << (size.bit_length() - 1)
    for n, near in ((0, 1e-12), (even, 1e-12), (100 * even + 5, 0.02)):
        if near < 0.01 or size in (3, 6, 11):
            plan = row.plan(size, n)
            for costs in COSTS:
                found = price(plan, 4, costs, overlap=row.overlaps).seconds
                assert row.seconds(size, 4 * n, costs) == pytest.approx(found, rel=near)


@each("size", [2, 3, 5, 8, 16])
@each("segments", [2, 3, 7])
def test_segmented_ring_in_segments(size, segments):
    n = size * segments * -(-(segments - 1) * 65_536 // segments)
    assert default_segments(size, n) == segments
    for costs in COSTS:
        form = ALGORITHMS["segmented-ring"].seconds(size, 4 * n, costs)
        assert form == pytest.approx(priced("segmented-ring", size, n, costs), rel=1e-12)


def in_blocks(size, blocks):
    """Return the elements from which the double tree takes so many blocks, evenly cut."""
    n = 2 * blocks
    while default_blocks(size, n) < blocks:
        n += 2 * blocks * 64
    assert default_blocks(size, n) == blocks
    return n


@each("size", SIZES[1:])
@each("blocks", [1, 2, 5])
def test_double_tree_is_bounded(size, blocks):
    n = in_blocks(size, blocks)
    for costs in COSTS:
        form = ALGORITHMS["double-tree"].seconds(size, 4 * n, costs)
        assert priced("double-tree", size, n, costs) <= form * (1 + 1e-12)
    if blocks > 1:  # by two rounds where nothing is folded; one is a message of a block
        costs = LinkCosts(1.0, 1e-5, 0.0)
        form = ALGORITHMS["double-tree"].seconds(size, 4 * n, costs)
        a_round = costs.alpha + 4 * n / (2 * blocks) * costs.beta
        assert 0 <= round(form - priced("double-tree", size, n, costs), 9) <= 2 * a_round
