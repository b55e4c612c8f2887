"""The checker is checked by breaking what it checks: each mutant must go red, by the right rule."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest

from psrt.errors import TransportError
from psrt.history.check import check
from psrt.optim.staleness import Exponential, Inverse, MeanInverse, Power
from psrt.runtime.elastic import CentreUpdater, force
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.shard import Note, Shard
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.strategies.easgd import ElasticAverager
from psrt.runtime.strategies.local_sgd import LocalSGD
from psrt.runtime.strategies.push_pull import PushPull
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.strategies.streaming import StreamingSGD
from psrt.sync import Apply, AveragingPeriod, Drop, FragmentPeriod, Keep, Policy, Serve, policy_for
from support.histories import MODES, config_of, recorded, shards_of
from support.recording import Ledger

pytestmark = pytest.mark.slow

EVEN, UNEVEN = (6, 6, 6), (7, 2, 5, 1)


# --- who may go on ------------------------------------------------------------------------------


class GateTooWide(Policy):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._gate += 1


class GateTooNarrow(Policy):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._gate -= 1


class GateAsksItsOwnClock(Policy):
    """Is not ahead of itself."""

    def _serve(self, decisions):
        for worker in [*self.waiting]:
            del self.waiting[worker]
            decisions.append(Serve(worker, self.clock[worker]))


class GateAsksTheFastest(Policy):
    def _serve(self, decisions):
        fastest = max(self.clock.values(), default=0)
        clock, self.clock = self.clock, self.clock | {-1: fastest}
        slowest, self.clock = self.clock, clock
        for worker in [*self.waiting]:
            if clock[worker] <= slowest[-1] + self._gate:
                del self.waiting[worker]
                decisions.append(Serve(worker, clock[worker]))


class GateForgetsWhoLeft(Policy):
    """Still waits for those that are gone."""

    def _leave(self, leave):
        self.gone = getattr(self, "gone", {}) | {leave.worker: self.clock.get(leave.worker, 0)}
        return super()._leave(leave)

    def _serve(self, decisions):
        slowest = min([*self.clock.values(), *getattr(self, "gone", {}).values()])
        for worker in [*self.waiting]:
            if self.clock[worker] <= slowest + self._gate or len(self.clock) == 1:
                del self.waiting[worker]
                decisions.append(Serve(worker, self.clock[worker]))


class ServesFirst(Policy):
    def handle(self, event):
        return sorted(super().handle(event), key=lambda d: not isinstance(d, Serve))


class AnswersLater(Policy):
    """Puts every third answer off until something else comes."""

    def _serve(self, decisions):
        self.turn = getattr(self, "turn", 0) + 1
        if self.turn % 3 or len(self.waiting) == len(self.clock):
            super()._serve(decisions)


class DeafToLeaves(Policy):
    def _leave(self, leave):
        del self.clock[leave.worker]
        return []


# --- what makes an update -----------------------------------------------------------------------


class QuorumOneMore(Policy):
    def _complete(self):
        quorum = min(len(self.clock), self._quorum(len(self.clock)) + 1)
        return len(self.pending) >= max(quorum, 1) if self.clock else bool(self.pending)


class QuorumOneLess(Policy):
    def _complete(self):
        return len(self.pending) >= max(1, self._quorum(len(self.clock)) - 1)


class RoundsOfNothing(Policy):
    """Does not wait for a gradient where a quorum has none."""

    def _has_gradient(self, live):
        return True


class QuorumCountsAWorkerTwice(Policy):
    """Whoever is there twice counts for two more."""

    def _complete(self):
        workers = [push.worker for push in self.pending]
        count = len(workers) + (len(set(workers)) < len(workers))
        return bool(workers) and count >= self._quorum(len(self.clock))


class QuorumOfAllThatEverWere(Policy):
    """Counts those that have left."""

    def __init__(self, workers, **options):
        super().__init__(workers, **options)
        self.workers = workers

    def _complete(self):
        if len(self.clock) <= 1:
            return super()._complete()
        return len(self.pending) >= self._quorum(self.workers)


class LeavesOneOut(Policy):
    """Makes an update out of all that wait but one, which it uses the next time."""

    def handle(self, event):
        held, self.held = getattr(self, "held", ()), ()
        decisions = super().handle(event)
        for i, decision in enumerate(decisions):
            if isinstance(decision, Apply) and len(decision.pushes) > 1 and self.clock:
                decisions[i] = Apply(decision.pushes[:-1] + held)
                self.held, held = decision.pushes[-1:], ()
        return [*decisions, *(Apply((push,)) for push in held)]


class VersionBumpedLate(Policy):
    """Knows of its update only when the next message comes."""

    def handle(self, event):
        self.version = getattr(self, "newest", self.version)
        decisions = super().handle(event)
        self.newest, self.version = self.version, self.version - len(applies(decisions))
        return decisions


class FoldsInOrderOfArrival(Policy):
    def _fill(self, decisions):
        came = [*self.pending]
        super()._fill(decisions)
        for i, decision in enumerate(decisions):
            if isinstance(decision, Apply):
                decisions[i] = Apply(tuple(sorted(decision.pushes, key=came.index)))


class FoldsBackwards(Policy):
    """The last that came is the first."""

    def _fill(self, decisions):
        super()._fill(decisions)
        for i, decision in enumerate(decisions):
            if isinstance(decision, Apply):
                decisions[i] = Apply(decision.pushes[::-1])


class SumsTheLatestFirst(Policy):
    """Forgets in which order those came that it has saved."""

    def _fill(self, decisions):
        super()._fill(decisions)
        for i, decision in enumerate(decisions):
            if isinstance(decision, Apply):
                *saved, last = decision.pushes
                decisions[i] = Apply((*sorted(saved, key=lambda push: -push.worker), last))


class NobodyIsEmpty(Policy):
    """Makes an update out of a push without samples, in a mode in which it is none."""

    def _decide(self, push):
        decisions = super()._decide(push)
        if not push.samples and not self._rounds:
            self.version += 1
            decisions.insert(0, Apply((push,)))
        return decisions


def applies(decisions):
    return [decision for decision in decisions if isinstance(decision, Apply)]


# --- what becomes of a push ---------------------------------------------------------------------


class AppliesTwice(Policy):
    """Makes every fourth update again."""

    def handle(self, event):
        decisions = super().handle(event)
        if self.version % 4 == 3:
            for made in applies(decisions):
                decisions.insert(decisions.index(made), made)
                self.version += 1
        return decisions


class LosesUpdates(Policy):
    """Counts every third update and does not make it."""

    def handle(self, event):
        decisions = super().handle(event)
        if self.version % 3 == 2:
            decisions = [d for d in decisions if not isinstance(d, Apply)]
        return decisions


class AppliesAtTheNextPush(Policy):
    def handle(self, event):
        held, self.held = getattr(self, "held", []), []
        for decision in super().handle(event):
            (self.held if isinstance(decision, Apply) else held).append(decision)
        return held


class DropsAGoodPush(Policy):
    def handle(self, event):
        decisions = super().handle(event)
        if self.version % 5 == 4:
            for made in applies(decisions):
                self.version -= 1
                decisions[decisions.index(made)] = Drop(made.pushes[0])
        return decisions


class LosesLatePushes(Policy):
    """Does not tell of what it drops."""

    def handle(self, event):
        return [d for d in super().handle(event) if not isinstance(d, Drop)]


class AppliesLatePushes(Policy):
    """Puts what is late into the round that is going on."""

    def handle(self, event):
        decisions = super().handle(event)
        late = [d for d in decisions if isinstance(d, Drop)]
        self.pending += [drop.push for drop in late]
        return [d for d in decisions if d not in late]


class NeverTooStale(Policy):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options | {"late": float("inf")})


class LimitOneLess(Policy):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options | {"late": options["late"] - 1})


class ForgetsWhatIsPending(Policy):
    """Whoever leaves takes all that waits along."""

    def _leave(self, leave):
        self.pending.clear()
        return super()._leave(leave)


class TrustsTheDead(Policy):
    """Goes on with the gradient of a worker that died before it was answered."""

    def _leave(self, leave):
        self.waiting.pop(leave.worker, None)
        return super()._leave(leave)


class KeepsNothing(Policy):
    def handle(self, event):
        return [d for d in super().handle(event) if not isinstance(d, Keep)]


class KeepsTwice(Policy):
    def handle(self, event):
        decisions = super().handle(event)
        return [d for d in decisions if isinstance(d, Keep)] + decisions


class KeepsAll(Policy):
    """Even what is applied at once."""

    def handle(self, event):
        decisions = super().handle(event)
        return [Keep(made.pushes[-1]) for made in applies(decisions)[:1]] + decisions


class TooStaleByOne(Policy):
    def staleness(self, push):
        return super().staleness(push) + 1


class Mutant(NamedTuple):
    """A broken policy, where it shows, and the rules that may tell of it first."""

    policy: type[Policy]
    mode: str
    rules: str
    #: Shards, of two, that it leads.
    shards: tuple[int, ...] = (0, 1)
    steps: tuple[int, ...] = EVEN
    crashes: tuple[tuple[int, float], ...] = ()
    #: Whether the run may end in a deadlock instead.
    stuck: bool = False
    empty: tuple[tuple[int, int], ...] = ()
    costs: str = "exponential"


MUTANTS = [
    Mutant(GateTooWide, "ssp 1", "progress"),
    Mutant(GateTooWide, "ssp 0", "progress", shards=(1,)),
    Mutant(GateTooNarrow, "ssp 1", "prompt replies"),
    Mutant(GateAsksItsOwnClock, "ssp 1", "progress"),
    Mutant(GateAsksItsOwnClock, "ssp 1", "progress", shards=(1,)),
    Mutant(GateAsksItsOwnClock, "sync", "request-reply alternation"),
    Mutant(GateAsksTheFastest, "ssp 1", "progress"),
    Mutant(GateForgetsWhoLeft, "ssp 1", "prompt replies", steps=UNEVEN, stuck=True),
    Mutant(ServesFirst, "ssp 1", "read-your-writes|bounded-staleness read"),
    Mutant(ServesFirst, "async", "read-your-writes"),
    Mutant(ServesFirst, "sync", "request-reply alternation"),
    Mutant(AnswersLater, "async", "prompt replies", stuck=True),
    Mutant(DeafToLeaves, "ssp 0", "prompt replies", steps=UNEVEN, stuck=True, costs="slow links"),
    Mutant(DeafToLeaves, "sync", "quorum", steps=UNEVEN, stuck=True, costs="slow links"),
    Mutant(DeafToLeaves, "softsync 1", "quorum|exactly once", steps=UNEVEN, stuck=True),
    Mutant(QuorumOneMore, "softsync 2", "quorum", steps=(6, 6, 6, 6)),
    Mutant(QuorumOneMore, "one backup", "quorum"),
    Mutant(QuorumOneLess, "softsync 1", "quorum"),
    Mutant(QuorumOneLess, "sync", "quorum|rounds|request-reply alternation"),
    Mutant(RoundsOfNothing, "one backup", "quorum", empty=((0, 2), (1, 2))),
    Mutant(QuorumCountsAWorkerTwice, "softsync 1", "quorum", steps=(6, 6, 6, 6)),
    Mutant(QuorumOfAllThatEverWere, "softsync 1", "quorum", steps=UNEVEN),
    Mutant(LeavesOneOut, "softsync 1", "quorum|exactly once|saved gradients"),
    Mutant(LeavesOneOut, "sync", "request-reply alternation|quorum"),
    Mutant(VersionBumpedLate, "async", "reads"),
    Mutant(VersionBumpedLate, "softsync 1", "reads"),
    Mutant(FoldsInOrderOfArrival, "sync", "summation order"),
    Mutant(FoldsInOrderOfArrival, "one backup", "summation order", steps=(5, 5, 5, 5)),
    Mutant(FoldsBackwards, "softsync 1", "saved gradients|summation order|per-worker FIFO"),
    Mutant(SumsTheLatestFirst, "softsync 1", "summation order|per-worker FIFO", steps=(6, 6, 6, 6)),
    Mutant(NobodyIsEmpty, "async", "exactly once|quorum", empty=((0, 2), (1, 1))),
    Mutant(AppliesTwice, "async", "exactly once|quorum"),
    Mutant(AppliesTwice, "sync", "request-reply alternation"),
    Mutant(LosesUpdates, "ssp 1", "exactly once|request-reply alternation|reads"),
    Mutant(
        LosesUpdates,
        "softsync 2",
        "exactly once|request-reply alternation|reads|quorum",
        shards=(1,),
    ),
    Mutant(AppliesAtTheNextPush, "async", "read-your-writes|quorum"),
    Mutant(AppliesAtTheNextPush, "ssp 1", "read-your-writes|bounded-staleness read|quorum"),
    Mutant(DropsAGoodPush, "async", "exactly once"),
    Mutant(DropsAGoodPush, "ssp 1", "exactly once"),
    Mutant(LosesLatePushes, "one backup", "exactly once", steps=(5, 5, 5, 5)),
    Mutant(AppliesLatePushes, "one backup", "exactly once|rounds|quorum", steps=(5, 5, 5, 5)),
    Mutant(NeverTooStale, "async, drops", "exactly once"),
    Mutant(LimitOneLess, "async, drops", "exactly once"),
    Mutant(ForgetsWhatIsPending, "softsync 1", "exactly once|quorum", steps=UNEVEN),
    Mutant(ForgetsWhatIsPending, "sync", "exactly once", steps=UNEVEN, stuck=True),
    Mutant(TrustsTheDead, "sync", "exactly once|quorum", crashes=((1, 0.003),)),
    Mutant(KeepsNothing, "softsync 1", "saved gradients"),
    Mutant(KeepsTwice, "softsync 1", "exactly once"),
    Mutant(KeepsAll, "async", "saved gradients"),
    Mutant(TooStaleByOne, "async", "reads"),
]


def run(config, steps, seed, **more):
    books = Ledger(steps, shards_of(config), empty=more.pop("empty", ()))
    return recorded(config, books, workers=len(steps), seed=seed, **more).history


def mutated(monkeypatch, mutant):
    """Let some of two shards be led by a mutant."""
    turns = itertools.cycle(range(2))

    def policy(mode, workers, **knobs):
        sound = policy_for(mode, workers, **knobs)
        if next(turns) not in mutant.shards:
            return sound
        options: dict[str, Any] = {"quorum": sound._quorum, "gate": sound._gate}
        broken = mutant.policy(workers, late=sound._late, rounds=sound._rounds, **options)
        broken._alone = False
        return broken

    monkeypatch.setattr("psrt.job.build.policy_for", policy)
    # What one breaks the others refuse; it is the checker that has to find it here. Nor can all of
    # it be computed, and no number is in a history.
    monkeypatch.setattr(Policy, "_refuse_or_pass", lambda self, push: None)
    monkeypatch.setattr(Shard, "keep", lambda self, push: None)
    monkeypatch.setattr(Shard, "apply", counted)


def counted(self, pushes, buffer, ready=None):
    rate = self._rate
    factors = [rate.scale(self.version - push.version) if rate else 1.0 for push in pushes]
    self.notes = [Note(factor, -1.0) for factor in factors]
    if pushes:
        self._updater.begin(pushes[0].progress)
    self.count(pushes)


def found(runs, rules, *, stuck=False):
    """Demand that one of some runs goes red, by one of these rules, and none by another."""
    red = 0
    for history in runs:
        outcome = check(history) if history is not None else None
        if outcome is None:
            red += stuck
        elif not outcome.ok:
            assert outcome.violation.rule in rules.split("|"), "\n".join(outcome.lines())
            assert outcome.violation.text
            assert len(outcome.lines()) > 3 or outcome.violation.event is None
            red += 1
    assert red, "no run went red"


@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=[f"{m.policy.__name__}-{m.mode}-{len(m.shards)}" for m in MUTANTS]
)
@pytest.mark.one_in(3)
def test_a_broken_policy_goes_red(monkeypatch, mutant):
    def runs():
        for seed in range(6):
            try:
                yield run(
                    config_of(mutant.mode, 2, epochs=1),
                    mutant.steps,
                    seed,
                    crashes=mutant.crashes,
                    empty=mutant.empty,
                    costs=mutant.costs,
                )
            except TransportError:  # a deadlock
                yield None

    mutated(monkeypatch, mutant)
    found(runs(), mutant.rules, stuck=mutant.stuck)


@pytest.mark.parametrize("mutant", {m.mode: m for m in MUTANTS}.values(), ids=lambda m: m.mode)
def test_a_sound_policy_in_the_same_place_stays_green(monkeypatch, mutant):
    mutated(monkeypatch, mutant._replace(policy=Policy))
    for seed in range(4):
        config = config_of(mutant.mode, 2, epochs=1)
        assert check(run(config, mutant.steps, seed)).ok


# --- servers, workers and collectives -----------------------------------------------------------


def answers_with_the_version_before(monkeypatch):
    answer = ShardServer._answer

    def old(self, serve, now):
        given = answer(self, serve, now)
        return given._replace(version=max(0, given.version - (serve.clock % 3 == 2)))

    monkeypatch.setattr(ShardServer, "_answer", old)


def tells_another_staleness(monkeypatch):
    answer = ShardServer._answer
    monkeypatch.setattr(
        ShardServer, "_answer",
        lambda self, serve, now: answer(self, serve, now)._replace(
            staleness=self._tau[serve.worker] + (serve.clock == 3)
        ),
    )  # fmt: skip


def takes_all_at_the_full_rate(monkeypatch):
    for rate in (Inverse, MeanInverse, Power, Exponential):
        monkeypatch.setattr(rate, "scale", lambda self, staleness: 1.0)


def forgets_the_oldest(monkeypatch):
    init = MeanInverse.__init__
    monkeypatch.setattr(MeanInverse, "__init__", lambda self: init(self, window=3))


def reads_a_mixture(monkeypatch):
    monkeypatch.setattr(Policy, "_refuse_or_pass", lambda self, push: None)

    async def level(self, clocks, progress):
        return max(clocks.values())

    monkeypatch.setattr(PushPull, "_level", level)


def takes_one_shard_for_all(monkeypatch):
    read = WorkerEventRecorder.read

    def of_the_first(self, now, clock, versions, taus, seconds):
        read(self, now, clock, versions[:1] * len(versions), taus, seconds)

    monkeypatch.setattr(WorkerEventRecorder, "read", of_the_first)


def averages_one_step_later(monkeypatch):
    class Later(AveragingPeriod):
        def due(self, *, steps, progress):
            return super().due(steps=steps - 1, progress=progress)

    monkeypatch.setattr("psrt.job.build.AveragingPeriod", Later)


def forgets_the_epoch(monkeypatch):
    class Always(AveragingPeriod):
        def due(self, *, steps, progress):
            return super().due(steps=steps, progress=progress + self.post_local_epoch)

    monkeypatch.setattr("psrt.job.build.AveragingPeriod", Always)


def goes_without_a_last_average(monkeypatch):
    finish = LocalSGD.finish

    async def at_once(self):
        self._steps = 0
        return await finish(self)

    monkeypatch.setattr(LocalSGD, "finish", at_once)


def arrives_a_step_later(monkeypatch):
    due = StreamingSGD._is_due
    monkeypatch.setattr(
        StreamingSGD, "_is_due", lambda self, it: due(self, it) and it.steps > self._period.delay
    )


def arrives_a_step_earlier(monkeypatch):
    monkeypatch.setattr(
        StreamingSGD, "_is_due", lambda self, it: it.steps >= self._period.delay - 1
    )


def sends_a_step_later(monkeypatch):
    class Later(FragmentPeriod):
        def due(self, step):
            return super().due(step - 1) if step > 1 else None

    monkeypatch.setattr("psrt.job.build.FragmentPeriod", Later)


def forgets_the_epoch_of_fragments(monkeypatch):
    monkeypatch.setattr(FragmentPeriod, "is_early", lambda self, progress: False)


def sends_the_last_fragment_first(monkeypatch):
    def turn(self):
        return self._fragments[-1 - self._round % len(self._fragments)]

    monkeypatch.setattr(StreamingSGD, "_next", property(turn))


def sends_nothing_at_the_end(monkeypatch):
    leave = StreamingSGD.leave

    async def at_once(self, clock):
        await self._arrive_all()
        for fragment in self._fragments:
            fragment.steps = fragment.samples = 0
        return await leave(self, clock)

    monkeypatch.setattr(StreamingSGD, "leave", at_once)


def counts_samples_since_any_fragment(monkeypatch):
    send = StreamingSGD._send

    async def forgetful(self, clock, **more):
        await send(self, clock, **more)
        for fragment in self._fragments:
            fragment.samples = 0

    monkeypatch.setattr(StreamingSGD, "_send", forgetful)


def says_it_is_fresh(monkeypatch):
    reduced = WorkerEventRecorder.reduced
    monkeypatch.setattr(
        WorkerEventRecorder, "reduced", lambda self, *values: reduced(self, *values[:-1], 0)
    )


def does_not_wait_for_the_next_period(monkeypatch):
    async def everything(self):
        while self._under_way:
            await self._arrive()

    monkeypatch.setattr(StreamingSGD, "_arrive_all", everything)


def does_not_settle(monkeypatch):
    async def nothing(self, rule, clock):
        return None

    monkeypatch.setattr(StreamingSGD, "_settle", nothing)


def weighs_all_alike(monkeypatch):
    monkeypatch.setattr(Reducer, "weight", lambda self, samples: 1.0)


def counts_empty_rounds(monkeypatch):
    finish = Reducer.finish

    async def counted(self, *, empty=False):
        before = self.updates
        training = await finish(self, empty=empty)
        self.updates = before + 1
        return training

    monkeypatch.setattr(Reducer, "finish", counted)


# --- the elastic force, at a worker, at a server, and at both ------------------------------------


def both_force(monkeypatch, other):
    for module in ("psrt.runtime.strategies.easgd.force", "psrt.runtime.elastic.force"):
        monkeypatch.setattr(module, other)


def backwards(x, centre, alpha, out):
    return np.negative(force(x, centre, alpha, out), out=out)


def worker_is_pushed_away(monkeypatch):
    monkeypatch.setattr("psrt.runtime.strategies.easgd.force", backwards)


def centre_is_pushed_away(monkeypatch):
    monkeypatch.setattr("psrt.runtime.elastic.force", backwards)


def all_are_pushed_away(monkeypatch):
    both_force(monkeypatch, backwards)


def each_draws_as_all(monkeypatch):
    monkeypatch.setattr("psrt.job.build._alpha", lambda config, elastic, workers: config.elastic)


def force_has_momentum(monkeypatch):
    velocity = {}

    def carried(x, centre, alpha, out):
        drawn = force(x, centre, alpha, out)
        drawn += np.float32(0.5) * velocity.get(id(out), np.float32(0))
        velocity[id(out)] = drawn.copy()
        return drawn

    monkeypatch.setattr("psrt.runtime.strategies.easgd.force", carried)


def worker_stays(monkeypatch):
    monkeypatch.setattr(ElasticAverager, "_move", lambda self: np.copyto(self._theta, self._own))


def worker_moves_to_the_centre(monkeypatch):
    monkeypatch.setattr(ElasticAverager, "_move", lambda self: np.copyto(self._theta, self._centre))


def centre_stays(monkeypatch):
    monkeypatch.setattr(
        CentreUpdater, "_move", lambda self, centre, total, out: np.copyto(out, centre)
    )


def centre_moves_by_half(monkeypatch):
    monkeypatch.setattr(
        CentreUpdater, "_move",
        lambda self, centre, total, out: np.add(centre, total / np.float32(2), out=out),
    )  # fmt: skip


def centre_is_used_twice(monkeypatch):
    renew = ElasticAverager._renew

    def every_second(self):
        self.turn = getattr(self, "turn", 0) + 1
        if self.turn % 2:
            renew(self)

    monkeypatch.setattr(ElasticAverager, "_renew", every_second)


def server_answers_with_the_next_centre(monkeypatch):
    take = ShardServer.take

    def newest(self, message):
        take(self, message)
        self._answers_met = False

    monkeypatch.setattr(ShardServer, "take", newest)


def draws_once_more(monkeypatch):
    draw = ElasticAverager._draw

    def twice(self, step):
        draw(self, step)
        draw(self, step)

    monkeypatch.setattr(ElasticAverager, "_draw", twice)


def one_is_left_out(monkeypatch):
    terms = Shard._whole_terms
    monkeypatch.setattr(
        Shard,
        "_whole_terms",
        lambda self, pushes: [*terms(self, pushes)[1:], terms(self, pushes)[1]],
    )


@pytest.mark.parametrize(
    ("breaks", "modes"),
    [
        (worker_is_pushed_away, ("easgd", "easgd, asynchronous")),
        (centre_is_pushed_away, ("easgd", "easgd, asynchronous")),
        (all_are_pushed_away, ("easgd", "easgd, asynchronous")),
        (each_draws_as_all, ("easgd",)),
        (force_has_momentum, ("easgd",)),
        (worker_stays, ("easgd", "easgd, asynchronous")),
        (worker_moves_to_the_centre, ("easgd",)),
        (centre_stays, ("easgd", "easgd, asynchronous")),
        (centre_moves_by_half, ("easgd", "easgd, asynchronous")),
        (centre_is_used_twice, ("easgd",)),
        (server_answers_with_the_next_centre, ("easgd, asynchronous",)),
        (draws_once_more, ("easgd",)),
        (one_is_left_out, ("easgd",)),
    ],
)
def test_a_broken_elastic_force_goes_red(monkeypatch, breaks, modes):
    breaks(monkeypatch)
    for mode in modes:
        for seed in range(2):
            outcome = check(run(config_of(mode, 2), EVEN, seed))
            rule = "rates" if breaks is each_draws_as_all else "elastic force"
            assert outcome.violation is not None
            assert outcome.violation.rule == rule, "\n".join(outcome.lines())


@pytest.mark.parametrize(
    ("breaks", "mode", "rules", "steps"),
    [
        (answers_with_the_version_before, "async", "request-reply alternation", EVEN),
        (answers_with_the_version_before, "ssp 1", "request-reply alternation", EVEN),
        (tells_another_staleness, "sync", "reads", EVEN),
        (takes_all_at_the_full_rate, "async, inverse", "rates", EVEN),
        (takes_all_at_the_full_rate, "async, mean", "rates", EVEN),
        (takes_all_at_the_full_rate, "softsync 2", "rates", (6, 6, 6, 6)),
        (takes_all_at_the_full_rate, "ssp 1, exponential", "rates", EVEN),
        (forgets_the_oldest, "async, mean", "rates", EVEN),
        (forgets_the_oldest, "softsync 1, mean", "rates", EVEN),
        (takes_one_shard_for_all, "ssp 1, 2 shards each", "reads", EVEN),
        (
            reads_a_mixture,
            "one backup, 3 shards each",
            "request-reply alternation|reads",
            (6, 6, 6, 6),
        ),
        (reads_a_mixture, "one backup", "request-reply alternation|reads", (6, 6, 6, 6)),
        (averages_one_step_later, "local-sgd", "averaging", EVEN),
        (averages_one_step_later, "local-sgd over servers", "averaging", EVEN),
        (averages_one_step_later, "easgd, asynchronous", "averaging", EVEN),
        (goes_without_a_last_average, "easgd over 2 shards", "averaging", (7, 5, 4)),
        (forgets_the_epoch, "post-local", "averaging", EVEN),
        (forgets_the_epoch, "post-local over servers", "averaging", EVEN),
        (goes_without_a_last_average, "local-sgd", "averaging", (7, 5, 4)),
        (arrives_a_step_later, "fragments, late", "fragments", EVEN),
        (arrives_a_step_earlier, "late, post-local", "fragments", EVEN),
        (arrives_a_step_earlier, "fragments, late", "fragments", EVEN),
        (sends_a_step_later, "fragments", "averaging", EVEN),
        (sends_a_step_later, "eager", "averaging", EVEN),
        (forgets_the_epoch_of_fragments, "late, post-local", "averaging", EVEN),
        (forgets_the_epoch_of_fragments, "eager, fragments, post-local", "averaging", EVEN),
        (sends_the_last_fragment_first, "fragments", "fragments", EVEN),
        (sends_nothing_at_the_end, "fragments, late", "averaging", EVEN),
        (counts_samples_since_any_fragment, "fragments", "averaging|sums", EVEN),
        (says_it_is_fresh, "fragments, late", "fragments", EVEN),
        (says_it_is_fresh, "eager", "fragments", EVEN),
        (does_not_wait_for_the_next_period, "eager", "fragments", EVEN),
        (does_not_settle, "eager", "sums", EVEN),
        (weighs_all_alike, "allreduce", "sums", UNEVEN),
        (counts_empty_rounds, "allreduce", "sums|final version", UNEVEN),
    ],
)
@pytest.mark.one_in(3)
def test_a_broken_role_goes_red(monkeypatch, breaks, mode, rules, steps):
    breaks(monkeypatch)
    # What a run itself would refuse at its end; it is the checker that has to find it here.
    monkeypatch.setattr("psrt.runtime.worker.fingerprint", lambda theta: 0)
    servers = max(MODES[mode][2])
    runs = (run(config_of(mode, servers), steps, seed, empty=[(0, 1)]) for seed in range(6))
    found(runs, rules)
