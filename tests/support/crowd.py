"""A crowd of workers around the policies of several shards, without numbers and without time.

Messages lie in their channels until somebody picks one to arrive; answers arrive at once, which
loses no generality: what a worker sends next may lie as long as one likes. Every decision is
checked against the table of modes as this file writes it down for itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from psrt.config.modes import MODES
from psrt.core.messages import Leave, Push
from psrt.sync import Apply, AveragingPeriod, Drop, Keep, Policy, Serve, policy_for
from support.knobs import OF_MODES, spelled

#: A method of a crowd and its arguments.
Move = tuple[str, tuple[Any, ...]]
#: Worker, clock and version of each.
Answers = tuple[tuple[int, int, int], ...]


T = TypeVar("T")


class BrokenRuleError(AssertionError):
    """A policy did what its mode forbids, or left somebody waiting."""


#: Instead of a clock: not answered yet, or nobody is there.
NONE = -9
CONTAINERS = frozenset((dict, list, set))


def put(numbers: tuple[int, ...], place: int, number: int) -> tuple[int, ...]:
    return (*numbers[:place], number, *numbers[place + 1 :])


def copied(thing: T) -> T:
    """Return a copy that shares nothing that changes: containers are one deep."""
    other = object.__new__(type(thing))
    there = vars(other)
    for name, value in vars(thing).items():
        there[name] = value.copy() if type(value) in CONTAINERS else value
    return other


def demand(holds: object, otherwise: str) -> None:
    if not holds:
        raise BrokenRuleError(otherwise)


class Mode:
    """One row of the table, with its numbers."""

    def __init__(self, name: str, **knobs: int):
        known = ("sync", "async", "ssp", "softsync", "local-sgd", "easgd")
        assert name in known, f"this oracle does not know {name}"
        self.name, self.knobs = name, knobs
        self.rounds = name in ("sync", "local-sgd", "easgd") and not knobs.get("asynchronous")
        self.late = 0 if knobs.get("backup") else knobs.get("late", math.inf)
        self.gate = knobs.get("staleness", 0) if name == "ssp" else math.inf

    def quorum(self, live: int) -> int:
        if self.rounds:
            return max(1, live - self.knobs.get("backup", 0))
        return max(1, live // self.knobs["k"]) if self.name == "softsync" else 1

    def is_due(self, pushes: Sequence[Push], live: int) -> bool:
        """Tell whether they make an update: enough, and a gradient among them if any can come."""
        enough = len(pushes) >= (self.quorum(live) if live else 1)
        return enough and (len(pushes) >= live or any(push.samples for push in pushes))

    def policy(self, workers: int) -> Policy:
        own = {name: it for name, it in self.knobs.items() if name in OF_MODES}
        return policy_for(
            MODES.read(spelled(self.name, **own)), workers, late=self.knobs.get("late", math.inf)
        )


class Shard:
    """One policy, and what must be true of it, kept track of independently."""

    def __init__(self, mode: Mode, policy: Policy, workers: int):
        self.mode, self.policy = mode, policy
        self.version = 0
        self.finished = dict.fromkeys(range(workers), 0)  # of those whose Leave has not come
        self.due: tuple[tuple[Push, int, bool], ...] = ()  # not applied; version met; whether kept
        self.owed: dict[int, Push] = {}  # pushes without an answer
        self.applied = dict.fromkeys(range(workers), -1)  # the clock applied last
        self.least = 0  # clock of the slowest worker, as the policy has it
        self._after: dict[Push | Leave, tuple[Shard, Answers]] = {}
        self.views: dict[Any, Any] = {}  # what others have worked out of this state

    def after(self, message: Push | Leave) -> tuple[Shard, Answers]:
        """Return what a message makes of this shard, which stays as it is, and the answers."""
        known = self._after.get(message)
        if known is None:
            other = copied(self)
            other.policy, other._after, other.views = copied(self.policy), {}, {}
            known = self._after[message] = other, tuple(other.take(message))
            other.least = min(other.policy.clock.values(), default=0)
        return known

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
            elif isinstance(decision, Serve):
                self.on_serve(decision.worker, decision.clock)
                yield decision.worker, decision.clock, self.version
        self.check_rest()

    def expect(self, push: Push) -> None:
        self.owed[push.worker] = push
        catching_up = self.mode.rounds and push.clock > push.version
        if not catching_up:
            self.finished[push.worker] = push.clock + 1
            late = self.version - push.version > self.mode.late
            if push.samples or (self.mode.rounds and not late):
                self.due += ((push, self.version, False),)

    def settle(self, push: Push) -> tuple[int, bool]:
        """Strike a push off; return the version it met and whether its gradient was kept."""
        for i, (due, met, kept) in enumerate(self.due):
            if due is push:
                self.due = self.due[:i] + self.due[i + 1 :]
                return met, kept
        raise BrokenRuleError(f"{push} is not due here, or no longer")

    def on_apply(self, pushes: tuple[Push, ...]) -> None:
        live = len(self.finished)
        nobody_comes = self.owed.keys() == self.finished.keys()  # or there is nobody
        demand(self.mode.is_due(pushes, live) or nobody_comes, f"{len(pushes)} of {live}")
        in_order = [push for push, _, _ in self.due if push in pushes]
        if self.mode.rounds:
            in_order.sort(key=lambda push: push.worker)
            rounds = {(push.clock, push.version) for push in pushes}
            demand(rounds <= {(self.version, self.version)}, f"round {self.version}: {pushes}")
            demand(len({push.worker for push in pushes}) == len(pushes), f"twice in {pushes}")
        demand(list(pushes) == in_order, f"order of {pushes}")
        for push in pushes:
            met, kept = self.settle(push)
            demand(kept or self.owed.get(push.worker) is push, f"{push} may be overwritten")
            demand(met == self.version, f"τ of {push} was counted at {met}, not {self.version}")
            demand(met - push.version <= self.mode.late, f"{push} is late")
            demand(push.clock > self.applied[push.worker], f"{push} out of order")
            self.applied[push.worker] = push.clock
        demand(not self.due, f"passed by: {self.due}")
        self.version += 1

    def on_drop(self, push: Push, cause: Push | Leave) -> None:
        demand(not self.settle(push)[1], f"{push} was kept and then dropped")
        died = isinstance(cause, Leave) and cause.worker == push.worker
        late = push is cause and self.version - push.version > self.mode.late
        demand(died or late, f"{push} dropped at version {self.version}")

    def on_keep(self, push: Push) -> None:
        met, kept = self.settle(push)
        demand(not kept, f"{push} kept twice")
        demand(self.owed.get(push.worker) is push, f"{push} kept after it was answered")
        self.due += ((push, met, True),)

    def on_serve(self, worker: int, clock: int) -> None:
        push = self.owed.pop(worker, None)
        if push is None:
            raise BrokenRuleError(f"worker {worker} is owed no answer")
        if self.mode.rounds:
            demand(clock == self.version >= push.clock, f"{push} answered with clock {clock}")
            demand(clock > push.version, f"{push} answered with what it had")
            return
        demand(clock == self.finished[worker] == push.clock + 1, f"clock {clock} for {push}")
        if self.mode.name == "ssp":
            self.check_ssp(worker, clock)
        if self.mode.quorum(len(self.finished)) == 1:
            demand(not self.due, f"{worker} reads without {self.due}")

    def check_ssp(self, worker: int, clock: int) -> None:
        """Check the rules of ssp for a read with which ``clock`` will compute.

        What this shard has not got yet, its worker may not have done yet, so rule 1 asks no more
        than rule 2; FIFO is checked where pushes are applied.
        """
        owed_by = clock - self.mode.gate  # every update before this clock must be in it
        slower = [w for w, finished in self.finished.items() if finished < owed_by]
        demand(not slower, f"progress: worker {worker} starts clock {clock} before {slower}")
        for push, _, _ in self.due:
            demand(push.clock >= owed_by, f"read guarantee: clock {clock} without {push}")
            demand(push.worker != worker, f"read-my-writes: clock {clock} without {push}")

    def must_wait(self, push: Push) -> bool:
        """Tell whether there is a reason not to answer a push."""
        if self.mode.rounds:
            needed = any(due is push for due, _, _ in self.due)
            return needed or push.clock > max(push.version, self.version)
        return push.clock + 1 - min(self.finished.values()) > self.mode.gate

    def check_rest(self) -> None:
        """Nothing is left undone: nobody waits who need not, no gradient is lost."""
        demand(self.policy.version == self.version, f"counts {self.policy.version} versions")
        clocks = self.policy.clock.values()
        demand(not self.mode.rounds or min(clocks, default=self.version) >= self.version, "clock")
        due = [push for push, _, _ in self.due]
        demand(not self.mode.is_due(due, len(self.finished)), f"not applied: {self.due}")
        for push, _, kept in self.due:
            safe = kept or self.owed.get(push.worker) is push
            demand(safe, f"{push} is answered, not applied and not kept")
        for worker, push in self.owed.items():
            demand(self.must_wait(push), f"worker {worker} waits for nothing")


class Crowd:
    """W workers, S shards, and the messages between them."""

    #: In ``answers``: not answered yet.
    NONE = NONE
    #: What an idle worker does, unless it leaves.
    works = "push"

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
        self.read = [(0,) * shards for _ in range(workers)]
        self.answers = [(NONE,) * shards for _ in range(workers)]  # clocks by shard
        self.idle = frozenset(range(workers))
        self.gone: frozenset[int] = frozenset()
        self.channels: dict[tuple[int, int], tuple[Push | Leave, ...]] = {
            (worker, shard): () for worker in range(workers) for shard in range(shards)
        }

    def clone(self) -> Crowd:
        """Return a copy; shards are replaced when something arrives there, never changed."""
        return copied(self)

    def after(self, move: Move) -> Crowd:
        """Return the crowd that a move makes of this one."""
        other = self.clone()
        getattr(other, move[0])(*move[1])
        return other

    def choices(self, worker: int, limit: float = math.inf) -> list[Move]:
        """Return what an idle worker may do; at the limit it can only leave."""
        leave: Move = ("leave", (worker,))
        if self.clock[worker] >= limit:
            return [leave]
        return [(self.works, (worker, 1)), (self.works, (worker, 0)), leave]

    def arrivals(self) -> list[Move]:
        return [("arrive", pair) for pair, channel in self.channels.items() if channel]

    def deaths(self) -> Iterator[Move]:
        """Yield how the workers that are not idle may die: any of what is on its way is lost.

        An idle one has nothing on its way, so its death is a leave.
        """
        for worker in sorted(set(range(len(self.clock))) - self.gone - self.idle):
            shards = range(len(self.shards))
            full = [shard for shard in shards if self.channels[worker, shard]]
            for count in range(len(full) + 1):
                for lost in itertools.combinations(full, count):
                    yield "die", (worker, lost)

    def push(self, worker: int, samples: int = 1) -> None:
        """Let an idle worker send its next gradient to every shard."""
        self.idle -= {worker}
        self.answers[worker] = (NONE,) * len(self.shards)
        for shard, version in enumerate(self.read[worker]):
            push = Push(worker, self.clock[worker], version, samples, 0.0)
            self.channels[worker, shard] += (push,)

    def leave(self, worker: int) -> None:
        self.die(worker)

    def die(self, worker: int, lost: tuple[int, ...] = ()) -> None:
        """Let a worker be gone, wherever it stands; what it sent to some shards is lost."""
        self.idle -= {worker}
        self.gone |= {worker}
        for shard in range(len(self.shards)):
            before = () if shard in lost else self.channels[worker, shard]
            self.channels[worker, shard] = (*before, Leave(worker, self.clock[worker]))

    def arrive(self, worker: int, shard: int) -> None:
        message, *rest = self.channels[worker, shard]
        self.channels[worker, shard] = tuple(rest)
        self.shards[shard], answers = self.shards[shard].after(message)
        for served, clock, version in answers:
            if served not in self.gone:
                self.read[served] = put(self.read[served], shard, version)
                self.answers[served] = put(self.answers[served], shard, clock)
                if NONE not in self.answers[served]:
                    self.go_on(served)

    def go_on(self, worker: int) -> None:
        """Do as a worker does that has all its answers."""
        answers = self.answers[worker]
        clock = max(answers)
        behind = [shard for shard, reached in enumerate(answers) if reached < clock]
        for shard in behind:
            self.answers[worker] = put(self.answers[worker], shard, NONE)
            push = Push(worker, clock, self.read[worker][shard], 0, 0.0)
            self.channels[worker, shard] += (push,)
        if not behind:
            self.clock[worker] = clock
            self.idle |= {worker}
            if self.mode.rounds:
                demand(set(self.read[worker]) == {clock}, f"mixed read {self.read[worker]}")

    def check_end(self) -> None:
        """Check that all is done when nothing is left to arrive and nobody is idle."""
        stuck = set(range(len(self.clock))) - self.gone
        demand(not stuck, f"deadlock: workers {sorted(stuck)} wait for ever")
        for shard in self.shards:
            left = shard.policy.live, shard.policy.pending, shard.policy.waiting
            demand(not any(left), f"left over: {left}")
            demand(not (shard.due or shard.owed or shard.finished), f"never applied: {shard.due}")

    def extra(self, worker: int) -> tuple[Any, ...]:
        """Return what else there is to know of a worker."""
        return ()


class Averaging(Crowd):
    """Workers that take local steps, and push only where their period says so."""

    works = "step"

    def __init__(self, *args: Any, period: AveragingPeriod, epoch: int = 2, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.period, self.epoch = period, epoch
        # Since the last average: steps and whether any had samples. Then: steps of the first
        # epoch that are done, and whether the worker is only waiting for its last average.
        self.local = [(0, 0, 0, False) for _ in self.clock]

    def step(self, worker: int, samples: int) -> None:
        steps, had, done, _ = self.local[worker]
        self.local[worker] = steps + 1, had | samples, min(done + 1, self.epoch), False
        if self.period.due(steps=steps + 1, progress=done / self.epoch):
            self.push(worker, had | samples)

    def leave(self, worker: int) -> None:
        steps, had, done, _ = self.local[worker]
        if steps:
            self.local[worker] = steps, had, done, True
            self.push(worker, had)
        else:
            super().leave(worker)

    def go_on(self, worker: int) -> None:
        super().go_on(worker)
        if worker in self.idle:
            _, _, done, leaving = self.local[worker]
            self.local[worker] = 0, 0, done, False
            if leaving:
                self.leave(worker)

    def extra(self, worker: int) -> tuple[Any, ...]:
        return self.local[worker]


def crowd_of(mode: Mode, workers: int, shards: int, **options: Any) -> Crowd:
    """Return workers around shards; those of a ``period`` push only where that says so."""
    return (Averaging if "period" in options else Crowd)(mode, workers, shards, **options)
