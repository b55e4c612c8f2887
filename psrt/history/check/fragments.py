"""Averages and their period; for fragments, their turn, their layers, and their arrival.

Fragment f of F is due in step t of a period of H if t ≡ ⌈(f + 1)·H/F⌉ (mod H), a formula of this
checker's own. The layers of a fragment, and the bytes that an all-reduce sends of it, are taken
from the code. Sources: local SGD, Stich, ICLR 2019 (1805.09767); post-local, Lin et al., ICLR 2020
(1808.07217); fragments, Douillard et al. 2025 (2501.18512); eager, Kale et al. 2025 (2502.12996).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from psrt.collective.registry import ALGORITHMS
from psrt.config.names import SEQUENTIAL
from psrt.core.arrays import ITEMSIZE
from psrt.core.errors import ConfigError
from psrt.core.partition import Span, fragments_of
from psrt.history.check.contract import Contract
from psrt.history.check.findings import AVERAGING, FRAGMENTS, Findings, require_duration
from psrt.history.check.steps import asks
from psrt.history.check.table import Bools, Grid, Ints, Table
from psrt.history.events import Kind
from psrt.history.header import Header
from psrt.history.kinds import Reduce

#: The number of control values that are summed with each fragment.
_CONTROLS = 3


def fragment_spans(contract: Contract, header: Header) -> Sequence[Sequence[Span]]:
    """Return the spans of each fragment.

    Raises:
        ConfigError: if the header's layers cannot be split into its number of fragments.
    """
    if contract.fragments == 1:
        return [[Span(0, header.n)]]
    layers = [Span(*it) for it in header.layers]
    ends = [0, *(it.stop for it in layers)]
    if ends != [*(it.start for it in layers), header.n]:
        raise ConfigError(
            f"the history's header has {len(layers)} layers that do not make up {header.n} "
            "parameters"
        )
    strided = header.mode.fragment_order != SEQUENTIAL
    return fragments_of(layers, contract.fragments, strided=strided)


def fragment_sizes(contract: Contract, header: Header) -> list[int]:
    """Return the number of elements of each fragment; see ``fragment_spans``."""
    return [sum(it.size for it in fragment) for fragment in fragment_spans(contract, header)]


def streamed_bytes(
    contract: Contract, header: Header, table: Table, frame_bytes: int
) -> int | None:
    """Return the bytes that all workers of a streaming run sent; None if unknown.

    Args:
        contract: of the run.
        header: of its history.
        table: events of all workers; sums are matched.
        frame_bytes: of a codec's frames.
    """
    algorithms = header.algorithm, header.control_algorithm
    if contract.crashes or not all(it in ALGORITHMS for it in algorithms):
        return None
    sizes = np.array(fragment_sizes(contract, header), np.int64)
    ends = table.where(Kind.REDUCED)
    ends = ends[table["worker"][ends] == 0]
    first = len(ends) - contract.settles if contract.sends_frames else 0
    dense = ends[first:]  # only the settling sums do not travel in frames
    summed = sizes[table[Reduce.fragment][dense[table.real("weight")[dense] > 0]]].tolist()
    # The sums that settle the differences of eager workers have no control values.
    controls = [_CONTROLS] * (len(ends) - contract.settles)
    sent = sum(
        number * _sent(str(name), contract.workers, n)
        for name, vectors in zip(algorithms, (summed, controls), strict=True)
        for n, number in Counter(vectors).items()
    )
    return frame_bytes + ITEMSIZE * sent


@functools.cache
def _sent(algorithm: str, ranks: int, n: int) -> int:
    """Return the elements that all ranks send in an all-reduce of n.

    >>> [_sent(name, 6, 1) for name in ("ring", "naive", "butterfly")]
    [10, 30, 12]
    """
    plan = ALGORITHMS[algorithm].plan(ranks, n)
    to_others = (it for rank, steps in enumerate(plan) for it in steps if it.send_to != rank)
    return sum(it.send.size for it in to_others if it.send_to is not None)


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
    owned = (_by_worker(contract, table, it) for it in (steps, averages))
    for mine, parts, died in zip(*owned, leave == len(table), strict=True):
        _check_period(contract, table, mine, parts, len(parts), findings, died=bool(died))


def _by_worker(contract: Contract, table: Table, at: Ints) -> list[Ints]:
    """Return positions of events of all workers, worker after worker, by worker."""
    count = np.bincount(table["worker"][at], minlength=contract.workers)
    return np.split(at, np.cumsum(count)[:-1])


def check_fragments(
    contract: Contract, table: Table, rounds: Grid, ends: Grid, leave: Ints, findings: Findings
) -> None:
    """Check every fragment that a worker sends against the steps before it and until its arrival.

    Args:
        contract: of the run.
        table: events of all workers, worker after worker; steps and sums are matched.
        rounds: positions of what was sent, by worker and sum.
        ends: positions of its arrival.
        leave: by worker, position of its LEAVE.
        findings: takes what is wrong.
    """
    steps = _by_worker(contract, table, table.where(Kind.STEP))
    for mine, parts, arrivals, end in zip(steps, rounds, ends, leave, strict=True):
        _check_turns(contract, table, parts, arrivals, findings)
        present = int((parts < end).sum())
        due = _check_period(contract, table, mine, parts, present, findings)
        if findings.none:
            _check_arrivals(contract, table, mine, parts, arrivals, due, present, findings)
    if contract.simulated and findings.none:
        # A worker waits from its last event on, unless it has waited again after that.
        waits = ends[table.real("weight")[rounds] > 0]
        waits = waits[~asks(table)[waits - 1]]
        require_duration(findings, table, waits, waits - 1, most=not contract.exact_times)


def _settles(contract: Contract, parts: Ints) -> Bools:
    """Return which sums settle the differences between eager workers."""
    found: Bools = np.arange(len(parts)) >= len(parts) - contract.settles
    return found


def _check_turns(
    contract: Contract, table: Table, parts: Ints, ends: Ints, findings: Findings
) -> None:
    """Check that fragments take turns, both when a worker sends and when it takes them."""
    number, settles = np.arange(len(parts)), _settles(contract, parts)
    # The settling sums start with the first fragment again.
    turn = np.where(settles, number - (len(parts) - contract.settles), number) % contract.fragments
    for what, at in (("sent", parts), ("took", ends)):
        text = f"worker {{worker}} {what} fragment {{said}} as its sum {{number}}, expected {{due}}"
        findings.on(table, at).require_equal(
            FRAGMENTS, table[Reduce.fragment][at], turn, text, number=number
        )


def _check_period(
    contract: Contract,
    table: Table,
    steps: Ints,
    parts: Ints,
    present: int,
    findings: Findings,
    *,
    died: bool = False,
) -> Ints:
    """Check after which steps a worker averages, weighted by its samples since the last average.

    Args:
        contract: of the run.
        table: of its events.
        steps: positions of its steps.
        parts: of its parts of averages, in order.
        present: the number of these before it left.
        findings: takes what is wrong.
        died: whether it died, possibly before an average after its last step.

    Returns:
        By part, the number of steps after which it is due.
    """
    made = len(steps)
    early = int((table.real("progress")[steps] < contract.post_local_epoch).sum())
    after = _due_after(contract, made, early)
    due = np.full(len(parts), made)
    due[: min(present, len(after))] = after[: min(present, len(after))]
    text = (
        "worker {worker} averages after {said} steps, expected after {due}; the period is "
        f"{contract.local_steps}, and 1 before epoch {contract.post_local_epoch:g}"
    )
    findings.on(table, parts).require_equal(AVERAGING, np.searchsorted(steps, parts), due, text)
    if not findings.none:
        return due
    text = "worker {worker} averages although nothing is due after its last average"
    findings.on(table, parts[len(after) : present]).forbid(AVERAGING, text)
    missing = after[present:]
    missing = steps[missing[missing < made + (not died)] - 1]
    text = "worker {worker} did not average after step {clock} at epoch {progress:g}"
    findings.on(table, missing).forbid(AVERAGING, text)
    if not findings.none:
        return due
    count, trains = contract.fragments, np.arange(len(parts)) < present
    had = np.concatenate([[0], np.cumsum(table["samples"][steps])])[due]
    before = np.concatenate([np.zeros(count, np.int64), had])[: len(had)]
    since = np.where(trains, had - before, 0)
    was = np.where(trains, np.concatenate([[0.0], table.real("progress")[steps]])[due], 0.0)
    text = (
        "worker {worker} averages with {samples} samples at epoch {progress:g}, but has had "
        "{since} since its last average of the same and was at {was:g}"
    )
    findings.on(table, parts).require(
        AVERAGING,
        (table["samples"][parts] == since) & (table.real("progress")[parts] == was),
        text,
        since=since,
        was=was,
    )
    return due


def _due_after(contract: Contract, made: int, early: int) -> Ints:
    """Return by fragment, in turn, the number of steps after which it is averaged.

    Args:
        contract: of the run.
        made: steps of the worker.
        early: the steps with a period of 1.
    """
    count, period = contract.fragments, contract.local_steps
    due = [-(-(f + 1) * period // count) for f in range(count)]
    step = np.arange(1, made - early + 1)
    late = early + step[np.isin((step - 1) % period + 1, due)]
    after = np.concatenate([np.repeat(np.arange(1, early + 1), count), late])
    # At the end, all fragments that had a step since they were sent.
    last = int((after == made).sum()) if made else count
    return np.concatenate([after, np.full(count - last, made)])


def _check_arrivals(
    contract: Contract,
    table: Table,
    steps: Ints,
    parts: Ints,
    ends: Ints,
    due: Ints,
    present: int,
    findings: Findings,
) -> None:
    """Check how many steps after it was sent each fragment arrives."""
    count, made, number = contract.fragments, len(steps), np.arange(len(parts))
    early = int((table.real("progress")[steps] < contract.post_local_epoch).sum())
    passed = np.searchsorted(steps, ends) - np.searchsorted(steps, parts)
    late = (number >= early * count) & (number < present)
    expected = _staleness(contract, due, late, made)
    text = (
        "worker {worker} took fragment {fragment} {passed} steps after it had sent it and says "
        "{tau},"
        " expected {due}"
    )
    findings.on(table, ends).require(
        FRAGMENTS,
        (table["tau"][ends] == expected) & (passed == expected),
        text,
        passed=passed,
        due=expected,
        because=[parts],
    )
    text = "worker {worker} sent fragment {fragment} again before it arrived"
    before = ends[: max(len(parts) - count, 0)]
    findings.on(table, parts[count:]).require(
        FRAGMENTS, parts[count:] > before, text, because=[before]
    )
    if contract.eager:
        # Sums sent before are taken together with the next; all of them before settling.
        begun, settles = len(parts) - contract.settles, _settles(contract, parts)
        taken = np.where(settles, begun, np.maximum(number - count + 1, 0))
        text = (
            "worker {worker} had taken {said} sums when it sent fragment {fragment}, expected {due}"
        )
        findings.on(table, parts).require_equal(
            FRAGMENTS, np.searchsorted(ends, parts), taken, text
        )


def _staleness(contract: Contract, due: Ints, late: Bools, made: int) -> Ints:
    """Return by sum the number of steps that a worker makes until it takes what it sent."""
    takes = np.where(late, np.minimum(due + contract.delay, made), due)
    if contract.eager:  # when it sends the same fragment next
        takes = np.full(len(due), made)
        takes[: max(len(due) - contract.fragments, 0)] = due[contract.fragments :]
    return takes - due
