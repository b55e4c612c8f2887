"""A simulator of collectives on numbers, and all schedules in one table.

The simulator runs every rank of a collective in one process, on numbers, and knows nothing of the
prover, so that each is a check of the other. A step posts its halves, and completes when both are
matched: a send returns only when its receive is posted (rendezvous, the strictest that MPI
allows). So a schedule that passes here needs no buffering by the library. Which of the possible
messages goes through next is up to a generator, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from psrt.collective import ALGORITHMS, PHASES, Step
from psrt.collective.schedules.double_tree import double_tree_steps
from psrt.collective.schedules.segmented_ring import segmented_ring_steps
from psrt.collective.spec import CollectiveSpec, all_reduce
from psrt.core.partition import Span

Schedules = list[list[Step]]
#: Combines two operands, the lower rank's first.
Fold = Callable[[Any, Any], Any]


class RefutedError(AssertionError):
    """The schedules cannot run: a deadlock, or two ends of a message that differ."""


@dataclass
class Outcome:
    buffers: list[np.ndarray]
    rounds: int  # length of the longest chain of steps that wait for each other
    sent: list[int]  # elements, per rank
    combined: list[int]
    messages: int  # that are not empty


class Simulation:
    """Runs ``schedules[rank]`` on ``buffers[rank]``; spans cut the first axis.

    Behind each buffer there is a workspace full of garbage.
    """

    def __init__(
        self,
        schedules: Schedules,
        buffers: Sequence[np.ndarray],
        fold: Fold = np.add,
        *,
        workspace: int = 0,
        rng: np.random.Generator | None = None,
    ):
        self.schedules, self.fold, self.rng = schedules, fold, rng
        self.n = len(buffers[0])
        self.memory = [np.concatenate([b, garbage((workspace, *b.shape[1:]), b)]) for b in buffers]
        ranks = range(len(schedules))
        self.next = [0 for _ in ranks]  # index of each rank's posted step
        self.clock = [0 for _ in ranks]  # rounds gone by when it was posted
        self.finish = [0 for _ in ranks]
        self.sent = [0 for _ in ranks]
        self.combined = [0 for _ in ranks]
        self.messages = 0
        self.arrived: dict[int, np.ndarray] = {}  # receiver -> what its posted step got
        self.halves: list[set[str]] = [set() for _ in ranks]
        for rank in ranks:
            self.post(rank)

    def step(self, rank: int) -> Step | None:
        done = self.next[rank] == len(self.schedules[rank])
        return None if done else self.schedules[rank][self.next[rank]]

    def post(self, rank: int) -> None:
        """Post the next step; local ones are carried out at once."""
        while (step := self.step(rank)) is not None:
            self.check(rank, step)
            if step.send_to != rank:
                ends = (("send", step.send_to), ("receive", step.receive_from))
                self.halves[rank] = {half for half, peer in ends if peer is not None}
                return
            self.take(rank, step, step.send.of(self.memory[rank]).copy())
            self.next[rank] += 1

    def check(self, rank: int, step: Step) -> None:
        both = step.send_to is not None and step.receive_from is not None
        overlap = step.send.start < step.receive.stop and step.receive.start < step.send.stop
        if both and overlap and (not step.combine or step.send_to == rank):
            raise RefutedError(f"rank {rank} overwrites what it is sending: {step}")
        if (step.send_to == rank) != (step.receive_from == rank):
            raise RefutedError(f"rank {rank} is half its own peer: {step}")
        if any(p not in (None, *range(len(self.schedules))) for p in (step.send_to, step[2])):
            raise RefutedError(f"rank {rank} has a peer that is not there: {step}")
        for span in (step.send, step.receive):
            if not 0 <= span.start <= span.stop <= len(self.memory[rank]):
                raise RefutedError(f"rank {rank} goes beyond its memory: {step}")
            if span.start < self.n < span.stop:
                raise RefutedError(f"rank {rank} straddles vector and workspace: {step}")
        if step.send_to != rank and step.send.stop > self.n:
            raise RefutedError(f"rank {rank} sends from its workspace: {step}")

    def match(self, sender: int) -> bool:
        """Hand over what ``sender`` has posted, if its peer is ready for it."""
        step = self.step(sender)
        if step is None or step.send_to is None or "send" not in self.halves[sender]:
            return False
        receiver = step.send_to
        other = self.step(receiver)
        if other is None or "receive" not in self.halves[receiver]:
            return False
        if other.receive_from != sender:
            return False
        if other.receive.size != step.send.size:
            raise RefutedError(f"mismatch: rank {sender} {step}, rank {receiver} {other}")
        self.arrived[receiver] = step.send.of(self.memory[sender]).copy()
        self.sent[sender] += step.send.size
        self.messages += step.send.size > 0
        self.halves[sender].discard("send")
        self.halves[receiver].discard("receive")
        met = max(self.clock[sender], self.clock[receiver]) + 1
        self.finish[sender] = max(self.finish[sender], met)
        self.finish[receiver] = max(self.finish[receiver], met)
        return True

    def complete(self, rank: int) -> bool:
        """Take what came and post the next step, if both halves are through."""
        step = self.step(rank)
        if step is None or self.halves[rank]:
            return False
        if step.receive_from is not None:
            self.take(rank, step, self.arrived.pop(rank))
        self.clock[rank] = self.finish[rank]
        self.next[rank] += 1
        self.post(rank)
        return True

    def take(self, rank: int, step: Step, came: np.ndarray) -> None:
        mine = step.receive.of(self.memory[rank])
        if not step.combine:
            mine[...] = came
            return
        assert step.receive_from is not None
        # The lower rank's operand first; within one rank, what was there.
        mine[...] = self.fold(came, mine) if step.receive_from < rank else self.fold(mine, came)
        self.combined[rank] += step.receive.size

    def run(self) -> Outcome:
        ranks = range(len(self.schedules))
        moves = [partial(move, rank) for move in (self.match, self.complete) for rank in ranks]
        while True:
            if self.rng is not None:
                self.rng.shuffle(moves)
            moved = [move() for move in moves]  # all of them, not up to the first that can
            if not any(moved):
                break
        stuck = {r: self.step(r) for r in ranks if self.step(r) is not None}
        if stuck:
            raise RefutedError(f"deadlock: {stuck}")
        vectors = [memory[: self.n] for memory in self.memory]
        return Outcome(vectors, max(self.clock), self.sent, self.combined, self.messages)


def garbage(shape: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    """Return numbers that nobody would take for a result."""
    return np.full(shape, 77_777 if like.dtype.itemsize > 2 else 777, like.dtype)


def beginning(task: CollectiveSpec, rank: int, numbers: np.ndarray) -> np.ndarray:
    """Return the vector of ``rank`` at the start: ``numbers`` where it has them, else garbage."""
    vector = garbage(numbers.shape, numbers)
    for span in task.has[rank]:
        span.of(vector)[...] = span.of(numbers)
    return vector


class Subject(NamedTuple):
    """An all-reduce or a phase, as the tests see it."""

    name: str
    plan: Callable[[int, int], Schedules]  # (size, n)
    spec: Callable[[int, int], CollectiveSpec]


def subjects() -> dict[str, Subject]:
    """Return all schedules by name, those with a root at two roots, cut ones with several cuts."""
    table = {a.name: Subject(a.name, a.plan, a.spec) for a in ALGORITHMS.values()}
    for name, steps in {
        "segmented-ring in 3": partial(segmented_ring_steps, segments=3),
        "double-tree in 3": partial(double_tree_steps, blocks=3),
    }.items():
        plan = partial(lambda steps, size, n: [list(steps(r, size, n)) for r in range(size)], steps)
        table[name] = Subject(name, plan, all_reduce)
    for phase in PHASES.values():
        table[phase.name] = Subject(phase.name, phase.plan, phase.spec)
        if phase.rooted:
            name = f"{phase.name}, last root"
            plan, task = (partial(_rooted, how) for how in (phase.plan, phase.spec))
            table[name] = Subject(name, plan, task)
    return table


def _rooted(how: Callable[..., Any], size: int, n: int) -> Any:
    return how(size, n, root=size - 1)


SUBJECTS = subjects()


def simulate(
    schedules: Schedules, buffers: Sequence[np.ndarray], fold: Fold = np.add, **more: Any
) -> Outcome:
    """Run ``schedules[rank]`` on ``buffers[rank]``."""
    return Simulation(schedules, buffers, fold, **more).run()


def perform(
    task: CollectiveSpec,
    plan: Schedules,
    numbers: Sequence[np.ndarray],
    fold: Fold = np.add,
    rng: np.random.Generator | None = None,
) -> Outcome:
    """Simulate ``plan`` on ``numbers[rank]``, as far as ``task`` says that a rank has them."""
    buffers = [beginning(task, rank, own) for rank, own in enumerate(numbers)]
    return simulate(plan, buffers, fold, workspace=task.workspace, rng=rng)


def expected(
    task: CollectiveSpec, numbers: Sequence[np.ndarray], fold: Any = np.add
) -> list[list[tuple[Span, np.ndarray]]]:
    """Return what each rank must hold where, computed without any schedule."""
    total = fold.reduce(numbers)
    return [
        [(o.span, o.span.of(total if o.source is None else numbers[o.source])) for o in row]
        for row in task.owed
    ]
