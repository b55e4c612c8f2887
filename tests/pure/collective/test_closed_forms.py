"""The formulas against the clocks: the same number, found in two ways that share nothing."""

import math
from itertools import pairwise

import pytest

from psrt.collective import ALGORITHMS
from psrt.collective.analysis.cost import lower_bounds, price
from psrt.collective.costs import LinkCosts
from psrt.collective.schedules.double_tree import default_blocks, double_tree_steps
from psrt.collective.schedules.segmented_ring import default_segments
from psrt.collective.schedules.two_trees import two_trees
from support.cases import each

EXACT = [name for name, row in ALGORITHMS.items() if not row.bounded]
SIZES = [*range(1, 18), 23, 32, 64]
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


def divisible(size):
    """Return a number of elements that cuts evenly into p and into q chunks."""
    return 3 * size << (size.bit_length() - 1)


@pytest.mark.parametrize("name", EXACT)
@each("size", SIZES)
def test_form_is_the_price(name, size):
    n = divisible(size)
    for costs in COSTS:
        form = ALGORITHMS[name].seconds(size, 4 * n, costs)
        assert form == pytest.approx(priced(name, size, n, costs), rel=1e-12)


@pytest.mark.parametrize("name", EXACT)
@each("size", [3, 6, 8, 11])
def test_form_is_close_where_chunks_are_ragged(name, size):
    n = divisible(size) * 100 + 5
    for costs in COSTS:
        form = ALGORITHMS[name].seconds(size, 4 * n, costs)
        assert form == pytest.approx(priced(name, size, n, costs), rel=0.02)


@each("size", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("segments", [2, 3, 7])
def test_segmented_ring_in_segments(size, segments):
    n = size * segments * -(-(segments - 1) * 65_536 // segments)
    assert default_segments(size, n) == segments
    for costs in COSTS:
        form = ALGORITHMS["segmented-ring"].seconds(size, 4 * n, costs)
        assert form == pytest.approx(priced("segmented-ring", size, n, costs), rel=1e-12)


def test_segmented_ring_hides_its_folds():
    costs = LinkCosts(1e-6, 1e-9, 5e-10)
    nbytes = 4 * 16 * 4 * 65_536
    ring, segmented = (
        ALGORITHMS[name].seconds(16, nbytes, costs) for name in ("ring", "segmented-ring")
    )
    hidden = 15 / 16 * nbytes * costs.gamma
    more = 2 * 15 * (default_segments(16, nbytes // 4) - 1) * costs.alpha
    assert segmented == pytest.approx(ring - hidden + more)


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


@each("size", SIZES[1:])
@each("blocks", [2, 5])
def test_double_tree_bound_is_two_rounds_above(size, blocks):
    """Where nothing is folded; one round is a message of a block."""
    n, costs = in_blocks(size, blocks), LinkCosts(1.0, 1e-5, 0.0)
    form = ALGORITHMS["double-tree"].seconds(size, 4 * n, costs)
    a_round = costs.alpha + 4 * n / (2 * blocks) * costs.beta
    assert 0 <= round(form - priced("double-tree", size, n, costs), 9) <= 2 * a_round


@each("size", range(3, 65))
def test_double_tree_rounds(size):
    """U ≤ 3⌊lg p⌋ and D ≤ 2⌊lg p⌋ rounds for the first blocks, and four for each one more."""
    trees, lg = two_trees(size), size.bit_length() - 1
    assert trees.up <= 3 * lg
    assert trees.down <= 2 * lg
    rounds = [
        price([double_tree_steps(r, size, 160, blocks=k) for r in range(size)], 4, COSTS[0]).rounds
        for k in (2, 3, 4)
    ]
    assert [b - a for a, b in pairwise(rounds)] == [4, 4]
    assert rounds[0] <= 4 + trees.up + trees.up % 2 + trees.down


@each("size", [2, 3, 16, 100, 1000])
def test_double_tree_tends_to_two_vectors(size):
    costs = LinkCosts(1e-6, 1e-9, 1e-10)
    nbytes = 1 << 42
    assert ALGORITHMS["double-tree"].seconds(size, nbytes, costs) == pytest.approx(
        2 * nbytes * costs.beta if size > 2 else nbytes * costs.beta, rel=0.01
    )


@each("size", [3, 5, 6, 7, 12, 17, 24, 63])
def test_folding_costs_two_vectors_more(size):
    costs, q, nbytes = LinkCosts(1.0, 1e-3, 1e-4), 1 << (size.bit_length() - 1), 1 << 20
    fold = 2 * (costs.alpha + nbytes * costs.beta) + nbytes * costs.gamma
    for name in ("butterfly", "halving-doubling"):
        more = ALGORITHMS[name].seconds(size, nbytes, costs) - ALGORITHMS[name].seconds(
            q, nbytes, costs
        )
        assert more == pytest.approx(fold)


@each("size", range(2, 65))
def test_binary_blocks_are_bounded(size):
    """By what ``binary_blocks`` derives: 2(lg q + Σ u/w)α and, of n, 1 + 3/(2 w₀)."""
    widths = [1 << bit for bit in range(size.bit_length()) if size & 1 << bit]
    messages = widths[-1].bit_length() - 1
    messages += sum(u // w for w, u in pairwise(widths))
    share = 1 + 3 / (2 * widths[0])
    for costs in COSTS:
        bound = 2 * messages * costs.alpha + share * 4096 * (2 * costs.beta + costs.gamma)
        assert ALGORITHMS["halving-doubling-blocks"].seconds(size, 4096, costs) <= bound


@pytest.mark.parametrize("name", ALGORITHMS)
@each("size", [1, 2, 3, 7, 8, 100, 1024])
def test_forms_respect_the_lower_bounds(name, size):
    for costs in COSTS:
        for nbytes in (4, 1 << 12, 1 << 30):
            least = lower_bounds(size, nbytes, costs).seconds
            assert ALGORITHMS[name].seconds(size, nbytes, costs) >= least * (1 - 1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_nothing_costs_nothing(name):
    assert ALGORITHMS[name].seconds(1, 1 << 20, COSTS[3]) == 0
    assert ALGORITHMS[name].seconds(8, 0, COSTS[3]) == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_size_of_elements_changes_what_is_not_cut_by_them(name):
    times = {ALGORITHMS[name].seconds(6, 1 << 24, COSTS[3], itemsize=size) for size in (2, 4, 8)}
    cut = name in ("segmented-ring", "double-tree")
    assert len(times) == (3 if cut else 1)
    assert all(map(math.isfinite, times))
