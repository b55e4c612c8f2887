"""Every mode in virtual time: no deadlock, the same seed the same run, books that balance."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.collective.analysis.machine import MachineCosts, NodeCosts
from psrt.collective.costs import LinkCosts
from psrt.config import TrainConfig
from psrt.errors import ConfigError, CrashError, ProtocolError
from psrt.history import EVENT, EventLog
from psrt.history.check.elastic import KINDS as FORCES
from psrt.job.problems import supervised_problem
from psrt.job.virtual import simulate
from psrt.messages import Leave, Params, Push
from psrt.runtime.checksum import checksum
from psrt.runtime.strategies.push_pull import PushPull
from psrt.simulation import SimulationCosts, Simulator
from psrt.stats import merged_columns
from psrt.sync import Keep, Policy, policy_for
from psrt.transport import CONTROL
from support.cases import pairs
from support.recording import COSTS, Ledger, record

pytestmark = pytest.mark.slow

#: 23 samples a worker and epoch in batches of 5 or 6: the last step of an epoch is smaller.
BASE = TrainConfig(
    dataset="synthetic:70x5x3", hidden=(4,), batch_size=6, epochs=3, lr=0.05, log_every=3, seed=2
)
SERVED = {
    "sync": {"mode": "sync"},
    "sync with a backup": {"mode": "sync", "backup": 1},
    "sync with backups": {"mode": "sync", "backup": 2},
    "async": {"mode": "async"},
    "ssp 0": {"mode": "ssp", "staleness": 0},
    "ssp 2": {"mode": "ssp", "staleness": 2},
    "softsync 1": {"mode": "softsync", "softsync": 1},
    "softsync 2": {"mode": "softsync", "softsync": 2},
    "drop": {"mode": "async", "staleness_rate": "drop", "staleness_limit": 1},
    "power": {"mode": "softsync", "softsync": 1, "staleness_rate": "power"},
    "mean-inverse": {"mode": "async", "staleness_rate": "mean-inverse"},
    "delay-compensated": {"mode": "ssp", "staleness_rate": "delay-compensated"},
    "gap-aware": {"mode": "softsync", "softsync": 2, "staleness_rate": "gap-aware"},
    "local-sgd": {"mode": "local-sgd", "local_steps": 3},
    "local-sgd, outer": {"mode": "local-sgd", "local_steps": 2, "outer_lr": 0.7},
    "easgd": {"mode": "easgd", "local_steps": 3},
    "easgd, asynchronous": {"mode": "easgd", "local_steps": 3, "asynchronous": True},
}
SERVERLESS = {
    "local-sgd by ring": {"mode": "local-sgd", "local_steps": 3},
    "local-sgd by tree, outer": {
        "mode": "local-sgd",
        "local_steps": 2,
        "allreduce": "tree",
        "outer_momentum": 0.8,
    },
    "post-local": {"mode": "local-sgd", "local_steps": 4, "post_local_epoch": 1},
    **{name: {"mode": "allreduce", "allreduce": name} for name in ("ring", "tree", "butterfly")},
}
#: Where the interleaving must not show.
REPRODUCIBLE = ["sync", "easgd", "local-sgd", "local-sgd, outer", *SERVERLESS]


def config(name, servers=2, **more):
    if name in SERVED:
        return dataclasses.replace(BASE, **SERVED[name], servers=servers, **more)
    return dataclasses.replace(BASE, **SERVERLESS[name], **more)


def bits(run):
    return run.theta.tobytes()


@pytest.mark.parametrize(("costs", "name"), pairs(COSTS, [*SERVED, *SERVERLESS], one_in=4))
@pytest.mark.one_in(3)
def test_the_same_seed_is_the_same_run(costs, name):
    """No deadlock, and neither repetition nor where the payload lies makes a difference."""
    for seed, servers in ((0, 1), (1, 2), (2, 3)):
        asked = config(name, servers, optimizer="momentum")
        apart = dataclasses.replace(asked, shared_memory=False)
        runs = [record(it, workers=3, seed=seed, costs=costs) for it in (asked, asked, apart)]
        assert np.isfinite(runs[0].run.theta).all()
        for other in runs[1:]:
            assert other.log == runs[0].log
            # As text: a figure that nobody asked for is nan, and not equal to itself.
            assert repr(other.run.reports) == repr(runs[0].run.reports)
            assert bits(other.run) == bits(runs[0].run)
        if name in SERVERLESS and servers > 1:
            break


@pytest.mark.parametrize("name", [*SERVED, *SERVERLESS])
def test_stragglers_and_jitter_stop_nobody(name):
    slow = {"inject": ("1:delay:0.02", "*:jitter:0.004")}
    for seed in range(2):
        run = simulate(config(name, **slow), workers=4, seed=seed)
        assert run.seconds > 0.02 * run.meters[1].steps
        # 70 samples by 4 workers, 6 to a batch: 3 steps an epoch
        assert {worker.clock for worker in run.workers} == {9}
        if "backup" not in name:
            assert sum(meter.stats.samples for meter in run.meters) == 3 * 70


@pytest.mark.parametrize(("costs", "name"), pairs(COSTS, REPRODUCIBLE, one_in=2))
@pytest.mark.one_in(3)
def test_where_all_wait_for_all_the_order_of_events_does_not_show(costs, name):
    results = {
        bits(record(config(name, servers, **more), workers=4, seed=servers, costs=costs).run)
        for servers in ((1, 2, 3, 5) if name in SERVED else (0, 1, 2))
        for more in ({"inject": ("*:jitter:0.01",)}, {"shared_memory": False})
    }
    assert len(results) == 1


@pytest.mark.parametrize("name", ["async", "ssp 2", "softsync 2", "sync with a backup"])
def test_another_seed_is_another_interleaving(name):
    assert len({bits(simulate(config(name), workers=4, seed=seed)) for seed in range(4)}) == 4


@pytest.mark.parametrize("name", [*SERVED, *SERVERLESS])
def test_what_is_sent_is_received_and_counted(name):
    run, log = record(config(name), workers=3, seed=5)
    newest = {report.worker: report.columns for report in run.reports}
    counted = merged_columns(newest.values())
    sent, received = counted["bytes_sent"], counted["bytes_received"]
    if name in SERVERLESS:
        assert sent == received > 0
        assert not log
        return
    messages = [entry.message for entry in log]
    answered = [m for m in messages if isinstance(m, Params)]
    assert len(answered) == sum(isinstance(m, Push) for m in messages)
    assert sum(isinstance(m, Leave) for m in messages) == 3 * 2
    payload = [4 * server.shard.theta.size for server in run.servers]
    assert received == sum(64 + payload[reply.shard] for reply in answered)
    pushed = [
        64 + (payload[entry.to] if entry.message.samples else 0)
        for entry in log
        if isinstance(entry.message, Push)
    ]
    assert sent == sum(pushed) + 3 * 2 * 64


def test_serial_is_one_worker_by_itself():
    run = simulate(dataclasses.replace(BASE, mode="serial"), workers=1)
    assert (run.servers, run.workers[0].clock) == ([], 3 * 12)


class InOnePiece:
    """A problem as users write them: nothing about parts, no optional methods."""

    def __init__(self):
        self.asked = []

    def initial(self):
        return np.zeros(6, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.full(3, worker + 1.0)] * 4

    def loss_and_grad(self, theta, batch, out):
        out[:] = batch.mean()
        return 0.0

    def evaluate(self, theta):
        return {}


#: One sum, after the whole gradient.
TREE = ("tree", "as asked", 1, False)


@pytest.mark.parametrize("overlap", [None, False, True])
def test_a_problem_without_parts_is_summed_in_one_piece(overlap):
    asked = TrainConfig(mode="allreduce", allreduce="tree", overlap=overlap, epochs=2, lr=0.5)
    run = simulate(asked, InOnePiece(), workers=3)
    np.testing.assert_allclose(run.theta, [-8 * 0.5 * 2] * 6)
    assert run.workers[0].strategy.plan[:4] == TREE


@pytest.mark.parametrize(
    ("knobs", "plan"),
    [
        ({"mode": "allreduce", "allreduce": "ring"}, ("ring", "as asked", 1, False)),
        (
            {"mode": "allreduce", "allreduce": "ring", "bucket_bytes": 1},
            ("ring", "as asked", 2, True),
        ),
        (
            {"mode": "allreduce", "allreduce": "ring", "clip_norm": 1},
            ("ring", "as asked", 1, False),
        ),
        ({"mode": "local-sgd", "allreduce": "tree"}, TREE),
        ({"mode": "local-sgd", "servers": 1}, None),
        ({"mode": "sync"}, None),
    ],
)
def test_how_all_sum_is_told(knobs, plan):
    told = simulate(dataclasses.replace(BASE, **knobs), workers=2).workers[0].strategy.plan
    assert (told and told[:4]) == plan


def test_what_auto_picks_by_may_be_given(tmp_path):
    """Where bytes cost nothing few messages are best, where messages cost nothing few bytes are."""
    picked = []
    for alpha, beta in ((1.0, 0.0), (0.0, 1.0)):
        messages = LinkCosts(alpha=alpha, beta=beta, gamma=0.0)
        path = tmp_path / "costs.json"
        path.write_text(MachineCosts(messages, messages, NodeCosts(0, 0), 1).to_json())
        asked = dataclasses.replace(BASE, mode="allreduce", machine_costs=str(path))
        picked.append(simulate(asked, workers=8).workers[0].strategy.plan.algorithm)
    rounds = [len(list(ALGORITHMS[name](0, 8, 1000))) for name in picked]
    assert rounds[0] < rounds[1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "knobs",
    [{"mode": "allreduce", "bucket_bytes": 1}, {"mode": "local-sgd", "local_steps": 2}],
)
def test_a_rank_that_goes_astray_is_caught(knobs, seed):
    """A bit of worker 1's parameters flips right before it is looked at."""

    class LeakyWorld(Simulator):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            port = self.ports[1]
            differing = port.differing

            async def after_a_flip(number):
                port.theta.view(np.int32)[3] ^= 1 << 20
                return await differing(checksum(port.theta))

            port.differing = after_a_flip

    asked = dataclasses.replace(BASE, check_every=3, **knobs)
    with pytest.raises(ProtocolError, match=r"of worker 1 \(rank 1\) differ .* after update 3,"):
        simulate(asked, workers=3, seed=seed, world=LeakyWorld)
    simulate(dataclasses.replace(asked, check_every=0), workers=3, seed=seed, world=LeakyWorld)


def test_the_mpi_librarys_own_allreduce_needs_mpi():
    asked = dataclasses.replace(BASE, mode="allreduce", allreduce="mpi")
    with pytest.raises(ConfigError, match=r"^all-reduce mpi needs MPI; in virtual time there "):
        simulate(asked, workers=2)


class TestBackups:
    """Reducer of the first W − b, on every shard; nobody computes with parts of two rounds."""

    @pytest.mark.parametrize("shards", [1, 2, 3])
    @pytest.mark.parametrize("backup", [1, 2])
    @pytest.mark.one_in(3)
    def test_a_round_is_the_mean_of_the_first(self, costs, backup, shards):
        for seed in range(8):
            books = Ledger([8] * 4, shards)
            asked = TrainConfig(mode="sync", backup=backup, servers=shards, lr=1.0, epochs=1)
            run, log = record(asked, books, workers=4, seed=seed, costs=costs)
            for read in books.reads:
                check_rounds(read.contents, read.clock, 4 - backup)
            check_rounds(run.theta.reshape(books.shape), 8, 4 - backup, live=False)
            assert [meter.stats.skew.keys() <= {0} for meter in run.meters] == [True] * 4
            assert {worker.clock for worker in run.workers} == {8}
            for server in run.servers:
                used = server.shard.stats.histogram
                assert used == [sum(used)]  # nothing stale is ever applied
            dropped = sum(server.shard.stats.dropped for server in run.servers)
            pushed = sum(
                isinstance(e.message, Push) and e.message.samples > 0
                for e in log
                if hasattr(e, "message")
            )
            assert dropped == pushed - sum(sum(s.shard.stats.histogram) for s in run.servers)

    def test_a_worker_that_does_not_read_again_is_found_out(self, monkeypatch):
        async def as_they_are(self, clocks, progress):
            return max(clocks.values())

        monkeypatch.setattr(PushPull, "_level", as_they_are)
        asked = TrainConfig(mode="sync", backup=1, servers=2, lr=1.0, epochs=1)
        with pytest.raises(ProtocolError, match="expected version"):
            for_seeds(asked, range(20))

    def test_reading_again_is_needed_at_times(self):
        """Else the tests above would show nothing."""
        asked = TrainConfig(mode="sync", backup=1, servers=2, lr=1.0, epochs=1)
        again = [
            entry.message
            for recording in for_seeds(asked, range(10))
            for entry in recording.log
            if isinstance(getattr(entry, "message", None), Push)
            and entry.message.clock > entry.message.version
        ]
        assert again
        assert all(push.samples == 0 for push in again)


def for_seeds(asked, seeds):
    return [record(asked, Ledger([8] * 4, 2), workers=4, seed=seed) for seed in seeds]


def check_rounds(contents, clock, quorum, *, live=True):
    """Check that the contents are the rounds before ``clock`` and nothing else.

    Towards the end workers leave, so that a round may have fewer members.
    """
    members = (contents != 0).sum(axis=1)
    assert (members[:, clock:] == 0).all()
    assert (members[:, : min(clock, 6)] == quorum).all() or not live
    assert (members[:, :clock] >= 1).all()
    np.testing.assert_allclose(contents.sum(axis=1)[:, :clock], 1, rtol=1e-6)


class TestSoftsync:
    """An update is a mean over a quorum, and each gradient is in one of them."""

    @pytest.mark.one_in(5)
    @pytest.mark.parametrize("shared_memory", [True, False])
    @pytest.mark.parametrize(("k", "quorum"), [(1, 5), (2, 2), (5, 1)])
    def test_every_gradient_is_in_one_mean(self, costs, k, quorum, shared_memory):
        for seed in range(5):
            books, run = self.train(k, seed, costs, shared_memory)
            contents = run.theta.reshape(books.shape)
            shares = 1 / contents
            np.testing.assert_allclose(shares, shares.round(), rtol=1e-6)
            sizes = shares.round()
            assert sizes.min() >= 1
            assert sizes.max() == quorum
            for server, shard in zip(run.servers, contents, strict=True):
                np.testing.assert_allclose(shard.sum(), server.shard.version, rtol=1e-6)
                assert sum(server.shard.stats.histogram) == 5 * 8

    def test_a_gradient_that_is_not_kept_is_missed(self, monkeypatch):
        class KeepsNothing(Policy):
            def handle(self, event):
                return [d for d in super().handle(event) if not isinstance(d, Keep)]

        def made(mode, workers, **knobs):
            sound = policy_for(mode, workers, **knobs)
            return KeepsNothing(workers, quorum=sound._quorum)

        monkeypatch.setattr("psrt.job.build.policy_for", made)
        books, run = self.train(1, 0, "exponential", True)
        assert (run.theta.reshape(books.shape) == 0).any()

    def train(self, k, seed, costs, shared_memory):
        books = Ledger([8] * 5, 2)
        asked = TrainConfig(
            mode="softsync", softsync=k, servers=2, lr=1.0, epochs=1, shared_memory=shared_memory
        )
        return books, record(asked, books, workers=5, seed=seed, costs=costs).run


@pytest.mark.parametrize("k", range(1, 9))
def test_softsync_staleness_is_what_the_others_apply(k):
    """Between a worker's read and its push come those of the others, a quorum an update.

    Zhang et al. 2016 say that is about k, and hardly ever above 2k: so it is where k divides W.
    """
    workers, quorum = 8, 8 // k
    books = Ledger([60] * workers, 1)
    asked = TrainConfig(mode="softsync", softsync=k, servers=1, lr=1.0, epochs=1)
    [server] = record(asked, books, workers=workers, seed=k, costs="all alike").run.servers
    histogram = np.array(server.shard.stats.histogram)
    mean = (histogram * np.arange(histogram.size)).sum() / histogram.sum()
    assert mean == pytest.approx((workers - 1) / quorum, rel=0.02)
    assert histogram[2 * (workers // quorum) + 1 :].sum() <= 0.01 * histogram.sum()


def test_reports_come_from_every_worker_and_end():
    run, _ = record(config("async"), workers=3, seed=1)
    by_worker = {
        worker: list(reports)
        for worker, reports in itertools.groupby(
            sorted(run.reports, key=lambda report: report.worker), key=lambda report: report.worker
        )
    }
    assert sorted(by_worker) == [0, 1, 2]
    for worker, reports in by_worker.items():
        assert [report.last for report in reports] == [False] * (len(reports) - 1) + [True]
        steps = [report.step for report in reports]
        assert steps == sorted(steps)
        assert sum(report.samples for report in reports) == run.meters[worker].stats.samples
        evaluated = [not np.isnan(report.test_loss) for report in reports]
        assert evaluated == [worker == 0 and report.epoch_end for report in reports]


def history(asked, folder, **how):
    """Return a run in virtual time and its events."""
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    with EventLog(path) as log:
        run = simulate(asked, workers=4, seed=3, log=log, **how)
    return run, np.load(path)


SCHEDULES = {
    f"allreduce by {name}{', in buckets' * parts}": {
        "mode": "allreduce",
        "allreduce": name,
        "bucket_bytes": 1 if parts else 1 << 20,
    }
    for name in (*ALGORITHMS, "node", "auto")
    for parts in (False, True)
}


@pytest.mark.parametrize("name", [*SERVED, *SERVERLESS, *SCHEDULES])
def test_without_numerics_everything_happens_as_it_does_with_them(tmp_path, name):
    """Event for event; what is missing are the gaps between parameters, and forces on them."""
    if name in SCHEDULES:
        asked = dataclasses.replace(BASE, **SCHEDULES[name])
    else:
        asked = config(name, optimizer="adam", clip_norm=0.5)
    costs = SimulationCosts(bandwidth=1e5, apply=lambda rank, nbytes, rng: nbytes * 1e-6)
    (run, events), (empty, others) = (
        history(asked, tmp_path, numerics=numerics, costs=costs) for numerics in (True, False)
    )
    assert (empty.seconds, empty.events) == (run.seconds, run.events)
    events = events[~np.isin(events["kind"], FORCES)]
    assert len(others) == len(events) > 30
    for field in EVENT.names:
        if field != "gap":
            # The last one holds a checksum.
            np.testing.assert_array_equal(others[field][:-1], events[field][:-1])
    assert (run.theta.size, empty.theta.size) == (39, 0)
    for found, expected in zip(empty.world.ports, run.world.ports, strict=True):
        assert (found.bytes_sent, found.bytes_received) == (
            expected.bytes_sent,
            expected.bytes_received,
        )


@pytest.mark.parametrize("name", [*SERVED, "allreduce by ring", "allreduce by tree"])
def test_without_numerics_parameters_cost_nothing(name):
    knobs = SERVED.get(name) or SCHEDULES[name]
    asked = dataclasses.replace(BASE, **knobs, optimizer="adam", epochs=None, steps=3)
    run = simulate(asked, workers=4, numerics=False, parameters=10**11)
    assert run.world.role_map.n == 10**11
    assert sum(port.bytes_sent for port in run.world.ports) > 10**11
    assert all(port.gradient.size == CONTROL for port in run.world.ports[1:])


@pytest.mark.parametrize("numerics", [True, False])
@pytest.mark.parametrize("name", SERVED)
def test_a_crash_stops_nobody_but_the_dead(name, numerics):
    for when in (0.0, 0.002, 0.006):
        run = simulate(
            config(name), workers=4, numerics=numerics, crashes=((1, when), (3, when / 2))
        )
        assert sorted(run.world.crashed) == [3, 5]
        assert [worker.clock == 9 for worker in run.workers] == [True, False, True, False]


@pytest.mark.parametrize("name", SERVERLESS)
def test_without_servers_a_crash_ends_the_job(name):
    with pytest.raises(CrashError, match=r"^worker 2 \(rank 2\) crashed at 0.004 s of virtual"):
        simulate(config(name), workers=3, crashes=((2, 0.004),))


def test_costs_may_depend_on_who_is_who():
    """One worker is slow by its number, wherever the servers are."""
    for placement in ("first", "last"):
        asked = config("async", placement=placement)

        def costs(role_map):
            return SimulationCosts(
                compute=lambda rank, rng: 0.5 if rank == role_map.workers[1] else 0.001
            )

        run = simulate(asked, workers=3, costs=costs)
        waits = [worker.seconds for worker in run.workers]
        assert waits[1] == pytest.approx(0.5 * 12, rel=0.01)
        assert max(waits[0], waits[2]) < 0.1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"workers": 0}, "a job needs at least 1 worker, got 0"),
        ({"workers": 3, "crashes": ((3, 1.0),)}, "crash names worker 3 that does not exist"),
        ({"workers": 3, "crashes": ((-1, 1.0),)}, "crash names worker -1 that does not exist"),
        ({"workers": 3, "crashes": ((1, -1.0),)}, "cannot crash at -1.0 s"),
    ],
)
def test_what_cannot_be(how, message):
    with pytest.raises(ConfigError, match=message):
        simulate(config("async"), **how)


def test_workers_share_what_they_compute_with():
    """One problem serves all in turn, also where they are in different epochs."""
    asked = config("async", inject=("*:jitter:0.01",))
    shared = supervised_problem(asked, workers=4)
    run = simulate(asked, shared, workers=4, seed=1)
    epochs = [report.epoch for report in run.reports]
    assert epochs != sorted(epochs)
    np.testing.assert_array_equal(run.theta, simulate(asked, workers=4, seed=1).theta)
