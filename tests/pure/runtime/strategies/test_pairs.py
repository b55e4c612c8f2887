"""Averages of two without vectors: every order of events of a few workers on small graphs."""

from __future__ import annotations

import copy

import pytest

from psrt.core.errors import ProtocolError
from psrt.core.messages import Leave, Mix
from psrt.runtime.strategies.pairs import Pairs
from psrt.topology.graph import Graph, two_colours
from support.cases import also

GRAPHS = {
    "a pair": (2, [(0, 1)], 2),
    "a path": (3, [(0, 1), (1, 2)], 1),
    "a longer path": (3, [(0, 1), (1, 2)], 2),
    "a star that asks": (3, [(0, 1), (0, 2)], 2),
    "a ring": (4, [(0, 1), (1, 2), (2, 3), (3, 0)], 1),
}


class Some:
    """Workers with messages between them; each move is one thing that can happen next.

    A worker is at one of three places: between steps (it may take messages, or begin a step),
    amid a step, which it can only end, or done, where it only takes messages.
    """

    def __init__(self, size, edges, steps, deaths=0):
        graph = Graph.of(size, edges)
        self.workers = [
            Pairs(i, graph.receivers[i], asks=colour == 0, seed=1)
            for i, colour in enumerate(two_colours(graph))
        ]
        self.clock, self.ended, self.dead = [0] * size, [False] * size, [False] * size
        self.channels = dict.fromkeys(graph.edges, ())
        #: (who asked, number) → the sides that averaged.
        self.averages, self.void, self.deaths, self.steps = {}, set(), deaths, steps

    def key(self):
        pairs = tuple((it.open, tuple(sorted(it.left)), it.made, it.is_done) for it in self.workers)
        found = tuple(sorted((offer, tuple(sides)) for offer, sides in self.averages.items()))
        return (
            pairs, tuple(self.clock), tuple(self.ended), tuple(self.dead),
            tuple(sorted(self.channels.items())), found, tuple(sorted(self.void)), self.deaths,
        )  # fmt: skip

    def moves(self):
        for i, pairs in enumerate(self.workers):
            if self.dead[i] or self.ended[i]:
                continue
            if self.deaths:
                yield self.die, i
            if not pairs.is_done and self.clock[i] < self.steps:
                yield self.go_on, i
            elif not pairs.is_done and pairs.open is None:
                yield self.finish, i
            elif pairs.is_done and not pairs.training:
                yield self.end, i
            for j in pairs.neighbours:
                if self.channels[j, i]:
                    yield self.take, j, i

    def send(self, i, j, message):
        if not self.dead[j]:
            self.channels[i, j] += (message,)
        assert len(self.channels[i, j]) <= 2, "a send would wait"

    def go_on(self, i):
        pairs = self.workers[i]
        if (to := pairs.draw()) is not None:
            assert to in pairs.training
            offer = pairs.offer(to, self.clock[i])
            self.send(i, to, Mix(i, self.clock[i], offer.number))
        self.clock[i] += 1

    def take(self, j, i):
        message, *rest = self.channels[j, i]
        self.channels[j, i] = tuple(rest)
        pairs = self.workers[i]
        if type(message) is Leave:
            offer = pairs.open
            if pairs.leave(message):
                self.void.add((i, offer.number))
            return
        offer = pairs.take(message)
        asked = i if pairs.asks else j
        if offer is None:
            self.void.add((asked, message.version))
            return
        sides = self.averages.setdefault((asked, offer.number), ())
        assert i not in sides, "averaged twice"
        self.averages[asked, offer.number] = (*sides, i)
        if not pairs.asks:
            self.send(i, j, Mix(i, self.clock[i], offer.number))

    def finish(self, i):
        self.workers[i].is_done = True
        for j in self.workers[i].neighbours:
            self.send(i, j, Leave(i, self.clock[i]))

    def end(self, i):
        self.ended[i] = True
        assert not any(self.channels[j, i] for j in self.workers[i].neighbours)

    def die(self, i):
        """What it has sent still arrives, then that it has left; it takes nothing any more."""
        self.dead[i], self.deaths = True, self.deaths - 1
        for j in self.workers[i].neighbours:
            self.channels[j, i] = ()
            has_left = any(type(it) is Leave for it in self.channels[i, j])
            if not (has_left or i in self.workers[j].left or self.dead[j]):
                self.channels[i, j] += (Leave(i, self.clock[i]),)


def explore(first):
    """Return the number of states, and those from where nothing can happen any more."""
    seen, todo, last = {first.key()}, [first], []
    while todo:
        state = todo.pop()
        moves = [(move.__name__, arguments) for move, *arguments in state.moves()]
        if not moves:
            last.append(state)
        for name, arguments in moves:
            following = copy.deepcopy(state)
            getattr(following, name)(*arguments)
            if (key := following.key()) not in seen:
                seen.add(key)
                todo.append(following)
    return len(seen), last


@pytest.mark.parametrize(
    ("name", "deaths", "states"),
    [
        ("a pair", 0, 50),
        ("a pair", 1, 50),
        ("a path", 0, 100),
        *(
            also(*case, 1000)
            for case in (("a longer path", 1), ("a star that asks", 1), ("a ring", 0))
        ),
    ],
)
def test_every_order_of_events_ends_with_both_sides_or_none(name, deaths, states):
    found, last = explore(Some(*GRAPHS[name], deaths))
    assert found >= states
    for state in last:
        alive = [i for i, dead in enumerate(state.dead) if not dead]
        assert all(state.ended[i] for i in alive), "somebody waits for ever"
        assert all(state.clock[i] == state.steps for i in alive)
        if any(state.dead):
            continue
        for offer, sides in state.averages.items():
            assert len(sides) == 2, "averaged on one side only"
            assert offer not in state.void
        made = {(i, k) for i, it in enumerate(state.workers) for k in range(it.made)}
        assert made == state.averages.keys() | state.void


TAKE = Pairs.take


def answers_when_it_is_done(self, mix):
    self.is_done, done = False, self.is_done
    offer = TAKE(self, mix)
    self.is_done = done
    return offer


def waits_for_one_that_left(self, leave):
    self.left.update({leave.worker: 0})


@pytest.mark.parametrize(
    ("name", "broken"), [("take", answers_when_it_is_done), ("leave", waits_for_one_that_left)]
)
def test_the_exploration_finds_what_is_broken(monkeypatch, name, broken):
    monkeypatch.setattr(Pairs, name, broken)
    with pytest.raises((AssertionError, ProtocolError)):
        test_every_order_of_events_ends_with_both_sides_or_none("a pair", 0, 1)


def test_partners_are_drawn_by_seed_worker_and_number_alone():
    def drawn(seed, worker):
        pairs = Pairs(worker, (1, 3, 5), asks=True, seed=seed)
        found = []
        for number in range(60):
            found.append(pairs.draw())
            pairs.offer(found[-1], clock=0)
            pairs.take(Mix(found[-1], 0, number))
        return found

    assert drawn(0, 0) == drawn(0, 0)
    assert drawn(0, 0) != drawn(1, 0)
    assert drawn(0, 0) != drawn(0, 2)
    assert min(map(drawn(0, 0).count, (1, 3, 5))) > 10
