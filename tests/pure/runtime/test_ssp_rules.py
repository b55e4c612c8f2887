"""The four rules of SSP (Ho et al., NeurIPS 2013), checked on what workers really read.

The ledger's parameters say which gradients they are made of, so a read is checked by its bytes
and not by what anybody says about it.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.errors import TransportError
from psrt.messages import Leave, Push
from psrt.runtime.shard import Shard
from psrt.runtime.shard_server import ShardServer
from psrt.sync import Apply, Policy, Serve, policy_for
from support.cases import pairs
from support.recording import COSTS, Ledger, record

pytestmark = pytest.mark.slow


class BrokenRuleError(AssertionError):
    pass


def demand(holds, rule, read):
    if not holds:
        raise BrokenRuleError(f"{rule}: worker {read.worker} at clock {read.clock}")


def check(log, ledger, staleness):
    """Check every read of a run against the rules."""
    finished = [0.0] * len(ledger.steps)  # steps, by worker
    newest = [0.0] * len(ledger.steps)  # the contents of each worker's last read
    for entry in log:
        message = getattr(entry, "message", None)
        if isinstance(message, Push):
            finished[message.worker] = message.clock + 1
        elif isinstance(message, Leave):
            finished[message.worker] = math.inf
        elif message is None:
            demand(min(finished) >= entry.clock - staleness, "progress", entry)
            check_contents(entry, ledger, staleness)
            demand((entry.contents >= newest[entry.worker]).all(), "monotony", entry)
            newest[entry.worker] = entry.contents


def check_contents(read, ledger, staleness):
    for worker in range(len(ledger.steps)):
        clocks = ledger.there(worker)
        seen = read.contents[:, worker, clocks]
        demand(np.isin(seen, (0, 1)).all(), "exactly once", read)
        guaranteed = [clock <= read.clock - staleness - 1 for clock in clocks]
        demand((seen[:, guaranteed] == 1).all(), "read guarantee", read)
        if worker == read.worker:
            own = [clock < read.clock for clock in clocks]
            demand((seen[:, own] == 1).all(), "read my writes", read)
        demand((np.diff(seen, axis=1) <= 0).all(), "first in, first out", read)


def check_end(theta, ledger):
    """Check that every gradient there was is in the final parameters once."""
    contents = theta.reshape(ledger.shape)
    for worker in range(len(ledger.steps)):
        expected = np.isin(range(ledger.shape[2]), ledger.there(worker))
        if not (contents[:, worker] == expected).all():
            raise BrokenRuleError(f"exactly once: worker {worker} at the end")


def config(staleness, shards, **more):
    return TrainConfig(
        mode="ssp", staleness=staleness, servers=shards, optimizer="sgd", lr=1.0, epochs=1, **more
    )


EVEN = (6, 6, 6)
UNEVEN = (7, 2, 5, 1)
GAPS = [(0, 2), (0, 3), (1, 0), (2, 4), (3, 0)]  # batches without samples


@pytest.mark.parametrize(("costs", "shards"), pairs(COSTS, [1, 2, 3], one_in=3))
@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.one_in(3)
def test_every_run_keeps_the_rules(costs, shards, staleness):
    for seed in range(6):
        for books in (Ledger(EVEN, shards), Ledger(UNEVEN, shards, empty=GAPS)):
            for shared_memory in (True, False):
                asked = config(staleness, shards, shared_memory=shared_memory)
                run, log = record(asked, books, workers=len(books.steps), seed=seed, costs=costs)
                assert len(books.reads) == sum(len(books.there(w)) for w in range(len(books.steps)))
                check(log, books, staleness)
                check_end(run.theta, books)
                books.log.clear()


def test_who_may_be_ahead_is_ahead():
    """The gate is used to the full: else the rules would hold for too narrow a one."""
    ahead = set()
    for seed in range(8):
        books = Ledger(EVEN, 1)
        record(config(2, 1), books, workers=3, seed=seed)
        for read in books.reads:
            ahead.add(read.clock - read.contents.sum(axis=2).min())
    assert max(ahead) == 2


def test_ssp_0_reads_what_sync_reads(costs):
    for mode in ("ssp", "sync"):
        for steps, empty in ((EVEN, ()), (UNEVEN, GAPS)):
            asked = TrainConfig(mode=mode, servers=2, lr=1.0, epochs=1, optimizer="sgd")
            if mode == "ssp":
                asked = config(0, 2)
            books = Ledger(steps, 2, empty=empty)
            record(asked, books, workers=len(steps), seed=3, costs=costs)
            for read in books.reads:
                for worker in range(len(steps)):
                    seen = read.contents[0, worker] != 0
                    expected = [c for c in books.there(worker) if c < read.clock]
                    assert np.flatnonzero(seen).tolist() == expected
                    assert ((read.contents[1, worker] != 0) == seen).all()


class GateTooWide(Policy):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._gate += 1


class ServesFirst(Policy):
    def handle(self, event):
        return sorted(super().handle(event), key=lambda d: not isinstance(d, Serve))


class Forgetful(Policy):
    """Loses every third update."""

    def handle(self, event):
        decisions = super().handle(event)
        if self.version % 3 == 2:
            decisions = [d for d in decisions if not isinstance(d, Apply)]
        return decisions


class AppliesLater(Policy):
    """Answers before it applies, at the worker's next push, and keeps no gradient meanwhile."""

    def handle(self, event):
        held, self.held = getattr(self, "held", []), []
        for decision in super().handle(event):
            (self.held if isinstance(decision, Apply) else held).append(decision)
        return held


class Ungated(Policy):
    """Lets everybody through."""

    def _serve(self, decisions):
        self._gate, gate = math.inf, self._gate
        super()._serve(decisions)
        self._gate = gate


class DeafToLeaves(Policy):
    def _leave(self, leave):
        del self.clock[leave.worker]
        return []


def mutated(monkeypatch, mutant, shards=(0, 1)):
    """Have some of two shards be led by a mutant."""
    turns = itertools.cycle(range(2))

    def policy(mode, workers, **knobs):
        sound = policy_for(mode, workers, **knobs)
        if next(turns) not in shards:
            return sound
        broken = mutant(workers, quorum=sound._quorum, gate=sound._gate)
        broken._alone = False
        return broken

    monkeypatch.setattr("psrt.job.build.policy_for", policy)


def run_and_check(*, steps=EVEN, staleness=1, seeds=12):
    for seed in range(seeds):
        books = Ledger(steps, 2)
        run, log = record(config(staleness, 2), books, workers=len(steps), seed=seed)
        check(log, books, staleness)
        check_end(run.theta, books)


@pytest.mark.parametrize(
    ("mutant", "shards", "rules"),
    [
        (GateTooWide, (0, 1), "progress|read guarantee"),
        # A gate that is asked apart from the data: the worker waits, and reads too early.
        (Ungated, (1,), "read guarantee"),
        (Ungated, (0, 1), "progress|read guarantee"),
        (ServesFirst, (0, 1), "read guarantee|read my writes"),
        (Forgetful, (0, 1), "read guarantee|read my writes|first in|at the end"),
        (AppliesLater, (0, 1), "read guarantee|read my writes"),
    ],
)
def test_a_broken_policy_is_found_out(monkeypatch, mutant, shards, rules):
    mutated(monkeypatch, mutant, shards)
    with pytest.raises(BrokenRuleError, match=rules):
        run_and_check()


def test_a_policy_deaf_to_leaves_is_found_out(monkeypatch):
    mutated(monkeypatch, DeafToLeaves)
    with pytest.raises(TransportError, match="deadlock"):
        run_and_check(steps=(7, 2, 5, 1), staleness=0, seeds=40)


def test_a_shard_that_makes_an_update_twice_is_found_out(monkeypatch):
    apply = Shard.apply

    def twice(self, pushes, buffer):
        apply(self, pushes, buffer)
        if self.version == 5:
            apply(self, pushes, buffer)
            self.version = 5

    monkeypatch.setattr(Shard, "apply", twice)
    with pytest.raises(BrokenRuleError, match="exactly once"):
        run_and_check()


def test_a_shard_that_applies_another_workers_gradient_is_found_out(monkeypatch):
    init = Shard.__init__

    def mistaken(self, *arguments, payload, **options):
        init(self, *arguments, payload=lambda worker: payload(0), **options)

    monkeypatch.setattr(Shard, "__init__", mistaken)
    with pytest.raises(BrokenRuleError):
        run_and_check()


def test_a_server_that_answers_with_an_old_version_is_found_out(monkeypatch):
    serve = ShardServer.serve

    def stale(self, decision):
        newest, self.shard.newest = self.shard.newest, (self.shard.newest - 1) % 3
        serve(self, decision)
        self.shard.newest = newest

    monkeypatch.setattr(ShardServer, "serve", stale)
    with pytest.raises(BrokenRuleError):
        run_and_check()
