"""The benchmarks measure what they say, on a scale at which nothing can be read off them."""

import math
import os
import time

import call
import history
import keyed
import numpy as np
import overhead
import pipeline
import ps
import pytest
import schemes
import train
from bounds import CpuMeter, cores_of, least_seconds

from psrt.bench import allreduce, allreduce_rows
from psrt.bench.allreduce_rows import AFTER_BARRIER, EXCHANGE, names
from psrt.bench.figures import table
from psrt.bench.fit import Readings, fit_machine
from psrt.bench.probes import read_machine
from psrt.bench.race import Candidate, layouts, race
from psrt.bench.ranks import RankTrack, run_on
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.core.errors import ConfigError, ProtocolError
from psrt.mpi.agreement import raise_on_all

SMALL = {"tiny": (12, 8, 4)}


@pytest.fixture
def brief(monkeypatch):
    """Let each turn be one call, and all have a turn in every round, however slow the machine."""
    monkeypatch.setattr("psrt.bench.race.plan", lambda seconds, it, rounds, pace: (1, rounds))
    monkeypatch.setattr("psrt.bench.race._STRETCH", math.inf)
    monkeypatch.setattr("psrt.bench.race._TRIALS", ((1, 1.0),))


def here(comm):
    return [list(range(comm.size))]


@pytest.mark.mpi(min_size=2)
def test_ps_and_keyed_compare_every_layout_that_fits(comm, brief):
    layouts, brief = ((1, 1), (1, 2), (2, 1), (50, 50)), {"rounds": 2, "turn_s": 0.002}
    fit = [it for it in layouts if sum(it) <= comm.size]
    rows = ps.measure(comm, sizes=(1024, 400_000), layouts=layouts, **brief)
    found = [(r["servers"], r["workers"], r["bytes"]) for r in rows]
    due = [(*layout, nbytes) for layout in fit for nbytes in (1024, 400_000)]
    assert found == due * (comm.rank == 0)
    assert all(row["psrt_s"].median > 0 and row["plain_s"].readings == 2 for row in rows)
    assert not rows or table(rows, ps.COLUMNS).count("\n") == len(rows) + 1
    for mode in ps.MODES:
        knobs = {"layouts": ((1, comm.size - 1),), "mode": mode, "shards_per_server": 3, **brief}
        rows = ps.measure(comm, sizes=(1024,), **knobs)
        found = [(row["mode"], row["shards_per_server"]) for row in rows]
        assert found == [(mode, 3)] * (comm.rank == 0)
    rows = keyed.measure(comm, grid=((1, 64), (3, 4096)), **brief)
    found = [(row["workers"], row["keys"], row["bytes"]) for row in rows]
    assert found == [(comm.size - 1, 1, 64), (comm.size - 1, 3, 4096)] * (comm.rank == 0)
    assert all(row["mpi_over_keyed"].readings == 2 for row in rows)
    assert not rows or " Gb/s" in table(rows, keyed.COLUMNS)


@pytest.mark.mpi(min_size=2)
def test_what_loses_a_push_is_an_error_on_every_rank(comm, monkeypatch):
    def lossy(comm, keys, size):
        run = keyed.mpi_trips(comm, keys, size)
        return lambda trips: run(trips - 1)

    monkeypatch.setattr(keyed, "keyed_trips", lossy)
    with pytest.raises(ProtocolError, match="keyed lost or doubled a push"):
        keyed.measure(comm, grid=((2, 64),), rounds=1, turn_s=0.001)

    class Lossy(ps.PlainTrips):
        def run(self, trips):
            numbers = super().run(trips)
            if self._is_server:
                numbers[0] -= 1.0
            return numbers

    monkeypatch.setitem(ps.CANDIDATES, "plain", Lossy)
    with pytest.raises(ProtocolError, match="Lossy lost or doubled a push"):
        ps.measure(comm, sizes=(1024,), layouts=((1, 1),), rounds=1, turn_s=0.0)


@pytest.mark.mpi(min_size=3)
def test_train_runs_every_scheme_and_holds_it_against_serial(comm, brief):
    rows = train.measure(comm, models=SMALL, rounds=2, turn_s=0.005)
    if comm.rank:
        assert rows == []
        return
    names, count = [row["scheme"] for row in rows], len(schemes.SCHEMES)
    assert names[:count] == list(schemes.SCHEMES)
    assert rows[0]["over_serial"].median == 1.0
    assert all(np.isfinite(row["samples_per_second"].median) for row in rows)
    assert [row["workers"] for row in rows[:count]] == [1, *[2] * (count - 1)]
    bounds = {row["scheme"]: row["cores_allow"] for row in rows if row["cores_allow"] is not None}
    assert list(bounds) == ["sync", "async", "ssp"]
    assert all(0 < bound < math.inf for bound in bounds.values())
    assert table(rows, train.COLUMNS).splitlines()[2].endswith("–")


@pytest.mark.mpi(min_size=3)
def test_the_least_time_is_that_of_all_cores_or_of_the_busiest_rank(comm, real_hosts):
    busy = [3.0, 2.0, 1.0][comm.rank] if comm.rank < 3 else 0.0
    found = [least_seconds(comm, busy, cores=c, ranks=3) for c in (1, 2, 3, 8)]
    assert found == [6.0, 3.0, 3.0, 3.0]
    assert 1 <= cores_of(comm) <= real_hosts * (os.cpu_count() or 1)
    meter, start = CpuMeter(), time.thread_time()
    assert meter.metered(lambda seconds, *, of: _burn(start + seconds) or of)(0.02, of="it") == "it"
    spent = time.thread_time() - start
    time.sleep(0.05)
    meter.end_turn(2)
    assert 0.009 <= meter.seconds <= 0.5 * spent


def _burn(until):
    while time.thread_time() < until:
        pass


DEEP = (12, *[8] * 5, 4)
_ONE = {name: pipeline.WAYS[name] for name in (pipeline.WHOLE, pipeline.PARTS)}


@pytest.mark.mpi(min_size=2)
def test_pipeline_holds_every_way_against_one_process(comm, brief, monkeypatch):
    monkeypatch.setattr(pipeline, "_IDLE_STEPS", 5)
    cut_ways = ("sequential", "gpipe", "1f1b", "zero-bubble", "pipedream")
    monkeypatch.setattr(pipeline, "WAYS", _ONE | {it: pipeline.WAYS[it] for it in cut_ways})
    rows = pipeline.measure(comm, sizes=DEEP, batches=(24,), micro_batches=4, rounds=2, turn_s=0.0)
    if comm.rank:
        assert rows == []
        return
    by_way = {row["way"]: row for row in rows}
    assert list(by_way)[: len(pipeline.WAYS)] == list(pipeline.WAYS)
    assert by_way[pipeline.WHOLE]["over_one"].median == 1.0
    assert all(row["samples_per_second"].readings == 2 for row in rows)
    # Of two stages and four micro-batches, of which one is out at the ends, less its weights; with
    # one micro-batch each stage waits half of the time.
    assert by_way["sequential"]["bubble"] == pytest.approx(1 / 2)
    assert 4 / 5 < by_way["gpipe"]["bubble"] < 1
    assert by_way["1f1b"]["bubble"] == pytest.approx(by_way["gpipe"]["bubble"])
    cut = [by_way[name] for name in cut_ways[:4]]
    assert all(1 < row["balance"] < 2 and row["own_us"] > 0 for row in cut)
    assert all(0 < row["waits"] < 1 for row in cut)
    # Eight numbers a row, there and back, and a number along with each message.
    wanted = [24 * 8 * 4 * 2 + 8 * 2 * parts for parts in (1, 4, 4, 4)]
    assert [row["bytes_per_step"] for row in cut] == wanted
    assert table(rows, pipeline.COLUMNS).count("\n") == len(rows) + 1


@pytest.mark.mpi(min_size=2)
def test_pipeline_refuses_a_way_that_computes_something_else(comm, monkeypatch):
    wrong = pipeline.Way({"parallel": "pipeline:2", "weight_decay": 0.9})
    monkeypatch.setattr(pipeline, "WAYS", {**_ONE, "wrong": wrong})
    with pytest.raises(ProtocolError, match="wrong ended with other parameters"):
        pipeline.measure(comm, sizes=DEEP, batches=(24,), micro_batches=4, rounds=1, turn_s=0.0)


@pytest.mark.mpi(min_size=2)
def test_a_benchmark_of_more_ranks_than_there_are_is_refused(comm):
    part = comm.Split(comm.rank // 2, comm.rank)
    with pytest.raises(ConfigError, match=rf"^this needs 3 ranks or more, there are {part.size}$"):
        run_on(part, range(3), lambda part: None)
    part.Free()


@pytest.mark.mpi(min_size=3)
def test_small_benchmarks_have_a_row_for_each_case(comm, brief):
    rows = overhead.measure(comm, rounds=2, steps=20, turn_s=0.01)
    assert len(rows) == (0 if comm.rank else 4)
    assert all(row["value"].median > 0 for row in rows)

    rows = history.measure(comm, rounds=1, turn_s=0.0, models=SMALL)
    assert [row["scheme"] for row in rows] == ([] if comm.rank else list(history._SCHEMES))
    assert all(row["recorded_over_plain"].readings == 1 for row in rows)
    assert all(row["ring_over_plain"].readings == 1 for row in rows)
    assert all(row["events_per_step"] > 1 for row in rows)

    rows = call.measure(comm, here(comm), rounds=2)
    assert [row["hosts"] for row in rows] == ([] if comm.rank else [1, 2])
    assert table(rows, call.COLUMNS).count("\n") == len(rows) + 1


@pytest.mark.mpi(min_size=2)
def test_the_slowest_rank_counts_and_those_without_a_part_come_along(comm):
    last = comm.size - 1
    found = race(
        {"all": Candidate(lambda count: count * (1.0 + comm.rank)),
         "first": Candidate((lambda count: 7.0 * count) if comm.rank == 0 else None)},
        3, track=RankTrack(comm), calls=2,
    )  # fmt: skip
    assert found.rounds == [{"all": 1.0 + last, "first": 7.0}] * 3


@pytest.mark.mpi(min_size=2)
def test_allreduce_verifies_and_measures_every_contestant(comm, brief):
    places = layouts(here(comm), (2, 3), (1, 2, 3))
    rows = allreduce.measure(comm, places, costs=DEFAULT_COSTS, sizes=(1200,), rounds=2)
    if comm.rank:
        assert rows == []
        return
    expected = [(len(p.hosts), len(p.ranks), *name) for p in places for name in names(p, 1200)]
    assert len(places) == (2 if comm.size == 2 else 4)
    what = ("hosts", "ranks", "algorithm", "buffer", "pattern")
    assert [tuple(row[key] for key in what) for row in rows] == expected
    assert all(row["seconds"].median > 0 and row["seconds"].readings == 2 for row in rows)
    for row in rows:
        p, sent = row["ranks"], row["sent"]
        if row["algorithm"] in ("ring", "segmented-ring", "all-pairs"):
            assert sent == [2 * (p - 1) * 1200 // p] * p
        if row["algorithm"] == "naive":
            assert sent == [(p - 1) * 1200] * p
        assert (row["over_wire"] is not None) == (
            1 < row["hosts"] == p
            and row["algorithm"] != EXCHANGE
            and row["pattern"] != AFTER_BARRIER
        )
    waiting = [row for row in rows if row["pattern"] == AFTER_BARRIER]
    assert len(waiting) == 3 * len(places)
    assert all(row["over_library"].readings == 2 for row in waiting)
    text = allreduce_rows.as_text(rows)
    assert text.count("after a barrier") == len(waiting)
    assert text.count("back to back") == len(waiting)


@pytest.mark.mpi(min_size=2)
def test_allreduce_refuses_a_wrong_sum_on_every_rank(comm, brief, monkeypatch):
    def lossy(name, result, wanted, rank):
        result[-1] -= name[0] == "tree"
        return check(name, result, wanted, rank)

    check = allreduce.check
    if comm.rank == 1:
        monkeypatch.setattr(allreduce, "check", lossy)
    places = layouts(here(comm), (2,), (1,))
    with pytest.raises(ProtocolError, match="tree on a window of 1200 bytes: rank 1 has"):
        allreduce.measure(comm, places, costs=DEFAULT_COSTS, sizes=(1200,), rounds=1)


@pytest.mark.mpi(min_size=2)
def test_the_fit_reads_what_the_ranks_at_hand_allow(comm, brief):
    ranks = (2, 3)
    found = read_machine(
        comm, here(comm), ranks=ranks, rounds=1,
        exchanges=(64, 4096), folds=(4096,), vectors=(1024, 16384),
    )  # fmt: skip
    if comm.rank:
        assert found == Readings()
        return
    assert set(found.inside) == set(found.between) == {64, 4096}
    assert set(found.fold) == {4096}
    wanted = {(p, n) for p in ranks if p <= comm.size for n in (1024, 16384)}
    assert set(found.node) == set(found.library) == wanted
    assert set(fit_machine(found, cores=2).fits) == {"inside", "between", "fold", "node"}


@pytest.mark.mpi(min_size=2)
def test_those_who_work_have_their_order_and_those_who_sleep_hear_of_errors(comm):
    order = (comm.size - 1, 0)
    place = run_on(comm, order, lambda part: (part.rank, part.size))
    assert place == ((order.index(comm.rank), 2) if comm.rank in order else None)

    def fail(part):
        with raise_on_all(part):
            if part.rank:
                raise ProtocolError(f"rank {part.rank} of {part.size}")

    with pytest.raises(ProtocolError, match="rank 1 of 2"):
        run_on(comm, order, fail)
