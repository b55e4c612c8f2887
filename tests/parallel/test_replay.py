"""Recorded runs repeated over MPI and in virtual time: the same order of events, the same bits."""

import numpy as np
import pytest

import psrt
from psrt import ConfigError, TrainConfig
from psrt.errors import ReplayError
from psrt.history import Kind, read_history
from psrt.history.replay import Sequencer
from psrt.job.recorded import recorded_config
from psrt.job.scenario import Scenario, run_in_virtual_time

BASE = {"hidden": (16,), "batch_size": 8, "steps": 12, "lr": 0.05, "timeout_s": 20}
#: The first worker is slow where a run is recorded, the others where it is repeated.
SLOW_S = 0.003

#: On one host, too.
CODED = {"codec_everywhere": True}

#: Flags of the mode, and the fewest ranks.
MODES = {
    "sync, 2 servers": ({"mode": "sync", "servers": 2, "optimizer": "momentum"}, 3),
    "sync, 1 backup": ({"mode": "sync", "backup": 1}, 3),
    "sync, 1 backup, 2 servers": ({"mode": "sync", "backup": 1, "servers": 2}, 4),
    "async": ({"mode": "async"}, 2),
    "async, 2 servers": ({"mode": "async", "servers": 2}, 3),
    "async, 3 servers": ({"mode": "async", "servers": 3}, 4),
    "async, dealt out": ({"mode": "async", "partition": "dirichlet:0.3"}, 3),
    "async, 3 shards": ({"mode": "async", "shards_per_server": 3}, 2),
    "ssp, 2 servers of 2 shards": (
        {"mode": "ssp", "staleness": 2, "servers": 2, "shards_per_server": 2},
        3,
    ),
    "async, mean-inverse": ({"mode": "async", "staleness_rate": "mean-inverse"}, 3),
    "async, gap-aware": (
        {"mode": "async", "staleness_rate": "gap-aware", "optimizer": "momentum", "lr": 0.01},
        3,
    ),
    "async, delay-compensated": (
        {"mode": "async", "staleness_rate": "delay-compensated", "dc_adaptive": True},
        3,
    ),
    "async, drop": ({"mode": "async", "staleness_rate": "drop", "staleness_limit": 1}, 3),
    "ssp, 2 servers": ({"mode": "ssp", "staleness": 2, "servers": 2, "optimizer": "adam"}, 3),
    "softsync": ({"mode": "softsync", "softsync": 1}, 3),
    "softsync, 2, inverse, clipped": (
        {"mode": "softsync", "softsync": 2, "staleness_rate": "inverse", "clip_norm": 0.5},
        3,
    ),
    "async, sign": ({"mode": "async", **CODED, "codec": "sign"}, 2),
    "sync, 1 backup, top-k": ({"mode": "sync", "backup": 1, **CODED, "codec": "top-k"}, 3),
    "ssp, 2 servers of 2 shards, qsgd, apart": (
        {"mode": "ssp", "servers": 2, "shards_per_server": 2, **CODED, "codec": "qsgd"}
        | {"shared_memory": False},
        3,
    ),
    "async, sign both ways, 2 shards": (
        {"mode": "async", "shards_per_server": 2, **CODED, "codec": "sign", "codec_reply": "sign"},
        2,
    ),
    "async, top-k both ways, apart": (
        {"mode": "async", "shared_memory": False, **CODED, "codec": "top-k"}
        | {"codec_reply": "top-k"},
        2,
    ),
    "softsync, low-rank, clipped, apart": (
        {"mode": "softsync", **CODED, "codec": "low-rank", "shared_memory": False}
        | {"clip_norm": 0.5},
        2,
    ),
    "local-sgd": ({"mode": "local-sgd", "local_steps": 3}, 2),
    "local-sgd, outer, ring": (
        {"mode": "local-sgd", "local_steps": 3, "outer_lr": 0.7, "allreduce": "ring"},
        2,
    ),
    "local-sgd, fragments, late": (
        {"mode": "local-sgd", "local_steps": 3, "fragments": 2, "sync_delay": 2, "outer_lr": 0.7},
        2,
    ),
    "local-sgd, eager, halving": (
        {"mode": "local-sgd", "local_steps": 3, "eager": True, "allreduce": "halving-doubling"},
        2,
    ),
    "local-sgd, servers, post-local": (
        {"mode": "local-sgd", "local_steps": 3, "post_local_epoch": 1, "servers": 2}
        | {"epochs": 2, "steps": None, "batch_size": 200},
        3,
    ),
    "easgd, asynchronous": (
        {"mode": "easgd", "local_steps": 3, "asynchronous": True, "optimizer": "nesterov"},
        3,
    ),
    "easgd, asynchronous, int8, apart": (
        {"mode": "easgd", "local_steps": 3, "asynchronous": True, "shared_memory": False}
        | {"codec": "int8", "codec_everywhere": True},
        3,
    ),
    "allreduce": ({"mode": "allreduce", "schedule": "cosine", "steps": None, "epochs": 0.1}, 2),
    "allreduce, ring in buckets": (
        {"mode": "allreduce", "allreduce": "ring", "bucket_bytes": 64, "optimizer": "adam"},
        2,
    ),
    "allreduce, halving": ({"mode": "allreduce", "allreduce": "halving-doubling"}, 2),
    "allreduce, sign in buckets": (
        {"mode": "allreduce", "codec": "sign", "codec_everywhere": True, "bucket_bytes": 64},
        2,
    ),
    "allreduce, top-k, without shared memory": (
        {"mode": "allreduce", "codec": "top-k", "codec_everywhere": True, "shared_memory": False},
        2,
    ),
    "allreduce, node+tree": ({"mode": "allreduce", "allreduce": "node+tree"}, 2),
    "gossip": ({"mode": "gossip"}, 2),
    "gossip, asynchronous": ({"mode": "gossip", "topology": "star", "asynchronous": True}, 2),
    "gossip, asynchronous, apart": (
        {"mode": "gossip", "topology": "star", "asynchronous": True, "shared_memory": False},
        2,
    ),
    "gossip, push-sum, apart": (
        {"mode": "gossip", "topology": "exponential", "push_sum": True, "shared_memory": False},
        2,
    ),
}
RACES = ["async, 2 servers", "softsync", "async, mean-inverse"]


def modes(names=tuple(MODES)):
    return [
        pytest.param(MODES[name][0], marks=pytest.mark.mpi(min_size=MODES[name][1]), id=name)
        for name in names
    ]


@pytest.fixture(autouse=True)
def on_few_ranks(comm):
    if comm.size > 5:
        pytest.skip("seen on fewer ranks")


@pytest.fixture
def record(comm, shared_folder):
    """Return what records a run whose first worker is slow: its folder, and the run at rank 0."""

    def recorded(flags, **more):
        out = shared_folder / "recorded"
        config = TrainConfig(
            **(BASE | flags | more), out=str(out), record=True, inject=((0, "delay", (SLOW_S,)),)
        )
        return out, psrt.run(config, comm=comm)

    return recorded


def others_slow(out):
    """Return injections by which every worker but the first is slow."""
    workers = len(read_history(out).header.workers)
    return tuple((worker, "delay", (SLOW_S,)) for worker in range(1, workers))


def order(run, shard):
    """Return all that a shard did, but for when."""
    events = read_history(run).shards[shard]
    return [
        event[["kind", "flag", "worker", "clock", "version", "tau", "samples", "rate"]].tolist()
        for event in events
    ]


@pytest.mark.parametrize("flags", modes())
def test_a_replay_is_the_run_over_mpi_and_in_virtual_time(comm, shared_folder, record, flags):
    recorded, run = record(flags)
    again = shared_folder / "again"
    config = recorded_config(recorded, out=str(again), record=True, inject=others_slow(recorded))
    replayed = psrt.run(config, comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(replayed.theta, run.theta)
        for shard in range(len(read_history(recorded).shards)):
            assert order(again, shard) == order(recorded, shard)
        assert replayed.summary.staleness.by_worker == run.summary.staleness.by_worker
        config = recorded_config(recorded)
        simulated = psrt.simulate(config, workers=run.summary.workers, seed=7)
        np.testing.assert_array_equal(simulated.theta, run.theta)


@pytest.mark.parametrize("flags", modes(["async, 2 servers", "sync, 1 backup", "allreduce"]))
def test_a_simulated_run_is_repeated_over_mpi(comm, shared_folder, flags):
    out = shared_folder / "simulated"
    config = TrainConfig(**(BASE | flags), out=str(out), record=True)
    workers = comm.size - (flags.get("servers", 0 if flags["mode"] == "allreduce" else 1))
    if comm.rank == 0:
        simulated = run_in_virtual_time(config, Scenario(workers=workers))
    comm.Barrier()
    replayed = psrt.run(recorded_config(out), comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(replayed.theta, simulated.theta)


@pytest.mark.parametrize("flags", modes(["async, 2 servers", "softsync"]))
@pytest.mark.parametrize(
    "elsewhere",
    [
        {"placement": "last"},
        {"shared_memory": False},
        {"placement": "spread", "inject": ("*:jitter:0.002",)},
    ],
    ids=["last", "no shared memory", "jitter"],
)
def test_where_ranks_are_does_not_matter(comm, record, enough_on_few, flags, elsewhere):
    enough_on_few()
    recorded, run = record(flags)
    replayed = psrt.run(recorded_config(recorded, **elsewhere), comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(replayed.theta, run.theta)


def fewest_workers(comm, flags, workers):
    if comm.size - flags.get("servers", 1) < workers:
        pytest.skip("nobody to overtake")


@pytest.mark.parametrize("flags", modes(RACES))
def test_without_a_replay_other_delays_are_another_run(
    comm, shared_folder, record, enough_on_few, flags
):
    enough_on_few()
    fewest_workers(comm, flags, 2)
    recorded, run = record(flags)
    other = shared_folder / "other"
    config = TrainConfig(
        **(BASE | flags), out=str(other), record=True, inject=others_slow(recorded)
    )
    another = psrt.run(config, comm=comm)
    if comm.rank == 0:
        assert order(other, 0) != order(recorded, 0)
        assert (another.theta != run.theta).any()


class InOrderOfArrival(Sequencer):
    """A sequencer that does not hold what comes early."""

    async def receive(self):
        return await self._receive()

    def finish(self):
        pass


@pytest.mark.parametrize("flags", modes(RACES))
def test_what_was_not_held_back_is_found_out(comm, record, monkeypatch, enough_on_few, flags):
    enough_on_few()
    fewest_workers(comm, flags, 2)
    recorded, _ = record(flags)
    monkeypatch.setattr("psrt.job.session.Sequencer", InOrderOfArrival)
    with pytest.raises(ReplayError, match="came to other parameters"):
        psrt.run(recorded_config(recorded, inject=others_slow(recorded)), comm=comm)


@pytest.mark.mpi(min_size=3)
def test_what_came_early_is_held(comm, shared_folder, record):
    """Show that a replay waits: in order of time, events are not those of who was fast."""
    fewest_workers(comm, {}, 2)
    recorded, _ = record({"mode": "async"})
    again = shared_folder / "again"
    inject = others_slow(recorded)
    psrt.run(recorded_config(recorded, out=str(again), record=True, inject=inject), comm=comm)
    if comm.rank == 0:
        history = read_history(again)
        pushes = np.concatenate([w[w["kind"] == Kind.PUSH] for w in history.workers])
        sent = pushes[np.argsort(pushes["time"], kind="stable")][["worker", "clock"]].tolist()
        takes = history.shards[0][history.shards[0]["kind"] == Kind.RECEIVE]
        assert sent != takes[["worker", "clock"]].tolist()


@pytest.mark.mpi(min_size=2)
def test_a_run_that_does_not_fit_is_refused_on_all_ranks(comm, record):
    recorded, _ = record({"mode": "async"})
    changes = {"mode": "async", "seed": 3, "batch_size": 4, "replay": str(recorded)}
    config = TrainConfig(**(BASE | changes))
    with pytest.raises(ConfigError, match="batch-size 4 instead of 8; seed 3 instead of 0"):
        psrt.run(config, comm=comm)
