"""Every order in which messages can arrive, and workers leave or die, for small crowds.

States are compared by what can still matter: clocks and versions count from the slowest shard or
worker, workers may be renumbered, and a version that is late is late. So there are finitely many
although nobody ever has to stop training, and all of them are visited.
"""

from __future__ import annotations

import math

import pytest

from psrt.errors import ProtocolError
from psrt.messages import Push
from psrt.sync import Apply, Keep, Policy, Serve


def key(crowd):
    """Return the same for two crowds exactly if the same can happen to them."""
    there = [w for w in range(len(crowd.clock)) if w not in crowd.gone]
    if crowd.mode.rounds:
        bases = [min(shard.version for shard in crowd.shards)] * len(crowd.clock)
    elif there and crowd.mode.name == "ssp":
        bases = [min(crowd.clock[w] for w in there)] * len(crowd.clock)
    else:
        bases = crowd.clock  # without a gate nobody's clock matters to another
    versions = [crowd.mode.rounds and shard.version - bases[0] for shard in crowd.shards]
    return tuple(versions), tuple(sorted(block(crowd, w, bases[w]) for w in range(len(bases))))


def block(crowd, worker, base):
    """Return what one worker and the shards' records of it come down to."""

    def since(number):
        return max(number - base, -1) if crowd.mode.rounds else number - base

    def told(message):
        if not isinstance(message, Push):
            return ("leave",)
        version = since(message.version) if crowd.mode.rounds else 0
        return since(message.clock), version, message.samples

    gone, idle = worker in crowd.gone, worker in crowd.idle
    mine = (-9, ()) if gone else (since(crowd.clock[worker]), tuple(map(since, crowd.read[worker])))
    if not crowd.mode.rounds:
        mine = mine[:1]
    at_shards = []
    for index, shard in enumerate(crowd.shards):
        policy, answer = shard.policy, crowd.answers[worker].get(index)
        clock, pending = policy.clock.get(worker), [p for p in policy.pending if p.worker == worker]
        gateless = crowd.mode.gate == math.inf and not crowd.mode.rounds
        at_shards.append(
            (
                tuple(map(told, crowd.channels[worker, index])),
                -9 if answer is None or gone or idle else since(answer),
                -9 if clock is None else since(clock),
                worker in policy.waiting,
                tuple((0, 0) if gateless else told(push)[:2] for push in pending),
            )
        )
    return gone, idle, mine, tuple(at_shards)


def successors(crowd, leaves, deaths):
    """Yield every crowd that one move makes of this one.

    What an idle worker does next does not depend on the others and they see nothing of it until
    it arrives, so it may as well do it first.
    """
    for worker in sorted(crowd.idle)[:1]:
        yield moved(crowd, "push", worker)
        if leaves:
            yield moved(crowd, "leave", worker)
        return
    for pair in crowd.arrivals():
        yield moved(crowd, "arrive", *pair)
    if len(crowd.gone) < deaths:
        for worker in set(range(len(crowd.clock))) - crowd.gone:
            yield moved(crowd, "die", worker)


def moved(crowd, move, *arguments):
    after = crowd.clone()
    getattr(after, move)(*arguments)
    return after


def explore(crowd, *, leaves=True, deaths=0):
    """Visit every state; return how many there are."""
    seen, todo = {key(crowd)}, [crowd]
    while todo:
        state = todo.pop()
        ends = True
        for after in successors(state, leaves, deaths):
            ends = False
            found = key(after)
            if found not in seen:
                seen.add(found)
                todo.append(after)
        if ends:
            state.check_end()
    return len(seen)


MODES = [
    ("sync", {}),
    ("sync", {"backup": 1}),
    ("sync", {"backup": 2}),
    ("async", {}),
    ("ssp", {"staleness": 0}),
    ("ssp", {"staleness": 1}),
    ("softsync", {"softsync": 1}),
    ("softsync", {"softsync": 2}),
]


CROWDS = [
    (name, knobs, workers, shards)
    for name, knobs in MODES
    for workers in (1, 2, 3)
    for shards in (1, 2)
    if max(knobs.get("backup", 0) + 1, knobs.get("softsync", 1)) <= workers
]


@pytest.mark.parametrize(("name", "knobs", "workers", "shards"), CROWDS)
def test_no_order_of_arrivals_leaves_and_deaths_breaks_a_rule(
    crowd, mode, name, knobs, workers, shards
):
    deaths = min(workers - 1, 3 - shards)
    assert explore(crowd(mode(name, **knobs), workers, shards), deaths=deaths) > 3


@pytest.mark.parametrize(
    ("workers", "backup", "shards", "leaves", "states"),
    [(2, 1, 3, True, 500), (3, 1, 3, False, 1_000), (4, 1, 2, True, 1_000), (4, 2, 2, True, 4_000)],
)
def test_backups_with_several_shards_never_deadlock(
    crowd, mode, workers, backup, shards, leaves, states
):
    found = explore(crowd(mode("sync", backup=backup), workers, shards), leaves=leaves)
    assert found > states  # else the exploration itself has come to miss some


class TooFew(Policy):
    """Does not wait for the last of a quorum."""

    def _complete(self):
        return len(self.pending) >= max(1, self._quorum(len(self.clock)) - 1)


class GateTooWide(Policy):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._gate += 1


class GateTooNarrow(Policy):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._gate -= 1


class NeverLate(Policy):
    """Lets a late push into the round that it finds."""

    def _decide(self, push):
        self._late = math.inf
        decisions = super()._decide(push)
        self._late = 0
        return decisions


class KeepsNothing(Policy):
    def handle(self, event):
        return [d for d in super().handle(event) if not isinstance(d, Keep)]


class ServesFirst(Policy):
    def handle(self, event):
        return sorted(super().handle(event), key=lambda d: not isinstance(d, Serve))


class DeafToLeaves(Policy):
    """Does not look again at those who wait when somebody leaves."""

    def _leave(self, leave):
        del self.clock[leave.worker]
        self.waiting.pop(leave.worker, None)
        return []


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
    (GateTooWide, "ssp", {"staleness": 0}),
    (GateTooNarrow, "ssp", {"staleness": 1}),
    (NeverLate, "sync", {"backup": 1}),
    (KeepsNothing, "softsync", {"softsync": 1}),
    (ServesFirst, "async", {}),
    (ServesFirst, "sync", {}),
    (DeafToLeaves, "sync", {}),
    (DeafToLeaves, "ssp", {"staleness": 1}),
    (FoldsAsTheyCome, "sync", {}),
    (CountsCatchingUp, "sync", {"backup": 1}),
    (AnswersCatchingUpAtOnce, "sync", {"backup": 1}),
    (ForgetsTheDead, "sync", {"backup": 1}),
]


@pytest.mark.parametrize(("mutant", "name", "knobs"), MUTANTS)
def test_a_broken_policy_is_found_out(crowd, mode, broken_rule, mutant, name, knobs):
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

    with pytest.raises((broken_rule, ProtocolError)):
        explore(crowd(mode(name, **knobs), 3, 2, make=broken), deaths=2)


def test_a_worker_that_computes_with_a_mixture_is_found_out(crowd, mode, broken_rule):
    mixing = crowd(mode("sync", backup=1), 3, 2)

    class Mixing(type(mixing)):
        def go_on(self, worker):
            newest = max(self.answers[worker].values())
            self.answers[worker] = dict.fromkeys(self.answers[worker], newest)
            super().go_on(worker)

    mixing.__class__ = Mixing
    with pytest.raises(broken_rule, match="mixed read"):
        explore(mixing)
