"""Every schedule, on numbers, for every p and n: right, exactly once, the same bits."""

import numpy as np
import pytest

from psrt.collective import ALGORITHMS, OPS, PHASES, ring_steps
from psrt.errors import ConfigError
from psrt.partition import even_spans
from support.cases import each
from support.numbers import expected, perform, simulate

LENGTHS = [0, 1, 2, 3, 5, 7, 16, 17, 1000]  # empty, fewer than ranks, ragged, usual

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
#: Powers of two and their neighbours, primes, and products of two different numbers.
every_size = each("size", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17])


@every_size
def test_every_rank_ends_with_what_it_is_owed(subject, size):
    for n in LENGTHS:
        rng = np.random.default_rng([size, n])
        numbers = list(rng.integers(-99, 99, (size, n)).astype(np.float32))
        task = subject.spec(size, n)
        got = perform(task, subject.plan(size, n), numbers).buffers
        for rank, owed in enumerate(expected(task, numbers)):
            for span, due in owed:
                np.testing.assert_array_equal(span.of(got[rank]), due, err_msg=f"{rank=} {n=}")


@every_algorithm
@every_size
def test_every_contribution_counts_exactly_once(name, size):
    """Marks, not sums, so that no two errors can cancel out."""
    algorithm = ALGORITHMS[name]
    for n in (1, 7, 16):
        marks = np.zeros((size, n, size), dtype=np.int64)
        for rank in range(size):
            marks[rank, :, rank] = 1
        counts = perform(algorithm.spec(size, n), algorithm.plan(size, n), list(marks)).buffers
        np.testing.assert_array_equal(counts, np.ones((size, n, size)))


def awkward(size, n, dtype=np.float32):
    """Numbers whose order of addition shows in their sum."""
    rng = np.random.default_rng([size, n])
    scale = 10.0 ** rng.integers(-6, 6, (size, n))
    return list((rng.standard_normal((size, n)) * scale).astype(dtype))


@every_size
def test_all_ranks_hold_the_same_bits(subject, size):
    for n in LENGTHS:
        task = subject.spec(size, n)
        got = perform(task, subject.plan(size, n), awkward(size, n)).buffers
        seen = {}
        for rank, row in enumerate(task.owed):
            for owed in row:
                bits = owed.span.of(got[rank]).tobytes()
                assert seen.setdefault((owed.span, owed.source), bits) == bits, (rank, n)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_order_of_addition_shows(dtype):
    """Or the test of the bits would say nothing."""
    results = {
        perform(a.spec(8, 50), a.plan(8, 50), awkward(8, 50, np.float32)).buffers[0].tobytes()
        for a in ALGORITHMS.values()
    }
    assert len(results) > 2


@every_algorithm
@pytest.mark.parametrize("fold", [np.minimum, np.maximum])
def test_the_lower_ranks_operand_comes_first(name, fold):
    """So even the sign of a zero, which min and max take from either side, is the same."""
    algorithm = ALGORITHMS[name]
    for size in range(1, 10):
        rng = np.random.default_rng(size)
        numbers = list(rng.choice([-0.0, 0.0], (size, 40)))
        first = lambda a, b: np.where(a == b, a, fold(a, b))  # noqa: E731  as ill-bred as it gets
        got = perform(algorithm.spec(size, 40), algorithm.plan(size, 40), numbers, first).buffers
        assert len({vector.tobytes() for vector in got}) == 1


@pytest.mark.parametrize("name", ["naive", "root", "all-pairs"])
def test_folds_in_rank_order(name):
    algorithm, numbers = ALGORITHMS[name], awkward(9, 20)
    in_order = numbers[0]
    for other in numbers[1:]:
        in_order = in_order + other
    for got in perform(algorithm.spec(9, 20), algorithm.plan(9, 20), numbers).buffers:
        assert got.tobytes() == in_order.tobytes()


@every_algorithm
@each("op", OPS)
@each("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_every_operation_on_every_type(name, op, dtype):
    algorithm, operation = ALGORITHMS[name], OPS[op]
    if not operation.takes(dtype):
        return
    for size in (1, 2, 6, 8):
        rng = np.random.default_rng(size)
        numbers = list(rng.choice([-2, -1, 1, 2], (size, 17)).astype(dtype))
        task, plan = algorithm.spec(size, 17), algorithm.plan(size, 17)
        due = {"sum": np.sum, "min": np.min, "max": np.max, "prod": np.prod}
        due |= {o: getattr(np, f"bitwise_{o}").reduce for o in ("and", "or", "xor")}
        if op == "mean":
            total = np.sum(numbers, axis=0)
            right = total // size if dtype.startswith("int") else total / np.dtype(dtype).type(size)
        else:
            right = due[op](numbers, axis=0)
        scale = np.dtype(dtype).type(operation.scale(dtype, size))
        parts = [part * scale for part in numbers]
        for got in perform(task, plan, parts, operation.ufunc).buffers:
            operation.finish(got, size)
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, right)


ROWS = {"A": [17, 11, 1, 9], "B": [5, 13, 23, 14], "C": [3, 6, 10, 8], "D": [12, 7, 2, 12]}


def test_the_worked_example_number_by_number():
    """Ring order A, B, D, C: each chunk's sums on its way, then the result everywhere."""
    order = (0, 1, 3, 2)
    buffers = [np.array(row) for row in ROWS.values()]
    ring = [list(ring_steps(rank, 4, 4, order=order)) for rank in range(4)]
    for rank, steps in enumerate(ring):
        right = {"A": "B", "B": "D", "D": "C", "C": "A"}["ABCD"[rank]]
        assert {"ABCD"[step.send_to] for step in steps} == {right}
    seen = [[], [], [], []]
    for hops in range(1, 4):
        after = simulate([steps[:hops] for steps in ring], buffers).buffers
        for rank, steps in enumerate(ring):
            chunk = steps[hops - 1].receive
            seen[chunk.start].append(int(chunk.of(after[rank])[0]))
    assert seen == [[22, 34, 37], [20, 26, 37], [12, 13, 36], [17, 31, 43]]
    for got in simulate(ring, buffers).buffers:
        assert got.tolist() == [37, 37, 36, 43]


@every_size
def test_a_ring_in_any_order(size):
    rng = np.random.default_rng(size)
    for n in LENGTHS:
        order = rng.permutation(size).tolist()
        ring = [list(ring_steps(rank, size, n, order=order)) for rank in range(size)]
        numbers = list(rng.integers(-99, 99, (size, n)))
        for got in simulate(ring, numbers).buffers:
            np.testing.assert_array_equal(got, np.sum(numbers, axis=0))
        for place, rank in enumerate(order):
            right = order[(place + 1) % size]
            assert all(step.send_to == right for step in ring[rank])


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1), (1, 2, 3), (0, 1, 2, 3)])
def test_an_order_that_is_no_order(order):
    with pytest.raises(ConfigError, match=r"ring order \[.*\], expected each of 3 ranks once"):
        list(ring_steps(0, 3, 10, order=order))


@every_size
def test_ring_phases_hand_over_the_next_chunk(size):
    """After the reduce-scatter rank r owns chunk r + 1: it combines it last and sends it first."""
    chunks = even_spans(100, size)
    for rank, steps in enumerate(ALGORITHMS["ring"].plan(size, 100)):
        reduce_scatter, all_gather = steps[: size - 1], steps[size - 1 :]
        assert all(step.combine for step in reduce_scatter)
        assert not any(step.combine for step in all_gather)
        if size > 1:
            owned = chunks[(rank + 1) % size]
            assert reduce_scatter[-1].receive == owned == all_gather[0].send


def test_who_needs_a_workspace():
    found = {a.name: a.workspace(5, 103) for a in ALGORITHMS.values() if a.workspace(5, 103)}
    assert found == {"naive": 412, "all-pairs": 84}


def test_rows_are_named_as_they_are_kept():
    for table in (ALGORITHMS, PHASES, OPS):
        assert all(row.name == name for name, row in table.items())


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
def test_roots(phase):
    with pytest.raises(ConfigError, match=f"root 4 of {phase.name} is none of 4|no root, got"):
        phase(0, 4, 10, 4)
    if phase.rooted:
        assert phase.plan(4, 10, 2) != phase.plan(4, 10)
    else:
        with pytest.raises(ConfigError, match=f"{phase.name} has no root, got rank 1"):
            phase.spec(4, 10, root=1)


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
def test_every_root(phase):
    for size in (1, 2, 5, 6, 8):
        for root in range(size) if phase.rooted else [0]:
            numbers = list(np.random.default_rng(root).integers(-99, 99, (size, 13)))
            task = phase.spec(size, 13, root)
            got = perform(task, phase.plan(size, 13, root), numbers).buffers
            for rank, owed in enumerate(expected(task, numbers)):
                for span, due in owed:
                    np.testing.assert_array_equal(span.of(got[rank]), due)
