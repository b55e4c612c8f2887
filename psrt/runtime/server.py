"""The server's role: takes what comes, asks the policy, does what it decided."""

from __future__ import annotations

from psrt.errors import ProtocolError
from psrt.messages import Leave, Params, Push
from psrt.runtime.shard import Shard
from psrt.sync import Apply, Drop, Keep, Policy, Serve
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
        port.whom = self._whom

    async def run(self) -> Shard:
        """Serve until every worker has left; return the shard as it then is."""
        port, policy = self._port, self._policy
        while policy.live:
            message = await port.receive()
            if type(message) is Push:
                self._arrived(message)
            elif type(message) is not Leave:
                raise ProtocolError(f"server {self._index} was sent {message}, expected a push")
            for decision in policy.handle(message):
                kind = type(decision)
                if kind is Serve:
                    await self._serve(decision)  # type: ignore[arg-type]
                elif kind is Apply:
                    await self._apply(decision)  # type: ignore[arg-type]
                elif kind is Keep:
                    self.shard.keep(decision.push)  # type: ignore[union-attr]
                elif kind is Drop:
                    self.shard.drop()
        await self._drain()
        return self.shard

    def _arrived(self, push: Push) -> None:
        worker = push.worker
        self._leases.pop(self._ranks[worker], None)  # it has read what it was sent
        self._met[worker] = self._policy.staleness(push)
        finished = push.clock + 1
        if finished - self._slowest > self.clock_spread_max:
            self._slowest = min(self._policy.clock.values())
            self.clock_spread_max = max(self.clock_spread_max, finished - self._slowest)

    async def _serve(self, serve: Serve) -> None:
        shard, worker = self.shard, serve.worker
        rank = self._ranks[worker]
        shard.read_by(worker)
        reply = Params(self._index, shard.version, serve.clock, self._met[worker])
        await self._port.send(rank, reply, shard.newest)
        self._leases[rank] = shard.newest

    async def _apply(self, apply: Apply) -> None:
        buffer = self.shard.newest
        if self._leases:
            buffer = await self._free_buffer()
        self.shard.apply(apply.pushes, buffer)

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
        self._leases = {rank: b for rank, b in self._leases.items() if in_flight(rank)}
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


