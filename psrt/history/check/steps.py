"""How many gradient steps a worker makes, in which order, on which part of the data, and its end.

Where psrt cuts the data into batches, the clock of a step says all there is to say about it, and so
does the number of a worker's steps about its end. A problem that brings its own batches may stop
where it likes between two epochs, but not within one whose batches it has counted.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import EventRef, Findings
from psrt.history.check.rules import BATCHES, MEMBERSHIP, STEPS
from psrt.history.check.table import Bools, Floats, Ints, Table, previous, same_as_before
from psrt.history.events import Kind

#: By how much two numbers of epochs may differ that are the same but for rounding.
_HAIR = 1e-9


def check_departures(
    contract: Contract, table: Table, crashed: Collection[int] | None, findings: Findings
) -> Ints:
    """Check that a worker says once that it leaves; return where, by worker.

    One that never does has died, which it can only in virtual time.

    Args:
        contract: of the run.
        table: events of all workers, worker after worker.
        crashed: workers that died, as the run itself says; None where it does not.
        findings: takes what is wrong.

    Returns:
        Positions; the number of events for a worker that died.
    """
    leave = np.full(contract.workers, len(table))
    at = table.where(Kind.LEAVE)
    owner = table["worker"][at]
    leave[owner] = at
    text = "worker {worker} leaves again"
    findings.on(table, at).require(
        MEMBERSHIP, ~same_as_before(owner), text, because=[previous(at, -1)]
    )
    staying = np.flatnonzero(leave == len(table))
    if contract.simulated and contract.shards:
        staying = staying[~np.isin(staying, [*(staying if crashed is None else crashed)])]
    if len(staying):
        worker = int(staying[0])
        last = np.flatnonzero(table["worker"] == worker)[-1:]
        refs = [EventRef(table, int(at)) for at in last]
        findings.missing(MEMBERSHIP, f"worker {worker} never said that it leaves", *refs)
    return leave


def check_silence(table: Table, leave: Ints, attends: Bools, findings: Findings) -> None:
    """Check that a worker that has left writes nothing more, but for what it only attends."""
    of = leave[table["worker"]]
    after = np.flatnonzero((np.arange(len(table)) > of) & ~attends)
    findings.on(table, after).forbid(
        MEMBERSHIP, "worker {worker} goes on after it has left", because=[of[after]]
    )


def check_local_steps(contract: Contract, table: Table, leave: Ints, findings: Findings) -> None:
    """Check the steps that workers count by themselves."""
    steps = table.where(Kind.STEP)
    clock, follows = table["clock"][steps], same_as_before(table["worker"][steps])
    text = "worker {worker} made step {said}, expected step {due}"
    findings.on(table, steps).require_equal(
        STEPS,
        clock,
        np.where(follows, previous(clock, 0) + 1, 0),
        text,
        because=[np.where(follows, previous(steps, -1), -1)],
    )
    check_steps(contract, table, steps, leave, findings)


def check_steps(
    contract: Contract, table: Table, at: Ints, leave: Ints, findings: Findings
) -> None:
    """Check that steps are where the data is, not too many, and not too few.

    Args:
        contract: of the run.
        table: events of workers, worker after worker.
        at: the positions of those that are a gradient step each.
        leave: by worker, position of its LEAVE, the number of events where it died.
        findings: takes what is wrong.
    """
    clock, progress = table["clock"][at], table.real("progress")[at]
    holds: Bools = (clock < contract.steps) & (progress < contract.epochs)
    findings.on(table, at).require(
        STEPS, holds, "worker {worker} makes step {clock} at epoch {progress:g}, after its end"
    )
    follows = same_as_before(table["worker"][at])
    before = previous(progress, 0.0)
    text = "worker {worker} goes back from epoch {before:g} to {progress:g}"
    findings.on(table, at).require(
        STEPS, ~follows | (progress >= before), text, before=before, because=[previous(at, -1)]
    )
    reached = _clocks_at_the_end(contract, table, at, leave)
    if contract.plan is None:
        _check_whole_epochs(contract, table, at, leave, reached, findings)
    else:
        _check_batches(contract, table, at, findings)
        _check_end(contract, table, leave, reached, findings)


def _clocks_at_the_end(contract: Contract, table: Table, at: Ints, leave: Ints) -> Ints:
    """Return the steps that each worker has finished: the clock that it leaves with.

    In modes whose clock at the end counts sums, the number of its steps.
    """
    if contract.shards and not contract.mode.averages:
        return np.append(table["clock"], 0)[leave]
    return np.bincount(table["worker"][at], minlength=contract.workers)


def _check_batches(contract: Contract, table: Table, at: Ints, findings: Findings) -> None:
    """Check every step against the plan that cuts the data."""
    plan = contract.plan
    assert plan is not None
    clock, progress = table["clock"][at], table.real("progress")[at]
    due = plan.progress(clock)
    text = "worker {worker} makes step {clock} at epoch {progress:g}, expected {due:g}"
    findings.on(table, at).require(
        BATCHES, np.abs(progress - due) <= _HAIR * (1 + due), text, due=due
    )
    text = "worker {worker} has {said} samples at step {clock}, expected {due}"
    findings.on(table, at).require_equal(
        BATCHES, table["samples"][at], plan.batch(clock, table["worker"][at]), text
    )


def _check_end(
    contract: Contract, table: Table, leave: Ints, reached: Ints, findings: Findings
) -> None:
    """Check that no worker leaves before it has made all of its steps."""
    gone = np.flatnonzero(leave < len(table))
    due = contract.total_steps
    text = f"worker {{worker}} leaves after {{made}} steps, expected {due:g}"
    findings.on(table, leave[gone]).require(STEPS, reached[gone] == due, text, made=reached[gone])


def _check_whole_epochs(
    contract: Contract, table: Table, at: Ints, leave: Ints, reached: Ints, findings: Findings
) -> None:
    """Check that nobody stops within an epoch whose batches are counted.

    Within such an epoch progress grows by the same share with each step, so two steps say how many
    there are. A worker that goes on to another epoch, or leaves, must have come to the end of it,
    left out what backups have overtaken or not.
    """
    if not len(at):
        return
    owner, clock, progress = table["worker"][at], table["clock"][at], table.real("progress")[at]
    epoch = np.floor(progress)
    same = same_as_before(owner) & (epoch == previous(epoch, -1.0))
    share = np.where(same, progress - previous(progress, 0.0), 0.0)
    share /= np.maximum(np.where(same, clock - previous(clock, 0), 1), 1)
    last = np.append(owner[1:] != owner[:-1], True)
    ends = np.append(~same[1:], True)  # this step is the last one of its epoch
    following = np.where(last, reached[owner], np.append(clock[1:], 0))
    end: Floats = progress + share * (following - clock)
    whole = end >= np.minimum(epoch + 1, contract.epochs) - _HAIR * (1 + progress)
    done = last & ((following >= contract.steps) | (leave[owner] == len(table)))
    text = (
        "worker {worker} makes step {clock} at epoch {progress:g}, the last one of an epoch that "
        "has more"
    )
    findings.on(table, at).require(STEPS, ~ends | (share <= 0) | whole | done, text)
