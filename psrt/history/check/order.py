"""In which order gradients are summed, and which of them had to be kept until then."""

from __future__ import annotations

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.fates import Fates
from psrt.history.check.findings import Findings
from psrt.history.check.rules import FIFO, KEPT, ROUND
from psrt.history.check.shard import Shard


def check_kept(contract: Contract, shard: Shard, fates: Fates, findings: Findings) -> None:
    """Check that a gradient was kept if its worker could overwrite it before it was applied."""
    takes, table, end = shard.takes, shard.table, len(shard.table)
    # In all modes but softsync a worker never goes on so early; that is a rule of its own.
    needs = fates.waits & (takes.answer < fates.applied) & (takes.answer < end)
    needs &= not contract.reads_its_writes
    kept = fates.kept < end
    in_time = kept & (fates.kept < takes.answer)
    in_time &= shard.message[np.minimum(fates.kept, end - 1)] == takes.message
    findings.expect(
        KEPT, ~needs | in_time, table, np.where(needs, takes.answer, 0),
        lambda i: f"shard {shard.number} let worker {takes.worker[i]} go on, whose gradient of "
        f"clock {takes.clock[i]} was neither applied nor kept",
        lambda i: shard.spots(int(takes.at[i]), int(fates.kept[i]), int(fates.applied[i])),
    )  # fmt: skip
    findings.expect(
        KEPT, ~kept | needs, table, np.where(kept, fates.kept, 0),
        lambda i: f"shard {shard.number} kept clock {takes.clock[i]} of worker "
        f"{takes.worker[i]}, which did not go on before it was applied",
        lambda i: shard.spots(int(takes.at[i]), int(fates.applied[i]), int(takes.answer[i])),
    )  # fmt: skip
    # A kept gradient is in a sum already, which is the first term of its update.
    i = np.flatnonzero(fates.applied < end)
    i = i[np.argsort(fates.applied[i], kind="stable")]
    same = np.diff(table["version"][fates.applied[i]], prepend=0) == 0
    holds = ~(same & kept[i] & ~np.concatenate([[True], kept[i]])[:-1])
    findings.expect(
        KEPT, holds, table, fates.applied[i],
        lambda j: f"shard {shard.number} summed the kept gradient of clock {takes.clock[i[j]]} of "
        f"worker {takes.worker[i[j]]} after one that was not kept",
        lambda j: shard.spots(int(fates.applied[i[j - 1]])),
    )  # fmt: skip


def check_order(contract: Contract, shard: Shard, fates: Fates, findings: Findings) -> None:
    """Check the order of a worker's gradients, and of all that make a round."""
    takes, table = shard.takes, shard.table
    i = np.flatnonzero(fates.applied < len(table))
    at = fates.applied[i]
    same = np.diff(takes.worker[i], prepend=-1) == 0
    findings.expect(
        FIFO, ~same | (np.diff(at, prepend=-1) > 0), table, at,
        lambda j: f"shard {shard.number} applied clock {takes.clock[i[j]]} of worker "
        f"{takes.worker[i[j]]} before its clock {takes.clock[i[j - 1]]}",
        lambda j: shard.spots(int(at[j - 1])),
    )  # fmt: skip
    if not contract.rounds:
        return
    i = i[np.argsort(at, kind="stable")]
    at = fates.applied[i]
    version = table["version"][at]
    findings.expect(
        ROUND, takes.clock[i] == version - 1, table, at,
        lambda j: f"shard {shard.number} made version {version[j]} out of a gradient of round "
        f"{takes.clock[i[j]]}, of worker {takes.worker[i[j]]}",
        lambda j: shard.spots(int(takes.at[i[j]])),
    )  # fmt: skip
    follows = np.diff(version, prepend=0) == 0
    findings.expect(
        ROUND, ~follows | (np.diff(takes.worker[i], prepend=-1) > 0), table, at,
        lambda j: f"shard {shard.number} summed worker {takes.worker[i[j]]} after worker "
        f"{takes.worker[i[j - 1]]} in round {takes.clock[i[j]]}, expected the order of workers",
        lambda j: shard.spots(int(at[j - 1])),
    )  # fmt: skip
