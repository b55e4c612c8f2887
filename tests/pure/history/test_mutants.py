"""The checker is checked by breaking what it checks: each mutant must go red, by the right rule.

Here are policies, servers, workers with servers and sums, and elastic forces; averages among
neighbours are in ``test_mutants_of_averages``.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from psrt.errors import TransportError
from psrt.history.check import check
from psrt.job import build
from psrt.optim.staleness import Exponential, Inverse, MeanInverse, Power
from psrt.runtime import elastic
from psrt.runtime.elastic import CentreUpdater
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.shard import Note, Shard
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.strategies import easgd
from psrt.runtime.strategies.easgd import ElasticAverager
from psrt.runtime.strategies.local_sgd import LocalSGD
from psrt.runtime.strategies.push_pull import PushPull
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.strategies.streaming import StreamingSGD
from psrt.sync import Apply, AveragingPeriod, Drop, FragmentPeriod, Keep, Policy, Serve, policy_for
from support.histories import MODES, config_of, recorded, shards_of
from support.mutants import Mutants, instead_of
from support.recording import Ledger

pytestmark = pytest.mark.slow

EVEN, UNEVEN, FOUR = (6, 6, 6), (7, 2, 5, 1), (6, 6, 6, 6)

#: Of a method of a policy, in a mode. More says the ``shards``, of two, that it leads; the steps of
#: each worker, crashes, empty batches and costs; and whether a run may get ``stuck`` instead.
policy = Mutants()


def gated(by):
    return lambda init, self, *args, gate, **more: init(self, *args, gate=gate + by, **more)


def limited(by):
    return lambda init, self, *args, late, **more: init(self, *args, late=late + by, **more)


def with_quorum(by):
    """Return what wants more pushes for an update, but no more than workers are there."""

    def complete(_, self):
        live = len(self.clock)
        due = min(live, self._quorum(live) + by)
        return len(self.pending) >= max(due, 1) if live else bool(self.pending)

    return complete


def applies(decisions):
    return [it for it in decisions if isinstance(it, Apply)]


def without(kind, decisions):
    return [it for it in decisions if not isinstance(it, kind)]


def reordered(fill, self, decisions, order):
    """Sum the pushes of each update in another order."""
    fill(self, decisions)
    for i, it in enumerate(decisions):
        if isinstance(it, Apply):
            decisions[i] = Apply(tuple(order([*it.pushes])))


# fmt: off
policy.add("gate too wide", "__init__", "ssp 1", "progress", gated(1))
policy.add("gate too wide", "__init__", "ssp 0", "progress", gated(1), shards=(1,))
policy.add("gate too narrow", "__init__", "ssp 1", "prompt replies", gated(-1))
policy.add("gate asks the fastest", "slowest", "ssp 1", "progress",
           lambda _, self: max(self.clock.values(), default=0))
policy.add("never too stale", "__init__", "async, drops", "exactly once", limited(np.inf))
policy.add("limit one less", "__init__", "async, drops", "exactly once", limited(-1))
policy.add("too stale by one", "staleness", "async", "reads",
           lambda staleness, self, push: staleness(self, push) + 1)
policy.add("quorum one more", "_complete", "softsync 2", "quorum", with_quorum(1), steps=FOUR)
policy.add("quorum one more", "_complete", "one backup", "quorum", with_quorum(1))
policy.add("quorum one less", "_complete", "softsync 1", "quorum", with_quorum(-1))
policy.add("quorum one less", "_complete", "sync", "quorum|rounds|request-reply alternation",
           with_quorum(-1))
policy.add("quorum of all that ever were", "_complete", "softsync 1", "quorum",
           lambda complete, self: complete(self) if len(self.clock) <= 1 else
           len(self.pending) >= self._quorum(self._workers), steps=UNEVEN)
policy.add("rounds of nothing", "_has_gradient", "one backup", "quorum", lambda *_: True,
           empty=((0, 2), (1, 2)))
policy.add("sums backwards", "_fill", "softsync 1",
           "saved gradients|summation order|per-worker FIFO", lambda fill, self, decisions:
           reordered(fill, self, decisions, lambda pushes: pushes[::-1]))
policy.add("keeps nothing", "handle", "softsync 1", "saved gradients",
           lambda handle, self, event: without(Keep, handle(self, event)))
policy.add("says nothing of what it drops", "handle", "one backup", "exactly once",
           lambda handle, self, event: without(Drop, handle(self, event)), steps=(5, 5, 5, 5))
# fmt: on


@policy("handle", "ssp 1", "read-your-writes|bounded-staleness read")
@policy("handle", "async", "read-your-writes")
@policy("handle", "sync", "request-reply alternation")
def serves_first(handle, self, event):
    return sorted(handle(self, event), key=lambda it: not isinstance(it, Serve))


@policy("handle", "ssp 1", "exactly once|request-reply alternation|reads")
@policy(
    "handle", "softsync 2", "exactly once|request-reply alternation|reads|quorum", shards=(1,)
)  # fmt: skip
def loses_updates(handle, self, event):
    """Counts every third update and does not make it."""
    decisions = handle(self, event)
    return without(Apply, decisions) if self.version % 3 == 2 else decisions


@policy("_serve", "ssp 1", "progress")
@policy("_serve", "ssp 1", "progress", shards=(1,))
@policy("_serve", "sync", "request-reply alternation")
def gate_asks_its_own_clock(_, self, decisions):
    """Nobody is ahead of itself."""
    decisions += [Serve(it, self.clock[it]) for it in self.waiting]
    self.waiting.clear()


@policy("slowest", "ssp 1", "prompt replies", steps=UNEVEN, stuck=True)
def gate_forgets_who_left(slowest, self):
    """Still waits for those that are gone."""
    self.latest = getattr(self, "latest", {}) | self.clock
    return min(self.latest.values()) if len(self.clock) > 1 else slowest(self)


@policy("_serve", "async", "prompt replies", stuck=True)
def answers_later(serve, self, decisions):
    """Puts every third answer off until something else comes."""
    self.turn = getattr(self, "turn", 0) + 1
    if self.turn % 3 or len(self.waiting) == len(self.clock):
        serve(self, decisions)


@policy("_leave", "ssp 0", "prompt replies", steps=UNEVEN, stuck=True, costs="slow links")
@policy("_leave", "sync", "quorum", steps=UNEVEN, stuck=True, costs="slow links")
@policy("_leave", "softsync 1", "quorum|exactly once", steps=UNEVEN, stuck=True)
def deaf_to_leaves(_, self, event):
    del self.clock[event.worker]
    return []


@policy("_complete", "softsync 1", "quorum", steps=FOUR)
def quorum_counts_a_worker_twice(_, self):
    """Who is there twice counts for two more."""
    workers = [push.worker for push in self.pending]
    count = len(workers) + (len({*workers}) < len(workers))
    return bool(workers) and count >= self._quorum(len(self.clock))


@policy("handle", "softsync 1", "quorum|exactly once|saved gradients")
@policy("handle", "sync", "request-reply alternation|quorum")
def leaves_one_out(handle, self, event):
    """Makes an update of all that wait but one, which it uses the next time."""
    held, self.held = getattr(self, "held", ()), ()
    decisions = handle(self, event)
    for i, it in enumerate(decisions):
        if isinstance(it, Apply) and len(it.pushes) > 1 and self.clock:
            decisions[i] = Apply(it.pushes[:-1] + held)
            self.held, held = it.pushes[-1:], ()
    return [*decisions, *(Apply((push,)) for push in held)]


@policy("handle", "async", "reads")
@policy("handle", "softsync 1", "reads")
def version_bumped_late(handle, self, event):
    """Knows of its update only when the next message comes."""
    self.version = getattr(self, "newest", self.version)
    decisions = handle(self, event)
    self.newest, self.version = self.version, self.version - len(applies(decisions))
    return decisions


@policy("_fill", "sync", "summation order")
@policy("_fill", "one backup", "summation order", steps=(5, 5, 5, 5))
def sums_in_order_of_arrival(fill, self, decisions):
    came = [*self.pending]
    reordered(fill, self, decisions, lambda pushes: sorted(pushes, key=came.index))


@policy("_fill", "softsync 1", "summation order|per-worker FIFO", steps=FOUR)
def sums_the_latest_first(fill, self, decisions):
    """Forgets in which order those came that it has saved."""

    def order(pushes):
        return [*sorted(pushes[:-1], key=lambda it: -it.worker), pushes[-1]]

    reordered(fill, self, decisions, order)


@policy("_decide", "async", "exactly once|quorum", empty=((0, 2), (1, 1)))
def nobody_is_empty(decide, self, push):
    """Makes an update of a push without samples, in a mode in which it is none."""
    decisions = decide(self, push)
    if not push.samples and not self._rounds:
        self.version += 1
        decisions.insert(0, Apply((push,)))
    return decisions


@policy("handle", "async", "exactly once|quorum")
@policy("handle", "sync", "request-reply alternation")
def applies_twice(handle, self, event):
    """Makes every fourth update again."""
    decisions = handle(self, event)
    if self.version % 4 == 3:
        for made in applies(decisions):
            decisions.insert(decisions.index(made), made)
            self.version += 1
    return decisions


@policy("handle", "async", "read-your-writes|quorum")
@policy("handle", "ssp 1", "read-your-writes|bounded-staleness read|quorum")
def applies_at_the_next_push(handle, self, event):
    decisions = handle(self, event)
    held, self.held = getattr(self, "held", []), applies(decisions)
    return held + without(Apply, decisions)


@policy("handle", "async", "exactly once")
@policy("handle", "ssp 1", "exactly once")
def drops_a_good_push(handle, self, event):
    decisions = handle(self, event)
    if self.version % 5 == 4:
        for made in applies(decisions):
            self.version -= 1
            decisions[decisions.index(made)] = Drop(made.pushes[0])
    return decisions


@policy("handle", "one backup", "exactly once|rounds|quorum", steps=(5, 5, 5, 5))
def applies_late_pushes(handle, self, event):
    """Puts what is late into the round that is going on."""
    decisions = handle(self, event)
    self.pending += [it.push for it in decisions if isinstance(it, Drop)]
    return without(Drop, decisions)


@policy("_leave", "softsync 1", "exactly once|quorum", steps=UNEVEN)
@policy("_leave", "sync", "exactly once", steps=UNEVEN, stuck=True)
def who_leaves_takes_all_that_waits_along(leave, self, event):
    self.pending.clear()
    return leave(self, event)


@policy("_leave", "sync", "exactly once|quorum", crashes=((1, 0.003),))
def trusts_the_dead(leave, self, event):
    """Uses the gradient of a worker that died before it was answered."""
    self.waiting.pop(event.worker, None)
    return leave(self, event)


@policy("handle", "softsync 1", "exactly once")
def keeps_twice(handle, self, event):
    decisions = handle(self, event)
    return [it for it in decisions if isinstance(it, Keep)] + decisions


@policy("handle", "async", "saved gradients")
def keeps_what_is_applied_at_once(handle, self, event):
    decisions = handle(self, event)
    return [Keep(made.pushes[-1]) for made in applies(decisions)[:1]] + decisions


def run(config, steps, seed, *, empty=(), **more):
    books = Ledger(steps, shards_of(config), empty=empty)
    return recorded(config, books, workers=len(steps), seed=seed, **more).history


def runs_of(mutant, *, shards=(), steps=EVEN, stuck=False, **more):
    """Yield what a mutant does, seed by seed; None of a run that got stuck."""
    for seed in range(6):
        try:
            yield run(config_of(mutant.where, 2, epochs=1), steps, seed, **more)
        except TransportError:
            assert stuck
            yield None


def led_by(patch, mutant, members):
    """Let some of two shards be led by a policy with other members."""
    turns = itertools.cycle(range(2))
    broken = type("Broken", (Policy,), members)

    def made(mode, workers, **knobs):
        sound = policy_for(mode, workers, **knobs)
        if next(turns) not in mutant.more.get("shards", (0, 1)):
            return sound
        options: dict[str, Any] = {"quorum": sound._quorum, "gate": sound._gate}
        found = broken(workers, late=sound._late, rounds=sound._rounds, **options)
        found._alone = False
        return found

    patch.setattr(build, "policy_for", made)
    # What one breaks the others refuse; it is the checker that has to find it here. Nor can all of
    # it be computed, and no number is in a history.
    patch.setattr(Policy, "_refuse_or_pass", lambda self, push: None)
    patch.setattr(Shard, "keep", lambda self, push: None)
    patch.setattr(Shard, "apply", counted)


def counted(self, pushes, buffer, ready=None):
    rate = self._rate
    factors = [rate.scale(self.version - push.version) if rate else 1.0 for push in pushes]
    self.notes = [Note(factor, -1.0) for factor in factors]
    if pushes:
        self._updater.begin(pushes[0].progress)
    self.count(pushes)


@pytest.mark.parametrize("mutant", policy, ids=policy.names)
@pytest.mark.one_in(3)
def test_a_broken_policy_goes_red(monkeypatch, mutant):
    (name,) = mutant.places
    led_by(monkeypatch, mutant, {name: instead_of(getattr(Policy, name), mutant.changed)})
    stuck = False
    for history in runs_of(mutant, **mutant.more):
        if history is None:
            stuck = True
        elif mutant.is_named_by(check(history)):
            return
    assert stuck, "no run went red"


@pytest.mark.parametrize("mutant", {m.where: m for m in policy}.values(), ids=lambda m: m.where)
def test_a_sound_policy_in_the_same_place_stays_green(monkeypatch, mutant):
    led_by(monkeypatch, mutant, {})
    for history in itertools.islice(runs_of(mutant, **mutant.more), 2):
        assert check(history).ok


# --- servers, workers and collectives -----------------------------------------------------------

#: Of what takes part in a run, in a mode; more says the ``steps`` of each worker.
role = Mutants()
RATES = [(it, "scale") for it in (Inverse, MeanInverse, Power, Exponential)]

# fmt: off
role.add("takes all at the full rate", RATES, ["async, inverse", "async, mean",
         "ssp 1, exponential"], "rates", lambda *_: 1.0)
role.add("takes all at the full rate", RATES, "softsync 2", "rates", lambda *_: 1.0, steps=FOUR)
role.add("forgets the oldest", (MeanInverse, "__init__"), ["async, mean", "softsync 1, mean"],
         "rates", lambda init, self: init(self, window=3))
role.add("takes one shard for all", (WorkerEventRecorder, "read"), "ssp 1, 2 shards each", "reads",
         lambda read, self, now, clock, versions, *args:
         read(self, now, clock, versions[:1] * len(versions), *args))
role.add("averages one step later", (AveragingPeriod, "due"), ["local-sgd",
         "local-sgd over servers", "easgd, asynchronous"], "averaging",
         lambda due, self, *, steps, progress: due(self, steps=steps - 1, progress=progress))
role.add("forgets the epoch", (AveragingPeriod, "due"), ["post-local", "post-local over servers"],
         "averaging", lambda due, self, *, steps, progress:
         due(self, steps=steps, progress=progress + self.post_local_epoch))
role.add("arrives a step later", (StreamingSGD, "_is_due"), "fragments, late", "fragments",
         lambda due, self, it: due(self, it) and it.steps > self._period.delay)
role.add("arrives a step earlier", (StreamingSGD, "_is_due"), ["late, post-local",
         "fragments, late"], "fragments", lambda _, self, it: it.steps >= self._period.delay - 1)
role.add("sends a step later", (FragmentPeriod, "due"), ["fragments", "eager"], "averaging",
         lambda due, self, step: due(self, step - 1) if step > 1 else None)
role.add("forgets the epoch of fragments", (FragmentPeriod, "is_early"), ["late, post-local",
         "eager, fragments, post-local"], "averaging", lambda *_: False)
role.add("sends the last fragment first", (StreamingSGD, "_next"), "fragments", "fragments",
         lambda _, self: self._fragments[-1 - self._round % len(self._fragments)])
role.add("says it is fresh", (WorkerEventRecorder, "reduced"), ["fragments, late", "eager"],
         "fragments", lambda reduced, self, *values: reduced(self, *values[:-1], 0))
role.add("weighs all alike", (Reducer, "weight"), "allreduce", "sums", lambda *_: 1.0,
         steps=UNEVEN)
# fmt: on


@role((ShardServer, "_answer"), ["async", "ssp 1"], "request-reply alternation")
def answers_with_the_version_before(answer, self, serve, now):
    given = answer(self, serve, now)
    return given._replace(version=max(0, given.version - (serve.clock % 3 == 2)))


@role((ShardServer, "_answer"), "sync", "reads")
def tells_another_staleness(answer, self, serve, now):
    told = self._tau[serve.worker] + (serve.clock == 3)
    return answer(self, serve, now)._replace(staleness=told)


@role(
    (PushPull, "_level"), ["one backup", "one backup, 3 shards each"],
    "request-reply alternation|reads", steps=FOUR,
)  # fmt: skip
async def reads_a_mixture(_, self, clocks, progress):
    return max(clocks.values())


@role(
    (LocalSGD, "finish"), ["easgd over 2 shards", "local-sgd"], "averaging", steps=(7, 5, 4)
)  # fmt: skip
async def goes_without_a_last_average(finish, self):
    self._steps = 0
    return await finish(self)


@role((StreamingSGD, "leave"), "fragments, late", "averaging")
async def sends_nothing_at_the_end(leave, self, clock):
    await self._arrive_all()
    for fragment in self._fragments:
        fragment.steps = fragment.samples = 0
    return await leave(self, clock)


@role((StreamingSGD, "_send"), "fragments", "averaging|sums")
async def counts_samples_since_any_fragment(send, self, clock, **more):
    await send(self, clock, **more)
    for fragment in self._fragments:
        fragment.samples = 0


@role((StreamingSGD, "_arrive_all"), "eager", "fragments")
async def does_not_wait_for_the_next_period(_, self):
    while self._under_way:
        await self._arrive()


@role((StreamingSGD, "_settle"), "eager", "sums")
async def does_not_settle(_, self, rule, clock):
    return None


@role((Reducer, "finish"), "allreduce", "sums|final version", steps=UNEVEN)
async def counts_empty_rounds(finish, self, *, empty=False):
    updates = self.updates
    training = await finish(self, empty=empty)
    self.updates = updates + 1
    return training


@pytest.mark.parametrize("mutant", role, ids=role.names)
@pytest.mark.one_in(3)
def test_a_broken_role_goes_red(monkeypatch, mutant):
    mutant.breaks(monkeypatch)
    # What policies and runs themselves would refuse; it is the checker that has to find it here.
    monkeypatch.setattr(Policy, "_refuse_or_pass", lambda self, push: None)
    monkeypatch.setattr("psrt.runtime.worker.fingerprint", lambda theta: 0)
    config, steps = config_of(mutant.where, max(MODES[mutant.where][2])), mutant.more.get("steps")
    histories = (run(config, steps or EVEN, seed, empty=[(0, 1)]) for seed in range(6))
    assert any(mutant.is_named_by(check(it)) for it in histories), "no run went red"


# --- the elastic force, at a worker, at a server, and at both ------------------------------------

force = Mutants()
BOTH = ["easgd", "easgd, asynchronous"]
AT_WORKER, AT_CENTRE = (easgd, "force"), (elastic, "force")
RULE = "elastic force"

# fmt: off
for places in (AT_WORKER, AT_CENTRE, [AT_WORKER, AT_CENTRE]):
    force.add("pushes away", places, BOTH, RULE, lambda force, x, centre, alpha, out:
              np.negative(force(x, centre, alpha, out), out=out))
force.add("each draws as all", (build, "_alpha"), "easgd", "rates",
          lambda _, config, elastic, workers: config.elastic)
force.add("worker stays", (ElasticAverager, "_move"), BOTH, RULE,
          lambda _, self: np.copyto(self._theta, self._own))
force.add("worker moves to the centre", (ElasticAverager, "_move"), "easgd", RULE,
          lambda _, self: np.copyto(self._theta, self._centre))
force.add("centre stays", (CentreUpdater, "_move"), BOTH, RULE,
          lambda _, self, centre, total, out: np.copyto(out, centre))
force.add("centre moves by half", (CentreUpdater, "_move"), BOTH, RULE,
          lambda _, self, centre, total, out: np.add(centre, total / np.float32(2), out=out))
force.add("one is left out", (Shard, "_whole_terms"), "easgd", RULE,
          lambda terms, self, pushes: [*terms(self, pushes)[1:], terms(self, pushes)[1]])
# fmt: on


#: By vector, the force of the step before.
VELOCITY: dict[int, np.ndarray] = {}


@force(AT_WORKER, "easgd", RULE)
def force_has_momentum(force, x, centre, alpha, out):
    drawn = force(x, centre, alpha, out)
    drawn += np.float32(0.5) * VELOCITY.get(id(out), np.float32(0))
    VELOCITY[id(out)] = drawn.copy()
    return drawn


@force((ElasticAverager, "_renew"), "easgd", RULE)
def centre_is_used_twice(renew, self):
    self.turn = getattr(self, "turn", 0) + 1
    if self.turn % 2:
        renew(self)


@force((ShardServer, "take"), "easgd, asynchronous", RULE)
def server_answers_with_the_next_centre(take, self, message):
    take(self, message)
    self._answers_met = False


@force((ElasticAverager, "_draw"), "easgd", RULE)
def draws_once_more(draw, self, step):
    draw(self, step)
    draw(self, step)


@pytest.mark.parametrize("mutant", force, ids=force.names)
def test_a_broken_elastic_force_goes_red(monkeypatch, mutant):
    mutant.breaks(monkeypatch)
    for seed in range(2):
        assert mutant.is_named_by(check(run(config_of(mutant.where, 2), EVEN, seed)))
