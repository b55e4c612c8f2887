"""What was saved at the end."""

from __future__ import annotations

import numpy as np

from psrt.history.check.findings import Findings, Spot
from psrt.history.check.rules import FINAL
from psrt.history.check.shard import Shard
from psrt.history.check.table import Table


def check_saved(finals: Table, shard: int, updates: int, last: Spot, findings: Findings) -> None:
    """Check that the last thing that was saved of a shard is its last version.

    Args:
        finals: the FINAL events of the run.
        shard: whose; −1 for the parameters that all workers share.
        updates: versions that it made.
        last: the last event of the rank that saves.
        findings: takes what is wrong.
    """
    at = np.flatnonzero(finals["shard"] == shard)
    what = "the parameters" if shard < 0 else f"shard {shard}"
    if not len(at):
        findings.count(FINAL, 1)
        findings.miss(FINAL, f"{what}, at version {updates}: never saved", last)
        return
    saved = finals["version"][at]
    holds = np.diff(saved, prepend=0) >= 0
    holds[-1] &= saved[-1] == updates
    holds[-1] &= finals.real("time")[at[-1]] >= last.time
    findings.expect(
        FINAL, holds, finals, at,
        lambda i: f"version {saved[i]} of {what} was saved, expected {updates}, at the end",
        lambda _: (last,),
    )  # fmt: skip


def check_shard_saved(finals: Table, shard: Shard, findings: Findings) -> None:
    """Check what was saved of a shard."""
    last = Spot(shard.table, len(shard.table) - 1)
    check_saved(finals, shard.number, len(shard.updates), last, findings)
