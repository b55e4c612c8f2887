"""Pipelines played with whole numbers, by a program that shares nothing with psrt's.

Virtual stage v makes y = (a_v x + v) mod Q of its input x, a_v odd; the gradient of its input is
a_v dy, and that of its weight x dy. Q is a prime of 61 bits and batches are random, so that what is
not the very gradient of the very micro-batch is seen. A stage does its steps in order, a send waits
for its receive and a receive for its send. What a stage has is in dicts; nothing is there that no
step has put there, and what is used up is gone.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from psrt.pipeline import PipelineStep

Q = 2**61 - 1
ALL = -1
#: (chunk, micro-batch).
Key = tuple[int, int]
T = TypeVar("T")


class WrongStepsError(Exception):
    """The steps cannot be done."""


@dataclass
class Stage:
    """What a stage has, and what it did."""

    steps: list[PipelineStep]
    at: int = 0
    #: What is there to be used: from the stage before, for the one behind, and back.
    inputs: dict[Key, int] = field(default_factory=dict)
    outputs: dict[Key, int] = field(default_factory=dict)
    output_gradients: dict[Key, int] = field(default_factory=dict)
    input_gradients: dict[Key, int] = field(default_factory=dict)
    #: The inputs of forward passes, and once they are back the gradients of their outputs.
    kept: dict[Key, int] = field(default_factory=dict)
    back: dict[Key, int] = field(default_factory=dict)
    alive: set[Key] = field(default_factory=set)
    most_alive: int = 0
    #: By chunk, the micro-batches that passed, in order, and the gradients as they are added.
    forward: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    backward: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    sums: defaultdict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    #: Gradients added so far, when each forward pass was, and between it and its backward pass.
    version: int = 0
    seen: dict[Key, int] = field(default_factory=dict)
    late: dict[Key, int] = field(default_factory=dict)

    def keep(self, key: Key) -> None:
        self.alive.add(key)
        self.most_alive = max(self.most_alive, len(self.alive))


@dataclass(frozen=True)
class Size:
    stages: int
    micro_batches: int
    chunks: int


def weight(v: int) -> int:
    return random.Random(v).randrange(1, Q, 2)


def batch(m: int) -> int:
    return random.Random(-1 - m).randrange(Q)


def loss_gradient(y: int) -> int:
    return (y * y + 7) % Q


def serial(virtual: int, micro_batches: int) -> list[list[tuple[int, int]]]:
    """Return by virtual stage each micro-batch and the gradient of the weight of it."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(virtual)]
    for m in range(micro_batches):
        xs = [batch(m)]
        for v in range(virtual):
            xs.append((weight(v) * xs[-1] + v) % Q)
        dy = loss_gradient(xs[-1])
        for v in reversed(range(virtual)):
            found[v].append((m, xs[v] * dy % Q))
            dy = weight(v) * dy % Q
    return found


def take(place: dict[Key, T], key: Key) -> T:
    if key not in place:
        raise WrongStepsError(f"{key} is not there")
    return place.pop(key)


def put(place: dict[Key, T], key: Key, value: T) -> None:
    if key in place:
        raise WrongStepsError(f"{key} is there")
    place[key] = value


def go_forward(me: Stage, s: int, key: Key, size: Size) -> None:
    chunk, m = key
    v = chunk * size.stages + s
    if v == 0:
        x = batch(m)
    elif size.stages == 1:
        x = take(me.outputs, (chunk - 1, m))
    else:
        x = take(me.inputs, key)
    me.keep(key)
    me.forward[chunk].append(m)
    put(me.seen, key, me.version)
    put(me.kept, key, x)
    y = (weight(v) * x + v) % Q
    if v == size.stages * size.chunks - 1:
        put(me.output_gradients, key, loss_gradient(y))
    else:
        put(me.outputs, key, y)


def go_backward(me: Stage, s: int, key: Key, size: Size) -> None:
    chunk, m = key
    v = chunk * size.stages + s
    if key not in me.kept:
        raise WrongStepsError("no activations")
    inside = size.stages == 1 and chunk < size.chunks - 1
    dy = take(me.input_gradients, (chunk + 1, m)) if inside else take(me.output_gradients, key)
    put(me.back, key, dy)
    me.backward[chunk].append(m)
    me.late[key] = me.version - me.seen[key]
    if v:
        put(me.input_gradients, key, weight(v) * dy % Q)


def add(me: Stage, key: Key, size: Size) -> None:
    chunk, m = key
    which = sorted(it for it in me.kept if it[0] == chunk) if m == ALL else [key]
    if m == ALL and len(which) != size.micro_batches:
        raise WrongStepsError("not all")
    for it in which:
        me.sums[chunk].append((it[1], take(me.kept, it) * take(me.back, it) % Q))
        me.alive.discard(it)
    me.version += 1


def compute(me: Stage, s: int, size: Size) -> None:
    step = me.steps[me.at]
    name, key = step.kind.name, (step.chunk, step.micro_batch)
    if name == "FORWARD":
        go_forward(me, s, key, size)
    if name in ("BACKWARD", "BACKWARD_INPUT"):
        go_backward(me, s, key, size)
    if name in ("BACKWARD", "BACKWARD_WEIGHT"):
        add(me, key, size)


def is_message(step: PipelineStep) -> bool:
    return step.kind.name.startswith(("SEND", "RECEIVE"))


def meet(stages: list[Stage], s: int) -> bool:
    """Do the send that a stage is at, if its peer is at a receive; return whether it was."""
    me = stages[s]
    if me.at == len(me.steps) or not me.steps[me.at].kind.name.startswith("SEND"):
        return False
    send = me.steps[me.at]
    if not 0 <= send.peer < len(stages) or send.peer == s:
        raise WrongStepsError("no such peer")
    peer = stages[send.peer]
    if peer.at == len(peer.steps):
        return False
    receive = peer.steps[peer.at]
    if not receive.kind.name.startswith("RECEIVE") or receive.peer != s:
        return False
    sent = me.outputs if send.kind.name == "SEND_ACTIVATION" else me.input_gradients
    # It lands under the name that the receiver has for it; the numbers show whether it is that.
    value, key = take(sent, (send.chunk, send.micro_batch)), (receive.chunk, receive.micro_batch)
    if receive.kind.name == "RECEIVE_ACTIVATION":
        put(peer.inputs, key, value)
        peer.keep(key)
    else:
        put(peer.output_gradients, key, value)
    me.at += 1
    peer.at += 1
    return True


def perform(plan: Sequence[Sequence[PipelineStep]], micro_batches: int, chunks: int) -> list[Stage]:
    """Do all steps, and return the stages.

    Raises:
        WrongStepsError: if they cannot be done.
    """
    stages = [Stage(list(steps)) for steps in plan]
    size = Size(len(plan), micro_batches, chunks)
    moved = True
    while moved:
        moved = False
        for s, me in enumerate(stages):
            while me.at < len(me.steps) and not is_message(me.steps[me.at]):
                compute(me, s, size)
                me.at += 1
                moved = True
            moved |= meet(stages, s)
    if any(it.at < len(it.steps) for it in stages):
        raise WrongStepsError("deadlock")
    return stages


def is_right(
    plan: Sequence[Sequence[PipelineStep]],
    micro_batches: int,
    chunks: int,
    *,
    alive: Sequence[int],
    late: Callable[[int, int], int] | None = None,
) -> bool:
    """Return whether the steps do what a row promises.

    Args:
        plan: by stage.
        micro_batches: M.
        chunks: V.
        alive: by stage, how many activations may be.
        late: (stage, m) → updates between forward and backward pass; None: not asked.
    """
    try:
        stages = perform(plan, micro_batches, chunks)
    except WrongStepsError:
        return False
    due, order = serial(len(plan) * chunks, micro_batches), list(range(micro_batches))
    for s, me in enumerate(stages):
        if me.most_alive > alive[s] or me.kept:
            return False
        if me.inputs or me.outputs or me.output_gradients or me.input_gradients:
            return False
        for c in range(chunks):
            if me.forward[c] != order or me.backward[c] != order:
                return False
            if me.sums[c] != due[c * len(plan) + s]:
                return False
        if late is not None and any(n != late(s, m) for (_, m), n in me.late.items()):
            return False
    return True
