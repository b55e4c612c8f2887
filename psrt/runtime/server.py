"""The server's role: takes what comes, asks the policy, does what it decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psrt.errors import ProtocolError
from psrt.messages import Leave, Params, Push
from psrt.optim import BLOCK
from psrt.runtime.shard import Shard
from psrt.sync import Apply, Decision, Keep, Policy, Serve
from psrt.transport.port import Port


class Server:
    """One shard's role.

    A push is also the pull that follows it: every push is answered once, with the newest version,
    as soon as the policy lets its worker go on.
    """

    def __init__(self, port: Port, shard: Shard, policy: Policy) -> None:
        self._port = port
        #: The numbers.
        self.shard = shard
        self._policy = policy
        self._index = port.wiring.shard_of(port.rank) or 0
        self._ranks = port.wiring.workers
        #: Rank of a worker → buffer that may still be on its way to it.
        self._leases: dict[int, int] = {}
        #: τ of each worker's last push when it came in.
        self._met = dict.fromkeys(range(len(self._ranks)), 0)
        #: How far ahead of the slowest a worker was at most, in steps, when its push came in.
        self.clock_spread_max = 0
        self._slowest = 0
        #: Whether a version takes long enough to make to be read meanwhile.
        self._streams = shard.theta.size > BLOCK
        port.whom = self._whom

    async def run(self) -> Shard:
        """Serve until every worker has left; return the shard as it then is."""
        port, policy, leases, ranks = self._port, self._policy, self._leases, self._ranks
        while policy.live:
            message = await port.receive()
            if type(message) is Push:
                leases.pop(ranks[message.worker], None)  # it has read what it was sent
                self._met[message.worker] = policy.staleness(message)
            elif type(message) is not Leave:
                raise ProtocolError(f"server {self._index} was sent {message}, expected a push")
            decisions = policy.handle(message)
            for decision in decisions:
                kind = type(decision)
                if kind is Apply:
                    newest = self.shard.newest
                    buffer = await self._free_buffer() if leases else newest
                    pushes = decision.pushes  # type: ignore[union-attr]
                    if self._streams and any(push.samples for push in pushes):
                        self._apply_and_serve(decisions, buffer)
                        break  # only answers come after an update
                    self.shard.apply(pushes, buffer)
                elif kind is Serve:
                    self._serve(decision)  # type: ignore[arg-type]
                elif kind is Keep:
                    self.shard.keep(decision.push)  # type: ignore[union-attr]
                else:
                    self.shard.drop()
            if type(message) is Push:
                self._note_spread(policy.clock[message.worker])
        await self._drain()
        return self.shard

    def _note_spread(self, finished: int) -> None:
        """Count how far ahead of the slowest a worker is that has finished so many steps."""
        if finished - self._slowest > self.clock_spread_max and self._policy.live:
            self._slowest = min(self._policy.clock.values())
            self.clock_spread_max = max(self.clock_spread_max, finished - self._slowest)

    def _serve(self, serve: Serve) -> None:
        shard, worker = self.shard, serve.worker
        rank = self._ranks[worker]
        shard.read_by(worker)
        reply = Params(self._index, shard.version, serve.clock, self._met[worker])
        self._port.send(rank, reply, shard.newest)
        self._leases[rank] = shard.newest

    def _apply_and_serve(self, decisions: Sequence[Decision], buffer: int) -> None:
        """Make a version and let those who wait for it copy it block by block meanwhile."""
        shard = self.shard
        pushes = next(d.pushes for d in decisions if type(d) is Apply)
        serves = [d for d in decisions if type(d) is Serve]
        announced: list[Callable[[int], None]] = []
        later: list[Serve] = []
        for serve in serves:
            rank = self._ranks[serve.worker]
            reply = Params(self._index, shard.version + 1, serve.clock, self._met[serve.worker])
            advance = self._port.announce(rank, reply, buffer)
            if advance is None:
                later.append(serve)
            else:
                announced.append(advance)
                self._leases[rank] = buffer

        def ready(elements: int) -> None:
            for advance in announced:
                advance(elements)

        shard.apply(pushes, buffer, ready)
        for serve in serves:
            if serve in later:
                self._serve(serve)
            else:
                shard.read_by(serve.worker)

    async def _free_buffer(self) -> int:
        """Return a buffer that nobody reads: the newest version's own if possible."""
        free = self._find_free()
        if free is None:
            await self._port.until(
                lambda: self._find_free() is not None,
                lambda: f"ranks {sorted(self._leases)} to read older versions",
            )
            free = self._find_free()
        assert free is not None
        return free

    def _find_free(self) -> int | None:
        in_flight = self._port.in_flight
        for rank in [rank for rank in self._leases if not in_flight(rank)]:
            del self._leases[rank]
        leased = set(self._leases.values())
        newest = self.shard.newest
        if newest not in leased:
            return newest
        return next((b for b in range(len(self.shard.buffers)) if b not in leased), None)

    async def _drain(self) -> None:
        """Wait until the last answers have been read: their buffers go with this rank."""
        in_flight, ranks = self._port.in_flight, self._ranks
        await self._port.until(
            lambda: not any(map(in_flight, ranks)), lambda: "the last answers to be read"
        )

    def _whom(self) -> str:
        policy = self._policy
        busy = [
            f"{worker} (rank {self._ranks[worker]}, clock {clock})"
            for worker, clock in policy.clock.items()
            if worker not in policy.waiting
        ]
        return f"shard {self._index} at version {policy.version}: a push of worker " + ", ".join(
            busy
        )
