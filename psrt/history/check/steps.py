"""A worker's gradient steps: their number, data and rates, and its end.

If psrt splits the data into batches, the clock of a step determines its samples, and the number of
a worker's steps its end. A problem with its own batches may stop anywhere between two epochs, but
not within an epoch whose batches it has counted.

The learning rate of a gradient is the scheduled one times a factor for its staleness. The progress,
the staleness and the order of these are derived independently here; the curve and the factor are
those of the rows of ``psrt.optim``.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from psrt.core.errors import ConfigError
from psrt.history.check.alternation import Shard
from psrt.history.check.contract import Contract, real_knob
from psrt.history.check.elastic import alpha_of
from psrt.history.check.findings import (
    BATCHES,
    MEMBERSHIP,
    RATES,
    STEPS,
    EventRef,
    Findings,
    require_duration,
    require_some_time,
)
from psrt.history.check.table import Bools, Floats, Grid, Ints, Table, previous, same_as_before
from psrt.history.check.updates import PushOutcomes
from psrt.history.events import Kind
from psrt.history.header import MOST, Header
from psrt.optim import STALENESS_RATES, Schedule, StalenessRate

#: The most by which rounding may change a number of epochs.
_HAIR = 1e-9


def check_departures(
    contract: Contract, table: Table, crashed: Collection[int] | None, findings: Findings
) -> Ints:
    """Check that a worker announces once that it leaves; return where, by worker.

    A worker that never does has died, which is possible only in virtual time.

    Args:
        contract: of the run.
        table: events of all workers, worker after worker.
        crashed: workers that died, by the run's own record; None without one.
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
    may = contract.crashes if crashed is None else set(crashed) & set(contract.crashes)
    if contract.shards or contract.mode.mixes:
        staying = staying[~np.isin(staying, [*may])]
    if len(staying):
        worker = int(staying[0])
        last = np.flatnonzero(table["worker"] == worker)[-1:]
        refs = [EventRef(table, int(at)) for at in last]
        findings.missing(MEMBERSHIP, f"worker {worker} never said that it leaves", *refs)
    return leave


def check_silence(table: Table, leave: Ints, attends: Bools, findings: Findings) -> None:
    """Check that a departed worker records nothing more, except in sums that it only attends."""
    of = leave[table["worker"]]
    after = np.flatnonzero((np.arange(len(table)) > of) & ~attends)
    findings.on(table, after).forbid(
        MEMBERSHIP, "worker {worker} continues after it has left", because=[of[after]]
    )


def asks(table: Table) -> Bools:
    """Return which events are of a worker without samples, which asks whether others have any.

    It waits for the answer after the event.
    """
    found: Bools = table.are(Kind.REDUCE) & (table.real("weight") == 0)
    return found


def check_local_steps(contract: Contract, table: Table, leave: Ints, findings: Findings) -> None:
    """Check the steps that workers count themselves."""
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
    # A step begins some time after its worker's last event; in virtual time immediately.
    later = same_as_before(table["worker"])[steps]
    begins = np.where(later, steps - 1, -1)
    if contract.own_loop:
        begins = _before_offers(table, begins)
    timed = later | contract.one_clock  # otherwise a worker's first event is on another clock
    exact = timed & contract.exact_times
    if contract.streams:
        # A worker without samples asks whether others have any, and waits for the answer.
        exact &= ~asks(table)[begins]
    if contract.cut:
        # At the end of an epoch the first worker waits for the parts of the others.
        epoch = np.floor(table.real("progress")[steps])
        exact &= ~follows | (epoch == previous(epoch, -1.0))
    for these, most in ((exact, False), (timed & ~exact, True)):
        require_duration(findings, table, steps[these], begins[these], most=most)
    if not contract.simulated:
        require_some_time(findings, table, steps)
    check_steps(contract, table, steps, leave, findings)


def _before_offers(table: Table, at: Ints) -> Ints:
    """Return by position the worker's last event up to it that is not an offer; −1 for none.

    In the user's own loop a worker learns of a step when its gradient is complete, and only then
    makes its offer.
    """
    found = at.copy()
    while True:
        offers = (found >= 0) & (table["kind"][found] == Kind.OFFER)
        if not offers.any():
            return found
        first = ~same_as_before(table["worker"])[found]
        found[offers] = np.where(first, -1, found - 1)[offers]


def check_steps(
    contract: Contract, table: Table, at: Ints, leave: Ints, findings: Findings
) -> None:
    """Check the progress of steps, and that they are neither too many nor too few.

    Args:
        contract: of the run.
        table: events of workers, worker after worker.
        at: the positions of the gradient steps.
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
    """Return the steps that each worker has finished: the clock at which it leaves.

    In modes whose final clock counts sums, the number of its steps.
    """
    if contract.shards and not contract.mode.averages:
        return np.append(table["clock"], 0)[leave]
    return np.bincount(table["worker"][at], minlength=contract.workers)


def _check_batches(contract: Contract, table: Table, at: Ints, findings: Findings) -> None:
    """Check every step against the data plan."""
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
    due = np.full(contract.workers, contract.total_steps)
    if contract.stopped:
        due = np.minimum(due, contract.stopped)
    text = "worker {worker} leaves after {made} steps, expected {due:g}"
    findings.on(table, leave[gone]).require(
        STEPS, reached[gone] == due[gone], text, made=reached[gone], due=due[gone]
    )


def _check_whole_epochs(
    contract: Contract, table: Table, at: Ints, leave: Ints, reached: Ints, findings: Findings
) -> None:
    """Check that no worker stops within an epoch whose batches are counted.

    Within such an epoch progress grows by the same share with each step, so two steps give their
    number. A worker that continues to another epoch, or leaves, must have reached the end of this
    one, whether or not it skipped steps that rounds did not wait for.
    """
    if not len(at):
        return
    owner, clock, progress = table["worker"][at], table["clock"][at], table.real("progress")[at]
    epoch = np.floor(progress)
    same = same_as_before(owner) & (epoch == previous(epoch, -1.0))
    share = np.where(same, progress - previous(progress, 0.0), 0.0)
    share /= np.maximum(np.where(same, clock - previous(clock, 0), 1), 1)
    last = np.append(owner[1:] != owner[:-1], True)
    ends = np.append(~same[1:], True)  # whether this step is the last of its epoch
    following = np.where(last, reached[owner], np.append(clock[1:], 0))
    end: Floats = progress + share * (following - clock)
    whole = end >= np.minimum(epoch + 1, contract.epochs) - _HAIR * (1 + progress)
    most = np.full(contract.workers, contract.steps)
    if contract.stopped:
        most = np.minimum(most, contract.stopped)
    done = last & ((following >= most[owner]) | (leave[owner] == len(table)))
    text = (
        "worker {worker} makes step {clock} at epoch {progress:g}, the last one of an epoch that "
        "has more"
    )
    findings.on(table, at).require(STEPS, ~ends | (share <= 0) | whole | done, text)


#: Relative error of a product of two rates, as a float32; and the absolute error near 0.
_ROUNDING, _TINY = 1e-5, 1e-36
#: The relative error of a progress that a schedule is evaluated at: it is a mean of several
#: numbers, and a decay starts a little early so that rounding does not delay it by a step.
_NEAR = 2e-6
#: The same per worker, if progress went through a sum of float32 numbers.
_FLOAT32_HAIR = 1.2e-7


def _scheduled(header: Header) -> Schedule | None:
    """Return the learning rate of a run; None if its header does not have it."""
    if header.knob("lr") is None or header.chosen("optimizer").scheduler:
        return None
    return Schedule(
        header.chosen("schedule"),
        real_knob(header, "lr", 0.0),
        epochs=real_knob(header, "epochs", np.inf),
    )


def rate_of(header: Header) -> StalenessRate:
    """Return the staleness-aware rate of a run, as a factor of whole gradients."""
    row = header.chosen("staleness_rate") or STALENESS_RATES["constant"]
    rate: StalenessRate = row.make(1, max_lr=real_knob(header, "lr", 1.0))
    return rate


def _bounds(schedule: Schedule, progress: Floats, hair: float) -> tuple[Floats, Floats]:
    """Return the smallest and the largest η within the error of each progress."""
    # Few are different, since workers take the same steps. None is beyond the range of counts.
    points, which = np.unique(np.minimum(progress, MOST), return_inverse=True)
    try:
        near = [
            [schedule.rate(it * (1.0 + side * hair)) for it in points.tolist()]
            for side in (-1, 0, 1)
        ]
    except OverflowError:
        raise ConfigError("the history's header has a rate that cannot be computed") from None
    low, high = np.min(near, axis=0), np.max(near, axis=0)
    return low[which], high[which]


def check_rates(
    contract: Contract, header: Header, shard: Shard, outcomes: PushOutcomes, findings: Findings
) -> None:
    """Check the rate of every gradient that a shard applied.

    An update has one η, that of the mean progress of its gradients.
    """
    table = shard.table
    applied = table.where(Kind.APPLY)
    applied = applied[table["worker"][applied] >= 0]
    version, progress = table["version"][applied], table.real("progress")[applied]
    count = np.maximum(np.bincount(version), 1)  # by version
    mean = np.bincount(version, progress) / count
    brings = (np.bincount(version, table["samples"][applied]) > 0)[version]
    at, version = applied[brings], version[brings]  # without samples nothing was updated
    factor = _worth(header, shard, outcomes, at) if contract.mode.weakens else 1.0
    bounds = _shared(contract, header, mean[version], _NEAR)
    if bounds is not None:
        low, high = bounds
        _check(", of staleness {tau},", low * factor, high * factor, table, at, findings)


def check_own_rates(contract: Contract, header: Header, table: Table, findings: Findings) -> None:
    """Check the rate of local steps; a gradient that is yet to be summed has 0."""
    at = table.where(Kind.STEP)
    takes = table["samples"][at] > 0
    takes &= contract.mode.averages or contract.mode.single or contract.mode.mixes
    schedule = _scheduled(header)
    if schedule is not None:
        low, high = _bounds(schedule, table.real("progress")[at], _NEAR)
        _check("", np.where(takes, low, 0.0), np.where(takes, high, 0.0), table, at, findings)


def check_shared_rates(
    contract: Contract,
    header: Header,
    table: Table,
    rounds: Grid,
    ends: Grid,
    findings: Findings,
) -> None:
    """Check the common rate of each sum, by the mean progress of the training workers."""
    training = table["flag"][rounds] > 0
    progress = np.where(training, table.real("progress")[rounds], 0.0).sum(0)
    mean = progress / np.maximum(training.sum(0), 1)
    bounds = _shared(contract, header, mean, _NEAR + contract.workers * _FLOAT32_HAIR)
    if bounds is None:
        return
    low, high = bounds
    settled = np.arange(len(mean)) >= len(mean) - contract.settles  # plain means
    low, high = np.where(settled, 1.0, low), np.where(settled, 1.0, high)
    some = table.real("weight")[rounds].sum(0) > 0
    for worker in ends:
        _check(" of its update", low[some], high[some], table, worker[some], findings)


def _check(
    what: str, low: Floats, high: Floats, table: Table, at: Ints, findings: Findings
) -> None:
    rate = table.real("rate")[at]
    holds = (rate >= low * (1 - _ROUNDING) - _TINY) & (rate <= high * (1 + _ROUNDING) + _TINY)
    text = (
        f"the gradient of worker {{worker}} at clock {{clock}}{what} had rate {{rate:g}}, "
        "expected {due:g}"
    )
    findings.on(table, at).require(RATES, holds, text, due=(low + high) / 2)


def _shared(
    contract: Contract, header: Header, progress: Floats, hair: float
) -> tuple[Floats, Floats] | None:
    """Return the smallest and the largest rate of shared updates; None if unknown.

    For averages the rate of the outer optimizer, or 1 for the plain mean; for an elastic force its
    strength.
    """
    if not contract.mode.averages:
        schedule = _scheduled(header)
        return None if schedule is None else _bounds(schedule, progress, hair)
    outer = header.mode.outer
    rate = 1.0 if outer is None else outer.lr
    if contract.mode.elastic is not None:
        rate = alpha_of(contract, header)
    always = np.full(len(progress), rate)
    return always, always


def _worth(header: Header, shard: Shard, outcomes: PushOutcomes, at: Ints) -> Floats:
    """Return r(τ) of each gradient, evaluated in the order in which they were first used.

    A rule may depend on earlier gradients. A saved gradient was used when it was saved.
    """
    row, rate = header.chosen("staleness_rate"), rate_of(header)
    if row is None or row.never_scales:  # what is dropped is checked as such
        return np.ones(len(at))
    of = shard.find_push(at)
    saved = np.where(of >= 0, outcomes.saved[of], len(shard.table)) if len(at) else at
    order = np.argsort(np.minimum(saved, at), kind="stable")
    factor = np.empty(len(at))
    factor[order] = [rate.scale(tau) for tau in shard.table["tau"][at][order].tolist()]
    return factor
