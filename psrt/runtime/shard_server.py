"""A server's work for one shard: it executes the decisions of the shard's policy."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence

import numpy as np

from psrt.checkpoint import Tree, restore, state_of
from psrt.core.arrays import ITEMSIZE
from psrt.core.errors import ProtocolError
from psrt.core.messages import (
    LAST,
    LATE,
    MORE,
    NOBODY,
    OWN,
    Leave,
    Message,
    Params,
    Park,
    Push,
    Relay,
    Tick,
)
from psrt.core.stats import Stats
from psrt.history.log import QUEUED
from psrt.runtime.event_recorder import ShardEventRecorder
from psrt.runtime.leases import Leases
from psrt.runtime.paces import Paces, Slack
from psrt.runtime.push_codec import NO_DIGESTS, PushDecoder
from psrt.runtime.reply_codec import ReplyEncoder
from psrt.runtime.shard import Shard
from psrt.runtime.weakly import weakly
from psrt.sync import Apply, Decision, Drop, Policy, Serve
from psrt.transport.frames import FRAME_BYTES
from psrt.transport.port import Port


class ShardServer:
    """A server's work for one of its shards.

    A push is also the pull that follows it: every push is answered once, with the newest version,
    as soon as the policy lets its worker continue.
    """

    saved = ("shard", "policy", "bytes", "_replies", "clock")

    def __init__(
        self,
        port: Port,
        number: int,
        shard: Shard,
        policy: Policy,
        *,
        decoder: PushDecoder | None = None,
        replies: ReplyEncoder | None = None,
        answers_met: bool = False,
        followers: Sequence[int] = (),
        grace: float | Slack = 0.0,
        paces: Paces | None = None,
        is_dynamic: bool = False,
        steps: Callable[[float], int] | None = None,
        events: ShardEventRecorder | None = None,
    ) -> None:
        """Set up.

        Args:
            port: this rank's end of the transport.
            number: of the shard.
            shard: the span of parameters that it serves.
            policy: decides when pushes are applied and workers answered.
            decoder: of the frames of pushes; None if gradients are pushed uncompressed.
            replies: makes the frames of replies; None sends versions uncompressed.
            answers_met: whether a worker gets the version on which its push arrived, from which it
                makes the newest itself; only if each push is an update, without ``replies``.
            followers: the shards for which this one decides.
            grace: seconds for which a merge with its quorum waits for more, or how to find them.
            paces: of workers, if they report them.
            is_dynamic: whether answers say how many local steps a worker takes.
            steps: if updates are averages of local steps, progress of the last step → the number of
                local steps per average; None if each update is one step.
            events: records events for the history; None keeps none.
        """
        self._steps = steps
        #: Steps of each worker in the newest version, if updates are rounds.
        self.clock = 0
        self._decoder, self._replies = decoder, replies
        self._answers_met = answers_met
        self.followers, self.grace = followers, grace
        self._paces, self._is_dynamic = paces, is_dynamic
        #: Seconds of the window that is open, or was last.
        self._window_s = 0.0
        #: When the window of a merge is over; None while none is open.
        self.closes: float | None = None
        #: The buffer of the version on which the unanswered push arrived; between pushes, the
        #: newest.
        self._met = 0
        self._port = port
        #: The number of the shard.
        self.number = number
        #: The span of parameters that it serves.
        self.shard = shard
        #: Decides when pushes are applied and workers answered.
        self.policy = policy
        self._events = events
        self._role_map = port.role_map
        self._ranks = port.role_map.workers
        self._landings = port.landings
        #: By buffer, the version that it holds; −1 if none was made.
        self._holds = [0] + [-1] * (len(shard.buffers) - 1)
        self._leases = Leases(len(shard.buffers), weakly(self._in_flight), port.landings)
        #: By worker, τ of its last push on receipt, and the time of that receipt.
        self._tau = [0] * len(self._ranks)
        self._received_at = [0.0] * len(self._ranks)
        #: By worker, the steps whose gradients have arrived; without those before a checkpoint that
        #: the run resumed from.
        self._last = [0] * len(self._ranks)
        #: Epochs of the most advanced worker.
        self.progress = 0.0
        #: The worker whose message is being handled.
        self._cause = -1
        self._slowest = 0
        #: Bytes received for the newest stop: a run that resumes from it receives them again.
        self._stop_bytes = 0
        #: Bytes before the checkpoint that this run resumed from.
        self._earlier = (0, 0)
        #: Called with the clock of each version, the number of steps in it, once it is made and all
        #: that wait for it are answered, before it can be overwritten. None costs nothing.
        self.at_version: Callable[[int], Awaitable[object]] | None = None
        #: Epochs before the newest step that is part of a version.
        self.progress = 0.0
        #: If versions are not cuts: returns, from the workers' mean steps and the cut before, the
        #: ``Params.cut`` that they must park for; set for one shard of the job. None costs nothing.
        self.call: Callable[[int, int], int] | None = None
        #: Called there with that cut, once all workers are parked.
        self.at_cut: Callable[[int], Awaitable[object]] | None = None
        #: The cut that all answered workers must park for, 0 for none; and the step of the last
        #: one.
        self._cut = self._last_cut = 0

    def state(self) -> Tree:
        """Return what a checkpoint keeps of this shard; its arrays are those in use.

        The parameters are not in it: the maker of a shard passes them in.
        """
        tree: Tree = state_of(self)
        tree["bytes"][1] -= self._stop_bytes
        return tree

    def restore(self, tree: Tree) -> None:
        """Resume from the result of ``state``, before the first message; nothing of it is kept.

        Raises:
            CheckpointError: if it is of another shard.
        """
        restore(self, tree)
        self.policy.check()
        self._holds[0] = self.shard.version
        for worker, clock in self.policy.clock.items():
            self._last[worker] = clock

    @property
    def stats(self) -> Stats:
        """The counters of the shard."""
        stats = self.shard.counts.stats
        stats.shard, stats.updates = self.number, self.shard.version
        stats.bytes_sent, stats.bytes_received = self.bytes
        return stats

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes that were sent and received for this shard."""
        sent, received = self._port.bytes_of(self.number)
        mine = self._role_map.shards_of(self._port.rank)
        sent += sum(self._port.bytes_of(it)[0] for it in self.followers if it not in mine)
        return sent + self._earlier[0], received + self._earlier[1]

    @bytes.setter
    def bytes(self, earlier: tuple[int, int]) -> None:
        self._earlier = earlier

    @property
    def clocks(self) -> Sequence[int]:
        """The steps that each worker has pushed: of those that train, or of all once none does."""
        return list(self.policy.clock.values()) or self._last

    def take(self, message: Message) -> None:
        """Note the receipt of a message, before the policy handles it."""
        now = self._port.now()
        if type(message) is Push:
            self._cause = worker = message.worker
            # A worker pushes only after it has read its last reply and computed with it, so its
            # lease is over without asking the port.
            self._leases.release(self._ranks[worker])
            # Before the policy handles the push: it may apply it at once, which raises the version.
            # Every update takes all pending pushes, so this τ is also its τ when it is applied.
            self._tau[worker] = self.policy.staleness(message)
            self._received_at[worker] = now
            if message.progress > self.progress:
                self.progress = message.progress
            if message.samples:
                self._last[worker] = message.clock + 1
            if self._paces is not None:
                self._paces.note(worker, message.pace)
        elif type(message) is Park:
            self._cause = message.worker
            if not self.policy.parked:
                self._stop_bytes = 0
            self._stop_bytes += FRAME_BYTES
            self._leases.release(self._ranks[message.worker])  # it has read its last reply
            self._received_at[message.worker] = now
        elif type(message) is Leave:
            self._cause = message.worker
            self._leases.leave(self._ranks[message.worker])
            self.shard.forget(message.worker)
            if self._paces is not None:
                self._paces.forget(message.worker)
            self.shard.counts.left(message.worker, message.clock)
            if message.missed:
                self.shard.counts.reached(message.worker, self._last[message.worker])
        elif type(message) is Relay or type(message) is Tick:
            self._cause = message.cause if type(message) is Relay else -1
        else:
            raise ProtocolError(f"shard {self.number} received {message}, expected a push")
        events = self._events
        if events is not None and type(message) is not Park:
            if len(events.noted) >= QUEUED:
                events.drain()
            if type(message) is Relay:
                events.note((events.relayed, message, now))
            elif type(message) is Tick:
                window_s = self._window_s if message.by_time else 0.0
                events.note((events.ticked, self.policy.version + 1, window_s, now))
            else:
                events.note((events.taken, message, now))
        if self._decoder is not None and type(message) is Push and message.samples:
            self._decode(message, self._decoder)

    def watch_window(self) -> None:
        """Note when the window of a merge is over, once it is open."""
        if not self.policy.is_open:
            self.closes = None
        elif self.closes is None:  # the message is a push: nothing else makes a quorum
            opened = self._received_at[self._cause]
            self._window_s = self._window(opened)
            self.closes = opened + self._window_s

    def _window(self, opened: float) -> float:
        """Return the seconds for which a window that opened at that time may be open."""
        if not isinstance(self.grace, Slack):
            return self.grace
        assert self._paces is not None, "its workers report their paces"
        first = self._received_at[self.policy.pending[0].worker]
        return self.grace.seconds(self._paces.slowest_s, opened - first)

    def relays(self, decision: Apply | Drop) -> Iterator[Relay]:
        """Yield what the followers must know of a merge, or of a late push."""
        if type(decision) is Drop:
            push, version = decision.push, self.policy.version
            relays = [Relay(push.worker, push.clock, version, self._cause, LATE)]
        else:
            last, version = decision.pushes[-1], self.shard.version + 1  # type: ignore[union-attr]
            relays = [
                Relay(it.worker, it.clock, version, self._cause, LAST if it is last else MORE)
                for it in decision.pushes  # type: ignore[union-attr]
            ]
        for shard in self.followers:
            for it in relays:
                yield it._replace(shard=shard)

    def fence(self, message: Message) -> None:
        """Tell a worker that was declared dead, but is alive, that it is excluded."""
        if type(message) in (Push, Park):
            worker, clock = message.worker, message.clock  # type: ignore[union-attr]
            self._port.send(self._ranks[worker], Leave(worker, clock, self.number, missed=True))

    def _decode(self, push: Push, decoder: PushDecoder) -> None:
        """Decode the frame of a push, and record it."""
        decoder.decode(push)
        events = self._events
        if events is not None and events.is_exact:
            events.note((events.decoded, push, *decoder.digests(push.worker), self._port.now()))

    @property
    def steps(self) -> int:
        """The steps of the workers: in rounds of all, otherwise their mean.

        Every shard knows the same value at a cut. It never decreases, and with one step per push
        the workers that park for a step have together finished less than W steps more.
        """
        policy = self.policy
        each = 1 if self._steps is None else self._steps(math.inf)
        if policy.rounds:
            return policy.version * each
        pushes = sum(policy.clock.values()) + sum(self.shard.counts.stats.left.values())
        return pushes * each // len(self._ranks)

    def ask(self, decisions: Sequence[Decision]) -> None:
        """Make workers park from now on, if a checkpoint is due; before these decisions."""
        # In rounds only at a new version: a worker that waits for its round would wait for those
        # that are parked, and one that came late to an open round would park a round before others.
        is_between = not self.policy.rounds or any(type(it) is Apply for it in decisions)
        if self.call is not None and not self._cut and is_between:
            self._cut = self.call(self.steps, self._last_cut)

    async def cut(self, cut: int) -> None:
        """Save this shard; all workers are parked."""
        self._cut, self._last_cut = 0, abs(cut)
        if self.at_cut is not None:
            await self.at_cut(cut)
        if self._events is not None:
            # Not before: in a run that resumes from this checkpoint, workers park and are recorded
            # again.
            clocks = tuple(self.policy.clock.items())
            self._events.note((self._events.parked, clocks, self._port.now()))

    async def apply(self, pushes: Sequence[Push]) -> None:
        """Make the next version."""
        port, shard, events = self._port, self.shard, self._events
        if self.policy.follows:
            for push in pushes:  # versions may have been made since it was received
                self._tau[push.worker] = shard.version - push.version
        virtual_s = 0.0
        if port.apply_s is not None:
            began = port.now()
            # Saved gradients were paid for when they were added to their sum, which is one vector.
            saved = shard.saved_gradients
            fresh = sum(1 for push in pushes[saved:] if push.samples)
            await self._pass_time(fresh + min(saved, 1))
            virtual_s = port.now() - began
        # Into the landing of the worker that just pushed, if it has one: then nothing is copied.
        # Else in place if no worker reads the newest version: the same memory traffic as out of
        # place, but one buffer less in the cache. Else into a free buffer, or a reader would see a
        # torn vector.
        preferred = self._landings.get(self._ranks[self._cause], shard.newest)
        kept = -1
        if self._answers_met:
            kept = self._met = shard.newest
        buffer = self._leases.free(preferred, kept)
        if buffer is None:
            buffer = await self._free_buffer(preferred, kept)
        began = 0.0 if events is None else port.now() - virtual_s
        shard.apply(pushes, buffer)
        self.progress = pushes[0].progress if pushes else self.progress
        self.clock += 1 if self._steps is None else self._steps(self.progress)
        self._holds[shard.newest] = shard.version
        if events is not None:
            call = events.applied, pushes, shard.notes, shard.version, shard.lr, began, port.now()
            events.note(call)
            sums = shard.force_sums
            if sums is not None and any(push.samples for push in pushes):
                events.note((events.drawn, pushes, sums, shard.version, port.now()))

    async def _pass_time(self, gradients: int) -> None:
        """Charge the virtual time of applying that many gradients."""
        port = self._port
        if gradients and port.apply_s is not None:
            size = port.role_map.spans[self.number].size
            await port.pause(port.apply_s(self.number, 4 * size * gradients), works=True)

    async def keep(self, push: Push) -> None:
        """Save a gradient whose worker continues before its update."""
        if self._port.apply_s is not None:
            # Saving adds the gradient to a sum, which costs as much as applying it.
            await self._pass_time(1)
        self.shard.keep(push)
        events = self._events
        if events is not None:
            events.note((events.kept, push, self._port.now()))

    def drop(self, push: Push, cause: Message) -> None:
        """Discard a gradient, because of a message."""
        self.shard.counts.dropped()
        self._tau[push.worker] = -1
        is_lost = type(cause) is Leave and cause.worker == push.worker
        if is_lost and cause.missed:  # type: ignore[union-attr]
            self.shard.counts.reached(push.worker, push.clock)
        events = self._events
        if events is not None:
            late = not is_lost
            events.note((events.dropped, push, self.shard.version, self._port.now(), late))

    def note_spread(self, finished: int) -> None:
        """Update the largest clock spread with a worker that has ``finished`` steps."""
        stats = self.shard.counts.stats
        # ``_slowest`` may be out of date, but clocks never decrease: a spread that is not a record
        # by the old minimum is not one by the new, so the exact minimum is rarely needed.
        if finished - self._slowest > stats.clock_spread_max and self.policy.live:
            self._slowest = self.policy.slowest
            stats.clock_spread_max = max(stats.clock_spread_max, finished - self._slowest)

    def serve(self, serve: Serve) -> None:
        """Answer a worker with the newest version."""
        shard, rank = self.shard, self._ranks[serve.worker]
        now = self._port.now()
        if self._replies is not None:
            self._serve_frame(serve, now, self._replies)
            return
        # Before the send: a worker on this host may read, compute and push again before the next
        # line runs, and its push needs the record of what it read.
        shard.read_by(serve.worker)
        if self._events is not None:
            steps = self._steps_of(serve.worker)
            self._events.note((self._events.served, serve, shard.version, now, steps))
        buffer = shard.newest
        if self._answers_met:
            buffer, self._met = self._met, buffer
        if self._landings:
            buffer = self._landings[rank]
            # Made in another worker's landing. This server copies it, rather than the worker: so
            # only the landing's own worker reads it, and it may be written as soon as that worker
            # pushes.
            if self._holds[buffer] != shard.version:
                np.copyto(shard.buffers[buffer], shard.theta)
                self._holds[buffer] = shard.version
        self._port.send(rank, self._answer(serve, now), buffer)
        self._leases.acquire(rank, buffer)

    def _serve_frame(self, serve: Serve, now: float, replies: ReplyEncoder) -> None:
        """Answer a worker with a frame of what changed, and record it."""
        shard, worker, events = self.shard, serve.worker, self._events
        frame = replies.encode(worker, serve.clock, shard.theta)
        shard.read_by(worker, replies.held[worker])
        if events is not None:
            events.note((events.served, serve, shard.version, now, self._steps_of(worker)))
            digests = replies.digests(worker, frame) if events.is_exact else NO_DIGESTS
            events.note((events.answered, serve, frame.size, digests, now))
        span = self._port.role_map.spans[self.number]
        shard.counts.framed(frame.size, ITEMSIZE * span.size)
        self._port.send_framed(self._ranks[worker], self._answer(serve, now), frame)

    def _answer(self, serve: Serve, now: float) -> Params:
        """Return the reply that sends the newest version to a worker now."""
        worker = serve.worker
        awaited = NOBODY if self._cause < 0 else self._cause
        return Params(
            self.number,
            self.shard.version,
            serve.clock,
            self._tau[worker],
            now - self._received_at[worker],
            OWN if worker == self._cause else awaited,
            self.shard.fresh_gaps.pop(worker, -1.0),
            self._cut,
            self._steps_of(worker),
        )

    def _steps_of(self, worker: int) -> int:
        """Return the local steps of a worker before its next push; 0 leaves them to it."""
        return self._paces.steps(worker) if self._is_dynamic and self._paces is not None else 0

    async def _free_buffer(self, preferred: int, kept: int) -> int:
        """Wait for a buffer without readers."""
        leases = self._leases
        # There are three: the newest, one that slow readers still hold, and one to write. With
        # readers on all of them the server waits for the slowest; more buffers would only hide
        # that.
        await self._port.until(
            lambda: leases.free(preferred, kept) is not None,
            lambda: f"ranks {leases} to read older versions",
        )
        free = leases.free(preferred, kept)
        assert free is not None
        return free

    def _in_flight(self, to: int) -> bool:
        return self._port.in_flight(to, self.number)

    @property
    def is_drained(self) -> bool:
        """Whether the last replies have been read."""
        return not any(map(self._in_flight, self._ranks))

    def waiting_for(self) -> str:
        """Describe the awaited pushes, to follow the shard's number."""
        policy = self.policy
        busy = [
            f"{self._role_map.worker_name(worker)[:-1]}, clock {clock})"
            for worker, clock in policy.clock.items()
            if worker not in policy.waiting and worker not in policy.parked
        ]
        what = " or a stop for a checkpoint" if policy.parked else ""
        return f"at version {policy.version}: a push{what} of worker {', '.join(busy)}"
