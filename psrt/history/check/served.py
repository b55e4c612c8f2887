"""Learners whose merges are of fragments, late, or after steps that servers say.

A fragment f of F is due in step t of a period of H if ⌊tF/H⌋ > ⌊(t − 1)F/H⌋, the next one in turn:
one of all layers after at least H steps. What becomes of it is adopted T of the learner's own steps
later, before it pushes the next one; and servers may change H of one with an answer, max(1, ⌊H·s_i
/ max_j s_j⌋) of the paces s_j that learners report. Sources: fragments, Douillard et al. 2025
(2501.18512); steps, Liu et al. 2024 (2401.09135).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from psrt.history.check.alternation import Shard
from psrt.history.check.contract import Contract
from psrt.history.check.findings import (
    AVERAGING,
    FRAGMENTS,
    MEMBERSHIP,
    STEPS,
    Findings,
    require_duration,
)
from psrt.history.check.stops import without_stops
from psrt.history.check.table import Ints, Table, previous
from psrt.history.events import PARKED, Kind
from psrt.history.kinds import Reply

#: The share of a step by which a pace may look smaller than it is, as servers and as float32 round.
_HAIR, _ROUNDING = 1e-4, 1e-6


def by_fragment(
    table: Table, shards: Sequence[int], workers: int, findings: Findings
) -> tuple[Table, Ints, Ints]:
    """Return what workers say to the shards of one fragment.

    Args:
        table: events of all workers, worker after worker.
        shards: of the fragment.
        workers: W.
        findings: takes what is wrong.

    Returns:
        The events, with leaves at the clock of the fragment; by worker the position of that, their
        number without; and by worker the merges that it has adopted.
    """
    own = table.are(Kind.LEAVE) | (
        table.are(Kind.READ, Kind.PUSH) & np.isin(table["shard"], shards)
    )
    part = without_stops(len(shards), Table(table.events[own].copy(), table.name), findings)
    reads, at = part.where(Kind.READ), part.where(Kind.LEAVE)
    adopted, leave = np.zeros(workers, np.int64), np.full(workers, len(part))
    np.maximum.at(adopted, part["worker"][reads], part["clock"][reads])
    events = part.events
    leave[events["worker"][at]] = at
    events["clock"][at] = adopted[events["worker"][at]]
    return Table(events, table.name), leave, adopted


def check_adopted(table: Table, leave: Ints, adopted: Sequence[Ints], findings: Findings) -> None:
    """Check that a learner leaves with the number of merges that it has adopted."""
    at = leave[leave < len(table)]
    due = np.sum(adopted, axis=0)[table["worker"][at]]
    text = "worker {worker} leaves at clock {said}, expected {due}"
    findings.on(table, at).require_equal(MEMBERSHIP, table["clock"][at], due, text)


def check_told_steps(contract: Contract, shards: Sequence[Shard], findings: Findings) -> None:
    """Check the local steps that answers name, from the paces that learners had reported."""
    for shard in shards:
        table = shard.table
        replies = table.where(Kind.REPLY)
        said = table[Reply.steps][replies]
        low = high = np.zeros(len(replies), np.int64)
        if contract.mode.dynamic and not contract.follows(shard.number):
            low, high = _told(contract, table)
        text = (
            "shard {shard} gave worker {worker} {said} steps before its next push, expected {due}"
        )
        holds = (said >= low) & (said <= high)
        findings.on(table, replies).require(STEPS, holds, text, said=said, due=low, counts=False)


def _told(contract: Contract, table: Table) -> tuple[Ints, Ints]:
    """Return by answer the fewest and the most local steps that rounding allows."""
    found: list[tuple[int, int]] = []
    events = zip(table["kind"], table["worker"].tolist(), paces_of(contract, table), strict=True)
    for kind, worker, paces in events:
        if kind == Kind.REPLY:
            share = paces[worker] / max(paces.values()) if worker in paces else 1.0
            most = contract.local_steps * share + _HAIR
            near = (max(1, math.floor(most * (1 + it))) for it in (-_ROUNDING, _ROUNDING))
            found.append(tuple(near))  # type: ignore[arg-type]
    low, high = np.array(found, np.int64).reshape(-1, 2).T
    return low, high


def paces_of(contract: Contract, table: Table) -> Iterator[dict[int, float]]:
    """Yield by event of a shard the paces that live learners have reported until then.

    When a job starts again, from a checkpoint, they are not known.
    """
    paces: dict[int, float] = {}
    columns = (table[it].tolist() for it in ("kind", "worker"))
    start = np.searchsorted(contract.resumed, table.real("time"))
    for kind, worker, pace, begins in zip(
        *columns, table.real("rate"), start != previous(start, 0), strict=True
    ):
        if begins:
            paces.clear()
        if kind == Kind.RECEIVE and pace > 0:
            paces[worker] = pace
        elif kind == Kind.LEFT:
            paces.pop(worker, None)
        yield paces


def check_pushes(
    contract: Contract, table: Table, shards: Sequence[Shard], leave: Ints, findings: Findings
) -> None:
    """Check after which steps learners push and adopt, and which fragment.

    Args:
        contract: of the run.
        table: events of all workers, worker after worker.
        shards: all of them.
        leave: by worker, position of its LEAVE, the number of events where it died.
        findings: takes what is wrong.
    """
    firsts = [of[0] for of in contract.together()]
    kept = table.are(Kind.STEP) | (
        table.are(Kind.READ, Kind.PUSH) & np.isin(table["shard"], firsts)
    )
    if contract.fragments > 1:  # else the last read after a push stands for all
        kept &= ~(table.are(Kind.READ) & (table["flag"] == PARKED))
    positions = kept.nonzero()[0]
    owner = table["worker"][positions]
    for worker in range(contract.workers):
        told = []
        for first in firsts:
            shard = shards[first]
            of = (shard.pushes.worker == worker) & ~shard.pushes.stops
            steps = np.append(shard.table[Reply.steps], 0)[shard.pushes.reply[of]]
            told.append(iter(steps.tolist()))
        mine = positions[owner == worker]
        died = bool(leave[worker] == len(table))
        one = _Learner(contract, table, mine, firsts, told, findings)
        one.check(died=died)
        if not findings.none:
            return
    if contract.streams:
        reads = positions[table.are(Kind.READ)[positions]]
        reads = reads[table["clock"][reads] > 0]
        loose = (table["flag"][reads] == PARKED) | (not contract.exact_times)
        require_duration(findings, table, reads, reads - 1, most=loose)


class _Learner:
    """One learner's steps, pushes and reads, event by event."""

    def __init__(
        self, contract: Contract, table: Table, at: Ints, firsts: Sequence[int],
        told: Sequence[Iterator[int]], findings: Findings,
    ) -> None:  # fmt: skip
        self.contract, self.table, self.at = contract, table, at
        self.fragments = {shard: f for f, shard in enumerate(firsts)}
        self.told, self.findings = told, findings
        count = len(firsts)
        #: By fragment, steps and samples since its last push.
        self.steps, self.samples = [0] * count, [0] * count
        self.period, self.of_period, self.turn = contract.local_steps, 0, 0
        self.progress = 0.0
        #: Steps so far, and all; the fragment on its way, and the steps when it was pushed.
        self.done, self.made = 0, int((table["kind"][at] == Kind.STEP).sum())
        self.on_its_way: int | None = None
        self.pushed_after = 0
        #: Whether a push was due before what was on its way had to be adopted, which may have
        #: changed the period; and whether one that was due is put off for a checkpoint.
        self.was_due = self.owes = False

    def wrong(self, at: int, rule: str, text: str, **values: object) -> None:
        """Report one event."""
        self.findings.on(self.table, np.array([at])).forbid(rule, text, counts=False, **values)

    def check(self, *, died: bool) -> None:
        """Check all events."""
        table, has_pushed, step = self.table, True, -1
        start = np.searchsorted(self.contract.resumed, table.real("time")[self.at])
        begins = (start != previous(start, 0)).tolist()
        kinds, shards = table["kind"][self.at].tolist(), table["shard"][self.at].tolist()
        self.findings.count(AVERAGING, len(kinds))
        for i, (at, kind, shard) in enumerate(zip(self.at.tolist(), kinds, shards, strict=True)):
            if kind == Kind.STEP:
                self._end(step, has_pushed)
                self._step(at)
                has_pushed, step = False, at
            elif kind == Kind.PUSH:
                self._push(at, self.fragments[shard], has_pushed)
                has_pushed = True
            elif table["clock"][at]:  # the first read answers no push
                pushes = kinds[i + 1 : i + 2] == [Kind.PUSH]
                self._adopt(at, self.fragments[shard], pushes)
            if begins[i]:  # no answer to a push has named the steps since
                self.owes |= kind != Kind.STEP and not has_pushed and self.is_due
                self.period = self.contract.local_steps
        if died:
            return
        self._end(step, has_pushed)
        if self.made and any(self.steps):
            text = "worker {worker} leaves with steps of fragment {which} that it has not pushed"
            self.wrong(step, AVERAGING, text, which=[it > 0 for it in self.steps].index(True))

    def _step(self, at: int) -> None:
        samples = int(self.table["samples"][at])
        self.progress = float(self.table.real("progress")[at])
        self.done += 1
        self.of_period += 1
        self.steps = [it + 1 for it in self.steps]
        self.samples = [it + samples for it in self.samples]

    @property
    def is_due(self) -> bool:
        """Whether a push is due after the last step."""
        t, count = self.of_period, self.contract.fragments
        if count == 1:
            early = self.progress < self.contract.post_local_epoch
            return self.steps[0] >= (1 if early else self.period)
        return t * count // self.period > (t - 1) * count // self.period

    def _end(self, step: int, has_pushed: bool) -> None:
        if not has_pushed and self.is_due:
            self.owes = self.on_its_way is not None and self.contract.mode.dynamic
        if not has_pushed and self.is_due and not self.owes:
            self.wrong(step, AVERAGING, "worker {worker} did not push after step {clock}")
        if self.of_period == self.period:
            self.of_period = 0

    def _push(self, at: int, fragment: int, has_pushed: bool) -> None:
        ends = self.done == self.made
        is_due, self.was_due, self.owes = self.was_due or self.owes or self.is_due, False, False
        if not ends and (has_pushed or not is_due):
            text = "worker {worker} pushes clock {clock} after {steps} steps, expected {period}"
            self.wrong(at, AVERAGING, text, steps=self.steps[fragment], period=self.period)
        count = len(self.steps)
        while ends and not self.steps[self.turn % count] and any(self.steps):
            self.turn += 1
        if fragment != self.turn % count or not self.steps[fragment]:
            text = "worker {worker} pushes fragment {said}, expected {due}"
            self.wrong(at, FRAGMENTS, text, said=fragment, due=self.turn % count)
        if self.on_its_way is not None:
            text = "worker {worker} pushes fragment {said} before it has adopted {due}"
            self.wrong(at, FRAGMENTS, text, said=fragment, due=self.on_its_way)
        had, was = self.table["samples"][at], self.table.real("progress")[at]
        if had != self.samples[fragment] or was != self.progress:
            text = (
                "worker {worker} pushes {samples} samples at epoch {progress:g}, but has had "
                "{since} since its last push of the same and was at {was:g}"
            )
            values = {"since": self.samples[fragment], "was": self.progress}
            self.wrong(at, AVERAGING, text, **values)
        self.on_its_way, self.pushed_after = fragment, self.done
        self.steps[fragment] = self.samples[fragment] = 0
        self.turn += 1

    def _adopt(self, at: int, fragment: int, pushes: bool) -> None:
        passed, delay = self.done - self.pushed_after, self.contract.delay
        may = passed == delay or (passed < delay and (pushes or self.done == self.made))
        if fragment != self.on_its_way or not may:
            text = "worker {worker} adopts fragment {said} after {passed} steps, expected {due}"
            self.wrong(at, FRAGMENTS, text, said=fragment, passed=passed, due=delay)
        self.on_its_way = None
        self.was_due = passed < delay and self.is_due
        self.period = next(self.told[fragment], 0) or self.period
