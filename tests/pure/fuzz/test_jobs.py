"""Random jobs, recorded: each keeps its contract, and can be had again, to the bit.

Of jobs with servers, what workers really read is held against the contract, byte by byte: a second
oracle, which no record of the job can mislead. See ``Ledger``.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from psrt import recorded_config
from psrt.collective import ALGORITHMS
from psrt.config import TrainConfig, resolve
from psrt.history import EventLog, read_history
from psrt.history.check import check
from psrt.history.check.run import check_run
from psrt.history.folder import EVENTS, write_header
from psrt.job.provenance import history_header
from psrt.job.scenario import run_in_virtual_time
from psrt.job.virtual import simulate
from psrt.runtime.event_recorder import ShardEventRecorder, WorkerEventRecorder
from psrt.simulation import SimulationCosts
from support.fuzz import Draw, each_job, told
from support.histories import shards_of
from support.recording import Ledger


@each_job
def test_a_job_keeps_its_contract_and_can_be_had_again(seed, tmp_path):
    with told(seed):
        job = Draw(seed).job()

        def run(name, scenario=job.scenario, config=None):
            config = config or job.config(record=True, out=str(tmp_path / name))
            return run_in_virtual_time(config, scenario).summary

        first = run("run")
        outcome = check_run(tmp_path / "run")
        assert outcome.ok, "\n".join(outcome.lines())
        again = run("again")
        bits = [(tmp_path / n / "history" / EVENTS).read_bytes() for n in ("run", "again")]
        assert bits[0] == bits[1]
        texts = [dataclasses.replace(it, environment={}).to_json() for it in (first, again)]
        assert texts[0] == texts[1]
        if job.scenario.numerics and not job.scenario.crashes:
            late = dataclasses.replace(job.scenario, costs=job.other_costs)
            replayed = run("", late, recorded_config(tmp_path / "run"))
            assert replayed.parameters_sha256 == first.parameters_sha256
            assert replayed.staleness == first.staleness


# --- what is read ------------------------------------------------------------------------------

ROUNDS = ("sync", "sync with backups")
LOCAL = ("local-sgd", "local-sgd over servers")
ELASTIC = ("easgd", "easgd without rounds")
MODES = (*ROUNDS, "async", "drop", "ssp", "softsync", "allreduce", *LOCAL, *ELASTIC)


def costs_of(draw):
    """Return costs by chance: of two messages sent at once to two ranks, any may be first."""
    uneven, busy = draw.rng.pareto(1.5, 20), draw.one((0.0, 1e-3))
    latencies = [
        lambda rng: rng.exponential(1e-4),
        lambda rng: rng.exponential(1e-2),
        lambda rng: 1e-4 * rng.pareto(0.9),
    ]
    return SimulationCosts(
        compute=lambda rank, rng: rng.exponential(1e-3 * (1 + uneven[rank])),
        latency=draw.one(latencies),
        bandwidth=draw.one((math.inf, 1e5)),
        apply=(lambda rank, nbytes, rng: rng.exponential(busy)) if busy else None,
    )


def books_of(draw, workers, shards):
    steps = [draw.whole(0, 8) for _ in range(workers)]
    steps[draw.whole(0, workers - 1)] += 1
    pairs = [(worker, clock) for worker in range(workers) for clock in range(steps[worker])]
    empty = [pair for pair in pairs if draw.maybe(0.15)]
    weights = {pair: draw.whole(1, 5) for pair in pairs}
    return Ledger(steps, shards, empty=empty, weights=weights)


def config_of(draw, mode, workers):
    knobs = {"mode": mode.split()[0]}
    if mode == "sync with backups":
        knobs["backup"] = draw.whole(1, workers - 1)
    if mode == "drop":
        knobs = {"mode": "async", "staleness_rate": "drop", "staleness_limit": draw.whole(0, 5)}
    if mode == "ssp":
        knobs["staleness"] = draw.whole(0, 3)
    if mode == "softsync":
        knobs["softsync"] = draw.whole(1, workers)
    if mode == "easgd without rounds":
        knobs["asynchronous"] = True
    if mode in (*LOCAL, *ELASTIC):
        knobs["local_steps"] = draw.whole(1, 4)
    if mode in ("allreduce", "local-sgd"):
        knobs |= {"servers": 0, "allreduce": draw.one((*ALGORITHMS, "auto")), "check_every": 1}
    else:
        knobs |= {"servers": draw.whole(1, 4), "shards_per_server": draw.whole(1, 3)}
    injected = tuple(draw.injection(workers) for _ in range(2))
    shared = draw.maybe(0.5)
    return TrainConfig(
        optimizer="sgd", lr=1.0, epochs=1, shared_memory=shared, inject=injected, **knobs
    )


def check_job(draw, folder, modes=MODES):
    """Draw a job, run it, and check all that it read, and its history."""
    workers = draw.whole(1, 8)
    mode = draw.one([mode for mode in modes if workers > 1 or mode != "sync with backups"])
    config = config_of(draw, mode, workers)
    books = books_of(draw, workers, shards_of(config))
    crashes = draw.crashes(workers) if config.servers and draw.maybe(0.4) else ()
    with EventLog(folder / EVENTS) as log:
        run = simulate(
            config,
            books,
            workers=workers,
            seed=draw.seed,
            costs=draw.costs().at if draw.maybe(0.3) else costs_of(draw),
            crashes=crashes,
            log=log,
        )
        for shard, server in enumerate(run.servers):
            ShardEventRecorder(log, shard).saved(server.shard.version, run.seconds)
        if not run.servers:
            WorkerEventRecorder(log, 0).saved(run.workers[0].strategy.updates, run.seconds)
    dead = {worker for worker, _ in crashes}
    if mode not in (*LOCAL, *ELASTIC):
        for read in books.reads:
            check_read(mode, config, books, read, dead)
        check_end(mode, books, run, dead)
    check_history(config, run, books, folder, dead)


def check_history(config, run, books, folder, dead):
    role_map = run.world.role_map
    header = history_header(
        resolve(config, ranks=role_map.size),
        role_map,
        initial=books.initial(),
        problem=books,
        files=(EVENTS,),
        plan=run.workers[0].strategy.plan,
        hosts=(0,) * role_map.size,
        simulated=True,
        crashes=tuple(dead),
    )
    write_header(folder, header)
    outcome = check(read_history(folder))
    assert outcome.ok, "\n".join(outcome.lines())


@each_job
def test_what_is_read_is_what_the_mode_promises(seed, tmp_path):
    with told(seed):
        check_job(Draw(seed), tmp_path)


def check_read(mode, config, books, read, dead):
    """Hold one read against the contract of its mode, on every shard."""
    gate = {"sync": 0, "allreduce": 0, "ssp": config.staleness}.get(mode, math.inf)
    for worker in range(len(books.steps)):
        clocks = np.array(books.there(worker), int)
        seen = read.contents[:, worker, clocks]
        if mode in ("async", "drop", "ssp"):
            assert np.isin(seen, (0, 1)).all(), f"exactly once: {read}"
        if mode in (*ROUNDS, "allreduce"):
            assert not seen[:, clocks >= read.clock].any(), f"a round that is to come: {read}"
        if mode not in ("drop", "sync with backups"):
            assert (np.diff((seen > 0).astype(int), axis=1) <= 0).all(), (
                f"first in, first out: {read}"
            )
        if worker not in dead:
            assert (seen[:, clocks < read.clock - gate] > 0).all(), f"read guarantee: {read}"
        if worker == read.worker and mode in ("sync", "allreduce", "async", "ssp"):
            assert (seen[:, clocks < read.clock] > 0).all(), f"read my writes: {read}"


def check_end(mode, books, run, dead):
    """Check that what was pushed and not dropped is in the final parameters, and once."""
    contents = run.theta.reshape(books.shape)
    for worker in set(range(len(books.steps))) - dead:
        there = np.isin(range(books.shape[2]), books.there(worker))
        assert not contents[:, worker, ~there].any()
        if mode not in ("drop", "sync with backups"):
            assert (contents[:, worker, there] > 0).all(), f"lost: {worker}"
    if mode in (*ROUNDS, "allreduce"):
        rounds = contents.sum(axis=1)
        assert (np.isclose(rounds, 0, atol=1e-5) | np.isclose(rounds, 1, atol=1e-5)).all()
    for shard, server in enumerate(run.servers):
        # Whatever an update is the mean of, its weights add up to 1.
        updates = server.shard.version
        assert contents[shard].sum() <= updates + 1e-3
        if mode in ("async", "drop", "ssp", "softsync"):
            np.testing.assert_allclose(contents[shard].sum(), updates, rtol=1e-5)
