"""Between workers and a shard: what was pushed is what was taken, what was answered is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import Findings, Spot
from psrt.history.check.rules import DELIVERY, MEMBERSHIP, READS
from psrt.history.check.shard import Shard
from psrt.history.check.table import Ints, rank_in_group
from psrt.history.check.workers import Workers


def check_delivery(contract: Contract, workers: Workers, shard: Shard, findings: Findings) -> None:
    """Hold what the workers wrote down about a shard against what it wrote itself."""
    real = np.flatnonzero(~shard.takes.asks)  # to ask for a newer version is no push of a gradient
    _check_pushes(contract, workers, shard, real, findings)
    if findings.first is None:
        _check_reads(contract, workers, shard, real, findings)
    _check_leaving(contract, workers, shard, findings)


def _check_pushes(
    contract: Contract, workers: Workers, shard: Shard, real: Ints, findings: Findings
) -> None:
    takes, count = shard.takes, contract.workers
    pushed = workers.pushes[:, shard.number]
    owner, taker = workers.table["worker"][pushed], takes.worker[real]
    rank, starts = rank_in_group(owner, count)
    taken = np.bincount(taker, minlength=count)
    died = workers.leave == len(workers.table)
    sent = np.bincount(owner, minlength=count)
    # A worker that dies may not have been heard to the end.
    arrived = (rank < taken[owner]) | (died[owner] & (rank == sent[owner] - 1))
    findings.expect(
        DELIVERY, arrived, workers.table, pushed,
        lambda i: f"worker {owner[i]} pushed clock {workers.table['clock'][pushed[i]]} to shard "
        f"{shard.number}, which never took it up",
    )  # fmt: skip
    place, _ = rank_in_group(taker, count)
    findings.expect(
        DELIVERY, place < sent[taker], shard.table, takes.at[real],
        lambda i: f"shard {shard.number} took up clock {takes.clock[real[i]]} of worker "
        f"{taker[i]}, which pushed only {sent[taker[i]]} times",
    )  # fmt: skip
    if findings.first is not None:
        return
    of = starts[taker] + place
    _compare(
        DELIVERY, shard, takes.at[real], workers, pushed[of], ("clock", "version", "samples"),
        lambda i: f"shard {shard.number} took up from worker {taker[i]}", "which pushed", findings,
    )  # fmt: skip
    _check_same(
        DELIVERY, shard, takes.at[real], workers, pushed[of], "progress", findings
    )  # fmt: skip
    if contract.simulated:
        late = workers.table.real("time")[pushed[of]] <= shard.table.real("time")[takes.at[real]]
        findings.expect(
            DELIVERY, late, shard.table, takes.at[real],
            lambda i: f"shard {shard.number} took up a push of worker {taker[i]} before it was "
            "sent",
            lambda i: workers.spots(int(pushed[of[i]])),
        )  # fmt: skip


def _check_reads(
    contract: Contract, workers: Workers, shard: Shard, real: Ints, findings: Findings
) -> None:
    """Check that a worker reads the last answer that it got between two of its pushes."""
    takes, end = shard.takes, len(shard.table)
    read = workers.reads[:, shard.number]
    owner = workers.table["worker"][read]
    rank, _ = rank_in_group(owner, contract.workers)
    read, owner, rank = read[rank > 0], owner[rank > 0], rank[rank > 0]
    taken = np.bincount(takes.worker[real], minlength=contract.workers)
    which = np.cumsum(taken) - taken
    push = which[owner] + rank - 1
    known = rank <= taken[owner]
    last = np.append(real[1:], len(takes)) - 1  # what it asked for after that, if it did
    answer = np.full(len(read), end)
    answer[known] = takes.answer[last[push[known]]] if len(real) else end
    known &= answer < end
    findings.expect(
        READS, known, workers.table, read,
        lambda i: f"worker {owner[i]} read an answer of shard {shard.number} that it never gave",
    )  # fmt: skip
    read, owner, answer, push = read[known], owner[known], answer[known], push[known]
    _compare(
        READS, workers, read, shard, answer, ("clock", "version"),
        lambda i: f"worker {owner[i]} read of shard {shard.number}", "which answered", findings,
    )  # fmt: skip
    met, tau = takes.met[real[push]], workers.table["tau"][read]
    findings.expect(
        READS, tau == met, workers.table, read,
        lambda i: f"worker {owner[i]} was told staleness {tau[i]} by shard {shard.number}, its "
        f"push met {met[i]}",
        lambda i: shard.spots(int(takes.at[real[push[i]]]), int(answer[i])),
    )  # fmt: skip
    if contract.simulated:
        after = shard.table.real("time")[answer] <= workers.table.real("time")[read]
        findings.expect(
            READS, after, workers.table, read,
            lambda i: f"worker {owner[i]} read of shard {shard.number} before that had answered",
            lambda i: shard.spots(int(answer[i])),
        )  # fmt: skip


def _check_leaving(contract: Contract, workers: Workers, shard: Shard, findings: Findings) -> None:
    """Check that a shard hears of a worker's leaving what the worker said."""
    table = workers.table
    gone = np.flatnonzero((workers.leave < len(table)) & (shard.left < len(shard.table)))
    said, heard = workers.leave[gone], shard.left[gone]
    holds = table["clock"][said] == shard.table["clock"][heard]
    if contract.simulated:
        holds &= table.real("time")[said] <= shard.table.real("time")[heard]
    findings.expect(
        MEMBERSHIP, holds, shard.table, heard,
        lambda i: f"worker {gone[i]} left shard {shard.number} at clock "
        f"{shard.table['clock'][heard[i]]}, not as it said: at {table['clock'][said[i]]}",
        lambda i: workers.spots(int(said[i])),
    )  # fmt: skip


def _compare(
    rule: str,
    here: Shard | Workers,
    at: Ints,
    there: Shard | Workers,
    of: Ints,
    names: tuple[str, ...],
    who: Callable[[int], str],
    whom: str,
    findings: Findings,
) -> None:
    """Check that whole numbers are the same on both sides."""
    for name in names:
        mine, other = here.table[name][at], there.table[name][of]

        def say(i: int, name: str = name, mine: Any = mine, other: Any = other) -> str:
            return f"{who(i)} {name} {mine[i]}, {whom} {name} {other[i]}"

        findings.expect(
            rule, mine == other, here.table, at, say, lambda i: (Spot(there.table, int(of[i])),)
        )


def _check_same(
    rule: str, shard: Shard, at: Ints, workers: Workers, of: Ints, name: str, findings: Findings
) -> None:
    """Check that a real number is the same on both sides, to the bit."""
    mine, other = shard.table.real(name)[at], workers.table.real(name)[of]
    findings.expect(
        rule, mine == other, shard.table, at,
        lambda i: f"shard {shard.number} took up a push with {name} {mine[i]:g}, its worker "
        f"pushed {other[i]:g}",
        lambda i: workers.spots(int(of[i])),
    )  # fmt: skip
