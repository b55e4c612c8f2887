"""Every schedule, on numbers, for every p and n: right, the same bits, both halves, every root."""

import itertools

import numpy as np
import pytest

from psrt.collective import ALGORITHMS, OPS, PHASES, ring_steps
from psrt.collective.analysis.proof import prove
from psrt.collective.analysis.rendezvous import ScheduleError
from psrt.collective.spec import CollectiveSpec, Postcondition
from psrt.errors import ConfigError
from psrt.partition import Span, even_spans
from support.cases import each
from support.numbers import SUBJECTS, expected, perform, simulate

LENGTHS = [0, 1, 2, 3, 5, 7, 16, 17, 1000]  # empty, fewer than ranks, ragged, usual

#: Powers of two and their neighbours, primes, and products of two different numbers.
every_size = each("size", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17])


def awkward(size, n):
    """Numbers whose order of addition shows in their sum."""
    rng = np.random.default_rng([size, n])
    scale = 10.0 ** rng.integers(-6, 6, (size, n))
    return list((rng.standard_normal((size, n)) * scale).astype(np.float32))


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
@every_size
def test_every_rank_ends_with_what_it_is_owed_to_the_same_bits(subject, size):
    for n in LENGTHS:
        rng = np.random.default_rng([size, n])
        numbers = list(rng.integers(-99, 99, (size, n)).astype(np.float32))
        task, plan = subject.spec(size, n), subject.plan(size, n)
        got = perform(task, plan, numbers).buffers
        rounded = perform(task, plan, awkward(size, n)).buffers
        seen = {}
        for rank, due in enumerate(expected(task, numbers)):
            for (span, right), (_, source) in zip(due, task.owed[rank], strict=True):
                np.testing.assert_array_equal(span.of(got[rank]), right, err_msg=f"{rank=} {n=}")
                bits = span.of(rounded[rank]).tobytes()
                assert seen.setdefault((span, source), bits) == bits, (rank, n)


def test_the_order_of_addition_shows():
    """Or the test of the bits would say nothing."""
    results = {
        perform(a.spec(8, 50), a.plan(8, 50), awkward(8, 50)).buffers[0].tobytes()
        for a in ALGORITHMS.values()
    }
    assert len(results) > 2


@each("name", ALGORITHMS)
@each("fold", [np.minimum, np.maximum])
def test_the_lower_ranks_operand_comes_first(name, fold):
    """So even the sign of a zero, which min and max take from either side, is the same."""
    algorithm = ALGORITHMS[name]
    for size in range(1, 10):
        rng = np.random.default_rng(size)
        numbers = list(rng.choice([-0.0, 0.0], (size, 40)))
        first = lambda a, b: np.where(a == b, a, fold(a, b))  # noqa: E731  as ill-bred as it gets
        got = perform(algorithm.spec(size, 40), algorithm.plan(size, 40), numbers, first).buffers
        assert len({vector.tobytes() for vector in got}) == 1


@each("name", ["naive", "root", "all-pairs"])
def test_folds_in_rank_order(name):
    algorithm, numbers = ALGORITHMS[name], awkward(9, 20)
    in_order = numbers[0]
    for other in numbers[1:]:
        in_order = in_order + other
    for got in perform(algorithm.spec(9, 20), algorithm.plan(9, 20), numbers).buffers:
        assert got.tobytes() == in_order.tobytes()


@each("name", ALGORITHMS)
@each("op", OPS)
@each("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_every_operation_on_every_type(name, op, dtype):
    algorithm, operation = ALGORITHMS[name], OPS[op]
    if not operation.takes(dtype):
        return
    for size in (1, 6, 8):
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


@each("order", [(0, 1), (0, 1, 1), (1, 2, 3), (0, 1, 2, 3)])
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


@each("phase", PHASES.values())
def test_roots(phase):
    with pytest.raises(ConfigError, match=f"root 4 of {phase.name} is none of 4|no root, got"):
        phase(0, 4, 10, 4)
    if phase.rooted:
        assert phase.plan(4, 10, 2) != phase.plan(4, 10)
    else:
        with pytest.raises(ConfigError, match=f"{phase.name} has no root, got rank 1"):
            phase.spec(4, 10, root=1)


@each("phase", PHASES.values())
def test_every_root(phase):
    for size in (1, 2, 5, 6, 8):
        for root in range(size) if phase.rooted else [0]:
            numbers = list(np.random.default_rng(root).integers(-99, 99, (size, 13)))
            task = phase.spec(size, 13, root)
            got = perform(task, phase.plan(size, 13, root), numbers).buffers
            for rank, owed in enumerate(expected(task, numbers)):
                for span, due in owed:
                    np.testing.assert_array_equal(span.of(got[rank]), due)


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
@each("size", range(1, 10))
@each("n", [0, 1, 7, 24, 100])
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
