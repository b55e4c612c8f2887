"""What error feedback conserves, as a history shows it: no false alarm, whatever the numbers."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.codec import TABLE, Matrix, make_encoder
from psrt.history import EVENT, Kind
from psrt.history.check.findings import Findings
from psrt.history.check.frames import check_conserved
from psrt.history.check.table import Table
from psrt.runtime.conserved import conserved

FED_BACK = [row.name for row in TABLE.values() if row.feeds_back is not None]
STEPS = 30


def table_of(sums):
    events = np.zeros(len(sums), EVENT)
    events["kind"] = Kind.RESIDUAL
    columns = zip(*sums, strict=True)
    for name, numbers in zip(("rate", "gap", "weight", "seconds"), columns, strict=True):
        events[name] = numbers
    return Table(events, "worker 0")


def findings_of(sums, factors, n):
    findings = Findings()
    at = np.arange(len(sums))
    check_conserved(table_of(sums), at, at - 1, factors, n, findings)
    return findings.first


@pytest.mark.parametrize("n", [1, 2, 100, 40_000])
@pytest.mark.parametrize("codec", FED_BACK)
def test_numbers_of_all_magnitudes_add_up(codec, n):
    rng = np.random.default_rng(n)
    knobs = {"scaled": False} if "scaled" in TABLE[codec].knobs else {}
    rows = n // 40
    matrices = [Matrix(n - 20 * rows, rows, 20)] if rows else []
    sender = make_encoder(codec, n, error_feedback=True, matrices=matrices, **knobs)
    sums, factors = [], []
    for step in range(STEPS):
        # Within a vector, and from one to the next; subnormal ones, and near the largest.
        exponents = rng.uniform(-3, 3, n) + rng.uniform(-44, 30)
        vector = (rng.standard_normal(n) * 10.0**exponents).astype(np.float32)
        factors.append(float(rng.choice([1.0, 0.3, 7 / 4])))
        if step:
            sender.rescale(factors[-1])
        with np.errstate(all="ignore"):
            sender.encode(vector, rng)
            sums.append(conserved(vector, sender.decoded, sender.residual))
    assert findings_of(sums, np.array(factors), n) is None


@pytest.mark.parametrize("factor", [0.3, 7 / 6])
def test_subnormal_numbers_that_are_scaled_add_up(factor):
    rng = np.random.default_rng(1)
    sender = make_encoder("sign", 5000, error_feedback=True)
    sums = []
    for _ in range(STEPS):
        vector = (rng.standard_normal(5000) * 1e-43).astype(np.float32)
        if sums:
            sender.rescale(factor)
        sender.encode(vector, rng)
        sums.append(conserved(vector, sender.decoded, sender.residual))
    assert findings_of(sums, np.full(STEPS, factor), len(vector)) is None


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_not_finite_has_no_sum(special):
    vector = np.full(1000, special, np.float32)
    sums = conserved(vector, vector, vector)
    assert findings_of([sums, sums], np.ones(2), len(vector)) is None


def test_a_change_of_one_element_shows():
    rng = np.random.default_rng(0)
    vector, kept = (rng.standard_normal(1 << 20).astype(np.float32) for _ in range(2))
    decoded = vector - kept
    assert findings_of([conserved(vector, decoded, kept)], np.ones(1), len(vector)) is None
    decoded[12345] += 1
    assert (
        "adds up to"
        in findings_of([conserved(vector, decoded, kept)], np.ones(1), len(vector)).text
    )
