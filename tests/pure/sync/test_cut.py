"""Every order in which processes step, ask, tell each other and die, while they agree on a step.

That the exploration sees a rule broken is shown by processes that break one.
"""

from __future__ import annotations

import copy
from collections import deque

import pytest

from psrt.sync.cut import Agreed, Came, Cuts, Held, Hold, message_of, words_of
from support.cases import each

#: The last boundary.
END = 3


class BrokenRuleError(Exception):
    pass


class Crowd:
    """Processes of one role each, whose messages to each other come in the order of sending."""

    def __init__(self, cuts, *, asks=(), deaths=0, rounds=True):
        self.cuts, self.asks, self.deaths, self.rounds = cuts, tuple(asks), deaths, rounds
        self.channels = {(a, b): () for a in range(len(cuts)) for b in range(len(cuts)) if a != b}
        #: Boundaries that a role has come to, and passed; where it was saved, and whether it stops.
        self.at, self.passed = [0] * len(cuts), [0] * len(cuts)
        self.saved = [()] * len(cuts)
        self.dead = frozenset()
        #: Who has not heard of a death yet.
        self.unaware = frozenset()

    def clone(self):
        it = copy.copy(self)
        it.cuts = [copy.copy(one) for one in self.cuts]
        for one in it.cuts:
            one.agreed, one._there = list(one.agreed), set(one._there)
            one._promised = None if one._promised is None else dict(one._promised)
        it.channels = dict(self.channels)
        it.at, it.passed, it.saved = list(self.at), list(self.passed), list(self.saved)
        return it

    def key(self):
        own = tuple(
            (
                *(it._step, it._limit, it._told, it._wants, it._wants_stop),
                *(tuple(it.agreed), frozenset(it._there)),
                None if it._promised is None else tuple(sorted(it._promised.items())),
            )
            for it in self.cuts
        )
        here = self.asks, self.deaths, self.dead, self.unaware
        return (
            own,
            tuple(self.channels.items()),
            *map(tuple, (self.at, self.passed, self.saved)),
            here,
        )

    def send(self, source, sends):
        for to, message in sends:
            for other in range(len(self.cuts)) if to is None else (to,):
                if other != source:
                    self.channels[source, other] += (message,)

    @property
    def alive(self):
        return [it for it in range(len(self.cuts)) if it not in self.dead]

    def stopped(self, i):
        return bool(self.saved[i]) and self.saved[i][-1].stops

    def moves(self):
        """Return what can happen now, as functions of a clone."""
        found = []
        for i in self.alive:
            if self.at[i] > self.passed[i]:
                if self.cuts[i].may_pass(self.at[i]):
                    found.append(lambda it, i=i: it.go_on(i))
            elif self.at[i] < END and not self.stopped(i):
                others = [self.passed[j] for j in self.alive if j != i and not self.stopped(j)]
                if not self.rounds or self.at[i] <= min(others, default=END):
                    found.append(lambda it, i=i: it.come(i))
        for (a, b), messages in self.channels.items():
            if messages and b not in self.dead:
                found.append(lambda it, a=a, b=b: it.deliver(a, b))
        found += [lambda it, i=i: it.learn(i) for i in self.unaware - self.dead]
        if self.asks:
            found += [lambda it, i=i: it.ask(i) for i in self.alive]
        if self.deaths:
            found += [lambda it, i=i: it.die(i) for i in self.alive if i != self.cuts[0].decider]
        return found

    def come(self, i):
        self.at[i] += 1
        self.send(i, self.cuts[i].reach(self.at[i]))

    def go_on(self, i):
        step = self.passed[i] = self.at[i]
        due = self.cuts[i].due(step, self.saved[i][-1].step if self.saved[i] else 0)
        if due is not None:
            self.saved[i] += (Agreed(step, due.stops),)

    def deliver(self, a, b):
        message, *rest = self.channels[a, b]
        self.channels[a, b] = tuple(rest)
        self.send(b, self.cuts[b].hear(message_of(words_of(message))))

    def ask(self, i):
        stop, *rest = self.asks
        self.asks = tuple(rest)
        self.send(i, self.cuts[i].ask(stop=stop))

    def die(self, i):
        self.deaths -= 1
        self.dead |= {i}
        self.unaware = frozenset(self.alive)

    def learn(self, i):
        self.unaware -= {i}
        self.send(i, self.cuts[i].lose(self.dead))

    def check(self):
        for i in self.alive:  # who has died may have been beyond
            for j in self.alive:
                both = min(self.passed[i], self.passed[j])
                mine, theirs = ([it for it in self.saved[k] if it.step <= both] for k in (i, j))
                if mine != theirs:
                    raise BrokenRuleError(f"{mine} and {theirs} were saved")

    def check_end(self):
        for i in self.alive:
            if self.at[i] != self.passed[i] or not (self.at[i] == END or self.stopped(i)):
                raise BrokenRuleError(f"process {i} waits for ever at {self.at[i]}")
        agreed = self.cuts[self.cuts[0].decider].agreed
        wishes = not self.asks
        if wishes and not agreed:
            raise BrokenRuleError("a wish was lost")


def explore(crowd):
    known, todo, ends = {crowd.key()}, deque([crowd]), 0
    transitions = 0
    while todo:
        state = todo.popleft()
        moves = state.moves()
        if not moves:
            ends += 1
            state.check_end()
        for move in moves:
            after = state.clone()
            move(after)
            after.check()
            transitions += 1
            if (key := after.key()) not in known:
                known.add(key)
                todo.append(after)
    return len(known), transitions, ends


def crowd_of(processes, kind=Cuts, decider=0, **more):
    cuts = [kind(it, processes=processes, decider=decider) for it in range(processes)]
    return Crowd(cuts, **more)


#: Processes, who decides, whether a stop is asked for, each time; deaths; and whether in rounds.
CROWDS = [
    (1, 0, (False, True), 0, True),
    (2, 0, (False, True), 0, True),
    (2, 1, (False, False), 0, False),
    (2, 0, (True,), 1, True),
    (3, 0, (True,), 0, True),
    (3, 0, (False,), 1, True),
]


@pytest.mark.parametrize(("processes", "decider", "asks", "deaths", "rounds"), CROWDS)
def test_all_save_the_same_boundaries_and_nobody_waits_for_ever(
    explored, processes, decider, asks, deaths, rounds
):
    crowd = crowd_of(processes, decider=decider, asks=asks, deaths=deaths, rounds=rounds)
    found = explore(crowd)
    explored("processes", f"boundaries, {len(asks)} wishes, {deaths} deaths", str(processes), found)
    assert found[0] > 20


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("asks", "deaths", "rounds"), [((False, True), 1, True), ((False, True), 0, False)]
)
def test_nor_do_three_with_more_wishes(asks, deaths, rounds):
    explore(crowd_of(3, asks=asks, deaths=deaths, rounds=rounds))


class PassesItsPromise(Cuts):
    def may_pass(self, step):
        return self._limit is None or step <= self._limit


class DecidesAtOnce(Cuts):
    """Does not wait for all promises."""

    def _decide(self):
        if self._promised:
            self._there = {self.process}
        return super()._decide()


class WaitsForTheDead(Cuts):
    def lose(self, processes):
        return []


@each(
    ("mutant", "deaths", "line"),
    [
        (PassesItsPromise, 0, "were saved"),
        (DecidesAtOnce, 0, "were saved"),
        (WaitsForTheDead, 1, "waits for ever"),
    ],
)
def test_a_process_that_breaks_a_rule_is_found_out(mutant, deaths, line):
    with pytest.raises(BrokenRuleError, match=line):
        explore(crowd_of(2, mutant, asks=(False,), deaths=deaths, rounds=False))


def test_two_of_one_step_are_one_and_stop_if_either_does():
    first, other = (Cuts(it, processes=2) for it in range(2))
    first.reach(4)
    for stop in (False, True):
        assert first.ask(stop=stop) == [(None, Hold())]
        assert first.hear(Held(1, 2)) == [(None, Agreed(5, stop))]
    for it in first.agreed:
        assert other.hear(it) == []
    assert other.due(5, saved=0) == Agreed(5, stops=True)
    assert other.due(5, saved=5) is None
    assert other.due(4, saved=0) is None


# --- where workers park ---------------------------------------------------------------------------


def parking(processes=1, **more):
    made = [Cuts(it, processes=processes, parks=True, **more) for it in range(processes)]
    return made if processes > 1 else made[0]


def called(cuts, step, last=0):
    """Return what a role comes to next that has come to a step."""
    cuts.reach(step)
    return cuts.after(last)


def test_steps_name_a_checkpoint_each():
    it, found, last = parking(every=5, step=7), [], 7
    for step in (7, 8, 9, 9, 11, 11, 14, 26, 29, 30):
        found.append(called(it, step, last))
        last = found[-1] or last
    assert found == [0, 0, 0, 0, 11, 0, 0, 26, 0, 30]


def test_a_wish_names_the_step_that_all_have_come_to_and_a_stop_is_the_last():
    it = parking(every=100)
    it.ask()
    assert called(it, 0) == 0  # no step is done, so there is nothing to save
    assert called(it, 4) == 4
    it.ask(stop=True)
    assert called(it, 4, 4) == 0  # it would be the same one again
    assert called(it, 5, 4) == -5
    assert [called(it, step, 5) for step in (6, 100, 200)] == [0, 0, 0]


def test_where_nobody_sees_all_the_steps_of_the_fastest_do():
    first, fast, other = parking(3, every=10, sees_all=False)
    assert called(first, 3) == called(other, 2) == 0
    assert fast.reach(9) == []
    assert fast.reach(12) == [(0, Came(12))]
    assert fast.reach(13) == []  # said already
    assert first.hear(Came(12)) == [(None, Agreed(12, stops=False))]
    for it in (fast, other):
        it.hear(Agreed(12, stops=False))
    assert [it.after(0) for it in (first, fast, other)] == [12] * 3
    assert called(first, 11, 12) == called(fast, 19, 12) == 0
    assert fast.reach(20) == [(0, Came(20))]


def test_a_stop_after_a_checkpoint_of_a_faster_one_has_a_number_of_its_own():
    it = parking(every=10, sees_all=False)
    assert [called(it, 11), called(it, 6), called(it, 12, 11)] == [11, 11, 0]
    assert [called(it, *of) for of in ((14, 11), (26, 11), (30, 11), (3, 26))] == [0, 26, 26, 30]
    it.ask(stop=True)
    assert called(it, 4, 30) == -31
