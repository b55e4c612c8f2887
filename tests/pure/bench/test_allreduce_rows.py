"""What a race of all-reduces amounts to; and its numbers show every kind of wrong sum."""

from dataclasses import replace

import numpy as np
import pytest

from psrt.bench.allreduce_rows import (
    AFTER_BARRIER,
    AUTO,
    COPY,
    EXCHANGE,
    LIBRARY,
    MOST_RANKS,
    PLAIN,
    WINDOW,
    Name,
    Outcome,
    WholeNumbers,
    as_text,
    fill,
    first_difference,
    measured_by,
    rows_of,
)
from psrt.bench.race import Layout, Readings
from psrt.collective.analysis.choose import predict
from psrt.collective.analysis.machine import DEFAULT_COSTS
from support.cases import each

HOST = Layout(((0, 1, 2, 3),), pretended=False)
APART = Layout(((0,), (1,), (2,), (3,)), pretended=True)
PAIRS = Layout(((0, 1), (2, 3)), pretended=True)
N = 1 << 20
LIB, BEST, RING = Name(LIBRARY, PLAIN), Name(AUTO, WINDOW), Name("ring", WINDOW)
COPIED, WIRE = Name(COPY, WINDOW), Name(EXCHANGE, WINDOW)


def rows(layout, sent, rounds, chosen="node"):
    found = rows_of(Outcome(layout, N, sent, chosen, Readings(rounds)), DEFAULT_COSTS)
    return {Name(row["algorithm"], row["buffer"], row["pattern"]): row for row in found}


def test_ratios_are_of_one_round_and_the_rest_of_medians():
    # The machine is ten times slower in the last two rounds.
    rounds = [
        {LIB: 4.0, BEST: 1.0, COPIED: 0.5},
        {LIB: 40.0, BEST: 10.0, COPIED: 5.0},
        {LIB: 40.0, COPIED: 5.0},
    ]
    got = rows(HOST, {LIB: None, BEST: (100, 100, 50, 0), COPIED: None}, rounds)
    auto = got[BEST]
    assert auto["over_library"].median == 4.0
    assert auto["over_library"].readings == 2
    assert auto["over_copy"].median == 0.5
    assert auto["seconds"].median == 5.5
    assert auto["algbw"] == N / 5.5
    assert auto["busbw"] == pytest.approx(1.5 * N / 5.5)
    assert (auto["sent"], auto["chosen"]) == ([100, 100, 50, 0], "node")
    assert auto["predicted_s"] == predict("node", [4], N, 4, DEFAULT_COSTS)
    assert auto["over_wire"] is None
    assert got[LIB]["sent"] is None
    assert got[LIB]["predicted_s"] is None
    assert got[COPIED]["busbw"] is got[COPIED]["over_library"] is None


def test_between_hosts_the_ring_is_held_against_the_wire():
    got = rows(APART, {LIB: None, RING: (9,) * 4, WIRE: None}, [{LIB: 1.0, RING: 6.0, WIRE: 2.0}])
    ring = got[RING]
    assert ring["over_wire"].median == 2.0  # 6 / (2·3/4 · 2)
    fold_s = 0.75 * N * DEFAULT_COSTS.between.gamma
    assert ring["over_bound"].median == pytest.approx(6.0 / (3.0 + fold_s))
    assert ring["predicted_s"] == predict("ring", [1, 1, 1, 1], N, 4, DEFAULT_COSTS)
    assert (ring["hosts"], ring["pretended"], ring["over_copy"]) == (4, True, None)


def test_what_is_measured_between_real_hosts_is_for_auto_to_choose_by():
    mpi, sent = Name("mpi", PLAIN), {LIB: None, RING: (9,) * 4, WIRE: None, BEST: None}
    times = [{LIB: 1.0, RING: 6.0, WIRE: 2.0, BEST: 3.0, mpi: 4.0}]
    for layout, kept in ((replace(APART, pretended=False), True), (APART, False), (HOST, False)):
        outcome = Outcome(layout, N, sent | {mpi: None}, "ring", Readings(times))
        wanted = [("ring", (1, 1, 1, 1), N, 6.0), ("mpi", (1, 1, 1, 1), N, 4.0)] if kept else []
        assert list(measured_by(rows_of(outcome, DEFAULT_COSTS))) == wanted


def test_small_calls_are_held_against_the_library_in_the_same_pattern():
    waiting, best = (name._replace(pattern=AFTER_BARRIER) for name in (LIB, BEST))
    rounds = [{LIB: 26.0, BEST: 10.0, COPIED: 5.0, waiting: 50.0, best: 100.0}]
    got = rows(HOST, dict.fromkeys((LIB, BEST, COPIED, waiting, best)), rounds)
    assert got[BEST]["over_library"].median == 2.6
    assert got[best]["over_library"].median == 0.5
    assert got[best]["over_copy"] is got[best]["predicted_s"] is None
    text = as_text(list(got.values()))
    small, every = text.split("\n\n")
    told = [line.split()[-1] for line in small.splitlines()[3:]]
    assert told == ["1.00]", "2.60]", "1.00]", "0.50]"]
    assert small.count("back to back") == small.count("after a barrier") == 2
    assert "after a barrier" not in every
    assert every.count("\nMPI.Allreduce ") == 1


# --- the numbers that are summed ----------------------------------------------------------------

ELEMENTS = 200_003


def given(ranks):
    numbers = WholeNumbers(ranks)
    arrays = np.empty((ranks, ELEMENTS), np.float32)
    for rank, array in enumerate(arrays):
        fill(array, numbers.of(rank))
    return numbers.total(), arrays


@each("ranks", [1, 2, 3, 8])
def test_the_sum_in_any_order_is_the_total(ranks):
    total, arrays = given(ranks)
    for order in (arrays, arrays[::-1]):
        assert first_difference(np.add.reduce(order), total) is None
    assert WholeNumbers(MOST_RANKS).total().max() < 2**24, "exact"
    assert np.array_equal(WholeNumbers(9).total(), np.round(WholeNumbers(9).total()))


@each("at", [0, 65_343, 65_344, ELEMENTS - 1])
def test_one_wrong_element_is_found_where_it_is(at):
    total, arrays = given(3)
    result = arrays.sum(axis=0)
    result[at] += 1
    assert first_difference(result, total) == at


def test_lost_doubled_foreign_and_shifted_contributions_show():
    total, arrays = given(4)
    whole = arrays.sum(axis=0)
    for rank in range(4):
        assert first_difference(whole - arrays[rank], total) is not None
        assert first_difference(whole + arrays[rank], total) is not None
        other = arrays[(rank + 1) % 4]
        assert first_difference(whole - arrays[rank] + other, total) is not None
    for shift in (1, ELEMENTS // 4, 1 << 14):
        assert first_difference(np.roll(whole, shift), total) is not None
