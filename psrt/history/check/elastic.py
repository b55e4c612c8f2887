"""The elastic force: equal on both sides, of the configured strength, with the right effect.

A history has no parameters. Digests show that a worker and the server computed the same force, bit
for bit, from the same centre, and that each update starts from the centre of the one before. Sums
over the elements with random signs show that the worker lost what the centre gained: x ← x − e and
x̃ ← x̃ + Σ e with e = α(x − x̃) and α = β/W. Sums agree up to the roundings to float32.

Source: Zhang, Choromanska & LeCun, NeurIPS 2015 (1412.6651).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.findings import ELASTIC, Findings
from psrt.history.check.norms import LARGEST, LEAST, NORMAL, ROUNDING, are_near, may_be_norms
from psrt.history.check.table import Floats, Ints, Table, find, previous, repeats
from psrt.history.events import Kind, parts
from psrt.history.header import Header
from psrt.history.kinds import Centre, Draw, Force

#: Kinds of events that only a run with an elastic force has.
KINDS = (Kind.DRAW, Kind.FORCE, Kind.CENTRE)
#: A factor for the products of a few numbers' roundings in a bound.
_MORE = 1.01


def without_forces(table: Table) -> Table:
    """Return a table without the events of forces, which the other rules do not expect."""
    drawn = table.are(*KINDS)
    return Table(table.events[~drawn], table.name) if drawn.any() else table


def alpha_of(contract: Contract, header: Header) -> float:
    """Return α of a run with an elastic force."""
    assert contract.mode.elastic is not None, "no elastic force"
    return contract.mode.elastic / contract.workers


def check_forces(
    contract: Contract, header: Header, workers: Table, shards: Sequence[Table], findings: Findings
) -> None:
    """Check every force at both ends.

    Args:
        contract: of the run.
        header: of its history.
        workers: events of all workers, worker after worker.
        shards: events of each shard.
        findings: takes what is wrong.
    """
    if contract.mode.elastic is None or not header.numerics:
        for table in (workers, *shards):
            text = "{kind} of worker {worker} in a run without an elastic force"
            findings.on(table, table.where(*KINDS)).forbid(ELASTIC, text)
        return
    _check_unused(shards, findings)
    _check_draws(contract, alpha_of(contract, header), workers, findings)
    _check_bounds(header.n, workers, shards, findings)
    for number, table in enumerate(shards):
        applied = table.where(Kind.APPLY)
        applied = applied[(table["worker"][applied] >= 0) & (table["samples"][applied] > 0)]
        forces, centres = table.where(Kind.FORCE), table.where(Kind.CENTRE)
        if match(table, applied, forces, centres, findings):
            of = np.searchsorted(centres, forces)
            _check_centres(table, forces, centres, of, findings)
            _check_both_ends(contract, workers, number, table, forces, centres[of], findings)


def _check_unused(shards: Sequence[Table], findings: Findings) -> None:
    """Check that fields that only merges have are empty."""
    for table in shards:
        at = table.where(Kind.FORCE, Kind.CENTRE)
        nothing = np.isnan(table.real(Force.norm)[at]) & (table.real(Centre.length)[at] == 0)
        nothing &= table.real(Centre.total)[at] == 0
        nothing &= (table["kind"][at] == Kind.CENTRE) | (table.real(Force.weight)[at] == 0)
        text = "{kind} of version {clock} has fields that only merges have"
        findings.on(table, at).require(ELASTIC, nothing, text, counts=False)


def _check_draws(contract: Contract, alpha: float, table: Table, findings: Findings) -> None:
    """Check the strength of each force, and that its worker moved by it after the answer."""
    at = table.where(Kind.DRAW)
    first = table["shard"][at] == 0
    before = np.maximum(at - 1, 0)
    follows = table["kind"][before] == np.where(first, Kind.READ, Kind.DRAW)
    follows &= table["worker"][before] == table["worker"][at]
    follows &= table["clock"][before] == table["clock"][at] + first
    follows &= table["shard"][before] == np.where(first, contract.shards, table["shard"][at]) - 1
    text = (
        "worker {worker} was drawn by shard {shard} at clock {clock}, expected after the answers "
        "of all shards to its push, shard by shard"
    )
    findings.on(table, at).require(ELASTIC, follows, text, because=[before], counts=False)
    drew, apart, moved, most, most_drew = (
        table.real(it)[at]
        for it in (Draw.force, Draw.apart, Draw.moved, Draw.most, Draw.most_force)
    )
    due = alpha * apart
    # Roundings: of α, of x − x̃, of their product, and of the recorded sum of x − x̃.
    slack = _slack(3 * most_drew + 2 * np.abs(due))
    text = (
        "worker {worker} was drawn at clock {clock} by a force of shard {shard} that adds up to "
        f"{{drew:.9g}}, expected {alpha:.6g} times x − x̃, {{due:.9g}} ± {{slack:.2g}}"
    )
    holds = are_near(drew, due, slack)
    findings.on(table, at).require(ELASTIC, holds, text, drew=drew, due=due, slack=slack)
    slack = _slack(most + np.abs(moved))
    text = (
        "worker {worker} moved at clock {clock} by {moved:.9g} on shard {shard}, expected the "
        "force with the other sign, {due:.9g} ± {slack:.2g}"
    )
    holds = are_near(moved, -drew, slack)
    findings.on(table, at).require(
        ELASTIC, holds, text, moved=moved, due=-drew, slack=slack, counts=False
    )


def _check_bounds(n: int, workers: Table, shards: Sequence[Table], findings: Findings) -> None:
    """Check that the recorded bounds of rounding fit the sums.

    A force has its sum. For a worker and the centre there are only their movements and their
    distance: on a shard each of the two is at most as long as the shortest of all, plus those.
    """
    draws = workers.where(Kind.DRAW)
    drew, apart, moved, most_drew = (
        workers.real(it)[draws] for it in (Draw.force, Draw.apart, Draw.moved, Draw.most_force)
    )
    text = "worker {worker} was drawn at clock {clock} by a force that adds up to {force:.9g}, "
    text += "which does not fit a norm of {most_force:g}"
    holds = may_be_norms(drew, most_drew, n)
    findings.on(workers, draws).require(ELASTIC, holds, text, counts=False)
    moves = np.abs(np.concatenate([drew, apart, moved]))
    # The bound of a centre counts each force once more for each of the others.
    many = 1 + len(np.unique(workers["worker"]))
    moves = moves[np.isfinite(moves)].sum() * many
    text = "{kind} records a bound of rounding of {most:g} units, expected at most {limit:g}"
    for number, shard in enumerate(shards):
        tables = (
            (workers, draws[workers["shard"][draws] == number]),
            (shard, shard.where(Kind.CENTRE)),
        )
        said = [table.real(Draw.most)[at] for table, at in tables]  # the same column as in CENTRE
        shortest = np.minimum(np.concatenate(said), LARGEST).min(initial=LARGEST)
        most = many * shortest + np.sqrt(n) * moves / LEAST
        for (table, at), norms in zip(tables, said, strict=True):
            fits = (norms >= 0) & (np.minimum(norms, LARGEST) <= most)
            fits |= np.isinf(table.real(Draw.force)[at])  # its numbers are infinite, too
            findings.on(table, at).require(ELASTIC, fits, text, limit=most, counts=False)


def match(
    table: Table,
    applied: Ints,
    forces: Ints,
    centres: Ints,
    findings: Findings,
    *,
    rule: str = ELASTIC,
) -> bool:
    """Check that each push of an update has its force, after the update, and then the centre.

    Where servers merge, the force is what was pushed, and the centre what comes of all.
    """
    count = min(len(applied), len(forces))
    pushed, drew = applied[:count], forces[:count]
    kind = np.append(table["kind"], 0)
    same = (kind[drew - 1] == Kind.FORCE) | (kind[drew - 1] == Kind.APPLY)
    same &= (kind[drew + 1] == Kind.FORCE) | (kind[drew + 1] == Kind.CENTRE)
    same &= (drew > pushed) & (parts(table[Draw.digests][drew])[1] == 0)
    for name in ("worker", "clock"):
        same &= table[name][drew] == table[name][pushed]
    text = (
        "shard {shard} has a force of worker {worker} at clock {clock} that is not the next one "
        "of the update before it"
    )
    findings.on(table, drew).require(rule, same, text, because=[pushed])
    text = "shard {shard} applied clock {clock} of worker {worker} without a force"
    findings.on(table, applied[count:]).forbid(rule, text, counts=False)
    text = "shard {shard} has a force of worker {worker} at clock {clock} of no update"
    findings.on(table, forces[count:]).forbid(rule, text, counts=False)
    if not findings.none:
        return False
    versions = np.unique(table["version"][applied])
    drawn = table[Centre.version][centres]
    alone = (table["worker"][centres] == -1) & (kind[centres - 1] == Kind.FORCE)
    if len(versions) != len(centres) or (versions != drawn).any() or not alone.all():
        findings.on(table, centres[-1:] if len(centres) else applied[:1]).forbid(
            rule, "shard {shard} did not record the centre after each of its updates"
        )
        return False
    of = np.searchsorted(centres, forces)
    inside = of < len(centres)
    right = inside & (
        table[Centre.version][centres[np.where(inside, of, 0)]] == table["version"][applied]
    )
    text = "shard {shard} has the force of worker {worker} at clock {clock} in another update"
    findings.on(table, forces).require(rule, right, text, because=[applied], counts=False)
    return findings.none


def _check_centres(table: Table, forces: Ints, centres: Ints, of: Ints, findings: Findings) -> None:
    """Check that each centre is the last one, moved by the forces; ``of``: by force its update."""
    before, made = parts(table[Centre.digests][centres])
    text = "shard {shard} made version {version} from another centre than its last one"
    holds = made == np.where(np.arange(len(made)) > 0, before, 0)
    findings.on(table, centres).require(ELASTIC, holds, text, because=[previous(centres, -1)])
    due = np.bincount(of, table.real(Force.force)[forces], len(centres)).astype(np.float64)
    moved, slack = table.real(Centre.moved)[centres], _slack(table.real(Centre.most)[centres])
    text = (
        "shard {shard} moved the centre by {moved:.9g} to version {version}, expected the sum of "
        "the forces, {due:.9g} ± {slack:.2g}"
    )
    findings.on(table, centres).require(
        ELASTIC, are_near(moved, due, slack), text, moved=moved, due=due, slack=slack, counts=False
    )


def _check_both_ends(
    contract: Contract,
    workers: Table,
    number: int,
    table: Table,
    forces: Ints,
    centres: Ints,
    findings: Findings,
) -> None:
    """Check that a worker and a shard have the same forces; ``centres``: by force the centre."""
    texts = (
        "worker {worker} was drawn by shard {shard} at clock {clock} again",
        "worker {worker} was drawn by shard {shard} at clock {clock}, and did not draw it",
        "worker {worker} drew the centre of shard {shard} at clock {clock}, which did not draw it",
    )
    at = paired(contract, workers, number, table, forces, findings, rule=ELASTIC, texts=texts)
    if at is None:
        return
    met = at >= 0
    at, forces, centres = at[met], forces[met], centres[met]
    (force, centre), (its_force, _) = (
        parts(it[Draw.digests][of]) for it, of in ((workers, at), (table, forces))
    )
    drew, its_drew = workers.real(Draw.force)[at], table.real(Force.force)[forces]
    # The same numbers, summed in two orders; not finite if the force is not.
    near = are_near(drew, its_drew, 1e-9 * (np.abs(drew) + workers.real(Draw.most_force)[at]))
    same = (force == its_force) & near
    text = "worker {worker} and shard {shard} have different forces at clock {clock}"
    findings.on(workers, at).require(ELASTIC, same, text, because=[(table, forces)])
    if contract.exact_reads:
        its_centre, _ = parts(table[Centre.digests][centres])
        text = (
            "worker {worker} was drawn at clock {clock} by another centre of shard {shard} than "
            "the one that it drew"
        )
        findings.on(workers, at).require(
            ELASTIC, centre == its_centre, text, because=[(table, centres)], counts=False
        )


def paired(
    contract: Contract, workers: Table, number: int, table: Table, pushes: Ints,
    findings: Findings, *, rule: str, texts: tuple[str, str, str],
) -> Ints | None:  # fmt: skip
    """Return by push to a shard the DRAW of its worker, −1 for none; None if some are repeated.

    ``texts`` are those of a repeated one, of one without a push, and of a push without one.
    """
    draws = workers.where(Kind.DRAW)
    draws = draws[workers["shard"][draws] == number]
    wide = 1 + int(max(workers["clock"].max(initial=0), table["clock"].max(initial=0)))
    keys = workers["worker"][draws] * wide + workers["clock"][draws]
    again, loose, missing = texts
    once = ~repeats(keys) & (keys >= previous(keys, -1))
    findings.on(workers, draws).require(rule, once, again, counts=False)
    if not findings.none:
        return None
    owner = table["worker"][pushes]
    its = owner * wide + table["clock"][pushes]
    findings.on(workers, draws).require(rule, np.isin(keys, its), loose, counts=False)
    at = find(keys, its)
    # A worker that died may not have got the answer to its last push.
    last = np.zeros(contract.workers, np.int64)
    np.maximum.at(last, owner, table["clock"][pushes])
    gone = np.ones(contract.workers, bool)
    gone[workers["worker"][workers.where(Kind.LEAVE)]] = False
    excused = gone[owner] & (table["clock"][pushes] == last[owner])
    excused |= np.isin(owner, contract.unreported)
    findings.on(table, pushes).require(rule, (at >= 0) | excused, missing)
    found: Ints = np.append(draws, -1)[at]
    return found


def _slack(most: Floats) -> Floats:
    slack: Floats = _MORE * ROUNDING * most + NORMAL
    return slack
