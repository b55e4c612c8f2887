"""Nobody ever reads a version that is not what its number says, however slow the readers are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrt.config import TrainConfig
from psrt.config.modes import SSP, Async, SoftSync, Sync
from psrt.core.messages import Leave, Params, Push
from psrt.core.partition import even_spans
from psrt.optim import Schedule
from psrt.optim.table import Always, Sgd
from psrt.runtime.leases import Leases
from psrt.runtime.server import Server
from psrt.runtime.shard import Shard
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.updater import Updater
from psrt.simulation.port import VirtualPort
from psrt.sync import policy_for
from psrt.transport import RoleMap, drive
from psrt.transport.port import VERSIONS
from support.cases import each
from support.recording import Ledger, RecordingWorld, record

# --- buffers that may still be read -------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 2), st.booleans()), max_size=40))
def test_it_never_gives_what_is_read(moves):
    """Who is sent another has read the last; -1 is a release, after which it is not asked."""
    reading, held = set(), {}
    leases = Leases(3, lambda rank: rank in reading, {})
    for rank, buffer, reads in moves:
        (reading.add if reads else reading.discard)(rank)
        if buffer < 0:
            leases.release(rank)
            held.pop(rank, None)
        else:
            leases.acquire(rank, buffer)
            held[rank] = buffer
        free = leases.free(max(buffer, 0))
        busy = {of for rank, of in held.items() if rank in reading}
        assert free is None if busy == {0, 1, 2} else free not in busy
        assert free == max(buffer, 0) or max(buffer, 0) in busy


def test_a_worker_computes_in_its_landing_until_it_pushes_and_keeps_it_when_it_leaves():
    """Buffer 0 is a server's own, 1 and 2 are where ranks 4 and 5 compute."""
    leases = Leases(3, lambda rank: False, {4: 1, 5: 2})
    assert leases.free(1) == leases.free(2) == 0
    leases.release(4)  # it has pushed
    assert leases.free(1) == 1
    assert leases.free(2) == 0
    leases.acquire(4, 1)
    assert leases.free(1) == 0
    leases.leave(4)
    assert leases.free(1) == 0
    shared = Leases(2, lambda rank: False, {4: 1, 5: 1})
    shared.leave(4)
    assert shared.free(1) == 0
    shared.release(5)
    assert shared.free(1) == 1


# --- what workers read --------------------------------------------------------------------------

WORKERS, SHARDS = 7, 2


class SlowAnswers(RecordingWorld):
    """A world in which answers lie about for a long time, and which notes when servers wait."""

    waits = 0

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        send = self.network.send

        def slowly(channel, *message):
            if channel.source in self.role_map.servers and self.rng.random() < 0.6:
                self.after(self.rng.exponential(0.05), lambda _: send(channel, *message))
            else:
                send(channel, *message)

        self.network.send = slowly

    def listen(self, port, log):
        super().listen(port, log)
        until = port.until

        async def noted(done, waiting_for):
            SlowAnswers.waits += "older versions" in waiting_for() and not done()
            await until(done, waiting_for)

        port.until = noted


def read_slowly(*, servers=SHARDS, seed=0, **knobs):
    """Check that what a worker read contains as many updates as the answers to it said."""
    books, versions = Ledger([12] * WORKERS, SHARDS), {}
    asked = TrainConfig(
        servers=servers, shards_per_server=SHARDS // servers, lr=1.0, epochs=1, optimizer="sgd",
        **{"mode": "async"} | knobs,
    )  # fmt: skip
    run, log = record(asked, books, workers=WORKERS, seed=seed, world=SlowAnswers)
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
    assert (run.theta == 1).all()
    return books


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("mode", ["async", "ssp:staleness=2"])
@pytest.mark.parametrize("servers", [SHARDS, 1])
@pytest.mark.one_in(4)
def test_slow_readers_read_the_version_they_were_answered_with(servers, mode, shared_memory):
    SlowAnswers.waits, ahead = 0, set()
    for seed in range(3):
        books = read_slowly(servers=servers, seed=seed, shared_memory=shared_memory, mode=mode)
        ahead |= {read.clock - read.contents.sum(axis=2).min() for read in books.reads}
    # All buffers were leased at times, so that the server had to wait for a reader.
    assert SlowAnswers.waits > 3
    # The gate of SSP is used to the full: else its rules would hold for too narrow a one.
    assert max(ahead) == 2 if "staleness" in mode else max(ahead) > 2


IN_FLIGHT = VirtualPort.in_flight
#: Of a server that overwrites what is being read: what is broken, how, with how many servers.
MUTANTS = {
    "any other buffer": (Leases, "free", lambda self, newest, kept: (newest + 1) % VERSIONS, 2),
    "the readers of the other shard": (
        VirtualPort, "in_flight", lambda self, to, shard: IN_FLIGHT(self, to, 1 - shard), 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_server_that_overwrites_what_is_being_read_is_found_out(monkeypatch, mutant):
    of, name, broken, servers = MUTANTS[mutant]
    monkeypatch.setattr(of, name, broken)
    with pytest.raises(AssertionError):
        read_slowly(servers=servers)


# --- where workers compute ----------------------------------------------------------------------


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


def serve_landings(mode, *, seed=0, workers=3, steps=40, shared=False):
    port = Landings(workers=workers, steps=steps, shared=shared, rng=np.random.default_rng(seed))
    sgd = Sgd().make(port.SIZE)
    shard = Shard(
        port.versions[0],
        np.zeros(port.SIZE, np.float32),
        Updater(port.SIZE, sgd, Schedule(Always(), 1.0, epochs=1)),
        payload=lambda worker: port.payload(0, worker),
        workers=workers,
        by_samples=mode.rounds,
    )
    drive(Server(port, [ShardServer(port, 0, shard, policy_for(mode, workers))]).run())
    assert (shard.theta == -shard.version).all()
    assert not any(port.left.values())
    return port, shard


@each("seed", range(3))
@each(
    ("mode", "knobs"),
    [
        (Async(), {}),
        (SSP(1), {}),
        (SoftSync(1), {}),
        (Sync(), {}),
        (Sync(), {"shared": True}),
        (Sync(), {"shared": True, "workers": 1}),
    ],
)
def test_a_version_is_made_where_its_worker_computes_and_nobody_else_does(mode, knobs, seed):
    port, shard = serve_landings(mode, seed=seed, **knobs)
    assert shard.version >= 40
    if mode == Async() or "shared" in knobs:  # elsewhere some wait, and others push meanwhile
        assert shard.newest in port.landings.values()


def test_a_server_that_writes_where_a_worker_computes_is_found_out(monkeypatch):
    monkeypatch.setattr(Leases, "free", lambda self, preferred, kept: VERSIONS)
    with pytest.raises(AssertionError):
        serve_landings(Async())
