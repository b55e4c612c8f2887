"""Every order in which messages can arrive, and workers leave or die, for small crowds.

States are compared by what can still matter: clocks and versions count from the slowest shard or
worker, workers may be renumbered, and a version that is late is late. So there are finitely many
although nobody ever has to stop training, and all of them are visited.
"""

from __future__ import annotations

import pytest

from psrt.messages import Push
from psrt.sync import Policy


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
        gateless = crowd.mode.gate == float("inf") and not crowd.mode.rounds
        at_shards.append((
            tuple(map(told, crowd.channels[worker, index])),
            -9 if answer is None or gone or idle else since(answer),
            -9 if clock is None else since(clock),
            worker in policy.waiting,
            tuple((0, 0) if gateless else told(push)[:2] for push in pending),
        ))
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
