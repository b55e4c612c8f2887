"""Every schedule, on numbers, for every p and n; and that one row says all there is of it."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import psrt
from psrt.collective import ALGORITHMS, OPS, PHASES, ring_steps
from psrt.collective.analysis.proof import prove
from psrt.collective.spec import CollectiveSpec, Postcondition
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from support.cases import each
from support.numbers import SUBJECTS, expected, perform, simulate

LENGTHS = [0, 1, 17, 100]  # empty, fewer than ranks, ragged, usual

#: Powers of two and their neighbours, primes, and products of two different numbers.
every_size = each("size", [1, 2, 3, 5, 6, 8, 13])


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
    for size in (1, 2, 3, 6, 9):
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


@each("op", OPS)
@each("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_every_operation_on_every_type(op, dtype):
    operation = OPS[op]
    due = {"sum": np.sum, "min": np.min, "max": np.max, "prod": np.prod}
    due |= {o: getattr(np, f"bitwise_{o}").reduce for o in ("and", "or", "xor")}
    for name in ALGORITHMS if dtype == "float32" and operation.takes(dtype) else ("tree", "ring"):
        for size in (1, 6) if operation.takes(dtype) else ():
            rng = np.random.default_rng(size)
            numbers = list(rng.choice([-2, -1, 1, 2], (size, 17)).astype(dtype))
            if op == "mean":
                total, many = np.sum(numbers, axis=0), np.dtype(dtype).type(size)
                right = total // size if dtype.startswith("int") else total / many
            else:
                right = due[op](numbers, axis=0)
            scale = np.dtype(dtype).type(operation.scale(dtype, size))
            row, parts = ALGORITHMS[name], [part * scale for part in numbers]
            task, plan = row.spec(size, 17), row.plan(size, 17)
            for got in perform(task, plan, parts, operation.ufunc).buffers:
                operation.finish(got, size)
                assert got.dtype == dtype
                np.testing.assert_array_equal(got, right)


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


def test_who_needs_a_workspace():
    found = {a.name: a.workspace(5, 103) for a in ALGORITHMS.values() if a.workspace(5, 103)}
    assert found == {"naive": 412, "all-pairs": 84}


@each("phase", PHASES.values())
def test_roots(phase):
    with pytest.raises(ConfigError, match=f"root 4 of {phase.name} is not one of 4|no root, got"):
        phase(0, 4, 10, 4)
    for size in (5, 6):
        for root in range(size) if phase.rooted else [0]:
            prove(phase.spec(size, 13, root), phase.plan(size, 13, root))
    if not phase.rooted:
        with pytest.raises(ConfigError, match=f"{phase.name} has no root, got rank 1"):
            phase.spec(4, 10, root=1)


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


PACKAGE = Path(psrt.__file__).parent
GUIDE = PACKAGE.parent / "CONTRIBUTING.md"
#: Proved and priced for every size, in the closed form as on the clocks; explained, and run.
SHOWN = """
from psrt.__main__ import main
from psrt.collective import ALGORITHMS
from psrt.collective.analysis.cost import price
from psrt.collective.analysis.proof import prove
from psrt.collective.costs import LinkCosts

row, costs = ALGORITHMS["chain"], LinkCosts(3.0, 0.5, 0.25)
for size in range(1, 9):
    for n in (0, 1, 7, 20):
        prove(row.spec(size, n), row.plan(size, n))
        found = price(row.plan(size, n), 4, costs).seconds
        assert abs(found - row.seconds(size, 4 * n, costs)) < 1e-9, (size, n)
summed, small = "--mode allreduce --allreduce", "--workers 3 --steps 4 --dataset synthetic:300x4x2"
for command in ("explain chain", f"simulate {small} {summed} chain", f"show {summed} node+chain"):
    assert not main(command.split()), command
"""


def test_an_algorithm_is_added_as_the_guide_says(tmp_path):
    """One file and one row; all laws try it as soon as it has that."""
    shutil.copytree(PACKAGE, tmp_path / "psrt")
    [text] = re.findall(
        r"^### An all-reduce: (.*?)^###", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )
    path = re.search(r"`(psrt/\S+\.py)`", text)[1]
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    (tmp_path / path).write_text(code)
    registry = tmp_path / "psrt/collective/registry.py"
    module, functions = path.removesuffix(".py").replace("/", "."), re.findall(r"def (\w+)", code)
    row = re.search(r"^`(Algorithm\(.*\),)`$", text, re.MULTILINE)[1]
    rows = registry.read_text().replace(
        "from psrt.collective.schedules",
        f"from {module} import {', '.join(functions)}\nfrom psrt.collective.schedules",
        1,
    )
    registry.write_text(rows.replace("    Algorithm,\n    (\n", f"    Algorithm,\n    (\n{row}\n"))
    done = subprocess.run(
        [sys.executable, "-c", SHOWN],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "chain, an all-reduce of 4 ranks" in done.stdout
    assert 'allreduce = "node+chain"' in done.stdout
