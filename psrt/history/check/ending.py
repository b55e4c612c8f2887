"""What was saved at the end."""

from __future__ import annotations

import numpy as np

from psrt.history.check.findings import Findings, Spot
from psrt.history.check.rules import CHECKPOINT
from psrt.history.check.shard import Shard
from psrt.history.check.table import Table


def check_saved(
    checkpoints: Table, shard: int, updates: int, last: Spot, findings: Findings
) -> None:
    """Check that the last thing that was saved of a shard is its last version.

    Args:
        checkpoints: of the run.
        shard: whose; −1 for the parameters that all workers share.
        updates: versions that it made.
        last: the last event of the rank that saves.
        findings: takes what is wrong.
    """
    at = np.flatnonzero(checkpoints["shard"] == shard)
    what = "the parameters" if shard < 0 else f"shard {shard}"
    if not len(at):
        findings.count(CHECKPOINT, 1)
        findings.miss(CHECKPOINT, f"{what}, at version {updates}: never saved", last)
        return
    saved = checkpoints["version"][at]
    holds = np.diff(saved, prepend=0) >= 0
    holds[-1] &= saved[-1] == updates
    holds[-1] &= checkpoints.real("time")[at[-1]] >= last.time
    findings.expect(
        CHECKPOINT, holds, checkpoints, at,
        lambda i: f"version {saved[i]} of {what} was saved, expected {updates}, at the end",
        lambda _: (last,),
    )  # fmt: skip


def check_shard_saved(checkpoints: Table, shard: Shard, findings: Findings) -> None:
    """Check the checkpoints of a shard."""
    last = Spot(shard.table, len(shard.table) - 1)
    check_saved(checkpoints, shard.number, len(shard.updates), last, findings)
