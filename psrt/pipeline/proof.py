"""The prover: shows that a pipeline schedule keeps its promises, or where it does not. Pure.

``prove`` runs the steps of all stages by rendezvous, the strictest semantics that MPI allows: a
stage takes its steps in order, a send waits until its receiver is at the receive of this very
message, and a receive waits for its send. If it ends without an error, then for these P and M,

- each micro-batch goes forward once and backward once through every virtual stage in order, from
  the output of the one before and with the gradient of the one behind;
- a backward pass finds the activations of its forward pass, and these are kept until the gradient
  of the weights is added, by micro-batch or for all in one product;
- in every chunk forward passes, backward passes and gradients of weights are in ascending order of
  micro-batches, so that sums have one order;
- no more activations are alive in a stage than promised, counted from where they are received;
- in an asynchronous schedule the number of updates between a batch's forward and backward pass is
  the promised one;
- there is no deadlock.

One run is enough: a step names its peer, so the k-th message from one stage to another is the same
in every run, and a message that can go through stays possible until it does.

A proof holds for the P and M that were tried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from psrt.core.errors import ConfigError
from psrt.pipeline.schedule import PipelineSchedule
from psrt.pipeline.step import ALL, COMPUTING, SENDING, Kind, PipelineStep
from psrt.pipeline.timeline import ScheduleError


@dataclass(frozen=True, slots=True)
class Proof:
    """Counts of a proof, by stage."""

    #: Messages that a stage sends.
    sent: tuple[int, ...]
    #: The most activations that were alive at once in a stage's chunks.
    alive: tuple[int, ...]
    #: The most updates between a forward pass and its backward pass; 0 if updates are at the end.
    staleness: tuple[int, ...]
    #: The most versions of a stage's weights kept at once, including the current one.
    versions: tuple[int, ...]

    @property
    def messages(self) -> int:
        """Messages of all stages."""
        return sum(self.sent)


def proved(
    row: PipelineSchedule,
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    *,
    deferred: bool = False,
) -> Proof:
    """Show that a schedule keeps the promises of its row.

    Args:
        row: of the registry.
        stages: P ≥ 1.
        micro_batches: M ≥ 1.
        chunks: V ≥ 1.
        deferred: whether the gradients of weights come at the end, in one product.

    Raises:
        ScheduleError: if it does not keep them.
        ConfigError: if there is no such pipeline.

    >>> from psrt.pipeline.registry import PIPELINES
    >>> proved(PIPELINES["1f1b"], 3, 8).alive, proved(PIPELINES["gpipe"], 3, 8).alive
    ((3, 2, 1), (8, 8, 8))
    """
    late = row.staleness
    return prove(
        row.plan(stages, micro_batches, chunks, deferred=deferred),
        micro_batches,
        chunks,
        alive=[
            row.most_alive(stage, stages, micro_batches, chunks, deferred=deferred)
            for stage in range(stages)
        ],
        staleness=late and (lambda stage, batch: late(stage, stages, batch)),
    )


def prove(
    plan: Sequence[Iterable[PipelineStep]],
    micro_batches: int,
    chunks: int = 1,
    *,
    alive: Sequence[int] | None = None,
    staleness: Callable[[int, int], int] | None = None,
) -> Proof:
    """Show that ``plan`` is a pipeline schedule.

    Args:
        plan: by stage, its steps.
        micro_batches: M ≥ 1.
        chunks: V ≥ 1.
        alive: by stage, the activations that may be alive at once; None: any number.
        staleness: (stage, batch) → updates between its passes, if there is one after each backward
            pass; None: there is one update, at the end.

    Raises:
        ScheduleError: if it is not.
        ConfigError: if promises are for another number of stages.

    >>> from psrt.pipeline.registry import PIPELINES
    >>> plan = PIPELINES["1f1b"].plan(2, 3)
    >>> prove(plan, 3).sent
    (3, 3)
    >>> plan[1].remove(plan[1][2])
    >>> prove(plan, 3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    psrt...ScheduleError: stage 1, step 2 (send gradient of 0 to 0): it is not there
    """
    if alive is not None and len(alive) != len(plan):
        raise ConfigError(f"promises of {len(alive)} stages, expected {len(plan)}")
    stages = [
        _Stage(
            stage,
            steps,
            stages=len(plan),
            micro_batches=micro_batches,
            chunks=chunks,
            alive=None if alive is None else alive[stage],
            staleness=staleness,
        )
        for stage, steps in enumerate(plan)
    ]
    ready = deque(stages)
    while ready:
        stage = ready.popleft()
        if not stage.advance():
            continue
        peer = stages[stage.step.peer]
        sends = stage.step.kind in SENDING
        there = not peer.done and peer.posted and peer.step.peer == stage.stage
        if there and (peer.step.kind in SENDING) != sends:
            sender, receiver = (stage, peer) if sends else (peer, stage)
            _check_same(sender, receiver)
            sender.posted = receiver.posted = False
            sender.sent += 1
            receiver.receive()
            ready += (sender, receiver)
    _check_all_are_through(stages)
    return Proof(
        sent=tuple(it.sent for it in stages),
        alive=tuple(it.most_alive for it in stages),
        staleness=tuple(it.most_stale for it in stages),
        versions=tuple(it.most_versions for it in stages),
    )


class _Stage:
    """One stage's progress through its steps, and its data of each micro-batch."""

    def __init__(
        self,
        stage: int,
        steps: Iterable[PipelineStep],
        *,
        stages: int,
        micro_batches: int,
        chunks: int,
        alive: int | None,
        staleness: Callable[[int, int], int] | None,
    ) -> None:
        self.stage = stage
        self._steps = iter(steps)
        self._stages, self._m, self._chunks = stages, micro_batches, chunks
        self._last = stages * chunks - 1
        self._may_be_alive, self._staleness = alive, staleness
        #: The current step, its number, whether it is a message that waits, and whether the stage
        #: has no step left.
        self.step = PipelineStep(Kind.FORWARD, ALL)
        self.index = -1
        self.posted = self.done = False
        #: By chunk, the number of forward passes, of backward ones, and of gradients added.
        self._forward, self._backward, self._added = ([0] * chunks for _ in range(3))
        #: (chunk, micro-batch): inputs and gradients that have arrived and were not used yet; and,
        #: with their kind, outputs and gradients that were sent.
        self._inputs: set[tuple[int, int]] = set()
        self._gradients: set[tuple[int, int]] = set()
        self._gone: set[tuple[Kind, int, int]] = set()
        #: Updates so far; and for each forward pass without a backward pass, those before it.
        self._version = 0
        self._seen: dict[tuple[int, int], int] = {}
        self._alive = 0
        self.sent = self.most_alive = self.most_stale = 0
        self.most_versions = 1

    @property
    def virtual(self) -> int:
        """Virtual stage of the current step."""
        return self.step.chunk * self._stages + self.stage

    def error(self, why: str) -> ScheduleError:
        """Return an error at the current step."""
        return ScheduleError(self.stage, why, self.index, self.step)

    def advance(self) -> bool:
        """Compute until the next message, and post it; return whether there is one."""
        for step in self._steps:
            self.step = step
            self.index += 1
            self._check_alone()
            if step.kind not in COMPUTING:
                if step.kind in SENDING:
                    self._check_sendable()
                self.posted = True
                return True
            self._compute()
        self.done = True
        self._check_end()
        return False

    def receive(self) -> None:
        """Take the message that has arrived; it is the first of its name, since it is sent once."""
        kind, m, chunk, _ = self.step
        if kind is Kind.RECEIVE_ACTIVATION:
            self._inputs.add((chunk, m))
            self._keep()
        else:
            self._gradients.add((chunk, m))

    def _check_alone(self) -> None:
        """Check the step by itself: its chunk and micro-batch exist, and its peer is right."""
        kind, m, chunk, peer = self.step
        if not 0 <= chunk < self._chunks:
            raise self.error(f"there is no chunk {chunk} of {self._chunks}")
        if not (0 <= m < self._m or (m == ALL and kind is Kind.BACKWARD_WEIGHT)):
            raise self.error(f"there is no micro-batch {m} of {self._m}")
        if kind in COMPUTING:
            return
        virtual = self.virtual
        onward = kind in (Kind.SEND_ACTIVATION, Kind.RECEIVE_GRADIENT)
        other = virtual + (1 if onward else -1)
        if not 0 <= other <= self._last:
            raise self.error("there is no stage behind it" if onward else "there is none before it")
        if other % self._stages != peer or peer == self.stage:
            raise self.error(f"expected stage {other % self._stages}")

    def _check_sendable(self) -> None:
        kind, m, chunk, _ = self.step
        made = self._forward if kind is Kind.SEND_ACTIVATION else self._backward
        if m >= made[chunk]:
            raise self.error("it is not there")
        if (kind, chunk, m) in self._gone:
            raise self.error("it is sent already")
        self._gone.add((kind, chunk, m))

    def _compute(self) -> None:
        kind, m, chunk, _ = self.step
        if kind is Kind.FORWARD:
            self._go_forward(m, chunk)
            return
        if kind is not Kind.BACKWARD_WEIGHT:
            self._go_backward(m, chunk)
        if kind is not Kind.BACKWARD_INPUT:
            self._add(m, chunk)

    def _go_forward(self, m: int, chunk: int) -> None:
        if m != self._forward[chunk]:
            raise self.error(f"expected {self._forward[chunk]} next")
        if (chunk, m) in self._inputs:
            self._inputs.remove((chunk, m))
        elif chunk == self.stage == 0 or (self._stages == 1 and m < self._forward[chunk - 1]):
            self._keep()  # from the batch, or from the previous chunk in the same stage
        else:
            raise self.error("its input is not there")
        self._forward[chunk] += 1
        self._seen[chunk, m] = self._version

    def _go_backward(self, m: int, chunk: int) -> None:
        if m != self._backward[chunk]:
            raise self.error(f"expected {self._backward[chunk]} next")
        if m >= self._forward[chunk]:
            raise self.error("its forward pass is still to come")
        if self.virtual < self._last:
            if (chunk, m) in self._gradients:
                self._gradients.remove((chunk, m))
            elif self._stages > 1 or m >= self._backward[chunk + 1]:
                raise self.error("the gradient of its output is not there")
        self._backward[chunk] += 1
        seen = self._seen.pop((chunk, m))
        if self._staleness is not None:
            late, due = self._version - seen, self._staleness(self.stage, m)
            if late != due:
                raise self.error(f"its weights are {late} updates old, expected {due}")
            self.most_stale = max(self.most_stale, late)

    def _add(self, m: int, chunk: int) -> None:
        """Add a gradient of weights, or all; its activations are not kept any longer."""
        added = self._added[chunk]
        if m == ALL:
            if self._backward[chunk] < self._m:
                raise self.error(f"of {self._m} backward passes there were {self._backward[chunk]}")
            if added:
                raise self.error(f"{added} are added already")
        elif m != added:
            raise self.error(f"expected the gradient of the weights of {added} next")
        elif m >= self._backward[chunk]:
            raise self.error("its backward pass to the input is still to come")
        many = self._m if m == ALL else 1
        self._added[chunk] += many
        self._alive -= many
        if self._staleness is not None:
            self._version += 1
            versions = len({*self._seen.values(), self._version})
            self.most_versions = max(self.most_versions, versions)

    def _keep(self) -> None:
        self._alive += 1
        self.most_alive = max(self.most_alive, self._alive)
        if self._may_be_alive is not None and self._alive > self._may_be_alive:
            raise self.error(f"{self._alive} are alive, promised {self._may_be_alive} at most")

    def _check_end(self) -> None:
        for what, counts in (
            ("forward passes", self._forward),
            ("backward passes", self._backward),
            ("gradients of weights", self._added),
        ):
            for chunk, count in enumerate(counts):
                if count != self._m:
                    where = f" in chunk {chunk}" if chunk else ""
                    why = f"ends with {count} {what}{where}, expected {self._m}"
                    raise ScheduleError(self.stage, why)


def _check_same(sender: _Stage, receiver: _Stage) -> None:
    """Check that both ends expect the same message."""
    sent, received = sender.step, receiver.step
    forward = sent.kind is Kind.SEND_ACTIVATION
    due = Kind.RECEIVE_ACTIVATION if forward else Kind.RECEIVE_GRADIENT
    to = sender.virtual + (1 if forward else -1)
    same = received.kind is due and received.micro_batch == sent.micro_batch
    if not same or receiver.virtual != to:
        raise receiver.error(f"stage {sender.stage} is at: {sent}")


def _check_all_are_through(stages: Sequence[_Stage]) -> None:
    """Check that no stage is left waiting; raise with the chain of waiting stages otherwise."""
    first = next((stage for stage in stages if not stage.done), None)
    if first is None:
        return
    chain = [first]
    while not (peer := stages[chain[-1].step.peer]).done and peer not in chain:
        chain.append(peer)
    links = [f"{it.stage} waits for {it.step.peer} (step {it.index})" for it in chain]
    end = f"and {peer.stage} has no step left" if peer.done else "in a circle"
    raise first.error(f"deadlock: {', '.join(links)}, {end}")
