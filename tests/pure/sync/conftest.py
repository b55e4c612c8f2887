"""A crowd of workers around the policies of several shards, without numbers and without time.

Messages lie in their channels until somebody picks one to arrive; answers arrive at once, which
loses no generality: what a worker sends next may lie as long as one likes. Every decision is
checked against the table of modes as this file writes it down for itself.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from psrt.messages import Leave, Push
from psrt.sync import Apply, Drop, Keep, Policy, policy_for


class BrokenRuleError(AssertionError):
    """A policy did what its mode forbids, or left somebody waiting."""


@dataclass(frozen=True)
class Mode:
    """One row of the table, with its numbers."""

    name: str
    knobs: tuple[tuple[str, int], ...] = ()

    @property
    def rounds(self) -> bool:
        return self.name in ("sync", "local-sgd")

    @property
    def late(self) -> float:
        knobs = dict(self.knobs)
        return 0 if knobs.get("backup") else knobs.get("late", math.inf)

    @property
    def gate(self) -> float:
        return dict(self.knobs).get("staleness", 0) if self.name == "ssp" else math.inf

    def quorum(self, live: int) -> int:
        knobs = dict(self.knobs)
        if self.rounds:
            return max(1, live - knobs.get("backup", 0))
        return max(1, live // knobs["softsync"]) if self.name == "softsync" else 1

    def policy(self, workers: int) -> Policy:
        return policy_for(self.name, workers, **dict(self.knobs))


class Shard:
    """One policy, and what must be true of it, kept track of independently."""

    def __init__(self, mode: Mode, policy: Policy, workers: int):
        self.mode, self.policy = mode, policy
        self.version = 0
        self.finished = dict.fromkeys(range(workers), 0)  # of those whose Leave has not come
        self.due: tuple[tuple[Push, bool], ...] = ()  # arrived, not applied; whether kept
        self.owed: dict[int, Push] = {}  # pushes without an answer
        self.applied = dict.fromkeys(range(workers), -1)  # the clock applied last

    def clone(self) -> Shard:
        other = copy.copy(self)
        other.policy = policy = copy.copy(self.policy)
        policy.clock, policy.waiting = policy.clock.copy(), policy.waiting.copy()
        policy.pending = policy.pending.copy()
        other.finished, other.owed = self.finished.copy(), self.owed.copy()
        other.applied = self.applied.copy()
        return other

    def take(self, message: Push | Leave) -> Iterator[tuple[int, int, int]]:
        """Let a message arrive; yield (worker, clock, version) for every answer."""
        if isinstance(message, Leave):
            del self.finished[message.worker]
            self.owed.pop(message.worker, None)
        else:
            self.expect(message)
        for decision in self.policy.handle(message):
            if isinstance(decision, Apply):
                self.on_apply(decision.pushes)
            elif isinstance(decision, Drop):
                self.on_drop(decision.push, message)
            elif isinstance(decision, Keep):
                self.on_keep(decision.push)
            else:
                self.on_serve(decision.worker, decision.clock)
                yield decision.worker, decision.clock, self.version
        self.check_waiting()

    def expect(self, push: Push) -> None:
        self.owed[push.worker] = push
        catching_up = self.mode.rounds and push.clock > push.version
        if not catching_up:
            self.finished[push.worker] = push.clock + 1
            late = self.version - push.version > self.mode.late
            if push.samples or (self.mode.rounds and not late):
                self.due += ((push, False),)

    def settle(self, push: Push) -> bool:
        """Strike a push off; return whether its gradient was kept."""
        for i, (due, kept) in enumerate(self.due):
            if due is push:
                self.due = self.due[:i] + self.due[i + 1 :]
                return kept
        raise BrokenRuleError(f"{push} is not due here, or no longer")

    def on_apply(self, pushes: tuple[Push, ...]) -> None:
        live = len(self.finished)
        nobody_comes = self.owed.keys() == self.finished.keys()  # or there is nobody
        demand(len(pushes) == self.mode.quorum(live) or nobody_comes, f"{len(pushes)} of {live}")
        in_order = [push for push, _ in self.due if push in pushes]
        if self.mode.rounds:
            in_order.sort(key=lambda push: push.worker)
            rounds = {(push.clock, push.version) for push in pushes}
            demand(rounds <= {(self.version, self.version)}, f"round {self.version}: {pushes}")
        demand(list(pushes) == in_order, f"order of {pushes}")
        for push in pushes:
            kept = self.settle(push)
            demand(kept or self.owed.get(push.worker) is push, f"{push} may be overwritten")
            demand(self.version - push.version <= self.mode.late, f"{push} is late")
            demand(push.clock > self.applied[push.worker], f"{push} out of order")
            self.applied[push.worker] = push.clock
        self.version += 1

    def on_drop(self, push: Push, cause: Push | Leave) -> None:
        demand(not self.settle(push), f"{push} was kept and then dropped")
        died = isinstance(cause, Leave) and cause.worker == push.worker
        late = push is cause and self.version - push.version > self.mode.late
        demand(died or late, f"{push} dropped at version {self.version}")

    def on_keep(self, push: Push) -> None:
        demand(not self.settle(push), f"{push} kept twice")
        demand(self.owed.get(push.worker) is push, f"{push} kept after it was answered")
        self.due += ((push, True),)

    def on_serve(self, worker: int, clock: int) -> None:
        push = self.owed.pop(worker, None)
        demand(push is not None, f"worker {worker} is owed no answer")
        if self.mode.rounds:
            demand(clock == self.version >= push.clock, f"{push} answered with clock {clock}")
            demand(clock > push.version, f"{push} answered with what it had")
            return
        demand(clock == self.finished[worker] == push.clock + 1, f"clock {clock} for {push}")
        demand(self.may_go(worker), f"worker {worker} passed the gate: {self.finished}")
        if self.mode.quorum(len(self.finished)) == 1:
            demand(not self.due, f"{worker} reads without {self.due}")

    def may_go(self, worker: int) -> bool:
        return self.finished[worker] - min(self.finished.values()) <= self.mode.gate

    def check_waiting(self) -> None:
        """Nobody waits who need not, and nobody goes on whose gradient is still needed."""
        clocks = self.policy.clock.values()
        demand(not self.mode.rounds or min(clocks, default=self.version) >= self.version, "clock")
        waiting = {id(push) for push in self.owed.values()}
        for push, kept in self.due:
            demand(kept or id(push) in waiting, f"{push} is answered, not applied and not kept")
        due = {id(push) for push, _ in self.due}
        for worker, push in self.owed.items():
            needed = id(push) in due or push.clock > max(push.version, self.version)
            reason = needed if self.mode.rounds else not self.may_go(worker)
            demand(reason, f"worker {worker} waits for nothing")


class Crowd:
    """W workers, S shards, and the messages between them."""

    def __init__(
        self,
        mode: Mode,
        workers: int,
        shards: int,
        *,
        make: Callable[[Mode, int], Policy] = Mode.policy,
    ):
        self.mode = mode
        self.shards = [Shard(mode, make(mode, workers), workers) for _ in range(shards)]
        self.clock = [0] * workers
        self.read = [[0] * shards for _ in range(workers)]
        self.answers: list[dict[int, int]] = [{} for _ in range(workers)]  # shard -> clock
        self.idle = set(range(workers))
        self.gone: set[int] = set()
        self.channels: dict[tuple[int, int], tuple[Push | Leave, ...]] = {
            (worker, shard): () for worker in range(workers) for shard in range(shards)
        }

    def clone(self) -> Crowd:
        other = copy.copy(self)
        other.shards = [shard.clone() for shard in self.shards]
        other.clock, other.read = self.clock.copy(), [read.copy() for read in self.read]
        other.answers = [answers.copy() for answers in self.answers]
        other.idle, other.gone = self.idle.copy(), self.gone.copy()
        other.channels = self.channels.copy()
        return other

    def arrivals(self) -> list[tuple[int, int]]:
        return [pair for pair, channel in self.channels.items() if channel]

    def push(self, worker: int, samples: int = 1) -> None:
        """Let an idle worker send its next gradient to every shard."""
        self.idle.remove(worker)
        self.answers[worker] = {}
        for shard, version in enumerate(self.read[worker]):
            push = Push(worker, self.clock[worker], version, samples, 0.0, 0.0)
            self.channels[worker, shard] += (push,)

    def leave(self, worker: int) -> None:
        self.idle.remove(worker)
        self.die(worker, lost=False)

    def die(self, worker: int, *, lost: bool = True) -> None:
        """Let a worker be gone, wherever it stands; what it sent may be lost."""
        self.idle.discard(worker)
        self.gone.add(worker)
        for shard in range(len(self.shards)):
            before = () if lost else self.channels[worker, shard]
            self.channels[worker, shard] = (*before, Leave(worker, self.clock[worker]))

    def arrive(self, worker: int, shard: int) -> None:
        message, *rest = self.channels[worker, shard]
        self.channels[worker, shard] = tuple(rest)
        for served, clock, version in self.shards[shard].take(message):
            if served not in self.gone:
                self.read[served][shard] = version
                self.answers[served][shard] = clock
                if len(self.answers[served]) == len(self.shards):
                    self.go_on(served)

    def go_on(self, worker: int) -> None:
        """Do as a worker does that has all its answers."""
        answers = self.answers[worker]
        clock = max(answers.values())
        behind = [shard for shard, reached in answers.items() if reached < clock]
        for shard in behind:
            del answers[shard]
            push = Push(worker, clock, self.read[worker][shard], 0, 0.0, 0.0)
            self.channels[worker, shard] += (push,)
        if not behind:
            self.clock[worker] = clock
            self.idle.add(worker)
            if self.mode.rounds:
                demand(set(self.read[worker]) == {clock}, f"mixed read {self.read[worker]}")

    def check_end(self) -> None:
        """Check that all is done when nothing is left to arrive and everybody has left."""
        stuck = set(range(len(self.clock))) - self.gone
        demand(not stuck, f"deadlock: workers {sorted(stuck)} wait for ever")
        for shard in self.shards:
            demand(not shard.due, f"never applied: {shard.due}")
            demand(shard.version == shard.policy.version, "miscounted versions")
            left = shard.policy.live, shard.policy.pending, shard.policy.waiting
            demand(not any(left), f"left over: {left}")


def demand(holds: object, otherwise: str) -> None:
    if not holds:
        raise BrokenRuleError(otherwise)


@pytest.fixture(scope="session")
def crowd() -> Callable[..., Crowd]:
    return Crowd


@pytest.fixture(scope="session")
def mode() -> Callable[..., Mode]:
    return lambda name, **knobs: Mode(name, tuple(knobs.items()))


@pytest.fixture(scope="session")
def broken_rule() -> type[BrokenRuleError]:
    return BrokenRuleError
