"""The strategy of the modes with servers: push the gradient to every shard, pull new parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from psrt.core.arrays import ITEMSIZE
from psrt.core.errors import FencedError, ProtocolError
from psrt.core.messages import OWN, Leave, Message, Params, Park, Push
from psrt.core.partition import Span
from psrt.core.sharding import memory
from psrt.history.events import PARKED
from psrt.history.folds.worker import WorkerFold
from psrt.history.log import QUEUED
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.push_codec import NO_DIGESTS, PushEncoder
from psrt.runtime.reply_codec import ReplyDecoder
from psrt.runtime.strategies.base import Step, Strategy
from psrt.runtime.weakly import weakly
from psrt.transport.port import GRADIENT, NO_PAYLOAD, Port, gradient_of


class Late(Protocol):
    """Computes gradients of older parameters than the newest that the worker has read."""

    @property
    def depth(self) -> int:
        """How many reads older, at most."""

    @property
    def staleness(self) -> int:
        """How many reads older the parameters of this step's gradient are."""


class PushPull(Strategy):
    """A worker's side of the parameter server, the same in every mode: the servers decide.

    If a gradient comes in parts, it pushes a shard as soon as its gradient is complete, the last
    layers first. The shard that is complete last is always pushed at the end of the step, after
    injected delays: so a step takes as long as it would without parts.

    Shards of a server are always pushed in the same order, the last one first, however many of them
    are pushed early. Otherwise a push that waits for answers to others (see ``Window``) could wait
    for ever, if another worker withheld those.
    """

    saved = ("_encoder", "_decoder", "_cut")

    def __init__(
        self,
        port: Port,
        *,
        spans: Sequence[Span] = (),
        shards: Sequence[int] | None = None,
        late: Late | None = None,
        parks: bool = False,
        encoder: PushEncoder | None = None,
        decoder: ReplyDecoder | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up.

        Args:
            port: of a worker.
            spans: parts of the gradient in the order in which they become ready; without any, all
                is pushed at the end.
            shards: those that it talks to; None for all.
            late: says which parameters a gradient is of; None where they are those read last.
            parks: whether servers say when this worker is at a cut; else it is after each step.
            encoder: makes frames of gradients; None pushes them as they are.
            decoder: adds the frames of replies to ``theta``; None where parameters are sent.
            events: records events for the history; None keeps none.
        """
        role_map = port.role_map
        self._port = port
        self._worker = role_map.worker_of(port.rank) or 0
        self._servers = role_map.servers
        #: In which shards are pushed.
        self._shards = range(len(role_map.servers)) if shards is None else shards
        self._order = self._shards
        # A shard that decides what others merge has a push last: else they wait for a worker that
        # stops halfway.
        if role_map.most_shards > 1 or role_map.deciders:
            self._order = self._order[::-1]
        self._gradient = gradient_of(port)
        self._encoder, self._decoder = encoder, decoder
        self._events = events
        #: When the present parameters were complete; None before the first step.
        self._since: float | None = None
        #: Version of each shard that ``theta`` holds.
        self.versions: list[int] = [0] * len(role_map.servers)
        #: Whether the parameters of the first step were read.
        self._has_read = False
        self._late = late
        #: Of the reads that gradients may be of, the newest last.
        self._reads = deque([self.versions], 1 if late is None else late.depth + 1)
        self._clock = 0
        #: See ``cut``, which a checkpoint has: a worker that resumes from it parks first.
        self._cut = 0
        #: Whether the run ends there.
        self._ends = False
        self._parks = parks
        #: The local steps before the next push, as servers say; 0 if they do not.
        self.local_steps = 0
        self.updates = 0
        self.counts = WorkerFold()
        #: The optimizer's vectors are at the servers.
        self.memory = memory(None, port.role_map.n, workers=1, vectors=0)
        #: By part of the gradient, the shards that are complete with it; none of the last part.
        self._completes = _completed(role_map.spans, spans)
        #: Parts of this step's gradient that are ready, and the share of the work that is done.
        self._parts_ready = 0
        self._shares = shares_of(spans)
        self._step = Step(0, 0, 0.0)
        #: By shard, when this step's gradient was pushed; None if it was not yet.
        self._pushed: list[float | None] = [None] * len(role_map.servers)
        self.ready = weakly(self._ready) if any(self._completes) else None
        port.waiting_for = weakly(self.waiting_for, "a message")

    @property
    def at_cut(self) -> bool:
        """Whether nothing is in flight, at a point that all workers reach."""
        return not self._parks or self._cut > 0

    @property
    def cut(self) -> int:
        """What servers ask to park for, as ``Params.cut``."""
        return -self._cut if self._ends else self._cut

    async def park(self, clock: int) -> None:
        """Park at every shard; each answers when all have come, and the mode lets it."""
        began = self.send_parks(clock)
        for _ in self._shards:
            await self._reply()
        self.note_parked(clock, began)

    def follow_cut(self, cut: int) -> None:
        """Park for a cut next that only some shards have asked for."""
        self._cut, self._ends = abs(cut), cut < 0

    def send_parks(self, clock: int) -> float:
        """Send that this worker parks; return the time."""
        self._clock = clock
        for shard in self._order:
            park = Park(self._worker, clock, self.cut, shard)
            self._port.send(self._servers[shard], park)
        self._cut = 0
        return self._port.now()

    def note_parked(self, clock: int, began: float) -> None:
        """Note that all have parked, and that this worker has read the newest version."""
        self._since = now = self._port.now()
        if self._events is not None:
            none, since = [0] * len(self._shards), [began] * len(self._shards)
            self._note_read(now, clock, none, since, PARKED)

    def _note_read(
        self, now: float, clock: int, taus: Sequence[int], since: Sequence[float], flag: int = 0
    ) -> None:
        events = self._events
        assert events is not None, "somebody records"
        versions = [self.versions[it] for it in self._shards]
        events.note((events.read, now, clock, self._shards, versions, taus, since, flag))

    def go_on(self, clock: int) -> None:
        """Resume from a checkpoint: in rounds, a worker's clock is the version of every shard."""
        self.versions[:] = [clock] * len(self.versions)
        self._clock = clock
        self._has_read = True

    def begin(self, step: Step) -> None:
        """Record the read of the initial parameters, once."""
        self._step, self._parts_ready = step, 0
        if self._late is not None:
            self._reads.append(self.versions.copy())
        if self._since is None:
            self._since = self._port.now()
            has_read, self._has_read = self._has_read, True
            if self._events is not None and not has_read:
                none = [0] * len(self._shards)
                now = [self._since] * len(self._shards)
                self._note_read(self._since, step.clock, none, now)

    def _ready(self, i: int) -> None:
        """Push the shards that the i-th part of the gradient completes."""
        if i != self._parts_ready:
            raise ProtocolError(
                f"the problem said that span {i} of its gradient is ready, expected span "
                f"{self._parts_ready}"
            )
        self._parts_ready += 1
        if self._completes[i]:
            self._port.amid(self._shares[i], partial(self._push_early, self._completes[i]))

    def _push_early(self, shards: Sequence[int]) -> None:
        for shard in shards:
            self._pushed[shard] = now = self._port.now()
            self._push(shard, now, GRADIENT)

    def _push(self, shard: int, now: float, region: int) -> None:
        """Send this step's gradient to a shard, and note it."""
        clock, samples, progress, _, steps, pace = self._step
        versions = self.versions if self._late is None else self._reads[-1 - self._late.staleness]
        push = Push(self._worker, clock, versions[shard], samples, progress, shard, steps, pace)
        events = self._events
        if events is not None:
            since = now if self._since is None else self._since
            events.note((events.pushed, push, now, now - since))
        if self._encoder is None or region == NO_PAYLOAD:
            self._port.send(self._servers[shard], push, region)
        else:
            self._push_frame(push, now, self._encoder)

    def _push_frame(self, push: Push, now: float, encoder: PushEncoder) -> None:
        """Send the frame of this step's gradient to a shard, and note it."""
        port, shard, events = self._port, push.shard, self._events
        gradient = port.role_map.spans[shard].of(self._gradient)
        frame = encoder.encode(push, gradient)
        if events is not None:
            digests = NO_DIGESTS
            if events.is_exact:
                digests = encoder.digests(shard, gradient, frame)
            # At the time of the push: those of a step's shards have one.
            events.note((events.encoded, push, frame.size, digests, now))
        self.counts.framed(frame.size, ITEMSIZE * port.role_map.spans[shard].size)
        port.send_framed(self._servers[shard], push, frame)

    async def step(self, step: Step) -> int:
        """Push to every shard, then receive every shard's reply, in order of arrival."""
        pushed = self.send(step)
        replies = [await self._reply() for _ in self._shards]
        reached = replies[-1].clock
        if len(replies) > 1:
            clocks = {reply.shard: reply.clock for reply in replies}
            reached = await self._level(clocks, step.progress)
        self.note_replies(replies, reached, pushed)
        return reached

    def send(self, step: Step) -> float:
        """Push to every shard that was not pushed early; return the time."""
        port = self._port
        self._step = step
        clock, samples, *_ = step
        self._clock = clock
        region = GRADIENT if samples else NO_PAYLOAD
        pushed = port.now()
        early = self._pushed
        for shard in self._order:
            if early[shard] is None:
                self._push(shard, pushed, region)
        return pushed

    def note_replies(self, replies: list[Params], reached: int, since: float) -> None:
        """Note the replies to a push, and count them.

        Args:
            replies: of every shard, in order of arrival; sorted by shard here.
            reached: the clock of the next step.
            since: the time at which the worker began to wait for them.
        """
        last, events, early = replies[-1], self._events, self._pushed
        self._since = now = self._port.now()
        if events is not None:
            if len(replies) > 1:
                replies.sort(key=_shard)
            taus = [reply.staleness for reply in replies]
            if len(events.noted) >= QUEUED:
                events.drain()
            when = [since if early[it] is None else early[it] for it in self._shards]
            self._note_read(now, reached, taus, when)  # type: ignore[arg-type]
        if self.ready is not None:
            self._pushed = [None] * len(early)
        self._count(replies)
        self._wait(last, now - since)

    def _count(self, replies: list[Params]) -> None:
        """Count the replies to one push, and the read that they make."""
        counts, versions = self.counts, [self.versions[it] for it in self._shards]
        counts.read(max(versions) - min(versions) if len(versions) > 1 else 0)
        for reply in replies:
            if reply.staleness >= 0:
                counts.used(reply.staleness)
            if reply.gap >= 0.0:
                counts.moved(reply.gap)

    def _wait(self, last: Params, seconds: float) -> None:
        """Count the time of waiting for replies by cause, as the last reply says."""
        held = min(last.held, seconds)
        if last.awaited == OWN:
            self.counts.waited(server=held, messages=seconds - held)
        else:
            self.counts.waited(workers=held, messages=seconds - held, waiting_for=last.awaited)

    def note_left(self, clock: int) -> None:
        """Record that this worker has left."""
        if self._events is not None:
            self._events.left(self._port.now(), clock)

    async def leave(self, clock: int) -> None:
        """Send ``Leave`` to every shard."""
        self.note_left(clock)
        self.send_leaves(clock)

    def send_leaves(self, clock: int) -> None:
        """Send ``Leave`` to every shard, without a note of it."""
        for shard in self._shards:
            self._port.send(self._servers[shard], Leave(self._worker, clock, shard))

    async def _level(self, clocks: dict[int, int], progress: float) -> int:
        """Bring all shards to one clock, the largest in ``clocks`` (by shard), and return it.

        They differ only with backups. A gradient of parameters of mixed versions would belong to
        no clock, so the spans that are behind are read again.
        """
        while min(clocks.values()) < (clock := max(clocks.values())):
            self._clock = clock
            behind = [shard for shard, reached in clocks.items() if reached < clock]
            for shard in behind:
                push = Push(self._worker, clock, self.versions[shard], 0, progress, shard)
                self._port.send(self._servers[shard], push)
            for _ in behind:
                reply = await self._reply()
                clocks[reply.shard] = reply.clock
        return clock

    async def _reply(self) -> Params:
        return self.take(await self._port.receive())

    def take(self, reply: Message) -> Params:
        """Take a message from a server, which brings parameters.

        Raises:
            FencedError: if it says that this worker is excluded.
        """
        if type(reply) is Leave and reply.missed:
            raise FencedError(f"worker {self._worker} was declared dead")
        if type(reply) is not Params:
            raise ProtocolError(f"worker {self._worker} received {reply}, expected parameters")
        self.versions[reply.shard] = reply.version
        if reply.steps:
            self.local_steps = reply.steps
        if reply.cut:
            self._cut, self._ends = abs(reply.cut), reply.cut < 0
        if self._decoder is not None:
            self._read_frame(reply, self._decoder)
        return reply

    def _read_frame(self, reply: Params, decoder: ReplyDecoder) -> None:
        """Add what a reply brings to the parameters, and note what it was."""
        decoder.read(reply)
        events = self._events
        if events is not None and events.is_exact:
            nbytes, digests = decoder.digests(reply.shard)
            events.note((events.decoded, reply, nbytes, digests, self._port.now()))

    def waiting_for(self) -> str:
        """Describe what this worker waits for."""
        role_map = self._port.role_map
        ranks = ", ".join(str(role_map.rank_name(rank)) for rank in role_map.server_ranks)
        me = role_map.worker_name(self._worker)
        return f"a server (rank {ranks}) to answer clock {self._clock} of worker {me}"


def shares_of(spans: Sequence[Span]) -> list[float]:
    """Return by part of a gradient the share of the work that is done when it is ready.

    As of a stack of layers: each takes a product forward and two backward, one for its gradient and
    one for the layer below; the first layer, whose gradient is ready last, has none below.

    Args:
        spans: the parts in the order in which they are ready, the first layer last.

    >>> shares_of([Span(6, 9), Span(3, 6), Span(0, 3)])
    [0.625, 0.875, 1.0]
    """
    n, first = sum(span.size for span in spans), spans[-1].size if spans else 0
    return [min(1.0, (n + 2 * (n - span.start)) / (3 * n - first)) for span in spans]


def _completed(shards: Sequence[Span], parts: Sequence[Span]) -> list[list[int]]:
    """Return by part of a gradient, which come last first, the shards that are complete with it.

    None of the last part, with which the whole gradient is there.

    >>> _completed([Span(0, 3), Span(3, 6), Span(6, 9)], [Span(5, 9), Span(2, 5), Span(0, 2)])
    [[2], [1], []]
    """
    found: list[list[int]] = [[] for _ in parts]
    for shard in reversed(range(len(shards))):
        first = next((i for i, part in enumerate(parts) if part.start <= shards[shard].start), -1)
        if 0 <= first < len(parts) - 1:
            found[first].append(shard)
    return found


def _shard(reply: Params) -> int:
    return reply.shard
