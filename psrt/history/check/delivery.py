"""Between workers and a shard: what was pushed is what was received, a reply is what is read."""

from __future__ import annotations

import numpy as np

from psrt.history.check.alternation import Shard, Workers
from psrt.history.check.contract import Contract
from psrt.history.check.findings import Findings
from psrt.history.check.rules import DELIVERY, MEMBERSHIP, READS
from psrt.history.check.table import Ints, Table, rank_in_group


def check_delivery(contract: Contract, workers: Workers, shard: Shard, findings: Findings) -> None:
    """Compare the workers' events about a shard with the shard's own."""
    real = np.flatnonzero(~shard.pushes.asks)  # to ask for a newer version is no push of a gradient
    _check_pushes(contract, workers, shard, real, findings)
    if findings.none:
        _check_reads(contract, workers, shard, real, findings)
    _check_leaving(contract, workers, shard, findings)


def _check_pushes(
    contract: Contract, workers: Workers, shard: Shard, real: Ints, findings: Findings
) -> None:
    """Check the k-th push that a worker sent against the k-th that the shard received of it.

    Both sides are sorted by worker, so the k-th of a worker is at the begin of its group plus k.
    """
    mine, table, count = workers.table, shard.table, contract.workers
    pushed, received = workers.pushes[:, shard.number], shard.pushes.at[real]
    owner, sender = mine["worker"][pushed], shard.pushes.worker[real]
    rank, starts = rank_in_group(owner, count)
    place, _ = rank_in_group(sender, count)
    came, sent = np.bincount(sender, minlength=count), np.bincount(owner, minlength=count)
    # The last push of a worker that died may have died with it.
    died = workers.leave == len(mine)
    arrived = (rank < came[owner]) | (died[owner] & (rank == sent[owner] - 1))
    text = "worker {worker} pushed clock {clock} to shard {shard}, which never received it"
    findings.on(mine, pushed).require(DELIVERY, arrived, text)
    text = "shard {shard} received clock {clock} of worker {worker}, which pushed only {sent} times"
    findings.on(table, received).require(DELIVERY, place < sent[sender], text, sent=sent[sender])
    if not findings.none:
        return
    of = pushed[starts[sender] + place]
    for name in ("clock", "version", "samples"):
        text = (
            f"shard {{shard}} received from worker {{worker}} {name} {{said}}, which pushed {name} "
            "{due}"
        )
        findings.on(table, received).require_equal(
            DELIVERY, table[name][received], mine[name][of], text, because=[(mine, of)]
        )
    text = "shard {shard} received a push with progress {said:g}, its worker pushed {due:g}"
    findings.on(table, received).require_equal(
        DELIVERY,
        table.real("progress")[received],
        mine.real("progress")[of],
        text,
        because=[(mine, of)],
    )
    if contract.simulated:
        text = "shard {shard} received a push of worker {worker} before it was sent"
        findings.on(table, received).require(
            DELIVERY, _not_after(mine, of, table, received), text, because=[(mine, of)]
        )


def _check_reads(
    contract: Contract, workers: Workers, shard: Shard, real: Ints, findings: Findings
) -> None:
    """Check that a worker reads the last reply that it got between two of its pushes."""
    mine, table, pushes = workers.table, shard.table, shard.pushes
    read = workers.reads[:, shard.number]
    owner = mine["worker"][read]
    rank, _ = rank_in_group(owner, contract.workers)
    # The first read is of nobody's reply; the k-th after it is of the reply to the k-th push.
    read, owner, rank = read[rank > 0], owner[rank > 0], rank[rank > 0]
    came = np.bincount(pushes.worker[real], minlength=contract.workers)
    push = (np.cumsum(came) - came)[owner] + rank - 1
    known = rank <= came[owner]
    # What it asked for after a push stands behind that, and is answered after it.
    last = np.append(real[1:], len(pushes)) - 1
    reply = np.full(len(read), len(table))
    reply[known] = pushes.reply[last[push[known]]] if len(real) else len(table)
    known &= reply < len(table)
    findings.on(mine, read).require(
        READS, known, "worker {worker} read a reply of shard {shard} that it never gave"
    )
    read, reply, push = read[known], reply[known], push[known]
    for name in ("clock", "version"):
        text = (
            f"worker {{worker}} read of shard {{shard}} {name} {{said}}, which answered {name} "
            "{due}"
        )
        findings.on(mine, read).require_equal(
            READS, mine[name][read], table[name][reply], text, because=[(table, reply)]
        )
    text = "worker {worker} was told staleness {said} by shard {shard}, its push met {due}"
    findings.on(mine, read).require_equal(
        READS,
        mine["tau"][read],
        pushes.met[real[push]],
        text,
        because=[(table, pushes.at[real[push]]), (table, reply)],
    )
    if contract.simulated:
        text = "worker {worker} read of shard {shard} before that had answered"
        findings.on(mine, read).require(
            READS, _not_after(table, reply, mine, read), text, because=[(table, reply)]
        )


def _check_leaving(contract: Contract, workers: Workers, shard: Shard, findings: Findings) -> None:
    """Check that a shard hears of a worker's leaving what the worker said."""
    mine, table = workers.table, shard.table
    gone = np.flatnonzero((workers.leave < len(mine)) & (shard.left < len(table)))
    sent, received = workers.leave[gone], shard.left[gone]
    holds = mine["clock"][sent] == table["clock"][received]
    if contract.simulated:
        holds &= _not_after(mine, sent, table, received)
    text = "worker {worker} left shard {shard} at clock {clock}, not as it said: at {said}"
    findings.on(table, received).require(
        MEMBERSHIP, holds, text, said=mine["clock"][sent], because=[(mine, sent)]
    )


def _not_after(cause: Table, causes: Ints, effect: Table, effects: Ints) -> np.ndarray:
    """Return, for each pair of events, whether the first did not happen after the second."""
    return cause.real("time")[causes] <= effect.real("time")[effects]
