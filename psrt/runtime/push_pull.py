"""The strategy of the modes with servers: push the gradient to every shard, pull what follows."""

from __future__ import annotations

from psrt.errors import ProtocolError
from psrt.messages import Leave, Params, Push
from psrt.optim import l2_norm
from psrt.runtime.strategy import Outcome, Step, Strategy
from psrt.transport.port import GRADIENT, NO_PAYLOAD, Port


class PushPull(Strategy):
    """A worker's side of the parameter server. Which mode it is, only the servers know."""

    def __init__(self, port: Port, *, clip_norm: float | None = None) -> None:
        wiring = port.wiring
        self._port = port
        self._worker = wiring.worker_of(port.rank) or 0
        self._servers = wiring.servers
        self._gradient = port.gradient[: wiring.n]
        self._clips = clip_norm is not None
        #: Version of each shard that ``theta`` holds.
        self.versions = [0] * len(wiring.servers)
        self._clock = 0
        self.updates = 0
        port.whom = self._whom

    async def step(self, step: Step) -> Outcome:
        """Push to every shard, then take every shard's answer, in order of arrival."""
        port, worker, versions = self._port, self._worker, self.versions
        clock, samples, progress = step
        self._clock = clock
        norm = l2_norm(self._gradient) if self._clips and samples else 0.0
        region = GRADIENT if samples else NO_PAYLOAD
        for shard, rank in enumerate(self._servers):
            push = Push(worker, clock, versions[shard], samples, progress, norm)
            port.send(rank, push, region)
        if len(versions) == 1:
            reply = await self._reply()
            tau = reply.staleness
            return Outcome(reply.clock, tau, 1, tau, 0)
        replies = [await self._reply() for _ in versions]
        taus = [reply.staleness for reply in replies]
        return Outcome(
            await self._level({reply.shard: reply.clock for reply in replies}, progress),
            sum(taus),
            len(taus),
            max(taus),
            max(versions) - min(versions),
        )

    async def leave(self, clock: int) -> None:
        """Tell every shard."""
        for rank in self._servers:
            self._port.send(rank, Leave(self._worker, clock))

    async def _level(self, clocks: dict[int, int], progress: float) -> int:
        """Bring all shards to one clock, by shard in ``clocks``, and return it.

        Only backups make them differ. A gradient of parameters of which one shard's part is
        older than another's would belong to no clock, so what is behind is read again.
        """
        while min(clocks.values()) < (clock := max(clocks.values())):
            self._clock = clock
            behind = [shard for shard, reached in clocks.items() if reached < clock]
            for shard in behind:
                push = Push(self._worker, clock, self.versions[shard], 0, progress, 0.0)
                self._port.send(self._servers[shard], push)
            for _ in behind:
                reply = await self._reply()
                clocks[reply.shard] = reply.clock
        return clock

    async def _reply(self) -> Params:
        reply = await self._port.receive()
        if type(reply) is not Params:
            raise ProtocolError(f"worker {self._worker} was sent {reply}, expected parameters")
        self.versions[reply.shard] = reply.version
        return reply

    def _whom(self) -> str:
        ranks = ", ".join(map(str, self._servers))
        return f"a server (rank {ranks}) to answer worker {self._worker}'s clock {self._clock}"
