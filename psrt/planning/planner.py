"""From what is known to a ranked plan: enumerate, prune by closed forms, simulate, rank.

The simulations share nothing, so they run side by side, in as many processes as there are cores.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any

from psrt.checkpoint.failures import FailureCosts, asked_for, lost_with
from psrt.checkpoint.interval import daly_s
from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of
from psrt.config.modes import PROMISES
from psrt.core.errors import ConfigError
from psrt.core.progress import PROGRESS
from psrt.planning.candidates import Candidate, Places, candidates
from psrt.planning.closed import closed_form, memory_of, with_shards
from psrt.planning.prediction import cost_of, predict_job
from psrt.planning.ranking import Budget, Plan, Prediction, Row
from psrt.rows.knobs import dashed, shown

#: A candidate whose closed form is this many times as long as the best of its promise is left out,
#: unless it is among that many of its mode and promise, split or not.
_WORSE, _OF_MODE = 2.0, 2
#: The most candidates that are simulated, and what their shortest simulations may cost together.
_MOST, _COST = 200, 9_000_000
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
    pruned, rows, why = Counter[str](), list[Row](), ""
    left = _left(_priced(question, pruned), pruned)
    for (it, _), result in zip(left, _simulated(left), strict=True):
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
    known = question.places.with_servers(0)[1]
    return Plan(known, tuple(numbered), question.budget, dict(pruned))


def _priced(question: Question, pruned: Counter[str]) -> list[Candidate]:
    """Return all candidates that promise what is asked for, the fastest first."""
    with PROGRESS.doing("listing candidates"):
        listed = candidates(question.base, question.fixed, question.places)
    asked = [it for it in listed if it.promise in question.promises]
    if not asked:
        raise ConfigError(f"no candidate promises {' or '.join(question.promises)}")
    if others := len(listed) - len(asked):
        pruned["another promise"] = others
    priced = list[Candidate]()
    for it in PROGRESS.each(asked, "pricing candidates", "candidate"):
        try:
            priced.append(it._replace(closed_s=closed_form(it)))
        except ConfigError as error:  # such as a codec for more elements than it takes
            pruned[f"impossible, such as: {error}"] += 1
    if not priced:
        raise ConfigError(next(reversed(pruned)))
    return sorted(priced, key=lambda it: it.sample_s)


def _left(priced: Sequence[Candidate], pruned: Counter[str]) -> list[tuple[Candidate, int]]:
    """Return the candidates that are left, with what to spend on their simulations, or 0."""
    best = {it.promise: it.sample_s for it in reversed(priced)}
    seen, first, others = Counter[tuple[str, str, bool]](), list[Candidate](), list[Candidate]()
    for it in priced:
        kind = it.config.scheme.name, it.promise, bool(it.config.parallel)
        seen[kind] += 1
        if seen[kind] <= _OF_MODE:
            first.append(with_shards(it))
        elif it.sample_s <= _WORSE * best[it.promise]:
            others.append(it)
        else:
            pruned[f"by closed forms {_WORSE:g} times as slow as the best of the same promise"] += 1
    kept, cost = list[tuple[Candidate, bool]](), 0
    for it in sorted(first, key=cost_of):
        cost += cost_of(it)
        kept.append((it, cost <= _COST))
    for it in map(with_shards, others):
        if cost + cost_of(it) <= _COST and len(kept) < _MOST:
            cost += cost_of(it)
            kept.append((it, True))
        else:
            pruned["slower by closed forms, and too many for a minute"] += 1
    return [(it, _COST // len(kept) * is_simulated) for it, is_simulated in kept]


def _simulated(jobs: Sequence[tuple[Candidate, int]]) -> Sequence[_Found]:
    """Return what is predicted of each job, in order."""
    processes = len(os.sched_getaffinity(0))
    if processes == 1 or len(jobs) < _WORTH:
        return [_predicted(*it) for it in PROGRESS.each(jobs, "simulating", "candidate")]
    # Not forked: this process may have threads, of progress or of a library.
    context = multiprocessing.get_context("spawn")
    ignored = signal.SIGINT, signal.SIG_IGN  # Ctrl-C is left to this process
    with ProcessPoolExecutor(processes, context, signal.signal, ignored) as pool:
        try:
            futures = [pool.submit(_predicted, *it) for it in jobs]
            return [it.result() for it in PROGRESS.each(futures, "simulating", "candidate")]
        except BrokenProcessPool:
            raise ConfigError("a process that simulated was killed, perhaps for memory") from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()  # a simulation may take long
            raise


def _predicted(it: Candidate, cost: int) -> _Found:
    try:
        if cost:
            return predict_job(it, cost)
    except (ConfigError, MemoryError) as error:
        return str(error) or "out of memory"
    return Prediction(it.closed_s, it.copies * it.config.batch_size / it.closed_s), None


def _row(question: Question, it: Candidate, prediction: Prediction, memory: float | None) -> Row:
    failures, goodput = question.failures, None
    config, step_s = replace(it.config, inject=()), prediction.step_s
    if failures is not None:
        free = 1e-6 * failures.mtbf_s  # if saving is free, more often is always better
        best = max(daly_s(max(failures.stall_s, free), failures.mtbf_s), failures.write_s)
        every = asked_for(failures, step_s) or max(1, round(best / step_s))
        goodput = 1 / (1 + lost_with(every, step_s, failures).total)
        config = replace(config, checkpoint_every=every, out="runs/planned")
    return Row(
        number=0,
        config=config,
        ranks=it.ranks,
        workers=it.workers,
        servers=it.servers,
        knobs=flags_of(config, question.usual),
        command="",
        prediction=prediction,
        closed_step_s=it.closed_s,
        memory=memory_of(it, memory),
        promise=it.promise,
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
