"""How many pushes make an update: enough, all that are there, and as soon as they are enough."""

from __future__ import annotations

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.fates import Fates
from psrt.history.check.findings import Findings
from psrt.history.check.rules import QUORUM
from psrt.history.check.shard import Shard
from psrt.history.check.table import Ints
from psrt.history.events import Kind


def check_quorum(contract: Contract, shard: Shard, fates: Fates, findings: Findings) -> None:
    """Check every update of a shard, and after every message that none is overdue."""
    table = shard.table
    live = contract.workers - np.cumsum(table.are(Kind.LEFT))
    pending = _pending(shard, fates)
    stuck = _stuck(shard, fates)
    _check_updates(contract, shard, live, pending, stuck, findings)
    ends = np.flatnonzero(np.diff(shard.message, append=len(table)) > 0)
    need = contract.quorum(live[ends])
    waits = pending[ends]
    findings.expect(
        QUORUM, np.where(live[ends] > 0, waits < need, waits == 0), table, ends,
        lambda i: f"shard {shard.number} has {waits[i]} gradients and {live[ends[i]]} live "
        f"workers, and makes no update; its mode needs {need[i] if live[ends[i]] else 1}",
    )  # fmt: skip
    # Nobody can be expected to push any more where each has pushed and has no answer.
    findings.expect(
        QUORUM, (stuck[ends] < live[ends]) | (live[ends] == 0), table, ends,
        lambda i: f"shard {shard.number} lets all of its {live[ends[i]]} live workers wait",
    )  # fmt: skip


def _check_updates(
    contract: Contract, shard: Shard, live: Ints, pending: Ints, stuck: Ints, findings: Findings
) -> None:
    table, heads = shard.table, shard.updates
    applied = np.cumsum(table.are(Kind.APPLY) & (table["worker"] >= 0))
    before = np.maximum(heads - 1, 0)  # an update is never the first event
    size = np.diff(np.append(applied[before], applied[-1:])) if len(heads) else heads
    there, alive = pending[before], live[before]
    findings.expect(
        QUORUM, size == there, table, heads,
        lambda i: f"shard {shard.number} made version {i + 1} out of {size[i]} gradients when "
        f"{there[i]} were there",
    )  # fmt: skip
    need = contract.quorum(alive)
    # Those who are left have all come: fewer than a quorum will have to do.
    nobody_comes = (alive == 0) & (size > 0)
    if contract.rounds:
        nobody_comes |= (alive > 0) & (stuck[before] == alive)
    findings.expect(
        QUORUM, ((size >= need) & (size > 0)) | nobody_comes, table, heads,
        lambda i: f"shard {shard.number} made version {i + 1} out of {size[i]} gradients with "
        f"{alive[i]} live workers, expected {need[i]}",
    )  # fmt: skip


def _pending(shard: Shard, fates: Fates) -> Ints:
    """Return how many gradients wait for an update after each event."""
    change = np.zeros(len(shard.table), np.int64)
    change[shard.takes.at[fates.waits]] = 1
    change[shard.table.are(Kind.APPLY) & (shard.table["worker"] >= 0)] = -1
    lost = fates.waits & (fates.dropped < len(shard.table))
    change[fates.dropped[lost]] = -1
    return np.cumsum(change)


def _stuck(shard: Shard, fates: Fates) -> Ints:
    """Return how many live workers wait for an answer that only others can set off."""
    takes, end = shard.takes, len(shard.table)
    change = np.zeros(end, np.int64)
    # What an update must answer: a gradient that is due, or a wish for a version still to come.
    bound = fates.waits | (takes.asks & (takes.clock > shard.version[takes.at]))
    change[takes.at[bound]] = 1
    over = np.minimum(takes.answer, shard.left[takes.worker])[bound]
    change[over[over < end]] = -1
    return np.cumsum(change)
