"""Policies that are broken in one place: the exploration must see each of them."""

from __future__ import annotations

import math

import pytest

from psrt.errors import ProtocolError
from psrt.messages import Push
from psrt.sync import Apply, Drop, Keep, Policy, Serve
from support.crowd import BrokenRuleError, Mode, crowd_of
from support.exploration import explore

pytestmark = pytest.mark.slow


class TooFew(Policy):
    """Does not wait for the last of a quorum."""

    def _complete(self):
        return len(self.pending) >= max(1, self._quorum(len(self.clock)) - 1)


class TooMany(Policy):
    """Waits for one more than the quorum if it can."""

    def _complete(self):
        return len(self.pending) >= min(len(self.clock), self._quorum(len(self.clock)) + 1)


class RoundsOfNothing(Policy):
    """Does not wait for a gradient where a quorum has none."""

    def _has_gradient(self, live):
        return True


class CountsTwice(Policy):
    """Counts the worker that pushed last twice."""

    def _complete(self):
        return len(self.pending) + 1 >= len(self.clock) > 1 or super()._complete()


class GateTooWide(Policy):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._gate += 1


class GateTooNarrow(Policy):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._gate -= 1


class GateOnTheWrongClock(Policy):
    """Holds a worker against the fastest of the others instead of the slowest."""

    def _serve(self, decisions):
        for worker in list(self.waiting):
            others = [clock for other, clock in self.clock.items() if other != worker]
            if self.clock[worker] <= max(others, default=math.inf) + self._gate:
                del self.waiting[worker]
                decisions.append(Serve(worker, self.clock[worker]))


class GateOnTheClockBefore(Policy):
    """Lets a worker go by the clock that it had, not the one it goes on with."""

    def _serve(self, decisions):
        slowest = min(self.clock.values(), default=0)
        for worker in list(self.waiting):
            if self.clock[worker] - 1 <= slowest + self._gate:
                del self.waiting[worker]
                decisions.append(Serve(worker, self.clock[worker]))


class NeverLate(Policy):
    """Lets a late push into the round that it finds."""

    def _decide(self, push):
        late, self._late = self._late, math.inf
        decisions = super()._decide(push)
        self._late = late
        return decisions


class LateTooSoon(Policy):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._late -= 1


class KeepsNothing(Policy):
    def handle(self, event):
        return [d for d in super().handle(event) if not isinstance(d, Keep)]


class ServesFirst(Policy):
    def handle(self, event):
        return sorted(super().handle(event), key=lambda d: not isinstance(d, Serve))


class AppliesTwice(Policy):
    def handle(self, event):
        decisions = super().handle(event)
        return [d for d in decisions if isinstance(d, Apply)] + decisions


class AppliesOneAgainLater(Policy):
    """Leaves the first push of an update where it was."""

    def _fill(self, decisions):
        before = self.pending.copy()
        super()._fill(decisions)
        if len(before) > 1 and not self.pending:
            self.pending = before[:1]


class ForgetsOne(Policy):
    """Loses the first of several pushes."""

    def _fill(self, decisions):
        if len(self.pending) == 2 and len(self.clock) == 2:
            del self.pending[0]
        super()._fill(decisions)


class CountsVersionsLate(Policy):
    """Counts an update only when the next push has come."""

    behind = 0

    def handle(self, event):
        self.version += self.behind
        decisions = super().handle(event)
        self.behind = sum(isinstance(d, Apply) for d in decisions)
        self.version -= self.behind
        return decisions


class DeafToLeaves(Policy):
    """Does not look again at those who wait when somebody leaves."""

    def _leave(self, leave):
        del self.clock[leave.worker]
        self.waiting.pop(leave.worker, None)
        return []


class LeaveKeepsThePush(Policy):
    """Goes on counting the push of a worker that died before it was answered."""

    def _leave(self, leave):
        self.waiting.pop(leave.worker, None)
        return super()._leave(leave)


class LeaveForgetsThePending(Policy):
    """Loses what the others have pushed when somebody leaves."""

    def _leave(self, leave):
        self.pending.clear()
        return super()._leave(leave)


class LeaveKeepsTheClock(Policy):
    """Holds the others against a worker that is gone."""

    def _leave(self, leave):
        clock = self.clock[leave.worker]
        decisions = super()._leave(leave)
        self.clock[leave.worker] = clock
        return decisions


class QuorumOfTheBeginning(Policy):
    """Waits for as many as there were at first."""

    def __init__(self, workers, *, quorum, **kwargs):
        super().__init__(workers, quorum=lambda _: quorum(workers), **kwargs)


class FoldsAsTheyCome(Policy):
    def handle(self, event):
        came = [*self.pending, event]
        return [
            Apply(tuple(sorted(d.pushes, key=came.index))) if isinstance(d, Apply) else d
            for d in super().handle(event)
        ]


class NewestFirst(Policy):
    def handle(self, event):
        return [Apply(d.pushes[::-1]) if isinstance(d, Apply) else d for d in super().handle(event)]


class SkipsEmpty(Policy):
    """Answers a push without samples in rounds, too, and does not count it."""

    def _decide(self, push):
        if push.samples:
            return super()._decide(push)
        self.clock[push.worker] = push.clock + 1
        return [Serve(push.worker, push.clock + 1)]


class DropsAndUses(Policy):
    def handle(self, event):
        decisions = super().handle(event)
        if isinstance(event, Push) and event.samples and self.version > event.version + 1:
            decisions.append(Drop(event))
        return decisions


class AnswersTheDead(Policy):
    """Answers once more whoever leaves while it waits."""

    def _leave(self, leave):
        waited = leave.worker in self.waiting
        return super()._leave(leave) + [Serve(leave.worker, leave.clock + 1)] * waited


class AnswersWithTheNextClock(Policy):
    def handle(self, event):
        return [
            Serve(d.worker, d.clock + 1) if isinstance(d, Serve) else d
            for d in super().handle(event)
        ]


class CountsCatchingUp(Policy):
    """Takes the question of a worker that is ahead for its part in the round."""

    def catches_up(self, push):
        return False

    def _decide(self, push):
        if push.clock > push.version:
            push = push._replace(clock=push.version)
        return super()._decide(push)


class AnswersCatchingUpAtOnce(Policy):
    def _serve(self, decisions):
        self._gate, gate = 1, self._gate
        super()._serve(decisions)
        self._gate = gate


class ForgetsTheDead(Policy):
    """Goes on waiting for whoever died with its push on the way."""

    def _complete(self):
        live = len(self.clock)
        return len(self.pending) >= max(1, self._quorum(live)) if live else bool(self.pending)


MUTANTS = [
    (TooFew, "sync", {}),
    (TooFew, "softsync", {"softsync": 1}),
    (TooMany, "sync", {"backup": 1}),
    (TooMany, "softsync", {"softsync": 2}),
    (RoundsOfNothing, "sync", {"backup": 1}),
    (CountsTwice, "sync", {}),
    (CountsTwice, "softsync", {"softsync": 1}),
    (GateTooWide, "ssp", {"staleness": 0}),
    (GateTooWide, "ssp", {"staleness": 3}),
    (GateTooNarrow, "ssp", {"staleness": 1}),
    (GateTooNarrow, "ssp", {"staleness": 3}),
    (GateOnTheWrongClock, "ssp", {"staleness": 1}),
    (GateOnTheClockBefore, "ssp", {"staleness": 2}),
    (NeverLate, "sync", {"backup": 1}),
    (NeverLate, "async", {"late": 1}),
    (LateTooSoon, "async", {"late": 1}),
    (LateTooSoon, "softsync", {"softsync": 1, "late": 1}),
    (KeepsNothing, "softsync", {"softsync": 1}),
    (ServesFirst, "async", {}),
    (ServesFirst, "sync", {}),
    (AppliesTwice, "async", {}),
    (AppliesTwice, "sync", {}),
    (AppliesOneAgainLater, "sync", {}),
    (AppliesOneAgainLater, "softsync", {"softsync": 1}),
    (ForgetsOne, "sync", {}),
    (ForgetsOne, "softsync", {"softsync": 1}),
    (CountsVersionsLate, "async", {}),
    (CountsVersionsLate, "sync", {}),
    (DeafToLeaves, "sync", {}),
    (DeafToLeaves, "ssp", {"staleness": 1}),
    (LeaveKeepsThePush, "sync", {}),
    (LeaveForgetsThePending, "sync", {}),
    (LeaveForgetsThePending, "softsync", {"softsync": 1}),
    (LeaveKeepsTheClock, "sync", {}),
    (LeaveKeepsTheClock, "ssp", {"staleness": 0}),
    (QuorumOfTheBeginning, "sync", {"backup": 1}),
    (QuorumOfTheBeginning, "softsync", {"softsync": 1}),
    (FoldsAsTheyCome, "sync", {}),
    (NewestFirst, "softsync", {"softsync": 1}),
    (SkipsEmpty, "sync", {}),
    (DropsAndUses, "async", {}),
    (AnswersTheDead, "sync", {}),
    (AnswersTheDead, "ssp", {"staleness": 1}),
    (AnswersWithTheNextClock, "async", {}),
    (AnswersWithTheNextClock, "sync", {}),
    (CountsCatchingUp, "sync", {"backup": 1}),
    (AnswersCatchingUpAtOnce, "sync", {"backup": 1}),
    (ForgetsTheDead, "sync", {"backup": 1}),
]


@pytest.mark.parametrize(("mutant", "name", "knobs"), MUTANTS)
@pytest.mark.one_in(3)
def test_a_broken_policy_is_found_out(mutant, name, knobs):
    def broken(mode, workers):
        policy = mode.policy(workers)
        made = mutant(
            workers,
            quorum=policy._quorum,
            gate=policy._gate,
            late=policy._late,
            rounds=policy._rounds,
        )
        made._alone = False
        return made

    with pytest.raises((BrokenRuleError, ProtocolError)):
        explore(crowd_of(Mode(name, **knobs), 3, 2, make=broken))


@pytest.mark.parametrize(("name", "knobs"), {repr(row[1:]): row[1:] for row in MUTANTS}.values())
def test_the_policy_itself_is_whole(name, knobs):
    """Without its shortest way, as the mutants are."""

    def long_way(mode, workers):
        policy = mode.policy(workers)
        policy._alone = False
        return policy

    explore(crowd_of(Mode(name, **knobs), 3, 1, make=long_way))
