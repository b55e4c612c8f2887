"""Pipelines played with whole numbers, by a program that shares nothing with psrt's.

Virtual stage v makes y = (a_v x + v) mod Q of its input x, a_v odd; the gradient of its input is
a_v dy, and that of its weight x dy. Q is a prime of 61 bits and batches are random, so that what is
not the very gradient of the very micro-batch is seen. A stage does its steps in order, a send waits
for its receive and a receive for its send. Nothing is there that no step has put there, and what is
used up is gone.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psrt.pipeline import PipelineStep

Q = 2**61 - 1
ALL = -1
#: Kind of message → what it takes at one end, and brings to the other.
MESSAGES = {
    "SEND_ACTIVATION": ("output", "input"),
    "SEND_GRADIENT": ("input gradient", "output gradient"),
}


class WrongStepsError(Exception):
    """The steps cannot be done."""


@dataclass
class Stage:
    """What a stage has, and what it did."""

    number: int
    steps: Sequence[PipelineStep]
    stages: int
    chunks: int
    micro_batches: int
    at: int = 0
    #: By what it is, chunk and micro-batch: for itself ("kept", of a forward pass, "back", of a
    #: backward pass), for a neighbour, or from one.
    has: dict[tuple[str, int, int], int] = field(default_factory=dict)
    alive: set[tuple[int, int]] = field(default_factory=set)
    most_alive: int = 0
    #: By kind of pass and chunk, the micro-batches in order; by chunk, the gradients as added.
    passed: defaultdict[tuple[str, int], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    sums: defaultdict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    #: Gradients added so far; how many since a forward pass, at its backward pass.
    version: int = 0
    late: dict[tuple[int, int], int] = field(default_factory=dict)

    def take(self, what: str, chunk: int, m: int) -> int:
        if (what, chunk, m) not in self.has:
            raise WrongStepsError(f"{what} {chunk, m} is not there")
        return self.has.pop((what, chunk, m))

    def put(self, what: str, chunk: int, m: int, value: int) -> None:
        if (what, chunk, m) in self.has:
            raise WrongStepsError(f"{what} {chunk, m} is there")
        self.has[what, chunk, m] = value
        if what in ("input", "kept"):
            self.alive.add((chunk, m))
            self.most_alive = max(self.most_alive, len(self.alive))

    def forward(self, c: int, m: int) -> None:
        v = c * self.stages + self.number
        if v == 0:
            x = batch(m)
        else:
            x = self.take("output", c - 1, m) if self.stages == 1 else self.take("input", c, m)
        self.passed["forward", c].append(m)
        self.put("kept", c, m, x)
        self.put("version", c, m, self.version)
        y = (weight(v) * x + v) % Q
        if v == self.stages * self.chunks - 1:
            self.put("output gradient", c, m, loss_gradient(y))
        else:
            self.put("output", c, m, y)

    def backward(self, c: int, m: int) -> None:
        v = c * self.stages + self.number
        if ("kept", c, m) not in self.has:
            raise WrongStepsError("no activations")
        inside = self.stages == 1 and c < self.chunks - 1
        dy = self.take(*(("input gradient", c + 1) if inside else ("output gradient", c)), m)
        self.put("back", c, m, dy)
        self.passed["backward", c].append(m)
        self.late[c, m] = self.version - self.take("version", c, m)
        if v:
            self.put("input gradient", c, m, weight(v) * dy % Q)

    def add(self, c: int, m: int) -> None:
        which = sorted(it for what, chunk, it in self.has if (what, chunk) == ("kept", c))
        if m == ALL and len(which) != self.micro_batches:
            raise WrongStepsError("not all")
        for it in which if m == ALL else [m]:
            gradient = self.take("kept", c, it) * self.take("back", c, it) % Q
            self.sums[c].append((it, gradient))
            self.alive.discard((c, it))
        self.version += 1

    def compute(self) -> bool:
        """Do the steps up to the next message; return whether there were any."""
        begin = self.at
        while self.at < len(self.steps) and not self.name.startswith(("SEND", "RECEIVE")):
            where = self.steps[self.at].chunk, self.steps[self.at].micro_batch
            if self.name == "FORWARD":
                self.forward(*where)
            if self.name in ("BACKWARD", "BACKWARD_INPUT"):
                self.backward(*where)
            if self.name in ("BACKWARD", "BACKWARD_WEIGHT"):
                self.add(*where)
            self.at += 1
        return self.at > begin

    @property
    def name(self) -> str:
        """The kind of the step that it is at; "" at the end."""
        return self.steps[self.at].kind.name if self.at < len(self.steps) else ""


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


def meet(stages: Sequence[Stage], me: Stage) -> bool:
    """Do the send that a stage is at, if its peer is at a receive; return whether it was."""
    if me.name not in MESSAGES:
        return False
    send = me.steps[me.at]
    if not 0 <= send.peer < len(stages) or send.peer == me.number:
        raise WrongStepsError("no such peer")
    peer = stages[send.peer]
    if not peer.name.startswith("RECEIVE") or peer.steps[peer.at].peer != me.number:
        return False
    receive = peer.steps[peer.at]
    # It lands under the name that the receiver has for it; the numbers show whether it is that.
    value = me.take(MESSAGES[me.name][0], send.chunk, send.micro_batch)
    brings = MESSAGES[peer.name.replace("RECEIVE", "SEND")][1]
    peer.put(brings, receive.chunk, receive.micro_batch, value)
    me.at += 1
    peer.at += 1
    return True


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
    stages = [Stage(s, steps, len(plan), chunks, micro_batches) for s, steps in enumerate(plan)]
    try:
        moved = True
        while moved:
            moved = False
            for it in stages:
                moved |= it.compute() | meet(stages, it)
    except WrongStepsError:
        return False
    if any(it.name for it in stages):
        return False  # a deadlock
    due, order = serial(len(plan) * chunks, micro_batches), list(range(micro_batches))
    for s, me in enumerate(stages):
        if me.most_alive > alive[s] or me.has:
            return False
        for c in range(chunks):
            if me.passed["forward", c] != order or me.passed["backward", c] != order:
                return False
            if me.sums[c] != due[c * len(plan) + s]:
                return False
        if late is not None and any(n != late(s, m) for (_, m), n in me.late.items()):
            return False
    return True
