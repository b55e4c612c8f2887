"""The checker is checked by breaking what it checks: each mutant must go red, by the right rule.

Here are policies, workers with servers and sums, and elastic forces; averages among neighbours are
in ``test_mutants_of_averages``. What a policy alone can break is in ``test_check_rules``, event by
event: here are those whose histories are like those of sound ones, but for an order or a number.
"""

from __future__ import annotations

import numpy as np
import pytest

from psrt.history.check import check
from psrt.job import build
from psrt.optim.staleness import Exponential, Inverse, MeanInverse, Power
from psrt.runtime import elastic
from psrt.runtime.elastic import CentreUpdater
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.shard import Shard
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.strategies import builders, easgd
from psrt.runtime.strategies.easgd import ElasticAverager
from psrt.runtime.strategies.local_sgd import LocalSGD
from psrt.runtime.strategies.push_pull import PushPull
from psrt.runtime.strategies.reducer import Reducer
from psrt.runtime.strategies.streaming import StreamingSGD
from psrt.sync import Apply, AveragingPeriod, FragmentPeriod, Policy
from support.histories import MODES, config_of, recorded, shards_of
from support.mutants import Mutants
from support.recording import Ledger

EVEN, UNEVEN, FOUR = (6, 6, 6), (7, 2, 5, 1), (6, 6, 6, 6)


def run(config, steps, seed, empty=()):
    books = Ledger(steps, shards_of(config), empty=empty)
    return recorded(config, books, workers=len(steps), seed=seed).history


# --- policies, servers, workers and collectives -------------------------------------------------

#: Of what takes part in a run, in a mode; more says the ``steps`` of each worker, and which batches
#: are ``empty``.
role = Mutants()
RATES = [(it, "scale") for it in (Inverse, MeanInverse, Power, Exponential)]

# fmt: off
role.add("gate too wide", (Policy, "__init__"), "ssp 1", "progress",
         lambda init, self, *args, gate, **more: init(self, *args, gate=gate + 1, **more))
role.add("quorum one more", (Policy, "__init__"), "softsync 2", "quorum",
         lambda init, self, *args, quorum, **more:
         init(self, *args, quorum=lambda live: min(live, quorum(live) + 1), **more), steps=FOUR)
role.add("rounds of nothing", (Policy, "_has_gradient"), "one backup", "quorum", lambda *_: True,
         empty=[(0, 2), (1, 2)])
role.add("takes all at the full rate", RATES, ["async, inverse", "async, mean",
         "ssp 1, exponential"], "rates", lambda *_: 1.0)
role.add("takes all at the full rate", RATES, "softsync 2", "rates", lambda *_: 1.0, steps=FOUR)
role.add("forgets the oldest", (MeanInverse, "__init__"), ["async, mean", "softsync 1, mean"],
         "rates", lambda init, self: init(self, window=3))
role.add("averages one step later", (AveragingPeriod, "due"), ["local-sgd over servers",
         "easgd, asynchronous"], "averaging",
         lambda due, self, *, steps, progress: due(self, steps=steps - 1, progress=progress))
role.add("forgets the epoch", (AveragingPeriod, "due"), "post-local", "averaging",
         lambda due, self, *, steps, progress:
         due(self, steps=steps, progress=progress + self.post_local_epoch))
role.add("arrives a step earlier", (StreamingSGD, "_is_due"), "late, post-local", "fragments",
         lambda _, self, it: it.steps >= self._period.delay - 1)
role.add("sends a step later", (FragmentPeriod, "due"), ["fragments", "eager"], "averaging",
         lambda due, self, step: due(self, step - 1) if step > 1 else None)
role.add("forgets the epoch of fragments", (FragmentPeriod, "is_early"),
         "eager, fragments, post-local", "averaging", lambda *_: False)
role.add("sends the last fragment first", (StreamingSGD, "_next"), "fragments", "fragments",
         lambda _, self: self._fragments[-1 - self._round % len(self._fragments)])
role.add("says it is fresh", (WorkerEventRecorder, "reduced"), ["fragments, late", "eager"],
         "fragments", lambda reduced, self, *values: reduced(self, *values[:-1], 0))
# fmt: on


def reordered(fill, self, decisions, order):
    """Sum the pushes of each update in another order."""
    fill(self, decisions)
    for i, it in enumerate(decisions):
        if isinstance(it, Apply):
            decisions[i] = Apply(tuple(order([*it.pushes])))


@role((Policy, "_fill"), ["sync", "one backup"], "summation order", steps=FOUR)
def sums_in_order_of_arrival(fill, self, decisions):
    came = [*self.pending]
    reordered(fill, self, decisions, lambda pushes: sorted(pushes, key=came.index))


@role((Policy, "_fill"), "softsync 1", "summation order|per-worker FIFO", steps=FOUR)
def sums_the_latest_first(fill, self, decisions):
    """Forgets in which order those came that it has saved."""

    def order(pushes):
        return [*sorted(pushes[:-1], key=lambda it: -it.worker), pushes[-1]]

    reordered(fill, self, decisions, order)


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


@role((StreamingSGD, "_send"), "fragments", "averaging|sums")
async def counts_samples_since_any_fragment(send, self, clock, **more):
    await send(self, clock, **more)
    for fragment in self._fragments:
        fragment.samples = 0


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
    config, more = config_of(mutant.where, max(MODES[mutant.where][2])), mutant.more
    steps, empty = more.get("steps", EVEN), more.get("empty", [(0, 1)])

    def broken(seed):
        """Run what is broken; what is checked with is sound."""
        with monkeypatch.context() as patch:
            mutant.breaks(patch)
            # What policies and runs themselves would refuse; the checker has to find it here.
            patch.setattr(Policy, "_refuse_or_pass", lambda self, push: None)
            patch.setattr("psrt.runtime.worker.fingerprint", lambda theta: 0)
            return run(config, steps, seed, empty)

    found = (mutant.is_named_by(check(broken(seed))) for seed in range(6))
    assert any(found), "no run went red"


# --- the elastic force, at a worker, at a server, and at both ------------------------------------

force = Mutants()
BOTH = ["easgd", "easgd, asynchronous"]
AT_WORKER, AT_CENTRE = (easgd, "force"), (elastic, "force")
RULE = "elastic force"

# fmt: off
for places in (AT_WORKER, AT_CENTRE, [AT_WORKER, AT_CENTRE]):
    force.add("pushes away", places, "easgd", RULE, lambda force, x, centre, alpha, out:
              np.negative(force(x, centre, alpha, out), out=out))
ALPHAS = [(module, "elastic_alpha") for module in (build, builders)]
force.add("each draws as all", ALPHAS, "easgd", "rates",
          lambda _, mode, workers: mode.elastic)
force.add("worker stays", (ElasticAverager, "_move"), BOTH, RULE,
          lambda _, self: np.copyto(self._theta, self._own))
force.add("centre moves by half", (CentreUpdater, "_move"), BOTH, RULE,
          lambda _, self, centre, total, out: np.add(centre, total / np.float32(2), out=out))
force.add("one is left out", (Shard, "_whole_terms"), "easgd", RULE,
          lambda terms, self, pushes: [*terms(self, pushes)[1:], terms(self, pushes)[1]])
# fmt: on


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
