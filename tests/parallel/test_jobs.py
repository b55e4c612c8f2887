"""Whole jobs over MPI: wherever ranks are and whoever says who is who, and what rank 0 writes.

That each mode comes to what it comes to in virtual time, and a replay to the bits of its run, is a
law: ``test_laws.py``.
"""

import json
import os
import socket
from dataclasses import replace

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.config import resolve
from psrt.config.names import ALLREDUCE_NAMES
from psrt.errors import ConfigError, ReplayError
from psrt.history import Kind, read_history
from psrt.history.check.run import check_run
from psrt.history.replay import Sequencer
from psrt.job.mpi import run_over_mpi
from psrt.job.scenario import Scenario, run_in_virtual_time

BASE = {"hidden": (16,), "batch_size": 8, "steps": 8, "lr": 0.05, "timeout_s": 20}


def config_of(**flags):
    return TrainConfig(**(BASE | flags))


def schemes(table):
    return [
        pytest.param(flags, marks=pytest.mark.mpi(min_size=fewest), id=name)
        for name, (flags, fewest) in table.items()
    ]


def in_virtual_time(comm, config):
    servers = resolve(config, ranks=comm.size).servers or 0
    return psrt.simulate(config, workers=comm.size - servers).theta


#: Of as many parameters as take several messages between hosts. The flags, and the fewest ranks.
ON_HOSTS = {
    "sync": ({"mode": "sync", "servers": 2, "shards_per_server": 2, "hidden": (600,)}, 3),
    "local-sgd": ({"mode": "local-sgd", "servers": 1}, 2),
    "allreduce": ({"mode": "allreduce", "allreduce": "ring"}, 2),
    "gossip": ({"mode": "gossip", "topology": "ring", "hidden": (600,)}, 2),
    "push-sum": ({"mode": "gossip", "topology": "exponential", "push_sum": True}, 2),
}


@pytest.mark.parametrize("flags", schemes(ON_HOSTS))
def test_hosts_do_not_change_the_result_nor_what_is_sent(comm, on_hosts, flags):
    config = config_of(**flags)
    run = psrt.run(config, comm=comm)
    if comm.rank:
        assert run is None
        return
    workers = comm.size - flags.get("servers", 0)
    virtual = psrt.simulate(config, workers=workers)
    np.testing.assert_array_equal(run.theta, virtual.theta)
    for name in ("bytes_sent", "bytes_received"):
        assert getattr(run.summary, name) == getattr(virtual.summary, name)


@pytest.mark.mpi(min_size=2)
def test_every_all_reduce_trains_alike_on_every_layout(comm, on_hosts, monkeypatch):
    """As a whole and in buckets, of one θ on a host and of one each.

    θ is compared by the job itself after every update, too.
    """
    base = {"mode": "allreduce", "optimizer": "momentum", "check_every": 1, "steps": 4}
    expected = in_virtual_time(comm, config_of(**base, allreduce="ring"))
    # On many ranks a half of them is enough: none knows how many there are.
    for i, name in enumerate(ALLREDUCE_NAMES[comm.size % 2 :: 1 if comm.size < 5 else 2]):
        cut = [{"overlap": False}, {"bucket_bytes": 1}, {"bucket_bytes": 4000}, {}][i % 4]
        one_theta_from = (1 << 40) * (i // 4 % 2)
        monkeypatch.setattr("psrt.mpi.collectives.reductions.ONE_THETA_BYTES", one_theta_from)
        run = psrt.run(config_of(**base, **cut, allreduce=name), comm=comm)
        if comm.rank == 0:
            np.testing.assert_allclose(run.theta, expected, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("servers_first", [True, False])
def test_the_launcher_may_say_who_is_who(comm, servers_first):
    place = comm.rank if servers_first else comm.size - 1 - comm.rank
    run = run_over_mpi(comm, config_of(mode="sync"), role="server" if place < 2 else "worker")
    if comm.rank == 0:
        assert (run.summary.servers, run.summary.workers) == (2, comm.size - 2)
        expected = in_virtual_time(comm, config_of(mode="sync", servers=2))
        np.testing.assert_array_equal(run.theta, expected)


@pytest.mark.mpi(min_size=4)
def test_half_of_the_ranks_are_a_job_of_their_own(comm):
    """Two jobs at once, of different modes, share nothing."""
    half = comm.Split(comm.rank % 2)
    flags = {"mode": "sync"} if comm.rank % 2 else {"mode": "allreduce", "allreduce": "ring"}
    run = psrt.run(config_of(**flags), comm=half)
    if half.rank == 0:
        np.testing.assert_array_equal(run.theta, in_virtual_time(half, config_of(**flags)))
    half.Free()


@pytest.mark.mpi(min_size=2)
def test_what_is_said_and_written_comes_from_rank_0(comm, shared_folder):
    out, said = shared_folder / "run", []
    psrt.run(config_of(mode="sync", out=str(out), steps=20), comm=comm, say=said.append)
    comm.Barrier()
    names = "config.toml metrics.jsonl model.safetensors progress.json roster.json summary.json"
    assert {path.name for path in out.iterdir()} == {*names.split()}
    roster = json.loads((out / "roster.json").read_text())
    assert [member["rank"] for member in roster] == list(range(comm.size))
    assert roster[comm.rank]["pid"] == os.getpid()
    assert roster[0]["role"] == "server 0"
    assert json.loads((out / "progress.json").read_text())["clock"] > 0
    assert bool(said) == (comm.rank == 0)


# --- histories ----------------------------------------------------------------------------------


@pytest.fixture
def blind(comm, monkeypatch):
    """Let rank 1 not see the folder of the history."""
    if comm.rank == 1:
        monkeypatch.setattr("psrt.job.recording.FOLDER", "elsewhere")


@pytest.mark.mpi(min_size=2)
def test_the_history_of_a_rank_that_does_not_see_the_folder_comes_to_it(comm, shared_folder, blind):
    """And replaces that of an earlier run, which was longer."""
    out, said = shared_folder / "run", []
    for steps in (6, 3):
        config = config_of(mode="async", record=True, steps=steps, out=str(out), overwrite=True)
        psrt.run(config, comm=comm, say=said.append)
    if comm.rank == 0:
        line = next(line for line in said if line.startswith("history: "))
        assert f"that of {socket.gethostname()} comes to {out}/history" in line
        names = sorted(os.listdir(out / "history"))
        assert names == ["header.json", *(f"rank-{rank:05d}.npy" for rank in range(comm.size))]
        assert json.loads((out / "summary.json").read_text())["steps"] == 3
        assert check_run(out).ok


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.mpi(min_size=2)
def test_without_gathering_it_is_named_on_every_rank(comm, shared_folder, request):
    config = config_of(mode="async", record=True, gather=False, out=str(shared_folder / "run"))
    psrt.run(replace(config, out=str(shared_folder / "earlier")), comm=comm)
    earlier = contents(shared_folder / "earlier")
    comm.Barrier()
    request.getfixturevalue("blind")
    message = r"--no-gather needs an --out that every rank can write to: .* \(rank 1\)"
    with pytest.raises(ConfigError, match=message):
        psrt.run(replace(config, out=str(shared_folder / "earlier"), overwrite=True), comm=comm)
    comm.Barrier()
    assert contents(shared_folder / "earlier") == earlier
    with pytest.raises(ConfigError, match=message):
        psrt.run(config, comm=comm)
    comm.Barrier()
    assert not (shared_folder / "run").exists()  # nothing is in the way of the next run


# --- replays ------------------------------------------------------------------------------------

#: The first worker is slow where a run is recorded, the others where it is repeated.
SLOW_S = 0.003
CODED = {"mode": "async", "codec_everywhere": True}
#: Races, and codecs of replies, which no job of the laws has. Flags, and the fewest ranks.
REPEATED = {
    "async, 2 servers": ({"mode": "async", "servers": 2}, 3),
    "softsync, clipped": ({"mode": "softsync", "softsync": 1, "clip_norm": 0.5}, 3),
    "sign both ways": (
        {**CODED, "shards_per_server": 2, "codec": "sign", "codec_reply": "sign"}, 2,
    ),
    "top-k both ways": (
        {**CODED, "codec": "top-k", "codec_reply": "top-k", "shared_memory": False}, 2,
    ),
}  # fmt: skip
RACES = ("async, 2 servers", "softsync, clipped")


def modes(*names):
    return schemes({name: REPEATED[name] for name in names or REPEATED})


@pytest.fixture
def record(comm, shared_folder):
    """Return what records a run whose first worker is slow: its folder, and the run at rank 0."""

    def recorded(flags):
        out, slow = shared_folder / "recorded", ((0, "delay", (SLOW_S,)),)
        config = config_of(**flags, out=str(out), record=True, inject=slow)
        return out, psrt.run(config, comm=comm)

    return recorded


def others_slow(out):
    """Return injections by which every worker but the first is slow."""
    workers = len(read_history(out).header.workers)
    return tuple((worker, "delay", (SLOW_S,)) for worker in range(1, workers))


def order(run, shard):
    """Return all that a shard did, but for when."""
    events = read_history(run).shards[shard]
    names = ["kind", "flag", "worker", "clock", "version", "tau", "samples", "rate"]
    return events[names].tolist()


@pytest.mark.parametrize("flags", modes())
def test_a_replay_has_the_order_and_the_bits_of_the_run(comm, shared_folder, record, flags):
    recorded, run = record(flags)
    again = shared_folder / "again"
    knobs = {"record": True, "inject": others_slow(recorded)}
    replayed = psrt.run(psrt.recorded_config(recorded, out=str(again), **knobs), comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(replayed.theta, run.theta)
        for shard in range(len(read_history(recorded).shards)):
            assert order(again, shard) == order(recorded, shard)
        assert replayed.summary.staleness.by_worker == run.summary.staleness.by_worker
        simulated = psrt.simulate(
            psrt.recorded_config(recorded), workers=run.summary.workers, seed=7
        )
        np.testing.assert_array_equal(simulated.theta, run.theta)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("flags", [{"mode": "async", "servers": 2}, {"mode": "allreduce"}], ids=str)
def test_a_simulated_run_is_repeated_over_mpi(comm, shared_folder, flags):
    out = shared_folder / "simulated"
    config = config_of(**flags, out=str(out), record=True)
    if comm.rank == 0:
        scenario = Scenario(workers=comm.size - flags.get("servers", 0))
        simulated = run_in_virtual_time(config, scenario)
    comm.Barrier()
    replayed = psrt.run(psrt.recorded_config(out), comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(replayed.theta, simulated.theta)


@pytest.mark.parametrize("flags", modes(*RACES[:1]))
@pytest.mark.parametrize(
    "elsewhere", [{"placement": "last"}, {"placement": "spread", "shared_memory": False}], ids=str
)
def test_where_ranks_are_does_not_matter(comm, record, flags, elsewhere):
    recorded, run = record(flags)
    replayed = psrt.run(psrt.recorded_config(recorded, **elsewhere), comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(replayed.theta, run.theta)


class InOrderOfArrival(Sequencer):
    """A sequencer that does not hold what comes early."""

    async def receive(self):
        return await self._receive()

    def finish(self):
        pass


@pytest.mark.parametrize("flags", modes(*RACES))
def test_what_was_not_held_back_is_found_out(comm, record, monkeypatch, flags):
    if comm.size - flags.get("servers", 1) < 2:
        pytest.skip("nobody to overtake")
    recorded, _ = record(flags)
    monkeypatch.setattr("psrt.job.session.Sequencer", InOrderOfArrival)
    with pytest.raises(ReplayError, match="came to other parameters"):
        psrt.run(psrt.recorded_config(recorded, inject=others_slow(recorded)), comm=comm)


@pytest.mark.mpi(min_size=3)
def test_what_came_early_is_held(comm, shared_folder, record):
    """Show that a replay waits: in order of time, events are not those of who was fast."""
    recorded, _ = record({"mode": "async"})
    again, inject = shared_folder / "again", others_slow(recorded)
    config = psrt.recorded_config(recorded, out=str(again), record=True, inject=inject)
    psrt.run(config, comm=comm)
    if comm.rank == 0:
        history = read_history(again)
        pushes = np.concatenate([w[w["kind"] == Kind.PUSH] for w in history.workers])
        sent = pushes[np.argsort(pushes["time"], kind="stable")][["worker", "clock"]].tolist()
        takes = history.shards[0][history.shards[0]["kind"] == Kind.RECEIVE]
        assert sent != takes[["worker", "clock"]].tolist()


@pytest.mark.mpi(min_size=2)
def test_a_run_that_does_not_fit_is_refused_on_all_ranks(comm, record):
    recorded, _ = record({"mode": "async"})
    config = config_of(mode="async", seed=3, batch_size=4, replay=str(recorded))
    with pytest.raises(ConfigError, match="batch-size 4 instead of 8; seed 3 instead of 0"):
        psrt.run(config, comm=comm)
