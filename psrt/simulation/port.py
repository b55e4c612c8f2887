"""A rank's port in virtual time: the protocol ``Port`` on top of a simulator.

A payload stays with its writer until it is read, as in shared memory, or is copied when its
message arrives, as between hosts. A role that awaits is suspended until an event resumes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from psrt.arrays import Vector
from psrt.messages import Message, Params, Push, Report
from psrt.partition import Span
from psrt.simulation.collective_port import CollectivePort, suspend
from psrt.simulation.network import Channel
from psrt.transport.frames import FRAME_BYTES
from psrt.transport.port import NO_PAYLOAD, VERSIONS

if TYPE_CHECKING:
    from psrt.simulation.simulator import Simulator

T = TypeVar("T")

#: In an inbox: the channel a message took, the message, its region at the sender, and its bytes.
Mail = tuple[Channel, Message, int, int]


class VirtualPort(CollectivePort):
    """One rank's port in a ``Simulator``."""

    def __init__(self, world: Simulator, rank: int) -> None:
        super().__init__(world, rank)
        role_map, shard = self.role_map, self.role_map.shard_of(rank)
        #: Describes the peers that this rank waits for; a role replaces it.
        self.waiting_for: Callable[[], str] = lambda: "a message"
        #: See ``Port``.
        self.apply_s: Callable[[int], float] | None = (
            None if world.costs.apply is None else self._apply_seconds
        )
        #: The time of receiving a message that has arrived; None: no time.
        self._receive_s = world.costs.receive
        #: Messages received, if that takes time.
        self._turn = 0
        #: Gradient steps whose pushes this worker has sent.
        self.pushed = 0
        #: The span of this server; empty at a worker.
        self._span = Span(0, 0) if shard is None else role_map.spans[shard]
        n, size = (role_map.n, self._span.size) if world.numerics else (0, 0)
        self.theta: Vector = np.zeros(n if shard is None else 0, np.float32)
        self.versions: list[Vector] = [
            np.zeros(size, np.float32) for _ in range(0 if shard is None else VERSIONS)
        ]
        self._inbox: deque[Mail] = deque()
        #: By rank of a worker, its gradient span as it was when its push arrived.
        self._copies: dict[int, Vector] = {}

    def now(self) -> float:
        """Return virtual time in seconds."""
        return self.world.time

    def payload(self, worker: int) -> Vector:
        """Return the gradient span of ``worker``."""
        if not self.world.numerics:
            return self.gradient
        rank = self.role_map.workers[worker]
        if self.world.shared_memory:
            return self._span.of(self.world.ports[rank].gradient)
        if rank not in self._copies:
            self._copies[rank] = np.zeros(self._span.size, np.float32)
        return self._copies[rank]

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)`` now, then let its cost pass; see ``after_compute``."""
        self.computing = True
        result = work(*args)
        await self.pause(self.world.costs.compute(self.rank, self.world.rng))
        self.computing = False
        while self._after_compute:
            self._after_compute.pop(0)()
        return result

    async def aside(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)``; no time passes."""
        return work(*args)

    async def pause(self, seconds: float) -> None:
        """Let ``seconds`` of virtual time pass."""
        world = self.world
        world.after(seconds, world.resume, self.rank)
        await suspend()

    def _apply_seconds(self, nbytes: int) -> float:
        """Draw the time of applying ``nbytes`` of gradient, and add it to the busy time."""
        world = self.world
        assert world.costs.apply is not None, "there is no apply_s without a cost"
        seconds = world.costs.apply(self.rank, nbytes, world.rng)
        world.busy[self.rank] = world.busy.get(self.rank, 0.0) + seconds
        return seconds

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Send ``message``, and the contents of ``region`` with it, to rank ``to``."""
        world, nbytes = self.world, FRAME_BYTES
        if region != NO_PAYLOAD:
            nbytes += 4 * (self._span.size or world.ports[to]._span.size)
        self.bytes_sent += nbytes
        if type(message) is Push:
            self.pushed = message.clock + 1
        if to in world.crashed:
            return
        channel = self._channels.get(to) or self.channel(to)
        channel.unread += 1
        mail = channel, message, region, nbytes
        world.network.send(channel, nbytes, world.ports[to].deliver, mail)

    def announce(self, to: int, message: Message, region: int) -> Callable[[int], None] | None:
        """Decline: nothing happens during an update in virtual time."""
        return None

    def deliver(self, mail: Mail) -> None:
        """Queue a message that has arrived, and resume a waiting role."""
        world = self.world
        if not world.shared_memory and world.numerics:
            channel, message, region, _ = mail
            if type(message) is Push and region != NO_PAYLOAD:
                there = self._span.of(world.ports[channel.source].gradient)
                np.copyto(self.payload(message.worker), there)
        self._inbox.append(mail)
        if self.waiting:
            self.waiting = False
            world.resume(self.rank)

    def in_flight(self, to: int) -> bool:
        """Return whether rank ``to`` may still be reading the last payload sent to it."""
        channel = self._channels.get(to)
        return channel is not None and channel.unread > 0

    def forget(self, rank: int) -> None:
        """Count everything sent to a crashed rank as read: it reads no more."""
        channel = self._channels.get(rank)
        if channel is not None and channel.unread:
            channel.unread = 0
            self.world.touch(self.rank)

    async def receive(self) -> Message:
        """Return the next message in order of arrival, its payload in place."""
        inbox, seconds, idle = self._inbox, self._receive_s, False
        while not inbox:
            self.waiting = idle = True
            await suspend()
        if seconds is not None:
            # The next message is chosen before its cost is drawn, and again after the cost has
            # passed: a message that arrived meanwhile may be from a peer whose turn is earlier.
            if not idle:
                self._bring_forward()
            await self.pause(seconds(self.rank, inbox[0][1], idle, self.world.rng))
            self._bring_forward()
            self._turn += 1
        channel, message, region, nbytes = inbox.popleft()
        if nbytes:  # else it is the notice of a death, which nobody sent
            world = self.world
            if type(message) is Params and world.numerics:
                span = self.role_map.spans[message.shard]
                np.copyto(span.of(self.theta), world.ports[channel.source].versions[region])
            channel.unread -= 1
            if not channel.unread:
                world.touch(channel.source)
            self.bytes_received += nbytes
        return message

    def _bring_forward(self) -> None:
        """Move the message of the peer whose turn is next to the front of the inbox."""
        inbox, role_map = self._inbox, self.role_map
        if len(inbox) > 1:
            peers = role_map.workers if self.worker < 0 else role_map.servers
            order = [(peers.index(mail[0].source) - self._turn) % len(peers) for mail in inbox]
            first = order.index(min(order))
            mail = inbox[first]
            del inbox[first]
            inbox.appendleft(mail)

    async def until(self, done: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
        """Let time pass until ``done()``.

        It is evaluated whenever a peer has read everything sent to it, and before a deadlock is
        reported.
        """
        if not done():
            self.waiting_for, before = waiting_for, self.waiting_for
            self.world.watch(self.rank, done)
            await suspend()
            self.waiting_for = before

    def report(self, report: Report) -> None:
        """Hand ``report`` to the simulator."""
        self.world.on_report(report)
