"""Policies, and workers, that are broken in one place: the exploration must see each of them."""

from __future__ import annotations

import math
from functools import partial

import pytest

from psrt.errors import ProtocolError
from psrt.sync import Apply, Policy
from support.crowd import BrokenRuleError, Mode, crowd_of
from support.exploration import explore

pytestmark = pytest.mark.slow


class GateTooWide(Policy):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._gate += 1


class NeverLate(Policy):
    """Lets a late push into the round that it finds."""

    def _decide(self, push):
        late, self._late = self._late, math.inf
        decisions = super()._decide(push)
        self._late = late
        return decisions


class LeaveKeepsTheClock(Policy):
    """Holds the others against a worker that is gone."""

    def _leave(self, leave):
        clock = self.clock[leave.worker]
        decisions = super()._leave(leave)
        self.clock[leave.worker] = clock
        return decisions


class FoldsAsTheyCome(Policy):
    def handle(self, event):
        came = [*self.pending, event]
        return [
            Apply(tuple(sorted(d.pushes, key=came.index))) if isinstance(d, Apply) else d
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


class ForgetsTheDead(Policy):
    """Goes on waiting for whoever died with its push on the way."""

    def _complete(self):
        live = len(self.clock)
        return len(self.pending) >= max(1, self._quorum(live)) if live else bool(self.pending)


MUTANTS = [
    (GateTooWide, "ssp", {"staleness": 0}),
    (NeverLate, "sync", {"backup": 1}),
    (LeaveKeepsTheClock, "sync", {}),
    (LeaveKeepsTheClock, "ssp", {"staleness": 0}),
    (FoldsAsTheyCome, "sync", {}),
    (CountsCatchingUp, "sync", {"backup": 1}),
    (ForgetsTheDead, "sync", {"backup": 1}),
]


@pytest.mark.parametrize(("mutant", "name", "knobs"), MUTANTS)
def test_a_broken_policy_is_found_out(mutant, name, knobs):
    def broken(kind, mode, workers):
        policy = mode.policy(workers)
        made = kind(
            workers,
            quorum=policy._quorum,
            gate=policy._gate,
            late=policy._late,
            rounds=policy._rounds,
        )
        made._alone = False  # the shortest way, which no mutant has
        return made

    with pytest.raises((BrokenRuleError, ProtocolError)):
        explore(crowd_of(Mode(name, **knobs), 3, 2, make=partial(broken, mutant)))
    explore(crowd_of(Mode(name, **knobs), 3, 1, make=partial(broken, Policy)))  # which is whole


def test_a_crowd_that_is_stuck_is_found_out():
    """A death would set those free who wait for the dead, and must not hide that they wait."""
    first = crowd_of(Mode("sync"), 3, 1)

    class Mute(type(first)):
        def arrive(self, worker, shard):
            super().arrive(worker, shard)
            self.idle -= {2}  # its answers get lost

    first.__class__ = Mute
    with pytest.raises(BrokenRuleError, match="deadlock"):
        explore(first)


def test_a_worker_that_computes_with_a_mixture_is_found_out():
    mixing = crowd_of(Mode("sync", backup=1), 2, 2)

    class Mixing(type(mixing)):
        def go_on(self, worker):
            self.answers[worker] = (max(self.answers[worker]),) * len(self.shards)
            super().go_on(worker)

    mixing.__class__ = Mixing
    with pytest.raises(BrokenRuleError, match="mixed read"):
        explore(mixing)
