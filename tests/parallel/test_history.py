"""Runs over MPI with a history: what it says is what the run's summary says, in every mode."""

import json
import os
import socket
from dataclasses import replace

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.errors import ConfigError
from psrt.history import Kind, read_history
from psrt.history.check.run import check_run

BASE = {"hidden": (16,), "batch_size": 8, "steps": 6, "lr": 0.05, "timeout_s": 20, "record": True}


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


MODES = {
    "sync": ({"mode": "sync", "servers": 2}, 3),
    "sync, backup": ({"mode": "sync", "backup": 1, "servers": 2}, 4),
    "async": ({"mode": "async"}, 2),
    "ssp": ({"mode": "ssp", "staleness": 1, "servers": 2}, 3),
    "ssp, 3 shards": ({"mode": "ssp", "staleness": 1, "shards_per_server": 3}, 2),
    "softsync": ({"mode": "softsync", "softsync": 1}, 3),
    "local-sgd": ({"mode": "local-sgd", "local_steps": 4}, 1),
    "local-sgd, late": (
        {"mode": "local-sgd", "local_steps": 4, "fragments": 2, "sync_delay": 2},
        1,
    ),
    "local-sgd, eager": ({"mode": "local-sgd", "local_steps": 2, "eager": True}, 1),
    "local-sgd, servers": ({"mode": "local-sgd", "local_steps": 4, "servers": 1}, 2),
    "easgd": ({"mode": "easgd", "local_steps": 4, "servers": 2}, 3),
    "allreduce": ({"mode": "allreduce"}, 1),
    "allreduce, ring": ({"mode": "allreduce", "allreduce": "ring"}, 2),
    "gossip": ({"mode": "gossip"}, 2),
    "gossip, adapts first": ({"mode": "gossip", "order": "adapt-then-combine"}, 2),
    "gossip, by host": ({"mode": "gossip", "by_host": True}, 2),
    "gossip, in pairs": ({"mode": "gossip", "topology": "star", "asynchronous": True}, 2),
    "gossip, codec": ({"mode": "gossip", "codec": "top-k", "codec_everywhere": True}, 2),
    "gossip, push-sum": ({"mode": "gossip", "topology": "exponential", "push_sum": True}, 2),
}
#: Events that say how long a worker waited.
WAITED = (Kind.READ, Kind.REDUCED, Kind.OFFER, Kind.MIXED, Kind.LEAVE)


def modes():
    return [
        pytest.param(flags, marks=pytest.mark.mpi(min_size=fewest), id=name)
        for name, (flags, fewest) in MODES.items()
    ]


@pytest.mark.parametrize("flags", modes())
def test_the_history_says_what_the_summary_says(comm, shared_folder, flags):
    config = TrainConfig(**(BASE | flags), out=str(shared_folder / "run"))
    run = psrt.run(config, comm=comm)
    if run is None:
        return
    outcome = check_run(shared_folder / "run")
    assert outcome.ok, outcome.lines()
    history, summary = read_history(shared_folder / "run"), run.summary
    header = history.header
    assert (header.mode, header.n) == (summary.mode, run.theta.size)
    assert (len(header.workers), len(header.server_ranks)) == (summary.workers, summary.servers)
    assert header.algorithm == summary.allreduce
    applied = [
        shard[(shard["kind"] == Kind.APPLY) & (shard["worker"] >= 0)] for shard in history.shards
    ]
    if flags.get("asynchronous"):
        applied += [events[events["kind"] == Kind.TAKE] for events in history.workers]
    taus = np.concatenate([events["tau"] for events in applied]) if applied else np.zeros(0, int)
    assert np.bincount(taus).tolist() == list(summary.staleness.histogram)
    for worker, events in enumerate(history.workers):
        assert (events["worker"] == worker).all()
        assert (np.diff(events["time"]) >= 0).all()
        assert (events["kind"] == Kind.LEAVE).sum() == 1
    versions = history.finals["version"]
    assert versions.size == max(1, len(header.servers))
    assert versions.max() == summary.updates
    trained = np.concatenate(
        [w[np.isin(w["kind"], (Kind.PUSH, Kind.STEP))] for w in history.workers]
    )
    assert trained["samples"].max() >= 8
    assert (trained["seconds"] >= 0).all()
    if summary.waiting:
        waited = [w[np.isin(w["kind"], WAITED)] for w in history.workers]
        for worker, events in enumerate(waited):
            once = events[(events["shard"] <= 0) | (events["kind"] != Kind.READ)]
            # The same readings of the clock, so the load of the machine does not matter.
            assert once["seconds"].sum() == pytest.approx(summary.waiting[worker].seconds)


@pytest.fixture
def blind(comm, monkeypatch):
    """Let rank 1 not see the folder of the history."""
    if comm.rank == 1:
        monkeypatch.setattr("psrt.job.recording.FOLDER", "elsewhere")


@pytest.mark.mpi(min_size=2)
def test_the_history_of_a_rank_that_does_not_see_the_folder_comes_to_it(comm, shared_folder, blind):
    config = TrainConfig(**BASE, mode="async", out=str(shared_folder / "run"))
    said = []
    run = psrt.run(config, comm=comm, say=said.append)
    if run is not None:
        (line,) = (line for line in said if line.startswith("history: "))
        assert f"that of {socket.gethostname()} comes to {shared_folder}/run/history" in line
        names = sorted(os.listdir(shared_folder / "run" / "history"))
        assert names == ["header.json", *(f"rank-{rank:05d}.npy" for rank in range(comm.size))]
        assert check_run(shared_folder / "run").ok


@pytest.mark.mpi(min_size=2)
def test_without_gathering_it_is_named_on_every_rank(comm, shared_folder, request):
    config = TrainConfig(**BASE, mode="async", gather=False, out=str(shared_folder / "run"))
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


@pytest.mark.mpi(min_size=2)
def test_a_history_is_replaced_with_its_run(comm, shared_folder):
    for steps in (6, 3):
        config = TrainConfig(
            **(BASE | {"steps": steps}),
            mode="async",
            out=str(shared_folder / "run"),
            overwrite=True,
        )
        psrt.run(config, comm=comm)
    if comm.rank == 0:
        assert json.loads((shared_folder / "run" / "summary.json").read_text())["steps"] == 3
        assert max(w["clock"].max() for w in read_history(shared_folder / "run").workers) == 3
        names = sorted(os.listdir(shared_folder / "run" / "history"))
        assert names == ["header.json", *(f"rank-{rank:05d}.npy" for rank in range(comm.size))]
