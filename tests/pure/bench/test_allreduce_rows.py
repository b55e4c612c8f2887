"""What a contest amounts to, from readings of our own making."""

import json

import pytest

from psrt.bench.allreduce_rows import Race, rows_of, table
from psrt.bench.entrants import COPY, EXCHANGE, KEY, LIBRARY, PLAIN, WINDOW, Outcome, names
from psrt.bench.measure import to_json
from psrt.bench.seats import Seats
from psrt.collective import ALGORITHMS
from psrt.collective.analysis.choose import predict
from psrt.collective.analysis.machine import DEFAULT_COSTS

HOST = Seats(((0, 1, 2, 3),), pretended=False)
APART = Seats(((0,), (1,), (2,), (3,)), pretended=True)
PAIRS = Seats(((0, 1), (2, 3)), pretended=True)
N = 1 << 20
LIB, AUTO, RING = (LIBRARY, PLAIN), ("auto", WINDOW), ("ring", WINDOW)
COPIED, WIRE = (COPY, WINDOW), (EXCHANGE, WINDOW)


def rows(seats, sent, rounds, chosen="node"):
    found = rows_of(Race(seats, N, Outcome(sent, chosen, rounds)), DEFAULT_COSTS)
    return {(row["algorithm"], row["buffer"]): row for row in found}


def test_ratios_are_of_one_round_and_the_rest_of_medians():
    # The machine is ten times slower in the last two rounds.
    rounds = [
        {LIB: 4.0, AUTO: 1.0, COPIED: 0.5},
        {LIB: 40.0, AUTO: 10.0, COPIED: 5.0},
        {LIB: 40.0, COPIED: 5.0},
    ]
    got = rows(HOST, {LIB: None, AUTO: (100, 100, 50, 0), COPIED: None}, rounds)
    auto = got[AUTO]
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


def test_table_and_json_have_a_line_a_row():
    sent = {LIB: None, AUTO: (0, 4096, 8192, 4096), RING: (4096,) * 4, COPIED: None}
    found = list(rows(HOST, sent, [{LIB: 4.0, AUTO: 1.0, RING: 2.0, COPIED: 0.5}]).values())
    lines = table(found).splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["MPI.Allreduce", "auto:", "ring", "copyto"]
    assert "0 B .. 8 KiB" in lines[3]
    assert lines[3].rstrip().endswith("50%")
    assert "hosts *" not in table(found)
    assert len(json.loads(to_json(found))) == 4
    apart = list(rows(APART, {LIB: None, RING: (9,) * 4}, [{LIB: 1.0, RING: 6.0}]).values())
    assert "4*" in table(apart)
    assert "hosts *" in table(apart)


def test_who_takes_part():
    host, apart, pairs = (list(names(seats)) for seats in (HOST, APART, PAIRS))
    for field in (host, apart, pairs):
        assert field[0] == LIB
        assert len(set(field)) == len(field)
        assert AUTO in field
        assert RING in field
    for algorithm in ALGORITHMS:
        assert {(algorithm, WINDOW), (algorithm, PLAIN)} <= set(host)
        assert (algorithm, WINDOW) in apart
    assert {("node", WINDOW), ("node", PLAIN), ("mpi", PLAIN), COPIED} <= set(host)
    assert WIRE in apart
    assert WIRE not in pairs
    assert ("node+ring", WINDOW) in pairs
    assert set(KEY) <= {*host, *apart}
