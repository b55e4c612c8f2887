"""What workers did in modes with servers: read all shards, compute, push to all, in turns."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from psrt.history.check.contract import Contract
from psrt.history.check.findings import Findings, Spot
from psrt.history.check.rules import MEMBERSHIP, READS
from psrt.history.check.steps import check_steps
from psrt.history.check.table import Ints, Table, rank_in_group
from psrt.history.events import Kind

#: Positions of events, a row for each read or push and a column for each shard.
Grid = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Workers:
    """The events of all workers, and what follows from them."""

    table: Table
    #: Worker after worker, each in its order.
    reads: Grid
    pushes: Grid
    #: By worker: position of its LEAVE; the number of events where it has none.
    leave: Ints

    def worker(self, grid: Grid) -> Ints:
        """Return whose each row is."""
        return self.table["worker"][grid[:, 0]]

    def spots(self, *positions: int) -> tuple[Spot, ...]:
        """Return these events for a story; positions beyond the end are passed over."""
        return tuple(Spot(self.table, int(at)) for at in positions if 0 <= at < len(self.table))


def departures(
    contract: Contract, table: Table, crashed: Collection[int] | None, findings: Findings
) -> Ints:
    """Check that a worker says once that it leaves; return where, by worker.

    One that never does has died, which it can only in virtual time.

    Args:
        contract: of the run.
        table: events of all workers, worker after worker.
        crashed: workers that died, as the run itself says; None where it does not.
        findings: takes what is wrong.
    """
    leave = np.full(contract.workers, len(table))
    at = table.where(Kind.LEAVE)
    owner = table["worker"][at]
    leave[owner] = at
    again = np.diff(owner, prepend=-1) == 0
    findings.expect(
        MEMBERSHIP, ~again, table, at, lambda i: f"worker {owner[i]} leaves again",
        lambda i: (Spot(table, int(at[i - 1])),),
    )  # fmt: skip
    staying = np.flatnonzero(leave == len(table))
    if contract.simulated and contract.shards:
        staying = staying[~np.isin(staying, [*(staying if crashed is None else crashed)])]
    if len(staying):
        worker = int(staying[0])
        its = np.flatnonzero(table["worker"] == worker)[-1:]
        findings.miss(
            MEMBERSHIP, f"worker {worker} never said that it leaves",
            *(Spot(table, int(i)) for i in its),
        )  # fmt: skip
    return leave


def look_at_workers(
    contract: Contract, table: Table, leave: Ints, findings: Findings
) -> Workers | None:
    """Return what the workers of a mode with servers did; None where it has no sense."""
    reads = _grid(contract, table, Kind.READ, findings)
    pushes = _grid(contract, table, Kind.PUSH, findings)
    after = np.flatnonzero(np.arange(len(table)) > leave[table["worker"]])
    findings.expect(
        MEMBERSHIP, np.zeros(len(after), bool), table, after,
        lambda i: f"worker {table['worker'][after[i]]} goes on after it has left",
        lambda i: (Spot(table, int(leave[table["worker"][after[i]]])),),
    )  # fmt: skip
    if reads is None or pushes is None or findings.first is not None:
        return None
    workers = Workers(table, reads, pushes, leave)
    _check_turns(workers, findings)
    if findings.first is not None:
        return None
    _check_computed_on(workers, findings)
    _check_clock_at_the_end(contract, workers, findings)
    if not contract.mode.averages:  # whose steps are its workers' own
        check_steps(contract, table, pushes[:, 0], findings)
    return workers


def _grid(contract: Contract, table: Table, kind: Kind, findings: Findings) -> Grid | None:
    """Return the events of a kind by shard; None if they do not come shard by shard."""
    shards, at = contract.shards, table.where(kind)
    what = {Kind.READ: "read", Kind.PUSH: "pushed"}[kind]
    owner = table["worker"][at]
    counts = np.bincount(owner, minlength=contract.workers)
    if (counts % shards).any():
        worker = int(np.flatnonzero(counts % shards)[0])
        last = int(at[owner == worker][-1])
        findings.expect(
            READS, np.zeros(1, bool), table, np.array([last]),
            lambda _: f"worker {worker} {what} {counts[worker]} shards, expected a multiple "
            f"of {shards}",
        )  # fmt: skip
        return None
    grid = at.reshape(-1, shards)
    first = grid[:, :1]
    holds = (grid == first + np.arange(shards)).all(1)
    holds &= (table["shard"][grid] == np.arange(shards)).all(1)
    for name in ("clock", "samples"):
        holds &= (table[name][grid] == table[name][first]).all(1)
    holds &= (table.real("progress")[grid] == table.real("progress")[first]).all(1)
    findings.expect(
        READS, holds, table, grid[:, 0],
        lambda i: f"worker {table['worker'][grid[i, 0]]} {what} clock "
        f"{table['clock'][grid[i, 0]]} not from shard to shard with one clock",
        lambda i: tuple(Spot(table, int(j)) for j in grid[i, 1:]),
    )  # fmt: skip
    return grid


def _check_turns(workers: Workers, findings: Findings) -> None:
    """Check that reads and pushes alternate, and that a read comes before and after."""
    table, leaves = workers.table, workers.table.where(Kind.LEAVE)
    at = np.sort(np.concatenate([workers.reads[:, 0], workers.pushes[:, 0], leaves]))
    owner, kind = table["worker"][at], table["kind"][at]
    follows = np.diff(owner, prepend=-1) == 0
    before = np.where(follows, np.concatenate([[0], kind])[:-1], 0)
    expected = np.where(kind == Kind.PUSH, Kind.READ, Kind.PUSH)
    holds = (before == expected) | ((kind != Kind.PUSH) & (before == 0))
    holds = np.where(kind == Kind.LEAVE, (before == 0) | (before == Kind.READ), holds)
    findings.expect(
        READS, holds, table, at,
        lambda i: f"worker {owner[i]} has {Kind(int(kind[i])).name} of clock "
        f"{table['clock'][at[i]]} after {Kind(int(before[i])).name if before[i] else 'nothing'}",
        lambda i: workers.spots(int(at[i - 1])) if follows[i] else (),
    )  # fmt: skip


def _check_computed_on(workers: Workers, findings: Findings) -> None:
    """Check that a gradient is of the clock and the versions that were read just before."""
    table, pushes = workers.table, workers.pushes
    of = np.searchsorted(workers.reads[:, 0], pushes[:, 0]) - 1
    read = workers.reads[of] if len(pushes) else pushes
    for name in ("clock", "version"):
        said, was = table[name][pushes], table[name][read]
        wrong = said != was
        column = wrong.argmax(1)
        findings.expect(
            READS, ~wrong.any(1), table, pushes[np.arange(len(pushes)), column],
            lambda i, name=name, said=said, was=was, column=column: (  # type: ignore[misc]
                f"worker {table['worker'][pushes[i, 0]]} pushed a gradient of {name} "
                f"{said[i, column[i]]} to shard {column[i]}, but had read {name} "
                f"{was[i, column[i]]}"
            ),
            lambda i, column=column: workers.spots(int(read[i, column[i]])),  # type: ignore[misc]
        )  # fmt: skip
    rank, _ = rank_in_group(workers.worker(workers.reads), len(workers.leave))
    first = workers.reads[rank == 0]
    zero = np.ones(first.shape, bool)
    for name in ("clock", "version", "tau"):
        zero &= table[name][first] == 0
    findings.expect(
        READS, np.all(zero, axis=1), table, first[:, 0],
        lambda i: f"worker {table['worker'][first[i, 0]]} begins with what is not version 0 at "
        "clock 0",
    )  # fmt: skip


def _check_clock_at_the_end(contract: Contract, workers: Workers, findings: Findings) -> None:
    """Check that a worker leaves with the clock that it was given last."""
    table, owner = workers.table, workers.worker(workers.reads)
    clock = np.zeros(contract.workers, np.int64)
    clock[owner] = table["clock"][workers.reads[:, 0]]  # the last one stays
    gone = np.flatnonzero(workers.leave < len(table))
    at = workers.leave[gone]
    findings.expect(
        MEMBERSHIP, table["clock"][at] == clock[gone], table, at,
        lambda i: f"worker {gone[i]} leaves at clock {table['clock'][at[i]]}, expected "
        f"{clock[gone[i]]}",
    )  # fmt: skip
