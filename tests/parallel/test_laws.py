"""Law: over MPI a job is what it is in virtual time, on as many ranks as there are.

Promised in docs/guarantees.md: where results repeat "always" they are the same bits, whoever runs
them; elsewhere the run keeps the contract of its mode, and its replay comes to the same bits, over
MPI too, whoever is late this time. Of each job of ``support.jobs`` there are as many copies as the
ranks of this launch hold, so that a launch of three ranks tries every mode: through the memory of
one host, and as if each rank were on a host of its own.

Seen red: bytes between stages, or of sums, counted twice; a replay that takes what comes first.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import psrt
from psrt.history.check.run import check_run
from psrt.job.scenario import Scenario, run_in_virtual_time
from support.jobs import FACTORS, JOBS, LEARNERS, SERVED, SPLIT, SUMMED, Job


def ranks_of(job: Job) -> int:
    """Return the number of ranks that a job takes: its workers and its servers."""
    way = job["way"]
    servers = int(way[0]) if "server" in way else int(job["mode"] in SERVED)
    # Each of two parts has servers of its own, unless these merge some of the copies.
    has_own = job["cut"] in SPLIT and not (job["mode"] in LEARNERS and job.copies > 2)
    return job.workers + (max(servers, 2) if servers and has_own else servers)


def goes_to_its_end(job: Job) -> bool:
    """Return whether nobody is to die: who kills ranks starts them, too (tests/e2e)."""
    return job["event"] not in ("is killed", "loses a worker")


def repeats(job: Job) -> bool:
    """Return whether it can be replayed: not where workers stop for checkpoints at steps of their
    own."""
    return not job.stops_alone


def says_how_it_sums(job: Job) -> bool:
    """Return whether psrt leaves its all-reduce as it is: one that psrt chooses, for what it costs
    over MPI, has another one beside it for what is short."""
    return job["mode"] not in SUMMED or job["way"] != "nothing"


def has_own_ranks(job: Job) -> bool:
    """Return whether it says itself on how many ranks it is."""
    return "parallel" in dict(job.more)


def held_by(ranks: int) -> list[Job]:
    """Return the jobs with as many copies as so many ranks hold, if they hold one."""
    found = {}
    most_first = sorted(FACTORS["copies"], key=int, reverse=True)
    for job in filter(goes_to_its_end, JOBS):
        for copies in [job["copies"]] if has_own_ranks(job) else most_first:
            other = job.but(copies=copies)
            if other.is_possible and ranks_of(other) <= ranks:
                found[other] = None
                break
    return list(found)


def cases(ranks: int) -> Iterator[Any]:
    """Yield those jobs, and whether they share memory.

    All are exhaustive but the first of each mode, which do and do not by turns, and of those that
    share memory one in twenty.
    """
    modes = set()
    for job in held_by(ranks):
        new = job["mode"] not in modes
        modes.add(job["mode"])
        apart = job["way"] != "node" and job["mode"] != "serial"
        turn = new and apart and len(modes) % 2 == 0
        often = (new and not turn) or not zlib.crc32(str(job).encode()) % 20
        yield pytest.param(job, True, id=str(job), marks=() if often else pytest.mark.exhaustive)
        if apart:
            marks = () if turn else pytest.mark.exhaustive
            yield pytest.param(job, False, id=f"{job}, apart", marks=marks)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "job" in metafunc.fixturenames:
        from psrt.mpi.start import world

        metafunc.parametrize(("job", "shared"), [*cases(world().size)])


@pytest.mark.mpi(min_size=3)
def test_every_mode_and_codec_and_cut_is_there(comm):
    jobs = held_by(comm.size)
    least = {"learners": 4, "windows": 4, "teams": 5}  # of workers, and a server
    few = {mode for mode, ranks in least.items() if comm.size < ranks}
    for factor in ("mode", "codec", "cut", "data", "optimizer", "trim", "rate"):
        assert {job[factor] for job in jobs} | few >= set(FACTORS[factor]), factor


@pytest.fixture
def crew(comm):
    """Return what splits the first ranks off; None at the others."""
    parts = []

    def made(ranks):
        parts.append(comm.Split(comm.rank >= ranks, comm.rank))
        return parts[0] if comm.rank < ranks else None

    yield made
    for part in parts:
        part.Free()


def test_a_job_over_mpi_is_what_it_is_in_virtual_time(crew, shared_folder, job, shared):
    part = crew(ranks_of(job))
    if part is None:
        return
    out = shared_folder / "run"
    config = job.config(out, record=True, timeout_s=30.0, shared_memory=shared)
    real = psrt.run(config, comm=part)
    if repeats(job) and not job.in_order:
        late = tuple((worker, "delay", (0.003,)) for worker in range(1, job.workers))
        part.Barrier()
        replayed = psrt.run(psrt.recorded_config(out, inject=late), comm=part)
    if part.rank:
        return
    assert (real.summary.ranks, real.summary.workers) == (ranks_of(job), job.workers)
    outcome = check_run(out)
    assert outcome.ok, "\n".join(outcome.lines())
    scenario = Scenario(job.workers)
    if job.in_order:
        # One that is alone has chosen nothing.
        chosen = {"allreduce": real.summary.allreduce} if job.workers > 1 else {}
        virtual = run_in_virtual_time(job.config(None, **chosen), scenario)
        np.testing.assert_array_equal(virtual.theta, real.theta)
        assert virtual.summary.cut_bytes_sent == real.summary.cut_bytes_sent
        if says_how_it_sums(job):
            assert virtual.summary.bytes_sent == real.summary.bytes_sent
            assert virtual.summary.frame_bytes == real.summary.frame_bytes
    if repeats(job):
        again = run_in_virtual_time(psrt.recorded_config(out), scenario)
        np.testing.assert_array_equal(again.theta, real.theta)
        if not job.in_order:
            np.testing.assert_array_equal(replayed.theta, real.theta)
        if job["mode"] != "pairs":
            assert again.summary.bytes_sent == real.summary.bytes_sent
