"""The server's role: takes what comes, asks the policy, does what it decided."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from psrt.errors import ProtocolError
from psrt.messages import Leave, Message, Params, Push
from psrt.optim import BLOCK
from psrt.runtime.event_recorder import ShardEventRecorder
from psrt.runtime.leases import Leases
from psrt.runtime.shard import Shard
from psrt.stats import Stats
from psrt.sync import Apply, Decision, Keep, Policy, Serve
from psrt.transport.port import Port


class Server:
    """One shard's role.

    A push is also the pull that follows it: every push is answered once, with the newest version,
    as soon as the policy lets its worker go on.
    """

    def __init__(
        self,
        port: Port,
        shard: Shard,
        policy: Policy,
        *,
        events: ShardEventRecorder | None = None,
        receive: Callable[[], Awaitable[Message]] | None = None,
    ) -> None:
        """Set up.

        Args:
            port: this rank's end of the transport.
            shard: the numbers.
            policy: decides.
            events: takes what happens; None keeps no history.
            receive: gives the next message; None asks the port. A replay has an order of its own.
        """
        self._port = port
        #: The numbers.
        self.shard = shard
        self._policy = policy
        self._events = events
        self._receive = receive or port.receive
        self._index = port.role_map.shard_of(port.rank) or 0
        self._ranks = port.role_map.workers
        self._leases = Leases(len(shard.buffers), port.in_flight)
        #: τ of each worker's last push when it came in, and when it was taken up.
        self._met = [0] * len(self._ranks)
        self._taken = [0.0] * len(self._ranks)
        #: Whose message is being handled.
        self._cause = -1
        self._slowest = 0
        #: Whether a version takes long enough to make to be read meanwhile.
        self._streams = shard.theta.size > BLOCK
        port.waiting_for = self._waiting_for

    @property
    def stats(self) -> Stats:
        """What this rank counted, once its role is over."""
        port, stats = self._port, self.shard.stats
        stats.shard, stats.updates = self._index, self.shard.version
        stats.bytes_sent, stats.bytes_received = port.bytes_sent, port.bytes_received
        return stats

    async def run(self) -> Shard:
        """Serve until every worker has left; return the shard as it then is."""
        policy, receive = self._policy, self._receive
        while policy.live:
            message = await receive()
            self._take(message)
            decisions = policy.handle(message)  # type: ignore[arg-type]
            for decision in decisions:
                kind = type(decision)
                if kind is Apply:
                    # A version that is streamed was announced to those who wait for it before it
                    # was made, so their Serve decisions are done already.
                    if await self._apply(decisions, decision.pushes):  # type: ignore[union-attr]
                        break  # only answers come after an update
                elif kind is Serve:
                    self._serve(decision)  # type: ignore[arg-type]
                elif kind is Keep:
                    await self._keep(decision.push)  # type: ignore[union-attr]
                else:
                    self._drop(decision.push, message)  # type: ignore[union-attr]
            if type(message) is Push:
                self._note_spread(policy.clock[message.worker])
        # The windows go with this rank, and somebody may still read the last answer in them.
        await self._drain()
        return self.shard

    def _take(self, message: Message) -> None:
        """Take up a message."""
        now = self._port.now()
        if type(message) is Push:
            self._cause = worker = message.worker
            self._leases.release(self._ranks[worker])  # it has read what it was sent
            # Asked before the policy handles the push: it may apply it at once, which raises the
            # version. While a push waits no update passes it by, so this τ is also the one it has
            # when it is applied.
            self._met[worker] = self._policy.staleness(message)
            self._taken[worker] = now
        elif type(message) is Leave:
            self._cause = message.worker
            self.shard.forget(message.worker)
        else:
            raise ProtocolError(f"server {self._index} was sent {message}, expected a push")
        if self._events is not None:
            self._events.taken(message, now)

    async def _apply(self, decisions: Sequence[Decision], pushes: Sequence[Push]) -> bool:
        """Make the next version; return whether those who wait for it were answered, too."""
        port, shard = self._port, self.shard
        if port.apply_s is not None:
            await self._work(sum(1 for push in pushes if push.samples))
        # In place if nobody reads the newest version: the same memory traffic as out of place, but
        # one buffer less in the cache. Otherwise a reader would see a torn vector.
        buffer = await self._free_buffer() if self._leases else shard.newest
        began = 0.0 if self._events is None else port.now()
        streams = self._streams and any(push.samples for push in pushes)
        serves = [d for d in decisions if type(d) is Serve] if streams else []
        told = self._apply_and_announce(pushes, serves, buffer) if streams else set()
        if not streams:
            shard.apply(pushes, buffer)
        if self._events is not None:
            self._events.applied(pushes, shard.notes, shard.version, shard.lr, began, port.now())
        for serve in serves:
            # Those who were told have their answer and read while it was made; it is noted only
            # now, for the version was not there before. The others are on another host.
            if serve.worker in told:
                self._note_read(serve, port.now())
            else:
                self._serve(serve)
        return streams

    async def _work(self, gradients: int) -> None:
        """Let the time pass that working so many gradients in takes in virtual time."""
        port = self._port
        if gradients and port.apply_s is not None:
            await port.pause(port.apply_s(4 * port.role_map.spans[self._index].size * gradients))

    async def _keep(self, push: Push) -> None:
        if self._port.apply_s is not None:
            await self._work(1)
        self.shard.keep(push)
        if self._events is not None:
            self._events.kept(push, self._port.now())

    def _drop(self, push: Push, cause: Message) -> None:
        self.shard.stats.dropped += 1
        if self._events is not None:
            late = type(cause) is Push
            self._events.dropped(push, self.shard.version, self._port.now(), late=late)

    def _note_spread(self, finished: int) -> None:
        """Count how far ahead of the slowest a worker is that has finished so many steps."""
        stats = self.shard.stats
        if finished - self._slowest > stats.clock_spread_max and self._policy.live:
            self._slowest = self._policy.slowest
            stats.clock_spread_max = max(stats.clock_spread_max, finished - self._slowest)

    def _serve(self, serve: Serve) -> None:
        """Answer a worker with the newest version."""
        shard, rank = self.shard, self._ranks[serve.worker]
        now = self._port.now()
        # Before the send: a worker on this host may have read, computed and pushed again before the
        # next line runs, and its push must find what it read.
        self._note_read(serve, now)
        self._port.send(rank, self._answer(serve, shard.version, now), shard.newest)
        self._leases.acquire(rank, shard.newest)

    def _note_read(self, serve: Serve, now: float) -> None:
        self.shard.read_by(serve.worker)
        if self._events is not None:
            self._events.served(serve, self.shard.version, now)

    def _answer(self, serve: Serve, version: int, now: float) -> Params:
        """Return the message that takes ``version`` to a worker now."""
        worker = serve.worker
        return Params(
            self._index,
            version,
            serve.clock,
            self._met[worker],
            now - self._taken[worker],
            -1
            if worker == self._cause
            else self._cause,  # its own push let it go: no wait for others
            self.shard.fresh_gaps.pop(worker, -1.0),
        )

    def _apply_and_announce(
        self, pushes: Sequence[Push], serves: Sequence[Serve], buffer: int
    ) -> set[int]:
        """Make a version and let those who wait for it copy it block by block meanwhile.

        Returns:
            The workers that were told of it, so that they have their answer.
        """
        shard = self.shard
        announced: dict[int, Callable[[int], None]] = {}
        now = self._port.now()
        for serve in serves:
            rank = self._ranks[serve.worker]
            # The version that is about to be: whoever takes it up may not look at an element before
            # ``advance`` has said that it is there.
            answer = self._answer(serve, shard.version + 1, now)
            advance = self._port.announce(rank, answer, buffer)
            if advance is not None:
                announced[serve.worker] = advance
                self._leases.acquire(rank, buffer)
        advances = list(announced.values())

        def ready(elements: int) -> None:
            for advance in advances:
                advance(elements)

        shard.apply(pushes, buffer, ready)
        return set(announced)

    async def _free_buffer(self) -> int:
        """Return a buffer that nobody reads: the newest version's own if possible."""
        leases, newest = self._leases, self.shard.newest
        # There are three: the newest, one that slow readers still hold, one to write. With readers
        # on all of them there is nothing to do but wait for the slowest; more would only hide that.
        free = leases.free(newest)
        if free is None:
            await self._port.until(
                lambda: leases.free(newest) is not None,
                lambda: f"ranks {leases} to read older versions",
            )
            free = leases.free(newest)
        assert free is not None
        return free

    async def _drain(self) -> None:
        """Wait until the last answers have been read: their buffers go with this rank."""
        in_flight, ranks = self._port.in_flight, self._ranks
        await self._port.until(
            lambda: not any(map(in_flight, ranks)), lambda: "the last answers to be read"
        )

    def _waiting_for(self) -> str:
        policy = self._policy
        busy = [
            f"{worker} (rank {self._ranks[worker]}, clock {clock})"
            for worker, clock in policy.clock.items()
            if worker not in policy.waiting
        ]
        return f"shard {self._index} at version {policy.version}: a push of worker " + ", ".join(
            busy
        )
