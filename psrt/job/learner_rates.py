"""What learners come to, in closed form: merges, staleness, bytes and idleness. Pure.

A learner computes for X seconds, exchanges with the servers for E, and waits for the merge that has
its push. There are W learners, and merges of M on average, one every D seconds:

- *Staleness*, exactly and whatever the speeds. From one push of a learner to its next, τ + 1
  versions are made; over V versions that adds up to WV, in MV pushes. So the mean τ is W/M − 1.
- *K = W*: D is the mean of the longest of W rounds.
- *K = 1*: nobody waits: Σ 1/(X + E) merges a second.
- *Between*, merges come like a clock to a learner, if the others are many. It started with one and
  waits for the first after its round, so a cycle is ⌈(X + E)/D⌉ merges long. But one of K closes
  the merge and does not wait, hence a factor 1 − 1/K of the wait. Σ D/cycle = K says D.
- *A window g*: a merge has its K learners at D − g, so the sum is of those that come by then. If
  the last of all that started together comes within g of the K-th, all come into each merge.
- *In step*: learners of nearly one speed that started together stay together. Then ⌊W/K⌋ merges
  follow each other in the time that ⌊W/K⌋·K of W rounds take. What is faster is what happens.
- *Links* of latency L and bandwidth B, n bytes, S servers, c = n/B, q = c/S: an exchange takes
  2L + c + q; if S > 1, where the other shards wait for what the first has decided, 2L + c +
  max(q, L). The answers of a merge leave a server's link one after another, q apart. Pushes queue
  before it, which mean value analysis tells for a constant service; it carries no more than one in
  q. And of the 16 buffers for versions none is free before its answers have arrived.

Against simulations of 1,200 jobs (W from 8 to 256, K from 1 to W, rounds from constant to
exponential, windows up to half a round), merges a second are

- within 6 % without a window for K up to W/2 and K = W, and within 8 % for K between, where rounds
  that vary as much as exponential ones miss 5 %;
- within 9 % with a window where a round's standard deviation is a third of its mean or more;
- far off in some cases of a window where rounds vary less, up to three times where all learners
  have one speed: whether a group stays together then hangs on a detail. Merges and their members
  err in opposite directions, so pushes a second, bytes and idleness miss 10 % in 2 of 864.

Updates at servers take no time here.

Source: mean value analysis, Reiser & Lavenberg, JACM 27(2), 1980.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from psrt.core.arrays import AnyArray
from psrt.transport.port import MOST_VERSIONS

#: A round's time is tabulated at these deviates of a normal distribution, with these weights.
_DEVIATES = np.linspace(-5.5, 5.5, 111)
_EDGES = np.array([NormalDist().cdf(it) for it in np.linspace(-5.55, 5.55, 112)])
_WEIGHTS = np.diff(_EDGES) / (_EDGES[-1] - _EDGES[0])
#: How late in its merge a learner is answered, and the weights. The ends matter: learners in step
#: all wait for the last.
_PLACES, _PLACE_WEIGHTS = np.linspace(0, 1, 5), np.array([1, 2, 2, 2, 1]) / 8
#: Learners of more speeds than this are put together.
_SPEEDS = 256
#: Bisections of D; times at which a distribution is integrated.
_HALVINGS, _TIMES = 50, 2000
#: A difference of merges below this is rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class LearnerJob:
    """Learners and their servers, as far as rates depend on them."""

    #: By learner, the mean seconds in which it computes a round, its local steps.
    rounds_s: Sequence[float]
    #: K.
    quorum: int
    #: Standard deviation of a learner's round, over its mean.
    variation: float = 0.0
    #: Whether rounds are log-normal; else as sums of exponential steps are.
    is_lognormal: bool = True
    #: Seconds for which a merge with its quorum stays open.
    grace_s: float = 0.0
    #: Bytes of the parameters, which travel in each direction.
    nbytes: float = 0.0
    #: S.
    servers: int = 1
    #: Of each link, in seconds.
    latency_s: float = 0.0
    #: Bytes a second in each direction of each rank's link.
    bandwidth: float = math.inf


class LearnerRates(NamedTuple):
    """What a job comes to, once it has run for a while."""

    #: Merges a second.
    merges: float
    #: Learners in a merge, on average.
    members: float
    #: Mean τ of a push, in versions.
    staleness: float
    #: Bytes that a learner sends in a second, on average; it receives as many.
    nbytes: float
    #: Share of time in which a learner does not compute, on average.
    idle: float

    def text(self, unit: str = "s") -> str:
        """Return a line for the user, where ``unit`` is that of time."""
        return (
            f"{self.merges:.3g} merges/{unit} of mean size {self.members:.3g}, mean staleness "
            f"{self.staleness:.2g}, idle {100 * self.idle:.0f}%"
        )


def learner_rates(job: LearnerJob) -> LearnerRates:
    """Return the rates of a job.

    >>> found = learner_rates(LearnerJob([1.0] * 8, quorum=3))  # two wait for the next round
    >>> round(found.merges, 6), round(found.idle, 6)
    (2.0, 0.25)
    >>> print(learner_rates(LearnerJob([1.0, 2.0, 4.0], quorum=1)).text())
    1.75 merges/s of mean size 1, mean staleness 2, idle 0%
    """
    return _Clock(job).rates()


class _Clock:
    """The interval between merges, and what follows from it."""

    def __init__(self, job: LearnerJob) -> None:
        self._job, self._count = job, len(job.rounds_s)
        self._means = np.sort(np.array(job.rounds_s, np.float64))
        self._share, weights = _round(job)
        transfer = job.nbytes / job.bandwidth
        self._apart = transfer / job.servers
        relay = max(self._apart, job.latency_s if job.servers > 1 else 0.0)
        exchange = 2 * job.latency_s + transfer + relay
        all_come = self._together(self._count) + exchange
        self._exchange = exchange + (self._queueing(exchange) if job.quorum < self._count else 0.0)
        means = [it.mean() for it in np.array_split(self._means, min(self._count, _SPEEDS))]
        late = (job.quorum - 1) * self._apart * _PLACES
        round_s = np.multiply.outer(means, self._share)[:, :, None]
        self._times = (round_s + (self._exchange + late)).reshape(len(means), -1)
        self._weights = np.multiply.outer(weights, _PLACE_WEIGHTS).ravel()
        self._each = np.array(means)
        self._learners = self._count / len(means)
        self._interval, self._members = all_come, float(self._count)
        if job.quorum < self._count and not self._all_in_window():
            self._shorten(all_come)
        # A version's answers have left, and are read before its buffer is used again.
        answered = self._members * self._apart
        buffers = (job.latency_s + answered) / min(self._count + 2, MOST_VERSIONS)
        self._interval = max(self._interval, answered, buffers)

    def rates(self) -> LearnerRates:
        """Return them."""
        pushes = self._members / self._interval
        # By speed, the share of what is merged; a bound by links slows all down alike.
        shares = np.ones(len(self._each))
        if self._members < self._count:
            shares /= self._cycles(self._interval)[0]
        computing = pushes * float(shares @ self._each / shares.sum())
        return LearnerRates(
            1 / self._interval,
            self._members,
            self._count / self._members - 1,
            pushes * self._job.nbytes / self._count,
            max(0.0, 1 - computing / self._count),
        )

    def _all_in_window(self) -> bool:
        """Return whether all that started together come before a window is over.

        Then each merge starts all together again.
        """
        job = self._job
        after = self._together(self._count) - self._together(job.quorum)
        return 0 < job.grace_s >= after

    def _shorten(self, longest: float) -> None:
        """Find the interval in which a quorum comes, if that is less than what all need."""
        job = self._job
        low, high = max(job.grace_s, 1e-6 * longest / self._count), longest
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            enough = self._come(middle)[0] >= job.quorum * (1 - _ROUNDING)
            low, high = (low, middle) if enough else (middle, high)
        self._interval, self._members = high, float(job.quorum)
        if job.grace_s:
            self._members = max(self._members, min(self._count, self._come(high)[1]))
            return
        merges = self._count // job.quorum
        in_step = (self._together(merges * job.quorum) + self._exchange) / merges
        self._interval = min(high, in_step)

    def _cycles(self, interval: float) -> tuple[AnyArray, AnyArray]:
        """Return by speed the mean time from merge to merge, and the share that is early."""
        grace = min(self._job.grace_s, interval)
        merges = np.ceil(self._times / interval - _ROUNDING)
        left = interval * merges - self._times  # from the end of a round to the next merge
        before = np.maximum(0.0, left - grace)
        wait = np.minimum(left, grace) + (1 - 1 / self._job.quorum) * before
        early = left >= grace - _ROUNDING * interval
        return (self._times + wait) @ self._weights, early @ self._weights

    def _come(self, interval: float) -> tuple[float, float]:
        """Return the learners that come to a merge before its window, and in all."""
        cycles, early = self._cycles(interval)
        come = self._learners * interval / cycles
        return float(come @ early), float(come.sum())

    def _together(self, which: int) -> float:
        """Return when the ``which``-th of all that started together is there.

        The last of a merge is answered last.
        """
        if len(self._share) == 1:
            there = float(self._means[which - 1])
        else:
            there = _order_statistic(self._means, self._share, which)
        return there + (which - 1) * self._apart

    def _queueing(self, exchange: float) -> float:
        """Return the mean time that a push waits for the server's link."""
        job, service = self._job, self._apart
        if not service or (not job.variation and self._means[0] == self._means[-1]):
            return 0.0
        away = self._count / float(np.sum(1 / (self._means + exchange))) - service
        queued = busy = stays = 0.0
        for learners in range(1, self._count + 1):
            stays = service * (1 + queued - busy / 2)
            pushes = learners / (away + stays)
            queued, busy = pushes * stays, min(1.0, pushes * service)
        return stays - service


def _round(job: LearnerJob) -> tuple[AnyArray, AnyArray]:
    """Return values of a round over its mean, and their weights."""
    if not job.variation:
        return np.ones(1), np.ones(1)
    if job.is_lognormal:
        variance = math.log1p(job.variation**2)
        return np.exp(math.sqrt(variance) * _DEVIATES - variance / 2), _WEIGHTS
    # Wilson & Hilferty, PNAS 17(12), 1931: the cube root of a gamma variable is nearly normal.
    part = job.variation**2 / 9
    return np.maximum(0.0, 1 - part + math.sqrt(part) * _DEVIATES) ** 3, _WEIGHTS


def _order_statistic(means: AnyArray, share: AnyArray, which: int) -> float:
    """Return the mean of the ``which``-th smallest of a round of each learner."""
    below = np.cumsum(_WEIGHTS) - _WEIGHTS / 2
    times = np.linspace(0.0, float(means[-1] * share[-1]), _TIMES)
    come, variance, log = np.zeros((3, _TIMES))
    for mean in means:
        here = np.interp(times / mean, share, below, left=0.0, right=1.0)
        come += here
        variance += here * (1 - here)
        log += np.log(np.maximum(1e-300, here))
    # The number that have come is nearly normal; that all have is a product.
    z = (which - 0.5 - come) / np.sqrt(np.maximum(variance, 1e-12))
    fewer = np.array([NormalDist().cdf(it) for it in z])
    return float(np.trapezoid(fewer if which < len(means) else 1 - np.exp(log), times))
