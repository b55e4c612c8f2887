"""When local SGD averages, and what of: the steps since the average before.

Source: Stich, ICLR 2019 (arXiv:1805.09767); post-local, Lin et al., ICLR 2020 (arXiv:1808.07217).
"""

from __future__ import annotations

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import Findings, Spot
from psrt.history.check.rules import AVERAGING
from psrt.history.check.table import Bools, Floats, Ints, Table, rank_in_group
from psrt.history.events import Kind


def check_averaging(
    contract: Contract, table: Table, averages: Ints, leave: Ints, findings: Findings
) -> None:
    """Check every average against the steps before it.

    Args:
        contract: of the run.
        table: events of all workers, worker after worker; steps are counted right.
        averages: positions of the first event of each average, in ascending order.
        leave: by worker, position of its LEAVE, the number of events where it died.
        findings: takes what is wrong.
    """
    steps = table.where(Kind.STEP)
    owner, progress = table["worker"][steps], table.real("progress")[steps]
    last = np.diff(owner, append=-1) != 0
    due = _due(contract, owner, progress) | last
    mine = table["worker"][averages]
    of = np.searchsorted(steps, averages) - 1  # the step before each
    has_step = (of >= 0) & (owner[of] == mine) if len(steps) else np.zeros(len(averages), bool)
    findings.expect(
        AVERAGING, has_step, table, averages,
        lambda i: f"worker {mine[i]} averages before it has made a step",
    )  # fmt: skip
    made = np.bincount(of[has_step], minlength=len(steps))
    died = last & (leave[owner] == len(table))
    findings.expect(
        AVERAGING, (made == due) | (died & (made == 0)), table, steps,
        lambda i: f"worker {owner[i]} averaged {made[i]} times after step "
        f"{table['clock'][steps[i]]} at epoch {progress[i]:g}, expected {int(due[i])}; the period "
        f"is {contract.local_steps}, and 1 before epoch {contract.post_local_epoch:g}",
        lambda i: tuple(Spot(table, int(at)) for at in averages[has_step & (of == i)]),
    )  # fmt: skip
    if findings.first is None:
        _check_terms(table, steps, averages, of, findings)


def _due(contract: Contract, owner: Ints, progress: Floats) -> Bools:
    """Tell after which steps an average is due, but for what is left over at the end.

    Progress never goes back, so the steps with a period of 1 come first; from there on it is every
    H-th step.
    """
    rank, starts = rank_in_group(owner, int(owner.max(initial=-1)) + 1)
    early = progress < contract.post_local_epoch
    before = np.concatenate([[0], np.cumsum(early)])
    stops = np.append(starts[1:], len(owner))
    early_steps = (before[stops] - before[starts])[owner]
    since = rank - early_steps + 1
    due: Bools = early | ((since > 0) & (since % contract.local_steps == 0))
    return due


def _check_terms(table: Table, steps: Ints, averages: Ints, of: Ints, findings: Findings) -> None:
    """Check that an average weighs a worker by its samples since the one before."""
    counted = np.concatenate([[0], np.cumsum(table["samples"][steps])])
    total = counted[of + 1]
    again = np.diff(table["worker"][averages], prepend=-1) == 0
    start = counted[_first_step(table, steps)[of]]
    before = np.where(again, np.concatenate([[0], total])[:-1], start)
    since = total - before
    said = table["samples"][averages]
    right = said == since
    right &= table.real("progress")[averages] == table.real("progress")[steps[of]]
    findings.expect(
        AVERAGING, right, table, averages,
        lambda i: f"worker {table['worker'][averages[i]]} averages as for {said[i]} samples at "
        f"epoch {table.real('progress')[averages[i]]:g}, it has had {since[i]} since its last "
        f"average and was at {table.real('progress')[steps[of[i]]]:g}",
        lambda i: (Spot(table, int(steps[of[i]])),),
    )  # fmt: skip


def _first_step(table: Table, steps: Ints) -> Ints:
    """Return for each step which one is its worker's first."""
    owner = table["worker"][steps]
    begins = np.diff(owner, prepend=-1) != 0
    return np.maximum.accumulate(np.where(begins, np.arange(len(steps)), 0))
