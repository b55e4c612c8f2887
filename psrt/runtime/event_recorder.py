"""Records the events of a shard and of a worker in the history.

A role does not call these methods amid a step. It *notes* the call, ``events.note((events.kept,
push, now))``, and once a step has the calls made if there are enough: ``if len(events.noted) >=
QUEUED: events.drain()``. See ``EventLog``: a note costs a step a tenth of the call.

``history.kinds`` defines the events and their fields.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from psrt.core.arrays import AnyVector, Vector
from psrt.core.messages import Leave, Params, Push, Relay
from psrt.core.partition import Span
from psrt.history import EventLog, kinds
from psrt.history.events import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    CAME,
    FORWARD,
    GRADIENT,
    LATE,
    LOST,
    MISSED,
    PARKED,
    PRESENT,
    pair,
)
from psrt.pipeline.step import Kind as StepKind
from psrt.pipeline.step import PipelineStep
from psrt.runtime.checksum import digest
from psrt.runtime.conserved import Content, content_of
from psrt.runtime.elastic import Drawn, ForceSums
from psrt.runtime.push_codec import Digests
from psrt.runtime.shard import Note
from psrt.sync import Serve

_NAN = math.nan
#: Steps of a pipeline schedule → their flags.
_PASSES = {
    StepKind.FORWARD: FORWARD,
    StepKind.BACKWARD: BACKWARD,
    StepKind.BACKWARD_INPUT: BACKWARD_INPUT,
    StepKind.BACKWARD_WEIGHT: BACKWARD_WEIGHT,
}
_MESSAGES = {
    StepKind.SEND_ACTIVATION: 0,
    StepKind.RECEIVE_ACTIVATION: CAME,
    StepKind.SEND_GRADIENT: GRADIENT,
    StepKind.RECEIVE_GRADIENT: GRADIENT | CAME,
}


class _Recorder:
    """What the recorders of a server and of a worker have in common."""

    def __init__(self, log: EventLog) -> None:
        #: Whether digests and sums of vectors are recorded.
        self.is_exact = log.is_exact
        #: Makes the noted calls.
        self.drain = log.drain
        #: Calls noted so far, of all recorders of the log.
        self.noted = log.queue
        #: Notes a call: takes a tuple of a method and its arguments.
        self.note = log.queue.append

    def content(self, vector: Vector) -> Content:
        """Return what is recorded of a vector."""
        return content_of(vector) if self.is_exact else Content()

    def digest(self, vector: AnyVector) -> int:
        """Return the digest that is recorded of a vector."""
        return digest(vector) if self.is_exact else 0


class ShardEventRecorder(_Recorder):
    """The events of one shard, in order."""

    def __init__(self, log: EventLog, shard: int) -> None:
        super().__init__(log)
        self._shard = shard
        adder = functools.partial(log.adder, (True, shard))
        self._receive = adder(kinds.Receive)
        self._decode = adder(kinds.Decode)
        self._save = adder(kinds.Save)
        self._apply = adder(kinds.Apply)
        self._drop = adder(kinds.Drop)
        self._reply = adder(kinds.Reply)
        self._reply_encode = adder(kinds.ReplyEncode)
        self._left = adder(kinds.Left)
        self._tick = adder(kinds.Tick)
        self._relayed = adder(kinds.Relay)
        self._force = adder(kinds.Force)
        self._centre = adder(kinds.Centre)
        self._final = adder(kinds.Final)

    def taken(self, message: Push | Leave, now: float) -> None:
        """A message was received."""
        if type(message) is Push:
            worker, clock, version, samples, progress, _, _, pace = message
            self._receive(now, worker, clock, version, self._shard, samples, progress, pace)
        else:
            flag = MISSED if type(message) is Leave and message.missed else 0
            self._left(now, message.worker, message.clock, self._shard, flag)

    def relayed(self, relay: Relay, now: float) -> None:
        """The first shard has relayed what it did with a push."""
        self._relayed(now, relay.worker, relay.clock, relay.version, self._shard, flag=relay.what)

    def ticked(self, version: int, window_s: float, now: float) -> None:
        """A window is over, after at most that time; the merge makes this version."""
        self._tick(now, -1, version, shard=self._shard, seconds=window_s)

    def parked(self, clocks: Sequence[tuple[int, int]], now: float) -> None:
        """All workers that are left have stopped for a checkpoint, each at its clock."""
        for worker, clock in clocks:
            self._receive(now, worker, clock, 0, self._shard, flag=PARKED)

    def decoded(self, push: Push, nbytes: int, digests: Digests, now: float) -> None:
        """The frame of a push was decoded."""
        both = pair(digests.frame, digests.decoded)
        self._decode(now, push.worker, push.clock, both, self._shard, nbytes)

    def kept(self, push: Push, now: float) -> None:
        """A gradient was saved for a later update."""
        self._save(now, push.worker, push.clock, push.version, self._shard)

    def applied(
        self,
        pushes: Sequence[Push],
        notes: Sequence[Note],
        version: int,
        lr: float,
        began: float,
        now: float,
    ) -> None:
        """An update was made.

        Args:
            pushes: that it applied, in order of summation; none for an empty round.
            notes: the factors of each push.
            version: the new one.
            lr: its learning rate, before staleness factors.
            began: when it began, in seconds.
            now: when it ended.
        """
        seconds = now - began
        if not pushes:
            self._apply(now, -1, -1, version, self._shard, seconds=seconds)
        for push, note in zip(pushes, notes, strict=True):
            self._apply(
                now, push.worker, push.clock, version, self._shard, push.samples, push.progress,
                version - 1 - push.version, lr * note.factor,
                note.gap if note.gap >= 0.0 else _NAN, seconds,
            )  # fmt: skip

    def drawn(self, pushes: Sequence[Push], sums: ForceSums, version: int, now: float) -> None:
        """An update has drawn the centre, or merged.

        Args:
            pushes: that it applied, in order of summation.
            sums: what it did.
            version: the new one.
            now: the time, in seconds.
        """
        drew = [push for push in pushes if push.samples]
        for push, (crc, *more) in zip(drew, sums.forces, strict=True):
            self._force(now, push.worker, push.clock, pair(crc, 0), self._shard, *more)
        both = pair(sums.before, sums.made)
        self._centre(
            now, -1, version, both, self._shard, sums.moved, sums.total, sums.norm, sums.most,
            sums.length,
        )  # fmt: skip

    def dropped(self, push: Push, version: int, now: float, late: bool) -> None:
        """A push is discarded: it arrived too late at ``version``, or its worker died."""
        self._drop(
            now, push.worker, push.clock, push.version, self._shard, push.samples, push.progress,
            version - push.version, LATE if late else LOST,
        )  # fmt: skip

    def served(self, serve: Serve, version: int, now: float, steps: int = 0) -> None:
        """A worker was answered with this version, and the local steps before its next push."""
        self._reply(now, serve.worker, serve.clock, version, self._shard, steps)

    def answered(self, serve: Serve, nbytes: int, digests: Digests, now: float) -> None:
        """A reply was encoded."""
        both = pair(digests.frame, digests.decoded)
        self._reply_encode(now, serve.worker, serve.clock, both, self._shard, nbytes)

    def saved(self, version: int, now: float) -> None:
        """The final span was written."""
        self._final(now, -1, version, self._shard)


class WorkerEventRecorder(_Recorder):
    """The events of one worker, in order."""

    def __init__(self, log: EventLog, worker: int) -> None:
        super().__init__(log)
        self._worker = worker
        adder = functools.partial(log.adder, (False, worker))
        self._read = adder(kinds.Read)
        self._push = adder(kinds.Push)
        self._encode = adder(kinds.Encode)
        self._residual = adder(kinds.Residual)
        self._reply_decode = adder(kinds.ReplyDecode)
        self._draw = adder(kinds.Draw)
        self._step = adder(kinds.Step)
        self._reduce = adder(kinds.Reduce)
        self._reduced = adder(kinds.Reduced)
        self._sum_encode = adder(kinds.SumEncode)
        self._sum_keep = adder(kinds.SumKeep)
        self._sum_decode = adder(kinds.SumDecode)
        self._offer = adder(kinds.Offer)
        self._own = adder(kinds.Own)
        self._take = adder(kinds.Take)
        self._mixed = adder(kinds.Mixed)
        self._track = adder(kinds.Track)
        self._pass = adder(kinds.Pass)
        self._message = adder(kinds.Message)
        self._leave = adder(kinds.Leave)
        self._park = adder(kinds.Park)
        self._final = adder(kinds.Final)

    def read(
        self,
        now: float,
        clock: int,
        shards: Sequence[int],
        versions: Sequence[int],
        taus: Sequence[int],
        pushed: Sequence[float],
        flag: int = 0,
    ) -> None:
        """All spans of θ for a step are in place.

        Args:
            now: the time, in seconds.
            clock: of the step.
            shards: that they are of.
            versions: of each.
            taus: of each, that of the push that was answered.
            pushed: of each, the time of that push.
            flag: PARKED if they follow a stop for a checkpoint instead of a push.
        """
        for shard, version, tau, since in zip(shards, versions, taus, pushed, strict=True):
            self._read(now, self._worker, clock, version, shard, tau, now - since, flag)

    def pushed(self, push: Push, now: float, seconds: float) -> None:
        """A gradient is sent to a shard, ``seconds`` after its parameters were complete."""
        worker, clock, version, samples, progress, shard, _, pace = push
        self._push(now, worker, clock, version, shard, samples, progress, pace, seconds)

    def encoded(self, push: Push, nbytes: int, digests: Digests, now: float) -> None:
        """The gradient of a push was encoded."""
        worker, clock, shard = push.worker, push.clock, push.shard
        frame, decoded, before, after, sums = digests
        self._encode(now, worker, clock, pair(frame, decoded), shard, nbytes)
        if before or after:
            self._residual(now, worker, clock, pair(before, after), shard, *sums)

    def passed(
        self, now: float, clock: int, step: PipelineStep, rows: int, version: int = -1
    ) -> None:
        """A stage has computed a micro-batch.

        Args:
            now: the time, in seconds.
            clock: of the step of training.
            step: of the schedule.
            rows: of the micro-batch, or of all.
            version: the steps that the parameters have taken, where a stage does not wait for an
                update.
        """
        self._pass(
            now, self._worker, clock, version, step.chunk, rows, step.micro_batch,
            _PASSES[step.kind],
        )  # fmt: skip

    def exchanged(self, now: float, clock: int, step: PipelineStep, rows: int, nbytes: int) -> None:
        """A micro-batch was sent to another stage, or has come from there; see ``passed``."""
        self._message(
            now, self._worker, clock, step.peer, step.chunk, rows, nbytes, step.micro_batch,
            _MESSAGES[step.kind],
        )  # fmt: skip

    def encoded_of_sum(
        self, now: float, clock: int, owner: int, span: Span, flag: int, nbytes: int,
        digests: Digests,
    ) -> None:  # fmt: skip
        """A chunk of a sum was encoded, or a part of it projected.

        Args:
            now: the time, in seconds.
            clock: shared updates so far.
            owner: the worker that the chunk belongs to; ``OF_ALL`` of a part.
            span: of the parameters.
            flag: 0, or BACK of the mean of the chunk; the number of a part.
            nbytes: of the frame, or of the part.
            digests: of the frame, and of what is kept back if anything is.
        """
        frame, decoded = digests.frame, digests.decoded
        self._sum_encode(
            now, self._worker, clock, pair(frame, decoded), owner, nbytes, span.start, span.size,
            flag,
        )  # fmt: skip
        if digests.before or digests.after:
            self.kept_of_sum(now, clock, owner, span, flag, digests)

    def kept_of_sum(
        self, now: float, clock: int, owner: int, span: Span, flag: int, digests: Digests
    ) -> None:
        """What a codec keeps back of a sum has changed; see ``encoded_of_sum``."""
        both = pair(digests.before, digests.after)
        self._sum_keep(
            now, self._worker, clock, both, owner, span.start, span.size, *digests.sums, flag=flag
        )

    def decoded_of_sum(
        self, now: float, clock: int, source: int, span: Span, flag: int, nbytes: int,
        digests: Digests,
    ) -> None:  # fmt: skip
        """The frame of a chunk that worker ``source`` sent was decoded, or a part was summed.

        Args:
            now: the time, in seconds.
            clock: shared updates so far.
            source: the worker that sent it; ``OF_ALL`` of a part.
            span: of the parameters.
            flag: as in ``encoded_of_sum``.
            nbytes: of the frame; of a part, of all that this worker has sent in its sum.
            digests: of the frame, or of the mean of the part, and of what it comes to.
        """
        both = pair(digests.frame, digests.decoded)
        self._sum_decode(
            now, self._worker, clock, both, source, nbytes, span.start, span.size, flag
        )

    def decoded(self, reply: Params, nbytes: int, digests: Digests, now: float) -> None:
        """The frame of a reply was added to the parameters."""
        both = pair(digests.frame, digests.decoded)
        self._reply_decode(now, self._worker, reply.clock, both, reply.shard, nbytes)

    def drawn(self, now: float, clock: int, shard: int, sums: Drawn) -> None:
        """The worker was drawn to the centre of a shard, after the push of this clock."""
        self._draw(
            now, self._worker, clock, pair(sums.force, sums.centre), shard, sums.drew, sums.apart,
            sums.moved, sums.most, sums.most_drew,
        )  # fmt: skip

    def stepped(
        self, now: float, clock: int, samples: int, progress: float, rate: float, seconds: float
    ) -> None:
        """A gradient was computed; with a ``rate`` above 0, a local step was taken."""
        self._step(now, self._worker, clock, samples, progress, rate, seconds)

    def reduces(
        self, now: float, clock: int, updates: int, samples: int, progress: float,
        weight: float, present: bool, fragment: int = -1,
    ) -> None:  # fmt: skip
        """This worker's part of a sum over all workers is ready.

        Args:
            now: the time, in seconds.
            clock: gradient steps finished.
            updates: shared updates so far.
            samples: behind this worker's part.
            progress: of the worker, in epochs.
            weight: of this worker's part.
            present: whether this worker is still training.
            fragment: number of the part of the parameters; −1 where they are summed as a whole.
        """
        self._reduce(
            now, self._worker, clock, updates, fragment, samples, progress, weight,
            PRESENT * present,
        )  # fmt: skip

    def reduced(
        self, now: float, clock: int, updates: int, total: float, rate: float, seconds: float,
        present: bool, fragment: int = -1, staleness: int = 0,
    ) -> None:  # fmt: skip
        """The sum over all workers is complete.

        Args:
            now: the time, in seconds.
            clock: gradient steps finished.
            updates: shared updates, this one included.
            total: the sum of all weights.
            rate: learning rate of the update; 0 without one.
            seconds: waiting time.
            present: whether any worker is still training.
            fragment: number of the part of the parameters; −1 where they are summed as a whole.
            staleness: this worker's steps since its own part was ready.
        """
        self._reduced(
            now, self._worker, clock, updates, fragment, staleness, rate, total, seconds,
            PRESENT * present,
        )  # fmt: skip

    def offered(
        self, now: float, clock: int, content: Content, receivers: int, weight: float = 1.0,
        seconds: float = 0.0, flag: int = 0, *, neighbour: int = -1, number: int = 0,
    ) -> None:  # fmt: skip
        """A vector was sent to neighbours.

        Args:
            now: the time, in seconds.
            clock: the round; without rounds, gradient steps finished.
            content: of the vector.
            receivers: the number of neighbours that it was sent to.
            weight: that of push-sum.
            seconds: waiting, since this worker's event before, until all of it was sent.
            flag: TRACKED, ANSWER or none.
            neighbour: that it goes to, without rounds.
            number: of the offer, without rounds: by who asks, counted by it.
        """
        self._offer(
            now, self._worker, clock, pair(content.digest, number), neighbour, receivers,
            content.total, content.rms, weight, seconds, flag,
        )  # fmt: skip

    def owned(self, now: float, clock: int, content: Content) -> None:
        """This is averaged into, which is not what was offered."""
        both = pair(content.digest, 0)
        self._own(now, self._worker, clock, both, content.total, content.rms)

    def took(
        self, now: float, clock: int, neighbour: int, digest: int, factor: float,
        flag: int = 0, *, number: int = 0, staleness: int = 0,
    ) -> None:  # fmt: skip
        """What a neighbour offered is averaged in.

        Args:
            now: the time, in seconds.
            clock: the round; without rounds, gradient steps finished.
            neighbour: who offered it.
            digest: of the vector that came, or with a codec of what it comes to.
            factor: that it has in the average.
            flag: as the offer's.
            number: as the offer's.
            staleness: this worker's steps since it offered what this answers.
        """
        both = pair(digest, number)
        self._take(now, self._worker, clock, both, neighbour, staleness, factor, flag)

    def mixed(
        self, now: float, clock: int, content: Content, seconds: float, gap: float,
        weight: float = 1.0, divided: float = 0.0, flag: int = 0, *, neighbour: int = -1,
    ) -> None:  # fmt: skip
        """All that was to be averaged in is.

        Args:
            now: the time, in seconds.
            clock: the round; without rounds, gradient steps finished.
            content: of the result, under push-sum of x.
            seconds: waiting, since this worker's last event before it took what came.
            gap: ‖result − own‖/√n; nan if not measured.
            weight: the new one of push-sum, w.
            divided: under push-sum, the sum of x/w, as of ``Content``.
            flag: TRACKED or none.
            neighbour: that it was averaged with, without rounds.
        """
        self._mixed(
            now, self._worker, clock, pair(content.digest, 0), neighbour, content.total, divided,
            gap, weight, seconds, flag,
        )  # fmt: skip

    def tracked(self, now: float, clock: int, content: Content, gradient: Content) -> None:
        """The gradient of a step was added to what is tracked, y, of this ``content`` then."""
        self._track(
            now, self._worker, clock, pair(content.digest, 0), content.total, gradient.total,
            content.rms, gradient.rms,
        )  # fmt: skip

    def left(self, now: float, clock: int, seconds: float = 0.0) -> None:
        """The worker is done, ``seconds`` of waiting for its neighbours to be included."""
        self._leave(now, self._worker, clock, seconds)

    def parked(self, now: float, clock: int, step: int, relay: int, seconds: float) -> None:
        """The worker and its neighbours have reached a checkpoint.

        Args:
            now: the time, in seconds.
            clock: gradient steps finished.
            step: of the checkpoint.
            relay: the number of neighbours that were notified.
            seconds: since it began to wait for that.
        """
        self._park(now, self._worker, clock, step, relay, seconds)

    def saved(self, updates: int, now: float) -> None:
        """The final parameters that all workers share were written."""
        self._final(now, self._worker, updates)
