"""From what is known to a ranked plan: enumerate, prune by closed forms, simulate, rank.

The simulations share nothing, so they run side by side, in as many processes as there are cores.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from psrt.checkpoint.failures import FailureCosts, asked_for, lost_with
from psrt.checkpoint.interval import daly_s
from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of
from psrt.core.errors import ConfigError
from psrt.core.progress import PROGRESS, Amount
from psrt.planning.candidates import Candidate, Places, candidates
from psrt.planning.closed import closed_form, memory_of, with_shards
from psrt.planning.prediction import cost_of_each, least_cost, predict_job
from psrt.planning.ranking import PROMISES, Budget, Plan, Prediction, Row, promise_of
from psrt.rows.knobs import dashed, shown

#: A candidate whose closed form is this many times as long as the best of its promise is left out,
#: unless it is among that many of its mode and promise.
_WORSE, _OF_MODE = 2.0, 2
#: The most candidates that are simulated, and the most that all may cost; see ``least_cost``.
_MOST, _MOST_COST = 200, 6_000_000
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
    #: Where checkpoints would go.
    out: str = "runs/planned"


class _Priced(NamedTuple):
    candidate: Candidate
    closed_s: float
    promise: str


#: A candidate with its prediction and a worker's memory, or the reason why it is impossible.
_Found = tuple[Prediction, float | None] | str


def make_plan(
    question: Question,
    command: Callable[[Candidate, Mapping[str, str]], str],
    *,
    processes: int | None = None,
) -> Plan:
    """Make a plan.

    Args:
        question: what is asked.
        command: returns what to type for a candidate with these flags.
        processes: in which to simulate; None: as many as there are cores.

    Raises:
        ConfigError: if nothing is possible.
    """
    pruned: Counter[str] = Counter()
    with PROGRESS.doing("listing candidates"):
        found, refused = candidates(question.base, question.fixed, question.places)
    if not found:
        raise refused or ConfigError("no mode can be planned for these ranks and flags")
    left = _pruned(question, found, pruned)
    cost = cost_of_each(len(left))
    jobs = [(it.candidate, cost) for it in left]
    rows, why = [], ""
    for priced, result in zip(left, _simulated(question.places, jobs, processes), strict=True):
        if isinstance(result, str):
            pruned[f"impossible, such as: {result}"] += 1
            why = result
        else:
            rows.append(_row(question, priced, *result))
    if not rows:
        raise ConfigError(why)
    rows.sort(key=question.budget.key)
    numbered = [
        replace(row, number=i, command=command(_candidate(row), row.knobs))
        for i, row in enumerate(rows, 1)
    ]
    known = question.places.known_with(0)
    return Plan(known, tuple(numbered), question.budget.words, dict(pruned))


def _pruned(question: Question, found: Sequence[Candidate], pruned: Counter[str]) -> list[_Priced]:
    """Return the candidates to simulate, the best by the closed form first."""
    places = question.places
    priced = []
    for candidate in PROGRESS.each(found, "pricing candidates", "candidate"):
        known = places.known_with(candidate.servers)
        promise = promise_of(candidate.config, several=len(set(known.site.hosts)) > 1)
        if promise in question.promises:
            priced.append(_Priced(candidate, closed_form(candidate, known), promise))
        else:
            pruned["another promise"] += 1
    if not priced:
        raise ConfigError(f"no candidate promises {' or '.join(question.promises)}")
    priced.sort(key=lambda it: it.closed_s)
    best = {it.promise: it.closed_s for it in reversed(priced)}
    of_mode: Counter[tuple[str, str]] = Counter()
    first, others = list[_Priced](), list[_Priced]()
    for it in priced:
        kind = it.candidate.config.scheme.name, it.promise
        (first if of_mode[kind] < _OF_MODE else others).append(it)
        of_mode[kind] += 1
    kept = [_with_shards(it, places) for it in first]
    cost = sum(least_cost(it.candidate) for it in kept)
    for it in others:
        if it.closed_s > _WORSE * best[it.promise]:
            pruned[f"by closed forms {_WORSE:g} times as slow as the best of the same promise"] += 1
        elif len(kept) == _MOST or cost > _MOST_COST:
            pruned["too many for a minute, and slower by their closed form"] += 1
        else:
            kept.append(_with_shards(it, places))
            cost += least_cost(kept[-1].candidate)
    return kept


def _with_shards(it: _Priced, places: Places) -> _Priced:
    known = places.known_with(it.candidate.servers)
    return it._replace(candidate=with_shards(it.candidate, known))


def _simulated(
    places: Places, jobs: Sequence[tuple[Candidate, int]], processes: int | None
) -> list[_Found]:
    """Return what is predicted of each job, in order."""
    processes = processes or len(os.sched_getaffinity(0))
    if processes == 1 or len(jobs) < _WORTH:
        return [_predicted(places, it) for it in PROGRESS.each(jobs, "simulating", "candidate")]
    return list(_side_by_side(places, jobs, processes))


def _side_by_side(
    places: Places, jobs: Sequence[tuple[Candidate, int]], processes: int
) -> Iterator[_Found]:
    # Not forked: this process may have threads, of progress or of a library.
    context = multiprocessing.get_context("spawn")
    done = 0
    with (
        PROGRESS.doing("simulating", lambda: Amount(done, len(jobs), "candidate")),
        ProcessPoolExecutor(processes, context, _begin) as pool,
    ):
        try:
            futures = [pool.submit(_predicted, places, it) for it in jobs]
            for _ in as_completed(futures):
                done += 1
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        yield from (it.result() for it in futures)


def _begin() -> None:
    """Leave Ctrl-C to the process that asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _predicted(places: Places, job: tuple[Candidate, int]) -> _Found:
    candidate, cost = job
    try:
        return predict_job(candidate, places.known_with(candidate.servers), cost)
    except ConfigError as error:
        return str(error)


def _row(question: Question, priced: _Priced, prediction: Prediction, memory: float | None) -> Row:
    candidate = priced.candidate
    known = question.places.known_with(candidate.servers)
    config, goodput = replace(candidate.config, inject=()), None
    if (failures := question.failures) is not None:
        step_s = prediction.step_s
        every = asked_for(failures, step_s) or _interval(failures, step_s)
        goodput = 1 / (1 + lost_with(every, step_s, failures).total)
        config = replace(config, checkpoint_every=every, out=question.out)
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


def _interval(failures: FailureCosts, step_s: float) -> int:
    """Return the steps between checkpoints that cost least; a checkpoint waits for the last one."""
    cheapest = daly_s(max(failures.stall_s, 1e-6 * failures.mtbf_s), failures.mtbf_s)
    return max(1, round(max(cheapest, failures.write_s) / step_s))


def _candidate(row: Row) -> Candidate:
    return Candidate(row.config, row.servers, row.ranks, row.workers)


def flags_of(config: TrainConfig, usual: TrainConfig) -> dict[str, str]:
    """Return by flag the text of the knobs in which a config differs from another one."""
    found = {}
    for name in knobs_of(TrainConfig):
        value = getattr(config, name)
        # Slow workers are expected, not wanted: a command slows nobody down.
        if value in (None, getattr(usual, name)) or name == "inject":
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else shown(value)
        found[dashed(name)] = value if isinstance(value, str) else text
    return found
