"""Puts the rules together: which are asked of which history, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from psrt.history.check.answers import check_answers
from psrt.history.check.averaging import check_averaging
from psrt.history.check.contract import Contract, contract_of
from psrt.history.check.delivery import check_delivery
from psrt.history.check.ending import check_saved, check_shard_saved
from psrt.history.check.fates import check_fates
from psrt.history.check.fields import check_fields, check_times
from psrt.history.check.findings import Findings, Spot
from psrt.history.check.order import check_kept, check_order
from psrt.history.check.outcome import Outcome
from psrt.history.check.quorum import check_quorum
from psrt.history.check.rates import check_own_rates, check_rates
from psrt.history.check.reduces import check_alone
from psrt.history.check.shard import Shard
from psrt.history.check.steps import check_local_steps
from psrt.history.check.summary import check_summary, check_updates
from psrt.history.check.table import Ints, Table, joined
from psrt.history.check.turns import look_at
from psrt.history.check.workers import Workers, departures, look_at_workers
from psrt.history.events import Kind
from psrt.history.header import Header
from psrt.history.reading import History


def check(
    history: History,
    *,
    summary: Mapping[str, object] | None = None,
    crashed: Collection[int] | None = None,
) -> Outcome:
    """Hold a history against the contract of its mode.

    Args:
        history: as ``read_history`` returned it.
        summary: the run's ``summary.json``, if it is to tell the same.
        crashed: workers that died in virtual time, if that is known.

    Returns:
        What was checked, and the first violation if there is one.

    Raises:
        ConfigError: if the header cannot be that of a run of psrt.
    """
    case = _Case(
        contract_of(history.header),
        history.header,
        workers=joined(history.workers, "worker"),
        shards=[Table(events, f"shard {i}") for i, events in enumerate(history.shards)],
        finals=Table(history.finals, "final state"),
        summary=summary,
        crashed=crashed,
    )
    with np.errstate(all="ignore"):  # senseless numbers are told of, not warned of
        case.check()
    return Outcome.of(case.contract, case.findings, case.tables)


@dataclass(slots=True)
class _Case:
    """One history, and what is found."""

    contract: Contract
    header: Header
    workers: Table
    shards: list[Table]
    finals: Table
    summary: Mapping[str, object] | None
    crashed: Collection[int] | None
    findings: Findings = field(default_factory=Findings)

    @property
    def tables(self) -> list[Table]:
        """All events."""
        return [self.workers, *self.shards, self.finals]

    @property
    def _sound(self) -> bool:
        """Whether nothing was found so far."""
        return self.findings.first is None

    def check(self) -> None:
        """Check step by step; a step relies on those before."""
        self._check_fields()
        if not self._sound:
            return
        leave = departures(self.contract, self.workers, self.crashed, self.findings)
        if not self._sound:
            return
        if self.contract.shards:
            self._check_served(leave)
        else:
            self._check_alone(leave)

    def _check_fields(self) -> None:
        check_times(self.workers, "worker", self.findings)
        check_times(self.finals, "shard", self.findings)
        for table in self.shards:
            check_times(table, None, self.findings)
        if self._sound:
            check_fields(self.contract, self.tables, self.findings)

    def _check_alone(self, leave: Ints) -> None:
        """Check a mode without servers."""
        contract, workers, findings = self.contract, self.workers, self.findings
        updates = check_alone(contract, workers, leave, findings)
        if not self._sound:
            return
        kind = Kind.REDUCED if contract.mode.sums_gradients else Kind.STEP
        check_own_rates(self.header, workers, kind, findings)
        last = int(np.flatnonzero(workers["worker"] == 0)[-1])  # of the one that saves
        check_saved(self.finals, -1, updates, Spot(workers, last), findings)
        if self.summary is not None:
            check_updates(self.summary, contract, updates, findings)

    def _check_served(self, leave: Ints) -> None:
        """Check a mode with servers."""
        contract, findings = self.contract, self.findings
        died = leave == len(self.workers)
        looked = [
            look_at(contract, i, table, died, findings) for i, table in enumerate(self.shards)
        ]
        workers = look_at_workers(contract, self.workers, leave, findings)
        if workers is None or not self._sound:
            return
        for shard in looked:
            if shard is not None:
                self._check_shard(workers, shard)
        if contract.mode.averages:
            self._check_local(workers)
        if self.summary is not None:
            check_summary(self.summary, contract, self.shards, findings)

    def _check_shard(self, workers: Workers, shard: Shard) -> None:
        contract, findings = self.contract, self.findings
        fates = check_fates(contract, shard, findings)
        check_kept(contract, shard, fates, findings)
        check_order(contract, shard, fates, findings)
        check_quorum(contract, shard, fates, findings)
        check_answers(contract, shard, fates, findings)
        check_rates(contract, self.header, shard, fates, findings)
        check_delivery(contract, workers, shard, findings)
        check_shard_saved(self.finals, shard, findings)

    def _check_local(self, workers: Workers) -> None:
        """Check the local steps between averages over servers."""
        contract, table, findings = self.contract, self.workers, self.findings
        check_local_steps(contract, table, findings)
        if self._sound:
            check_averaging(contract, table, workers.pushes[:, 0], workers.leave, findings)
            check_own_rates(self.header, table, Kind.STEP, findings)
