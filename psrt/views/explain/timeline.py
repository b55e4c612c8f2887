"""A mode's timeline: when each worker computes, and what it waits for; its lesson.

A small job of the real roles is recorded in virtual time; nothing here depends on the mode.

- A worker *computes* according to its events, in the slices that a trace would show.
- Between two steps it *waits*: in a mode with servers from its push until the last reply. A server
  replies as soon as the policy allows, so the last message that it received released the reply.
  Until that message was sent, the worker waited for its sender; after that, for messages.
- The ranks of a learner wait in each step for the last of them, and then for what the first one
  reads from servers.
- Where a merge has a quorum, those in it also wait until its *window* for more is over.
- Without servers all workers wait in a sum for the last one to join it, and then for messages.
- In streaming local SGD several sums are in flight at a time. A worker that computes forwards
  nothing. So a wait for a mean is traced back from message to message, to the worker whose
  computing was the last to delay one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from psrt.config import TrainConfig
from psrt.core.arrays import Vector
from psrt.core.messages import LAST
from psrt.core.partition import Span, even_spans
from psrt.core.units import plural
from psrt.history import Kind
from psrt.history.kinds import Reduce
from psrt.job.learner_rates import LearnerJob, LearnerRates, learner_rates
from psrt.rows.values import AUTO
from psrt.simulation import SimulationCosts
from psrt.transport import RoleMap
from psrt.views.explain.merges import Merge, merges_of
from psrt.views.explain.recording import Passage, RecordedJob, recorded
from psrt.views.trace.marks import COMPUTE as COMPUTES
from psrt.views.trace.marks import nanoseconds

#: The activities of a worker: computing, or one of the causes of ``WAITING``, as in a summary.
COMPUTE, WORKERS, WINDOW, MESSAGES = "compute", "workers", "window", "messages"
WAITING = WORKERS, WINDOW, MESSAGES
#: Most workers: each has its own character in a text.
MOST_WORKERS = 36
#: Times are whole nanoseconds, or computed as end minus length: this close means simultaneous.
_NOTHING_NS = 4


@dataclass(frozen=True, slots=True)
class Stretch:
    """An interval of one worker's virtual time, in seconds."""

    start: float
    stop: float
    #: ``COMPUTE``; or what is waited for: of ``WORKERS``, ``waiting_for``; the end of a ``WINDOW``;
    #: or ``MESSAGES`` alone.
    what: str
    #: The worker that is waited for; for ``COMPUTE`` the step, from 0; else the worker itself.
    waiting_for: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.stop - self.start


class Transfer(NamedTuple):
    """The history of one worker's part of a fragment's mean; times in virtual seconds.

    With servers that is its push; the mean is a merge, and complete when it is made.
    """

    #: Number of the fragment.
    fragment: int
    #: When this worker sent its part, and when the last worker did.
    sent: float
    complete: float
    #: When this worker took the mean.
    taken: float
    #: The worker that was the last to send its part.
    last: int


def _pushes(merges: Sequence[Merge], workers: int) -> list[list[Transfer]]:
    """Return by worker the merges that it took part in."""
    found: list[list[Transfer]] = [[] for _ in range(workers)]
    for it in merges:
        last = it.members[-1].worker
        for own in it.members:
            found[own.worker].append(Transfer(it.fragment, own.sent, it.made, own.taken, last))
    return found


def _transfers(job: RecordedJob) -> list[list[Transfer]]:
    """Return by worker the sums that it took part in; its k-th is the k-th of each other."""
    sent = [job.of_kind(Kind.REDUCE, worker=i) for i in range(job.workers)]
    taken = [job.of_kind(Kind.REDUCED, worker=i) for i in range(job.workers)]
    found: list[list[Transfer]] = [[] for _ in sent]
    for k, first in enumerate(sent[0]):
        fragment = Reduce.fragment.of(first)
        times = [nanoseconds(its[k].time) / 1e9 for its in sent]
        last = max(range(job.workers), key=times.__getitem__)
        for i, own in enumerate(times):
            end = nanoseconds(taken[i][k].time) / 1e9
            found[i].append(Transfer(fragment, own, times[last], end, last))
    return found


class _Release(NamedTuple):
    """What released a reply; times in nanoseconds."""

    #: The worker whose message was the last to come, and when that was sent.
    cause: int
    sent: int
    #: When the window was over that the reply waited for; 0 if it waited for none.
    over: int = 0


def _answers(job: RecordedJob, merges: Sequence[Merge]) -> list[list[tuple[int, _Release]]]:
    """Return by worker when it read each reply, and what released that.

    A server decides only when it receives something, so a reply is released by the last message
    that its rank has received. If that came from a shard which decides for others, it is the last
    one that came there. If a window was over, it is the one that opened it.
    """
    answers: list[list[tuple[int, _Release]]] = [[] for _ in range(job.workers)]
    #: By worker, shard (−1: its end) and clock, when it pushed; by server, the last message.
    pushed: dict[tuple[int, int, int], int] = {}
    came: dict[int, _Release] = {}
    merged: dict[tuple[int, int], _Release] = {}
    replied: dict[tuple[int, int, int], _Release] = {}
    over: dict[tuple[int, int], _Release] = {}
    for one in merges:
        if one.is_over:
            opens, made = one.members[(job.config.scheme.quorum or 1) - 1], nanoseconds(one.made)
            over[one.version, made] = _Release(opens.worker, nanoseconds(opens.sent), made)
    for it in job.events:
        key, now = (it.worker, it.shard, it.clock), nanoseconds(it.time)
        if it.kind == Kind.PUSH:
            pushed[key] = now
        elif it.kind == Kind.LEAVE:
            pushed[it.worker, -1, 0] = now
        elif it.kind == Kind.RECEIVE:
            came[it.rank] = _Release(it.worker, pushed[key])
        elif it.kind == Kind.LEFT:
            came[it.rank] = _Release(it.worker, pushed[it.worker, -1, 0])
        elif it.kind == Kind.TICK and (it.clock, now) in over:
            came[it.rank] = over[it.clock, now]
        elif it.kind == Kind.APPLY and job.deciders[it.shard] == it.shard:
            merged[it.shard, it.version] = came[it.rank]
        elif it.kind == Kind.RELAY and it.flag == LAST:
            came[it.rank] = merged[job.deciders[it.shard], it.version]
        elif it.kind == Kind.REPLY:
            replied[key] = came[it.rank]
        elif it.kind == Kind.READ and key in replied:
            answers[it.worker].append((now, replied[key]))
    return answers


#: Start and end, and the other fields of a ``Stretch``.
_Wait = tuple[int, int, str, int]


class _Lines:
    """Determines what workers did and waited for; times in nanoseconds."""

    def __init__(
        self, job: RecordedJob, sums: Sequence[Sequence[Transfer]], merges: Sequence[Merge]
    ) -> None:
        self._job, self.sums = job, sums
        self._busy = [
            [(it.start, it.stop) for it in job.on_lane(worker, COMPUTES)]
            for worker in range(job.workers)
        ]
        self._ends = [*map(nanoseconds, job.ends())]
        self._answers = _answers(job, merges) if job.config.servers else None

    def of(self, worker: int) -> Iterator[Stretch]:
        """Yield a worker's stretches, without gaps, from the start until it finished."""
        busy, begun = self._busy[worker], 0
        for step, (_, stop) in enumerate(busy):
            last = step + 1 == len(busy)
            resumed = self._ends[worker] if last else busy[step + 1][0]
            found = [(begun, stop, COMPUTE, step), *self._waits(worker, step, stop, resumed)]
            yield from (Stretch(it[0] / 1e9, it[1] / 1e9, *it[2:]) for it in found)
            begun = found[-1][1]

    def _waits(self, worker: int, step: int, stop: int, resumed: int) -> Iterator[_Wait]:
        """Yield what a worker waits for after a step that ends at ``stop``."""
        team = [it for it in self._team(worker) if len(self._busy[it]) > step]
        last = max(team, key=lambda it: self._busy[it][step][1])
        if last != worker and self._busy[last][step][1] > stop:  # for the gradients of its learner
            until = self._busy[last][step][1]
            yield from self._wait(worker, stop, until, _Release(last, until))
            stop = until
        for it in self.sums[worker] if self.sums else ():
            taken = nanoseconds(it.taken)
            if stop < taken <= resumed + _NOTHING_NS:
                cause = _Release(*self._who_held_up(worker, stop, it))
                yield from self._wait(worker, stop, taken, cause)
                stop = taken
        if self._answers is not None and self._job.config.scheme.fragments > 1:
            # At its end it pushes one fragment after the other, and waits for each.
            for at in sorted({it[0] for it in self._answers[worker] if stop < it[0] < resumed}):
                yield from self._wait(worker, stop, at, self._cause(worker, stop, step, at))
                stop = at
        if resumed - stop > _NOTHING_NS:
            cause = _Release(worker, 0) if self.sums else self._cause(worker, stop, step, resumed)
            yield from self._wait(worker, stop, resumed, cause)

    def _wait(self, worker: int, start: int, stop: int, why: _Release) -> Iterator[_Wait]:
        """Yield a wait for another worker, then for the end of a window, and then for messages."""
        until = min(max(why.sent, start), stop)
        if why.cause != worker and until > start:
            yield start, until, WORKERS, why.cause
            start = until
        over = min(why.over, stop)
        if over > start:
            yield start, over, WINDOW, worker
            start = over
        if stop > start:
            yield start, stop, MESSAGES, worker

    def _team(self, worker: int) -> range:
        """Return the ranks of a worker's learner, of which the first talks to servers."""
        ranks = int(self._job.config.scheme.learner_ranks)
        return range(worker - worker % ranks, worker - worker % ranks + ranks)

    def _cause(self, worker: int, stop: int, step: int, resumed: int) -> _Release:
        """Return what a worker waited for after a step."""
        if self._answers is not None:
            answers = self._answers[self._team(worker)[0]]
            found = [it for it in answers if stop < it[0] <= resumed + _NOTHING_NS]
            # Several shards are read together: the step waited for the last of them.
            last_of = max(found, key=lambda it: (it[0], it[1].sent), default=None)
            return last_of[1] if last_of else _Release(worker, 0)
        there = [i for i, busy in enumerate(self._busy) if len(busy) > step]
        last = max(there, key=lambda i: self._busy[i][step][1])
        return _Release(last, self._busy[last][step][1])

    def _who_held_up(self, worker: int, start: int, it: Transfer) -> tuple[int, int]:
        """Return the worker whose computing delays a mean for this worker, and until when.

        The last message that it took was sent by a worker that had computed until then, or had
        taken a message at that same time, and so on backwards.
        """
        until, sender, computed = nanoseconds(it.taken), worker, False
        while until > start and not computed:
            if until not in self._job.taken[sender]:  # messages are not visible, as in a rendezvous
                return it.last, nanoseconds(it.complete)
            until, sender = self._job.taken[sender][until]
            computed = any(stop == until for _, stop in self._busy[sender])
        return sender, until


#: Number of parameters. Nothing depends on it, except that each server must own at least one.
_PARAMETERS = 64
#: A normal step takes 1 unit of time, give or take this fraction; a message takes this long.
_SPREAD, _LATENCY = 0.1, 0.03


class _Bowl:
    """The simplest problem that can be trained: |θ|²/2, whose gradient is θ.

    It starts at its minimum, so it does not diverge at any learning rate or staleness.
    """

    def initial(self) -> Vector:
        """Return the initial parameters, the minimum."""
        return np.zeros(_PARAMETERS, np.float32)

    def batches(self, worker: int, workers: int, epoch: int) -> list[list[int]]:
        """Return four batches of one sample; a list, so that an epoch's length is known."""
        return [[0]] * 4

    def loss_and_grad(self, theta: Vector, batch: object, out: Vector) -> float:
        """Return the loss at θ."""
        np.copyto(out, theta)
        return float(theta @ theta) / 2

    def evaluate(self, theta: Vector) -> dict[str, float]:
        """Return the loss."""
        return {"loss": float(theta @ theta) / 2}


class _Layered(_Bowl):
    """The problem with a layer for each fragment."""

    def __init__(self, fragments: int) -> None:
        self._layers = min(fragments, _PARAMETERS)

    def gradient_spans(self) -> Sequence[Span]:
        """Return the layers, the last one first."""
        return even_spans(_PARAMETERS, self._layers)[::-1]

    def loss_and_grad(
        self,
        theta: Vector,
        batch: object,
        out: Vector,
        ready: Callable[[int], None] | None = None,
    ) -> float:
        """Return the loss at θ."""
        return super().loss_and_grad(theta, batch, out)


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened to each worker."""

    #: Resolved.
    config: TrainConfig
    #: By worker, the factor by which its steps take longer.
    slow: tuple[float, ...]
    #: By worker, in order of time.
    lines: tuple[tuple[Stretch, ...], ...]
    #: Time at which the last worker finished, in units of a normal step.
    seconds: float
    #: Mean and largest staleness τ of the gradients that were applied; None without servers.
    staleness: tuple[float, int] | None
    #: In streaming local SGD, by worker: the sums that it took part in, in order.
    sums: tuple[tuple[Transfer, ...], ...] = ()
    #: In order of their arrival; ranks are workers, then servers.
    passages: tuple[Passage, ...] = ()
    #: In modes with a quorum, in order of time.
    merges: tuple[Merge, ...] = ()

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.lines)

    def share(self, worker: int, *what: str, waiting_for: int | None = None) -> float:
        """Return the fraction of its own time that a worker spent on something.

        Args:
            worker: its number.
            what: activities: ``COMPUTE``, or of ``WAITING``.
            waiting_for: counts only waits for this worker; None counts all.
        """
        line = self.lines[worker]
        whole = sum(stretch.seconds for stretch in line)
        spent = sum(
            stretch.seconds
            for stretch in line
            if stretch.what in what and waiting_for in (None, stretch.waiting_for)
        )
        return spent / whole if whole else 0.0


def run(config: TrainConfig, *, workers: int, slow: Mapping[int, float]) -> Timeline:
    """Train the small job and return its timeline.

    Args:
        config: of the mode, with ``steps``; its seed also seeds the delays.
        workers: number of workers, ≥ 1.
        slow: worker → factor by which its steps take longer; 1 for all others.

    Raises:
        ConfigError: if the config does not fit the number of workers.
    """
    factors = tuple(slow.get(worker, 1.0) for worker in range(workers))
    problem = _Layered(config.scheme.fragments) if config.scheme.streams else _Bowl()
    job = recorded(config, problem, workers=workers, costs=partial(_costs, factors=factors))
    streams, merges = config.scheme.streams, merges_of(job)
    lines = _Lines(job, _transfers(job) if streams and not merges else [], merges)
    sums = _pushes(merges, workers) if streams and merges else lines.sums
    return Timeline(
        config=job.config,
        slow=factors,
        lines=tuple(tuple(lines.of(worker)) for worker in range(workers)),
        seconds=max(job.ends()),
        staleness=_staleness(job),
        sums=tuple(map(tuple, sums)),
        passages=tuple(job.passages),
        merges=tuple(merges),
    )


def lesson(timeline: Timeline) -> str:
    """Return the one line to remember."""
    waits = [
        (timeline.share(worker, WORKERS, waiting_for=waiting_for), worker, waiting_for)
        for worker in range(timeline.workers)
        for waiting_for in range(timeline.workers)
        if waiting_for != worker
    ]
    share, worker, waiting_for = max(waits, default=(0.0, 0, 0))
    busy = sum(timeline.share(i, COMPUTE) for i in range(timeline.workers)) / timeline.workers
    if share < 0.005:
        text = "no worker waited for another"
    else:
        text = f"worker {worker} waited {share:.0%} of its time for worker {waiting_for}"
    text += f"; on average a worker computed {busy:.0%} of its time"
    if timeline.staleness is not None:
        mean, most = timeline.staleness
        if timeline.merges:
            members = sum(len(it.members) for it in timeline.merges) / len(timeline.merges)
            text += f"; {plural(len(timeline.merges), 'merge')}, of {members:.1f} workers each"
            text += f"; a push was {mean:.1f} merges old when merged, at most {most}"
            rates = _rates(timeline)
            text += f"; in the long run {rates.text('step')}" if rates else ""
        elif timeline.config.scheme.averages:
            text += f"; the centre was {mean:.1f} updates ahead when a worker met it again"
            text += f", at most {most}"
        elif most:
            text += f"; a gradient was {mean:.1f} versions old when applied, at most {most}"
        else:
            text += "; no gradient was stale"
    return text


def _rates(timeline: Timeline) -> LearnerRates | None:
    """Return what the mode comes to where the closed form says it; None elsewhere."""
    scheme = timeline.config.scheme
    if scheme.streams or scheme.dynamic or scheme.grace == AUTO:
        return None
    return learner_rates(
        LearnerJob(
            [scheme.local_steps * factor for factor in timeline.slow],
            scheme.quorum or timeline.workers,
            variation=_SPREAD / math.sqrt(3 * scheme.local_steps),
            grace_s=float(scheme.grace or 0),
            servers=timeline.config.servers or 1,
            latency_s=_LATENCY,
        )
    )


def _costs(role_map: RoleMap, factors: tuple[float, ...]) -> SimulationCosts:
    """Return the job's costs: steps by worker, a small latency, no cost per byte."""

    def step(rank: int, rng: np.random.Generator) -> float:
        worker = role_map.worker_of(rank)
        factor = 1.0 if worker is None else factors[worker]
        return factor * float(rng.uniform(1 - _SPREAD, 1 + _SPREAD))

    return SimulationCosts(
        compute=step, latency=lambda rng: _LATENCY * float(rng.uniform(0.8, 1.2))
    )


def _staleness(job: RecordedJob) -> tuple[float, int] | None:
    """Return mean and maximum τ of applied pushes; None if it has no meaning."""
    if job.config.scheme.averages and job.config.scheme.rounds:
        return None
    counts = Counter(it.tau for it in job.of_kind(Kind.APPLY) if it.worker >= 0)
    if not counts:
        return None
    return sum(tau * n for tau, n in counts.items()) / counts.total(), max(counts)
