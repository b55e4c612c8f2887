"""The server's role: receives a message, asks its shard's policy, executes the decisions."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from psrt.core.errors import ProtocolError
from psrt.core.messages import Leave, Message, Push, Tick
from psrt.core.stats import Stats
from psrt.core.units import numbered
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.weakly import weakly
from psrt.sync import Apply, Cut, Decision, Drop, Keep, Serve, stuck_one
from psrt.transport.port import Port


class Server:
    """One rank's role: it owns one shard or more, which decide independently."""

    def __init__(
        self,
        port: Port,
        shards: Sequence[ShardServer],
    ) -> None:
        """Set up.

        Args:
            port: this rank's end of the transport.
            shards: the servers of its shards, in order.
        """
        self._port = port
        #: The servers of its shards, in order.
        self.shards = tuple(shards)
        self._by_number = {it.number: it for it in shards}
        #: What shards of this server relay to each other.
        self._own: deque[Message] = deque()
        #: Whether messages also come from this server itself: relays, and ticks.
        self._speaks = any(it.followers or it.grace for it in shards)
        #: The shards of this server that decide, if there are several.
        own = [it for it in shards if not it.policy.follows]
        self._deciders = own if port.role_map.deciders and len(own) > 1 else []
        self._speaks |= bool(self._deciders)
        #: Whether windows close by the time; in a replay they close when they did.
        self.keeps_time = True
        #: Returns the next message; a replay puts them into their recorded order.
        self.receive: Callable[[], Awaitable[Message]] = (
            self.arrival if self._speaks else port.receive
        )
        port.waiting_for = weakly(self._waiting_for, "a message")
        port.leave_of = weakly(self._leave_of)

    @property
    def stats(self) -> list[Stats]:
        """The counters of each shard; complete once ``run`` has returned."""
        return [it.stats for it in self.shards]

    async def run(self) -> None:
        """Serve until every worker has left every shard."""
        receive, shards = self.receive, self._by_number
        open_shards = set(shards)
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
            if self._speaks:
                self._speak(it, decisions, message)
            if it.call is not None:
                it.ask(decisions)
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
                open_shards.discard(message.shard)  # perhaps again: relays may come later
        # The windows are freed with this rank, and a worker may still be reading its last reply.
        await self._port.until(
            lambda: all(it.is_drained for it in self.shards),
            lambda: "workers to read the last answers",
        )

    async def arrival(self) -> Message:
        """Return the next message: this server's own, a tick that is due, or one that arrives."""
        if self._own:
            return self._own.popleft()
        closes = [it for it in self.shards if it.closes is not None and self.keeps_time]
        if not closes:
            return await self._port.receive()
        first = min(closes, key=lambda it: it.closes)  # type: ignore[arg-type, return-value]
        by = first.closes or 0.0
        message = await self._port.receive_by(by) if self._port.now() < by else None
        if message is not None and self._port.now() > by:  # this process has paused meanwhile
            self._own.append(message)
            message = None
        return Tick(first.number) if message is None else message

    def _speak(self, it: ShardServer, decisions: Sequence[Decision], cause: Message) -> None:
        """Relay what a shard has decided to its followers, and note when its window is over."""
        it.watch_window()
        servers = self._port.role_map.servers
        for decision in decisions if it.followers else ():
            # Of a push whose worker has died each shard learns by itself.
            if type(decision) is Apply or (type(decision) is Drop and type(cause) is Push):
                for relay in it.relays(decision):
                    to = servers[relay.shard]
                    if to == self._port.rank:
                        self._own.append(relay)
                    else:
                        self._port.send(to, relay)
        # Not while shards of this server have not seen all: they may be about to merge.
        if self._deciders and self.keeps_time and not self._own:
            stuck = stuck_one([it.policy for it in self._deciders])
            if stuck is not None:
                self._own.append(Tick(self._deciders[stuck].number, by_time=False))

    def _leave_of(self, shard: int, worker: int) -> Leave | None:
        clock = self._by_number[shard].policy.clock.get(worker)
        return None if clock is None else Leave(worker, clock, shard, missed=True)

    def _waiting_for(self) -> str:
        waits: dict[str, list[int]] = {}
        for it in self.shards:
            if it.policy.live:
                waits.setdefault(it.waiting_for(), []).append(it.number)
        return "; ".join(f"{numbered('shard', which)} {what}" for what, which in waits.items())
