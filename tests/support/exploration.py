"""Explores every order of events of a small crowd, and says which states of it are alike."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from psrt.core.messages import Push
from support.crowd import Crowd, Mode, Shard

#: Instead of a clock: nobody is there.
GONE = -9


class Likeness:
    """Says which crowds are alike: the same can happen to them, save for numbers and names.

    Clocks and versions count from the slowest shard or worker (where there is no gate, from each
    worker's own clock), workers may be renumbered, and a version that is late is late. So there
    are finitely many states although nobody ever has to stop training.
    """

    def __init__(self, mode: Mode):
        self.rounds, self.gated = mode.rounds, mode.gate < math.inf
        #: Whether it matters that a push that waits has samples.
        self.backups = mode.rounds and mode.late < math.inf
        self.oldest = math.inf if mode.rounds else mode.late + 1
        self.ids: dict[Any, int] = {}
        self.names: list[Any] = []

    def __call__(self, crowd: Crowd) -> tuple[int, ...]:
        base = self.base(crowd)
        workers = sorted([self.worker(crowd, w, base) for w in range(len(crowd.clock))])
        if base is not None and self.rounds:
            workers += [shard.version - base for shard in crowd.shards]
        return tuple(workers)

    def pick(self, crowd: Crowd) -> int:
        """Return an idle worker, the same of crowds that are alike."""
        if len(crowd.idle) == 1:
            return min(crowd.idle)
        base = self.base(crowd)
        return min(crowd.idle, key=lambda w: self.names[self.worker(crowd, w, base)])

    def base(self, crowd: Crowd) -> int | None:
        if self.rounds:
            return min([shard.version for shard in crowd.shards])
        if self.gated:
            known = [shard.least for shard in crowd.shards if shard.finished]
            return min(known) if known else None
        return None

    def since(self, number: int, base: int) -> int:
        """Return what matters of a clock or version; in rounds, all that is past is alike."""
        return max(number - base, -1) if self.rounds else number - base

    def age(self, version: int, base: int, shard: Shard) -> int:
        """Return what matters of a version that was read."""
        if self.rounds:
            return max(version - base, -1)
        return 0 if self.oldest == math.inf else min(shard.version - version, int(self.oldest))

    def number(self, thing: Any) -> int:
        """Return a number in place of a thing; it says less to Python's collector of garbage."""
        found = self.ids.get(thing)
        if found is None:
            found = self.ids[thing] = len(self.names)
            self.names.append(thing)
        return found

    def worker(self, crowd: Crowd, worker: int, base: int | None) -> int:
        """Return what one worker, its messages and the shards' records of it come down to."""
        gone, idle = worker in crowd.gone, worker in crowd.idle
        clock, answers, read = crowd.clock[worker], crowd.answers[worker], crowd.read[worker]
        base = clock if base is None else base
        seen: list[Any] = [gone, idle]
        if not gone:
            seen += [self.since(clock, base), *crowd.extra(worker)]
        for index, shard in enumerate(crowd.shards):
            at_shard = shard.views.get((worker, base))
            if at_shard is None:
                at_shard = shard.views[worker, base] = self.at_shard(shard, worker, base)
            seen.append(at_shard)
            channel = crowd.channels[worker, index]
            seen.append(len(channel))
            for message in channel:
                if type(message) is Push:
                    seen.append(message.samples)
                    seen.append(self.since(message.clock, base))
                    seen.append(self.age(message.version, base, shard))
            if not gone:
                seen.append(self.age(read[index], base, shard))
                waits = idle or answers[index] == crowd.NONE
                seen.append(GONE if waits else self.since(answers[index], base))
        return self.number(tuple(seen))

    def at_shard(self, shard: Shard, worker: int, base: int) -> int:
        policy = shard.policy
        pending: tuple[tuple[int, ...], ...] = ()
        clock = policy.clock.get(worker)
        if policy.pending:
            pending = tuple(
                (
                    *(self.since(push.clock, base), self.since(push.version, base)) * self.rounds,
                    *(push.samples,) * self.backups,
                )
                for push in policy.pending
                if push.worker == worker
            )
        known = GONE if clock is None else self.since(clock, base)
        return self.number((known, worker in policy.waiting, pending))


class Explored(NamedTuple):
    """How much there was to see."""

    states: int
    transitions: int
    ends: int


def explore(
    crowd: Crowd,
    *,
    deaths: bool = True,
    limit: float = math.inf,
    likeness: Likeness | None = None,
    key: Callable[[Crowd], Any] | None = None,
    most: float = math.inf,
    seen: Callable[[Crowd, list[Crowd]], None] = lambda *_: None,
) -> Explored:
    """Visit every state that any order of events leads to; each checks the rules on the way.

    What an idle worker does next does not depend on the others and they see nothing of it until it
    arrives, so it may as well do it first.

    Args:
        crowd: the first state.
        deaths: whether workers may die.
        limit: workers at this clock only leave.
        likeness: which states are alike.
        key: of a state; two with the same are one. None is the likeness.
        most: states; that many are enough.
        seen: is told of every state and what follows it.
    """
    likeness = likeness or Likeness(crowd.mode)
    key = key or likeness
    known, todo = {key(crowd)}, deque([crowd])
    transitions = ends = 0
    while todo and len(known) < most:
        state = todo.popleft()
        if state.idle:
            moves = state.choices(likeness.pick(state), limit)
        else:
            moves = state.arrivals()
            if not moves:
                ends += 1
                state.check_end()
            if deaths:
                moves.extend(state.deaths())
        after = [state.after(move) for move in moves]
        seen(state, after)
        transitions += len(after)
        for next_state in after:
            found = key(next_state)
            if found not in known:
                known.add(found)
                todo.append(next_state)
    return Explored(len(known), transitions, ends)
