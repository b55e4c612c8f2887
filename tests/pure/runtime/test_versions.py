"""Nobody ever reads a version that is not what its number says, however slow the readers are."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.messages import Leave, Params, Push
from psrt.partition import even_spans
from psrt.runtime.leases import Leases
from psrt.runtime.server import Server
from psrt.runtime.shard import Shard
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.updater import Updater
from psrt.simulation.port import VirtualPort
from psrt.sync import policy_for
from psrt.transport import RoleMap, drive
from psrt.transport.port import VERSIONS
from support.recording import Ledger, RecordingWorld, record

WORKERS, SHARDS = 7, 2


@pytest.fixture
def slow_answers():
    """A world in which answers lie about for a long time, and which notes when servers wait."""

    class SlowAnswers(RecordingWorld):
        waits = 0
        most_leased = 0

        def listen(self, port, log):
            super().listen(port, log)
            until = port.until

            async def noted(done, waiting_for):
                if "older versions" in waiting_for() and not done():
                    SlowAnswers.waits += 1
                await until(done, waiting_for)

            port.until = noted

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            send = self.network.send

            def slowly(channel, *message):
                if channel.source in self.role_map.servers and self.rng.random() < 0.6:
                    self.after(self.rng.exponential(0.05), lambda _: send(channel, *message))
                else:
                    send(channel, *message)

            self.network.send = slowly

    return SlowAnswers


def check_reads(log, servers=SHARDS):
    """Check that what a worker read contains as many updates as the answers to it said."""
    versions = {}
    for entry in log:
        message = getattr(entry, "message", None)
        if isinstance(message, Params):
            worker = entry.to - servers  # which are the first ranks
            versions[worker, message.shard] = message.version
        elif message is None:
            for shard in range(SHARDS):
                assert np.isin(entry.contents[shard], (0, 1)).all()
                said = versions.get((entry.worker, shard), 0)
                assert entry.contents[shard].sum() == said, entry


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("mode", [{"mode": "async"}, {"mode": "ssp", "staleness": 3}])
@pytest.mark.parametrize("servers", [SHARDS, 1])
def test_slow_readers_read_the_version_they_were_answered_with(
    slow_answers, servers, mode, shared_memory
):
    for seed in range(4):
        books = Ledger([12] * WORKERS, SHARDS)
        asked = TrainConfig(
            servers=servers, shards_per_server=SHARDS // servers, lr=1.0, epochs=1,
            optimizer="sgd", shared_memory=shared_memory, **mode,
        )  # fmt: skip
        run, log = record(asked, books, workers=WORKERS, seed=seed, world=slow_answers)
        check_reads(log, servers)
        assert (run.theta == 1).all()
    # All buffers were leased at times, so that the server had to wait for a reader.
    assert slow_answers.waits > 4


@pytest.mark.parametrize("mutant", ["always in place", "any other buffer", "leases end too early"])
def test_a_server_that_overwrites_what_is_being_read_is_found_out(
    monkeypatch, slow_answers, mutant
):
    if mutant == "always in place":
        monkeypatch.setattr(Leases, "free", lambda self, newest, kept: newest)
    elif mutant == "any other buffer":
        monkeypatch.setattr(Leases, "free", lambda self, newest, kept: (newest + 1) % VERSIONS)
    else:
        monkeypatch.setattr(Leases, "acquire", lambda self, rank, buffer: None)
    books = Ledger([12] * WORKERS, SHARDS)
    asked = TrainConfig(servers=SHARDS, lr=1.0, epochs=1, mode="async")
    _, log = record(asked, books, workers=WORKERS, world=slow_answers)
    with pytest.raises(AssertionError):
        check_reads(log)


def test_a_server_that_takes_one_shard_s_readers_for_another_s_is_found_out(
    monkeypatch, slow_answers
):
    in_flight = VirtualPort.in_flight
    monkeypatch.setattr(
        VirtualPort, "in_flight", lambda self, to, shard: in_flight(self, to, 1 - shard)
    )
    books = Ledger([12] * WORKERS, SHARDS)
    asked = TrainConfig(servers=1, shards_per_server=SHARDS, lr=1.0, epochs=1, mode="async")
    _, log = record(asked, books, workers=WORKERS, world=slow_answers)
    with pytest.raises(AssertionError):
        check_reads(log, servers=1)


class Sgd:
    """θ ← θ − g, elementwise."""

    state: dict = {}  # noqa: RUF012
    updates = 0

    def begin(self, lr):
        self.updates += 1

    def update(self, span, theta, grad, out):
        np.subtract(theta, grad, out=out)


class Flat:
    peak = 1.0

    def rate(self, progress):
        return 1.0


class Landings:
    """A server's port on whose host workers compute where versions are made.

    They push ones, read and push in any order, and look whether what they compute with is the
    version that they were answered with, as long as they do.
    """

    apply_s, rank, shard = None, 0, 0
    SIZE = 5

    def __init__(self, *, workers, steps, shared, rng):
        ranks = tuple(range(1, workers + 1))
        self.role_map = RoleMap(
            self.SIZE, workers=ranks, servers=(0,), spans=even_spans(self.SIZE, 1)
        )
        self.rng, self.waiting_for = rng, None
        thetas = [np.zeros(self.SIZE, np.float32) for _ in range(1 if shared else workers)]
        self.versions = {0: [np.zeros(self.SIZE, np.float32) for _ in range(VERSIONS)] + thetas}
        self.landings = {rank: VERSIONS + i * (not shared) for i, rank in enumerate(ranks)}
        self.left = dict.fromkeys(ranks, steps)
        self.clock = dict.fromkeys(ranks, 0)
        self.version = dict.fromkeys(ranks, 0)
        self.computing, self.mail = set(ranks), {}

    def now(self):
        return 0.0

    def payload(self, shard, worker):
        return np.ones(self.SIZE, np.float32)

    def in_flight(self, to, shard):
        return to in self.mail

    def send(self, to, message, region=-1):
        self.mail[to] = message, region

    async def until(self, done, waiting_for):
        while not done():
            self.read(self.rng.choice(list(self.mail)))

    async def receive(self):
        while True:
            rank = self.rng.choice([*self.mail, *self.computing])
            if rank in self.mail:
                self.read(rank)
                continue
            self.check(rank)
            self.computing.remove(rank)
            if not self.left[rank]:
                return Leave(rank - 1, self.clock[rank])
            self.left[rank] -= 1
            return Push(rank - 1, self.clock[rank], self.version[rank], 1, 0.0)

    def read(self, rank):
        message, region = self.mail.pop(rank)
        assert region == self.landings[rank]
        self.version[rank], self.clock[rank] = message.version, message.clock
        self.computing.add(rank)
        self.check(rank)

    def check(self, rank):
        assert (self.versions[0][self.landings[rank]] == -self.version[rank]).all()


def serve_landings(mode, *, seed=0, workers=3, steps=40, shared=False, **knobs):
    port = Landings(workers=workers, steps=steps, shared=shared, rng=np.random.default_rng(seed))
    shard = Shard(
        port.versions[0],
        np.zeros(port.SIZE, np.float32),
        Updater(port.SIZE, Sgd(), Flat()),
        payload=lambda worker: port.payload(0, worker),
        workers=workers,
        by_samples=mode == "sync",
    )
    drive(Server(port, [ShardServer(port, 0, shard, policy_for(mode, workers, **knobs))]).run())
    assert (shard.theta == -shard.version).all()
    assert not any(port.left.values())
    return port, shard


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("mode", "knobs"),
    [
        ("async", {}),
        ("ssp", {"staleness": 1}),
        ("softsync", {"softsync": 1}),
        ("sync", {}),
        ("sync", {"shared": True}),
        ("sync", {"shared": True, "workers": 1}),
    ],
)
def test_a_version_is_made_where_nobody_computes(mode, knobs, seed):
    _, shard = serve_landings(mode, seed=seed, **knobs)
    assert shard.version >= 40


@pytest.mark.parametrize(
    ("mode", "knobs"), [("async", {}), ("sync", {"shared": True}), ("ssp", {"staleness": 3})]
)
def test_a_version_is_made_where_its_worker_computes(monkeypatch, mode, knobs):
    copies, copyto = [], np.copyto
    monkeypatch.setattr(np, "copyto", lambda *vectors: (copies.append(vectors), copyto(*vectors)))
    port, shard = serve_landings(mode, **knobs)
    # The first parameters; and where a worker waits for the slowest, others push meanwhile.
    assert len(copies) == 1 if mode != "ssp" else 1 < len(copies) < shard.version
    assert shard.newest in port.landings.values()


@pytest.mark.parametrize("mutant", ["another's landing", "as if nobody read"])
def test_a_server_that_writes_where_a_worker_computes_is_found_out(monkeypatch, mutant):
    shared = mutant == "as if nobody read"
    if shared:
        monkeypatch.setattr(Leases, "_is_free", lambda self, buffer: True)
    else:
        monkeypatch.setattr(Leases, "free", lambda self, preferred, kept: VERSIONS)
    with pytest.raises(AssertionError):
        serve_landings("async", shared=shared)
