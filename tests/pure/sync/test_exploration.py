"""Every order in which messages can arrive, and workers leave or die, for small crowds.

A worker is free to push, with samples or without, and to leave whenever it is idle, for ever: the
clocks of these explorations have no bound, so they hold for those up to 4, too. That takes a
notion of which states are alike; it is itself shown to be right on states compared in full. That
the exploration sees a rule broken is shown by policies, and workers, that break one.
"""

from __future__ import annotations

import functools

import pytest

from psrt.core.errors import ProtocolError
from psrt.sync import Apply, AveragingPeriod, Policy
from support.crowd import BrokenRuleError, Mode, crowd_of
from support.exploration import Likeness, explore

MODES = {
    "sync": ("sync", {}),
    "sync, 1 backup": ("sync", {"backup": 1}),
    "sync, 2 backups": ("sync", {"backup": 2}),
    "async": ("async", {}),
    "async, late 0": ("async", {"late": 0}),
    "async, late 1": ("async", {"late": 1}),
    "ssp(0)": ("ssp", {"staleness": 0}),
    "ssp(1)": ("ssp", {"staleness": 1}),
    "ssp(2)": ("ssp", {"staleness": 2}),
    "ssp(3)": ("ssp", {"staleness": 3}),
    "ssp(1), late 0": ("ssp", {"staleness": 1, "late": 0}),
    "softsync(1)": ("softsync", {"k": 1}),
    "softsync(2)": ("softsync", {"k": 2}),
    "softsync(3)": ("softsync", {"k": 3}),
    "softsync(1), late 0": ("softsync", {"k": 1, "late": 0}),
    "local-sgd(2)": ("local-sgd", {"period": AveragingPeriod(2)}),
    "easgd(2), asynchronous": ("easgd", {"asynchronous": True, "period": AveragingPeriod(2)}),
    "post-local(2)": ("local-sgd", {"period": AveragingPeriod(2, post_local_epoch=1.0)}),
}
SIZES = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]
#: Where staleness counts, too, there are 10 times as many states.
TOO_MANY = {
    ("async, late 0", 3, 2),
    ("async, late 1", 3, 2),
    ("ssp(1), late 0", 3, 2),
    ("softsync(1), late 0", 3, 2),
}
#: Of those, and of gates that are wide, two shards show nothing that three workers do not.
SLOW = {(f"{row}, late 0", 2, 2) for row in ("async", "ssp(1)", "softsync(1)")}
SLOW |= {("async, late 1", 2, 2), ("ssp(3)", 2, 2)}
CROWDS = [
    pytest.param(
        row, *size, marks=[pytest.mark.exhaustive] * (size == (3, 2) or (row, *size) in SLOW)
    )
    for row, (_, knobs) in MODES.items()
    for size in SIZES
    if max(knobs.get("backup", 0) + 1, knobs.get("k", 1)) <= size[0]
    if (row, *size) not in TOO_MANY
]
#: States of a few, worked out by this exploration itself: fewer would mean that it misses some.
STATES = {
    ("sync", 3, 2): 5_024,
    ("sync, 1 backup", 3, 2): 20_961,
    ("sync, 2 backups", 3, 2): 39_657,
    ("async", 3, 2): 4_934,
    ("ssp(0)", 3, 2): 4_954,
    ("ssp(3)", 3, 2): 120_151,
    ("softsync(1)", 3, 2): 140_837,
    ("local-sgd(2)", 3, 2): 15_921,
}


def made(row, workers, shards):
    """Return the crowd of a row of ``MODES``."""
    name, knobs = MODES[row]
    period = {key: knobs[key] for key in knobs if key == "period"}
    numbers = {key: knobs[key] for key in knobs if key != "period"}
    return crowd_of(Mode(name, **numbers), workers, shards, **period)


@pytest.mark.parametrize(("row", "workers", "shards"), CROWDS)
def test_no_order_of_arrivals_leaves_and_deaths_breaks_a_rule(explored, row, workers, shards):
    found = explore(made(row, workers, shards))
    explored("workers x shards", row, f"{workers}x{shards}", found)
    assert found.states >= STATES.get((row, workers, shards), 6)


#: Clocks that states compared in full go up to.
EXACT = {(1, 1): 4, (1, 2): 4, (2, 1): 4, (2, 2): 2, (3, 1): 2}
#: Of those states, the first so many.
ENOUGH = 3_000


def compared(first, like, limit):
    """Explore states in full; states that are alike must lead to states that are."""
    follow: dict[tuple[int, ...], frozenset[tuple[int, ...]]] = {}

    def compare(state, after):
        if any(state.clock[worker] >= limit for worker in state.idle):
            return  # it could go on but for the limit
        alike = frozenset(map(like, after))
        assert follow.setdefault(like(state), alike) == alike

    found = explore(first, limit=limit, likeness=like, key=in_full, most=ENOUGH, seen=compare)
    assert len(follow) < found.states
    return found


@pytest.mark.parametrize(("row", "workers", "shards"), [c for c in CROWDS if c.values[1:] in EXACT])
@pytest.mark.one_in(20)
def test_states_that_are_alike_lead_to_states_that_are_alike(explored, row, workers, shards):
    """Nothing is left out of a state here, no number shifted, no worker renamed."""
    first = made(row, workers, shards)
    found = compared(first, Likeness(first.mode), EXACT[workers, shards])
    explored("workers x shards", "compared in full", f"{workers}x{shards}", found)


def test_a_likeness_that_sees_too_little_is_found_out():
    """Here it does not look at how far ahead of the slowest a worker is."""
    first = made("ssp(1)", 2, 1)
    like = Likeness(first.mode)
    like.since = functools.partial(min, 1)
    with pytest.raises(AssertionError):
        compared(first, like, 3)


def in_full(crowd):
    shards = tuple(map(shard_in_full, crowd.shards))
    workers = crowd.idle, crowd.gone, *map(tuple, (crowd.clock, crowd.read, crowd.answers))
    more = tuple(map(crowd.extra, range(len(crowd.clock))))
    return workers, more, tuple(crowd.channels.values()), shards


def shard_in_full(shard):
    if "full" not in shard.views:
        things = vars(shard) | vars(shard.policy)
        shard.views["full"] = tuple(
            tuple(value.items() if isinstance(value, dict) else value)
            if isinstance(value, dict | list)
            else value
            for name, value in things.items()
            if name not in ("views", "_after", "policy")
        )
    return shard.views["full"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("workers", "backup", "shards", "states"), [(4, 1, 1, 800), (2, 1, 3, 20_000), (4, 2, 1, 800)]
)
def test_backups_among_more_shards_or_workers(workers, backup, shards, states):
    """It is with these that shards differ in what they think is over."""
    assert explore(crowd_of(Mode("sync", backup=backup), workers, shards)).states > states


# --- policies, and workers, that are broken in one place ----------------------------------------


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


class ForgetsTheDead(Policy):
    """Goes on waiting for whoever died with its push on the way."""

    def _complete(self):
        live = len(self.clock)
        return len(self.pending) >= max(1, self._quorum(live)) if live else bool(self.pending)


MUTANTS = [
    (LeaveKeepsTheClock, "sync", {}),
    (LeaveKeepsTheClock, "ssp", {"staleness": 0}),
    (FoldsAsTheyCome, "sync", {}),
    (ForgetsTheDead, "sync", {"backup": 1}),
]


@pytest.mark.parametrize(("mutant", "name", "knobs"), MUTANTS)
def test_a_broken_policy_is_found_out(mutant, name, knobs):
    def made(mode, workers, kind=mutant):
        policy = mode.policy(workers)
        policy.__class__ = kind
        policy._alone = False  # the shortest way, which no mutant has
        return policy

    with pytest.raises((BrokenRuleError, ProtocolError)):
        explore(crowd_of(Mode(name, **knobs), 3, 2, make=made))
    whole = functools.partial(made, kind=Policy)
    explore(crowd_of(Mode(name, **knobs), 3, 1, make=whole))


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
