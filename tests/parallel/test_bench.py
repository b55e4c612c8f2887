"""The benchmarks measure what they say, on a scale at which nothing can be read off them."""

import numpy as np
import pytest
from mpi4py import MPI

from psrt.bench import allreduce, allreduce_rows, call_cost, contest, overhead, ps, train
from psrt.bench.asleep import work_while_others_sleep
from psrt.bench.entrants import EXCHANGE, names
from psrt.bench.fit import Readings, fit_machine
from psrt.bench.probes import read_machine
from psrt.bench.promises import promises
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.errors import ProtocolError

SMALL = {"tiny": (12, 8, 4)}


@pytest.mark.mpi(min_size=3)
def test_ps_compares_every_layout_that_fits(comm):
    layouts = ((1, 1), (1, 2), (2, 1), (50, 50))
    rows = ps.measure(comm, sizes=(1024, 400_000), layouts=layouts, rounds=2, segment_s=0.002)
    if comm.rank:
        assert rows == []
        return
    assert [(r["servers"], r["workers"], r["bytes"]) for r in rows] == [
        (servers, workers, nbytes) for servers, workers in layouts[:3] for nbytes in (1024, 400_000)
    ]
    assert all(row["psrt_s"].median > 0 and row["plain_s"].readings == 2 for row in rows)
    assert ps.table(rows).count("\n") == len(rows) + 1


@pytest.mark.mpi(min_size=2)
def test_ps_refuses_a_candidate_that_loses_pushes(comm):
    class Lossy(ps.PlainTrips):
        def run(self, trips):
            numbers = super().run(trips)
            if self._is_server:
                numbers[0] -= 1.0
            return numbers

    part = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED, comm.rank)
    if part != MPI.COMM_NULL:
        if part.rank == 0:
            with pytest.raises(ProtocolError, match="lost or doubled"):
                ps._check(Lossy(part, 1, 16), 3, part, 1)
        else:
            ps._check(Lossy(part, 1, 16), 3, part, 1)
        part.Free()
    comm.Barrier()


@pytest.mark.mpi(min_size=3)
def test_train_runs_every_scheme_and_holds_it_against_serial(comm):
    rows = train.measure(comm, models=SMALL, rounds=2, segment_s=0.005)
    if comm.rank:
        assert rows == []
        return
    names, count = [row["scheme"] for row in rows], len(train.SCHEMES)
    assert names[:count] == list(train.SCHEMES)
    assert rows[0]["over_serial"].median == 1.0
    assert all(np.isfinite(row["samples_per_second"].median) for row in rows)
    assert [row["workers"] for row in rows[:count]] == [1, *[2] * (count - 1)]


@pytest.mark.mpi(min_size=3)
def test_overhead_has_a_figure_for_every_promise(comm):
    rows = overhead.measure(comm, rounds=2, steps=20, segment_s=0.01)
    assert len(rows) == (0 if comm.rank else 4)
    assert all(row["value"].median > 0 for row in rows)


@pytest.fixture
def brief(monkeypatch):
    """Let each turn be one call."""
    monkeypatch.setattr("psrt.bench.rounds._TURN_S", 0.0)
    monkeypatch.setattr("psrt.bench.turns._BRIEF_S", 0.0)


def here(comm):
    return [list(range(comm.size))]


@pytest.mark.mpi(min_size=2)
def test_allreduce_verifies_and_measures_every_contestant(comm, brief):
    places = allreduce.layouts(here(comm), (2, 3), (1, 2, 3))
    rows = allreduce.measure(comm, places, costs=DEFAULT_COSTS, sizes=(1200,), rounds=2)
    if comm.rank:
        assert rows == []
        return
    expected = [(len(p.hosts), len(p.ranks), *name) for p in places for name in names(p)]
    assert len(places) == (2 if comm.size == 2 else 4)
    assert [(r["hosts"], r["ranks"], r["algorithm"], r["buffer"]) for r in rows] == expected
    assert all(row["seconds"].median > 0 and row["seconds"].readings == 2 for row in rows)
    for row in rows:
        p, sent = row["ranks"], row["sent"]
        if row["algorithm"] in ("ring", "segmented-ring"):
            assert sent == [2 * (p - 1) * 1200 // p] * p
        if row["algorithm"] == "naive":
            assert sent == [(p - 1) * 1200] * p
        assert (row["over_wire"] is not None) == (
            1 < row["hosts"] == p and row["algorithm"] != EXCHANGE
        )
    assert allreduce_rows.table(rows).count("\n") == len(rows) + 3
    assert [told["at"] for told in promises(rows, [])] == [1200] * min(comm.size - 1, 2)


@pytest.mark.mpi(min_size=2)
def test_allreduce_refuses_a_wrong_sum_on_every_rank(comm, brief, monkeypatch):
    def lossy(name, result, wanted, rank):
        result[-1] -= name[0] == "tree"
        return check(name, result, wanted, rank)

    check = contest.check
    if comm.rank == 1:
        monkeypatch.setattr(contest, "check", lossy)
    places = allreduce.layouts(here(comm), (2,), (1,))
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
def test_a_call_is_timed_with_and_without_its_messages(comm, brief):
    rows = call_cost.measure(comm, here(comm), costs=DEFAULT_COSTS, rounds=2)
    assert [row["hosts"] for row in rows] == ([] if comm.rank else [1, 2])
    assert call_cost.table(rows).count("\n") == len(rows) + 1


@pytest.mark.mpi(min_size=2)
def test_those_who_work_have_the_order_of_their_seats_and_those_who_sleep_hear_of_errors(comm):
    order = (comm.size - 1, 0)
    place = work_while_others_sleep(comm, order, lambda part: (part.rank, part.size))
    assert place == ((order.index(comm.rank), 2) if comm.rank in order else None)

    def fail(part):
        raise ProtocolError(f"rank {part.rank} of {part.size}")

    with pytest.raises(ProtocolError, match="rank 1 of 2"):
        work_while_others_sleep(comm, order, fail)
