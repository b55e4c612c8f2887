"""Every order in which pushes, relays, ticks, leaves and deaths reach shards that merge by quorums.

As ``test_exploration``, for learners: with windows, checkpoints for which they park, a shard that
follows another one, and two fragments whose learners could wait for each other.
"""

from __future__ import annotations

import functools
import math

import pytest

from psrt.core.errors import ProtocolError
from psrt.core.messages import LATE
from psrt.sync import Serve
from psrt.sync.learners import Follower, Learners
from support.crowd import BrokenRuleError
from support.exploration import explore
from support.learners import LearnerCrowd, LearnerLikeness, Rules

#: Shards of a fragment, and fragments.
ONE, FOLLOWED, TWO = (1, 1), (2, 1), (1, 2)


def sizes():
    """Yield W, K, where, whether there is a window, the largest staleness, whether they park."""
    for workers in (1, 2, 3, 4):
        for quorum in range(1, workers + 1):
            for where in (ONE, FOLLOWED, TWO):
                for window in (False, True)[: 1 + (quorum < workers)]:
                    for late, parks in ((math.inf, False), (math.inf, True), (1, False)):
                        yield workers, quorum, where, window, late, parks


def is_large(workers, quorum, where, window, late, parks):
    """Whether it takes more than a second."""
    if where == FOLLOWED:
        return workers == 3 or (workers == 2 and late == 1)
    return workers == 4 or (workers == 3 and where == TWO and (parks or late == 1))


CASES = [
    pytest.param(*it, marks=[pytest.mark.exhaustive] * is_large(*it))
    for it in sizes()
    if it[0] < 4 or (it[2] == ONE and it[4] == math.inf)  # else minutes
    if not (it[2] == FOLLOWED and it[0] == 3 and (it[4] == 1 or it[5]))
]
#: States of a few, worked out by this exploration itself: fewer would mean that it misses some.
STATES = {
    (3, 1, FOLLOWED, True, math.inf, False): 36_157,
    (2, 1, FOLLOWED, True, math.inf, False): 1_258,
    (3, 2, TWO, True, math.inf, False): 2_109,
    (3, 2, ONE, True, math.inf, False): 154,
}


def explored_of(rules, workers, shards, fragments, **more):
    crowd = LearnerCrowd(rules, workers, shards, fragments, **more)
    return explore(crowd, likeness=LearnerLikeness(rules))


@pytest.mark.parametrize(("workers", "quorum", "where", "window", "late", "parks"), CASES)
def test_no_order_breaks_a_rule(explored, workers, quorum, where, window, late, parks):
    found = explored_of(Rules(quorum, window, late), workers, *where, parks=parks)
    name = f"K={quorum}{', window' * window}{', parks' * parks}{', late' * (late == 1)}"
    explored("workers x shards x fragments", name, f"{workers}x{where[0]}x{where[1]}", found)
    assert found.states >= STATES.get((workers, quorum, where, window, late, parks), 7)


# --- policies that are broken in one place ------------------------------------------------------


class WaitsForTheParked(Learners):
    def _complete(self):
        parked, self.parked = self.parked, {}
        try:
            return super()._complete()
        finally:
            self.parked = parked


class WaitsForTheDead(Learners):
    """Continues to wait for whoever has left."""

    def _complete(self):
        pending = len(self.pending)
        self.is_open = not self._is_over and self._has_window and pending >= self.quorum
        return pending > 0 and (self._is_over or (pending >= self.quorum and not self.is_open))


class MergesBelowItsQuorum(Learners):
    @property
    def quorum(self):
        return max(1, super().quorum - 1)


class NeverOpensItsWindow(Learners):
    def _complete(self):
        found = super()._complete()
        was, self.is_open = self.is_open, False
        return found or was


class NeverClosesItsWindow(Learners):
    def _tick(self):
        return []


class KeepsTheWindowOfTheDead(Learners):
    """Leaves it open when a learner of its quorum has died, for others to merge below it."""

    def _complete(self):
        was, found = self.is_open, super()._complete()
        self.is_open |= was and not found
        return found


class ServesBeforeTheMerge(Learners):
    def _serve(self, decisions):
        for worker in [*self.waiting]:
            del self.waiting[worker]
            decisions.append(Serve(worker, self.clock[worker]))


class MergesTwice(Learners):
    def _fill(self, decisions):
        before = list(self.pending)
        super()._fill(decisions)
        self.pending += before[: len(before) > 1]


class ForgetsRelays(Follower):
    """Those whose push has not come yet."""

    def _relay(self, relay):
        here = {it.worker for it in self.pending}
        return [] if relay.worker not in here else super()._relay(relay)


class ForgetsLateOnes(Follower):
    def _relay(self, relay):
        return [] if relay.what == LATE else super()._relay(relay)


class MergesWithoutTheMissing(Follower):
    def _next(self):
        alive, self.clock = self.clock, {it.worker: 0 for it in self.pending}
        try:
            return super()._next()
        finally:
            self.clock = alive


class WaitsForTheDeadToCome(Follower):
    def _next(self):
        alive = self.clock
        self.clock = dict.fromkeys(range(self._workers), 0)
        try:
            return super()._next()
        finally:
            self.clock = alive


class DecidesItself(Learners):
    """What a second shard would do if there were no relays."""

    def _relay(self, relay):
        return []


MUTANTS = [
    (WaitsForTheParked, Rules(2), ONE, {"parks": True}),
    (WaitsForTheDead, Rules(3), ONE, {}),
    (MergesBelowItsQuorum, Rules(2), ONE, {}),
    (NeverOpensItsWindow, Rules(1, True), ONE, {}),
    (NeverClosesItsWindow, Rules(2, True), ONE, {}),
    (KeepsTheWindowOfTheDead, Rules(2, True), ONE, {}),
    (ServesBeforeTheMerge, Rules(2), ONE, {}),
    (MergesTwice, Rules(2), ONE, {}),
    (ForgetsRelays, Rules(2), FOLLOWED, {}),
    (ForgetsLateOnes, Rules(1, late=1), FOLLOWED, {}),
    (MergesWithoutTheMissing, Rules(2), FOLLOWED, {}),
    (WaitsForTheDeadToCome, Rules(2), FOLLOWED, {}),
    (DecidesItself, Rules(1), FOLLOWED, {}),
]


@pytest.mark.parametrize(("mutant", "rules", "where", "more"), MUTANTS)
def test_a_broken_policy_is_found_out(mutant, rules, where, more):
    def made(rules, workers, *, decides):
        policy = rules.policy(workers, decides=decides)
        follows = issubclass(mutant, Follower) or mutant is DecidesItself
        if follows == decides:
            return policy
        if mutant is DecidesItself:
            policy = rules.policy(workers, decides=True)
        policy.__class__ = mutant
        policy._alone = False  # the shortest way, which no mutant has
        return policy

    with pytest.raises((BrokenRuleError, ProtocolError)):
        explored_of(rules, 3, *where, make=made, **more)


@pytest.mark.parametrize(
    "stuck", [lambda _: None, lambda policies: 0 if policies[0].pending else None]
)
def test_fragments_that_wait_for_each_other_are_found_out(stuck):
    """Nobody would merge them; or a server does so although others can still come."""
    crowd = LearnerCrowd(Rules(2), 2, 1, 2)
    crowd.stuck = stuck
    with pytest.raises(BrokenRuleError, match="wait, and"):
        explore(crowd, likeness=LearnerLikeness(Rules(2)))


def test_a_relay_that_is_lost_is_found_out():
    class Losing(LearnerCrowd):
        def relay(self, shard):
            self.relays[shard] = self.relays[shard][1:]

    crowd = Losing(Rules(2), 2, 2)
    with pytest.raises(BrokenRuleError, match="deadlock"):
        explore(crowd, deaths=False, likeness=LearnerLikeness(Rules(2)))


def test_alike_are_those_whose_workers_have_other_numbers():
    rules, arrive = Rules(2), ("arrive", (0, 0))
    one = functools.reduce(LearnerCrowd.after, [("push", (0,)), arrive], LearnerCrowd(rules, 2))
    arrive = ("arrive", (1, 0))
    other = functools.reduce(LearnerCrowd.after, [("push", (1,)), arrive], LearnerCrowd(rules, 2))
    like = LearnerLikeness(rules)
    assert like(one) == like(other) != like(LearnerCrowd(rules, 2))
