"""The benchmarks measure what they say, on a scale at which nothing can be read off them."""

import numpy as np
import pytest
from mpi4py import MPI

from psrt.bench import overhead, ps, train
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
    names = [row["scheme"] for row in rows]
    assert names[:5] == list(train.SCHEMES)
    assert rows[0]["over_serial"].median == 1.0
    assert all(np.isfinite(row["samples_per_second"].median) for row in rows)
    assert [row["workers"] for row in rows[:5]] == [1, 2, 2, 2, 2]


@pytest.mark.mpi(min_size=3)
def test_overhead_has_a_figure_for_every_promise(comm):
    rows = overhead.measure(comm, rounds=2, steps=20, segment_s=0.01)
    assert len(rows) == (0 if comm.rank else 4)
    assert all(row["value"].median > 0 for row in rows)
