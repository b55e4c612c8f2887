"""Modes without servers: every worker in every sum, the same order, the same result."""

from __future__ import annotations

import numpy as np

from psrt.history.check.averaging import check_averaging
from psrt.history.check.contract import Contract
from psrt.history.check.findings import Findings, Spot
from psrt.history.check.rules import MEMBERSHIP, REDUCES
from psrt.history.check.steps import check_local_steps
from psrt.history.check.table import Bools, Ints, Table
from psrt.history.check.workers import Grid
from psrt.history.events import PRESENT, Kind


def check_alone(contract: Contract, table: Table, leave: Ints, findings: Findings) -> int:
    """Check the workers of a mode without servers; return how many updates they made."""
    steps = table.where(Kind.STEP)
    check_local_steps(contract, table, findings)
    if contract.mode.single:
        _check_end(contract, table, leave, np.zeros(len(table), bool), findings)
        return int((table["samples"][steps] > 0).sum())
    parts = table.where(Kind.REDUCE)
    present = table["flag"] & PRESENT > 0
    _check_end(contract, table, leave, table.are(Kind.REDUCE, Kind.REDUCED), findings)
    rounds = _rounds(contract, table, parts, findings)
    if rounds is None or findings.first is not None:
        return 0
    _check_parts(contract, table, rounds, leave, findings)
    updates = _check_results(contract, table, rounds, findings)
    trained = parts[present[parts]]
    if contract.mode.sums_gradients:
        _check_step_by_step(table, steps, trained, findings)
    else:
        check_averaging(contract, table, trained, leave, findings)
    return updates


def _check_end(
    contract: Contract, table: Table, leave: Ints, attends: Bools, findings: Findings
) -> None:
    """Check that a worker that has left only attends, and how far it had come."""
    after = np.arange(len(table)) > leave[table["worker"]]
    at = np.flatnonzero(after & ~attends)
    findings.expect(
        MEMBERSHIP, np.zeros(len(at), bool), table, at,
        lambda i: f"worker {table['worker'][at[i]]} goes on after it has left",
        lambda i: (Spot(table, int(leave[table["worker"][at[i]]])),),
    )  # fmt: skip
    counted = table.are(Kind.REDUCE) & (table["flag"] > 0)
    if not contract.mode.averages:
        counted = table.are(Kind.STEP) & ~after
    made = np.bincount(table["worker"][counted], minlength=contract.workers)
    gone = np.flatnonzero(leave < len(table))
    said = table["clock"][leave[gone]]
    findings.expect(
        MEMBERSHIP, said == made[gone], table, leave[gone],
        lambda i: f"worker {gone[i]} leaves at clock {said[i]}, expected {made[gone[i]]}",
    )  # fmt: skip


def _rounds(contract: Contract, table: Table, parts: Ints, findings: Findings) -> Grid | None:
    """Return each worker's part in each sum, by worker and round; None if they do not match."""
    ends, workers = table.where(Kind.REDUCED), contract.workers
    paired = np.isin(parts + 1, ends, assume_unique=True)
    findings.expect(
        REDUCES, paired, table, parts,
        lambda i: f"worker {table['worker'][parts[i]]} began a sum and has no end of it",
    )  # fmt: skip
    begun = np.isin(ends - 1, parts, assume_unique=True)
    findings.expect(
        REDUCES, begun, table, ends,
        lambda i: f"worker {table['worker'][ends[i]]} ended a sum that it had not begun",
    )  # fmt: skip
    counts = np.bincount(table["worker"][parts], minlength=workers)
    if counts.min() != counts.max():
        few, many = int(counts.argmin()), int(counts.argmax())
        extra = parts[table["worker"][parts] == many][counts[few] :]
        findings.expect(
            REDUCES, np.zeros(len(extra), bool), table, extra,
            lambda _: f"worker {many} took part in {counts[many]} sums, worker {few} in "
            f"{counts[few]}",
        )  # fmt: skip
        return None
    return parts.reshape(workers, -1)


def _check_parts(
    contract: Contract, table: Table, rounds: Grid, leave: Ints, findings: Findings
) -> None:
    """Check what each worker brings, and that it is present until it leaves."""
    at = rounds.ravel()
    owner, samples = table["worker"][at], table["samples"][at]
    weight, clock = table.real("weight")[at], table["clock"][at]
    trains = at < leave[owner]
    findings.expect(
        REDUCES, (table["flag"][at] > 0) == trains, table, at,
        lambda i: f"worker {owner[i]} takes part as {'absent' if trains[i] else 'present'}, "
        f"{'before' if trains[i] else 'after'} it has left",
        lambda i: (Spot(table, int(leave[owner[i]])),) if leave[owner[i]] < len(table) else (),
    )  # fmt: skip
    full = contract.batch_size * contract.local_steps
    expected = (samples > 0) if contract.workers == 1 else samples / full
    right = weight == np.asarray(expected).astype(np.float32)
    right &= trains | (samples == 0)
    findings.expect(
        REDUCES, right, table, at,
        lambda i: f"worker {owner[i]} brings weight {weight[i]:g} for {samples[i]} samples, of "
        f"which {full} weigh 1",
    )  # fmt: skip
    number = np.tile(np.arange(rounds.shape[1]), contract.workers)
    local = contract.mode.averages
    final = table["clock"][np.minimum(leave[owner], len(table) - 1)]
    due = np.where(trains, number if local else clock, final)
    findings.expect(
        REDUCES, (clock == due) & (table["clock"][at + 1] == clock), table, at,
        lambda i: f"worker {owner[i]} takes part in sum {number[i]} with clock {clock[i]}, "
        f"expected {due[i]}",
    )  # fmt: skip


def _check_results(contract: Contract, table: Table, rounds: Grid, findings: Findings) -> int:
    """Check that all take the same from each sum; return how many updates there were."""
    ends = rounds + 1
    weight, total = table.real("weight")[rounds], table.real("weight")[ends]
    due = weight.sum(0)
    tolerance = 1e-6 * contract.workers * due
    same = (np.abs(total - due) <= tolerance) & (total == total[0]) & ((total > 0) == (due > 0))
    rate = table.real("rate")[ends]
    same &= (rate == rate[0]) & ((rate > 0) <= (due > 0))
    present: Bools = np.any(table["flag"][rounds] > 0, axis=0)
    same &= (table["flag"][ends] > 0) == present
    at, wide = ends.ravel(), rounds.shape[1]
    who = (table["flag"][rounds] > 0).sum(0)

    def say(i: int) -> str:
        of = i % wide
        rest = "somebody" if table["flag"][at[i]] else "nobody"
        return (
            f"worker {i // wide} took weight {total.flat[i]:g}, rate {rate.flat[i]:g} and {rest} "
            f"training from sum {of}, of weight {due[of]:g} and {who[of]} who train; worker 0 took "
            f"{total[0, of]:g} and {rate[0, of]:g}"
        )

    findings.expect(
        REDUCES, same.ravel(), table, at, say,
        lambda i: tuple(Spot(table, int(j)) for j in rounds[:8, i % wide]),
    )  # fmt: skip
    updates = np.cumsum(due > 0)
    before = np.concatenate([[0], updates])[:-1]
    right = (table["version"][rounds] == before) & (table["version"][ends] == updates)
    findings.expect(
        REDUCES, right.ravel(), table, at,
        lambda i: f"worker {i // wide} goes from version {table['version'][rounds.flat[i]]} to "
        f"{table['version'][at[i]]} in sum {i % wide}, expected {before[i % wide]} to "
        f"{updates[i % wide]}",
    )  # fmt: skip
    # All stop together: in the first sum in which nobody trains any more.
    going = present[:-1] if contract.workers > 1 else present
    last = present[-1:] if contract.workers > 1 else np.zeros(0, bool)
    findings.expect(
        REDUCES, np.concatenate([going, ~last]), table, rounds[0],
        lambda i: f"sum {i} of {wide} has {'somebody' if present[i] else 'nobody'} who trains; "
        "the last one only should have nobody",
    )  # fmt: skip
    return int(updates[-1]) if wide else 0


def _check_step_by_step(table: Table, steps: Ints, trained: Ints, findings: Findings) -> None:
    """Check that each step is shared at once, and nothing else is."""
    of = np.isin(steps + 1, trained, assume_unique=True)
    findings.expect(
        REDUCES, of, table, steps,
        lambda i: f"worker {table['worker'][steps[i]]} did not share its step "
        f"{table['clock'][steps[i]]}",
    )  # fmt: skip
    step = np.maximum(trained - 1, 0)
    holds = (table["kind"][step] == Kind.STEP) & (table["worker"][step] == table["worker"][trained])
    for name in ("clock", "samples"):
        holds &= table[name][step] == table[name][trained]
    holds &= table.real("progress")[step] == table.real("progress")[trained]
    findings.expect(
        REDUCES, holds, table, trained,
        lambda i: f"worker {table['worker'][trained[i]]} shares clock "
        f"{table['clock'][trained[i]]}, which is not the step that it has made",
        lambda i: (Spot(table, int(step[i])),),
    )  # fmt: skip
