"""Whole jobs over MPI: every mode ends, counts right, and computes what it must to the bit."""

import json
import os

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.config import resolve
from psrt.config.names import ALLREDUCE_NAMES
from psrt.job.build import role_map_for, server_role, theta_memory, worker_role
from psrt.job.mpi import run_over_mpi
from psrt.job.problems import supervised_problem
from psrt.job.roles import assign_roles
from psrt.mpi.port import MpiPort
from psrt.topology import topology_of
from psrt.topology.part import Part
from psrt.transport import drive
from psrt.transport.frames import FRAME_BYTES

STEPS = 8
BASE = {"hidden": (16,), "batch_size": 8, "steps": STEPS, "lr": 0.05, "timeout_s": 20}

#: Modes whose result does not depend on who is fast. The mode's flags, and the fewest ranks.
ROUNDS = {
    "sync": ({"mode": "sync"}, 2),
    "sync, 2 servers": ({"mode": "sync", "servers": 2}, 3),
    "sync, 3 shards": ({"mode": "sync", "shards_per_server": 3, "optimizer": "adam"}, 2),
    "sync, 2 servers of 4 shards": ({"mode": "sync", "servers": 2, "shards_per_server": 4}, 3),
    "sync, momentum, clipped": (
        {"mode": "sync", "servers": 2, "optimizer": "momentum", "clip_norm": 0.5},
        3,
    ),
    "local-sgd, ring": ({"mode": "local-sgd", "local_steps": 3, "allreduce": "ring"}, 2),
    "local-sgd, butterfly": ({"mode": "local-sgd", "local_steps": 3, "allreduce": "butterfly"}, 2),
    "local-sgd, fragments, late": (
        {"mode": "local-sgd", "local_steps": 3, "fragments": 2, "sync_delay": 2, "outer_lr": 0.7}
        | {"allreduce": "ring"},
        2,
    ),
    "local-sgd, eager, fragments": (
        {"mode": "local-sgd", "local_steps": 3, "fragments": 2, "eager": True}
        | {"allreduce": "butterfly"},
        2,
    ),
    "local-sgd, 1 server": ({"mode": "local-sgd", "local_steps": 3, "servers": 1}, 2),
    "local-sgd, 2 shards": (
        {"mode": "local-sgd", "local_steps": 3, "servers": 1, "shards_per_server": 2},
        2,
    ),
    "local-sgd, 2 servers, outer": (
        {"mode": "local-sgd", "local_steps": 3, "servers": 2, "outer_lr": 0.7},
        3,
    ),
    "easgd, 2 servers": ({"mode": "easgd", "local_steps": 3, "servers": 2, "lr": 0.5}, 3),
    "allreduce, ring": ({"mode": "allreduce", "allreduce": "ring"}, 2),
    "allreduce, tree": ({"mode": "allreduce", "allreduce": "tree", "optimizer": "adam"}, 2),
    "allreduce, butterfly": ({"mode": "allreduce", "allreduce": "butterfly"}, 2),
    "gossip, ring": ({"mode": "gossip", "topology": "ring"}, 2),
    "gossip, one peer, adapts first": (
        {"mode": "gossip", "topology": "one-peer-exponential", "optimizer": "momentum"}
        | {"order": "adapt-then-combine"},
        2,
    ),
    "gossip, tracking": ({"mode": "gossip", "topology": "ring", "gradient_tracking": True}, 2),
    "gossip, push-sum": ({"mode": "gossip", "topology": "exponential", "push_sum": True}, 2),
}
#: Modes whose result does.
RACES = {
    "async": ({"mode": "async"}, 2),
    "async, 2 servers": ({"mode": "async", "servers": 2}, 3),
    "async, 3 shards": ({"mode": "async", "shards_per_server": 3}, 2),
    "ssp": ({"mode": "ssp", "staleness": 1, "servers": 2}, 3),
    "ssp, 2 servers of 2 shards": (
        {"mode": "ssp", "staleness": 1, "servers": 2, "shards_per_server": 2},
        3,
    ),
    "ssp, delay-compensated": (
        {
            "mode": "ssp",
            "staleness": 2,
            "staleness_rate": "delay-compensated",
            "optimizer": "momentum",
            "lr": 0.01,
        },
        2,
    ),
    "async, gap-aware": ({"mode": "async", "staleness_rate": "gap-aware"}, 2),
    "softsync": ({"mode": "softsync", "softsync": 1}, 2),
    "gossip, in pairs": ({"mode": "gossip", "topology": "star", "asynchronous": True}, 2),
    "softsync, 2": ({"mode": "softsync", "softsync": 2, "servers": 1}, 3),
}
WITH_BACKUP = {"sync, 1 backup": ({"mode": "sync", "backup": 1}, 3)}
#: The sum is exact, but in an order of its own.
OTHER_SUMS = {
    "allreduce": ({"mode": "allreduce"}, 2),
    "allreduce, mpi": ({"mode": "allreduce", "allreduce": "mpi"}, 2),
    "allreduce, node, as a whole": (
        {"mode": "allreduce", "allreduce": "node", "overlap": False},
        2,
    ),
    "allreduce, clipped": ({"mode": "allreduce", "clip_norm": 0.5, "optimizer": "adam"}, 2),
    "local-sgd": ({"mode": "local-sgd", "local_steps": 3}, 2),
    "local-sgd, outer": ({"mode": "local-sgd", "local_steps": 3, "outer_lr": 0.7}, 2),
    "local-sgd, late": ({"mode": "local-sgd", "local_steps": 3, "sync_delay": 3}, 2),
}


def schemes(*tables):
    return [
        pytest.param(flags, marks=pytest.mark.mpi(min_size=fewest), id=name)
        for table in tables
        for name, (flags, fewest) in table.items()
    ]


def config_of(flags, **more):
    return TrainConfig(**(BASE | flags | more))


def in_virtual_time(comm, config):
    servers = resolve(config, ranks=comm.size).servers or 0
    return psrt.simulate(config, workers=comm.size - servers).theta


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("flags", schemes(ROUNDS))
def test_the_result_is_that_of_virtual_time_to_the_bit(comm, flags, shared_memory):
    config = config_of(flags, shared_memory=shared_memory)
    run = psrt.run(config, comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(run.theta, in_virtual_time(comm, config))
    else:
        assert run is None


@pytest.mark.parametrize("flags", schemes(ROUNDS, RACES, OTHER_SUMS))
def test_every_mode_learns_and_every_step_counts(comm, real_hosts, flags):
    steps = 20  # less than an epoch of 8 workers: every batch is full
    config = config_of({"lr": 0.1} | flags, steps=steps, log_every=5)
    run = psrt.run(config, comm=comm)
    if comm.rank:
        return
    summary = run.summary
    servers = resolve(config, ranks=comm.size).servers or 0
    workers = comm.size - servers
    assert (summary.mode, summary.servers, summary.workers) == (flags["mode"], servers, workers)
    assert (summary.ranks, summary.hosts, summary.steps) == (comm.size, real_hosts, steps)
    assert summary.samples == run.records[-1].samples == steps * workers * config.batch_size
    assert summary.parameters == run.theta.size
    assert summary.dropped == 0
    assert_learned(config, run)
    shards = servers * flags.get("shards_per_server", 1)
    assert_pushes_counted(flags["mode"], summary, pushes=steps * workers, shards=shards)
    if flags.get("asynchronous"):
        assert_pairs_counted(summary)
    elif "topology" in flags:
        assert summary.bytes_sent == bytes_of_gossip(config, summary)


def assert_learned(config, run):
    problem = supervised_problem(config, workers=1)
    before = problem.evaluate(problem.initial())["loss"]
    assert run.summary.test_loss < 0.95 * before
    assert run.records[-1].loss < run.records[0].loss


def assert_pushes_counted(mode, summary, *, pushes, shards):
    assert summary.bytes_sent == summary.bytes_received > 0
    if mode in ("allreduce", "gossip") and not summary.staleness.by_worker:
        assert summary.updates == summary.steps
    if mode in ("sync", "async", "ssp", "softsync"):
        assert sum(summary.staleness.histogram) == shards * pushes
        traffic = pushes * (shards * FRAME_BYTES + 4 * summary.parameters)
        leaves = shards * summary.workers * FRAME_BYTES
        assert summary.bytes_sent == 2 * traffic + leaves  # the answers are as long as the pushes
    if mode == "sync":
        assert summary.updates == summary.steps
        assert summary.staleness.max == summary.skew_max == 0
    if mode in ("async", "ssp"):
        assert summary.updates == pushes


def assert_pairs_counted(summary):
    """Rank 0 of a star asks the others, one at a time, and all answer or have left."""
    asked, *answered = [sum(it.histogram.values()) for it in summary.staleness.by_worker]
    assert asked == sum(answered) == summary.updates == summary.staleness.gap.count / 2
    assert [it.max for it in summary.staleness.by_worker[1:]] == [0] * len(answered)
    leaves = 2 * len(answered)
    of_vectors = summary.bytes_sent - leaves * FRAME_BYTES
    vectors, rest = divmod(of_vectors, 4 * summary.parameters + FRAME_BYTES)
    assert not rest
    assert 2 * asked <= vectors <= 2 * asked + len(answered)


def bytes_of_gossip(config, summary):
    """Return what all workers send: each as many vectors a round as it has receivers."""
    topology = topology_of(config.topology, summary.workers, push_sum=bool(config.push_sum), seed=0)
    rounds, workers = topology.graphs, range(summary.workers)
    vectors = sum(
        len(them) for i in range(summary.steps) for them in rounds[i % len(rounds)].receivers
    )
    leaves = sum(len(Part(topology, worker).peers) for worker in workers)
    nbytes = 4 * (1 + bool(config.gradient_tracking)) * summary.parameters
    messages = vectors * (1 + topology.push_sum) + leaves  # under push-sum each is asked for
    return vectors * nbytes + messages * FRAME_BYTES


@pytest.mark.parametrize("flags", schemes(WITH_BACKUP))
def test_backups_do_not_wait_for_a_straggler(comm, flags):
    last = comm.size - flags.get("servers", 1) - 1
    config = config_of(flags, inject=(f"{last}:delay:0.05",), steps=40, log_every=10)
    run = psrt.run(config, comm=comm)
    if comm.rank == 0:
        assert run.summary.steps == run.summary.updates == 40
        assert run.summary.dropped > 0
        assert run.summary.seconds < 40 * 0.05
        assert_learned(config, run)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", ["sync", "async", "ssp", "softsync"])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_one_worker_is_serial_to_the_bit(comm, mode, shared_memory):
    if comm.size > 2:
        pytest.skip("more than one worker")
    rest = {"optimizer": "momentum", "weight_decay": 1e-3, "clip_norm": 1.0}
    run = psrt.run(config_of({"mode": mode, "shared_memory": shared_memory} | rest), comm=comm)
    if comm.rank == 0:
        serial = psrt.simulate(config_of({"mode": "serial"} | rest), workers=1)
        np.testing.assert_array_equal(run.theta, serial.theta)


@pytest.mark.mpi(min_size=2)
def test_the_library_s_all_reduce_agrees_up_to_rounding(comm):
    run = psrt.run(config_of({"mode": "allreduce", "allreduce": "mpi"}), comm=comm)
    if comm.rank == 0:
        ring = in_virtual_time(comm, config_of({"mode": "allreduce", "allreduce": "ring"}))
        np.testing.assert_allclose(run.theta, ring, rtol=0, atol=1e-5)


@pytest.mark.mpi
def test_one_rank_alone_trains_serially(comm):
    if comm.size > 1:
        pytest.skip("more than one rank")
    run = psrt.run(config_of({}), comm=comm)
    assert run.summary.mode == "serial"
    serial = psrt.simulate(config_of({"mode": "serial"}), workers=1)
    np.testing.assert_array_equal(run.theta, serial.theta)


@pytest.mark.parametrize(
    "flags",
    schemes(
        {
            "sync": ({"mode": "sync", "servers": 2}, 3),
            "local-sgd": ({"mode": "local-sgd", "servers": 1}, 2),
            "ring": ({"mode": "allreduce", "allreduce": "ring"}, 2),
            "butterfly": ({"mode": "allreduce", "allreduce": "butterfly"}, 2),
        }
    ),
)
def test_hosts_do_not_change_the_result(comm, host, flags):
    """The same roles on a port whose ranks count as being on several hosts."""
    config = resolve(config_of(flags), ranks=comm.size)
    problem = supervised_problem(config, workers=comm.size)
    initial = problem.initial()
    servers, workers = assign_roles([0] * comm.size, config.servers or 0)
    port = MpiPort(
        comm,
        role_map_for(initial.size, servers, workers),
        timeout_s=20,
        host=host,
        theta_memory=theta_memory(config),
    )
    reports = []
    port.on_report = reports.append
    whole = np.empty_like(initial)
    if comm.rank in servers:
        role = server_role(port, config, initial)
        drive(role.run())
        mine = role.shards[0].shard.theta
    else:
        port.theta[:] = initial
        role = worker_role(port, config, problem)
        drive(role.run())
        mine = port.theta
    port.finish_reports(lambda: sum(report.last for report in reports) == len(workers))
    owners = zip(servers, port.role_map.spans, strict=True) if servers else [(0, slice(None))]
    for rank, span in owners:
        if comm.rank in (0, rank):
            part = whole[span] if isinstance(span, slice) else span.of(whole)
            port.fetch(rank, mine if comm.rank == rank else None, part if comm.rank == 0 else None)
    port.close()
    if comm.rank == 0:
        np.testing.assert_array_equal(whole, in_virtual_time(comm, config))


@pytest.mark.mpi(min_size=2)
def test_every_all_reduce_trains_alike_on_every_layout(comm, host, same_bits):
    """As a whole and in buckets; θ is compared by the job itself after every update, too."""
    base = {"mode": "allreduce", "optimizer": "momentum", "check_every": 1, "steps": 5}
    expected = in_virtual_time(comm, config_of(base | {"allreduce": "ring"}))
    # On many ranks a half of them is enough: none knows how many there are.
    for i, name in enumerate(ALLREDUCE_NAMES[comm.size % 2 :: 1 if comm.size < 5 else 2]):
        cut = [{"overlap": False}, {"bucket_bytes": 1}, {"bucket_bytes": 4000}, {}][i % 4]
        config = resolve(config_of(base | {"allreduce": name} | cut), ranks=comm.size)
        problem = supervised_problem(config, workers=comm.size)
        role_map = role_map_for(expected.size, (), tuple(range(comm.size)))
        port = MpiPort(comm, role_map, timeout_s=20, host=host)
        port.theta[:] = problem.initial()
        drive(worker_role(port, config, problem).run())
        theta = port.theta.copy()
        port.close()
        assert same_bits(theta), name
        np.testing.assert_allclose(theta, expected, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["auto", "mpi", "double-tree"])
def test_all_reduce_without_shared_memory(comm, name):
    config = config_of({"mode": "allreduce", "allreduce": name, "shared_memory": False})
    run = psrt.run(config, comm=comm)
    if comm.rank == 0:
        ring = in_virtual_time(comm, config_of({"mode": "allreduce", "allreduce": "ring"}))
        np.testing.assert_allclose(run.theta, ring, rtol=0, atol=1e-5)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("placement", ["first", "last", "spread"])
def test_placement_does_not_change_the_result(comm, placement):
    config = config_of({"mode": "sync", "servers": 2, "placement": placement})
    run = psrt.run(config, comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(run.theta, in_virtual_time(comm, config))


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("servers_first", [True, False])
def test_the_launcher_may_say_who_is_who(comm, servers_first):
    place = comm.rank if servers_first else comm.size - 1 - comm.rank
    config = config_of({"mode": "sync"})
    run = run_over_mpi(comm, config, role="server" if place < 2 else "worker")
    if comm.rank == 0:
        assert (run.summary.servers, run.summary.workers) == (2, comm.size - 2)
        expected = in_virtual_time(comm, config_of({"mode": "sync", "servers": 2}))
        np.testing.assert_array_equal(run.theta, expected)


@pytest.mark.mpi(min_size=2)
def test_delays_change_nothing_but_the_time(comm):
    delays = {"inject": (f"{comm.size - 2}:delay:0.02", "*:jitter:0.001")}
    run = psrt.run(config_of({"mode": "sync"}, **delays), comm=comm)
    if comm.rank == 0:
        expected = in_virtual_time(comm, config_of({"mode": "sync"}))
        np.testing.assert_array_equal(run.theta, expected)
        assert run.summary.seconds >= STEPS * 0.02


@pytest.mark.mpi(min_size=4)
def test_half_of_the_ranks_are_a_job_of_their_own(comm):
    """Two jobs at once, of different modes, share nothing."""
    half = comm.Split(comm.rank % 2)
    ring = {"mode": "allreduce", "allreduce": "ring"}
    config = config_of({"mode": "sync"} if comm.rank % 2 else ring)
    run = psrt.run(config, comm=half)
    if half.rank == 0:
        np.testing.assert_array_equal(run.theta, in_virtual_time(half, config))
    half.Free()


@pytest.mark.mpi(min_size=2)
def test_what_is_said_and_written_comes_from_rank_0(comm, shared_folder):
    out = shared_folder / "run"
    said = []
    config = config_of({"mode": "sync", "out": str(out)}, steps=None, epochs=1)
    psrt.run(config, comm=comm, say=said.append)
    comm.Barrier()
    assert {path.name for path in out.iterdir()} == {
        "config.toml",
        "metrics.jsonl",
        "model.safetensors",
        "progress.json",
        "roster.json",
        "summary.json",
    }
    roster = json.loads((out / "roster.json").read_text())
    assert [member["rank"] for member in roster] == list(range(comm.size))
    assert roster[comm.rank]["pid"] == os.getpid()
    assert roster[0]["role"] == "server 0"
    progress = json.loads((out / "progress.json").read_text())
    assert progress["clock"] > 0
    assert bool(said) == (comm.rank == 0)
