"""Nobody ever reads a version that is not what its number says, however slow the readers are."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.messages import Params, Push
from psrt.optim import make_staleness_rate
from psrt.partition import even_spans
from psrt.runtime.leases import Leases
from psrt.runtime.server import Server
from psrt.runtime.shard import Shard
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.updater import Updater
from psrt.simulation.port import VirtualPort
from psrt.sync import policy_for
from psrt.transport import RoleMap
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
        monkeypatch.setattr(Leases, "free", lambda self, newest: newest)
    elif mutant == "any other buffer":
        monkeypatch.setattr(Leases, "free", lambda self, newest: (newest + 1) % VERSIONS)
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


class Announcing:
    """A server's port on which an answer may be read while its version is being made."""

    apply_s = None

    def __init__(self, role_map, far=()):
        self.rank, self.role_map = role_map.servers[0], role_map
        size = role_map.spans[0].size
        self.versions = {0: [np.zeros(size, np.float32) for _ in range(VERSIONS)]}
        self.gradients = {
            w: np.full(size, w + 1.0, np.float32) for w in range(len(role_map.workers))
        }
        self.far = far  # ranks on another host
        self.inbox, self.log, self.waiting_for = [], [], None
        self.reading = {}  # rank -> region

    def now(self):
        return 0.0

    def payload(self, shard, worker):
        return self.gradients[worker]

    def in_flight(self, to, shard):
        return to in self.reading

    async def receive(self):
        message = self.inbox.pop(0)
        self.reading.pop(self.role_map.workers[message.worker], None)
        return message

    async def until(self, done, waiting_for):
        self.reading.clear()
        assert done()

    def send(self, to, message, region=-1):
        self.reading[to] = region
        self.log.append(("sent", to, message, region, self.versions[0][region].copy()))

    def announce(self, to, message, region):
        if to in self.far:
            return None
        self.reading[to] = region
        landed, at = np.full_like(self.versions[0][0], np.nan), [0]
        self.log.append(("announced", to, message, region, landed))

        def advance(elements):
            assert elements > at[0]
            landed[at[0] : elements] = self.versions[0][region][at[0] : elements]
            at[0] = elements

        return advance


class TestAnnouncedVersions:
    """Spans of several blocks are read while they are made; what is read is the same."""

    SIZE = 150_000  # three blocks

    def run(self, mode, script, far=(), rate=None):
        workers = 3
        role_map = RoleMap(
            self.SIZE, workers=(1, 2, 3), servers=(0,), spans=even_spans(self.SIZE, 1)
        )
        port = Announcing(role_map, far)
        shard = Shard(
            port.versions[0],
            np.zeros(self.SIZE, np.float32),
            Updater(self.SIZE, Sgd(), Flat(), rate=rate),
            payload=lambda worker: port.payload(0, worker),
            workers=workers,
            by_samples=mode == "sync",
            rate=rate,
        )
        server = Server(port, [ShardServer(port, 0, shard, policy_for(mode, workers))])
        port.inbox = list(script)
        # Everybody leaves at the end; the run is driven by hand, since nothing suspends.
        role = server.run()
        try:
            role.send(None)
        except (StopIteration, IndexError):
            role.close()
        return port, shard

    def push(self, worker, clock, version, samples=1):
        return Push(worker, clock, version, samples, 0.0, 0.0)

    @pytest.mark.parametrize("far", [(), (2,), (1, 2, 3)])
    def test_async(self, far):
        script = [self.push(0, 0, 0), self.push(1, 0, 0), self.push(0, 1, 1), self.push(2, 0, 0)]
        port, shard = self.run("async", script, far)
        sums = np.cumsum([1, 2, 1, 3])
        self.check(port, far, versions=[1, 2, 3, 4], values=-sums, ranks=[1, 2, 1, 3])
        assert shard.version == 4
        assert (shard.theta == -7).all()
        # Worker 0 has read its first answer when it pushes again, the others have not.
        assert [region for *_, region, _ in port.log] == [0, 1, 0, 2]

    @pytest.mark.parametrize("far", [(), (1, 2, 3)])
    def test_what_was_read_is_noted_for_rates_that_ask(self, far):
        rate = make_staleness_rate("delay-compensated", self.SIZE, dc_lambda=0.5)
        script = [self.push(0, 0, 0), self.push(1, 0, 0), self.push(0, 1, 1)]
        _, shard = self.run("async", script, far, rate=rate)
        # θ: 0 → −1 → −1 − (2 + 0.5·4·(−1 − 0)) = −1 → −1 − (1 + 0.5·1·(−1 + 1))
        assert (shard.theta == -2).all()
        assert [read[0] for read in shard._reads] == [-2, -1, 0]

    @pytest.mark.parametrize("far", [(), (2,), (1, 2, 3)])
    def test_sync(self, far):
        script = [self.push(w, 0, 0) for w in (2, 0, 1)] + [self.push(w, 1, 1) for w in (0, 1, 2)]
        port, shard = self.run("sync", script, far)
        ranks, versions = [3, 1, 2, 1, 2, 3], [1, 1, 1, 2, 2, 2]
        self.check(port, far, versions=versions, values=[-2.0] * 3 + [-4.0] * 3, ranks=ranks)
        assert shard.version == 2

    def test_rounds_without_samples_are_answered_as_they_are(self):
        port, shard = self.run("sync", [self.push(w, 0, 0, samples=0) for w in range(3)])
        assert [entry[0] for entry in port.log] == ["sent"] * 3
        assert (shard.version, shard.theta.any()) == (1, False)

    def check(self, port, far, *, versions, values, ranks):
        """Check the answers, which those on another host get last of their round."""
        got = {}
        for how, to, message, region, read in port.log:
            assert how == ("sent" if to in far else "announced")
            assert not np.isnan(read).any()
            got.setdefault((to, message.version), []).append(read)
            assert region in range(VERSIONS)
        expected = {
            (rank, v): value for rank, v, value in zip(ranks, versions, values, strict=True)
        }
        assert got.keys() == expected.keys()
        for key, [read] in got.items():
            np.testing.assert_allclose(read, expected[key], rtol=1e-6)
