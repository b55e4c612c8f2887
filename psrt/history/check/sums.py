"""Modes without servers: every worker is in every sum, in the same order, with the same result."""

from __future__ import annotations

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import (
    CAUSALITY,
    MEMBERSHIP,
    SUMS,
    Findings,
    require_duration,
)
from psrt.history.check.fragments import check_averaging, check_fragments
from psrt.history.check.steps import check_local_steps, check_silence
from psrt.history.check.table import (
    Bools,
    Grid,
    Ints,
    Table,
    rank_in_group,
)
from psrt.history.events import PRESENT, Kind

#: Allowed relative error of float32 times and sums: about 16 roundings of at most 2⁻²⁴ each.
_FLOAT32 = 1e-6


def check_sums(
    contract: Contract, table: Table, leave: Ints, findings: Findings
) -> tuple[Grid, Grid] | None:
    """Check the workers of a mode without servers.

    Returns:
        Positions of their parts and of the ends, both (workers, sums); empty for serial runs, and
        None if the workers' sums do not match.
    """
    check_local_steps(contract, table, leave, findings)
    check_silence(table, leave, table.are(Kind.REDUCE, Kind.REDUCED), findings)
    _check_clock_at_the_end(contract, table, leave, findings)
    if contract.mode.single:
        return np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int64)
    parts = table.where(Kind.REDUCE)
    rounds = _rounds(contract, table, parts, findings)
    # Everything below indexes grids by (worker, sum): sums that do not match would only produce
    # findings about the wrong sums, so the check stops at the first cause.
    if rounds is None or not findings.none:
        return None
    ends = table.where(Kind.REDUCED).reshape(rounds.shape)
    _check_parts(contract, table, rounds, ends, leave, findings)
    _check_results(contract, table, rounds, ends, findings)
    _check_causality(contract, table, rounds, ends, findings)
    most = contract.streams
    require_duration(findings, table, ends.ravel(), rounds.ravel(), most=most)
    trained = parts[table["flag"][parts] & PRESENT > 0]
    if contract.streams:
        check_fragments(contract, table, rounds, ends, leave, findings)
    elif contract.mode.averages:
        check_averaging(contract, table, trained, leave, findings)
    else:
        _check_step_by_step(table, table.where(Kind.STEP), trained, findings)
    return rounds, ends


def count_updates(table: Table, rounds: Grid) -> int:
    """Return the number of updates that the workers of a mode without servers made."""
    if not rounds.size:
        return int((table["samples"][table.where(Kind.STEP)] > 0).sum())
    return int((table.real("weight")[rounds].sum(0) > 0).sum())


def _check_clock_at_the_end(
    contract: Contract, table: Table, leave: Ints, findings: Findings
) -> None:
    """Check that the clock at which a worker leaves is the number of its sums, or of its steps."""
    counted = table.are(Kind.STEP) & (np.arange(len(table)) < leave[table["worker"]])
    if contract.mode.averages:
        counted = table.are(Kind.REDUCE) & (table["flag"] > 0)
    made = np.bincount(table["worker"][counted], minlength=contract.workers)
    text = "worker {worker} leaves at clock {said}, expected {due}"
    findings.on(table, leave).require_equal(MEMBERSHIP, table["clock"][leave], made, text)


def _rounds(contract: Contract, table: Table, parts: Ints, findings: Findings) -> Grid | None:
    """Return each worker's part in each sum, by worker and round; None if they do not match.

    A worker does nothing between its part and the end of the sum, so the two are adjacent. If
    averages arrive later than they start, they are at least in the same order.
    """
    ends, workers = table.where(Kind.REDUCED), contract.workers
    ended, begun = np.isin(parts + 1, ends), np.isin(ends - 1, parts)
    if contract.streams:
        ended, begun = _matched(table, parts, ends, workers)
    text = "worker {worker} began a sum and never ended it"
    findings.on(table, parts).require(SUMS, ended, text)
    text = "worker {worker} ended a sum that it had not begun"
    findings.on(table, ends).require(SUMS, begun, text)
    counts = np.bincount(table["worker"][parts], minlength=workers)
    if counts.min() != counts.max():
        few, many = int(counts.argmin()), int(counts.argmax())
        extra = parts[table["worker"][parts] == many][counts[few] :]
        findings.on(table, extra).forbid(
            SUMS, f"worker {many} took part in {counts[many]} sums, worker {few} in {counts[few]}"
        )
        return None
    return parts.reshape(workers, -1)


def _matched(table: Table, parts: Ints, ends: Ints, workers: int) -> tuple[Bools, Bools]:
    """Return which parts have an end, and which ends have a part before them, by order."""
    mine, its = table["worker"][parts], table["worker"][ends]
    # The k-th end of a worker belongs to its k-th part: sums are never overtaken. An end without
    # a part is clamped to some part, which does not matter, as ``begun`` is False already.
    (rank, starts), (place, _) = rank_in_group(mine, workers), rank_in_group(its, workers)
    begun = place < np.bincount(mine, minlength=workers)[its]
    of = np.minimum(starts[its] + place, len(parts) - 1)
    if len(parts):
        begun &= parts[of] < ends
    return rank < np.bincount(its, minlength=workers)[mine], begun


def _check_parts(
    contract: Contract, table: Table, rounds: Grid, ends: Grid, leave: Ints, findings: Findings
) -> None:
    """Check what each worker contributes, and that it is present until it leaves."""
    at = rounds.ravel()
    owner, samples, clock = table["worker"][at], table["samples"][at], table["clock"][at]
    weight, trains = table.real("weight")[at], at < leave[owner]
    text = "worker {worker} takes part as {what} it left"
    findings.on(table, at).require(
        SUMS,
        (table["flag"][at] > 0) == trains,
        text,
        what=lambda i: "absent, before" if trains[i] else "present, after",
        because=[leave[owner]],
    )
    full = float(contract.batch_size * contract.local_steps)
    # A worker alone needs no mean, so any samples have weight 1. With others, a smaller last batch
    # counts less; the quotient is rounded to float32, as the worker sent it.
    due = (samples > 0) if contract.workers == 1 else samples / full
    number = np.tile(np.arange(rounds.shape[1]), contract.workers)
    # If parameters differ until the end, their mean is over workers, not samples.
    settles = number >= rounds.shape[1] - contract.settles
    right = weight == np.where(settles, 1.0, due).astype(np.float32)
    text = (
        f"worker {{worker}} contributes weight {{weight:g}} for {{samples}} samples, where "
        f"{full:g} samples have weight 1"
    )
    findings.on(table, at).require(SUMS, right & (trains | (samples == 0)), text)
    expected = np.where(
        trains, number if contract.mode.averages else clock, table["clock"][leave[owner]]
    )
    text = "worker {worker} takes part in sum {number} with clock {clock}, expected {due}"
    findings.on(table, at).require(
        SUMS,
        (clock == expected) & (table["clock"][ends.ravel()] == clock),
        text,
        number=number,
        due=expected,
    )


def _check_results(
    contract: Contract, table: Table, rounds: Grid, ends: Grid, findings: Findings
) -> None:
    """Check that all get the same result of each sum, and that all stop after the same one."""
    wide = rounds.shape[1]
    weight, total, rate = (
        table.real(name)[of] for name, of in (("weight", rounds), ("weight", ends), ("rate", ends))
    )
    due = weight.sum(0)
    # W weights are added in float32 in an order that depends on the schedule: W − 1 roundings of at
    # most 2⁻²⁴ of a partial sum, which is at most the total, as no weight is negative. So the bound
    # has room. Among workers there is none: all must have the same bits, and none may find a weight
    # where the sum has none.
    same = np.abs(total - due) <= _FLOAT32 * contract.workers * due
    same &= (total == total[0]) & ((total > 0) == (due > 0))
    same &= (rate == rate[0]) & ((rate > 0) <= (due > 0))
    training = (table["flag"][rounds] > 0).sum(0)
    present: Bools = training > 0
    same &= (table["flag"][ends] > 0) == present
    number = np.tile(np.arange(wide), contract.workers)
    text = (
        "worker {worker} took weight {weight:g}, rate {rate:g} and {rest} training from sum "
        "{number}, of weight {due:g} and {training} training; worker 0 took {total:g} and "
        "{first:g}"
    )
    findings.on(table, ends.ravel()).require(
        SUMS,
        same.ravel(),
        text,
        rest=lambda i: "workers" if table["flag"][ends.flat[i]] else "no worker",
        number=number,
        due=due[number],
        training=training[number],
        total=total[0, number],
        first=rate[0, number],
        because=[rounds[:8].T[number]],
    )
    updates = np.cumsum(due > 0)
    # With several sums in flight, a worker takes those that have arrived before it sends its part.
    taken = np.array([np.searchsorted(*each) for each in zip(ends, rounds, strict=True)], int)
    before = np.concatenate([[0], updates])[taken]
    right = (table["version"][rounds] == before) & (table["version"][ends] == updates)
    text = (
        "worker {worker} moves from version {start} to {version} in sum {number}, expected "
        "{before} to {updates}"
    )
    findings.on(table, ends.ravel()).require(
        SUMS,
        right.ravel(),
        text,
        start=table["version"][rounds].ravel(),
        number=number,
        before=before.ravel(),
        updates=updates[number],
    )
    # All stop together: in the first sum in which no worker trains any more.
    last = np.arange(wide) >= wide - 1 - contract.settles
    last &= contract.workers > 1
    text = f"sum {{number}} of {wide} has {{who}} training; only the last should have no worker"
    findings.on(table, rounds[0]).require(
        SUMS,
        present != last,
        text,
        number=number,
        who=lambda i: "a worker" if present[i] else "no worker",
    )


def _check_causality(
    contract: Contract, table: Table, rounds: Grid, ends: Grid, findings: Findings
) -> None:
    """Check that no worker takes a sum before all have contributed.

    A part is in a sum from the time at which it is recorded as ready. But if no worker contributes,
    only weights are summed, which were sent before. And if sums overlap with computation, the last
    bucket may be in flight before that. In virtual time both must start after the step itself; by
    real clocks nothing is known of them.
    """
    if not contract.one_clock:
        return
    times, seconds = table.real("time"), table.real("seconds")
    ready, step = times[rounds], np.maximum(rounds - 1, 0)
    before = contract.ahead | (table.real("weight")[rounds].sum(0) == 0)
    if contract.simulated:
        own = (table["kind"][step] == Kind.STEP) & (table["flag"][rounds] > 0)
        own &= not contract.mode.averages
        # When the step began, as early as rounding allows: its end minus its duration, a float32.
        begun = times[step] - seconds[step] * (1 + _FLOAT32) - _FLOAT32
        ready = np.where(own & before, begun, ready)
    else:
        ready = np.where(before, -np.inf, ready)
    # It suffices to compare with the last contribution: a sum taken after that one is after all.
    last = ready.argmax(0)
    number = np.tile(np.arange(rounds.shape[1]), contract.workers)
    text = "worker {worker} took sum {number} before worker {last} had contributed"
    findings.on(table, ends.ravel()).require(
        CAUSALITY,
        (times[ends] >= ready.max(0)).ravel(),
        text,
        number=number,
        last=last[number],
        because=[rounds[last, np.arange(len(last))][number]],
    )


def _check_step_by_step(table: Table, steps: Ints, trained: Ints, findings: Findings) -> None:
    """Check that each step is shared immediately, and nothing else is."""
    text = "worker {worker} did not share its step {clock}"
    findings.on(table, steps).require(SUMS, np.isin(steps + 1, trained, assume_unique=True), text)
    # A step and its part are adjacent events; clamped at 0, a part that comes first fails.
    step = np.maximum(trained - 1, 0)
    holds = (table["kind"][step] == Kind.STEP) & (table["worker"][step] == table["worker"][trained])
    for name in ("clock", "samples"):
        holds &= table[name][step] == table[name][trained]
    holds &= table.real("progress")[step] == table.real("progress")[trained]
    text = "worker {worker} shares clock {clock}, which is not its last step"
    findings.on(table, trained).require(SUMS, holds, text, because=[step])
