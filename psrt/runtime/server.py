"""The server's role: receives a message, asks its shard's policy, executes the decisions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from psrt.core.errors import ProtocolError
from psrt.core.messages import Leave, Message, Push
from psrt.core.stats import Stats
from psrt.core.units import numbered
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.weakly import weakly
from psrt.sync import Apply, Cut, Keep, Serve
from psrt.transport.port import Port


class Server:
    """One rank's role: it owns one shard or more, which decide independently."""

    def __init__(
        self,
        port: Port,
        shards: Sequence[ShardServer],
        *,
        receive: Callable[[], Awaitable[Message]] | None = None,
    ) -> None:
        """Set up.

        Args:
            port: this rank's end of the transport.
            shards: the servers of its shards, in order.
            receive: returns the next message; None asks the port. A replay uses the recorded order.
        """
        self._port = port
        #: The servers of its shards, in order.
        self.shards = tuple(shards)
        self._by_number = {it.number: it for it in shards}
        self._receive = receive or port.receive
        port.waiting_for = weakly(self._waiting_for, "a message")
        port.leave_of = weakly(self._leave_of)

    @property
    def stats(self) -> list[Stats]:
        """The counters of each shard; complete once ``run`` has returned."""
        return [it.stats for it in self.shards]

    async def run(self) -> None:
        """Serve until every worker has left every shard."""
        receive, shards = self._receive, self._by_number
        open_shards = len(shards)
        while open_shards:
            message = await receive()
            try:
                it = shards[message.shard]
            except KeyError:
                raise ProtocolError(
                    f"rank {self._port.rank} received {message}, expected one of "
                    f"{numbered('shard', list(shards))}"
                ) from None
            policy = it.policy
            if policy.fences(message):  # type: ignore[arg-type]
                it.fence(message)
                continue
            it.take(message)
            decisions = policy.handle(message)  # type: ignore[arg-type]
            if it.call is not None:
                it.ask()
            for decision in decisions:
                kind = type(decision)
                if kind is Apply:
                    await it.apply(decision.pushes)  # type: ignore[union-attr]
                elif kind is Serve:
                    it.serve(decision)  # type: ignore[arg-type]
                elif kind is Keep:
                    await it.keep(decision.push)  # type: ignore[union-attr]
                elif kind is Cut:
                    await it.cut(decision.cut)  # type: ignore[union-attr]
                else:
                    it.drop(decision.push, message)  # type: ignore[union-attr]
            if type(message) is Push:
                it.note_spread(policy.clock[message.worker])
            if it.at_version is not None and Apply in map(type, decisions):
                await it.at_version(it.clock)
            if not policy.live:
                open_shards -= 1
        # The windows are freed with this rank, and a worker may still be reading its last reply.
        await self._port.until(
            lambda: all(it.is_drained for it in self.shards),
            lambda: "workers to read the last answers",
        )

    def _leave_of(self, shard: int, worker: int) -> Leave | None:
        clock = self._by_number[shard].policy.clock.get(worker)
        return None if clock is None else Leave(worker, clock, shard, missed=True)

    def _waiting_for(self) -> str:
        waits: dict[str, list[int]] = {}
        for it in self.shards:
            if it.policy.live:
                waits.setdefault(it.waiting_for(), []).append(it.number)
        return "; ".join(f"{numbered('shard', which)} {what}" for what, which in waits.items())
