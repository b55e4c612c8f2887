"""The part of a problem that one worker computes if the model is split across ranks.

A cell trains its part of the parameters like a separate job. The difference is how its gradient is
computed: by the steps of a schedule (``psrt.pipeline``), which compute micro-batches with the
    layers
of this stage, and exchange activations and gradients with the other stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import numpy as np

from psrt.codec.matrices import Matrix, matrices_of_part
from psrt.core.arrays import FloatArray, Vector
from psrt.core.errors import ConfigError, ProtocolError
from psrt.core.partition import Part, Span, even_spans
from psrt.history.log import QUEUED
from psrt.model.lent_stage import Lender, LentStage, Use
from psrt.model.stage import Stage
from psrt.pipeline.step import (
    ALL,
    BACKWARD_PASSES,
    SENDING,
    WEIGHT_PASSES,
    Kind,
    PipelineStep,
)
from psrt.runtime.checksum import checksum
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.problem import Problem
from psrt.runtime.problem_rules import check_only_read, tensor_with
from psrt.transport.stage_links import Channel, StageLinks

Ready = Callable[[int], None]


class Ways(NamedTuple):
    """The channels of a chunk; None at the ends of the model, and within a stage."""

    #: The channel of the input, and that of its gradient.
    below: Channel | None = None
    back_below: Channel | None = None
    #: The channel of the output, and that of its gradient.
    above: Channel | None = None
    back_above: Channel | None = None

    def of(self, kind: Kind) -> Channel | None:
        """Return the channel that a step sends or receives on; None if it computes."""
        number = _EXCHANGES.get(kind)
        return None if number is None else self[number]


class CutProblem:
    """One worker's part; it has the methods of ``Problem`` that a cell's job calls."""

    #: A checkpoint keeps nothing more: between two steps no message is in flight.
    saved: ClassVar[tuple[str, ...]] = ("bytes",)
    #: Whether there is a cut at the ends of epochs only.
    drains: ClassVar[bool] = False

    def __init__(
        self,
        whole: Problem,
        links: StageLinks,
        *,
        part: Part,
        chunks: Sequence[Stage],
        ways: Sequence[Ways],
        steps: Sequence[PipelineStep],
        is_first: bool,
        now: Callable[[], float] = lambda: 0.0,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Join them.

        Args:
            whole: the problem, a chain.
            links: to the other stages and slices.
            part: of the parameters, chunk after chunk.
            chunks: the chunks that this stage computes.
            ways: the channels of each chunk.
            steps: of this stage, in order.
            is_first: whether this is the first cell, which evaluates and counts samples.
            now: returns the time of the events.
            events: records the steps; None for no history.
        """
        #: The whole problem.
        self.whole = whole
        #: The links to the other stages and slices.
        self.links = links
        #: Whether this is the first cell, which evaluates and counts samples.
        self.is_first = is_first
        #: The chunks that this stage computes, in the order of the layers.
        self.chunks = chunks
        self._part, self._ways = part, ways
        self._steps = steps
        #: By step, the channel that it sends or receives on.
        self._way_of = [ways[step.chunk].of(step.kind) for step in steps]
        self._now, self._events = now, events
        #: Bytes before the checkpoint from which this run resumed.
        self._earlier = (0, 0)
        #: Of each chunk, in the vector of this part.
        self._spans: list[Span] = []
        for stage in chunks:
            start = self._spans[-1].stop if self._spans else 0
            self._spans.append(Span(start, start + stage.n))
        #: The chunks that have not gone forward yet, and their spans.
        self._unseen = dict(enumerate(self._spans))
        #: By place in the steps: the last pass of a chunk that is of weights, and the number of
        #: the first of its layers among ``gradient_spans``.
        self._final: dict[int, int] = {}
        before = sum(len(stage.layers) for stage in chunks)
        for number, stage in enumerate(chunks):
            before -= len(stage.layers)
            self._final[_last_of_weights(steps, number)] = before
        #: The current pass, its rows, and the share of its time that has passed.
        self._passing = steps[0], 0, 0.0
        #: By number of rows: the rows of micro-batches in a batch, and the messages to this stage.
        self._places: dict[int, tuple[Span, ...]] = {}
        self._coming: dict[int, dict[Channel, list[slice]]] = {}

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes sent to and received from other stages and slices so far."""
        sent, received = self._earlier
        return self.links.bytes_sent + sent, self.links.bytes_received + received

    @bytes.setter
    def bytes(self, value: tuple[int, int]) -> None:
        self._earlier = value

    # --- the methods of a problem, for the job of a cell ------------------------------------

    @property
    def activation_bytes(self) -> int:
        """Bytes of activations and their gradients, and of a layer's gradient before it is added.

        Rows in channels count at both of their ends.
        """
        return sum(stage.activation_bytes + stage.scratch_bytes for stage in self.chunks)

    @property
    def stash_bytes(self) -> int:
        """Bytes of older parameters that batches in flight still need."""
        return 0

    def initial(self) -> Vector:
        """Return this part of the initial parameters."""
        return self._part.take(self.whole.initial())

    def batches(self, *of_epoch: Any) -> Any:
        """Return the batches of this copy of the model."""
        return self.whole.batches(*of_epoch)

    def gradient_spans(self) -> tuple[Span, ...]:
        """Return the spans of the layers, from the end to the beginning."""
        return tuple(
            Span(chunk.start + start, chunk.start + stop)
            for chunk, stage in zip(self._spans[::-1], self.chunks[::-1], strict=True)
            for start, stop in stage.gradient_spans()
        )

    def uses(self) -> list[Use]:
        """Return what a step does with the layers of this part, numbered in the order of theta."""
        starts = list(accumulate((len(stage.layers) for stage in self.chunks), initial=0))
        found: list[Use] = []
        for kind, _, chunk, _ in self._steps:
            up = range(starts[chunk], starts[chunk + 1])
            again = kind in BACKWARD_PASSES and self.chunks[chunk].shape.recompute
            if kind is Kind.FORWARD or again:
                found += [Use(i, writes=False) for i in up]
            reads, writes = kind in BACKWARD_PASSES, kind in WEIGHT_PASSES
            for i in reversed(up) if reads or writes else ():
                found += [Use(i, writes=it) for it in (False, True) if (reads, writes)[it]]
        return found

    def borrow(self, lender: Lender, *, gathers: bool) -> None:
        """Compute with lent layers.

        Args:
            lender: lends what ``uses`` lists, in this order.
            gathers: whether it lends parameters, too, or only gradients.
        """
        first = 0
        if gathers:  # lent memory may be anywhere
            self._unseen = {}
        for stage in self.chunks:
            assert isinstance(stage, LentStage), "made to borrow"
            stage.borrow(lender, first, gathers=gathers, spend=self._spend)
            first += len(stage.layers)

    def matrices(self) -> tuple[Matrix, ...]:
        """Return the matrices of this part."""
        asked = getattr(self.whole, "matrices", None)
        given = asked() if callable(asked) else ()
        return matrices_of_part([Matrix(*it) for it in given], self._part)

    def tensor_at(self, at: int) -> str:
        """Return the name of the tensor with an element of this part; empty without names."""
        [place] = self._part.spans(Span(at, at + 1))
        whole = np.empty(sum(layer.n for layer in self.whole.layers()), np.float32)  # type: ignore[attr-defined]
        return tensor_with(self.whole, whole, place.start)

    def loss_and_grad(self, theta: Vector, batch: Any, out: Vector) -> float:
        """Refuse: see ``gradient``."""
        raise AssertionError("a part of a gradient is computed together with the other stages")

    def evaluate(self, theta: Vector) -> dict[str, float]:
        """Refuse: see ``figures``."""
        raise AssertionError("a part of a model is evaluated together with the other stages")

    # --- with the other stages ------------------------------------------------------------------

    async def figures(
        self, theta: Vector, evaluate: Callable[[Vector], dict[str, float]]
    ) -> dict[str, float]:
        """Evaluate the whole model, at its first cell; the others have no figures."""
        whole = await self.links.gather(theta)
        return {} if whole is None else evaluate(whole)

    async def gradient(
        self, theta: Vector, batch: Any, out: Vector, ready: Ready | None = None, *, clock: int = 0
    ) -> float:
        """Write this part of the gradient of a batch's mean loss, and return that loss.

        Args:
            theta: (n,) of this part; only read.
            batch: (x, y), the same in all stages.
            out: (n,) of this part.
            ready: see ``Problem``.
            clock: of the step, for the history.
        """
        now, events = self._now, self._events
        if events is not None and len(events.noted) >= QUEUED:
            events.drain()
        x, y = self._pair(batch)
        if self.links.shares_batches:
            x, y = np.array(x), np.array(y)
        for span, stage in zip(self._spans, self.chunks, strict=True):
            first = np.ascontiguousarray(x) if stage.shape.given else None
            stage.begin(len(x), span.of(theta), span.of(out), first)
        self.links.begin(self._expected(len(x)))
        losses = [0.0] * self.chunks[0].shape.micro_batches
        # The first forward pass of each chunk: nothing else writes its parameters then.
        unseen, self._unseen = self._unseen, {}
        places = self._places_of(len(x))
        for i, (step, way) in enumerate(zip(self._steps, self._way_of, strict=True)):
            chunk = self.chunks[step.chunk]
            rows = places[step.micro_batch]
            if step.kind in _EXCHANGES:
                if rows.size and way is not None:
                    began = now()
                    await self._exchange(step, way, rows, losses)
                    if events is not None:
                        # A message may arrive before this stage has time to receive it.
                        at = began if step.kind in SENDING else now()
                        nbytes = way.nbytes(rows.size)
                        events.note((events.exchanged, at, clock, step, rows.size, nbytes))
                continue
            done = None
            if ready is not None and i in self._final:
                done = _shifted(ready, self._final[i])
            seen = unseen.pop(step.chunk) if step.chunk in unseen else None
            before = None if seen is None else checksum(seen.of(theta))
            self._passing = step, rows.size, 0.0
            losses[step.micro_batch] += await self._pass(chunk, step, y, rows, done)
            if seen is not None and before is not None:
                check_only_read(seen.of(theta), before, "forward() of a layer")
            await self._spend()
            if events is not None:
                events.note((events.passed, now(), clock, step, rows.size))
        return float(sum(losses))

    async def _spend(self, share: float = 1.0) -> None:
        """Let the virtual time of the current pass elapse, up to a share of it."""
        step, rows, spent = self._passing
        if spent < share:
            self._passing = step, rows, share
            await self.links.passed(step, rows, share - spent)

    async def _pass(
        self,
        stage: Stage,
        step: PipelineStep,
        y: Any,
        rows: Span,
        ready: Ready | None,
    ) -> float:
        """Compute a pass of a micro-batch, or the weight gradients of all; return its loss part."""
        kind, m, ways, loss = step.kind, step.micro_batch, self._ways[step.chunk], 0.0
        if kind is Kind.FORWARD:
            if rows.size and ways.above is not None:
                await self.links.free(ways.above, ways.above.place(m, rows))
            await stage.forward(m)
            return 0.0
        last = y[slice(*rows)] if stage.computes_loss else None
        if kind is not Kind.BACKWARD_WEIGHT and ways.back_below is not None and stage.rows(m):
            await self.links.free(ways.back_below, ways.back_below.place(m, rows))
        if kind is Kind.BACKWARD_INPUT:
            return await stage.backward_input(m, last)
        if kind is Kind.BACKWARD:
            loss = await stage.backward(m, last, ready)
        else:
            waiting = stage.backward_weight(m, ready)
            if waiting is not None:
                await waiting
        of = range(stage.shape.micro_batches) if m == ALL else (m,)
        for _ in filter(stage.rows, of):
            for channel in (ways.below, ways.back_above):
                if channel is not None:
                    self.links.release(channel)
        return loss

    async def _exchange(
        self,
        step: PipelineStep,
        way: Channel,
        rows: Span,
        losses: list[float] | dict[int, float],
    ) -> None:
        """Send or receive a micro-batch.

        Its number of rows travels with activations, and its part of the loss with gradients.

        Raises:
            ProtocolError: if the stage before has a batch of another length.
        """
        kind, m, links = step.kind, step.micro_batch, self.links
        if kind is Kind.SEND_ACTIVATION:
            links.send(way, way.place(m, rows), float(rows.size))
        elif kind is Kind.RECEIVE_ACTIVATION:
            came = await links.receive(way)
            if came != rows.size:
                raise ProtocolError(
                    f"micro-batch {m} has {came:g} rows in the stage before and {rows.size} in "
                    f"stage {way.reader}: the batches of a copy must be the same on all its ranks"
                )
        elif kind is Kind.SEND_GRADIENT:
            links.send(way, way.place(m, rows), losses[m])
        else:
            losses[m] = await links.receive(way)

    def _pair(self, batch: Any) -> tuple[FloatArray, Any]:
        """Return the inputs and targets of a batch.

        Raises:
            ConfigError: if it is not such a pair, or the two do not fit each other or the model.
        """
        try:
            x, y = batch
            shape, targets = x.shape, len(y)
        except (AttributeError, TypeError, ValueError):
            raise ConfigError(
                "batches() gave a batch that is not a pair of arrays (x, targets), which a split "
                "model needs"
            ) from None
        inputs = self.chunks[0].layers[0].inputs if self.chunks[0].shape.first else shape[-1]
        if shape != (targets, inputs) or x.dtype != np.float32:
            raise ConfigError(
                f"batches() gave inputs that are {x.dtype} {shape} with {targets} targets, "
                f"expected float32 rows of {inputs} and as many targets"
            )
        return x, y

    def _places_of(self, rows: int) -> tuple[Span, ...]:
        """Return the rows of each micro-batch in a batch, and then those of all."""
        found = self._places.get(rows)
        if found is None:
            found = even_spans(rows, self.chunks[0].shape.micro_batches)
            found = self._places[rows] = (*found, Span(0, rows))
        return found

    def _expected(self, rows: int) -> dict[Channel, list[slice]]:
        """Return the rows of each message to receive, by channel."""
        found = self._coming.get(rows)
        if found is None:
            found = self._coming[rows] = {}
            places = self._places_of(rows)
            for kind, m, chunk, _ in self._steps:
                channel = None if kind in SENDING else self._ways[chunk].of(kind)
                if channel is not None and places[m].size:
                    found.setdefault(channel, []).append(channel.place(m, places[m]))
        return found


#: Steps that send or receive → the number of their channel among the ``Ways``.
_EXCHANGES = {
    Kind.RECEIVE_ACTIVATION: 0,
    Kind.SEND_GRADIENT: 1,
    Kind.SEND_ACTIVATION: 2,
    Kind.RECEIVE_GRADIENT: 3,
}


def _last_of_weights(steps: Sequence[PipelineStep], chunk: int) -> int:
    found = (i for i, it in enumerate(steps) if it.kind in WEIGHT_PASSES and it.chunk == chunk)
    return max(found)


def _shifted(ready: Ready, by: int) -> Ready:
    """Return ``ready`` for layers whose numbers start at another one."""
    return lambda i: ready(i + by)
