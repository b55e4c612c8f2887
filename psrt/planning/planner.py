"""From what is known to a ranked plan: enumerate, prune by closed forms, simulate, rank.

The simulations share nothing, so they run side by side, in as many processes as there are cores.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from psrt.checkpoint.failures import FailureCosts, asked_for, lost_with
from psrt.checkpoint.interval import daly_s
from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of
from psrt.config.modes import PROMISES
from psrt.core.errors import ConfigError
from psrt.core.progress import PROGRESS, Amount
from psrt.planning.candidates import Candidate, Places, candidates
from psrt.planning.closed import closed_form, memory_of, with_shards
from psrt.planning.prediction import MOST_COST, cost_of, predict_job
from psrt.planning.ranking import Budget, Plan, Prediction, Row, promise_of
from psrt.rows.knobs import dashed, shown

#: A candidate whose closed form is this many times as long as the best of its promise is left out,
#: unless it is among that many of its mode and promise.
_WORSE, _OF_MODE = 2.0, 2
#: The most candidates that are simulated; what the best of each mode and the others may cost all
#: together; and what each may at least.
_MOST, _FIRST_COST, _REST_COST, _COST = 200, 6_000_000, 3_000_000, 40_000
#: Simulations that are worth starting other processes for.
_WORTH = 6


@dataclass(frozen=True, slots=True)
class Question:
    """What a plan is asked for."""

    base: TrainConfig
    #: What a row's flags are compared with: only those that differ are given.
    usual: TrainConfig
    #: By knob, what the user has fixed; see ``candidates``.
    fixed: Mapping[str, Any]
    places: Places
    budget: Budget
    #: Names of ``PROMISES`` that rows may have.
    promises: Sequence[str] = tuple(PROMISES)
    #: What failures cost; None asks about none.
    failures: FailureCosts | None = None


class _Priced(NamedTuple):
    candidate: Candidate
    closed_s: float
    promise: str


#: A prediction with a worker's memory; or the reason why a job is impossible.
_Found = tuple[Prediction, float | None] | str


def make_plan(question: Question, command: Callable[[int, Mapping[str, str]], str]) -> Plan:
    """Make a plan.

    Args:
        question: what is asked.
        command: returns what to type, for a number of ranks and flags.

    Raises:
        ConfigError: if nothing is possible.
    """
    pruned, places, rows, why = Counter[str](), question.places, list[Row](), ""
    left = _pruned(question, pruned)
    each = min(MOST_COST, max(_COST, _FIRST_COST // len(left)))
    jobs = [(places.known_with(it.candidate.servers), it.candidate, each) for it in left]
    for it, result in zip(left, _simulated(jobs), strict=True):
        if isinstance(result, str):
            why = f"impossible, such as: {result}"
            pruned[why] += 1
        else:
            rows.append(_row(question, it, *result))
    if not rows:
        raise ConfigError(why)
    rows.sort(key=lambda row: -row.useful_per_s)
    numbered = [
        replace(row, number=number, command=command(row.ranks, row.knobs))
        for number, row in enumerate(rows, 1)
    ]
    return Plan(places.known_with(0), tuple(numbered), question.budget, dict(pruned))


def _pruned(question: Question, pruned: Counter[str]) -> list[_Priced]:
    """Return the candidates to simulate."""
    places, priced = question.places, list[_Priced]()
    with PROGRESS.doing("listing candidates"):
        listed = candidates(question.base, question.fixed, places)
    for candidate in PROGRESS.each(listed, "pricing candidates", "candidate"):
        known = places.known_with(candidate.servers)
        promise = promise_of(candidate.config, several=known.site.is_several)
        if promise not in question.promises:
            continue
        try:
            priced.append(_Priced(candidate, closed_form(candidate, known), promise))
        except ConfigError as error:  # such as a codec for more elements than it takes
            pruned[f"impossible, such as: {error}"] += 1
    if not priced and pruned:
        raise ConfigError(next(iter(pruned)))
    if not priced:
        raise ConfigError(f"no candidate promises {' or '.join(question.promises)}")
    priced.sort(key=lambda it: it.closed_s)
    best = {it.promise: it.closed_s for it in reversed(priced)}
    seen, first, others = Counter[tuple[str, str]](), list[_Priced](), list[_Priced]()
    for it in priced:
        kind = it.candidate.config.scheme.name, it.promise
        (first if seen[kind] < _OF_MODE else others).append(it)
        seen[kind] += 1
    kept, cost = list[_Priced](), 0
    for number, it in enumerate([*first, *others]):
        least = cost_of(it.candidate)
        if number >= len(first) and it.closed_s > _WORSE * best[it.promise]:
            pruned[f"by closed forms {_WORSE:g} times as slow as the best of the same promise"] += 1
        elif len(kept) >= _MOST or (number >= len(first) and cost + least > _REST_COST):
            pruned["slower by closed forms, and too many for a minute"] += 1
        else:
            known = places.known_with(it.candidate.servers)
            kept.append(it._replace(candidate=with_shards(it.candidate, known)))
            cost += least if number >= len(first) else 0
    if len(listed) > len(priced):
        pruned["another promise"] = len(listed) - len(priced)
    return kept


def _simulated(jobs: Sequence[tuple[Any, ...]]) -> Sequence[_Found]:
    """Return what is predicted of each job, in order."""
    processes, done = len(os.sched_getaffinity(0)), 0
    if processes == 1 or len(jobs) < _WORTH:
        return [_predicted(*it) for it in PROGRESS.each(jobs, "simulating", "candidate")]
    # Not forked: this process may have threads, of progress or of a library.
    context = multiprocessing.get_context("spawn")
    with (
        PROGRESS.doing("simulating", lambda: Amount(done, len(jobs), "candidate")),
        # Ctrl-C is left to this process.
        ProcessPoolExecutor(processes, context, signal.signal, _IGNORED) as pool,
    ):
        try:
            futures = [pool.submit(_predicted, *it) for it in jobs]
            for _ in as_completed(futures):
                done += 1
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()  # a simulation may take long
            raise
        return [it.result() for it in futures]


_IGNORED = signal.SIGINT, signal.SIG_IGN


def _predicted(known: Any, candidate: Candidate, cost: int) -> _Found:
    try:
        return predict_job(candidate, known, cost)
    except ConfigError as error:
        return str(error)


def _row(question: Question, priced: _Priced, prediction: Prediction, memory: float | None) -> Row:
    candidate, failures, goodput = priced.candidate, question.failures, None
    config, step_s = replace(candidate.config, inject=()), prediction.step_s
    if failures is not None:
        free = 1e-6 * failures.mtbf_s  # if saving is free, more often is always better
        best = max(daly_s(max(failures.stall_s, free), failures.mtbf_s), failures.write_s)
        every = asked_for(failures, step_s) or max(1, round(best / step_s))
        goodput = 1 / (1 + lost_with(every, step_s, failures).total)
        config = replace(config, checkpoint_every=every, out="runs/planned")
    known = question.places.known_with(candidate.servers)
    return Row(
        number=0,
        config=config,
        ranks=candidate.ranks,
        workers=candidate.workers,
        servers=candidate.servers,
        knobs=flags_of(config, question.usual),
        command="",
        prediction=prediction,
        closed_step_s=priced.closed_s,
        memory=memory_of(candidate, known, memory),
        promise=priced.promise,
        goodput=goodput,
    )


def flags_of(config: TrainConfig, usual: TrainConfig) -> dict[str, str]:
    """Return by flag the text of the knobs in which a config differs from another one."""
    found = {}
    for name in knobs_of(TrainConfig):
        value = getattr(config, name)
        if value not in (None, getattr(usual, name)):
            found[dashed(name)] = value if isinstance(value, str) else shown(value)
    return found
