"""What goes into a merge and comes out of it: digests, weights, sums and norms.

A history has no parameters. Digests show that a shard merged the Δ that its learner pushed, that a
learner's new anchor is the version with which it was answered, and that each merge starts from the
version of the one before. The mean of vectors has the weighted mean of their signed sums, up to
rounding; and no merge is longer than its parts allow: the weighted mean of their norms of a mean or
a radial merge, which has just that norm where a shard is one tensor. Whether a median or a trimmed
mean lies between the extremes of each element, norms do not show.

A push with a codec counts as what its frame decodes to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.config.names import EQUAL, QUALITY
from psrt.history.check.alternation import Shard
from psrt.history.check.contract import Contract
from psrt.history.check.elastic import match, paired
from psrt.history.check.findings import MERGED, Findings
from psrt.history.check.norms import LARGEST, MORE, ROUNDING, TINY, are_near, may_be_norms
from psrt.history.check.steps import rate_of
from psrt.history.check.table import Floats, Ints, Table, find, previous, repeats, same_as_before
from psrt.history.events import LATE, Kind, parts
from psrt.history.header import Header
from psrt.history.kinds import Centre, Draw, Force
from psrt.optim.table import DelayedNesterov, OuterNesterov, OuterPlain, OuterRow, Radial

#: Relative rounding of a weight, and of a norm.
_OF_WEIGHT, _OF_NORM = 1e-5, 1e-4
#: Relative rounding of the same sum in another order, and as float32.
_OF_SUM = 1e-6
#: The length of a mean of directions that may be rounding, twice that of ``psrt.optim.merge``.
_CANCEL = 2e-6
#: Roundings of an element in an outer step, all told, against the size of its parts.
_STEPS = 16
#: How a text begins.
_WHO = "shard {shard} merged clock {clock} of worker {worker} "


def check_merge_sums(
    contract: Contract, header: Header, workers: Table, shards: Sequence[Table],
    found: Sequence[Shard], findings: Findings,
) -> None:  # fmt: skip
    """Check every merge, and what learners pushed to it and took of it.

    Args:
        contract: of the run.
        header: of its history.
        workers: events of all workers, worker after worker, without those of a codec.
        shards: likewise events of each shard.
        found: without those of merges.
        findings: takes what is wrong.
    """
    _check_places(contract, workers, findings)
    for number, table in enumerate(shards):
        applied = table.where(Kind.APPLY)
        applied = applied[(table["worker"][applied] >= 0) & (table["samples"][applied] > 0)]
        forces, centres = table.where(Kind.FORCE), table.where(Kind.CENTRE)
        if not match(table, applied, forces, centres, findings, rule=MERGED):
            continue
        of = np.searchsorted(centres, forces)
        start, stop = header.spans[number]
        _check_versions(contract, table, centres, findings)
        _check_weights(contract, header, workers, table, applied, forces, of, findings)
        _check_sums(contract, header, number, table, forces, centres, of, findings)
        _check_moves(contract, table, centres, stop - start, findings)
        if findings.none:
            _check_both_ends(contract, workers, table, found[number], stop - start, findings)


def _check_places(contract: Contract, table: Table, findings: Findings) -> None:
    """Check that a learner takes an anchor when it has read the answers of a fragment."""
    at, place = table.where(Kind.DRAW), np.zeros(contract.shards, np.int64)
    size = np.zeros(contract.shards, np.int64)
    for group in contract.together():
        place[group], size[group] = np.arange(len(group)), len(group)
    number = place[table["shard"][at]]
    read = at - number - 1
    holds = (read >= 0) & (table["kind"][read] == Kind.READ)
    holds &= table["clock"][read] == table["clock"][at] + 1
    holds &= (number == 0) | (table["kind"][at - 1] == Kind.DRAW)
    holds &= table["worker"][read] == table["worker"][at]
    holds &= place[table["shard"][read]] == size[table["shard"][at]] - 1
    for name in (Draw.apart, Draw.moved, Draw.most):
        holds &= table.real(name)[at] == 0
    text = (
        "worker {worker} took an anchor of shard {shard} after clock {clock}, expected after the "
        "answers of all shards to its push, shard by shard"
    )
    findings.on(table, at).require(MERGED, holds, text, because=[np.maximum(read, 0)])


def _check_versions(contract: Contract, table: Table, centres: Ints, findings: Findings) -> None:
    """Check that each merge starts from the version that the one before has made."""
    before, made = parts(table[Centre.digests][centres])
    text = "shard {shard} made version {version} from another version than its last one"
    holds = made == np.where(np.arange(len(made)) > 0, before, 0)
    holds |= (made == 0) & bool(contract.resumed)
    findings.on(table, centres).require(MERGED, holds, text, because=[previous(centres, -1)])


def _check_weights(
    contract: Contract, header: Header, workers: Table, table: Table, applied: Ints, forces: Ints,
    of: Ints, findings: Findings,
) -> None:  # fmt: skip
    """Check the weight of each Δ, a share of those of its merge times its staleness factor."""
    mode = contract.mode
    samples = table["samples"][applied].astype(np.float64)
    own = samples
    if mode.weights == EQUAL:
        own = np.ones(len(samples))
    elif mode.weights == QUALITY:
        own = samples**2 / _steps(workers, table, applied)
    share = own / np.bincount(of, own)[of] if len(of) else own
    rate = 1.0 if mode.outer is None else mode.outer.lr
    due = share * table.real("rate")[applied] / rate
    said = table.real(Force.weight)[forces]
    holds = (np.abs(said - due) <= _OF_WEIGHT * due) | np.isnan(due)
    text = _WHO + "with weight {said:g}, expected {due:g}"
    findings.on(table, forces).require(MERGED, holds, text, said=said, due=due)


def _steps(workers: Table, table: Table, applied: Ints) -> Floats:
    """Return by push the steps in it: those of its worker since its last push to the same shard."""
    if not len(applied):
        return np.zeros(0)
    pushes = workers.where(Kind.PUSH)
    pushes = pushes[workers["shard"][pushes] == table["shard"][applied[0]]]
    owner, total = workers["worker"], np.cumsum(workers.are(Kind.STEP))
    first = np.searchsorted(owner, owner[pushes])
    begins = total[first] - workers.are(Kind.STEP)[first]
    before = np.where(same_as_before(owner[pushes]), previous(total[pushes], 0), begins)
    steps = np.append(total[pushes] - before, np.nan)
    wide = 1 + int(max(workers["clock"].max(initial=0), table["clock"].max(initial=0)))
    keys = owner[pushes] * wide + workers["clock"][pushes]
    found: Floats = steps[find(keys, table["worker"][applied] * wide + table["clock"][applied])]
    return found


def _check_sums(
    contract: Contract, header: Header, number: int, table: Table, forces: Ints, centres: Ints,
    of: Ints, findings: Findings,
) -> None:  # fmt: skip
    """Check what comes of the vectors of a merge."""
    start, stop = header.spans[number]
    n, merge = stop - start, contract.mode.merge
    root, count = np.sqrt(n), len(centres)
    drew, norm, weight = (table.real(it)[forces] for it in (Force.force, Force.norm, Force.weight))
    holds = may_be_norms(drew, root * norm, n)
    text = _WHO + "with a Δ that adds up to {force:.9g}, which does not fit a norm of {norm:g}"
    findings.on(table, forces).require(MERGED, holds, text, counts=False)
    total, length = (table.real(it)[centres] for it in (Centre.total, Centre.norm))
    text = (
        "shard {shard} merged to version {version} what adds up to {total:.9g}, which does not fit "
        "a norm of {norm:g}"
    )
    holds = may_be_norms(total, root * length, n)
    findings.on(table, centres).require(MERGED, holds, text, counts=False)
    rate = rate_of(header)
    if contract.mode.weakens and rate.elementwise:
        return  # by how much each element is scaled, no event has
    size = np.bincount(of, minlength=count)
    most = np.bincount(of, weight * norm, count)
    if merge is None or merge.is_usual:
        due = np.bincount(of, weight * drew, count).astype(np.float64)
        slack = (size + 3) * (root * most * ROUNDING + n * TINY) * MORE + _OF_SUM * np.abs(due)
        # Each number is recorded as a float32.
        slack += _OF_SUM * np.bincount(of, np.abs(weight * drew), count)
        text = (
            "shard {shard} merged to version {version} what adds up to {total:.9g}, expected the "
            "weighted sum {due:.9g} ± {slack:.2g}"
        )
        near = are_near(total, due, slack)
        findings.on(table, centres).require(MERGED, near, text, due=due, slack=slack)
    elif not merge.weighs:  # each element is at most the largest of these
        most = np.sqrt(np.bincount(of, (weight * size[of] * norm) ** 2, count))
    text = (
        "shard {shard} merged to version {version} what has norm {norm:g}, expected {due:g}{less}"
    )
    holds = np.minimum(length, LARGEST) <= most * (1 + _OF_NORM) + TINY
    tensors = _tensors(header, number)
    exact = np.full(count, isinstance(merge, Radial) and tensors == 1)
    # Where directions cancel it is the mean; then so do their sums, with signs.
    unit = np.divide(weight * drew, norm, out=np.zeros_like(norm), where=norm > 0)
    exact &= np.abs(np.bincount(of, unit, count)) > _CANCEL * root * np.bincount(of, weight, count)
    holds &= ~exact | (length >= most * (1 - _OF_NORM) - TINY)
    findings.on(table, centres).require(
        MERGED, holds | ~np.isfinite(most), text, due=most, counts=False,
        less=lambda i: "" if exact[i] else " at most",
    )  # fmt: skip


def _tensors(header: Header, number: int) -> int:
    """Return the number of tensors that a shard has a part of."""
    start, stop = header.spans[number]
    ends = {start, stop}
    for begin, rows, columns in header.matrices:
        ends |= {begin, begin + rows * columns}
    return sum(start <= it <= stop for it in ends) - 1


def _check_moves(
    contract: Contract, table: Table, centres: Ints, n: int, findings: Findings
) -> None:
    """Check how far merges moved a span, by the outer step."""
    moved, total, norm, most, length = (
        table.real(it)[centres]
        for it in (Centre.moved, Centre.total, Centre.norm, Centre.most, Centre.length)
    )
    text = (
        "shard {shard} moved by {moved:.9g} to version {version}, which does not fit a norm of "
        "{length:g}"
    )
    holds = may_be_norms(moved, np.sqrt(n) * length, n)
    findings.on(table, centres).require(MERGED, holds, text, counts=False)
    outer = contract.mode.outer
    due, size = _moves(outer, total, np.sqrt(n) * norm)
    slack = MORE * ROUNDING * (2 * most + _STEPS * size) + n * TINY + _OF_SUM * size
    text = (
        "shard {shard} moved by {moved:.9g} to version {version}, expected {due:.9g} ± {slack:.2g}"
    )
    near = are_near(moved, due, slack)
    if outer is None or isinstance(outer, OuterPlain):
        far = np.abs(length - norm * (1.0 if outer is None else outer.lr))
        near &= ~np.isfinite(length) | (far <= _OF_NORM * norm + 2 * ROUNDING * most)
    findings.on(table, centres).require(MERGED, near, text, due=due, slack=slack)


def _moves(outer: OuterRow | None, total: Floats, size: Floats) -> tuple[Floats, Floats]:
    """Return by merge the sum of what the outer step moves by, and what bounds its parts.

    The step is linear in the merges so far: v ← μv + Δ and Θ ← Θ − η(Δ + μv); with N, each merge is
    a share Δ/N, and μv with v ← μv + D, of the shares since, comes at every N-th. Sources: as of
    ``psrt.optim``.

    Args:
        outer: the step; None for Θ ← Θ − Δ.
        total: of each merge, the sum.
        size: of each merge, what bounds the sum of its magnitudes.
    """
    rate = 1.0 if outer is None else outer.lr
    momentum = outer.momentum if isinstance(outer, OuterNesterov) else 0.0
    period = outer.period if isinstance(outer, DelayedNesterov) else 1
    both = np.stack([total, size]) / period
    velocity, shares, found = np.zeros(2), np.zeros(2), np.zeros_like(both)
    for k, share in enumerate(both.T):
        shares = shares + share
        found[:, k] = share
        if (k + 1) % period == 0:
            velocity, shares = momentum * velocity + shares, np.zeros(2)
            found[:, k] += momentum * velocity
    return -rate * found[0], rate * found[1]


def _check_both_ends(
    contract: Contract,
    workers: Table,
    table: Table,
    shard: Shard,
    n: int,
    findings: Findings,
) -> None:
    """Check that a shard merged what its learners pushed, and they took what it answered."""
    # What was pushed and answered: merged, or too late.
    used = table.where(Kind.FORCE, Kind.DROP)
    used = used[(table["kind"][used] == Kind.FORCE) | (table["flag"][used] == LATE)]
    texts = (
        "worker {worker} took an anchor of shard {shard} at clock {clock} again",
        "worker {worker} took an anchor of shard {shard} after clock {clock}, which had no Δ",
        "worker {worker} took no anchor after clock {clock}, which shard {shard} had answered",
    )
    at = paired(contract, workers, shard.number, table, used, findings, rule=MERGED, texts=texts)
    if at is None:
        return
    both = (at >= 0) & (table["kind"][used] == Kind.FORCE)
    mine, forces = at[both], used[both]
    (delta, _), (its_delta, _) = (
        parts(it[Draw.digests][of]) for it, of in ((workers, mine), (table, forces))
    )
    start = workers.real(Draw.force)[mine], workers.real(Draw.most_force)[mine]
    root = np.sqrt(n)
    near = are_near(start[0], table.real(Force.force)[forces], _OF_SUM * start[1])
    near &= are_near(start[1], root * table.real(Force.norm)[forces], _OF_SUM * start[1] + TINY)
    text = "shard {shard} merged another Δ of worker {worker} at clock {clock} than it had pushed"
    findings.on(table, forces).require(
        MERGED, (delta == its_delta) & near, text, because=[(workers, mine)]
    )
    if contract.exact_reads:
        _check_anchors(workers, table, shard, findings)


def _check_anchors(workers: Table, table: Table, shard: Shard, findings: Findings) -> None:
    """Check that a learner's anchor is the version with which it was answered.

    The digest of a version is known from the merge that moved it. Of one that none has moved, all
    who took it must have the same.
    """
    wide = 2 + int(max(workers["clock"].max(initial=0), table["clock"].max(initial=0)))
    draws, reads = (
        it[workers["shard"][it] == shard.number]
        for it in (workers.where(Kind.DRAW), workers.where(Kind.READ))
    )
    keys = workers["worker"][reads] * wide + workers["clock"][reads]
    first = ~repeats(keys)  # not that after a stop
    reads, keys = reads[first], keys[first]
    of = find(keys, workers["worker"][draws] * wide + workers["clock"][draws] + 1)
    version = workers["version"][reads[of]]
    _, anchor = parts(workers[Draw.digests][draws])
    centres = table.where(Kind.CENTRE)
    after = np.searchsorted(table[Centre.version][centres], version, side="right")
    before, _ = parts(table[Centre.digests][centres])
    known = after < len(centres)
    newest = anchor[~known][:1]
    due = np.append(before, newest if len(newest) else [0])[after]
    text = (
        "worker {worker} took after clock {clock} another anchor of shard {shard} than version "
        "{version}, with which it was answered"
    )
    findings.on(workers, draws).require(
        MERGED, anchor == due, text, version=version, because=[reads[of]]
    )
