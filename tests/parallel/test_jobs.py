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
from psrt.core.errors import ConfigError, ReplayError
from psrt.history import read_history
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
    "gossip": ({"mode": "gossip:topology=ring", "hidden": (600,)}, 2),
    "push-sum": ({"mode": "gossip:topology=exponential,variant=push-sum"}, 2),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("flags", schemes(ON_HOSTS))
def test_hosts_do_not_change_the_result_nor_what_is_sent(comm, on_hosts, flags):
    config = config_of(**flags)
    run = psrt.run(config, comm=comm)
    if comm.rank:
        assert run is None
        return
    workers = comm.size - flags.get("servers", 0)
    virtual = psrt.simulate(config, workers=workers)
    # A schedule goes from host to host, and adds in another order where theirs is not the ranks'.
    atol = 1e-6 if "allreduce" in flags else 0
    np.testing.assert_allclose(run.theta, virtual.theta, rtol=0, atol=atol)
    for name in ("bytes_sent", "bytes_received"):
        assert getattr(run.summary, name) == getattr(virtual.summary, name)


@pytest.mark.mpi(min_size=2)
@pytest.mark.one_in(4)
@pytest.mark.parametrize("part", [0, 1])
def test_every_all_reduce_trains_alike_on_every_layout(comm, on_hosts, monkeypatch, part):
    """As a whole and in buckets, of one θ on a host and of one each.

    θ is compared by the job itself after every update, too.
    """
    if comm.size >= 5 and part:
        pytest.skip("none knows how many there are")
    base = {"optimizer": "momentum", "check_every": 1, "steps": 4}
    expected = in_virtual_time(comm, config_of(**base, mode="allreduce", allreduce="ring"))
    for i, name in enumerate([*ALLREDUCE_NAMES][(comm.size + part) % 2 :: 2]):
        cut = ["overlap=false", "bucket-bytes=1", "bucket-bytes=4000", "overlap=true"][i % 4]
        one_theta_from = (1 << 40) * (i // 4 % 2)
        monkeypatch.setattr("psrt.mpi.collectives.reductions.ONE_THETA_BYTES", one_theta_from)
        run = psrt.run(config_of(**base, mode=f"allreduce:{cut}", allreduce=name), comm=comm)
        if comm.rank == 0:
            np.testing.assert_allclose(run.theta, expected, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.mpi(min_size=3)
def test_the_launcher_may_say_who_is_who(comm):
    role = "server" if comm.rank >= comm.size - 2 else "worker"
    run = run_over_mpi(comm, config_of(mode="sync"), role=role)
    if comm.rank == 0:
        assert (run.summary.servers, run.summary.workers) == (2, comm.size - 2)
        expected = in_virtual_time(comm, config_of(mode="sync", servers=2))
        np.testing.assert_array_equal(run.theta, expected)


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
        assert f"events of {socket.gethostname()} are copied to {out}/history" in line
        names = sorted(os.listdir(out / "history"))
        assert names == ["header.json", *(f"rank-{rank:05d}.npy" for rank in range(comm.size))]
        assert json.loads((out / "summary.json").read_text())["steps"] == 3
        assert check_run(out).ok


@pytest.mark.mpi(min_size=2)
def test_without_gathering_it_is_named_on_every_rank(comm, shared_folder, request):
    out = shared_folder / "run"
    config = config_of(mode="async", record=True, gather=False, out=str(out))
    psrt.run(config, comm=comm)
    comm.Barrier()
    earlier = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    request.getfixturevalue("blind")
    message = r"--no-gather needs an --out that every rank can write to: .* \(rank 1\)"
    for again in (replace(config, overwrite=True), replace(config, out=str(out / "new"))):
        with pytest.raises(ConfigError, match=message):
            psrt.run(again, comm=comm)
        comm.Barrier()
    # Nothing is lost, and nothing in the way of the next run.
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == earlier
    assert not (out / "new").exists()


# --- replays ------------------------------------------------------------------------------------

#: The first worker is slow where a run is recorded, the others where it is repeated.
SLOW_S = 0.003
CODED = {"mode": "async", "codec_everywhere": True}
#: Races, and codecs of replies, which no job of the laws has. Flags, and the fewest ranks.
REPEATED = {
    "async, 2 servers": ({"mode": "async", "servers": 2}, 3),
    "sign both ways": (
        {**CODED, "shards_per_server": 2, "codec": "sign", "codec_reply": "sign"}, 2,
    ),
    "top-k both ways": (
        {**CODED, "codec": "top-k", "codec_reply": "top-k", "shared_memory": False}, 2,
    ),
}  # fmt: skip


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


@pytest.mark.parametrize("flags", schemes(REPEATED))
def test_a_replay_has_the_order_and_the_bits_of_the_run(comm, shared_folder, record, flags):
    """Wherever its ranks are, and whoever is slow."""
    recorded, run = record(flags)
    again = shared_folder / "again"
    knobs = {"record": True, "inject": others_slow(recorded), "placement": "last"}
    replayed = psrt.run(psrt.recorded_config(recorded, out=str(again), **knobs), comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(replayed.theta, run.theta)
        for shard in range(len(read_history(recorded).shards)):
            assert order(again, shard) == order(recorded, shard)
        assert replayed.summary.staleness.by_worker == run.summary.staleness.by_worker
        config = psrt.recorded_config(recorded)
        simulated = psrt.simulate(config, workers=run.summary.workers, seed=7)
        np.testing.assert_array_equal(simulated.theta, run.theta)


@pytest.mark.mpi(min_size=3)
def test_a_simulated_run_is_repeated_over_mpi(comm, shared_folder):
    out = shared_folder / "simulated"
    config = config_of(mode="async", servers=2, out=str(out), record=True)
    if comm.rank == 0:
        simulated = run_in_virtual_time(config, Scenario(workers=comm.size - 2))
    comm.Barrier()
    replayed = psrt.run(psrt.recorded_config(out), comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(replayed.theta, simulated.theta)


class InOrderOfArrival(Sequencer):
    """A sequencer that does not hold what comes early."""

    async def receive(self):
        return await self._receive()

    def finish(self):
        pass


@pytest.mark.mpi(min_size=3)
def test_what_was_not_held_back_is_found_out(comm, record, monkeypatch):
    recorded, _ = record({"mode": "async"})
    monkeypatch.setattr("psrt.job.session.Sequencer", InOrderOfArrival)
    with pytest.raises(ReplayError, match="ended with other parameters"):
        psrt.run(psrt.recorded_config(recorded, inject=others_slow(recorded)), comm=comm)
