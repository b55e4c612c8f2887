"""How many gradient steps a worker makes, in which order, and where it is in its data."""

from __future__ import annotations

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import Findings, Spot
from psrt.history.check.rules import STEPS
from psrt.history.check.table import Bools, Ints, Table
from psrt.history.events import Kind


def check_local_steps(contract: Contract, table: Table, findings: Findings) -> None:
    """Check the steps that workers write down by themselves."""
    steps = table.where(Kind.STEP)
    _check_clocks(table, steps, findings)
    check_steps(contract, table, steps, findings)


def _check_clocks(table: Table, steps: Ints, findings: Findings) -> None:
    owner, clock = table["worker"][steps], table["clock"][steps]
    first = np.diff(owner, prepend=-1) != 0
    expected = np.where(first, 0, np.concatenate([[0], clock])[:-1] + 1)
    findings.expect(
        STEPS, clock == expected, table, steps,
        lambda i: f"worker {owner[i]} made step {clock[i]}, expected step {expected[i]}",
        lambda i: () if first[i] else (Spot(table, int(steps[i - 1])),),
    )  # fmt: skip


def check_steps(contract: Contract, table: Table, at: Ints, findings: Findings) -> None:
    """Check that steps are not too many, and that a worker never goes back in its data.

    Args:
        contract: of the run.
        table: events of workers, worker after worker.
        at: the positions of those that are a gradient step each.
        findings: takes what is wrong.
    """
    owner, clock, progress = table["worker"][at], table["clock"][at], table.real("progress")[at]
    holds: Bools = (clock < contract.steps) & (progress < contract.epochs)
    findings.expect(
        STEPS, holds, table, at,
        lambda i: f"worker {owner[i]} makes step {clock[i]} at epoch {progress[i]:g}, after its "
        "end",
    )  # fmt: skip
    same = np.diff(owner, prepend=-1) == 0
    findings.expect(
        STEPS, ~same | (np.diff(progress, prepend=0) >= 0), table, at,
        lambda i: f"worker {owner[i]} goes back from epoch {progress[i - 1]:g} to {progress[i]:g}",
        lambda i: (Spot(table, int(at[i - 1])),),
    )  # fmt: skip
