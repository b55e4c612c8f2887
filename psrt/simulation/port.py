"""A rank's port in virtual time: the protocol ``Port`` on top of a simulator.

A payload stays with its writer until it is read, as in shared memory, or is copied when its
message arrives, as between hosts. A role that awaits is suspended until an event resumes it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from psrt.core.arrays import AnyArray, Bytes, Vector
from psrt.core.messages import Leave, Message, Mix, Params, Push
from psrt.core.stats import Sent
from psrt.simulation.collective_port import CollectivePort, suspend
from psrt.simulation.network import Channel
from psrt.transport.frames import FRAME_BYTES
from psrt.transport.port import FRAMED, NO_PAYLOAD, ThetaMemory

if TYPE_CHECKING:
    from psrt.simulation.cell import World

T = TypeVar("T")

#: In an inbox: the message's channel, the message, its region at the sender, and its bytes.
Mail = tuple[Channel, Message, int, int]


class VirtualPort(CollectivePort):
    """One rank's port in a ``Simulator``."""

    def __init__(self, world: World, rank: int) -> None:
        super().__init__(world, rank)
        role_map = self.role_map
        #: The shards of this server, each with its index among them; empty at a worker.
        self._places = {shard: i for i, shard in enumerate(role_map.shards_of(rank))}
        #: Describes the peers that this rank waits for; set by a role.
        self.waiting_for: Callable[[], str] = lambda: "a message"
        #: See ``Port``; the simulator knows the clocks by itself.
        self.leave_of: Callable[[int, int], Leave | None] = lambda shard, worker: None
        if self.worker < 0:
            self.apply_s = None if world.costs.apply is None else self._apply_seconds
        #: The time of receiving a message that has arrived; None: no time.
        self._receive_s = world.costs.receive
        #: Seconds that a server has spent applying gradients.
        self.busy_s = 0.0
        #: Messages received so far, if receiving takes time.
        self._turn = 0
        #: By shard, the gradient steps whose pushes this worker has sent.
        self.pushed: dict[int, int] = {}
        numerics = world.numerics
        self.theta = np.zeros(
            role_map.theta_size if numerics and self.worker >= 0 else 0, np.float32
        )
        self.versions: dict[int, list[Vector]] = {
            shard: [
                np.zeros(role_map.spans[shard].size if numerics else 0, np.float32)
                for _ in range(role_map.versions)
            ]
            for shard in self._places
        }
        #: Where parameters land, if not in ``theta``.
        self._landing: Vector | None = None
        #: See ``Port``.
        self.offers: list[Vector] = self._regions() if role_map.peers and self.worker >= 0 else []
        #: By worker that this one mixes with, the first round without this worker.
        self.mixed: dict[int, int] = {}
        self.landings: Mapping[int, int] = {}
        self.theta_memory = ThetaMemory.OWN
        self._inbox: deque[Mail] = deque()
        #: The computing time of the step whose parts are being computed, in seconds.
        self._step_s = 0.0
        #: Actions to run while computing time passes, in order, each with the share before it.
        self._amid: deque[tuple[float, Callable[[], object]]] = deque()
        #: By worker and shard, its gradient span as it was when its push arrived.
        self._copies: dict[tuple[int, int], Vector] = {}
        #: By worker and shard, the latest frame: the codec's own memory, which does not change
        #: before the frame has been decoded.
        self._frames: dict[tuple[int, int], Bytes] = {}
        #: By worker, copies of the vectors and frames that a neighbour has sent and this rank has
        #: not received: neighbours do not answer each other, so a sender may be ahead.
        self._under_way: defaultdict[int, deque[AnyArray]] = defaultdict(deque)
        #: By shard, the clock of the last frame that serves several ranks.
        self._encoded: dict[int, int] = {}
        #: By shard, the bytes that were sent and received for it.
        self._sent_for: Counter[int] = Counter()
        self._received_for: Counter[int] = Counter()

    def _regions(self) -> list[Vector]:
        size = self.role_map.spans[0].size if self.world.numerics else 0
        return [np.zeros(size, np.float32) for _ in range(self.role_map.offers[self.worker])]

    def land_apart(self, theta: Vector | None = None) -> Vector:
        """Let ``theta`` be another; return where parameters land."""
        landing = self._landing = self.theta
        self.theta = self.theta.copy() if theta is None else theta
        return landing

    def payload(self, shard: int, worker: int) -> Vector:
        """Return a shard's span of the gradient of ``worker``, or what it mixes."""
        if self.role_map.peers:
            return self._copies[worker, shard]
        if not self.world.numerics:
            return self.gradient
        span = self.role_map.spans[shard]
        if self.world.shared_memory:
            return span.of(self.world.ports[self.role_map.workers[worker]].gradient)
        if (worker, shard) not in self._copies:
            self._copies[worker, shard] = np.zeros(span.size, np.float32)
        return self._copies[worker, shard]

    def frame(self, shard: int, worker: int) -> Bytes:
        """Return the latest frame between a shard and ``worker``."""
        return self._frames[worker, shard]

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)`` now, then let its cost pass; see ``after_compute``."""
        self.computing = True
        result = work(*args)  # before any other role runs: ranks share the memory of a batch
        if self.behind:
            await self.catch_up()
        seconds = self.world.costs.compute(self.rank, self.world.rng)
        done = 0.0
        if self.world.cores is None:
            for share, _ in self._amid:
                self.world.after(seconds * share, self._act)
        else:  # only the work before an action determines when it is due
            while self._amid:
                share = self._amid[0][0]
                await self.pause((share - done) * seconds, works=True)
                self._act(None)
                done = share
        await self.pause((1.0 - done) * seconds, works=True)
        while self._amid:  # rounding may leave actions due at the very end
            self._act(None)
        if self.behind:  # time spent by those actions
            await self.catch_up()
        self.computing = False
        while self._after_compute:
            self._after_compute.pop(0)()
        return result

    async def compute_part(self, share: float, work: Callable[[], T], *, first: bool) -> T:
        """Run ``work()`` now, then let its share of the cost of a step pass."""
        result = work()
        if first:
            self._step_s = self.world.costs.compute(self.rank, self.world.rng)
        await self.pause(share * self._step_s, works=True)
        return result

    def amid(self, share: float, action: Callable[[], object]) -> None:
        """Run ``action()`` when that share of the current computing time has passed.

        Recorded sums are the remaining time after computing, so they begin there.
        """
        if self.world.costs.reduce is not None:
            self.after_compute(action)
        else:
            self._amid.append((share, action))

    async def spend(self, seconds: float) -> None:
        """Let the time of a computed part pass, and run the actions of ``amid`` that are due."""
        await self.pause(seconds, works=True)
        while self._amid:
            self._act(None)
        if self.behind:
            await self.catch_up()

    def _act(self, _: object) -> None:
        """Run the next action of ``amid``, unless all were run or this rank has crashed."""
        if self._amid and self.rank not in self.world.crashed:
            _, action = self._amid.popleft()
            # The time up to here has passed, so what the action does is not too early.
            self.computing, before = False, self.computing
            action()
            self.computing = before

    async def aside(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)``; no time passes."""
        return work(*args)

    def _apply_seconds(self, shard: int, nbytes: int) -> float:
        """Draw the time of applying ``nbytes`` of gradient, and count it."""
        world = self.world
        assert world.costs.apply is not None, "there is no apply_s without a cost"
        seconds = world.costs.apply(shard, nbytes, world.rng)
        self.busy_s += seconds
        return seconds

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Send ``message``, and the contents of ``region`` with it, to rank ``to``."""
        nbytes = FRAME_BYTES
        if region != NO_PAYLOAD and type(message) is Mix:
            self.world.ports[to].take_offer(message, self.offers[region])
        if region != NO_PAYLOAD:
            nbytes += 4 * self.role_map.spans[message.shard].size
        self._send(to, message, region, nbytes)

    def send_framed(self, to: int, message: Message, frame: Bytes) -> None:
        """Send ``message``, and ``frame`` with it, to rank ``to``."""
        self._spend_on_frame(message)
        self.world.ports[to].take_frame(message, frame)
        self._send(to, message, FRAMED, FRAME_BYTES + frame.size)

    def _spend_on_frame(self, message: Message) -> None:
        """Spend the time of encoding a message's frame."""
        frames = self.world.frames
        if frames is None:
            return
        n, shard = self.role_map.spans[message.shard].size, message.shard
        is_reply = type(message) is Params
        if type(message) is Mix:
            if self._encoded.get(shard) == message.clock:
                return
            self._encoded[shard] = message.clock
        self.behind += (frames.encode_reply if is_reply else frames.encode).at(n)

    def bytes_of(self, shard: int) -> tuple[int, int]:
        """Return the bytes that a server has sent and received for one of its shards."""
        return self._sent_for[shard], self._received_for[shard]

    def take_frame(self, message: Message, frame: Bytes) -> None:
        """Keep a frame that is on its way; the previous one is not needed any more."""
        if type(message) is Mix:
            self._under_way[message.worker].append(frame.copy())
            return
        worker = message.worker if type(message) is Push else self.worker
        self._frames[worker, message.shard] = frame

    def take_offer(self, mix: Mix, vector: Vector) -> None:
        """Keep a vector that is on its way."""
        self._under_way[mix.worker].append(vector.copy())

    def _send(self, to: int, message: Message, region: int, nbytes: int) -> None:
        world, shard = self.world, message.shard
        self.bytes_sent += nbytes
        self._sent_for[shard] += nbytes
        if type(message) is Push:
            self.pushed[shard] = message.clock + 1
        elif type(message) is Mix:
            self.mixed[to] = message.clock + (region != NO_PAYLOAD)
        if to in world.crashed:
            return
        channel = self._channels.get((to, shard)) or self.channel(to, shard)
        channel.unread += 1
        mail = channel, message, region, nbytes
        self.depart(channel, nbytes, world.ports[to].deliver, mail)

    def deliver(self, mail: Mail) -> None:
        """Queue a message that has arrived, and resume a waiting role."""
        world = self.world
        if not world.shared_memory and world.numerics:
            channel, message, region, _ = mail
            if type(message) is Push and region not in (NO_PAYLOAD, FRAMED):
                span = self.role_map.spans[message.shard]
                there = span.of(world.ports[channel.source].gradient)
                np.copyto(self.payload(message.shard, message.worker), there)
            elif type(message) is Params:
                # As early as MPI may, so while this rank computes.
                self._land(channel, message, region)
        self._inbox.append(mail)
        if self.waiting:
            self.waiting = False
            world.resume(self.rank)

    def _land(self, channel: Channel, params: Params, region: int) -> None:
        """Copy the parameters of a reply to where they land."""
        if region != FRAMED:
            versions = self.world.ports[channel.source].versions[params.shard]
            landing = self.theta if self._landing is None else self._landing
            np.copyto(self.role_map.spans[params.shard].of(landing), versions[region])

    def in_flight(self, to: int, shard: int) -> bool:
        """Return whether the last payload of a shard sent to ``to`` may still be in use there."""
        if self.role_map.peers:
            return False  # it was copied
        channel = self._channels.get((to, shard))
        return channel is not None and channel.unread > 0

    def forget(self, rank: int) -> None:
        """Count all messages to a crashed rank as read: it will not read them."""
        for shard in self._places or self.role_map.shards_of(rank) or (0,):
            channel = self._channels.get((rank, shard))
            if channel is not None and channel.unread:
                channel.unread = 0
                self.world.touch(self.rank)

    async def receive(self) -> Message:
        """Return the next message in order of arrival, with its payload in place."""
        inbox, seconds, idle = self._inbox, self._receive_s, False
        if self.behind:
            await self.catch_up()
        while not inbox:
            self.waiting = idle = True
            await suspend()
        if seconds is not None:
            # The next message is chosen before its cost is drawn, and again after the cost has
            # passed: a message that arrived meanwhile may be from a peer whose turn is earlier.
            if not idle:
                self._bring_forward()
            await self.pause(seconds(self.rank, inbox[0][1], idle, self.world.rng), works=True)
            self._bring_forward()
            self._turn += 1
        channel, message, region, nbytes = inbox.popleft()
        if not nbytes:  # the notice of a death, which no rank sent: ask for the clock to report
            assert type(message) is Leave
            message = self.leave_of(message.shard, message.worker) or message
        else:
            world = self.world
            if type(message) is Params and world.numerics and world.shared_memory:
                self._land(channel, message, region)
            elif type(message) is Mix:
                self._take(message, region)
            channel.unread -= 1
            if not channel.unread:
                world.touch(channel.source)
            self.bytes_received += nbytes
            self._received_for[message.shard] += nbytes
            if region == FRAMED and world.frames is not None:
                back = type(message) is Params
                line = world.frames.decode_reply if back else world.frames.decode
                self.behind += line.at(self.role_map.spans[message.shard].size)
        return message

    async def receive_by(self, by: float) -> Message | None:
        """Return the next message; None if none has come by then."""
        if self.behind:
            await self.catch_up()
        if not self._inbox and self.now() < by:
            self.world.at(by, self._ring, None)
        while not self._inbox and self.now() < by:  # it may be the alarm of an earlier call
            self.waiting = True
            await suspend()
        return await self.receive() if self._inbox else None

    def _ring(self, _: None) -> None:
        """End the wait of ``receive_by``, unless a message has."""
        if self.waiting:
            self.waiting = False
            self.world.resume(self.rank)

    def _take(self, mix: Mix, region: int) -> None:
        """Take what a neighbour's message brings."""
        if region == FRAMED:
            self._frames[mix.worker, mix.shard] = self._under_way[mix.worker].popleft()
        elif region != NO_PAYLOAD:
            self._copies[mix.worker, mix.shard] = self._under_way[mix.worker].popleft()

    async def poll(self) -> Message | None:
        """Return the next message if one has come."""
        return await self.receive() if self._inbox else None

    def _bring_forward(self) -> None:
        """Move the message of the peer and shard whose turn is next to the front of the inbox."""
        inbox, role_map, places = self._inbox, self.role_map, self._places
        if len(inbox) > 1:
            # Polls as an MPI port does: a server shard by shard, and worker by worker.
            if places:
                workers, ports = len(role_map.workers), self.world.ports
                links = [
                    places[message.shard] * workers + ports[channel.source].worker
                    for channel, message, _, _ in inbox
                ]
                count = len(places) * workers
            elif role_map.peers:
                links, count = [channel.source for channel, _, _, _ in inbox], role_map.size
            else:
                links, count = [mail[1].shard for mail in inbox], len(role_map.servers)
            order = [(link - self._turn) % count for link in links]
            first = order.index(min(order))
            mail = inbox[first]
            del inbox[first]
            inbox.appendleft(mail)

    async def until(self, done: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
        """Let time pass until ``done()``.

        The condition is evaluated whenever a peer has read everything sent to it, and before a
        deadlock is reported.
        """
        if self.behind:
            await self.catch_up()
        if not done():
            self.waiting_for, before = waiting_for, self.waiting_for
            self.world.watch(self.rank, done)
            await suspend()
            self.waiting_for = before

    def report(self, report: Sent) -> None:
        """Hand ``report`` to the simulator."""
        self.world.on_report(report)
