"""What a server does for one shard: it carries out the decisions of the shard's policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psrt.errors import ProtocolError
from psrt.history.log import QUEUED
from psrt.messages import Leave, Message, Params, Push
from psrt.optim import BLOCK
from psrt.runtime.event_recorder import ShardEventRecorder
from psrt.runtime.leases import Leases
from psrt.runtime.shard import Shard
from psrt.stats import Stats
from psrt.sync import Decision, Policy, Serve
from psrt.transport.port import Port


class ShardServer:
    """What a server does for one of its shards.

    A push is also the pull that follows it: every push is answered once, with the newest version,
    as soon as the policy lets its worker go on.
    """

    def __init__(
        self,
        port: Port,
        number: int,
        shard: Shard,
        policy: Policy,
        *,
        events: ShardEventRecorder | None = None,
    ) -> None:
        """Set up.

        Args:
            port: this rank's end of the transport.
            number: of the shard.
            shard: the span of parameters that it serves.
            policy: decides when pushes are applied and workers answered.
            events: records events for the history; None keeps none.
        """
        self._port = port
        #: Of the shard.
        self.number = number
        #: The span of parameters that it serves.
        self.shard = shard
        #: Decides when pushes are applied and workers answered.
        self.policy = policy
        self._events = events
        self._ranks = port.role_map.workers
        self._leases = Leases(len(shard.buffers), self._in_flight)
        #: By worker, τ of its last push on receipt, and the time of that receipt.
        self._tau = [0] * len(self._ranks)
        self._received_at = [0.0] * len(self._ranks)
        #: The worker whose message is being handled.
        self._cause = -1
        self._slowest = 0
        #: Whether a version takes long enough to write that workers may read it meanwhile.
        self._streams = shard.theta.size > BLOCK

    @property
    def stats(self) -> Stats:
        """The counters of the shard, and at a rank's first shard those of the rank's port."""
        port, stats = self._port, self.shard.stats
        stats.shard, stats.updates = self.number, self.shard.version
        if self.number == port.role_map.shards_of(port.rank)[0]:
            stats.bytes_sent, stats.bytes_received = port.bytes_sent, port.bytes_received
        return stats

    def take(self, message: Message) -> None:
        """Note the receipt of a message, before the policy handles it."""
        now = self._port.now()
        if type(message) is Push:
            self._cause = worker = message.worker
            # A worker pushes only after it has read its last reply, so its lease is over without
            # asking the port.
            self._leases.release(self._ranks[worker])
            # Before the policy handles the push: it may apply it at once, which raises the version.
            # No update passes a pending push by, so this τ is also its τ when it is applied.
            self._tau[worker] = self.policy.staleness(message)
            self._received_at[worker] = now
        elif type(message) is Leave:
            self._cause = message.worker
            self.shard.forget(message.worker)
            self.shard.stats.left[message.worker] = message.clock
        else:
            raise ProtocolError(f"shard {self.number} was sent {message}, expected a push")
        events = self._events
        if events is not None:
            if len(events.noted) >= QUEUED:
                events.drain()
            events.note((events.taken, message, now))

    async def apply(self, decisions: Sequence[Decision], pushes: Sequence[Push]) -> bool:
        """Make the next version; return whether its Serve decisions were carried out, too."""
        port, shard = self._port, self.shard
        if port.apply_s is not None:
            await self._pass_time(sum(1 for push in pushes if push.samples))
        # In place if nobody reads the newest version: the same memory traffic as out of place, but
        # one buffer less in the cache. Otherwise a reader would see a torn vector.
        buffer = await self._free_buffer() if self._leases else shard.newest
        began = 0.0 if self._events is None else port.now()
        # An update without samples writes nothing, so there is nothing to stream.
        streams = self._streams and any(push.samples for push in pushes)
        serves = [d for d in decisions if type(d) is Serve] if streams else []
        answered = self._apply_and_announce(pushes, serves, buffer) if streams else set()
        if not streams:
            shard.apply(pushes, buffer)
        events = self._events
        if events is not None:
            call = events.applied, pushes, shard.notes, shard.version, shard.lr, began, port.now()
            events.note(call)
        for serve in serves:
            # These workers have their reply and read it while it was written; the read is recorded
            # only now that the version exists. The others are on another host.
            if serve.worker in answered:
                self._note_read(serve, port.now())
            else:
                self.serve(serve)
        return streams

    async def _pass_time(self, gradients: int) -> None:
        """Let the virtual time of applying that many gradients pass."""
        port = self._port
        if gradients and port.apply_s is not None:
            size = port.role_map.spans[self.number].size
            await port.pause(port.apply_s(self.number, 4 * size * gradients))

    async def keep(self, push: Push) -> None:
        """Save a gradient whose worker continues before its update."""
        if self._port.apply_s is not None:
            # Saving adds the gradient to a sum, which costs what applying it would.
            await self._pass_time(1)
        self.shard.keep(push)
        events = self._events
        if events is not None:
            events.note((events.kept, push, self._port.now()))

    def drop(self, push: Push, cause: Message) -> None:
        """Discard a gradient, because of a message."""
        self.shard.stats.dropped += 1
        events = self._events
        if events is not None:
            late = type(cause) is Push
            events.note((events.dropped, push, self.shard.version, self._port.now(), late))

    def note_spread(self, finished: int) -> None:
        """Update the largest clock spread with a worker that has ``finished`` steps."""
        stats = self.shard.stats
        # ``_slowest`` may be out of date, but clocks never decrease: a spread that is no record by
        # the old minimum is none by the new one, so the exact minimum is asked for rarely.
        if finished - self._slowest > stats.clock_spread_max and self.policy.live:
            self._slowest = self.policy.slowest
            stats.clock_spread_max = max(stats.clock_spread_max, finished - self._slowest)

    def serve(self, serve: Serve) -> None:
        """Answer a worker with the newest version."""
        shard, rank = self.shard, self._ranks[serve.worker]
        now = self._port.now()
        # Before the send: a worker on this host may have read, computed and pushed again before the
        # next line runs, and its push needs the record of what it read.
        self._note_read(serve, now)
        self._port.send(rank, self._answer(serve, shard.version, now), shard.newest)
        self._leases.acquire(rank, shard.newest)

    def _note_read(self, serve: Serve, now: float) -> None:
        self.shard.read_by(serve.worker)
        events = self._events
        if events is not None:
            events.note((events.served, serve, self.shard.version, now))

    def _answer(self, serve: Serve, version: int, now: float) -> Params:
        """Return the reply that sends ``version`` to a worker now."""
        worker = serve.worker
        return Params(
            self.number,
            version,
            serve.clock,
            self._tau[worker],
            now - self._received_at[worker],
            # −1: its own push released it, so it waited for no other worker.
            -1 if worker == self._cause else self._cause,
            self.shard.fresh_gaps.pop(worker, -1.0),
        )

    def _apply_and_announce(
        self, pushes: Sequence[Push], serves: Sequence[Serve], buffer: int
    ) -> set[int]:
        """Make a version while its readers copy it block by block.

        Args:
            pushes: as for ``Shard.apply``.
            serves: the workers to answer with this version.
            buffer: the one to write, which nobody reads.

        Returns:
            The workers that have their reply; those on another host have none yet.
        """
        shard = self.shard
        announced: dict[int, Callable[[int], None]] = {}
        now = self._port.now()
        for serve in serves:
            rank = self._ranks[serve.worker]
            # The version after this update: a reader must not load an element before ``advance``
            # has published it.
            answer = self._answer(serve, shard.version + 1, now)
            advance = self._port.announce(rank, answer, buffer)
            if advance is not None:
                # Leased at once: it is being read from now on, until the worker's next push.
                announced[serve.worker] = advance
                self._leases.acquire(rank, buffer)
        advances = list(announced.values())

        def ready(elements: int) -> None:
            for advance in advances:
                advance(elements)

        shard.apply(pushes, buffer, ready)
        return set(announced)

    async def _free_buffer(self) -> int:
        """Wait for a buffer that nobody reads: the newest version's own if possible."""
        leases, newest = self._leases, self.shard.newest
        # There are three: the newest, one that slow readers still hold, one to write. With readers
        # on all of them the server waits for the slowest; more buffers would only hide that.
        free = leases.free(newest)
        if free is None:
            await self._port.until(
                lambda: leases.free(newest) is not None,
                lambda: f"ranks {leases} to read older versions",
            )
            free = leases.free(newest)
        assert free is not None
        return free

    def _in_flight(self, to: int) -> bool:
        return self._port.in_flight(to, self.number)

    @property
    def is_drained(self) -> bool:
        """Whether the last replies have been read."""
        return not any(map(self._in_flight, self._ranks))

    def waiting_for(self) -> str:
        """Describe the pushes that are waited for."""
        policy = self.policy
        busy = [
            f"{worker} (rank {self._ranks[worker]}, clock {clock})"
            for worker, clock in policy.clock.items()
            if worker not in policy.waiting
        ]
        return f"shard {self.number} at version {policy.version}: a push of worker " + ", ".join(
            busy
        )
