"""The part of a problem that one worker computes if stages never wait for an update (PipeDream).

The stages of a copy run batch after batch forward and backward, in the order of
``schedules/pipedream.py``, and each updates its parameters after every backward pass. Step k of a
worker is all that its stage does up to the backward pass of batch k: the forward pass of a later
batch, and that backward pass. So the training loop is that of all modes: a gradient, then an
update. At the end of an epoch, when the model is evaluated, all batches have come back; otherwise
stages are never idle.

**Stashed weights.** The gradient of a batch uses the weights of its forward pass. With D batches in
flight after a step, D copies of older weights are kept, no more. The weights of version k are
copied only when batch k comes back, layer by layer, each as soon as batch k's own copy has been
read for the last time: the new copy takes its place.

Source: Narayanan et al., "PipeDream: Generalized pipeline parallelism for DNN training", SOSP 2019.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, ClassVar

import numpy as np

from psrt.core.arrays import FloatArray, Vector, read_only
from psrt.core.partition import Part, Span, block_spans
from psrt.history.log import QUEUED
from psrt.model.stage import Stage
from psrt.optim import BLOCK, StalenessRate
from psrt.pipeline.schedule import PipelineSchedule
from psrt.pipeline.step import COMPUTING, SENDING, Kind, PipelineStep
from psrt.runtime.cut_problem import CutProblem, Ready, Ways
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.length import Length, share_of
from psrt.runtime.problem import Problem
from psrt.runtime.problem_rules import not_iterable
from psrt.transport.stage_links import Channel, StageLinks

#: Batches of an epoch whose number is not known before its end.
_ENDLESS = 1 << 40


class PipeDream(CutProblem):
    """One worker's part of a pipeline that is never drained within an epoch."""

    # No batch is in progress where an epoch ends, so no weights are stashed.
    saved: ClassVar[tuple[str, ...]] = ("_clock", "passed")
    drains: ClassVar[bool] = True

    def __init__(
        self,
        whole: Problem,
        links: StageLinks,
        *,
        part: Part,
        stage: Stage,
        ways: Ways,
        schedule: PipelineSchedule,
        place: tuple[int, int],
        is_first: bool,
        length: Length,
        rate: StalenessRate | None = None,
        counts: bool = True,
        now: Callable[[], float] = lambda: 0.0,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Join them.

        Args:
            whole: the problem, a chain.
            links: to the other stages.
            part: of the parameters.
            stage: what this stage computes; made for more micro-batches than there are stages, all
                of the rows of a batch.
            ways: the channels.
            schedule: an asynchronous one.
            place: which stage this is, and how many there are.
            is_first: whether this is the first cell.
            length: of training, after which no batch is begun.
            rate: scales each gradient down by its staleness; None scales none down.
            counts: whether to count staleness; not where servers do.
            now: returns the time of the events.
            events: records the steps; None for no history.
        """
        number, stages = place
        steps = list(schedule(number, stages, 1))
        super().__init__(
            whole, links, part=part, chunks=[stage], ways=[ways], steps=steps, is_first=is_first,
            now=now, events=events,
        )  # fmt: skip
        assert schedule.staleness is not None, "only an asynchronous schedule has stale gradients"
        self._stage, self._schedule, self._place = stage, schedule, place
        self._length, self._rate = length, rate
        #: Batches in progress after a step, at most, D: as many weights are stashed.
        self.depth = schedule.staleness(number, stages, _ENDLESS)
        self._stash = [np.empty(stage.n, np.float32) for _ in range(self.depth)]
        #: The same, for layers.
        self._stashed = [read_only(it) for it in self._stash]
        self._layers = stage.gradient_spans()
        #: Batches trained.
        self._clock = 0
        #: Of the next epoch, the batches that came back before the checkpoint.
        self._passed = 0
        #: Of this epoch: the steps, the next batch to come back, and how many have been drawn.
        self._coming_steps: Iterator[PipelineStep] = iter(())
        self._back = self._drawn = self._begun = 0
        #: By number, the batches that have been drawn and not come back, and their losses.
        self._batches: dict[int, Any] = {}
        self._losses: dict[int, float] = {}
        #: Copies of inputs that are not needed any more.
        self._free: list[FloatArray] = []
        #: Of those that went forward, the steps that the parameters had taken then.
        self._versions: dict[int, int] = {}
        #: τ of the newest gradient.
        self.staleness = 0
        #: Whether what it computes is counted by its staleness; not where servers do.
        self.counts = counts

    @property
    def stash_bytes(self) -> int:
        """Bytes of older parameters that batches in progress still need."""
        return sum(it.nbytes for it in self._stash)

    @property
    def passed(self) -> int:
        """Batches of this epoch that have come back."""
        return self._begun + self._back

    @passed.setter
    def passed(self, value: int) -> None:
        self._passed = value

    def batches(self, *of_epoch: Any) -> Any:
        """Return the batches of this copy of the model; some are drawn ahead of their steps."""
        drawn = self.whole.batches(*of_epoch)
        try:
            numbered = enumerate(drawn)
        except TypeError:
            raise not_iterable(drawn) from None
        self._coming_steps = iter(self._schedule(*self._place, _ENDLESS))
        self._back = self._drawn = 0
        self._begun, self._passed = self._passed, 0
        ahead = self._ahead(numbered, of_epoch[2], share_of(drawn))
        return _Sized(ahead, len(drawn)) if isinstance(drawn, Sized) else ahead

    def _ahead(
        self, numbered: Iterable[tuple[int, Any]], epoch: int, share: float
    ) -> Iterator[Any]:
        """Yield batches; of an epoch that does not end here, one more than are trained on."""
        before, unused = self._begun, []
        begun = self._clock - before
        waiting: deque[Any] = deque()
        for index, batch in numbered:
            if index < before:
                yield batch  # which nobody trains on again
                continue
            if self._length.reached(begun + index, epoch + index * share):
                unused = [batch]
                break
            x, y = self._pair(batch)
            if self.depth or self.links.shares_batches:
                # The next batch may be in the same arrays. Only the first stage reads x.
                x, y = self._copy(x) if self._stage.shape.given else x, np.array(y)
            elif self._stage.shape.given:
                x = np.ascontiguousarray(x)
            self._batches[index - before], self._drawn = (x, y), index - before + 1
            waiting.append((x, y))
            if len(waiting) > self.depth:
                yield waiting.popleft()
        yield from waiting
        yield from unused

    def _copy(self, x: FloatArray) -> FloatArray:
        """Return a copy, in the memory of a batch that came back: new memory is slow to touch."""
        found = self._free.pop() if self._free else None
        if found is None or found.shape != x.shape:
            found = np.empty(x.shape, np.float32)
        np.copyto(found, x)
        return found

    async def gradient(
        self, theta: Vector, batch: Any, out: Vector, ready: Ready | None = None, *, clock: int = 0
    ) -> float:
        """Write the gradient of the batch that comes back next, and return its loss.

        Args:
            theta: (n,) the newest parameters of this part; only read.
            batch: (x, y), drawn when it went forward.
            out: (n,) of this part.
            ready: see ``Problem``.
            clock: not used: batches are counted here, which are begun before their steps.
        """
        back, stage, events = self._back, self._stage, self._events
        if events is not None and len(events.noted) >= QUEUED:
            events.drain()
        stage.collect(out)
        forward: list[int] = []
        # Without numerics there are none to keep.
        keeps = bool(self.depth and theta.size)
        for step in self._coming_steps:
            m = step.micro_batch
            if step.kind in SENDING or m >= self._drawn:
                continue  # a send follows its pass at once
            if m not in self._losses:
                self._admit(m, theta)
            if step.kind in COMPUTING:
                done = None
                if step.kind is Kind.FORWARD:
                    forward.append(m)
                else:
                    assert m == back, "batches come back in order"
                if step.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
                    stashes = keeps and bool(forward)
                    done = self._final_layers(theta, stashes=stashes, ready=ready)
                await self._compute(step, done)
                if done is not None:
                    break
            else:
                way = self._ways[0].of(step.kind)
                if self._rows(m).size and way is not None:
                    await self._exchange(step, way, self._rows(m), self._losses)
                    self._note_message(step, self._now(), way)
        if not self._rows(back).size and forward and keeps:
            np.copyto(self._stash[back % self.depth], theta)
        for m in forward:
            if m != back:
                stage.admit(m, self._rows(m).size, self._stashed[back % self.depth], self._input(m))
        self._back += 1
        self._clock += 1
        x, _ = self._batches.pop(back)
        del self._versions[back]
        if self._stage.shape.given and (self.depth or self.links.shares_batches):
            self._free.append(x)
        return self._losses.pop(back)

    def _rows(self, m: int) -> Span:
        return Span(0, len(self._batches[m][0]))

    def _input(self, m: int) -> FloatArray | None:
        """Return the input of a batch, None of a stage that receives it."""
        return self._batches[m][0] if self._stage.shape.given else None

    def _admit(self, m: int, theta: Vector) -> None:
        """Let a batch go forward with the newest parameters, and announce its messages."""
        rows, ways = self._rows(m), self._ways[0]
        self._losses[m], self._versions[m] = 0.0, self._clock
        self._stage.admit(m, rows.size, theta, self._input(m))
        if rows.size:
            receives = (it for it in (ways.below, ways.back_above) if it is not None)
            self.links.begin({it: [it.place(m, rows)] for it in receives})

    async def _compute(self, step: PipelineStep, done: Ready | None) -> None:
        """Take a batch forward, or back, and send what comes of it."""
        m, ways = step.micro_batch, self._ways[0]
        rows, (_, y) = self._rows(m), self._batches[m]
        self._passing = step, rows.size, 0.0
        self._losses[m] += await self._pass(self._stage, step, y, rows, done)
        await self._spend()
        now, events = self._now(), self._events
        if events is not None:
            clock, shown = self._clock_of(m), step._replace(micro_batch=0)
            events.note((events.passed, now, clock, shown, rows.size, self._versions[m]))
        if step.kind is Kind.BACKWARD_WEIGHT:
            return
        onward = ways.above if step.kind is Kind.FORWARD else ways.back_below
        if onward is not None and rows.size:
            along = float(rows.size) if step.kind is Kind.FORWARD else self._losses[m]
            self.links.send(onward, onward.place(m, rows), along)
            # What is sent may be there before this stage has time to look.
            forward = step.kind is Kind.FORWARD
            kind = Kind.SEND_ACTIVATION if forward else Kind.SEND_GRADIENT
            peer = onward.reader
            self._note_message(PipelineStep(kind, m, step.chunk, peer), now, onward)

    def _note_message(self, step: PipelineStep, at: float, way: Channel) -> None:
        """Record that a batch was sent, or has come."""
        m, events = step.micro_batch, self._events
        if events is not None:
            rows, shown = self._rows(m).size, step._replace(micro_batch=0)
            events.note((events.exchanged, at, self._clock_of(m), shown, rows, way.nbytes(rows)))

    def _clock_of(self, m: int) -> int:
        """Return the step that trains on a batch of this epoch."""
        return self._clock - self._back + m

    def _final_layers(self, theta: Vector, *, stashes: bool, ready: Ready | None) -> Ready:
        """Return what is called with each layer whose gradient is there.

        After that its parameters may change, and those that took the batch forward are not read
        any more.
        """
        back, depth = self._back, self.depth
        assert self._schedule.staleness is not None
        self.staleness = tau = self._schedule.staleness(*self._place, back)
        rate, stash = self._rate, self._stash[back % depth] if depth else theta
        read = self._stash[(back - tau) % depth] if tau else theta
        factor = 1.0 if rate is None else rate.scale(tau)

        def done(i: int) -> None:
            layer = self._layers[i]
            if rate is not None and tau and theta.size:
                part = self._stage.gradient(i)
                _weaken(rate, factor, part, layer.of(theta), layer.of(read), layer.start)
            if stashes:
                np.copyto(layer.of(stash), layer.of(theta))
            if ready is not None:
                ready(i)

        return done


def _weaken(
    rate: StalenessRate, factor: float, part: Vector, theta: Vector, read: Vector, start: int
) -> None:
    """Transform a layer's gradient in place by what its staleness asks for.

    Args:
        rate: of the part's parameters.
        factor: r(τ).
        part: the gradient.
        theta: the newest parameters of the layer.
        read: those that the gradient is of.
        start: where the layer begins among all that the rate is for.
    """
    if not rate.elementwise:
        np.multiply(part, np.float32(factor), out=part)
        return
    for block in block_spans(part.size, BLOCK):
        span, mine = Span(start + block.start, start + block.stop), block.of(part)
        rate.block(span, mine, block.of(theta), block.of(read), mine)


class _Sized:
    """An iterator that has a length."""

    def __init__(self, batches: Iterator[Any], length: int) -> None:
        self._batches, self._length = batches, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return self._batches
